"""Which rows of a gallery may answer a query, and which of the answers are right."""

import itertools
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jdml.metrics.array_conversion import as_array, as_groups
from jdml.ops import checks
from jdml.ops.meshes import Axis, by_parts, off_mesh


class Relevance(NamedTuple):
    """The relevant pairs: those of one class, or those that were given."""

    query_classes: Any  # [Q], −1 for no query
    gallery_classes: Any  # [N]
    num_relevant: Any  # [Q]
    pairs: np.ndarray | None = None  # q·N + n, ascending, without those that do not count

    def hits(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Whether rows of the gallery ``[n, k]`` are right answers to some of the queries ``[n]``."""
        if self.pairs is None:
            columns = np.minimum(columns, len(self.gallery_classes) - 1)  # others do not count
            return np.asarray(self.gallery_classes[columns] == self.query_classes[rows][:, None])
        wanted = rows[:, None].astype(np.int64) * len(self.gallery_classes) + columns
        places = np.searchsorted(self.pairs, wanted).clip(max=len(self.pairs) - 1)
        return np.asarray(self.pairs[places] == wanted)


class IgnoreMask(NamedTuple):
    """Pairs that are neither right nor wrong: those of equal numbers, or those that are marked."""

    of_queries: Any = None  # [Q] integers, or [Q, N] bool
    of_gallery: Any = None  # [N] integers

    def excludes(self, rows: np.ndarray) -> np.ndarray:
        """Whether each query ``[Q]`` and one row of the gallery ``[Q]`` are a pair that does not count."""
        if self.of_gallery is not None:
            return np.asarray(self.of_gallery[rows] == self.of_queries)
        if self.of_queries is not None:
            return np.asarray(self.of_queries[np.arange(len(rows)), rows])
        return np.zeros(len(rows), bool)


class RetrievalTask(NamedTuple):
    """The checked queries and gallery, and what is right on each level of the labels."""

    queries: Array  # [Q, D] float32, on one device
    gallery: Any  # [N, D] float32, on a mesh or not; or on disk
    own: np.ndarray | None  # [Q], the gallery's row that each query is, −1 for none
    alone: bool  # whether the gallery are the queries
    levels: list[tuple[Relevance, IgnoreMask]]


def task(
    function: str,
    names: tuple[str, str],
    queries: Any,
    labels: Any,
    gallery: Any,
    gallery_labels: Any,
    self_index: Any,
    ignore: Any,
    relevant: Any = None,
) -> RetrievalTask:
    """Check what a user gives."""
    pairs = ignore if isinstance(ignore, tuple | list) else [ignore]
    arrays = queries, labels, gallery, gallery_labels, self_index, relevant
    checks.check_concrete(function, *arrays, *pairs)
    alone = gallery is None
    if alone != (gallery_labels is None) and (alone or relevant is None):
        raise ValueError("gallery and gallery_labels must be given together")
    checks.check_embeddings("queries", queries)
    if relevant is None:
        classes = _levels(names[0], labels, len(queries))
    elif labels is not None:
        checks.check_labels(names[0], labels, len(queries))
    queries = checks.as_finite("queries", queries)
    if alone:
        gallery, gallery_labels = queries, labels
        self_index = np.arange(len(queries)) if self_index is None else self_index
    else:
        checks.check_embeddings("gallery", gallery, dim=queries.shape[1], like="queries")
        on_disk = isinstance(gallery, np.memmap)  # checked when it is read
        gallery = gallery if on_disk else checks.as_finite("gallery", gallery)
    shape = len(queries), len(gallery)
    own, ignored = checked_own(self_index, *shape), _checked_ignore(ignore, *shape)
    if relevant is None:
        others = classes if alone else _levels(names[1], gallery_labels, len(gallery))
        if len(classes) != len(others):
            raise ValueError(
                f"{names[0]} and {names[1]} must have the same levels, got {len(classes)} and {len(others)}"
            )
        both = zip(classes, others, strict=True)
        levels = [_truth(*numbers, own, ignored) for numbers in both]
    else:
        levels = [_pair_truth(labels, _checked_pairs(relevant, *shape), shape, own, ignored)]
    return RetrievalTask(off_mesh(queries), gallery, own, alone, levels)


def _levels(name: str, labels: Any, size: int) -> list[Any]:
    """Return labels ``[size]``, or the columns of ``[size, L]``, checked."""
    is_hierarchy = getattr(labels, "ndim", 1) == 2 and labels.shape[1] > 0
    levels = list(np.asarray(labels).T) if is_hierarchy else [labels]
    for level in levels:
        checks.check_labels(name, level, size)
    return levels


def check_nested(name: str, levels: list[tuple[Relevance, IgnoreMask]]) -> None:
    """Refuse a column whose classes do not refine those of the column before: no hierarchy, coarsest first."""
    columns = [np.concatenate(truth[:2]) for truth, _ in levels]
    for level, (coarse, fine) in enumerate(itertools.pairwise(columns), start=1):
        known = np.flatnonzero((coarse >= 0) & (fine >= 0))
        order = known[np.lexsort((coarse[known], fine[known]))]
        if ((np.diff(fine[order]) == 0) & (np.diff(coarse[order]) != 0)).any():
            raise ValueError(
                f"{name} of shape [N, L] must be a hierarchy, coarsest first, but rows of one class in column {level} "
                f"are of several in column {level - 1}: number each class apart, or, where a row has several labels, "
                "pass the right answers as relevant= (a boolean array [Q, N])"
            )


def _checked_pairs(relevant: Any, queries: int, gallery: int) -> np.ndarray:
    """The right answers of a matrix ``[Q, N]``, dense or of scipy.sparse, as ascending numbers q·N + n."""
    if not hasattr(relevant, "tocoo"):
        checks.check_mask("relevant", relevant, (queries, gallery))
        return np.flatnonzero(np.asarray(relevant))
    if relevant.shape != (queries, gallery):
        raise ValueError(
            f"relevant must have shape [{queries}, {gallery}], got {list(relevant.shape)}"
        )
    entries = relevant.tocoo()
    if not np.isin(entries.data, (0, 1)).all():
        raise ValueError("relevant must be boolean, or 0 and 1: it has other values")
    right = entries.data != 0
    return np.unique(entries.row[right].astype(np.int64) * gallery + entries.col[right])


def checked_own(self_index: Any, queries: int, gallery: int) -> np.ndarray | None:
    """The gallery's row that each query is, checked."""
    if self_index is None:
        return None
    checks.check_labels("self_index", self_index, queries)
    own = np.asarray(self_index).astype(np.int64)
    outside = (own < -1) | (own >= gallery)
    if outside.any():
        row = outside.argmax()
        raise ValueError(
            f"self_index[{row}] is {own[row]}, expected a row of the gallery, 0…{gallery - 1}, or -1 for none"
        )
    return own.astype(np.int32)


def _checked_ignore(ignore: Any, queries: int, gallery: int) -> Any:
    """The pairs that do not count, checked."""
    if not isinstance(ignore, tuple | list):
        ignore = as_array(ignore)
        checks.check_mask("ignore", ignore, (queries, gallery))
        return ignore
    if len(ignore) != 2:
        raise ValueError(
            "ignore must be a boolean array [Q, N], or the groups (of queries [Q], of the gallery [N]), got "
            f"{len(ignore)} of them"
        )
    groups = [as_groups(f"ignore[{turn}]", some) for turn, some in enumerate(ignore)]
    for turn, (some, size) in enumerate(zip(groups, (queries, gallery), strict=True)):
        if some.shape != (size,):
            raise ValueError(f"ignore[{turn}] must have shape [{size}], got {list(some.shape)}")
    if len({some.dtype.kind in "US" for some in groups}) > 1:
        raise TypeError("ignore[0] and ignore[1] must both be integers or both be names")
    return np.split(_numbered(np.concatenate(groups)), [queries])


def _truth(
    query_labels: Any, gallery_labels: Any, own: np.ndarray | None, ignore: Any
) -> tuple[Relevance, IgnoreMask]:
    """Return the relevant pairs, and those that do not count."""
    size = query_labels.shape[0]
    labels = np.concatenate(
        [np.asarray(some).astype(np.int64) for some in (query_labels, gallery_labels)]
    )
    classes = np.full(labels.shape, -1, np.int32)
    classes[labels >= 0] = _numbered(labels[labels >= 0])
    queries, gallery = classes[:size], classes[size:]
    relevant = _alike(queries, gallery)
    mask = IgnoreMask()
    if isinstance(ignore, list):
        groups = np.concatenate(ignore)
        both = _numbered(classes.astype(np.int64) * (groups.max(initial=0) + 1) + groups)
        both[classes < 0] = -1
        mask = IgnoreMask(both[:size], np.where(gallery < 0, -2, both[size:]))
        relevant -= _alike(*mask)
    elif ignore is not None:
        mask = IgnoreMask(np.asarray(ignore))
        known = np.where(gallery < 0, -2, gallery)
        for query, row in enumerate(mask.of_queries):
            relevant[query] -= np.count_nonzero(row & (known == queries[query]))
    if own is not None and gallery.size:
        relevant -= (own >= 0) & (queries >= 0) & (gallery[own] == queries) & ~mask.excludes(own)
    return Relevance(queries, gallery, relevant), mask


def _pair_truth(
    labels: Any, pairs: np.ndarray, shape: tuple[int, int], own: np.ndarray | None, ignore: Any
) -> tuple[Relevance, IgnoreMask]:
    """Return the right answers that were given, and the pairs that do not count."""
    classes, mask = np.zeros(shape[0], np.int32), IgnoreMask()
    if labels is not None:
        labels = np.asarray(labels)
        classes = np.where(labels >= 0, _numbered(labels), -1)
    rows, columns = np.divmod(pairs, max(1, shape[1]))
    counts = classes[rows] >= 0
    if isinstance(ignore, list):
        groups, theirs = ignore
        mask = IgnoreMask(np.zeros(shape, bool))
        mask.of_queries.flat[pairs[groups[rows] == theirs[columns]]] = True
    elif ignore is not None:
        mask = IgnoreMask(np.asarray(ignore))
    if mask.of_queries is not None:
        counts &= ~mask.of_queries[rows, columns]
    if own is not None:
        counts &= own[rows] != columns
    relevant = np.bincount(rows[counts], minlength=shape[0]).astype(np.int32)
    return Relevance(classes, np.zeros(shape[1], np.int32), relevant, pairs[counts]), mask


def _numbered(values: np.ndarray) -> np.ndarray:
    """Equal values by the same number, from 0."""
    return np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int32)


