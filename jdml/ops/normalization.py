"""Normalization of embeddings onto the unit sphere or into the unit ball."""

import jax.numpy as jnp
from jax import Array

from jdml.ops.stable import safe_norm


def sphere(vectors: Array) -> Array:
    """Put every vector on the unit sphere: ``v / ‖v‖``.

    Args:
        vectors: ``[..., D]``.

    Returns:
        Vectors of norm 1, ``[..., D]``; a zero vector stays zero and gets gradient 0.

    Example:
        >>> import jax.numpy as jnp
        >>> sphere(jnp.array([[3.0, 4.0], [0.0, 0.0]]))
        Array([[0.6, 0.8],
               [0. , 0. ]], dtype=float32)
    """
    norm = safe_norm(vectors)
    some = norm > 0
    return jnp.where(some, vectors / jnp.where(some, norm, 1.0), 0.0 * vectors)


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
    norm = safe_norm(vectors)
    outside = norm >= 1
    return jnp.where(outside, vectors / jnp.where(outside, norm, 1.0), vectors)
