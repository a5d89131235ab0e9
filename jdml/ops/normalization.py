"""Normalization of embeddings onto the unit sphere or into the unit ball."""

import jax
import jax.numpy as jnp
from jax import Array

from jdml.ops.stable import accumulate_in, magnitude, safe_norm


def sphere(vectors: Array) -> Array:
    """Put every vector on the unit sphere: ``v / ‖v‖``.

    Args:
        vectors: ``[..., D]``.

    Returns:
        Vectors of norm 1, ``[..., D]``; a zero vector stays zero and gets gradient 0.

    Implementation notes:
        Where the square of a norm over- or underflows, vectors are divided by the size of their largest entry first.
        In float32, vectors without an entry above 1e-29 count as zero: their gradients, of the order of 1/‖v‖, could
        not be represented.

    Example:
        >>> import jax.numpy as jnp
        >>> sphere(jnp.array([[3.0, 4.0], [0.0, 0.0]]))
        Array([[0.6, 0.8],
               [0. , 0. ]], dtype=float32)
    """
    units, _ = _units(vectors.astype(accumulate_in(vectors)))
    return units.astype(vectors.dtype)


@jax.custom_jvp
def _units(vectors: Array) -> tuple[Array, Array]:
    """Unit vectors, and the reciprocals ``[..., 1]`` of the norms, 0 for zero vectors."""
    squares = jnp.sum(jnp.square(vectors), axis=-1, keepdims=True)
    limits = jnp.finfo(vectors.dtype)
    plain = (squares > 1e8 * limits.tiny) & (squares < 1e-8 * limits.max)
    # Only numbers per vector leave the branches: vectors are read and written once.
    first, second = jax.lax.cond(jnp.all(plain), _plain_factors, _scaled_factors, vectors, squares)
    return vectors * first * second, first * second


@_units.defjvp
def _units_jvp(
    primals: tuple[Array], tangents: tuple[Array]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    units, inverses = _units(*primals)
    (moved,) = tangents
    along = jnp.sum(units * moved, axis=-1, keepdims=True)
    return (units, inverses), (inverses * (moved - along * units), -jnp.square(inverses) * along)


def _plain_factors(vectors: Array, squares: Array) -> tuple[Array, Array]:
    return jnp.ones_like(squares), jax.lax.rsqrt(squares)


def _scaled_factors(vectors: Array, squares: Array) -> tuple[Array, Array]:
    scale = magnitude(vectors)
    zero = scale <= 1e8 * jnp.finfo(vectors.dtype).tiny
    first = jnp.where(zero, 0.0, 1.0 / jnp.where(zero, 1.0, scale))
    return first, 1.0 / jnp.where(zero, 1.0, safe_norm(vectors * first))


def ball(vectors: Array) -> Array:
    """Pull vectors into the unit ball: ``v / ‖v‖`` where ``‖v‖ ≥ 1``, else ``v``.

    Args:
        vectors: ``[..., D]``.

    Returns:
        Vectors of norm at most 1, ``[..., D]``.

    Reference:
        Gürbüz, Can & Alatan, *Deep Metric Learning with Chance Constraints*, §4.4.

    Example:
        >>> import jax.numpy as jnp
        >>> ball(jnp.array([[3.0, 4.0], [0.3, 0.4]]))
        Array([[0.6, 0.8],
               [0.3, 0.4]], dtype=float32)
    """
    norm = safe_norm(vectors.astype(accumulate_in(vectors)))
    outside = norm >= 1
    return jnp.where(outside, sphere(vectors), vectors)
