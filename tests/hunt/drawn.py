"""What is generated: batches as somebody might hand them in, each a few words that can be read and written down."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

B, R, D, C = 6, 4, 3, 3
"""Anchors, references, dimensions, classes: of all cases, so that a program is compiled once for all of them."""

KINDS = ("plain", "copy", "opposite", "longer", "axis", "near", "zero", "huge", "tiny", "subnormal")
"""Of a row: drawn; the first row, its opposite, its multiple; a unit vector; almost the first row; of which length."""

LENGTHS = {"zero": 0.0, "huge": 1e30, "tiny": 1e-20, "subnormal": 1e-41}
PLAIN = ("plain",) * B
SPOILED = (np.nan, np.inf, -np.inf, 1e30, 3e38)
WEIGHTS = (1.0, 1.0, 0.5, 2.0, 0.0, -1.0)


@dataclass(frozen=True)
class Case:
    """A batch, and how a loss is called with it.

    Attributes:
        way: how the loss is called (`ways.py`).
        seed: of what is drawn.
        rows: kinds of the anchors.
        labels: of the anchors; −1 for none, of proxies also one class too many.
        where: which anchors are valid.
        weights: of the anchors.
        others: kinds of the references, or of the proxies.
        other_labels: of the references.
        number: which hyper-parameter has another value, and which; 0: all are as registered.
    """

    way: str = "plain"
    seed: int = 0
    rows: tuple[str, ...] = PLAIN
    labels: tuple[int, ...] = (0, 0, 1, 1, 2, 2)
    where: tuple[bool, ...] = (True,) * B
    weights: tuple[float, ...] = (1.0,) * B
    others: tuple[str, ...] = ("plain",) * R
    other_labels: tuple[int, ...] = (0, 1, 2, 0)
    number: int = 0

    @property
    def valid(self) -> np.ndarray:
        """The anchors that take part: those that `where` keeps, of a class."""
        labels = np.array(self.labels)
        return np.array(self.where) & (labels >= 0) & (labels < C)

    @property
    def ordinary(self) -> bool:
        """Whether all vectors are such that float32 can tell them apart, and lie in its middle."""
        return set(self.rows + self.others) <= {"plain", "longer", "axis", "opposite"}

    def vectors(
        self, kinds: tuple[str, ...], start: int, lengths: Mapping[str, float]
    ) -> np.ndarray:
        """Rows of these kinds in float64; `copy` and its like are of the first row of all."""
        drawn = np.random.default_rng(self.seed).normal(size=(64, D))
        first = drawn[0]
        rows = []
        for place, kind in enumerate(kinds, start=start):
            own = drawn[place]
            row = {
                "copy": first,
                "opposite": -first,
                "longer": first * 3.0,
                "near": first * (1 + 1e-7 * own),
                "axis": np.eye(D)[place % D],
            }.get(kind, own)
            rows.append(row * lengths.get(kind, 1.0))
        return np.array(rows).reshape(-1, D)


def _some(values: Any, size: int) -> st.SearchStrategy[Any]:
    return st.tuples(*[st.sampled_from(values)] * size)


def cases(ways: tuple[str, ...], kind: str) -> st.SearchStrategy[Case]:
    """Batches for the losses of a kind."""
    classes = (0, 1, 2, -1) if kind == "pair" else (0, 1, 2, -1, C)
    labels = st.one_of(
        _some(classes, B), _some((0, 1), B), st.just((1,) * B), st.just(tuple(range(3)) + (-1,) * 3)
    )
    plain, every = ("plain",), ("plain", "plain", *KINDS)
    valid = st.one_of(st.just((True,) * B), _some((True, True, False), B))
    return st.builds(
        Case,
        way=st.sampled_from(ways),
        seed=st.integers(0, 1 << 16),
        rows=st.one_of(_some(plain, B), _some(every, B), _some(KINDS[:6], B)),
        labels=labels,
        where=valid,
        weights=st.one_of(st.just((1.0,) * B), _some(WEIGHTS, B)),
        others=st.one_of(_some(plain, R), _some(every, R)),
        other_labels=_some((0, 1, 2, -1), R),
        number=st.one_of(st.just(0), st.integers(0, 80)),
    )
