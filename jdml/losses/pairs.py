"""Losses on pairs of embeddings: every sample against every other one of the batch, or against references."""

import dataclasses
from typing import Unpack

import jax
import jax.numpy as jnp
from jax import Array

from jdml import ops
from jdml.losses.anchors import Comparison, PairTerms
from jdml.losses.comparison import CompareOptions, compare
from jdml.ops import ReduceFn, checks, log1p_sum_exp, mean, mean_nonzero
from jdml.ops.soft_rank import active_triplets, soft_triplets

__all__ = [
    "contrastive_loss",
    "margin_loss",
    "mining_activity",
    "multi_similarity_loss",
    "similarity_contrastive_loss",
    "triplet_loss",
]

relu = jax.nn.relu


@ops.public(compare, positive_margin=checks.finite, negative_margin=checks.non_negative)
def contrastive_loss(
    embeddings: Array,
    labels: Array | None = None,
    *,
    positive_margin: float | Array = 0.0,
    negative_margin: float | Array = 0.5,
    squared: bool = False,
    reduce_fn: ReduceFn | None = mean_nonzero,
    **options: Unpack[CompareOptions],
) -> Array:
    """Compute the contrastive loss with two margins (C2).

    Formula:
        ``reduce_pos (d − m⁺)₊ + reduce_neg (m⁻ − d)₊``, d Euclidean, or its square.

    Args:
        positive_margin: m⁺, a distance (a squared one where ``squared``).
        negative_margin: m⁻, likewise.
        squared: compare squared Euclidean distances, as EPS's preliminaries define D.
        reduce_fn: applied to positive and negative terms apart, and then added; None gives ``[B, R]``.

    Implementation notes:
        At distance 0 the gradient is 0. Time and memory O(B·R).

    Paper settings:
        CCP and the Metric Learning Reality Check: (0, .3841) CUB, (.2652, .5409) Cars196, (.2858, .5130) SOP and
        In-shop, averaged over the pairs of each kind with a positive hinge, as the released programs do. CCP's eq. 4.2
        has m⁺ = β − α, m⁻ = β + α; its eq. 4.11 averages over all pairs together:
        ``margin_loss(beta=β, alpha=α, reduce_fn=jdml.mean)``.

    Reference:
        Hadsell, Chopra & LeCun, *Dimensionality Reduction by Learning an Invariant Mapping*; Wu et al., *Sampling
        Matters in Deep Embedding Learning*.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
        >>> contrastive_loss(x, jnp.array([0, 0, 1]))
        Array(1.9142135, dtype=float32)
    """

    def terms(c: Comparison) -> PairTerms:
        distances = c.squared_distances if squared else c.distances
        pull = relu(distances - positive_margin)
        push = relu(negative_margin - distances)
        return (pull, c.pairs.positive), (push, c.pairs.negative)

    return compare(embeddings, labels, **options).reduce_pairs(reduce_fn, terms)


@ops.public(compare, negative_margin=checks.finite)
def similarity_contrastive_loss(
    embeddings: Array,
    labels: Array | None = None,
    *,
    negative_margin: float | Array = 0.5,
    reduce_fn: ReduceFn | None = mean,
    **options: Unpack[CompareOptions],
) -> Array:
    """Compute the contrastive loss on similarities (C1, the form of XBM).

    Formula:
        ``reduce_i [ Σ_pos (1 − s) + Σ_neg s·1[s > m] ]``, s the inner product.

    Args:
        negative_margin: m, a cosine: negatives less similar than it are left alone.
        reduce_fn: applied to the sums of the valid anchors; None gives ``[B]``.

    Implementation notes:
        A negative term jumps from 0 to m where s passes m: the value is s, not s − m, as in XBM's program; the gradient
        is the same.

    Paper settings:
        m = 0.5 in CCP and XBM. In the ball (``normalize=jdml.ball``), as CCP runs it, a short positive pair keeps a
        loss above 0.

    Reference:
        Wang, Zhang, Huang & Scott, *Cross-Batch Memory for Embedding Learning*, §3.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[1.0, 0.0], [0.6, 0.8], [1.0, 0.0]])
        >>> similarity_contrastive_loss(x, jnp.array([0, 0, 1]), reduce_fn=None)
        Array([1.4, 1. , 1.6], dtype=float32)
    """

    def terms(c: Comparison) -> Array:
        similarities = c.similarities
        pull = jnp.where(c.pairs.positive, 1.0 - similarities, 0.0)
        push = jnp.where(c.pairs.negative & (similarities > negative_margin), similarities, 0.0)
        return jnp.sum(pull + push, axis=-1)

    return compare(embeddings, labels, **options).reduce_rows(reduce_fn, terms)


