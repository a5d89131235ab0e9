"""Similarities and distances of all pairs, by one matrix product: never an array ``[N, M, D]``."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jdml.ops.numerics import inverse_norms, relative_norm_derivative, safe_sqrt


class Narrow(NamedTuple):
    """Vectors of 16 bits that float32 vectors are multiples of, which a GPU or TPU multiplies in one pass.

    A product of two such numbers is exact in float32, where it is summed: it loses nothing that the vectors had.
    """

    vectors: Array
    factors: Array

    @classmethod
    def of(cls, narrow: Array, unit: Array) -> "Narrow":
        """Vectors ``[N, D]`` in bfloat16 that were normalized to ``unit``, at a scale at which products stay finite."""
        largest = jnp.max(jnp.abs(narrow), axis=-1, keepdims=True).astype(jnp.float32)
        exponents = jnp.frexp(largest)[1]
        scaled = jnp.ldexp(narrow.astype(jnp.float32), -exponents)
        squares = jnp.sum(jnp.square(scaled), axis=-1)
        some = jnp.any(unit != 0, axis=-1)
        factors = jnp.where(some, jax.lax.rsqrt(jnp.where(some, squares, 1.0)), 0.0)
        return jax.lax.stop_gradient(cls(scaled.astype(narrow.dtype), factors))


NarrowPair = tuple[Narrow, Narrow] | None
"""Both sides of a product."""


def similarities(x: Array, y: Array, narrow: NarrowPair = None) -> Array:
    """Compute inner products ``x_i · y_j``; cosines for vectors on the sphere.

    Args:
        x: ``[N, D]``.
        y: ``[M, D]`` or ``[..., D]``; if it is the same array, the gradient takes one product, not two.
        narrow: what both are multiples of, where there is such.

    Returns:
        ``[N, M]`` or ``[N, ...]``, computed in full float32 (or float64) precision on every device.

    Example:
        >>> import jax.numpy as jnp
        >>> similarities(jnp.array([[1.0, 0.0]]), jnp.array([[0.6, 0.8], [0.0, 1.0]]))
        Array([[0.6, 0. ]], dtype=float32)
    """
    if narrow is not None:
        return _among_narrow(x, narrow[0]) if x is y else _between_narrow(x, y, *narrow)
    return _among(x) if x is y else _between(x, y)


def _between(x: Array, y: Array) -> Array:
    along = (((x.ndim - 1,), (y.ndim - 1,)), ((), ()))
    return jax.lax.dot_general(x, y, along, precision=jax.lax.Precision.HIGHEST)


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


@jax.custom_jvp
def _upcast(x: Array, narrow: Narrow) -> Array:
    """The narrow vectors as constants of a first derivative, which move with what they are multiples of."""
    return narrow.vectors.astype(x.dtype)


@_upcast.defjvp
def _upcast_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    factors = primals[1].factors[:, None]
    moved = jnp.where(factors > 0, tangents[0] / jnp.where(factors > 0, factors, 1.0), 0.0)
    return _upcast(*primals), moved


def _move(moved: Array, x: Array, narrow: Narrow) -> Array:
    """Products with tangents, of which only one side is narrow; a TPU sees that, and takes half the passes."""
    return _between(moved, _upcast(x, narrow)) * narrow.factors[None, :]


@jax.custom_jvp
def _between_narrow(x: Array, y: Array, left: Narrow, right: Narrow) -> Array:
    products = jnp.einsum(
        "nd,md->nm", left.vectors, right.vectors, preferred_element_type=left.factors.dtype
    )
    return products * left.factors[:, None] * right.factors[None, :]


@_between_narrow.defjvp
def _between_narrow_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (x, y, left, right), (x_moved, y_moved, *_) = primals, tangents
    change = _move(x_moved, y, right) + _move(y_moved, x, left).T
    return _between_narrow(*primals), change


@jax.custom_jvp
def _among_narrow(x: Array, narrow: Narrow) -> Array:
    return _between_narrow(x, x, narrow, narrow)


@_among_narrow.defjvp
def _among_narrow_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    change = _move(tangents[0], *primals)
    return _among_narrow(*primals), jax.lax.optimization_barrier(change + change.T)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def cosines(x: Array, y: Array, by_sums: bool = True) -> Array:
    """Compute ``x_i · y_j / (‖x_i‖ ‖y_j‖)``: :func:`similarities` of vectors on the sphere, 0 where one counts as zero.

    Products are scaled in place of the y, which may be many more numbers.

    Args:
        x: ``[N, D]``.
        y: ``[..., D]``.
        by_sums: the gradient of a normalization leaves out what is along the vector: whether that is found by sums over
            rows and columns of the products, or in more passes over the vectors.

    Returns:
        ``[N, ...]``.

    Example:
        >>> import jax.numpy as jnp
        >>> cosines(jnp.array([[2.0, 0.0]]), jnp.array([[3.0, 4.0], [0.0, 0.0]]))
        Array([[0.6, 0. ]], dtype=float32)
    """
    return scaled(_between(x * inverse_norms(x), y), inverse_norms(y)[..., 0])


def scaled(products: Array, factors: Array) -> Array:
    """Multiply products ``[N, ...]`` by the :func:`inverse_norms` of their second vectors."""
    return jnp.where(factors[None] > 0, products, 0.0) * factors[None]


@jax.custom_jvp
def over_norms(products: tuple[Array, ...], vectors: Array) -> tuple[Array, ...]:
    """Divide products with K vectors each, an array ``[N, C]`` for each k, by the vectors' norms: :func:`scaled`."""
    factors = inverse_norms(vectors)[..., 0]
    return tuple(scaled(each, factors[:, k]) for k, each in enumerate(products))


