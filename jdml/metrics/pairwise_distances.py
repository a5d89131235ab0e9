"""All pairs of queries and rows of a gallery by their distance, in memory that does not grow with them."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jdml import ops
from jdml.metrics import ranking_score, relevance
from jdml.metrics.gallery_search import frame_of, pad_rows, pieces
from jdml.metrics.relevance import Relevance, RetrievalTask
from jdml.ops.meshes import by_rows, mesh_of, on_host

EXACT = 1 << 22
"""Pairs up to which every distance is kept and compared as it is."""
STEP = (1 << 23) >> 17
"""A step in which more distances are counted, by the bits of a float32: one of 2¹⁷ from a power of two to the next."""
_ONE = np.float32(1).view(np.int32)
"""The bits of 1 as an integer."""
PIECE = 1 << 11
"""Rows, of the gallery and of the queries, that are compared at a time."""
AT_ONCE = 1 << 22
"""Pairs that are."""


class Curve(NamedTuple):
    """Pairs by distance, the nearest first."""

    distances: np.ndarray
    right: np.ndarray
    wrong: np.ndarray

    def place(self, far: float, every: int | None = None) -> int:
        """The last point with at most this share of wrong pairs accepted, of as many or all; −1: before the first."""
        most = far * (self.wrong[-1] if every is None else every)
        return int(np.searchsorted(self.wrong, most * (1 + 1e-12), "right")) - 1

    def threshold(self, place: int) -> float:
        """A distance between this point and the next: what is at most so far apart is accepted."""
        if place < 0:
            return 0.0 if self.distances[0] > 0 else -1.0  # nothing is accepted
        here, after = self.distances[place], self.distances[min(place + 1, len(self.distances) - 1)]
        middle = (here + after) / 2
        return float(middle if middle < after else here)  # of neighbouring numbers it may round up


class PairDistances:
    """All pairs of a task, some at a time: how far apart, of one class or of two."""

    def __init__(self, task: RetrievalTask, truth: Relevance, mask: relevance.IgnoreMask) -> None:
        self.task, self.truth, self.mask = task, truth, mask
        queries, rows = len(task.queries), len(task.gallery)
        self.queries = on_host(task.queries)
        self.exact = queries * rows // (2 if task.alone else 1) <= EXACT
        self.rows = rows if mesh_of(task.gallery) is not None else PIECE
        self.columns = max(8, AT_ONCE // self.rows)
        self.frame: Any = None  # what is on disk is checked for it
        if isinstance(task.gallery, np.memmap) or not self.exact:
            self.frame = frame_of(self.queries, task.gallery)

    def curve(self) -> Curve:
        """How many pairs of one class and of two lie within which distance."""
        distances, *counts = self._sorted() if self.exact else self._in_steps()
        return Curve(distances, *(np.cumsum(some) for some in counts))

    def errors(self, thresholds: Sequence[float]) -> np.ndarray:
        """The standard error of FAR at each threshold, if classes are what was drawn."""
        classes = int(max(some.max(initial=0) for some in self.truth[:2])) + 1
        accepted, every = np.zeros((len(thresholds), classes)), np.zeros(classes)
        for rows, columns, apart, _, wrong in self._blocks():
            own = self.truth.gallery_classes[rows], self.truth.query_classes[columns]
            for axis, of_rows in zip((1, 0), own, strict=True):
                counted = of_rows >= 0
                every += np.bincount(of_rows[counted], wrong.sum(axis)[counted], classes)
                for turn, threshold in enumerate(thresholds):
                    near = (wrong & (apart <= threshold)).sum(axis)
                    accepted[turn] += np.bincount(of_rows[counted], near[counted], classes)
        total = every.sum()  # each pair twice, for both of its classes
        excess = accepted - accepted.sum(axis=1, keepdims=True) / total * every
        errors: np.ndarray = np.sqrt(np.square(excess).sum(axis=1)) / (total / 2)
        return errors

    def _sorted(self) -> tuple[np.ndarray, ...]:
        """Every distance that there is, and how many pairs of one class and of two have it."""
        parts = [(apart[right], apart[wrong]) for _, _, apart, right, wrong in self._blocks()]
        one, two = map(np.concatenate, zip((np.zeros(0),) * 2, *parts, strict=True))
        distances, places = np.unique(np.concatenate([one, two]), return_inverse=True)
        size = len(distances)
        return distances, *(
            np.bincount(some, minlength=size) for some in np.split(places, [len(one)])
        )

    def _in_steps(self) -> tuple[np.ndarray, ...]:
        """The middle of every step that has pairs, 0 for the first; how many of either kind lie in it."""
        counts = np.zeros((2, 0), np.int64)
        for _, _, apart, *kinds in self._blocks():
            steps = _step(np.ldexp(apart, -self.frame[1]))
            size = max(counts.shape[1], steps.max() + 1)
            counts = np.pad(counts, ((0, 0), (0, size - counts.shape[1])))
            for turn, kind in enumerate(kinds):
                counts[turn] += np.bincount(steps[kind], minlength=size)
        there = np.flatnonzero(counts.any(axis=0))
        middles = np.where(there > 0, (_start(there) + _start(there + 1)) / 2, 0)
        return np.ldexp(middles, self.frame[1]), *counts[:, there]

    def _blocks(self) -> Iterator[tuple[slice, slice, np.ndarray, np.ndarray, np.ndarray]]:
        """Rows of the gallery, queries, their distances ``[n, b]``, and which are pairs of one class and of two."""
        gallery, size = self.task.gallery, len(self.queries)
        parts = [(0, gallery)] if mesh_of(gallery) is not None else pieces(gallery, PIECE)
        for start, part in parts:  # in float32
            rows = slice(start, start + len(part))
            for first in range(0, size, self.columns):
                columns = slice(first, min(first + self.columns, size))
                if self.task.alone and rows.stop <= columns.start + 1:
                    continue  # seen from the other side
                apart = self._apart(part, self.queries[columns])
                yield rows, columns, apart, *self._kinds(rows, columns)

    def _apart(self, part: Any, queries: np.ndarray) -> np.ndarray:
        if self.exact:
            from scipy.spatial.distance import cdist

            return cdist(np.asarray(part, np.float64), np.asarray(queries, np.float64))
        padded = pad_rows(part, self.rows), pad_rows(queries, self.columns)
        apart = np.asarray(_distances(*padded, self.frame))[: len(part), : len(queries)]
        return np.ldexp(apart, self.frame[1])

    def _kinds(self, rows: slice, columns: slice) -> tuple[np.ndarray, np.ndarray]:
        """Which of some pairs are of one class, and which of two; the others do not count."""
        own, other = self.truth.gallery_classes[rows], self.truth.query_classes[columns]
        here = np.arange(rows.start, rows.stop)[:, None]
        there = np.arange(columns.start, columns.stop)
        counts = (own >= 0)[:, None] & (other >= 0)
        if self.task.alone:
            counts &= here > there
        if self.task.own is not None:
            counts &= here != self.task.own[columns]
            if self.task.alone:
                counts &= self.task.own[rows, None] != there
        if self.mask.of_gallery is not None:
            counts &= self.mask.of_gallery[rows, None] != self.mask.of_queries[columns]
        elif self.mask.of_queries is not None:
            ignored = self.mask.of_queries[columns, rows].T
            both = self.task.alone and self.mask.of_queries[rows, columns]
            counts &= ~(ignored | both)
        one = own[:, None] == other
        return counts & one, counts & ~one


def _step(sizes: Any) -> Any:
    """The step that sizes in float32 lie in, by the bits of ``1 + size``: equally wide up to 1, beyond by the size."""
    return ((1 + sizes).view(np.int32) - _ONE) // STEP


def _start(steps: np.ndarray) -> np.ndarray:
    """Return the first size of each step."""
    whole: np.ndarray = (steps * STEP + _ONE).astype(np.int32).view(np.float32).astype(np.float64)
    return whole - 1


@jax.jit
def _distances(part: Array, queries: Array, frame: tuple[Array, Array]) -> Array:
    def apart(part: Array, queries: Array) -> Array:
        x, y = (ranking_score.apply_centering(some, frame) for some in (part, queries))
        return ops.distances(x, y, jnp.sum(jnp.square(y), axis=-1))

    distances: Array = by_rows(apart, part, queries)
    return distances
