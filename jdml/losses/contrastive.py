"""Contrastive losses with a softmax or a sigmoid: InfoNCE (NT-Xent), SupCon, SigLIP and NCA."""

from typing import Unpack

import jax.numpy as jnp
from jax import Array

from jdml import ops
from jdml.losses.anchors import Comparison
from jdml.losses.comparison import CompareOptions, compare, compare_towers
from jdml.mining import Pairs
from jdml.ops import ReduceFn, checks, log_sum_exp, mean
from jdml.ops.numerics import softplus

__all__ = ["info_nce_loss", "nca_loss", "sigmoid_contrastive_loss", "sup_con_loss"]


@ops.public(compare, temperature=checks.positive)
def info_nce_loss(
    embeddings: Array,
    labels: Array | None = None,
    *,
    temperature: float | Array = 0.07,
    reduce_fn: ReduceFn | None = mean,
    **options: Unpack[CompareOptions],
) -> Array:
    """Compute InfoNCE, also known as NT-Xent and, with one positive a row, as the multiple negatives ranking loss.

    Formula:
        ``reduce_i mean_p −log( e^{s_ip/T} / (e^{s_ip/T} + Σ_n e^{s_in/T}) )``: each positive by itself against all
        negatives.

    Three ways to say what belongs together: two towers, ``info_nce_loss(queries, references=documents)``, where row
    i's positive is reference i (:func:`jdml.both_ways` adds the other direction); views or classes,
    ``info_nce_loss(x, labels)``; a mask, ``positive=``.

    When to use it: pairs without classes (text and image, two views of one image), in large batches. With classes of
    many samples :func:`sup_con_loss` is its sibling.

    Args:
        embeddings: ``[B, D]``, the queries.
        temperature: T, a cosine.
        references: ``[R, D]``, what the queries are compared with; default: the batch itself, each sample excluded by
            index. With neither labels nor ``positive``, the positive of row i is reference i; references beyond B are
            negatives of all.
        reduce_fn: applied to the anchors that have a positive; None gives ``[B]``: the mean over a row's positives.

    Raises:
        ValueError: fewer references than rows where these are pairs.

    Implementation notes:
        A row without a positive is left out of the mean; one without a negative is 0. Pytorch-metric-learning averages
        over all positive pairs, which is the same where all rows have as many.

    Paper settings:
        T = .07 (MoCo, and CLIP's start), .1 to .5 (SimCLR), .05 (SimCSE, sentence-transformers).

    Reference:
        van den Oord, Li & Vinyals, *Representation Learning with Contrastive Predictive Coding*, eq. 4; Chen,
        Kornblith, Norouzi & Hinton, *A Simple Framework for Contrastive Learning of Visual Representations*, eq. 1.

    Example:
        >>> import jax.numpy as jnp
        >>> queries, documents = jnp.eye(2), jnp.array([[0.6, 0.8], [0.0, 1.0]])
        >>> info_nce_loss(queries, references=documents, temperature=1.0).round(4)
        Array(0.5178, dtype=float32)
    """

    def terms(c: Comparison) -> tuple[Array, Array]:
        return against_negatives(c.similarities / temperature, c.pairs)

    return compare_towers(embeddings, labels, **options).reduce_rows(reduce_fn, terms)


@ops.public(compare, temperature=checks.positive)
def sup_con_loss(
    embeddings: Array,
    labels: Array | None = None,
    *,
    temperature: float | Array = 0.1,
    decoupled: bool = False,
    reduce_fn: ReduceFn | None = mean,
    **options: Unpack[CompareOptions],
) -> Array:
    """Compute SupCon: supervised contrastive loss, the mean over positives outside the logarithm.

    Formula:
        ``reduce_i mean_p −log( e^{s_ip/T} / Σ_a e^{s_ia/T} )``, a over all others, or over the negatives alone where
        ``decoupled``.

    When to use it: classes with several samples in a batch; all positives of an anchor are pulled at once, the far
    ones most.

    Args:
        temperature: T, a cosine.
        decoupled: leave the positives out of the denominator (DCL), so that near positives go on pulling.
        reduce_fn: applied to the anchors that have a positive (and, decoupled, a negative); None gives ``[B]``.

    Returns:
        A scalar, or ``[B]``; decoupled it may be negative.

    Implementation notes:
        The paper's L_out. Its program multiplies by T/T_base = 1 where both are as here.

    Paper settings:
        T = .1 for SupCon (ImageNet, 6,144 rows), .07 and .1 for DCL.

    Reference:
        Khosla et al., *Supervised Contrastive Learning*, eq. 2; Yeh et al., *Decoupled Contrastive Learning*, eq. 6.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
        >>> sup_con_loss(x, jnp.array([0, 0, 1]), temperature=1.0).round(4)
        Array(0.6178, dtype=float32)
    """

    def terms(c: Comparison) -> tuple[Array, Array]:
        exponents, (positive, negative) = c.similarities / temperature, c.pairs
        others = negative if decoupled else positive | negative
        push = log_sum_exp(exponents, where=others)
        count = positive.sum(-1)
        some = (count > 0) & (push != -jnp.inf)
        pull = jnp.where(positive, exponents, 0.0).sum(-1) / jnp.maximum(count, 1)
        return jnp.where(some, push, 0.0) - pull, some

    return compare(embeddings, labels, **options).reduce_rows(reduce_fn, terms)