@over_norms.defjvp
def _over_norms_jvp(
    primals: tuple[tuple[Array, ...], Array], tangents: tuple[tuple[Array, ...], Array]
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    # What is along a vector by the values, as in cosines: slopes times products with long vectors are no floats.
    (products, vectors), (changes, moved) = primals, tangents
    values, factors = over_norms(products, vectors), inverse_norms(vectors)
    along = relative_norm_derivative(vectors, moved, factors)
    return values, tuple(
        scaled(change, factors[:, k, 0]) - value * along[None, :, k, 0]
        for k, (change, value) in enumerate(zip(changes, values, strict=True))
    )


@cosines.defjvp
def _cosines_jvp(
    by_sums: bool, primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    (x, y), (x_moved, y_moved) = primals, tangents
    values, of_x, of_y = cosines(x, y, by_sums), inverse_norms(x), inverse_norms(y)
    x_unit, y_unit, x_moved = x * of_x, y * of_y, x_moved * of_x
    along_x = jnp.sum(x_unit * x_moved, axis=-1, keepdims=True)
    if not by_sums:
        x_moved = x_moved - x_unit * along_x
        y_moved = y_moved - y_unit * jnp.sum(y_unit * y_moved, axis=-1, keepdims=True)
    change = scaled(_between(x_moved, y) + _between(x_unit, y_moved), of_y[..., 0])
    if by_sums:
        along_y = jnp.sum(y_unit * (y_moved * of_y), axis=-1)
        change -= values * (along_x.reshape(-1, *(1,) * along_y.ndim) + along_y[None])
    return values, change


def squared_distances(
    x: Array,
    y: Array,
    y_squares: Array | None = None,
    x_squares: Array | None = None,
    narrow: NarrowPair = None,
) -> Array:
    """Compute squared Euclidean distances ``‖x_i‖² + ‖y_j‖² − 2 x_i · y_j``, not below 0.

    Args:
        x: ``[N, D]``.
        y: ``[M, D]``.
        y_squares: ``[M]``, ``‖y_j‖²``: where some x at a time meet the same y, these are computed once.
        x_squares: ``[N]``, likewise.
        narrow: what both are multiples of, where there is such.

    Returns:
        ``[N, M]``. Rounding leaves an absolute error of about ``1e-7 (‖x‖² + ‖y‖²)`` in float32, both seen from the
        middle of y unless squares are given: an offset that all vectors share costs no digits.

    Example:
        >>> import jax.numpy as jnp
        >>> squared_distances(jnp.array([[1.0, 0.0]]), jnp.array([[1.0, 0.0], [0.0, 1.0]]))
        Array([[0., 2.]], dtype=float32)
    """
    if y_squares is None and x_squares is None:
        x, y = shift(x, y, centre_of(y))
    rounded = _rounded_squares(x, y, y_squares, x_squares, narrow)
    return jnp.where(rounded <= 0, 0.0, rounded)


def _rounded_squares(
    x: Array,
    y: Array,
    y_squares: Array | None = None,
    x_squares: Array | None = None,
    narrow: NarrowPair = None,
) -> Array:
    """Squared distances, of which some may be below 0."""
    y_squares = jnp.sum(y * y, axis=-1) if y_squares is None else y_squares
    x_squares = jnp.sum(x * x, axis=-1) if x_squares is None else x_squares
    return x_squares[:, None] + y_squares[None, :] - 2.0 * similarities(x, y, narrow)


def distances(
    x: Array,
    y: Array,
    y_squares: Array | None = None,
    x_squares: Array | None = None,
    narrow: NarrowPair = None,
) -> Array:
    """Compute Euclidean distances ``‖x_i − y_j‖``; where a distance is 0, its gradient is 0.

    Args:
        x: ``[N, D]``.
        y: ``[M, D]``.
        y_squares: ``[M]``, ``‖y_j‖²``, where these are known not to overflow.
        x_squares: ``[N]``, likewise.
        narrow: what both are multiples of, where there is such, and ``y_squares``.

    Returns:
        ``[N, M]``.

    Example:
        >>> import jax.numpy as jnp
        >>> distances(jnp.array([[3.0, 0.0]]), jnp.array([[0.0, 4.0], [3.0, 0.0]]))
        Array([[5., 0.]], dtype=float32)
    """
    if y_squares is not None:
        return safe_sqrt(_rounded_squares(x, y, y_squares, x_squares, narrow))
    scale = power_of_two(x, y)
    scaled = x / scale
    x, y = shift(scaled, scaled if y is x else y / scale, centre_of(y) / scale)
    return scale * safe_sqrt(_rounded_squares(x, y))


def centre_of(vectors: Array, valid: Array | None = None) -> Array:
    """Return a point ``[D]`` in the middle of vectors, seen from which distances lose fewest digits; no gradient.

    It is the mean of at most 64 of them, cut to a multiple of the largest power of two up to their spread: what spreads
    around the origin stays where it is, bit for bit.
    """
    every = -(-max(len(vectors), 1) // _SAMPLE)
    some = jax.lax.stop_gradient(vectors[::every])
    real = jnp.isfinite(some).all(-1) if valid is None else valid[::every]
    number = jnp.maximum(real.sum(), 1).astype(some.dtype)
    some = jnp.where(real[:, None], some, 0.0)
    middle = jnp.sum(some / number, axis=0)
    apart = jnp.where(real[:, None], jnp.abs(some - middle[None]), 0.0)
    spread = jnp.max(jnp.sum(apart / number, axis=0))
    unit = jnp.exp2(jnp.frexp(spread)[1] - 1.0).astype(some.dtype)
    centre = jnp.where(spread > 0, jnp.trunc(middle / unit) * unit, middle)
    return jnp.where(jnp.isfinite(centre), centre, 0.0)


_SAMPLE = 64


def shift(x: Array, y: Array, centre: Array) -> tuple[Array, Array]:
    """Subtract a centre from both; one array where they are one."""
    shifted = x - centre[None]
    return shifted, shifted if y is x else y - centre[None]


def power_of_two(x: Array, y: Array) -> Array:
    """Power of two by which vectors are divided so that their squares stay finite: 1 up to 2⁴⁰."""
    largest = jnp.maximum(jnp.max(jnp.abs(x), initial=0.0), jnp.max(jnp.abs(y), initial=0.0))
    exponent = jnp.frexp(jax.lax.stop_gradient(largest))[1]
    return jnp.exp2(jnp.where(exponent > 40, jnp.minimum(exponent, 120), 0).astype(x.dtype))
