"""Normalization of embeddings onto the unit sphere or into the unit ball."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from jdml.ops.numerics import accumulate_in, safe_norm, upcast


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