@ops.public(compare, margin=checks.optional(checks.non_negative))
def triplet_loss(
    embeddings: Array,
    labels: Array | None = None,
    *,
    margin: float | Array | None = 0.1,
    squared: bool = False,
    reduce_fn: ReduceFn | None = mean_nonzero,
    **options: Unpack[CompareOptions],
) -> Array:
    """Compute the triplet loss over all triplets of an anchor, a positive and a negative.

    Formula:
        ``reduce_{a,p,n} (d_ap − d_an + m)₊``; without m, the soft margin: ``log(1 + e^{d_ap − d_an})``.

    Args:
        margin: m, a distance (a squared one where ``squared``); None for the soft margin.
        squared: compare squared Euclidean distances.
        reduce_fn: ``mean_nonzero`` averages over the triplets with a positive hinge, ``mean`` over all valid ones; any
            other function sees the sums ``[B]``, and None gives them.

    Returns:
        A scalar, or ``[B]``: per anchor, the sum over its triplets.

    Implementation notes:
        Sorting each row's positives and negatives counts the active triplets of each distance, in O(B·R log R) time and
        O(B·R) memory; none is enumerated. With a miner that leaves one positive and one negative per anchor it is the
        usual sampled triplet. The soft margin takes O(B·R·P) time for P positives a row.

    Paper settings:
        Margins of the Metric Learning Reality Check and CCP: .0961 CUB, .1190 Cars196, .0451 SOP and In-shop,
        unsquared, averaged over active triplets. EPS's framework: .2, squared, averaged over all sampled triplets.
        Hermans et al.: the soft margin of the hardest positive and negative, unsquared, vectors as they are.

    Reference:
        Weinberger & Saul, *Distance Metric Learning for Large Margin Nearest Neighbor Classification*; Schroff et al.,
        *FaceNet*; Hermans, Beyer & Leibe, *In Defense of the Triplet Loss for Person Re-Identification* (soft margin).

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [-1.0, 0.0]])
        >>> triplet_loss(x, jnp.array([0, 0, 1, 1]), margin=0.1, reduce_fn=None).round(3)
        Array([1.514, 0.2  , 2.786, 0.786], dtype=float32)
    """

    def terms(c: Comparison) -> tuple[Array, Array, Array]:
        distances = c.squared_distances if squared else c.distances
        positive, negative = c.pairs
        triplets = positive.sum(-1).astype(distances.dtype) * negative.sum(-1)
        if margin is None:
            return soft_triplets(distances, positive, negative), triplets, triplets
        active = active_triplets(jax.lax.stop_gradient(distances), positive, negative, margin)
        active = active.astype(distances.dtype)
        pulls = jnp.where(positive, active, 0.0)
        pushes = jnp.where(negative, active, 0.0)
        sums = jnp.sum((pulls - pushes) * distances + pulls * margin, axis=-1)
        return sums, triplets, pulls.sum(-1)

    return compare(embeddings, labels, **options).reduce_groups(reduce_fn, terms)


