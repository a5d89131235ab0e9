"""Square roots, norms, normalization and logarithms of sums whose values and gradients stay finite."""

import functools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jdml.ops.chunking import by_platform

SHARPEST = 2.0**100
"""About 1e30: scales beyond it, and temperatures below its inverse, count as these. Their products stay finite."""
SQUARABLE = 2.0**50
"""About 1e15: the same of what is squared."""
LOUD = 2.0**20
"""Exponents beyond it are rounded by more than a tenth."""


def accumulate_in(*arrays: Array) -> jnp.dtype:
    """Return the type to compute in: float32, or float64 where an input is float64."""
    is_double = any(a.dtype == jnp.float64 for a in arrays)  # floats of 8 bits promote to nothing
    return jnp.result_type(jnp.float64 if is_double else jnp.float32)


def upcast(values: Array, dtype: jnp.dtype) -> Array:
    """Return values in a wider type, with a gradient that is clipped to what float16 can hold."""
    if values.dtype != jnp.float16:
        return values.astype(dtype)
    largest = float(jnp.finfo(values.dtype).max)

    @jax.custom_vjp
    def as_wide(narrow: Array) -> Array:
        return narrow.astype(dtype)

    def cut(_: None, cotangent: Array) -> tuple[Array]:
        return (jnp.clip(cotangent, -largest, largest).astype(values.dtype),)

    # Not `as_wide` again: its gradient can be differentiated forwards.
    as_wide.defvjp(lambda narrow: (narrow.astype(dtype), None), cut)
    return as_wide(values)


def bounded(value: float | Array, *, least: float = -SHARPEST, most: float = SHARPEST) -> Array:
    """Return a hyper-parameter clipped to what floats can be multiplied by; one of 16 bits becomes float32."""
    value = jnp.asarray(value)
    if not jnp.issubdtype(value.dtype, jnp.floating):
        return value
    wide = value if value.dtype.itemsize >= 4 else value.astype(jnp.float32)
    return jnp.clip(wide, least, most)


@jax.custom_jvp
def safe_sqrt(values: Array) -> Array:
    """Take a square root that is 0, with gradient 0, where its argument is not positive.

    Args:
        values: any shape.

    Returns:
        ``√max(values, 0)``, same shape; NaN stays NaN.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> jax.grad(lambda v: safe_sqrt(v).sum())(jnp.array([0.0, 4.0]))
        Array([0.  , 0.25], dtype=float32)
    """
    return jnp.sqrt(jnp.where(values <= 0, 0.0, values))


@safe_sqrt.defjvp
def _safe_sqrt_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # By the root alone: the values need not be kept.
    root = safe_sqrt(*primals)
    flat = root == 0
    return root, jnp.where(flat, 0.0, tangents[0] / (2.0 * jnp.where(flat, 1.0, root)))


def safe_norm(vectors: Array, *, axis: int = -1) -> Array:
    """Compute the Euclidean norm, with gradient 0 at the zero vector and no square that over- or underflows.

    Args:
        vectors: ``[..., D]``.
        axis: the axis that is summed over; it stays, with length 1.

    Returns:
        ``[..., 1]``.

    Example:
        >>> import jax.numpy as jnp
        >>> safe_norm(jnp.array([3e25, 4e25]))
        Array([5.e+25], dtype=float32)
    """
    scale = max_abs_scale(vectors, axis=axis)
    scale = jnp.where(scale > 0, scale, 1.0)
    return scale * safe_sqrt(jnp.sum(jnp.square(vectors / scale), axis=axis, keepdims=True))


def max_abs_scale(vectors: Array, *, axis: int = -1) -> Array:
    """An eighth of the largest absolute entry, without gradient: a scale by which vectors can be divided.

    Compilers divide by multiplying with the reciprocal, and that of the largest floats themselves underflows.
    """
    largest = jnp.max(jnp.abs(vectors), axis=axis, keepdims=True, initial=0.0)
    return jax.lax.stop_gradient(largest) / 8.0


def log_sum_exp(values: Array, *, where: Array | None = None, axis: int = -1) -> Array:
    """Compute ``log Σ exp(values)``, stably, over what ``where`` keeps; ``-inf`` (gradient 0) where it keeps none.

    Args:
        values: any shape.
        where: boolean, broadcastable to ``values``; None keeps all.
        axis: the axis that is summed over.

    Returns:
        ``values`` without ``axis``.

    Example:
        >>> import jax.numpy as jnp
        >>> v = jnp.array([[1000.0, 1000.0, 5.0]])
        >>> log_sum_exp(v, where=jnp.array([[True, True, False]])).round(2)
        Array([1000.69], dtype=float32)
    """
    return _log_sum(values, where, axis, extra=-jnp.inf)


