"""Multi-proxies anchor losses (MPA): ProxyAnchor and its data-wise siblings with several proxies per class."""

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
    data_wise,
    over_blocks,
    regularize_rows,
    regularizer,
    soft_similarities,
)
from jdml.ops import ReduceFn, checks, log1p_sum_exp, log_sum_exp, mean, total

__all__ = ["multi_proxy_anchor_ap_loss", "multi_proxy_anchor_dw_loss", "multi_proxy_anchor_loss"]

_CONSTRAINTS = {
    "alpha": checks.positive,
    "delta": checks.finite,
    "gamma": checks.positive,
    "tau": checks.optional(checks.non_negative),
}


@ops.public(assign, **_CONSTRAINTS)
def multi_proxy_anchor_loss(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    alpha: float | Array = ALPHA,
    delta: float | Array = DELTA,
    gamma: float | Array = GAMMA,
    tau: float | Array | None = TAU,
    reduce_fn: ReduceFn | None = total,
    **options: Unpack[AssignOptions],
) -> Array:
    """Compute MPA: ProxyAnchor over soft similarities to the several proxies of a class.

    Formula:
        ``(1/|C⁺|) Σ_{c∈C⁺} log(1 + Σ_{y=c} e^{−α(S−δ)}) + (1/|C|) Σ_c log(1 + Σ_{y≠c} e^{α(S+δ)}) + τR`` with
        ``S(x, c) = Σ_k softmax_k(x·p_ck/γ) x·p_ck``; C⁺ are the classes in the batch, C is all classes, R is
        :func:`center_regularizer`.

    Args:
        proxies: ``[C, K, D]`` (``[C, D]`` for K = 1).
        alpha: α, sharpness.
        delta: δ, margin, a cosine.
        gamma: γ, temperature over the proxies of a class.
        tau: τ, weight of the regularizer; None: without it.
        weights: ``[B]``: the exponentials of each sample are multiplied by its weight.
        reduce_fn: applied to one term per class, of which the loss is the sum; None gives ``[C]``.

    Implementation notes:
        Each class's term carries its share ``τR/|C|`` of the regularizer. With K = 1 this is
        :func:`jdml.proxy_anchor_loss`, whose weights it has. Without a valid row the loss is 0.

    Paper settings:
        γ = .1, τ = .2, δ = .1; α is not printed, 32 is ProxyAnchor's. K = 10 (CUB, Cars196) or 2 (SOP); proxies'
        learning rate ×100.

    Reference:
        Saeki, Kawahara & Aman, *Multi Proxy Anchor Family Loss for Several Types of Gradients*, the class-wise loss.

    Example:
        >>> import jax.numpy as jnp
        >>> x, p = jnp.array([[0.6, 0.8]]), jnp.eye(2)
        >>> multi_proxy_anchor_loss(x, jnp.array([1]), p, alpha=1.0, reduce_fn=None).round(4)
        Array([0.5516, 0.4032], dtype=float32)
    """
    a = assign(embeddings, labels, proxies, **options)
    terms = class_wise(a, lambda block: soft_similarities(block, gamma), alpha, delta)
    terms = terms + regularizer(a, tau) / a.classes
    return a.finish_classes(reduce_fn, terms)


@ops.public(assign, **_CONSTRAINTS)
def multi_proxy_anchor_dw_loss(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    alpha: float | Array = ALPHA,
    delta: float | Array = DELTA,
    gamma: float | Array = GAMMA,
    tau: float | Array | None = TAU,
    reduce_fn: ReduceFn | None = mean,
    **options: Unpack[AssignOptions],
) -> Array:
    """Compute MPA-DW: the data-wise multi-proxies anchor loss, one pull and one push per sample.

    Formula:
        ``reduce_i [ log(1 + e^{−α(S(x_i, y_i) − δ)}) + log(1 + Σ_{c≠y_i} e^{α(S(x_i, c) + δ)}) + τR ]`` with S and R of
        :func:`multi_proxy_anchor_loss`.

    Args:
        proxies: ``[C, K, D]`` (``[C, D]`` for K = 1).
        alpha: α, sharpness.
        delta: δ, margin, a cosine.
        gamma: γ, temperature over the proxies of a class.
        tau: τ, weight of the regularizer; None: without it.

    Implementation notes:
        With K = 1 this is ProxyNCA*. τR is added to every row; weights do not touch it.

    Paper settings:
        As :func:`multi_proxy_anchor_loss`.

    Reference:
        Saeki, Kawahara & Aman, *Multi Proxy Anchor Family Loss for Several Types of Gradients*, the data-wise loss.

    Example:
        >>> import jax.numpy as jnp
        >>> x, p = jnp.array([[0.6, 0.8]]), jnp.eye(2)
        >>> multi_proxy_anchor_dw_loss(x, jnp.array([1]), p, alpha=1.0).round(4)
        Array(1.5064, dtype=float32)
    """
    a = assign(embeddings, labels, proxies, **options)
    rows = data_wise(a, lambda block: soft_similarities(block, gamma), alpha, delta)
    return regularize_rows(a, reduce_fn, rows, tau)


@ops.public(assign, **_CONSTRAINTS)
def multi_proxy_anchor_ap_loss(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    alpha: float | Array = ALPHA,
    delta: float | Array = DELTA,
    gamma: float | Array = GAMMA,
    tau: float | Array | None = TAU,
    reduce_fn: ReduceFn | None = mean,
    **options: Unpack[AssignOptions],
) -> Array:
    """Compute MPA-AP: the all-pairs multi-proxies anchor loss, pull and push of a sample in one logarithm.

    Formula:
        ``reduce_i [ log(1 + Σ_c e^{α S′(x_i, c)}) + τR ]``, ``S′ = δ − S`` at the own class, ``S + δ`` elsewhere; S
        and R as in :func:`multi_proxy_anchor_loss`.

    Args:
        proxies: ``[C, K, D]`` (``[C, D]`` for K = 1).
        alpha: α, sharpness.
        delta: δ, margin, a cosine.
        gamma: γ, temperature over the proxies of a class.
        tau: τ, weight of the regularizer; None: without it.

    Implementation notes:
        τR is added to every row; weights do not touch it.

    Paper settings:
        As :func:`multi_proxy_anchor_loss`.

    Reference:
        Saeki, Kawahara & Aman, *Multi Proxy Anchor Family Loss for Several Types of Gradients*, the all-pairs loss.

    Example:
        >>> import jax.numpy as jnp
        >>> x, p = jnp.array([[0.6, 0.8]]), jnp.eye(2)
        >>> multi_proxy_anchor_ap_loss(x, jnp.array([1]), p, alpha=1.0).round(4)
        Array(1.2557, dtype=float32)
    """
    a = assign(embeddings, labels, proxies, **options)

    def terms(block: Assignment) -> Array:
        similarities = soft_similarities(block, gamma)
        signed = delta + jnp.where(block.own, -similarities, similarities)
        return log_sum_exp(alpha * signed, where=block.real)

    rows = over_blocks(log1p_sum_exp, a.over_classes(terms), a)
    return regularize_rows(a, reduce_fn, rows, tau)