def _alike(queries: np.ndarray, gallery: np.ndarray) -> np.ndarray:
    """How many of the gallery have the number of each query; negative ones are nobody's."""
    counts = np.bincount(gallery[gallery >= 0], minlength=queries.max(initial=0) + 1)
    return np.where(queries >= 0, counts[queries], 0).astype(np.int32)


def warn_duplicates(queries: Array, gallery: Any, columns: np.ndarray, judged: np.ndarray) -> None:
    """Warn where queries equal the row that was found first, bit by bit: both may be one item."""
    with np.errstate(over="ignore"):
        nearest = rows_of(gallery, columns).astype(np.float32)
    twins = judged & np.asarray((np.asarray(queries) == nearest).all(axis=1))
    if twins.any():
        row = twins.argmax()
        warnings.warn(
            f"{twins.sum()} of {judged.sum()} queries equal what they find first (queries[{row}] and "
            f"gallery[{columns[row]}] are the same vector): if they are the same item, say so by self_index [Q], the "
            "gallery's row that each query is (-1: none), and it is left out; self_index of -1 says that they are not",
            UserWarning,
            stacklevel=4,
        )


def rows_of(gallery: Any, columns: np.ndarray) -> np.ndarray:
    """Some rows ``[Q, D]`` of a gallery, on one device, on a mesh or on disk."""
    if checks.is_on_host(gallery):
        return np.asarray(gallery)[columns]
    return np.asarray(_gathered(gallery, jnp.asarray(columns)))


@jax.jit
def _gathered(gallery: Array, columns: Array) -> Array:
    def gathered(axis: Axis, gallery: Array, columns: Array) -> Array:
        here = columns - axis.index * len(gallery)
        is_here = (here >= 0) & (here < len(gallery))
        own = gallery[jnp.where(is_here, here, 0)]
        return axis.total(jnp.where(is_here[:, None], own, 0))

    rows: Array = by_parts(gathered, gallery, columns)
    return rows
