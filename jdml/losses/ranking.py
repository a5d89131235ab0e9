"""Losses on ranks: FastAP by a soft histogram, SmoothAP and Recall@k by soft comparisons."""

from typing import Unpack

import jax
import jax.numpy as jnp
from jax import Array

from jdml import ops
from jdml.losses.anchors import Comparison
from jdml.losses.comparison import CompareOptions, compare
from jdml.ops import ReduceFn, checks, mean
from jdml.ops.chunking import by_platform
from jdml.ops.soft_rank import soft_ranks

__all__ = ["fast_ap_loss", "recall_at_k_loss", "smooth_ap_loss"]

relu = jax.nn.relu


@ops.public(compare, num_bins=checks.count)
def fast_ap_loss(
    embeddings: Array,
    labels: Array | None = None,
    *,
    num_bins: int = 10,
    reduce_fn: ReduceFn | None = mean,
    **options: Unpack[CompareOptions],
) -> Array:
    """Compute FastAP: 1 − average precision, with ranks from a soft histogram of squared distances.

    Formula:
        ``reduce_i [ 1 − (1/N⁺) Σ_b h⁺_b H⁺_b / H_b ]``; h⁺ counts positives per bin, H⁺ and H cumulate positives and
        all pairs up to the bin.

    Args:
        num_bins: width of the bins is 4 / num_bins; there are num_bins + 1 of them, centred at 0 … 4. Static.
        reduce_fn: applied to the anchors that have a positive; None gives ``[B]``.

    Implementation notes:
        Squared distances lie in [0, 4] on the sphere and in the ball; longer ones fall out of the histogram. Each
        bin is computed again in the backward pass, so memory stays O(B·R).

    Paper settings:
        10 bins.

    Reference:
        Cakir, He, Xia, Kulis & Sclaroff, *Deep Metric Learning to Rank*, eq. 10.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
        >>> fast_ap_loss(x, jnp.array([0, 0, 1])).round(4)
        Array(0.5, dtype=float32)
    """

    def terms(c: Comparison) -> tuple[Array, Array]:
        squares, (positive, negative) = c.squared_distances, c.pairs

        @jax.checkpoint
        def histogram(centre: Array) -> tuple[Array, Array]:
            pulse = relu(1.0 - jnp.abs(squares - centre) * (num_bins / 4.0))
            return jnp.where(positive, pulse, 0.0).sum(-1), jnp.where(negative, pulse, 0.0).sum(-1)

        centres = jnp.linspace(0.0, 4.0, num_bins + 1, dtype=squares.dtype)
        together = by_platform(None, num_bins + 1)
        hits, misses = jax.lax.map(histogram, centres, batch_size=together)  # [bins, B]
        retrieved = jnp.cumsum(hits, axis=0)
        ranked = retrieved + jnp.cumsum(misses, axis=0)
        some = hits * retrieved != 0
        precision = jnp.where(some, hits * retrieved, 0.0) / jnp.where(some, ranked, 1.0)
        count = positive.sum(-1)
        return 1.0 - precision.sum(0) / jnp.maximum(count, 1), count > 0

    return compare(embeddings, labels, **options).reduce_rows(reduce_fn, terms)


