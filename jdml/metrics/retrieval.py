"""Retrieval metrics of a whole data set: embeddings and labels in, the table of a paper out."""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jdml.metrics import ranking, relevance
from jdml.metrics.array_conversion import accepts_any_array
from jdml.metrics.gallery_search import QUERIES, Search, pad_rows, padded_size, prepare, ranked
from jdml.metrics.ranking_score import rows_per_block
from jdml.ops import checks
from jdml.registry.datasets import DataSet

Average = Literal["query", "class"]
"""Over what metrics are averaged: all queries, or classes of their own averages."""
_MAP = {
    divisor: functools.partial(ranking.map_at_k, divisor=divisor)
    for divisor in get_args(ranking.Divisor)
}


_Metrics = dict[str, tuple[Callable[..., Array], int | None]]
"""Metrics of ranked answers by name, at a rank or at none."""


@accepts_any_array()
def evaluate_retrieval(
    queries: Array,
    query_labels: Array | None = None,
    gallery: Any = None,
    gallery_labels: Array | None = None,
    *,
    self_index: Any = None,
    ignore: Any = None,
    relevant: Any = None,
    distances: Any = None,
    recall_at: Sequence[int] = DataSet.recall_at,
    precision_at: Sequence[int] = (),
    true_recall_at: Sequence[int] = (),
    ndcg_at: Sequence[int] = (),
    map_at: Sequence[int] = (),
    map_divisor: ranking.Divisor = checks.default_of(ranking.map_at_k, "divisor"),
    mrr: bool = False,
    average: Average = "query",
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
            Not needed with ``relevant``, and then only the queries' classes.
            By name ``labels=`` as well, as everywhere else.
        gallery: ``[N, D]`` references. Default: the queries, each excluded (by index) from its own ranking. On a mesh
            each device ranks its own rows; a ``numpy.memmap`` is read from disk in pieces, once to be checked and once
            to be ranked.
        gallery_labels: ``[N]``, likewise.
        self_index: ``[Q]`` integers, the gallery's row that a query is itself, which is excluded from its ranking and
            is none of its references; −1: it is not in the gallery. Default: −1, without a gallery the query's index.
        ignore: pairs that are neither right nor wrong and take no rank. ``(query_groups [Q], gallery_groups [N])``,
            integers or names: pairs of one group and one class, such as pictures of a person by one camera. Or
            ``[Q, N]`` boolean: any pairs.
        relevant: the right answers in place of labels, for items of several labels or none: ``[Q, N]`` boolean, or a
            ``scipy.sparse`` matrix. ``ignore`` by groups then means the right answers of the query's group.
        distances: ``[Q, N]`` to rank by in place of the vectors', such as :func:`jdml.metrics.rerank`'s.
        recall_at: k of ``"R@k"``, is any of the k nearest right.
        precision_at: k of ``"P@k"``, the share of right ones among the k nearest.
        true_recall_at: k of ``"recall(true)@k"``, the share of the R references among them: recommenders' recall@k.
        ndcg_at: k of ``"nDCG@k"``.
        map_at: k of ``"MAP@k"``.
        map_divisor: what MAP@k is divided by, see :func:`jdml.metrics.map_at_k`; default min(k, R).
        mrr: also ``"MRR"``, the mean of 1 / the rank of the first right answer, however far down it stands.
        average: ``"query"``: every query counts alike; ``"class"``: the mean over classes of the mean over a class's
            queries, so that a small class counts as a large one.
        block_size: how many queries are ranked at a time; default: a few tens of MiB at once. Changes no result.
        per_query: give arrays ``[Q]`` instead of averages, NaN for a query without a reference.

    Returns:
        ``"R@k"``, ``"P@1"``, ``"RP"``, ``"MAP@R"``, and those asked for, as fractions (0…1), and
        ``"queries"``: how many queries had a reference. The others are left out; if none had, all averages are 0. Where
        some with a class had none, ``"unanswered"`` is how many. Of labels ``[Q, L]`` each is an array ``[L]``
        (``[Q, L]`` with ``per_query``), what that column gives alone.

    Raises:
        ValueError: a gallery without labels, k < 1, a row that is not finite, a ``self_index`` outside −1…N−1,
            ``ignore`` neither groups nor an array; columns of labels of which one does not refine the one before, such
            as 0 and 1 for several labels a row; ``average="class"`` without labels.

    Warns:
        UserWarning: a query equals its nearest row of a gallery, bit by bit, and ``self_index`` does not say whether
            both are one item; or no query has a reference, so that there is nothing to measure.

    Implementation notes:
        Exact, in float32 whatever the embeddings' type, in blocks of queries: memory O(block × N). Rows nearer to each
        other than a thousandth of what most are apart are told apart by rounding, see :func:`jdml.metrics.nearest`.
        Ties go to the lowest index: where rows have collapsed to one point the gallery's order decides (R@8 is near 0
        where it is sorted by class, near chance where it is shuffled). A k beyond the gallery counts the missing ranks
        as misses. ``jax.lax.top_k`` ranks; beyond 256 ranks on a CPU it is NumPy's partial sort. Queries, gallery and
        ranks are padded to few sizes, for each of which, and each choice of metrics, a program is compiled: other
        values, and other k, recompile nothing. Every level of labels is ranked anew; ``mrr`` ranks 16 times as deep
        until each query has its first right answer. A host function: call it outside ``jit``.

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
    checks.one_of("map_divisor", map_divisor, get_args(ranking.Divisor))
    checks.one_of("average", average, get_args(Average))
    if average == "class" and query_labels is None:
        raise ValueError('average="class" needs query_labels, the classes of the queries')
    metrics = {
        **_at_ranks("recall_at", recall_at, "R", ranking.recall_at_k),
        "P@1": (ranking.precision_at_1, None),
        "RP": (ranking.r_precision, None),
        "MAP@R": (ranking.map_at_r, None),
        **_at_ranks("precision_at", precision_at, "P", ranking.precision_at_k),
        **_at_ranks("true_recall_at", true_recall_at, "recall(true)", ranking.true_recall_at_k),
        **_at_ranks("ndcg_at", ndcg_at, "nDCG", ranking.ndcg_at_k),
        **_at_ranks("map_at", map_at, "MAP", _MAP[map_divisor]),
        **({"MRR": (_reciprocal_rank, None)} if mrr else {}),
    }
    checks.optional(checks.count)("block_size", block_size)
    checks.check_concrete("evaluate_retrieval", distances)
    arrays = queries, query_labels, gallery, gallery_labels, self_index, ignore, relevant
    task = relevance.task("evaluate_retrieval", ("query_labels", "gallery_labels"), *arrays)
    relevance.check_nested("query_labels", task.levels)
    if distances is not None:
        checks.check_weights("distances", distances, (len(task.queries), len(task.gallery)))
    search = None
    levels = []
    for truth, mask in task.levels:
        judged = truth.num_relevant > 0
        scores = {name: np.full(judged.shape, np.nan) for name in metrics}
        if judged.any():
            search = search or prepare(task.queries, task.gallery, task.own, distances)
            columns = _fill_in(scores, search.among(mask), truth, metrics, block_size)
        elif judged.size:
            warnings.warn(
                f"none of {judged.size} queries has a right answer to find: there is nothing to measure",
                UserWarning,
                stacklevel=3,
            )
        classes = truth.query_classes[judged] if average == "class" else None
        averages = {name: _average(value[judged], classes) for name, value in scores.items()}
        level = (scores if per_query else averages) | {"queries": int(judged.sum())}
        unanswered = int(((truth.query_classes >= 0) & ~judged).sum())
        levels.append(level | ({"unanswered": unanswered} if unanswered else {}))
    if gallery is not None and self_index is None and judged.any():
        relevance.warn_duplicates(task.queries, task.gallery, columns, judged)
    if query_labels is None or query_labels.ndim == 1:
        return levels[0]
    names = {name: None for level in levels for name in level}
    return {name: np.stack([level.get(name, 0) for level in levels], axis=-1) for name in names}


