"""Terms that proxy losses share: hinges per sample and per class, cross entropy, soft similarities, the regularizer."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jdml.losses.assignment import Assignment
from jdml.ops import ReduceFn, log1p_sum_exp, log_sum_exp, safe_sqrt
from jdml.ops.numerics import inverse_norms, shifted_by_max

ALPHA, DELTA = 32.0, 0.1
"""α and δ of ProxyAnchor and of the losses that are made from it, unless others are given."""

GAMMA, TAU = 0.1, 0.2
"""γ and τ of SoftTriple, and of MPA, which has them from there."""

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
    positive = a.weights > 0
    log_weights = jnp.where(positive, jnp.log(jnp.where(positive, a.weights, 1.0)), 0.0)
    counted = positive & a.rows
    here = (a.here(log_weights)[:, None], a.here(counted)[:, None])

    def terms(block: Assignment) -> tuple[Array, Array]:
        values = similarity(block)
        log_weights, counted = here
        exponents = alpha * (values + delta) + log_weights
        return block.of_own(values), log_sum_exp(exponents, where=block.others & counted, axis=0)

    own, pushes = a.over_both(terms)
    push = log1p_sum_exp(pushes, where=pushes != -jnp.inf, axis=0)
    # Each valid row pulls at its own class only, so that the pull is a sum over rows, not over a matrix.
    exponents = jnp.where(counted, -alpha * (own.sum(0) - delta) + log_weights, -jnp.inf)
    segment = jnp.where(a.rows, a.batch.labels, a.classes)
    present = jnp.zeros(a.classes + 1, bool).at[segment].set(True)[: a.classes]
    pull = _log1p_segment_sum_exp(exponents, segment, a.classes)
    return pull / jnp.maximum(present.sum(), 1) + push / a.classes


def _log1p_segment_sum_exp(values: Array, segment: Array, number: int) -> Array:
    """``[number]``: log(1 + Σ exp(values)) over each segment, without entries of −inf and segments past the last."""
    masked = values != -jnp.inf
    finite = jnp.where(masked, values, 0.0)
    peak = jnp.zeros(number + 1, values.dtype).at[segment].max(jax.lax.stop_gradient(finite))
    scaled = jnp.where(masked, jnp.exp(shifted_by_max(finite, peak[segment])), 0.0)
    summed = jnp.zeros(number + 1, values.dtype).at[segment].add(scaled)
    more = summed + jnp.expm1(-peak)
    return (peak + jnp.log1p(jnp.where(more < -0.5, 0.0, more)))[:number]


def cross_entropy(
    a: Assignment,
    similarity: Similarity,
    scale: float | Array,
    penalized: Callable[[Array], Array] = lambda own: own,
) -> Array:
    """``[B]``: −log softmax of ``scale · similarity`` at each valid row's own class, there made worse; else 0."""

    def terms(block: Assignment) -> tuple[Array, Array]:
        values = similarity(block)
        return log_sum_exp(scale * values, where=block.others), block.of_own(values)

    others, own = a.over_classes(terms)
    others = over_blocks(log_sum_exp, others, a)
    # As a soft hinge: exact however small, and only others' similarities are a matrix.
    return jnp.where(a.rows, jax.nn.softplus(others - scale * penalized(own.sum(0))), 0.0)


def soft_similarities(block: Assignment, gamma: float | Array) -> Array:
    """``S(x, c)``: the similarity ``[B, C]`` to a class, averaged over its centres with weights ``softmax_k(s/γ)``."""
    return _soft_averages(block.proxy_similarities, jnp.maximum(jnp.asarray(gamma), 1e-12))


@jax.custom_jvp
def _soft_averages(values: tuple[Array, ...], gamma: Array) -> Array:
    """``Σ_k softmax_k(v/γ) v`` over K arrays ``[B, C]``."""
    return _averages(values, _soft_weights(values, gamma))[0]


