"""Metrics of a ranked relevance matrix: which of the answers to each query are right, nearest first.

``hits [..., K]`` says whether the answer at each rank is right, ``num_relevant [...]`` (R) how many right answers
there are in the whole gallery. All functions are pure, work on any leading axes, and give one float32 per query; a
query without any right answer (R = 0) scores 0.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jdml.ops import checks
from jdml.ops.decorators import spell_documentation
from jdml.ops.meshes import by_rows

Divisor = Literal["min", "k", "relevant", "class"]
F = TypeVar("F", bound=Callable[..., Any])


def _ranked(hits: Any, num_relevant: Any, k: int | None) -> tuple[Array, Array, int]:
    """Return boolean hits among the k first ranks, R, and k, checked.

    Args:
        hits: ``[..., K]`` boolean, nearest first; ranks beyond K count as misses.
        num_relevant: R, ``[...]`` integers; the metrics that do not need it take it so that all are called alike.
        k: how many ranks count, default K.
    """
    hits = jnp.asarray(hits)
    if not (jnp.issubdtype(hits.dtype, jnp.bool_) or jnp.issubdtype(hits.dtype, jnp.integer)):
        raise TypeError(f"hits must be boolean, got dtype {hits.dtype}")
    if hits.ndim == 0 or hits.shape[-1] == 0:
        raise ValueError(f"hits must have shape [..., K] with K > 0, got {list(hits.shape)}")
    relevant = jnp.zeros(hits.shape[:-1], jnp.int32) if num_relevant is None else num_relevant
    relevant = jnp.asarray(relevant)
    if not jnp.issubdtype(relevant.dtype, jnp.integer):
        raise TypeError(f"num_relevant must be integers, got dtype {relevant.dtype}")
    if relevant.shape != hits.shape[:-1]:
        expected, got = list(hits.shape[:-1]), list(relevant.shape)
        raise ValueError(
            f"num_relevant must have the shape of hits without K, {expected}, got {got}"
        )
    if k is None:
        k = hits.shape[-1]
    hits = hits.astype(bool) & (_ranks(hits) <= k)
    return hits, relevant.astype(jnp.promote_types(relevant.dtype, jnp.int32)), k


def _metric(*static: str, fills: bool = False) -> Callable[[F], F]:
    """Jit a metric, whose arguments are described as :func:`_ranked` does; ``fills``: it needs k columns of hits."""

    def decorate(function: F) -> F:
        spell_documentation(function, _ranked)
        compiled = jax.jit(function, static_argnames=static)

        @functools.wraps(function)
        def metric(hits: Any, num_relevant: Any = None, k: Any = None, **options: Any) -> Array:
            if k is None:
                return compiled(hits, num_relevant, **options)
            if not isinstance(k, jax.core.Tracer):
                checks.count("k", k)
                k = min(k, np.iinfo(np.int32).max)
                missing = k - np.shape(hits)[-1] if fills and np.ndim(hits) else 0
                if missing > 0:
                    hits = jnp.pad(hits, [(0, 0)] * (np.ndim(hits) - 1) + [(0, missing)])
            return compiled(hits, num_relevant, k, **options)

        return cast(F, metric)

    return decorate


@_metric()
def recall_at_k(hits: Array, num_relevant: Array | None = None, k: int | None = None) -> Array:
    """Compute recall@k as metric learning uses the word: is any of the k nearest right?

    Formula:
        ``1[Σ_{i≤k} hit_i > 0]``

    Also known as hit rate, hit@k, success@k. What recommenders call recall@k is another number, the share of all right
    answers that are among the k nearest: :func:`true_recall_at_k`.

    Returns:
        ``[...]`` of 0 and 1.

    Reference:
        Jégou, Douze & Schmid, *Product Quantization for Nearest Neighbor Search*.

    Example:
        >>> import jax.numpy as jnp
        >>> recall_at_k(jnp.array([[False, True, False], [False, False, True]]), k=2)
        Array([1., 0.], dtype=float32)
    """
    hits, _, k = _ranked(hits, num_relevant, k)
    return hits.any(-1).astype(jnp.float32)


@_metric()
def precision_at_1(hits: Array, num_relevant: Array | None = None) -> Array:
    """Compute precision at 1: is the nearest one right? The same as Recall@1.

    Formula:
        ``hit_1``

    Returns:
        ``[...]`` of 0 and 1.

    Reference:
        Musgrave, Belongie & Lim, *A Metric Learning Reality Check*, §3.2.

    Example:
        >>> import jax.numpy as jnp
        >>> precision_at_1(jnp.array([[False, True], [True, False]]))
        Array([0., 1.], dtype=float32)
    """
    return recall_at_k(hits, num_relevant, 1)


@_metric()
def precision_at_k(hits: Array, num_relevant: Array | None = None, k: int | None = None) -> Array:
    """Compute precision@k: the share of right ones among the k nearest.

    Formula:
        ``(1/k) Σ_{i≤k} hit_i``

    Returns:
        ``[...]`` in 0…1; at most R/k.

    Reference:
        Manning, Raghavan & Schütze, *Introduction to Information Retrieval*, §8.4.

    Example:
        >>> import jax.numpy as jnp
        >>> precision_at_k(jnp.array([[True, False, True, True]]), k=4)
        Array([0.75], dtype=float32)
    """
    hits, _, k = _ranked(hits, num_relevant, k)
    return (hits.sum(-1) / k).astype(jnp.float32)


@_metric()
def true_recall_at_k(hits: Array, num_relevant: Array, k: int | None = None) -> Array:
    """Compute the share of all right answers that are among the k nearest: what recommenders call recall@k.

    Formula:
        ``(1/R) Σ_{i≤k} hit_i``

    Metric learning's :func:`recall_at_k` asks for one right answer; here all are wanted. Both are one where R = 1.

    Returns:
        ``[...]`` in 0…1; at most k/R.

    Reference:
        Manning, Raghavan & Schütze, *Introduction to Information Retrieval*, §8.3.

    Example:
        >>> import jax.numpy as jnp
        >>> true_recall_at_k(jnp.array([[True, False, True, True]]), jnp.array([4]), k=3)
        Array([0.5], dtype=float32)
    """
    hits, relevant, _ = _ranked(hits, num_relevant, k)
    return _ratio(hits.sum(-1), relevant)


@_metric()
def r_precision(hits: Array, num_relevant: Array) -> Array:
    """Compute R-precision: the share of right ones among the R nearest.

    Formula:
        ``(1/R) Σ_{i≤R} hit_i``

    Returns:
        ``[...]`` in 0…1.

    Reference:
        Musgrave, Belongie & Lim, *A Metric Learning Reality Check*, §3.2.

    Example:
        >>> import jax.numpy as jnp
        >>> r_precision(jnp.array([[True, False, True, True]]), jnp.array([2]))
        Array([0.5], dtype=float32)
    """
    hits, relevant, _ = _ranked(hits, num_relevant, None)
    within = _ranks(hits) <= relevant[..., None]
    return _ratio((hits & within).sum(-1), relevant)


@_metric()
def map_at_r(hits: Array, num_relevant: Array) -> Array:
    """Compute mean average precision at R: R-precision that also rewards right ones for coming first.

    Formula:
        ``(1/R) Σ_{i≤R} P(i)·hit_i``, where ``P(i) = (1/i) Σ_{j≤i} hit_j``

    Returns:
        ``[...]`` in 0…1.

    Reference:
        Musgrave, Belongie & Lim, *A Metric Learning Reality Check*, §3.2.

    Example:
        >>> import jax.numpy as jnp
        >>> average = map_at_r(jnp.array([[True, False, True, False]]), jnp.array([4]))
        >>> round(float(average[0]), 4)
        0.4167
    """
    hits, relevant, _ = _ranked(hits, num_relevant, None)
    within = _ranks(hits) <= relevant[..., None]
    return _ratio(_summed_precision(hits & within), relevant)


@_metric("divisor")
def map_at_k(
    hits: Array, num_relevant: Array, k: int | None = None, *, divisor: Divisor = "min"
) -> Array:
    """Compute mean average precision over the k nearest.

    Formula:
        ``(1/N) Σ_{i≤k} P(i)·hit_i``, where ``P(i) = (1/i) Σ_{j≤i} hit_j``

    Args:
        divisor: N. ``"min"``: min(k, R), so that a perfect ranking scores 1; ``"k"``: k; ``"relevant"``: R;
            ``"class"``: R + 1, the size of the query's class with the query in it.

    Returns:
        ``[...]`` in 0…1.

    Paper settings:
        MPA's Table 3 divides by k; NIR's mAP@1000 by the size of the class, so that it cannot reach 1.

    Reference:
        Manning, Raghavan & Schütze, *Introduction to Information Retrieval*, §8.4.

    Example:
        >>> import jax.numpy as jnp
        >>> hits, relevant = jnp.array([[True, False, True, False, False]]), jnp.array([4])
        >>> [round(float(map_at_k(hits, relevant, divisor=d)[0]), 4) for d in ("min", "k")]
        [0.4167, 0.3333]
    """
    hits, relevant, k = _ranked(hits, num_relevant, k)
    checks.one_of("divisor", divisor, get_args(Divisor))
    best = {
        "min": jnp.minimum(relevant, k),
        "k": jnp.full_like(relevant, k),
        "relevant": relevant,
        "class": relevant + 1,
    }
    average = _ratio(_summed_precision(hits), best[divisor])
    return jnp.where(relevant > 0, average, 0.0)


@_metric(fills=True)
def ndcg_at_k(hits: Array, num_relevant: Array, k: int | None = None) -> Array:
    """Compute the normalized discounted cumulative gain over the k nearest, with gains 0 and 1.

    Formula:
        ``DCG / DCG_best``, ``DCG = Σ_{i≤k} hit_i / log₂(i + 1)``, ``DCG_best = Σ_{i≤min(k,R)} 1 / log₂(i + 1)``

    Returns:
        ``[...]`` in 0…1.

    Paper settings:
        MPA: k = 8 on CUB and Cars196, 100 on SOP.

    Reference:
        Järvelin & Kekäläinen, *Cumulated Gain-Based Evaluation of IR Techniques*.

    Example:
        >>> import jax.numpy as jnp
        >>> ndcg = ndcg_at_k(jnp.array([[True, False, True, False]]), jnp.array([2]))
        >>> round(float(ndcg[0]), 4)
        0.9197
    """
    hits, relevant, k = _ranked(hits, num_relevant, k)
    discounts = 1.0 / np.log2(np.arange(hits.shape[-1]) + 2.0)
    best = np.concatenate([[1.0], np.cumsum(discounts)]).astype(np.float32)  # of R = 0: any, not 0
    gains = jnp.broadcast_to(jnp.asarray(discounts, jnp.float32), hits.shape)
    gained = jnp.sum(jnp.where(hits, gains, 0.0), axis=-1)
    sizes = jnp.minimum(relevant, k)
    best = by_rows(lambda sizes, best: best[jnp.maximum(sizes, 0)], sizes, jnp.asarray(best))
    return jnp.where(relevant > 0, gained / best, 0.0)


def _ranks(hits: Array) -> Array:
    """1…K, with the rank of ``hits``."""
    return jax.lax.broadcasted_iota(jnp.int32, hits.shape, hits.ndim - 1) + 1


def _summed_precision(hits: Array) -> Array:
    """``Σ_i P(i)·hit_i``."""
    retrieved = jnp.cumsum(hits, axis=-1, dtype=jnp.int32)
    return jnp.sum(jnp.where(hits, retrieved / _ranks(hits), 0.0), axis=-1)


def _ratio(score: Array, best: Array) -> Array:
    """``score / best``, 0 where ``best`` is not positive."""
    return jnp.where(best > 0, score / jnp.maximum(best, 1), 0.0).astype(jnp.float32)