def _fill_in(
    scores: dict[str, np.ndarray],
    search: Search,
    truth: relevance.Relevance,
    metrics: _Metrics,
    block_size: int | None,
) -> np.ndarray:
    """Fill in the scores of every query that has a reference; return what is nearest to each."""
    columns = np.zeros(truth.num_relevant.shape, np.int32)
    functions, ranks = zip(*metrics.values(), strict=True)
    wanted = max(1, truth.num_relevant.max(), *(k for k in ranks if k is not None))
    size = padded_size(len(truth.gallery_classes))
    gallery_classes = jnp.asarray(pad_rows(truth.gallery_classes, size, fill=-1))
    measured = []
    for part, indices, hits in ranked(search, wanted, block_size):
        rows, classes = len(indices), None
        relevant = pad_rows(truth.num_relevant[part], rows)
        if truth.pairs is None:
            own = pad_rows(truth.query_classes[part], rows, fill=-1)
            classes = gallery_classes, own, indices
        else:
            numbers = np.arange(part.start, part.start + rows)
            hits = np.asarray(hits) & truth.hits(numbers, np.asarray(indices))
        values = _measure(hits, classes, relevant, ranks, functions)
        measured.append((part, values, indices))
    for part, values, indices in jax.device_get(measured):
        count = part.stop - part.start
        columns[part] = indices[:count, 0]
        for name, value in zip(metrics, values, strict=True):
            scores[name][part] = value[:count]
    if "MRR" in scores:
        _search_deeper(search, truth, scores["MRR"], wanted, block_size)
    for value in scores.values():
        value[truth.num_relevant <= 0] = np.nan
    return columns