@ops.public(compare, beta=checks.finite_per_class, alpha=checks.non_negative)
def margin_loss(
    embeddings: Array,
    labels: Array | None = None,
    *,
    beta: float | Array = 1.2,
    alpha: float | Array = 0.2,
    sample_beta: Array | None = None,
    squared: bool = False,
    reduce_fn: ReduceFn | None = mean_nonzero,
    **options: Unpack[CompareOptions],
) -> Array:
    """Compute the margin loss: positives inside, negatives outside a boundary that can be learned.

    Formula:
        positives ``(d − β + α)₊``, negatives ``(β − d + α)₊``, averaged together; d Euclidean, or its square; β is the
        anchor's: one for all or its class's, plus the sample's own.

    Args:
        beta: β, the boundary, a distance: a scalar, or ``[C]`` with one value per class of the anchor. It gets
            gradients.
        alpha: α, half the width of the gap around the boundary, a distance.
        sample_beta: ``[B]``, added to the β of each anchor: what it differs by from its class. It gets gradients, too.
        squared: compare squared Euclidean distances, as EPS's preliminaries define D; α and β are then squared ones.
        reduce_fn: ``mean_nonzero`` divides the sum of all active pairs, of both kinds together, by their number; None
            gives ``[B, R]``.

    Raises:
        ValueError: β per class without labels.

    Implementation notes:
        With β per class, a row whose label has no β is not valid.

    Paper settings:
        β₀ = 1.2, α = .2 (Wu et al. and EPS, on distance-weighted pairs: ``mine=chain(random_positive(),
        distance_weighted_negative(dim=D))``). EPS prints D as a squared distance (``squared=True``); the framework that
        its tables were made with compares plain ones.

    Reference:
        Wu, Manmatha, Smola & Krähenbühl, *Sampling Matters in Deep Embedding Learning*, eq. 5.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
        >>> margin_loss(x, jnp.array([0, 0, 1])).round(4)
        Array(0.9071, dtype=float32)
    """
    beta = jnp.asarray(beta)
    if beta.ndim == 1:
        options = _with_boundaries(beta, labels, embeddings, options)

    def terms(c: Comparison) -> PairTerms:
        distances = c.squared_distances if squared else c.distances
        boundary = _boundaries(beta, c)
        pull = jnp.where(c.pairs.positive, relu(distances - boundary + alpha), 0.0)
        push = jnp.where(c.pairs.negative, relu(boundary - distances + alpha), 0.0)
        return ((pull + push, c.pairs.positive | c.pairs.negative),)

    anchors = compare(embeddings, labels, **options)
    if sample_beta is not None:
        checks.check_weights("sample_beta", sample_beta, (len(embeddings),))
        own = jnp.asarray(sample_beta)
        checks.require_finite("sample_beta", own, anchors.rows.valid)
        anchors = dataclasses.replace(anchors, rows=anchors.rows._replace(extra=own))
    return anchors.reduce_pairs(reduce_fn, terms)


