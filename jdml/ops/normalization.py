"""Normalization of embeddings onto the unit sphere or into the unit ball."""

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
        Vectors are divided by the size of their largest entry first, so that no square over- or underflows. In
        float32, vectors without an entry above 1e-29 count as zero: their gradients, of the order of 1/‖v‖, could not
        be represented.

    Example:
        >>> import jax.numpy as jnp
        >>> sphere(jnp.array([[3.0, 4.0], [0.0, 0.0]]))
        Array([[0.6, 0.8],
               [0. , 0. ]], dtype=float32)
    """
    wide = vectors.astype(accumulate_in(vectors))
    scale = magnitude(wide)
    zero = scale <= 1e8 * jnp.finfo(wide.dtype).tiny
    scaled = jnp.where(zero, 0.0, wide / jnp.where(zero, 1.0, scale))
    return (scaled / jnp.where(zero, 1.0, safe_norm(scaled))).astype(vectors.dtype)


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
