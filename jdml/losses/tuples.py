"""Losses on whole tuples of pairs: N-pair, lifted structure, circle and signal-to-noise contrastive."""

from typing import Unpack

import jax
import jax.numpy as jnp
from jax import Array

from jdml import ops
from jdml.losses.anchors import Comparison, PairTerms
from jdml.losses.comparison import CompareOptions, compare
from jdml.losses.contrastive import against_negatives
from jdml.mining import Pairs
from jdml.ops import ReduceFn, checks, log_sum_exp, mean, mean_nonzero
from jdml.ops.numerics import SQUARABLE, bounded, log_add_exp, softplus

__all__ = ["circle_loss", "lifted_structure_loss", "n_pair_loss", "snr_contrastive_loss"]

relu = jax.nn.relu


@ops.public(compare)
def n_pair_loss(
    embeddings: Array,
    labels: Array | None = None,
    *,
    reduce_fn: ReduceFn | None = mean,
    **options: Unpack[CompareOptions],
) -> Array:
    """Compute the N-pair loss.

    Formula:
        ``reduce_a mean_p log(1 + Σ_n e^{s_an − s_ap})``

    Args:
        reduce_fn: applied to the anchors that have a positive; None gives ``[B]``.

    Implementation notes:
        With one anchor per class as ``embeddings`` and its positive among ``references``, it is the paper's N-pair-mc
        loss; otherwise every positive of an anchor takes its turn.

    Paper settings:
        The paper compares unnormalized vectors (``normalize=None``) and adds a penalty on their norms.

    Reference:
        Sohn, *Improved Deep Metric Learning with Multi-class N-pair Loss Objective*, eq. 7.

    Example:
        >>> import jax.numpy as jnp
        >>> anchors, positives = jnp.eye(2), jnp.array([[0.6, 0.8], [0.0, 1.0]])
        >>> n_pair_loss(anchors, jnp.arange(2), references=positives, reference_labels=jnp.arange(2)).round(4)
        Array(0.5178, dtype=float32)
    """
    anchors = compare(embeddings, labels, **options)
    return anchors.reduce_rows(reduce_fn, lambda c: against_negatives(c.similarities, c.pairs))


@ops.public(compare, negative_margin=checks.finite, positive_margin=checks.finite)
def lifted_structure_loss(
    embeddings: Array,
    labels: Array | None = None,
    *,
    negative_margin: float | Array = 1.0,
    positive_margin: float | Array = 0.0,
    reduce_fn: ReduceFn | None = mean,
    **options: Unpack[CompareOptions],
) -> Array:
    """Compute the lifted structure loss.

    Formula:
        ``reduce_{(i,j)∈pos} ½ [ log( Σ_{n: (i,n)∈neg} e^{m⁻ − d_in} + Σ_{n: (j,n)∈neg} e^{m⁻ − d_jn} ) + d_ij − m⁺
        ]₊²``

    Args:
        negative_margin: m⁻, a distance.
        positive_margin: m⁺, a distance.
        reduce_fn: ``mean`` averages over all ordered positive pairs, ``mean_nonzero`` over the active ones; any other
            function sees the sums ``[B]``, and None gives them.

    Returns:
        A scalar, or ``[B]``: per anchor, the sum over its positive pairs.

    Implementation notes:
        The negatives of a positive j are j's own where it is an anchor too (of the batch, or one of ``references``
        that ``self_index`` names); of another reference they are the anchors that form a negative pair with it. A
        positive pair without any negative is no term. The ½ is there because a pair stands twice.

    Paper settings:
        m⁻ = 1, m⁺ = 0, on unnormalized embeddings in the paper.

    Reference:
        Song, Xiang, Jegelka & Savarese, *Deep Metric Learning via Lifted Structured Feature Embedding*, eq. 4.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
        >>> lifted_structure_loss(x, jnp.array([0, 0, 1])).round(4)
        Array(1.0405, dtype=float32)
    """
    anchors = compare(embeddings, labels, **options)
    negative_margin, positive_margin = (
        bounded(margin, least=-SQUARABLE, most=SQUARABLE)
        for margin in (negative_margin, positive_margin)
    )

    def push(distances: Array, pairs: Pairs, axis: int = -1) -> Array:
        return log_sum_exp(negative_margin - distances, where=pairs.negative, axis=axis)

    if anchors.at_once:
        of_references = None
    elif anchors.own_batch:
        of_references = anchors.each(lambda c: push(c.distances, c.pairs))
    else:
        own, parts = anchors.over_blocks(
            lambda c: (push(c.distances, c.pairs), push(c.distances, c.pairs, axis=0))
        )
        of_references = log_sum_exp(parts, where=parts != -jnp.inf, axis=0)
        of_references = anchors.add_own(of_references, own)

    def terms(c: Comparison) -> tuple[Array, Array, Array]:
        distances, positive = c.distances, c.pairs.positive
        own = push(distances, c.pairs)
        others = own if of_references is None else of_references
        of_anchor, of_reference = own[:, None], others[None, :]
        some = positive & ((of_anchor != -jnp.inf) | (of_reference != -jnp.inf))
        both = log_add_exp(jnp.where(some, of_anchor, 0.0), jnp.where(some, of_reference, 0.0))
        each = jnp.where(some, jnp.square(relu(both + distances - positive_margin)) / 2.0, 0.0)
        return each.sum(-1), some.sum(-1), (each > 0).sum(-1)

    return anchors.reduce_groups(reduce_fn, terms)


