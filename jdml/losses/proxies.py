"""Losses that compare embeddings with learned proxies of their classes."""

from typing import Unpack

import jax.numpy as jnp
from jax import Array

from jdml import ops
from jdml.losses.assignment import Assignment, AssignOptions, assign
from jdml.losses.terms import (
    ALPHA,
    DELTA,
    GAMMA,
    TAU,
    class_wise,
    cross_entropy,
    data_wise,
    over_blocks,
    regularize_rows,
    soft_similarities,
    spread,
)
from jdml.ops import ReduceFn, checks, log_sum_exp, mean, total
from jdml.ops.numerics import accumulate_in, inverse_norms, upcast

__all__ = [
    "center_regularizer",
    "proxy_anchor_loss",
    "proxy_nca_loss",
    "proxy_nca_margin_loss",
    "proxy_nca_pp_loss",
    "soft_triple_loss",
]


@ops.public(assign, scale=checks.positive)
def proxy_nca_loss(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    scale: float | Array = 1.0,
    reduce_fn: ReduceFn | None = mean,
    **options: Unpack[AssignOptions],
) -> Array:
    """Compute ProxyNCA: neighbourhood component analysis on proxies, the true class left out of the denominator.

    Formula:
        ``reduce_i −log( e^{−σ d²(x_i, p_y)} / Σ_{c≠y} e^{−σ d²(x_i, p_c)} )``

    Args:
        scale: σ, per squared distance (on the sphere ``−σ d² = 2σ s − 2σ``, so ½ gives plain cosines).

    Returns:
        A scalar, or ``[B]``. It may be negative.

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
    **options: Unpack[AssignOptions],
) -> Array:
    """Compute ProxyNCA++: a softmax over negative squared distances, the true class in the denominator.

    Formula:
        ``reduce_i −log( e^{−d²(x_i, p_y)/T} / Σ_c e^{−d²(x_i, p_c)/T} )``

    Args:
        temperature: T, a squared distance.

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
    rows = cross_entropy(a, lambda block: -block.squared_distances, 1.0 / jnp.asarray(temperature))
    return a.reduce_rows(reduce_fn, rows)


@ops.public(assign, alpha=checks.positive, delta=checks.finite)
def proxy_nca_margin_loss(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    alpha: float | Array = ALPHA,
    delta: float | Array = DELTA,
    reduce_fn: ReduceFn | None = mean,
    **options: Unpack[AssignOptions],
) -> Array:
    """Compute ProxyNCA*: ProxyNCA with the margin and the two soft hinges of ProxyAnchor, per sample.

    Formula:
        ``reduce_i [ log(1 + e^{−α(s(x_i, p_y) − δ)}) + log(1 + Σ_{c≠y} e^{α(s(x_i, p_c) + δ)}) ]``

    Args:
        alpha: α, sharpness.
        delta: δ, margin, a cosine.

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
    alpha: float | Array = ALPHA,
    delta: float | Array = DELTA,
    reduce_fn: ReduceFn | None = total,
    **options: Unpack[AssignOptions],
) -> Array:
    """Compute ProxyAnchor: every proxy is an anchor that pulls its class and pushes all others.

    Formula:
        ``(1/|P⁺|) Σ_{p∈P⁺} log(1 + Σ_{y=p} e^{−α(s−δ)}) + (1/|P|) Σ_p log(1 + Σ_{y≠p} e^{α(s+δ)})``; P⁺ are the classes
        in the batch, P is all classes.

    Args:
        alpha: α, sharpness.
        delta: δ, margin, a cosine.
        weights: ``[B]``: the exponentials of each sample are multiplied by its weight.
        reduce_fn: applied to one term per class, of which the loss is the sum; None gives ``[C]``.

    Implementation notes:
        Without a valid row the loss is 0. A weight of 0 (or less) takes a sample out of the sums (its class still
        counts in P⁺), a weight of 2 counts it twice.

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
    return a.finish_classes(reduce_fn, terms)


@ops.public(
    assign,
    scale=checks.positive,
    gamma=checks.positive,
    margin=checks.finite,
    tau=checks.optional(checks.non_negative),
)
def soft_triple_loss(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    scale: float | Array = 20.0,
    gamma: float | Array = GAMMA,
    margin: float | Array = 0.01,
    tau: float | Array | None = TAU,
    reduce_fn: ReduceFn | None = mean,
    **options: Unpack[AssignOptions],
) -> Array:
    """Compute SoftTriple: a softmax loss with several softly chosen centres per class.

    Formula:
        ``S(x, c) = Σ_k softmax_k(x·p_ck/γ) x·p_ck``;
        ``reduce_i [ −log softmax_y λ(S(x_i, c) − δ·1[c = y]) + τ R ]`` with R of :func:`center_regularizer`.

    Args:
        proxies: ``[C, K, D]`` centres (``[C, D]`` for K = 1).
        scale: λ, inverse temperature over classes.
        gamma: γ, temperature over the centres of a class.
        margin: δ, a cosine.
        tau: τ, weight of the regularizer; None: without it, which is faster than 0.

    Implementation notes:
        τR is added to every row; weights do not touch it, and it is always taken on the sphere. MPA's eq. 4, the *sum*
        over the rows and τR once, is
        ``soft_triple_loss(x, y, p, tau=None, reduce_fn=jdml.total) + tau * center_regularizer(p)``.

    Paper settings:
        (λ, γ, τ, δ): CUB and In-shop (20, .1, .2, .01), with 10 centres. CCP prints (17.69, 19.18, .0669, .3588)
        for Cars196 and (100, 47.9, .2, .3145) for SOP; γ divides in its program, too, so that the softmax over the
        centres is nearly their mean. ``learned={"gamma": 0.1}`` learns γ from the paper's.

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
        a, lambda block: soft_similarities(block, gamma), scale, lambda own: own - margin
    )
    return regularize_rows(a, reduce_fn, rows, tau)


@ops.public()
def center_regularizer(proxies: Array) -> Array:
    """Compute SoftTriple's regularizer: the centres of a class are drawn together, so that superfluous ones merge.

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
    checks.require_finite("proxies", centres)
    centres = upcast(centres, accumulate_in(centres))
    return spread(centres, inverse_norms(centres)[..., 0]).mean()