def _search_deeper(
    search: Search,
    truth: relevance.Relevance,
    ranks: np.ndarray,
    depth: int,
    block_size: int | None,
) -> None:
    """Fill in the reciprocal ranks ``[Q]`` of queries whose first right answer is none of the ``depth`` nearest."""
    size = len(truth.gallery_classes)
    while (rest := np.flatnonzero((truth.num_relevant > 0) & (ranks == 0))).size and depth < size:
        depth = min(16 * depth, size)
        rows = rows_per_block(rest.size, depth if search.is_on_disk else size)
        for start in range(0, rest.size, rows):
            some = rest[start : start + rows]
            for part, indices, valid in ranked(search.of(some), depth, block_size):
                own = some[part]
                hits = truth.hits(own, np.asarray(indices)[: len(own)])
                hits &= np.asarray(valid)[: len(own)]
                ranks[own] = np.where(hits.any(axis=1), 1 / (1 + hits.argmax(axis=1)), 0.0)


def _at_ranks(argument: str, ranks: Any, name: str, function: Callable[..., Array]) -> _Metrics:
    """Return a metric at each of the ranks of an argument, checked."""
    if isinstance(ranks, str) or not isinstance(ranks, Sequence):
        raise TypeError(f"{argument} must be a sequence of integers >= 1, got {ranks!r}")
    for i, k in enumerate(ranks):
        checks.count(f"{argument}[{i}]", k)
    return {f"{name}@{k}": (function, int(k)) for k in ranks}


def _reciprocal_rank(hits: Array, relevant: Array) -> Array:
    return jnp.where(hits.any(axis=1), 1 / (1 + hits.argmax(axis=1)), 0.0)


@functools.partial(jax.jit, static_argnames="functions")
def _measure(
    hits: Array,
    classes: tuple[Array, Array, Array] | None,
    relevant: Array,
    ranks: Sequence[Any],
    functions: tuple[Callable[..., Array], ...],
) -> list[Array]:
    """All metrics of a block of queries; with ``classes`` (gallery, queries, rows) hits are what may be one."""
    if classes is not None:
        gallery, own, indices = classes
        hits = hits & (gallery[indices] == own[:, None])
    padding = (0, max(0, QUERIES - len(hits)))  # as sums of few rows are rounded otherwise
    hits, relevant = jnp.pad(hits, (padding, (0, 0))), jnp.pad(relevant, padding)
    pairs = zip(functions, ranks, strict=True)
    return [f(hits, relevant) if k is None else f(hits, relevant, k) for f, k in pairs]


def _average(values: np.ndarray, classes: np.ndarray | None) -> float:
    """The mean of all, or of the means of the classes; 0 of nothing."""
    if classes is not None and values.size:
        sizes = np.bincount(classes)
        values = np.bincount(classes, values)[sizes > 0] / sizes[sizes > 0]
    return float(np.mean(values, dtype=np.float64)) if values.size else 0.0
