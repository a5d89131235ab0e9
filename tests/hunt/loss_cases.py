"""Generated batches for losses, the ways to call a loss on them, and the oracle's value of the same call."""

import functools
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from losses.registry import REGISTRY, loss

import jdml
from jdml.mining import chain, easy_positive, hard_negative, random_positive, semi_hard_negative
from oracles import mining as mining_oracles

B, R, D, C = 6, 4, 3, 3
"""Anchors, references, dimensions and classes of every case, so that a program is compiled once for all of them."""

KINDS = ("plain", "copy", "opposite", "longer", "axis", "near", "zero", "huge", "tiny", "subnormal")
"""Kinds of rows: random; the first row, its opposite, its multiple; a unit vector; almost the first row; by length."""

LENGTHS = {"zero": 0.0, "huge": 1e30, "tiny": 1e-20, "subnormal": 1e-41}
PLAIN = ("plain",) * B
WEIGHTS = (1.0, 1.0, 0.5, 2.0, 0.0, -1.0)

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Call:
    """One form of call of a loss.

    Attributes:
        settings: The loss's keywords.
        oracle: The same as keywords of its oracle; None if it has none.
        like: The call that must give the same result.
        references: Whether the batch is compared with others.
        masked: Whether a mask gives the positive pairs, instead of labels.
        ties: Whether rounding decides between equal distances.
        per_class: K of the proxies.
        dtype: Of the vectors, if it has 16 bits.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    oracle: Mapping[str, Any] | None = field(default_factory=dict)
    like: str | None = None
    references: bool = False
    masked: bool = False
    ties: bool = False
    per_class: int = 2
    dtype: Any = None


def _mined(distances: np.ndarray, positive: np.ndarray, negative: np.ndarray) -> Any:
    easy, negative = mining_oracles.easy_positive(distances, positive, negative)
    return mining_oracles.hard_negative(distances, easy, negative)


_BLOCKS = {"anchor_block": 4}
_DRAWN = {
    "mine": chain(random_positive(), semi_hard_negative()),
    "key": jax.random.key(3, impl="rbg"),
}
_BOTH = {
    "plain": Call(),
    "not normalized": Call({"normalize": None}, {"normalize": None}),
    "in the ball": Call({"normalize": jdml.ball}, {"normalize": "ball"}),
    "bfloat16": Call(dtype=jnp.bfloat16),
}
CALLS: Mapping[str, Mapping[str, Call]] = {
    "pair": _BOTH
    | {
        "references": Call(references=True),
        "in blocks": Call(_BLOCKS, None, "plain"),
        "references in blocks": Call(_BLOCKS, None, "references", references=True),
        "by a mask": Call({}, None, "plain", masked=True),
        "mined": Call(
            {"mine": chain(easy_positive(), hard_negative())}, {"mine": _mined}, ties=True
        ),
        "drawn": Call(_DRAWN, None, ties=True),
        "drawn in blocks": Call(_DRAWN | _BLOCKS, None, "drawn", ties=True),
    },
    "proxy": _BOTH
    | {"eight proxies": Call(per_class=8), "in blocks": Call({"class_block": 2}, None, "plain")},
}
NO_ORACLE = {
    ("lifted_structure_loss", "references"),  # its negatives are those of both anchors
    ("arcface_loss", "not normalized"),  # a product beyond 1 is no cosine
    ("subcenter_arcface_loss", "not normalized"),
}


@dataclass(frozen=True)
class Case:
    """A batch, and how a loss is called with it.

    Attributes:
        call: The name of the call.
        seed: Of the random rows.
        rows: Kinds of the anchors.
        labels: Of the anchors; −1 for none; for proxies also a class out of range.
        where: Which anchors are valid.
        weights: Of the anchors.
        others: Kinds of the references, or of the proxies.
        other_labels: Of the references.
        edge: The number of a hyper-parameter's extreme value; 0: none.
    """

    call: str = "plain"
    seed: int = 0
    rows: tuple[str, ...] = PLAIN
    labels: tuple[int, ...] = (0, 0, 1, 1, 2, 2)
    where: tuple[bool, ...] = (True,) * B
    weights: tuple[float, ...] = (1.0,) * B
    others: tuple[str, ...] = ("plain",) * R
    other_labels: tuple[int, ...] = (0, 1, 2, 0)
    edge: int = 0

    @property
    def valid(self) -> np.ndarray:
        """Return which anchors are used: those in `where` that have a class."""
        labels = np.array(self.labels)
        return np.array(self.where) & (labels >= 0) & (labels < C)

    def vectors(
        self, kinds: tuple[str, ...], start: int, lengths: Mapping[str, float]
    ) -> np.ndarray:
        """Return rows of these kinds in float64; `copy` and similar kinds refer to the first row."""
        random = np.random.default_rng(self.seed).normal(size=(64, D))
        first = random[0]
        rows = []
        for place, kind in enumerate(kinds, start=start):
            row = {
                "copy": first,
                "opposite": -first,
                "longer": first * 3.0,
                "near": first * (1 + 1e-7 * random[place]),
                "axis": np.eye(D)[place % D],
            }.get(kind, random[place])
            rows.append(row * lengths.get(kind, 1.0))
        return np.array(rows).reshape(-1, D)


def calls_of(name: str) -> list[str]:
    """Return the calls that apply to a loss."""
    spec = REGISTRY[name]
    blocks = spec.kind == "pair" or "K" not in spec.shape
    return [call for call in CALLS[spec.kind] if blocks or call != "in blocks"]


def _tuples(values: Any, size: int) -> st.SearchStrategy[Any]:
    return st.tuples(*[st.sampled_from(values)] * size)


def cases(name: str, calls: tuple[str, ...] = ()) -> st.SearchStrategy[Case]:
    """Generate batches for a loss, in these of its calls, or in all."""
    kind = REGISTRY[name].kind
    classes = (0, 1, 2, -1) if kind == "pair" else (0, 1, 2, -1, C)
    some = ("plain", "plain", *KINDS)
    return st.builds(
        Case,
        call=st.sampled_from(calls or calls_of(name)),
        seed=st.integers(0, 1 << 16),
        rows=st.one_of(st.just(PLAIN), _tuples(some, B), _tuples(KINDS[:6], B)),
        labels=st.one_of(
            _tuples(classes, B),
            _tuples((0, 1), B),
            st.sampled_from([(1,) * B, (0, 1, 2, -1, -1, -1)]),
        ),
        where=st.one_of(st.just((True,) * B), _tuples((True, True, False), B)),
        weights=st.one_of(st.just((1.0,) * B), _tuples(WEIGHTS, B)),
        others=st.one_of(st.just(("plain",) * R), _tuples(some, R)),
        other_labels=_tuples((0, 1, 2, -1), R),
        edge=st.one_of(st.just(0), st.integers(0, 80)),
    )


# Hyper-parameters are traced: each has its registered value, or one of its extreme values.

_SIZES = (1e-3, 0.1, 1.0, 10.0, 1e3, 1e-12, 1e-30, 1e-38, 1e9, 1e20, 3e38)
_SIGNED = (0.0, *(sign * size for size in _SIZES for sign in (1, -1)))
_ANGLES = (0.0, 1e-6, 0.5, 1.5, 3.0, math.pi)


@functools.cache
def _registered(name: str) -> dict[str, float]:
    parameters = inspect.signature(loss(name)).parameters.values()
    values = {p.name: p.default for p in parameters if isinstance(p.default, float)}
    return values | {n: v for n, v in REGISTRY[name].settings.items() if isinstance(v, float)}


@functools.cache
def _edges(name: str) -> list[tuple[str, tuple[float, ...]]]:
    """Extreme values of each hyper-parameter, of the sign and the range that the loss does not refuse."""
    case = Case()
    call = CALLS[REGISTRY[name].kind]["plain"]
    points, rest = _arguments(vectors_of(name, case, call), others_of(case, call))

    def takes(parameter: str, value: float) -> bool:
        changed = functools.partial(loss(name), **{parameter: value}, **rest)
        try:
            jax.eval_shape(changed, *points)
        except ValueError:
            return False
        return True

    edges = []
    for parameter in _registered(name):
        if takes(parameter, 1e9):
            known = (0.0, *_SIZES) if takes(parameter, 0.0) else _SIZES
            edges.append((parameter, _SIGNED if takes(parameter, -1.0) else known))
        elif takes(parameter, 3.0):
            edges.append((parameter, _ANGLES))
    return edges


def edges(name: str) -> int:
    """Return how many values of `Case.edge` a loss has, apart from 0."""
    return len(_edges(name)) * max((len(values) for _, values in _edges(name)), default=0)


def hyper_parameters(name: str, case: Case) -> tuple[dict[str, float], bool]:
    """Return the hyper-parameters of a case, and whether the oracle can represent them."""
    chosen = dict(_registered(name))
    known = _edges(name) if case.edge else []
    if not known:
        return chosen, True
    turn, which = divmod(case.edge - 1, len(known))
    key, values = known[which]
    chosen[key] = values[turn % len(values)]
    return chosen, chosen[key] == 0 or 1e-3 <= abs(chosen[key]) <= 1e3


def has_oracle(name: str, case: Case) -> bool:
    """Return whether the oracle has a value for a case."""
    rows = set(case.rows)
    call = CALLS[REGISTRY[name].kind][case.call]
    if (name, case.call) in NO_ORACLE or call.oracle is None or (call.ties and rows != {"plain"}):
        return False
    if name.startswith("proxy_nca") and case.call == "not normalized":
        return "huge" not in rows | set(case.others)  # the squares' difference is rounding
    short = case.call in ("not normalized", "in the ball") and {"tiny", "subnormal"} & rows
    return not (name == "snr_contrastive_loss" and short)  # no variance, by the loss


# Arrays of a case, and the loss of them.


def vectors_of(name: str, case: Case, call: Call) -> dict[str, np.ndarray]:
    """Return the arrays that have a gradient."""
    chosen, moderate = hyper_parameters(name, case) if case.edge else (_registered(name), True)
    # Gradients by shorter vectors are 1e20 times as steep: of sharp losses they are no floats.
    tiny = 1e-20 if moderate else 1e-6
    huge = 1e30
    if call.settings.get("normalize", jdml.sphere) is None:
        huge = 1e15 if moderate else 1e3
    if chosen.get("tau", 0.0) > 1e9:
        huge = 1e15  # a regularizer's slope times the length must be a float
    lengths = LENGTHS | {"huge": huge, "tiny": tiny}
    arrays = {"embeddings": case.vectors(case.rows, 0, lengths)}
    if call.references:
        arrays["references"] = case.vectors(case.others, 16, lengths)
    if REGISTRY[name].kind == "proxy":
        kinds = (case.others * C * 8)[: C * call.per_class]
        arrays["proxies"] = case.vectors(kinds, 16, lengths).reshape(C, call.per_class, D)
    if call.dtype is not None:
        most = float(jnp.finfo(call.dtype).max)
        arrays = {n: np.clip(v, -most, most) for n, v in arrays.items()}
    return arrays


def others_of(case: Case, call: Call) -> dict[str, np.ndarray]:
    """Return the arrays that have no gradient."""
    labels = np.array(case.labels, np.int32)
    arrays = {"labels": labels, "where": np.array(case.where), "weights": np.array(case.weights)}
    if call.masked:
        del arrays["labels"]
        arrays |= {"where": case.valid, "positive": labels[:, None] == labels[None, :]}
    if call.references:
        random = np.random.default_rng(case.seed)
        arrays["reference_labels"] = np.array(case.other_labels, np.int32)
        arrays["reference_where"] = random.random(R) < 0.8
        arrays["ids"] = random.integers(-1, 6, B).astype(np.int32)
        arrays["reference_ids"] = random.integers(-1, 6, R).astype(np.int32)
    return arrays


def _arguments(vectors: Mapping[str, Any], others: Mapping[str, Any]) -> Any:
    """Return the arguments of a loss, or of its oracle: by position, and by name."""
    named = dict(others)
    arrays = [vectors["embeddings"], named.pop("labels", None)]
    if "proxies" in vectors:
        arrays.append(vectors["proxies"])
    elif "references" in vectors:
        named["references"] = vectors["references"]
    return arrays, named


@functools.lru_cache(maxsize=32)
def _program(name: str, call: str) -> Any:
    """Value and gradients, compiled once for a loss and a call (and once for a type)."""
    spec = REGISTRY[name]
    settings = dict(CALLS[spec.kind][call].settings)
    settings |= {n: v for n, v in spec.settings.items() if not isinstance(v, float)}

    def value(vectors: dict[str, Any], others: dict[str, Any], numbers: dict[str, Any]) -> Any:
        arrays, named = _arguments(vectors, others)
        return loss(name)(*arrays, **named, **numbers, **settings).sum()

    return jax.jit(jax.value_and_grad(value))


def run(
    name: str,
    call: str,
    vectors: Arrays,
    others: Arrays,
    numbers: Mapping[str, float],
    dtype: Any,
) -> tuple[float, dict[str, np.ndarray]]:
    """Return value and gradients in float64, computed with vectors of a type."""
    wide = np.float64 if dtype == jnp.float64 else np.float32
    with jax.enable_x64(wide == np.float64):
        moved = {n: np.asarray(v).astype(dtype) for n, v in vectors.items()}
        others = {n: v.astype(wide) if n == "weights" else v for n, v in others.items()}
        scalars = {n: wide(v) for n, v in numbers.items()}
        value, gradients = _program(name, call)(moved, others, scalars)
        assert value.dtype == wide, f"the loss of {jnp.dtype(dtype)} is {value.dtype}"
        return float(value), {n: np.asarray(g, np.float64) for n, g in gradients.items()}


def oracle_value(
    name: str, call: Call, vectors: Arrays, others: Arrays, numbers: Mapping[str, float]
) -> float:
    """Return the oracle's sum."""
    spec = REGISTRY[name]
    known = inspect.signature(spec.oracle).parameters
    arrays, named = _arguments(vectors, others)
    settings = {n: v for n, v in (spec.settings | numbers).items() if n in known}
    return float(np.sum(spec.oracle(*arrays, **named, **call.oracle, **settings)))