@ops.public(compare, alpha=checks.positive, beta=checks.positive, base=checks.finite)
def multi_similarity_loss(
    embeddings: Array,
    labels: Array | None = None,
    *,
    alpha: float | Array = 2.0,
    beta: float | Array = 50.0,
    base: float | Array = 0.5,
    reduce_fn: ReduceFn | None = mean,
    **options: Unpack[CompareOptions],
) -> Array:
    """Compute the multi-similarity (MS) loss.

    Formula:
        ``reduce_i [ (1/α) log(1 + Σ_pos e^{−α(s−λ)}) + (1/β) log(1 + Σ_neg e^{β(s−λ)}) ]``

    Args:
        alpha: α, sharpness of the pull.
        beta: β, sharpness of the push.
        base: λ, a cosine: where pull and push balance.
        reduce_fn: applied to the valid anchors; None gives ``[B]``.

    Implementation notes:
        The paper mines pairs first: ``mine=multi_similarity_pairs()``. Anchors left without pairs count as 0 in the
        mean.

    Paper settings:
        (α, β, λ): (2, 40, .5) in the released program and CCP on CUB and SOP, (14.35, 75.83, .66) Cars196,
        (8.49, 57.38, .41) In-shop. EPS prints (2, 50, 1), with which hardly a negative pushes; its framework ran (2,
        40, .5).

    Reference:
        Wang, Han, Huang, Dong & Scott, *Multi-Similarity Loss with General Pair Weighting*, eq. 15.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[1.0, 0.0], [0.6, 0.8], [1.0, 0.0]])
        >>> multi_similarity_loss(x, jnp.array([0, 0, 1])).round(4)
        Array(0.5661, dtype=float32)
    """

    def terms(c: Comparison) -> Array:
        offsets = c.similarities - base
        pull = log1p_sum_exp(-alpha * offsets, where=c.pairs.positive) / alpha
        push = log1p_sum_exp(beta * offsets, where=c.pairs.negative) / beta
        return pull + push

    return compare(embeddings, labels, **options).reduce_rows(reduce_fn, terms)


@ops.public(compare)
def mining_activity(
    embeddings: Array, labels: Array | None = None, **options: Unpack[CompareOptions]
) -> dict[str, Array]:
    """Measure a miner: the share of the anchors that it leaves a positive and a negative, and of the pairs it keeps.

    Args:
        mine: the miner; without one both shares are 1.

    Returns:
        ``"mined_anchors"``, of the anchors that have both before, and ``"mined_pairs"``; 0 where there are none.

    Implementation notes:
        It has no gradient. As ``monitor`` of :func:`jdml.objectives.pair` it is logged with the loss, and shares the
        distances of a batch that is compared at once.

    Example:
        >>> import jax.numpy as jnp, jdml
        >>> x = jnp.array([[0.0], [1.0], [2.0], [5.0]])
        >>> mine = jdml.mining.trusted_negative()
        >>> activity = mining_activity(x, jnp.array([0, 0, 1, 1]), mine=mine, normalize=None)
        >>> {name: round(float(value), 3) for name, value in activity.items()}
        {'mined_anchors': 0.75, 'mined_pairs': 0.75}
    """
    anchors = compare(jax.lax.stop_gradient(embeddings), labels, **options)

    def count(c: Comparison) -> dict[str, Array]:
        positive, negative = c.pairs
        complete = positive.any(-1) & negative.any(-1)
        return {"mined_anchors": complete, "mined_pairs": (positive | negative).sum(-1)}

    chosen, possible = (
        jax.tree.map(jnp.sum, each.each(count))
        for each in (anchors, dataclasses.replace(anchors, mine=None))
    )
    return jax.tree.map(lambda part, whole: part / jnp.maximum(whole, 1), chosen, possible)


def _with_boundaries(
    beta: Array, labels: Array | None, embeddings: Array, options: CompareOptions
) -> CompareOptions:
    """Options in which anchors without a β of their own are not valid."""
    if labels is None:
        raise ValueError(
            f"beta must be a scalar where positive= is given instead of labels, got {list(beta.shape)}"
        )
    checks.check_labels("labels", labels, embeddings.shape[0])
    labels = checks.widen_labels(labels)
    known = labels < beta.size
    checks.require(
        known,
        f"labels[{{row}}] is {{0}}, expected 0…{beta.size - 1} as beta has {beta.size}",
        labels,
    )
    where = options["where"]
    if where is not None:
        checks.check_mask("where", where, labels.shape)
        known = known & where
    return {**options, "where": known}


def _boundaries(beta: Array, c: Comparison) -> Array:
    """β, or each anchor's own as a column."""
    if beta.ndim:
        assert c.labels is not None
        beta = beta[jnp.clip(checks.widen_labels(c.labels), 0, beta.size - 1)][:, None]
    return beta if c.extra is None else beta + c.extra[:, None].astype(c.embeddings.dtype)
