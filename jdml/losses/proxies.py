"""Losses that compare embeddings with learned proxies of their classes."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jdml import ops
from jdml.losses.assignment import Assignment, assign
from jdml.ops import ReduceFn, checks, log1p_sum_exp, log_sum_exp, mean, safe_sqrt, sphere, total


@ops.public(assign, scale=checks.positive)
def proxy_nca_loss(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    scale: float | Array = 1.0,
    reduce_fn: ReduceFn | None = mean,
    **options: Any,
) -> Array:
    """ProxyNCA: neighbourhood component analysis on proxies, the true class left out of the denominator.

    Formula:
        ``reduce_i −log( e^{−σ d²(x_i, p_y)} / Σ_{c≠y} e^{−σ d²(x_i, p_c)} )``

    Args:
        embeddings: ``[B, D]``.
        labels: ``[B]`` integers in 0…C−1.
        proxies: ``[C, D]``, or ``[C, K, D]``: the nearest of a class's proxies stands for it.
        scale: σ, per squared distance (on the sphere ``−σ d² = 2σ s − 2σ``, so ½ gives plain cosines).
        **options: see :func:`jdml.losses.assign`.
        reduce_fn: applied to the valid rows; None gives ``[B]``.

    Returns:
        A scalar, or ``[B]``. It may be negative.

    Raises:
        TypeError: arguments of the wrong kind.
        ValueError: shapes that do not fit, a scale that is not positive.

    Implementation notes:
        With one class there is nothing to compare with, and the loss is 0.

    Paper settings:
        The well-known reimplementation scales embeddings and proxies to norm 3: σ = 9.

    Reference:
        Movshovitz-Attias, Toshev, Leung, Ioffe & Singh, *No Fuss Distance Metric Learning Using Proxies*, eq. 4.

    Example:
        >>> import jax.numpy as jnp
        >>> proxy_nca_loss(jnp.array([[1.0, 0.0]]), jnp.array([0]), jnp.eye(2))
        Array(-2., dtype=float32)
    """
    a = assign(embeddings, labels, proxies, **options)
    if a.classes == 1:
        return a.reduce_rows(reduce_fn, jnp.zeros_like(a.weights), where=jnp.zeros_like(a.rows))

    def terms(block: Assignment) -> tuple[Array, Array]:
        logits = -scale * block.squared_distances
        return log_sum_exp(logits, where=block.others), block.of_own(logits)

    others, own = a.over_classes(terms)
    return a.reduce_rows(reduce_fn, over_blocks(log_sum_exp, others, a) - own.sum(0))


@ops.public(assign, temperature=checks.positive)
def proxy_nca_pp_loss(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    temperature: float | Array = 1 / 9,
    reduce_fn: ReduceFn | None = mean,
    **options: Any,
) -> Array:
    """ProxyNCA++: a softmax over negative squared distances, the true class in the denominator.

    Formula:
        ``reduce_i −log( e^{−d²(x_i, p_y)/T} / Σ_c e^{−d²(x_i, p_c)/T} )``

    Args:
        embeddings: ``[B, D]``.
        labels: ``[B]`` integers in 0…C−1.
        proxies: ``[C, D]``, or ``[C, K, D]``: the nearest of a class's proxies stands for it.
        temperature: T, a squared distance.
        **options: see :func:`jdml.losses.assign`.
        reduce_fn: applied to the valid rows; None gives ``[B]``.

    Returns:
        A scalar, or ``[B]``.

    Raises:
        TypeError: arguments of the wrong kind.
        ValueError: shapes that do not fit, a temperature that is not positive.

    Paper settings:
        T = 1/9 (the released program scales both sides to norm 3). CCP's reading, cosines over .1, is half as sharp:
        T = .2.

    Reference:
        Teh, DeVries & Taylor, *ProxyNCA++: Revisiting and Revitalizing Proxy Neighborhood Component Analysis*, eq. 6.

    Example:
        >>> import jax.numpy as jnp
        >>> proxy_nca_pp_loss(jnp.array([[1.0, 0.0]]), jnp.array([0]), jnp.eye(2), temperature=2.0).round(4)
        Array(0.3133, dtype=float32)
    """
    a = assign(embeddings, labels, proxies, **options)
    return a.reduce_rows(
        reduce_fn, cross_entropy(a, lambda block: -block.squared_distances / temperature)
    )


@ops.public(assign, alpha=checks.positive, delta=checks.finite)
def proxy_nca_margin_loss(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    alpha: float | Array = 32.0,
    delta: float | Array = 0.1,
    reduce_fn: ReduceFn | None = mean,
    **options: Any,
) -> Array:
    """ProxyNCA*: ProxyNCA with the margin and the two soft hinges of ProxyAnchor, per sample.

    Formula:
        ``reduce_i [ log(1 + e^{−α(s(x_i, p_y) − δ)}) + log(1 + Σ_{c≠y} e^{α(s(x_i, p_c) + δ)}) ]``

    Args:
        embeddings: ``[B, D]``.
        labels: ``[B]`` integers in 0…C−1.
        proxies: ``[C, D]``, or ``[C, K, D]``: the nearest of a class's proxies stands for it.
        alpha: α, sharpness.
        delta: δ, margin, a cosine.
        **options: see :func:`jdml.losses.assign`.
        reduce_fn: applied to the valid rows; None gives ``[B]``.

    Returns:
        A scalar, or ``[B]``.

    Raises:
        TypeError: arguments of the wrong kind.
        ValueError: shapes that do not fit, α not positive.

    Implementation notes:
        The formula as printed: NIR's released program multiplies the first exponential by the number of samples of the
        class in the batch.

    Paper settings:
        α = 32, δ = .1.

    Reference:
        Roth, Vinyals & Akata, *Non-isotropy Regularization for Proxy-based Deep Metric Learning*, eq. 6.

    Example:
        >>> import jax.numpy as jnp
        >>> x, p = jnp.array([[0.6, 0.8]]), jnp.eye(2)
        >>> proxy_nca_margin_loss(x, jnp.array([1]), p, alpha=1.0).round(4)
        Array(1.5064, dtype=float32)
    """
    a = assign(embeddings, labels, proxies, **options)
    return a.reduce_rows(reduce_fn, data_wise(a, lambda block: block.similarities, alpha, delta))


@ops.public(assign, alpha=checks.positive, delta=checks.finite)
def proxy_anchor_loss(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    alpha: float | Array = 32.0,
    delta: float | Array = 0.1,
    reduce_fn: ReduceFn | None = total,
    **options: Any,
) -> Array:
    """ProxyAnchor: every proxy is an anchor that pulls its class and pushes all others.

    Formula:
        ``(1/|P⁺|) Σ_{p∈P⁺} log(1 + Σ_{y=p} e^{−α(s−δ)}) + (1/|P|) Σ_p log(1 + Σ_{y≠p} e^{α(s+δ)})``; P⁺ are the classes
        in the batch, P is all classes.

    Args:
        embeddings: ``[B, D]``.
        labels: ``[B]`` integers in 0…C−1.
        proxies: ``[C, D]``, or ``[C, K, D]``: the nearest of a class's proxies stands for it.
        alpha: α, sharpness.
        delta: δ, margin, a cosine.
        **options: see :func:`jdml.losses.assign`. Weights multiply the exponentials of a sample.
        reduce_fn: applied to one term per class, of which the loss is the sum; None gives ``[C]``.

    Returns:
        A scalar, or ``[C]``.

    Raises:
        TypeError: arguments of the wrong kind.
        ValueError: shapes that do not fit, α not positive.

    Implementation notes:
        The division by |P⁺| and |P| is part of the terms, so the default reduction is the sum. Without a valid row the
        loss is 0. A weight of 0 takes a sample out of the sums (its class still counts in P⁺), a weight of 2 counts it
        twice.

    Paper settings:
        α = 32, δ = .1; proxies' learning rate ×100.

    Reference:
        Kim, Kim, Cho & Kwak, *Proxy Anchor Loss for Deep Metric Learning*, eq. 4.

    Example:
        >>> import jax.numpy as jnp
        >>> x, p = jnp.array([[0.6, 0.8]]), jnp.eye(2)
        >>> proxy_anchor_loss(x, jnp.array([1]), p, alpha=1.0, reduce_fn=None).round(4)
        Array([0.5516, 0.4032], dtype=float32)
    """
    a = assign(embeddings, labels, proxies, **options)
    terms = class_wise(a, lambda block: block.similarities, alpha, delta)
    return ops.reduce_terms(reduce_fn, terms, jnp.broadcast_to(a.rows.any(), terms.shape))


@ops.public(
    assign,
    scale=checks.positive,
    gamma=checks.positive,
    margin=checks.finite,
    tau=checks.non_negative,
)
def soft_triple_loss(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    scale: float | Array = 20.0,
    gamma: float | Array = 0.1,
    margin: float | Array = 0.01,
    tau: float | Array = 0.2,
    reduce_fn: ReduceFn | None = mean,
    **options: Any,
) -> Array:
    """SoftTriple: a softmax loss with several softly chosen centres per class.

    Formula:
        ``S(x, c) = Σ_k softmax_k(x·p_ck/γ) x·p_ck``;
        ``reduce_i [ −log softmax_y λ(S(x_i, c) − δ·1[c = y]) + τ R ]`` with R of :func:`center_regularizer`.

    Args:
        embeddings: ``[B, D]``.
        labels: ``[B]`` integers in 0…C−1.
        proxies: ``[C, K, D]`` centres (``[C, D]`` for K = 1).
        scale: λ, inverse temperature over classes.
        gamma: γ, temperature over the centres of a class.
        margin: δ, a cosine.
        tau: τ, weight of the regularizer.
        **options: see :func:`jdml.losses.assign`.
        reduce_fn: applied to the valid rows; None gives ``[B]``.

    Returns:
        A scalar, or ``[B]``.

    Raises:
        TypeError: arguments of the wrong kind.
        ValueError: shapes that do not fit, λ or γ not positive, τ negative.

    Implementation notes:
        τR is added to every row, so that the mean over the rows is the paper's loss. Weights do not touch it, and it is
        always taken on the sphere.

    Paper settings:
        (λ, γ, τ, δ): CUB and In-shop (20, .1, .2, .01), with 10 centres. The values that CCP prints for Cars196 and
        SOP are those of a reference in which γ multiplies differently.

    Reference:
        Qian, Shang, Sun, Hu, Li & Jin, *SoftTriple Loss: Deep Metric Learning Without Triplet Sampling*, eq. 6 and 10.

    Example:
        >>> import jax.numpy as jnp
        >>> p = jnp.array([[[1.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [0.0, -1.0]]])
        >>> soft_triple_loss(jnp.array([[1.0, 0.0]]), jnp.array([0]), p, scale=1.0, tau=0.0).round(4)
        Array(0.316, dtype=float32)
    """
    a = assign(embeddings, labels, proxies, **options)
    rows = cross_entropy(
        a, lambda block: scale * (soft_similarities(block, gamma) - margin * block.own)
    )
    return regularize_rows(a, reduce_fn, rows, tau)


@ops.public()
def center_regularizer(proxies: Array) -> Array:
    """SoftTriple's regularizer: the centres of a class are drawn together, so that superfluous ones merge.

    Formula:
        ``R = Σ_c Σ_{t<s} √(2 − 2 p_cs·p_ct) / (C K (K−1))``, half the mean distance between a class's centres.

    Args:
        proxies: ``[C, K, D]``, normalized inside.

    Returns:
        A scalar; 0 for K = 1.

    Raises:
        TypeError: not a floating array.
        ValueError: another rank.

    Implementation notes:
        Where two centres coincide, their gradient is 0 (the released program adds 1e-5 inside the root instead).

    Reference:
        Qian et al., *SoftTriple Loss*, eq. 9.

    Example:
        >>> import jax.numpy as jnp
        >>> center_regularizer(jnp.array([[[1.0, 0.0], [-1.0, 0.0]]]))
        Array(1., dtype=float32)
    """
    centres = checks.as_centres("proxies", proxies)
    return _spread(sphere(centres.astype(jnp.result_type(centres.dtype, jnp.float32))))


Similarity = Callable[[Assignment], Array]
"""``[B, C]`` from an assignment: how alike embeddings and classes are."""


def data_wise(
    a: Assignment, similarity: Similarity, alpha: float | Array, delta: float | Array
) -> Array:
    """``[B]``: one soft hinge on each sample's similarity to its own class and one on those to all others."""

    def terms(block: Assignment) -> tuple[Array, Array]:
        values = similarity(block)
        push = log_sum_exp(alpha * (values + delta), where=block.others)
        return push, block.of_own(values)

    push, own = a.over_classes(terms)
    pull = jax.nn.softplus(-alpha * (own.sum(0) - delta))
    return jnp.where(a.rows, pull, 0.0) + over_blocks(log1p_sum_exp, push, a)


def class_wise(
    a: Assignment, similarity: Similarity, alpha: float | Array, delta: float | Array
) -> Array:
    """``[C]``: the same two soft hinges on each class's similarities to its own samples and to all others."""
    log_weights, counted = _log_weights(a)

    def terms(block: Assignment) -> tuple[Array, Array]:
        values = similarity(block)
        exponents = alpha * (values + delta) + log_weights[:, None]
        push = log1p_sum_exp(exponents, where=block.others & counted[:, None], axis=0)
        return push, block.of_own(values)

    push, own = a.over_classes(terms)
    # Each valid row pulls at its own class only, so that the pull is a sum over rows, not over a matrix.
    exponents = jnp.where(counted, -alpha * (own.sum(0) - delta) + log_weights, -jnp.inf)
    segment = jnp.where(a.rows, a.labels, a.classes)
    present = jnp.zeros(a.classes + 1, bool).at[segment].set(True)[: a.classes]
    pull = _log1p_segment_sum_exp(exponents, segment, a.classes)
    return pull / jnp.maximum(present.sum(), 1) + push.reshape(-1)[: a.classes] / a.classes


def _log1p_segment_sum_exp(values: Array, segment: Array, number: int) -> Array:
    """``[number]``: log(1 + Σ exp(values)) over each segment, without entries of −inf and segments past the last."""
    kept = values > -jnp.inf
    finite = jnp.where(kept, values, 0.0)
    peak = jnp.zeros(number + 1, values.dtype).at[segment].max(jax.lax.stop_gradient(finite))
    scaled = jnp.where(kept, jnp.exp(finite - peak[segment]), 0.0)
    summed = jnp.zeros(number + 1, values.dtype).at[segment].add(scaled)
    return (peak + jnp.log1p(summed + jnp.expm1(-peak)))[:number]


def cross_entropy(a: Assignment, logits: Similarity) -> Array:
    """``[B]``: −log softmax of each valid row at its own class; 0 for the others."""

    def terms(block: Assignment) -> tuple[Array, Array]:
        values = logits(block)
        return log_sum_exp(values, where=block.real), block.of_own(values)

    every, own = a.over_classes(terms)
    return over_blocks(log_sum_exp, every, a) - own.sum(0)


def soft_similarities(block: Assignment, gamma: float | Array) -> Array:
    """``S(x, c)``: the similarity ``[B, C]`` to a class, averaged over its centres with weights ``softmax_k(s/γ)``."""
    return _soft_averages(block.proxy_similarities, jnp.maximum(jnp.asarray(gamma), 1e-12))


@jax.custom_jvp
def _soft_averages(values: tuple[Array, ...], gamma: Array) -> Array:
    """``Σ_k softmax_k(v/γ) v`` over K arrays ``[B, C]``."""
    return _averages(values, _soft_weights(values, gamma))


@_soft_averages.defjvp
def _soft_averages_jvp(
    primals: tuple[tuple[Array, ...], Array], tangents: tuple[tuple[Array, ...], Array]
) -> tuple[Array, Array]:
    # By hand: one term per centre, from quantities that cannot overflow.
    (values, gamma), (moved, gamma_moved) = primals, tangents
    weights = _soft_weights(values, gamma)
    averages = _averages(values, weights)
    slope = jnp.zeros_like(averages)
    for weight, value, change in zip(weights, values, moved, strict=True):
        centred = (value - averages) / gamma
        slope += weight * ((1.0 + centred) * change - centred * (centred * gamma_moved))
    return averages, slope


def _soft_weights(values: tuple[Array, ...], gamma: Array) -> list[Array]:
    peak = functools.reduce(jnp.maximum, values)
    weights = [jnp.exp((value - peak) / gamma) for value in values]
    whole = functools.reduce(jnp.add, weights)
    return [weight / whole for weight in weights]


def _averages(values: tuple[Array, ...], weights: list[Array]) -> Array:
    weighted = [weight * value for weight, value in zip(weights, values, strict=True)]
    return functools.reduce(jnp.add, weighted)


def regularize_rows(
    a: Assignment, reduce_fn: ReduceFn | None, rows: Array, tau: float | Array
) -> Array:
    """Weight the rows, add the regularizer to each, and reduce."""
    spread = jnp.where(a.rows, tau * spread_of(a), 0.0)
    return ops.reduce_terms(reduce_fn, jnp.where(a.rows, rows, 0.0) * a.weights + spread, a.rows)


def spread_of(a: Assignment) -> Array:
    """The regularizer R of an assignment's proxies, on the sphere."""
    return _spread(a.proxies if a.on_sphere else sphere(a.proxies))


def over_blocks(log_sum: Callable[..., Array], parts: Array, a: Assignment) -> Array:
    """``[B]``: the logarithm of a sum whose parts ``[T, B]`` are logarithms; 0 for rows that are not valid."""
    summed = log_sum(parts, where=parts > -jnp.inf, axis=0)
    return jnp.where(a.rows, summed, 0.0)


def _spread(centres: Array) -> Array:
    classes, per_class, _ = centres.shape
    if per_class == 1:
        return jnp.zeros((), centres.dtype)
    if per_class <= 4:
        # Centre by centre: a matrix product per class is slow where the matrices are that small.
        cosines = jnp.concatenate(
            [jnp.sum(centres[:, k:] * centres[:, :-k], axis=-1) for k in range(1, per_class)],
            axis=1,
        )
    else:
        products = jnp.einsum("csd,ctd->cst", centres, centres, precision=jax.lax.Precision.HIGHEST)
        cosines = products[:, *np.triu_indices(per_class, k=1)]
    distances = safe_sqrt(2.0 - 2.0 * cosines)
    return jnp.sum(distances) / (classes * per_class * (per_class - 1))


def _log_weights(a: Assignment) -> tuple[Array, Array]:
    """Log-weights ``[B]``, and which rows are valid and have a weight above 0."""
    positive = a.weights > 0
    return jnp.where(positive, jnp.log(jnp.where(positive, a.weights, 1.0)), 0.0), positive & a.rows
