"""Retrieval metrics of a whole data set: embeddings and labels in, the table of a paper out."""

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jdml.metrics import answers, closeness, disk, ranking
from jdml.metrics.handed import handed_in
from jdml.ops import checks
from jdml.ops.meshes import Axis, by_parts, by_rows, mesh_of

T = TypeVar("T")

# From this many ranks on, a partial sort in NumPy beats a CPU's top_k (17 times at 6,000 of 60,000).
_DEEP = 64


class _Cutoffs(NamedTuple):
    """The ranks at which metrics are taken."""

    recall: tuple[int, ...]
    precision: tuple[int, ...]
    found: tuple[int, ...]
    ndcg: tuple[int, ...]
    average_precision: tuple[int, ...]
    divisor: ranking.Divisor = "min"


class _Search(NamedTuple):
    """What is searched, in the frame of :func:`jdml.metrics.closeness.common_frame`."""

    queries: Array  # [Q, D]
    gallery: Any  # [N, D], or a gallery on disk
    own: Array | None = None  # [Q], the gallery's row that each query is itself, −1 for none
    half_squares: Array | None = None  # [N], where the gallery is on one device
    kin: answers.Kin = answers.Kin()  # what does not count
    distances: Array | None = None  # [Q, N], that were given


@handed_in
def evaluate_retrieval(
    queries: Array,
    query_labels: Array,
    gallery: Any = None,
    gallery_labels: Array | None = None,
    *,
    self_index: Any = None,
    ignore: Any = None,
    distances: Any = None,
    recall_at: Sequence[int] = (1, 2, 4, 8),
    precision_at: Sequence[int] = (),
    found_at: Sequence[int] = (),
    ndcg_at: Sequence[int] = (),
    map_at: Sequence[int] = (),
    map_divisor: ranking.Divisor = "min",
    block_size: int | None = None,
    per_query: bool = False,
) -> dict[str, Any]:
    """Measure retrieval: rank the gallery by distance to every query, and see where its class stands.

    Formula:
        With R references of the query's class: P@1, R-precision and MAP@R as in :mod:`jdml.metrics.ranking`,
        Recall@k, nDCG@k and MAP@k at the ranks that are asked for; averaged over the queries with R > 0. A negative
        label is no class: such a row is no query and no right answer, but takes its rank in a gallery (a distractor).
        Recall@k is the hit rate: the share of the queries with a right one among the k nearest.

    Args:
        queries: ``[Q, D]`` floating; ranked by Euclidean distance of the vectors as given, not normalized.
        query_labels: ``[Q]`` integers, negative for no class; or class names. ``[Q, L]`` for L levels of a hierarchy,
            coarsest first, each column a labelling of its own: a letter's number is not that of another alphabet's.
        gallery: ``[N, D]`` references. Default: the queries, each excluded (by index) from its own ranking. On a mesh
            each device ranks its own rows; a ``numpy.memmap`` is read from disk in pieces, once to be checked and once
            to be ranked.
        gallery_labels: ``[N]``, likewise.
        self_index: ``[Q]`` integers, the gallery's row that a query is itself, which is excluded from its ranking and
            is none of its references; −1: it is not in the gallery. Default: −1, without a gallery the query's index.
        ignore: pairs that are neither right nor wrong and take no rank. ``(query_groups [Q], gallery_groups [N])``,
            integers or names: pairs of one group and one class, such as pictures of a person by one camera. Or
            ``[Q, N]`` boolean: any pairs.
        distances: ``[Q, N]`` to rank by in place of the vectors', such as :func:`jdml.metrics.rerank`'s.
        recall_at: k of ``"R@k"``, is any of the k nearest right.
        precision_at: k of ``"P@k"``, the share of right ones among the k nearest.
        found_at: k of ``"found@k"``, the share of the R references that are among them: recommenders' recall@k.
        ndcg_at: k of ``"nDCG@k"``.
        map_at: k of ``"MAP@k"``.
        map_divisor: what MAP@k is divided by, see :func:`jdml.metrics.map_at_k`; default min(k, R).
        block_size: how many queries are ranked at a time; default: a few tens of MiB at once. Changes no result.
        per_query: give arrays ``[Q]`` instead of averages, NaN for a query without a reference.

    Returns:
        ``"R@k"``, ``"P@1"``, ``"RP"``, ``"MAP@R"``, and those asked for, as fractions (0…1), and
        ``"queries"``: how many queries had a reference. The others are left out; if none had, all averages are 0. Where
        some with a class had none, ``"unanswered"`` is how many. Of labels ``[Q, L]`` each is an array ``[L]``
        (``[Q, L]`` with ``per_query``), what that column gives alone.

    Raises:
        TypeError: arguments of the wrong kind.
        ValueError: shapes that do not fit, a gallery without labels, k < 1, a row that is not finite, a
            ``self_index`` outside −1…N−1, ``ignore`` neither groups nor an array.

    Warns:
        UserWarning: a query equals its nearest row of a gallery, bit by bit, and ``self_index`` does not say whether
            both are one item; or no query has a reference, so that there is nothing to measure.

    Implementation notes:
        Exact, in float32 whatever the embeddings' type, in blocks of queries: memory O(block × N) whatever R. Ties go
        to the lowest index: of rows that have collapsed to one point the first of the gallery are found, so that its
        order decides (R@8 is near 0 where it is sorted by class, near chance where it is shuffled). A k beyond the
        gallery counts the missing ranks as misses. ``jax.lax.top_k`` ranks; for R in the hundreds or thousands on a CPU
        it is NumPy's partial sort of (closeness, index), per block. One program per shape, number of ranks (the largest
        k or R, rounded up to a power of two) and choice of metrics: other values recompile nothing. Groups are one
        number a row, compared where distances are; every level of labels is ranked anew. A host function: call it
        outside ``jit``.

    Paper settings:
        In-shop has a query and a gallery set; the others search among themselves.

    Reference:
        Musgrave, Belongie & Lim, *A Metric Learning Reality Check*, §3.2.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[0.0], [1.0], [5.0], [6.0], [2.0], [9.0]])
        >>> scores = evaluate_retrieval(x, jnp.array([0, 0, 1, 1, 1, 2]), recall_at=(1, 2))
        >>> {name: round(value, 3) for name, value in scores.items()}
        {'R@1': 0.8, 'R@2': 0.8, 'P@1': 0.8, 'RP': 0.7, 'MAP@R': 0.7, 'queries': 5, 'unanswered': 1}
        >>> camera = jnp.array([0, 0, 0, 1, 1, 1])  # what one camera saw twice does not count
        >>> evaluate_retrieval(x, jnp.array([0, 0, 1, 1, 1, 2]), ignore=(camera, camera), recall_at=())["queries"]
        3
    """
    cutoffs = _Cutoffs(
        _checked_ranks("recall_at", recall_at),
        _checked_ranks("precision_at", precision_at),
        _checked_ranks("found_at", found_at),
        _checked_ranks("ndcg_at", ndcg_at),
        _checked_ranks("map_at", map_at),
        map_divisor,
    )
    if block_size is not None:
        checks.count("block_size", block_size)
    named = "evaluate_retrieval", ("query_labels", "gallery_labels")
    task = answers.task(*named, queries, query_labels, gallery, gallery_labels, self_index, ignore)
    if distances is not None:
        checks.check_weights("distances", distances, (len(task.queries), len(task.gallery)))
    search = None
    levels = []
    for labels in task.levels:
        truth, kin = answers.truth(*labels, task.own, task.ignored)
        judged = truth.num_relevant > 0
        if judged.any():
            search = search or _prepare(task, distances)
            scores, found = _ranked(_among(search, kin), truth, cutoffs, block_size)
        else:
            scores = dict.fromkeys(_names(cutoffs), np.full(judged.shape, np.nan))
            if judged.size:
                warnings.warn(
                    f"none of {judged.size} queries has another row of its class to find: there is nothing to measure",
                    UserWarning,
                    stacklevel=3,
                )
        levels.append(_summary(scores, truth, per_query=per_query))
    if gallery is not None and self_index is None and judged.any():
        answers.warn_of_twins(task.queries, task.gallery, found, judged)
    if query_labels.ndim == 1:
        return levels[0]
    names = {name: None for level in levels for name in level}
    return {name: np.stack([level.get(name, 0) for level in levels], axis=-1) for name in names}