@ops.public(compare, margin=checks.non_negative, gamma=checks.positive)
def circle_loss(
    embeddings: Array,
    labels: Array | None = None,
    *,
    margin: float | Array = 0.4,
    gamma: float | Array = 80.0,
    reduce_fn: ReduceFn | None = mean,
    **options: Unpack[CompareOptions],
) -> Array:
    """Compute the circle loss: every similarity is weighted by how far it is from its optimum.

    Formula:
        ``reduce_i log(1 + Σ_n e^{γ α_n (s_n − m)} Σ_p e^{−γ α_p (s_p − 1 + m)})`` with ``α_p = (1 + m − s_p)₊``,
        ``α_n = (s_n + m)₊``, no gradient through α.

    Args:
        margin: m, a cosine: the radius of the decision boundary.
        gamma: γ, scale.
        reduce_fn: applied to the anchors that have both a positive and a negative; None gives ``[B]``.

    Paper settings:
        (m, γ) = (.4, 80) fine-grained retrieval, (.25, 256) faces, (.25, 128) person re-identification.

    Reference:
        Sun et al., *Circle Loss: A Unified Perspective of Pair Similarity Optimization*, eq. 6 and 8.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
        >>> circle_loss(x, jnp.array([0, 0, 1]), gamma=1.0).round(4)
        Array(0.789, dtype=float32)
    """
    margin = bounded(margin, most=SQUARABLE)

    def terms(c: Comparison) -> tuple[Array, Array]:
        similarities, (positive, negative) = c.similarities, c.pairs
        pull_weight = jax.lax.stop_gradient(relu(1.0 + margin - similarities))
        push_weight = jax.lax.stop_gradient(relu(similarities + margin))
        pull = log_sum_exp(-gamma * pull_weight * (similarities - (1.0 - margin)), where=positive)
        push = log_sum_exp(gamma * push_weight * (similarities - margin), where=negative)
        both = positive.any(-1) & negative.any(-1)
        return softplus(jnp.where(both, pull + push, 0.0)), both

    return compare(embeddings, labels, **options).reduce_rows(reduce_fn, terms)


@ops.public(compare, positive_margin=checks.finite, negative_margin=checks.non_negative)
def snr_contrastive_loss(
    embeddings: Array,
    labels: Array | None = None,
    *,
    positive_margin: float | Array = 0.0,
    negative_margin: float | Array = 1.0,
    reduce_fn: ReduceFn | None = mean_nonzero,
    **options: Unpack[CompareOptions],
) -> Array:
    """Compute the contrastive loss on signal-to-noise distances.

    Formula:
        ``d_ij = var(x_j − x_i) / var(x_i)``, variances over the D entries;
        ``reduce_pos (d − m⁺)₊ + reduce_neg (m⁻ − d)₊``.

    Args:
        embeddings: ``[B, D]``; the anchor is the signal, the difference the noise.
        positive_margin: m⁺, a ratio of variances.
        negative_margin: m⁻, a ratio of variances.
        reduce_fn: applied to positive and negative terms apart, and then added; None gives ``[B, R]``.

    Implementation notes:
        An anchor of variance 0 (in float32 below 1e-14/D) has no signal-to-noise distance: its pairs count as 0. The
        paper's penalty on the mean of an embedding is not included.

    Reference:
        Yuan, Deng, Tang, Tang & Chen, *Signal-to-Noise Ratio: A Robust Distance Metric for Deep Metric Learning*,
        eq. 8.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
        >>> snr_contrastive_loss(x, jnp.array([0, 0, 1])).round(4)
        Array(4.36, dtype=float32)
    """
    anchors = compare(embeddings, labels, **options)

    def terms(c: Comparison) -> PairTerms:
        own, references, centre = c.from_centre
        mean = own.mean(-1, keepdims=True)
        signal = jnp.sum(jnp.square(own - mean + (centre - centre.mean())[None]), axis=-1)
        # The squared norm of a centred difference, without centred copies of the vectors.
        offsets = jnp.square(mean - references.mean(-1)[None, :])
        noise = c.squared_distances - own.shape[1] * offsets
        noise = jnp.where(noise <= 0, 0.0, noise)
        signal = signal[:, None]
        some = ~(signal <= jnp.finfo(signal.dtype).eps ** 2)
        distances = noise / jnp.where(some, signal, 1.0)
        pull = jnp.where(some, relu(distances - positive_margin), 0.0)
        push = jnp.where(some, relu(negative_margin - distances), 0.0)
        return (pull, c.pairs.positive), (push, c.pairs.negative)

    return anchors.reduce_pairs(reduce_fn, terms)