def against_negatives(exponents: Array, pairs: Pairs) -> tuple[Array, Array]:
    """``[B]``: the mean over positives of −log softmax against all negatives, and which anchors have a positive."""
    push = log_sum_exp(exponents, where=pairs.negative)[:, None]
    some = pairs.positive & (push != -jnp.inf)
    each = jnp.where(some, softplus(jnp.where(some, push - exponents, 0.0)), 0.0)
    count = pairs.positive.sum(-1)
    return each.sum(-1) / jnp.maximum(count, 1), count > 0


@ops.public(compare, scale=checks.positive, bias=checks.finite)
def sigmoid_contrastive_loss(
    embeddings: Array,
    labels: Array | None = None,
    *,
    scale: float | Array = 10.0,
    bias: float | Array = -10.0,
    reduce_fn: ReduceFn | None = mean,
    **options: Unpack[CompareOptions],
) -> Array:
    """Compute SigLIP: a binary question per pair, belongs together or not, without a softmax over the batch.

    Formula:
        ``reduce_i Σ_r log(1 + e^{−z_ir (t s_ir + b)})``, z = 1 for positives and −1 for negatives.

    When to use it: two towers trained from scratch or locked, also in small batches; several positives a row and
    pairs that belong to nobody are nothing special to it.

    Args:
        scale: t. It gets gradients; learn its logarithm, as the paper does.
        bias: b. It gets gradients.
        references: ``[R, D]``, what the queries are compared with; default: the batch itself, each sample excluded by
            index. With neither labels nor ``positive``, the positive of row i is reference i.
        reduce_fn: applied to the valid anchors; None gives ``[B]``: the sum over a row's references.

    Raises:
        ValueError: fewer references than rows where these are pairs.

    Implementation notes:
        For two towers it is the same in both directions.

    Paper settings:
        t = 10, b = −10 at the start, both learned: b balances the many negatives at first.

    Reference:
        Zhai, Mustafa, Kolesnikov & Beyer, *Sigmoid Loss for Language Image Pre-Training*, §3.2.

    Example:
        >>> import jax.numpy as jnp
        >>> queries, documents = jnp.eye(2), jnp.array([[0.6, 0.8], [0.0, 1.0]])
        >>> sigmoid_contrastive_loss(queries, references=documents, scale=1.0, bias=0.0).round(4)
        Array(1.3075, dtype=float32)
    """

    def terms(c: Comparison) -> Array:
        logits, (positive, negative) = scale * c.similarities + bias, c.pairs
        each = softplus(jnp.where(positive, -logits, logits))
        return jnp.where(positive | negative, each, 0.0).sum(-1)

    return compare_towers(embeddings, labels, **options).reduce_rows(reduce_fn, terms)


@ops.public(compare, scale=checks.positive)
def nca_loss(
    embeddings: Array,
    labels: Array | None = None,
    *,
    scale: float | Array = 1.0,
    reduce_fn: ReduceFn | None = mean,
    **options: Unpack[CompareOptions],
) -> Array:
    """Compute NCA: neighbourhood component analysis, the chance that a softly drawn neighbour is of the anchor's class.

    Formula:
        ``reduce_i −log( Σ_p e^{−σ d²(x_i, x_p)} / Σ_a e^{−σ d²(x_i, x_a)} )``, a over all others.

    When to use it: classes with several modes, as one near positive is enough to satisfy it; all positives are pulled
    by :func:`sup_con_loss`.

    Args:
        scale: σ, per squared distance (on the sphere ``−σ d² = 2σ s − 2σ``).
        reduce_fn: applied to the anchors that have a positive; None gives ``[B]``.

    Paper settings:
        σ = 1 on unnormalized vectors, whose scale is learned (``normalize=None``).

    Reference:
        Goldberger, Roweis, Hinton & Salakhutdinov, *Neighbourhood Components Analysis*, eq. 4, as the logarithm of its
        terms.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
        >>> nca_loss(x, jnp.array([0, 0, 1])).round(3)
        Array(0.588, dtype=float32)
    """

    def terms(c: Comparison) -> tuple[Array, Array]:
        exponents = -scale * c.squared_distances
        pull = log_sum_exp(exponents, where=c.pairs.positive)
        push = log_sum_exp(exponents, where=c.pairs.negative)
        some = c.pairs.positive.any(-1)
        both = some & (push != -jnp.inf)
        apart = jnp.where(both, push, 0.0) - jnp.where(both, pull, 0.0)  # never ∞ − ∞
        return jnp.where(both, softplus(apart), 0.0), some

    return compare(embeddings, labels, **options).reduce_rows(reduce_fn, terms)