def first(task: answers.Task, truth: answers.Truth, kin: answers.Kin) -> np.ndarray:
    """The row of the gallery ``[Q]`` that is nearest to each query; any where all are barred."""
    everyone = truth._replace(num_relevant=np.ones_like(truth.num_relevant))
    cutoffs = _Cutoffs((1,), (), (), (), ())
    return _ranked(_among(_prepare(task), kin), everyone, cutoffs, None)[1]


def _ranked(
    search: _Search, truth: answers.Truth, cutoffs: _Cutoffs, block_size: int | None
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """All metrics of every query, NaN where it has no reference, and what is nearest to it."""
    judged = truth.num_relevant > 0
    ranks = [k for several in cutoffs[:-1] for k in several]
    depth = _depth(max(1, truth.num_relevant.max(), *ranks), search.gallery.shape[0])
    on_disk = isinstance(search.gallery, disk.Gallery)
    at_a_time = disk.rows_of_a_piece(search.gallery.rows) if on_disk else search.gallery.shape[0]
    rows = block_size or closeness.rows_per_block(judged.size, at_a_time)
    scores = {name: np.full(judged.shape, np.nan) for name in _names(cutoffs)}
    found = np.zeros(judged.shape, np.int32)
    for start, values, nearest in _blocks(search, truth, min(rows, judged.size), depth, cutoffs):
        found[start : start + nearest.size] = nearest
        for name, value in values.items():
            scores[name][start : start + value.size] = value
    return {name: np.where(judged, value, np.nan) for name, value in scores.items()}, found


def _summary(
    scores: dict[str, np.ndarray], truth: answers.Truth, *, per_query: bool
) -> dict[str, Any]:
    """Averages, unless the numbers of every query are wanted, and how many queries could be answered."""
    judged = truth.num_relevant > 0
    averages = {name: _average(value[judged]) for name, value in scores.items()}
    summary = (scores if per_query else averages) | {"queries": int(judged.sum())}
    unanswered = int(((truth.query_classes >= 0) & ~judged).sum())
    return summary | {"unanswered": unanswered} if unanswered else summary


def _checked_ranks(name: str, ranks: Any) -> tuple[int, ...]:
    if isinstance(ranks, str) or not isinstance(ranks, Sequence):
        raise TypeError(f"{name} must be a sequence of integers >= 1, got {ranks!r}")
    for i, k in enumerate(ranks):
        checks.count(f"{name}[{i}]", k)
    return tuple(int(k) for k in ranks)


def _names(cutoffs: _Cutoffs) -> list[str]:
    """The metrics' names, in the order of the result."""
    return [
        *(f"R@{k}" for k in cutoffs.recall),
        *("P@1", "RP", "MAP@R"),
        *(f"P@{k}" for k in cutoffs.precision),
        *(f"found@{k}" for k in cutoffs.found),
        *(f"nDCG@{k}" for k in cutoffs.ndcg),
        *(f"MAP@{k}" for k in cutoffs.average_precision),
    ]


def _prepare(task: answers.Task, distances: Any = None) -> _Search:
    """Everything on the device, in a frame where distances lose no digits. A gallery on disk stays there."""
    queries, gallery, own = task.queries, task.gallery, task.own
    itself = None if own is None else jnp.asarray(own)
    if distances is not None:
        given = checks.as_finite("distances", distances)
        return _Search(queries, jnp.arange(given.shape[1]), itself, distances=given)
    if isinstance(gallery, np.memmap):
        frame = disk.frame_of(queries, gallery)
        moved = closeness.in_frame(queries, frame)
        return _Search(moved, disk.Gallery(gallery, frame), itself)
    if mesh_of((queries, gallery)) is not None:
        here = jnp.asarray(np.asarray(queries))
        frame = jax.device_get(spread_frame(gallery, here))
        references = by_rows(closeness.in_frame, gallery, frame)
        return _Search(closeness.in_frame(here, frame), references, itself)
    frame = closeness.common_frame(queries, gallery)
    moved = closeness.in_frame(queries, frame)
    references = moved if gallery is queries else closeness.in_frame(gallery, frame)
    return _Search(moved, references, itself, _half_squares(references))


def _among(search: _Search, kin: answers.Kin) -> _Search:
    """The search of what counts; the gallery's kin lie where the gallery does."""
    if isinstance(search.gallery, disk.Gallery):
        return search._replace(kin=kin)
    return search._replace(kin=jax.tree.map(jnp.asarray, kin))


def _half_squares(references: Array) -> Array:
    return 0.5 * jnp.sum(jnp.square(references), axis=-1)


@jax.jit
def spread_frame(gallery: Array, queries: Array) -> tuple[Array, Array]:
    """The common frame of queries and a gallery, which may be on a mesh."""

    def frame(axis: Axis, gallery: Array, queries: Array) -> Any:
        return closeness.common_frame(queries, gallery, axis=axis)

    return by_parts(frame, gallery, queries)


def _depth(wanted: int, size: int) -> int:
    """How many ranks to compute: a power of two, so that similar class sizes share a program."""
    return min(size, 1 << (int(wanted) - 1).bit_length())


def _blocks(
    search: _Search,
    truth: answers.Truth,
    rows: int,
    depth: int,
    cutoffs: _Cutoffs,
) -> Iterator[tuple[int, dict[str, np.ndarray], np.ndarray]]:
    """The row at which each block of queries starts, its metrics, and what is nearest; the last may overlap another."""
    size = search.queries.shape[0]
    starts = [min(start, size - rows) for start in range(0, size, rows)]
    truth = answers.Truth(*map(jnp.asarray, truth))
    measured = [
        (start, _measure(truth, start, *neighbors, cutoffs), neighbors[0][:, 0])
        for start, neighbors in zip(
            starts, _ranker(search, depth)(search, starts, rows, depth), strict=True
        )
    ]
    yield from jax.device_get(measured)


def _ranker(search: _Search, depth: int) -> Callable[..., Iterator[tuple[Any, Any]]]:
    """How to rank: by where the gallery is."""
    if isinstance(search.gallery, disk.Gallery):
        return _rank_on_disk
    if mesh_of(search.gallery) is not None:
        return _rank_on_mesh
    on_cpu = all(device.platform == "cpu" for device in search.gallery.devices())
    return _rank_on_host if on_cpu and depth > _DEEP else _rank_on_device


def _rank_on_mesh(
    search: _Search, starts: list[int], rows: int, depth: int
) -> Iterator[tuple[Any, Any]]:
    """The same as :func:`_rank_on_device`, each device ranking its rows of the gallery."""
    for start in starts:
        block = _block(search, start, rows)
        yield jax.device_get(_top_on_mesh((search.gallery, search.kin.of_gallery), block, depth))


def _rank_on_disk(
    search: _Search, starts: list[int], rows: int, depth: int
) -> Iterator[tuple[Any, Any]]:
    """The same, one piece of the gallery after the other, each for all queries."""
    blocks = [_block(search, start, rows) for start in starts]
    yield from disk.rank(blocks, search.gallery, depth, search.kin.of_gallery)


def _rank_on_device(
    search: _Search, starts: list[int], rows: int, depth: int
) -> Iterator[tuple[Any, Any]]:
    """Indices ``[rows, depth]`` of the nearest of each block, and whether they take part, by ``top_k``."""
    for start in starts:
        yield _top(search, start, rows, depth)


def _rank_on_host(
    search: _Search, starts: list[int], rows: int, depth: int
) -> Iterator[tuple[Any, Any]]:
    """The same by a partial sort in NumPy, while the device computes the next block."""
    places = (_places(search, start, rows) for start in starts)
    for block in _one_ahead(places):
        yield closeness.first_in_order(np.asarray(block), depth)


def _one_ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items; each is asked for before its predecessor is handed out, to be computed meanwhile."""
    ready = next(items)
    for item in items:
        yield ready
        ready = item
    yield ready


@functools.partial(jax.jit, static_argnames=("rows", "depth"))
def _top(search: _Search, start: Array | int, rows: int, depth: int) -> tuple[Array, Array]:
    scores, indices = jax.lax.top_k(_closeness(search, start, rows), depth)
    return indices.astype(jnp.int32), scores > -jnp.inf


@functools.partial(jax.jit, static_argnames="depth")
def _top_on_mesh(gallery: Any, block: Any, depth: int) -> tuple[Array, Array]:
    def top(axis: Axis, gallery: Any, block: Any) -> tuple[Array, ...]:
        (references, kin), (queries, *askers) = gallery, block
        offset = axis.index * len(references)
        out = closeness.barred(askers, kin, offset, len(references))
        scores = closeness.closeness(queries, references, _half_squares(references), out)
        scores, indices = jax.lax.top_k(scores, min(depth, len(references)))
        found = indices.astype(jnp.int32) + offset, scores > -jnp.inf
        return closeness.merge(axis, depth, scores, *found)

    ranked: tuple[Array, Array] = by_parts(top, gallery, block)
    return ranked


@functools.partial(jax.jit, static_argnames="rows")
def _places(search: _Search, start: Array | int, rows: int) -> Array:
    return closeness.order(_closeness(search, start, rows))


def _closeness(search: _Search, start: Array | int, rows: int) -> Array:
    queries, *askers = _block(search, start, rows)
    out = closeness.barred(askers, search.kin.of_gallery, 0, search.gallery.shape[0])
    if search.distances is not None:
        scores = 0.0 - jax.lax.dynamic_slice_in_dim(search.distances, start, rows)
        return scores if out is None else jnp.where(out, -jnp.inf, scores)
    assert search.half_squares is not None
    return closeness.closeness(queries, search.gallery, search.half_squares, out)


def _block(
    search: _Search, start: Array | int, rows: int
) -> tuple[Array, Array | None, Array | None]:
    """Some of the queries, the rows of the gallery that they are, and which do not count."""
    of_all = (search.queries, search.own, search.kin.of_queries)
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, rows), of_all)


@functools.partial(jax.jit, static_argnames="cutoffs")
def _measure(
    truth: answers.Truth, start: Array | int, indices: Array, valid: Array, cutoffs: _Cutoffs
) -> dict[str, Array]:
    """All metrics of a block of queries, from the ranked indices of their neighbours."""
    rows = indices.shape[0]
    classes = jax.lax.dynamic_slice_in_dim(truth.query_classes, start, rows)
    relevant = jax.lax.dynamic_slice_in_dim(truth.num_relevant, start, rows)
    hits = valid & (truth.gallery_classes[indices] == classes[:, None])
    values = [
        *(ranking.recall_at_k(hits, relevant, k) for k in cutoffs.recall),
        ranking.precision_at_1(hits, relevant),
        ranking.r_precision(hits, relevant),
        ranking.map_at_r(hits, relevant),
        *(ranking.precision_at_k(hits, relevant, k) for k in cutoffs.precision),
        *(ranking.found_at_k(hits, relevant, k) for k in cutoffs.found),
        *(ranking.ndcg_at_k(hits, relevant, k) for k in cutoffs.ndcg),
        *(
            ranking.map_at_k(hits, relevant, k, divisor=cutoffs.divisor)
            for k in cutoffs.average_precision
        ),
    ]
    return dict(zip(_names(cutoffs), values, strict=True))


def _average(values: np.ndarray) -> float:
    return float(np.mean(values, dtype=np.float64)) if values.size else 0.0