def log1p_sum_exp(values: Array, *, where: Array | None = None, axis: int = -1) -> Array:
    """Compute ``log(1 + Σ exp(values))``, stably, over what ``where`` keeps; 0 (gradient 0) where it keeps none.

    Args:
        values: any shape.
        where: boolean, broadcastable to ``values``; None keeps all.
        axis: the axis that is summed over.

    Returns:
        ``values`` without ``axis``.

    Example:
        >>> import jax.numpy as jnp
        >>> log1p_sum_exp(jnp.array([-2.0, 0.0, 100.0]), where=jnp.array([False, True, False]))
        Array(0.6931472, dtype=float32)
    """
    return _log_sum(values, where, axis, extra=0.0)


def _log_sum(values: Array, where: Array | None, axis: int, extra: float) -> Array:
    """``log(exp(extra) + Σ exp(values))`` over what is kept."""
    masked = _masked(values, where, -jnp.inf)
    # Elsewhere masked anew for all that is computed from the values: they would be kept with the mask and without.
    values, where = by_platform((masked, None), (values, where))
    highest = jnp.max(jax.lax.stop_gradient(masked), axis=axis, keepdims=True, initial=extra)
    finite = jnp.isfinite(highest)  # what is infinite stays so, ∞ − ∞ would not
    peak = jnp.where(finite, highest, 0.0)
    logarithm = peak + _log1p_sum(values, where, peak, jnp.expm1(extra - peak), axis)
    return jnp.squeeze(jnp.where(finite, logarithm, highest), axis)


def _masked(values: Array, where: Array | None, others: float) -> Array:
    return values if where is None else jnp.where(where, values, others)


@functools.partial(jax.custom_jvp, nondiff_argnums=(4,))
def _log1p_sum(values: Array, where: Array | None, peak: Array, more: Array, axis: int) -> Array:
    """``log(1 + more + Σ exp(values − peak))``; peak and more have no gradient. The axis stays, with length 1."""
    below = _masked(shifted_by_max(values, peak), where, -jnp.inf)
    more += jnp.sum(jnp.exp(below), axis=axis, keepdims=True)
    return jnp.log1p(jnp.where(more < -0.5, 0.0, more))  # not below 0, but for rounding


@_log1p_sum.defjvp
def _log1p_sum_jvp(
    axis: int,
    primals: tuple[Array, Array | None, Array, Array],
    tangents: tuple[Array, Any, Any, Any],
) -> tuple[Array, Array]:
    (values, where, peak, more), (moved, *_) = primals, tangents
    logarithm = _log1p_sum(values, where, peak, more, axis)
    below = _masked(shifted_by_max(values, peak), where, -jnp.inf)
    # Elsewhere exponentials of their own: those of the sum would be kept, a matrix, until the gradient needs them.
    shares = by_platform(
        lambda: jnp.exp(below) * jnp.exp(-logarithm), lambda: jnp.exp(below - logarithm)
    )()
    return logarithm, jnp.sum(shares * _masked(moved, where, 0.0), axis=axis, keepdims=True)


@jax.custom_jvp
def log_add_exp(x: Array, y: Array) -> Array:
    """Compute ``log(eˣ + eʸ)``, with slopes that are functions of ``x − y`` alone: nothing is kept for the gradient."""
    return jnp.logaddexp(x, y)


log_add_exp.defjvps(
    lambda moved, _, x, y: jax.nn.sigmoid(x - y) * moved,
    lambda moved, _, x, y: jax.nn.sigmoid(y - x) * moved,
)


@jax.custom_jvp
def softplus(values: Array) -> Array:
    """Compute ``log(1 + eᵛ)``, likewise with the slope ``σ(v)``."""
    return jax.nn.softplus(values)


softplus.defjvps(lambda moved, _, values: jax.nn.sigmoid(values) * moved)


@jax.custom_jvp
def shifted_by_max(values: Array, peak: Array) -> Array:
    """``values − peak``, none of which is above 0, and the largest is 0.

    Compilers round a product anew where it is used again, so that a value may lie above the peak, or all of them below
    it. So none counts as above, and next to a high peak all within its rounding count as equal to it.
    """
    loudness = jnp.abs(peak)
    rounding = jnp.where(loudness > LOUD, 4.0 * jnp.finfo(peak.dtype).eps * loudness, 0.0)
    return jnp.minimum(values - (peak - rounding), 0.0)


shifted_by_max.defjvps(
    lambda moved, _, values, peak: jnp.broadcast_to(
        moved, jnp.broadcast_shapes(moved.shape, peak.shape)
    ),
    None,
)


