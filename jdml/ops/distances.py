"""Similarities and distances of all pairs, by one matrix product: never an array ``[N, M, D]``."""

import jax
import jax.numpy as jnp
from jax import Array

from jdml.ops.stable import safe_sqrt


def similarities(x: Array, y: Array) -> Array:
    """Compute inner products ``x_i · y_j``; cosines for vectors on the sphere.

    Args:
        x: ``[N, D]``.
        y: ``[M, D]``; if it is the same array, the gradient takes one product, not two.

    Returns:
        ``[N, M]``, computed in full float32 (or float64) precision on every device.

    Example:
        >>> import jax.numpy as jnp
        >>> similarities(jnp.array([[1.0, 0.0]]), jnp.array([[0.6, 0.8], [0.0, 1.0]]))
        Array([[0.6, 0. ]], dtype=float32)
    """
    return _among(x) if x is y else _between(x, y)


def _between(x: Array, y: Array) -> Array:
    return jnp.einsum("nd,md->nm", x, y, precision=jax.lax.Precision.HIGHEST)


@jax.custom_jvp
def _among(x: Array) -> Array:
    """Inner products of vectors with each other."""
    return _between(x, x)


@_among.defjvp
def _among_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # Both sides move alike: one product, of which the other is the transpose, and one in the gradient. Without the
    # barrier a TPU's compiler lays out what comes before the transpose one way and the other, in copies.
    (x,), (moved,) = primals, tangents
    change = _between(moved, x)
    return _among(x), jax.lax.optimization_barrier(change + change.T)


def squared_distances(
    x: Array, y: Array, y_squares: Array | None = None, x_squares: Array | None = None
) -> Array:
    """Compute squared Euclidean distances ``‖x_i‖² + ‖y_j‖² − 2 x_i · y_j``, not below 0.

    Args:
        x: ``[N, D]``.
        y: ``[M, D]``.
        y_squares: ``[M]``, ``‖y_j‖²``: where some x at a time meet the same y, these are computed once.
        x_squares: ``[N]``, likewise.

    Returns:
        ``[N, M]``. Rounding leaves an absolute error of about ``1e-7 (‖x‖² + ‖y‖²)`` in float32.

    Example:
        >>> import jax.numpy as jnp
        >>> squared_distances(jnp.array([[1.0, 0.0]]), jnp.array([[1.0, 0.0], [0.0, 1.0]]))
        Array([[0., 2.]], dtype=float32)
    """
    y_squares = jnp.sum(y * y, axis=-1) if y_squares is None else y_squares
    x_squares = jnp.sum(x * x, axis=-1) if x_squares is None else x_squares
    squares = x_squares[:, None] + y_squares[None, :]
    raw = squares - 2.0 * similarities(x, y)
    return jnp.where(raw <= 0, 0.0, raw)


def distances(x: Array, y: Array) -> Array:
    """Compute Euclidean distances ``‖x_i − y_j‖``; where a distance is 0, its gradient is 0.

    Args:
        x: ``[N, D]``.
        y: ``[M, D]``.

    Returns:
        ``[N, M]``.

    Example:
        >>> import jax.numpy as jnp
        >>> distances(jnp.array([[3.0, 0.0]]), jnp.array([[0.0, 4.0], [3.0, 0.0]]))
        Array([[5., 0.]], dtype=float32)
    """
    scale = power_of_two(x, y)
    scaled = x / scale
    return scale * safe_sqrt(squared_distances(scaled, scaled if y is x else y / scale))


def power_of_two(x: Array, y: Array) -> Array:
    """Power of two by which vectors are divided so that their squares stay finite: 1 up to 2⁴⁰."""
    largest = jnp.maximum(jnp.max(jnp.abs(x), initial=0.0), jnp.max(jnp.abs(y), initial=0.0))
    exponent = jnp.frexp(jax.lax.stop_gradient(largest))[1]
    return jnp.exp2(jnp.where(exponent > 40, jnp.minimum(exponent, 120), 0).astype(x.dtype))