@ops.public(compare, temperature=checks.positive)
def smooth_ap_loss(
    embeddings: Array,
    labels: Array | None = None,
    *,
    temperature: float | Array = 0.01,
    reduce_fn: ReduceFn | None = mean,
    **options: Unpack[CompareOptions],
) -> Array:
    """Compute SmoothAP: 1 − average precision, with ranks counted by sigmoids.

    Formula:
        ``reduce_i [ 1 − mean_p r⁺_ip / r_ip ]`` with ``r_ip = 1 + Σ_{z≠p} σ((s_iz − s_ip)/T)`` over all others, and
        r⁺ likewise over the positives.

    When to use it: to finish a model that ranks well already on the measure that it will be judged by (MAP). Far from
    a boundary the sigmoids are flat; start from a model trained otherwise.

    Args:
        temperature: T, a cosine: how near to a step the sigmoid is.
        reduce_fn: applied to the anchors that have a positive; None gives ``[B]``.

    Implementation notes:
        Positives are ranked one after the other: ``O(B R P)`` time for P positives a row, ``O(B R)`` memory, less with
        ``anchor_block``. Its derivatives are the gradient (backwards) and ``jax.hessian`` (forwards over it).
        The released program and pytorch-metric-learning also rank an anchor for itself, as the nearest positive:
        ``references=x, reference_labels=labels`` gives theirs.

    Paper settings:
        T = .01, 4 samples of a class in a batch of up to 384.

    Reference:
        Brown, Xie, Kalogeiton & Zisserman, *Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval*, eq. 7.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
        >>> smooth_ap_loss(x, jnp.array([0, 0, 1])).round(4)
        Array(0.5, dtype=float32)
    """

    def terms(c: Comparison) -> tuple[Array, Array]:
        positive, negative = c.pairs
        ranks, among_positives = soft_ranks(
            c.similarities, positive, (positive | negative, positive), temperature
        )
        precision = jnp.where(positive, among_positives, 0.0) / jnp.where(positive, ranks, 1.0)
        count = positive.sum(-1)
        return 1.0 - precision.sum(-1) / jnp.maximum(count, 1), count > 0

    return compare(embeddings, labels, **options).reduce_rows(reduce_fn, terms)


@ops.public(compare, k=checks.counts, temperature=checks.positive, k_temperature=checks.positive)
def recall_at_k_loss(
    embeddings: Array,
    labels: Array | None = None,
    *,
    k: int | tuple[int, ...] = (1, 2, 4, 8, 16),
    temperature: float | Array = 0.01,
    k_temperature: float | Array = 1.0,
    reduce_fn: ReduceFn | None = mean,
    **options: Unpack[CompareOptions],
) -> Array:
    """Compute a soft recall@k: 1 − the share of an anchor's positives among its k nearest, averaged over k.

    Formula:
        ``reduce_i mean_k [ 1 − mean_p σ((k − r_ip)/T_k) ]`` with the ranks r of :func:`smooth_ap_loss`.

    When to use it: large batches (thousands), where it is judged by recall among the first few.

    Args:
        k: one rank or several. Static.
        temperature: T, a cosine: of the comparisons that make a rank.
        k_temperature: T_k, in ranks: of the comparison with k.
        reduce_fn: applied to the anchors that have a positive; None gives ``[B]``.

    Returns:
        A scalar, or ``[B]``. Never quite 0: a positive of rank k counts one half.

    Implementation notes:
        As :func:`smooth_ap_loss`. An anchor with more than k positives cannot reach 0, as in the paper.

    Paper settings:
        k = 1, 2, 4, 8, 16; T = .01, T_k = 1; 4,096 rows (in two passes through the network), 4 of a class.

    Reference:
        Patel, Tolias & Matas, *Recall@k Surrogate Loss with Large Batches and Similarity Mixup*, eq. 5 and 6.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
        >>> recall_at_k_loss(x, jnp.array([0, 0, 1]), k=(1, 2)).round(4)
        Array(0.6155, dtype=float32)
    """
    cutoffs = (k,) if isinstance(k, int) else tuple(k)

    def terms(c: Comparison) -> tuple[Array, Array]:
        positive, negative = c.pairs
        (ranks,) = soft_ranks(c.similarities, positive, (positive | negative,), temperature)
        count = jnp.maximum(positive.sum(-1), 1)
        recalled = [
            jnp.where(positive, jax.nn.sigmoid((cutoff - ranks) / k_temperature), 0.0).sum(-1)
            for cutoff in cutoffs
        ]
        return 1.0 - sum(recalled) / (len(cutoffs) * count), positive.any(-1)

    return compare(embeddings, labels, **options).reduce_rows(reduce_fn, terms)