def sphere(vectors: Array) -> Array:
    """Put every vector on the unit sphere: ``v / ‖v‖``.

    Args:
        vectors: ``[..., D]``.

    Returns:
        Vectors of norm 1, ``[..., D]``; a zero vector stays zero and gets gradient 0.

    Raises:
        TypeError: vectors that are not floating.

    Implementation notes:
        In float32, vectors shorter than 1e-29 count as zero: their gradients, of the order of 1/‖v‖, could not be
        represented; and so do those longer than 1e37, whose 1/‖v‖ could not.

    Example:
        >>> import jax.numpy as jnp
        >>> sphere(jnp.array([[3.0, 4.0], [0.0, 0.0]]))
        Array([[0.6, 0.8],
               [0. , 0. ]], dtype=float32)
    """
    _check(vectors)
    return _divided(upcast(vectors, accumulate_in(vectors))).astype(vectors.dtype)


@jax.custom_jvp
def _divided(vectors: Array) -> Array:
    return vectors * inverse_norms(vectors)


@_divided.defjvp
def _divided_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # By unit vectors alone: those given may be so long that no slope could be multiplied by them.
    # The factor stands outside of the sum: inside, a CPU takes a twelfth longer for a whole loss.
    (vectors,), (moved,), factors = primals, tangents, inverse_norms(*primals)
    unit = vectors * factors
    along = factors * jnp.sum(unit * moved, axis=-1, keepdims=True)
    return unit, moved * factors - unit * along


@jax.custom_jvp
@partial(jax.jit, inline=True)
def inverse_norms(vectors: Array) -> Array:
    """``1 / ‖v‖``: the factor by which :func:`sphere` multiplies a vector, 0 where that counts as zero.

    Whoever needs only products with normalized vectors can multiply these instead of all vectors.
    """
    limits = jnp.finfo(vectors.dtype)
    up, down = (2.0**60, 2.0**-100) if limits.bits == 32 else (2.0**500, 2.0**-800)
    plain = _squares(vectors, 1.0)
    tiny, huge = plain < 1e8 * limits.tiny, plain > 1e-8 * limits.max
    scale = jnp.where(tiny, up, jnp.where(huge, down, 1.0)).astype(vectors.dtype)
    # On a CPU vectors at the ends of the range are rare, and squaring them again costs less than three squares of all.
    # Elsewhere a branch costs more: it waits for the host, and for all devices that hold a part of the vectors.
    squares = jax.lax.platform_dependent(
        cpu=lambda: jax.lax.cond(
            jnp.any(tiny | huge), lambda: _squares(vectors, scale), lambda: plain
        ),
        default=lambda: jnp.where(
            tiny, _squares(vectors, up), jnp.where(huge, _squares(vectors, down), plain)
        ),
    )
    factors = scale * jax.lax.rsqrt(squares)
    short, long = factors >= 1e-9 / limits.tiny, factors <= 8.0 * limits.tiny
    return jnp.where(short | long, 0.0, factors)


def _squares(vectors: Array, scale: float | Array) -> Array:
    return jnp.sum(jnp.square(vectors * scale), axis=-1, keepdims=True)


@inverse_norms.defjvp
def _inverse_norms_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (vectors,), (moved,) = primals, tangents
    factors = inverse_norms(vectors)
    return factors, -factors * relative_norm_derivative(vectors, moved, factors)


def relative_norm_derivative(vectors: Array, moved: Array, factors: Array) -> Array:
    """Compute by how much of themselves norms grow, ``v · dv / ‖v‖²``, with :func:`inverse_norms` as factors."""
    along = jnp.sum((vectors * factors) * moved, axis=-1, keepdims=True)
    # Where the factor is 0, what arrives from outside may have overflown.
    return factors * jnp.where(factors > 0, along, 0.0)


def ball(vectors: Array) -> Array:
    """Pull vectors into the unit ball: ``v / ‖v‖`` where ``‖v‖ ≥ 1``, else ``v``.

    Args:
        vectors: ``[..., D]``.

    Returns:
        Vectors of norm at most 1, ``[..., D]``; as in :func:`sphere`, those longer than 1e37 become 0.

    Raises:
        TypeError: vectors that are not floating.

    Reference:
        Gürbüz, Can & Alatan, *Deep Metric Learning with Chance Constraints*, §4.4.

    Example:
        >>> import jax.numpy as jnp
        >>> ball(jnp.array([[3.0, 4.0], [0.3, 0.4]]))
        Array([[0.6, 0.8],
               [0.3, 0.4]], dtype=float32)
    """
    _check(vectors)
    return _into_ball(vectors)


@partial(jax.jit, inline=True)
def _into_ball(vectors: Array) -> Array:
    norm = safe_norm(upcast(vectors, accumulate_in(vectors)))
    return jnp.where(norm >= 1, sphere(vectors), vectors)


def _check(vectors: Array) -> None:
    if not jnp.issubdtype(jnp.result_type(vectors), jnp.floating):
        raise TypeError(f"vectors must be floating point, got dtype {jnp.result_type(vectors)}")