@_soft_averages.defjvp
def _soft_averages_jvp(
    primals: tuple[tuple[Array, ...], Array], tangents: tuple[tuple[Array, ...], Array]
) -> tuple[Array, Array]:
    # By hand: one term per centre, from quantities that cannot overflow.
    (values, gamma), (moved, gamma_moved) = primals, tangents
    weights = _soft_weights(values, gamma)
    averages, deviations = _averages(values, weights)
    slope = jnp.zeros_like(averages)
    for weight, deviation, change in zip(weights, deviations, moved, strict=True):
        centred = deviation / gamma
        slope += weight * ((1.0 + centred) * change - centred * (centred * gamma_moved))
    return averages, slope


def _soft_weights(values: tuple[Array, ...], gamma: Array) -> list[Array]:
    if len(values) == 2:
        # The most usual number: one exponential, and one array to keep. The smaller weight is exact, the larger is what
        # it leaves; without |·|, which has no slope at ties.
        apart = (values[1] - values[0]) / gamma
        second_leads = apart > 0
        less = jax.nn.sigmoid(jnp.where(second_leads, -apart, apart))
        more = 1.0 - less
        return [jnp.where(second_leads, less, more), jnp.where(second_leads, more, less)]
    peak = functools.reduce(jnp.maximum, values)
    weights = [jnp.exp((value - peak) / gamma) for value in values]
    whole = functools.reduce(jnp.add, weights)
    return [weight / whole for weight in weights]


def _averages(values: tuple[Array, ...], weights: list[Array]) -> tuple[Array, list[Array]]:
    """The averages, and what each value is above them: from differences, exact where all are nearly equal."""
    peak = functools.reduce(jnp.maximum, values)
    below = [value - peak for value in values]
    mean = functools.reduce(jnp.add, [w * b for w, b in zip(weights, below, strict=True)])
    return peak + mean, [b - mean for b in below]


def regularize_rows(
    a: Assignment, reduce_fn: ReduceFn | None, rows: Array, tau: float | Array | None
) -> Array:
    """Weight the rows, add the regularizer to each, and reduce."""
    added = jnp.where(a.rows, regularizer(a, tau), 0.0)
    return a.finish(reduce_fn, jnp.where(a.rows, rows, 0.0) * a.weights + added, a.rows)


def regularizer(a: Assignment, tau: float | Array | None) -> float | Array:
    """τR, with R of an assignment's proxies on the sphere; 0 where τ is None."""
    if tau is None:
        return 0.0
    factors = inverse_norms(a.proxies)[..., 0]
    if a.by_class:
        return tau * a.axis.total(spread(a.proxies, factors).sum()) / a.classes
    (proxies, factors), real = a.axis.shard((a.proxies, factors))
    spreads = jnp.where(real, spread(proxies, factors), 0.0)
    return tau * a.axis.total(spreads.sum()) / a.classes


def over_blocks(log_sum: Callable[..., Array], parts: Array, a: Assignment) -> Array:
    """``[B]``: the logarithm of a sum whose parts ``[T, B]`` are logarithms; 0 for rows that are not valid."""
    summed = log_sum(parts, where=parts != -jnp.inf, axis=0)
    return jnp.where(a.rows, summed, 0.0)


def spread(centres: Array, factors: Array) -> Array:
    """``[C]``: half the mean distance between a class's centres ``[C, K, D]``, of norm 1 with factors ``[C, K]``.

    0 for K = 1.
    """
    classes, per_class, _ = centres.shape
    if per_class == 1:
        return jnp.zeros(classes, centres.dtype)
    first, second = (index.astype(np.int32) for index in np.triu_indices(per_class, k=1))
    if per_class <= 4:
        # Centre by centre: a matrix product per class is slow where the matrices are that small.
        products = jnp.stack(
            [
                jnp.sum(centres[:, s] * factors[:, s, None] * centres[:, t], axis=-1)
                for s, t in zip(first, second, strict=True)
            ],
            axis=1,
        )
        cosines = products * factors[:, second]
    else:
        unit = centres * factors[..., None]
        products = jnp.einsum("csd,ctd->cst", unit, unit, precision=jax.lax.Precision.HIGHEST)
        cosines = products[:, first, second]
    return safe_sqrt(2.0 - 2.0 * cosines).sum(-1) / (per_class * (per_class - 1))
