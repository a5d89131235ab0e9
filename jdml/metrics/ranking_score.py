"""Rank by nearness: one number for each pair, with few digits lost.

A gallery is ranked by the score ``q · g − ‖g‖²/2``, which falls as the distance ``‖q − g‖`` grows and comes out
of one matrix product. Equal gallery rows get equal scores, so that duplicates stay in the order of their indices.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jdml.ops import similarities
from jdml.ops.chunking import by_platform
from jdml.ops.meshes import NOWHERE, Axis

# Bytes of one block of scores: what fits a processor's cache, what keeps an accelerator busy.
_CPU_BLOCK = 12 * 2**20
_ACCELERATOR_BLOCK = 128 * 2**20

# The place in the order of what takes no part in a ranking: the bits of −∞.
_LAST = np.uint32(0xFF800000)


# Rows whose middle is the centre of a frame, of the queries and of each device's part of a gallery.
_SAMPLE = 64
# Beyond so many powers of two over the spread the square of a coordinate, once moved, might not be finite.
_FAR = 50
# Beyond so many a coordinate itself, before it is moved.
_LARGEST = 126


@functools.partial(jax.jit, static_argnames="axis")
def choose_centering(queries: Array, gallery: Array, axis: Axis = NOWHERE) -> tuple[Array, Array]:
    """Choose an origin and a scale with which distances lose few digits: ``(centre [1, D], exponent)``.

    See :func:`frame_of`. What is not finite is not looked at.
    """
    low, high = _bounds(queries, gallery)
    is_finite = (jnp.isfinite(low) & jnp.isfinite(high)).all()
    seldom = functools.partial(
        _bounds, queries, gallery, finite_only=True
    )  # takes several times as long
    low, high = jax.lax.cond(is_finite, lambda: (low, high), seldom)
    elsewhere = axis.all_gather_stacked(sample(gallery)).reshape(-1, gallery.shape[1])
    some = jnp.concatenate([sample(queries), elsewhere])
    return frame_of(axis.least(low), axis.most(high), some)


def sample(vectors: Any) -> Any:
    """At most so many of some vectors, from all along them."""
    return vectors[:: max(1, -(-len(vectors) // _SAMPLE))]


def _bounds(*several: Array, finite_only: bool = False) -> tuple[Array, Array]:
    """The lowest and the highest of every coordinate."""
    masks = [jnp.isfinite(x) if finite_only else None for x in several]
    pairs = list(zip(several, masks, strict=True))
    lowest = (jnp.min(x, axis=0, initial=jnp.inf, where=where) for x, where in pairs)
    highest = (jnp.max(x, axis=0, initial=-jnp.inf, where=where) for x, where in pairs)
    return functools.reduce(jnp.minimum, lowest), functools.reduce(jnp.maximum, highest)


def frame_of(low: Any, high: Any, some: Any) -> tuple[Any, Any]:
    """The frame of vectors whose coordinates ``[D]`` lie between two bounds, by some of them ``[n, D]``.

    The centre is their median, as scores lose digits by the square of how far from it vectors lie. It is cut to
    multiples of the largest power of two up to their spread (the largest median of a coordinate's deviations; without
    any it is not cut): whole numbers stay exact, with their ties. The exponent is that power's, or a larger one that
    keeps squares finite. NumPy's arrays are computed by NumPy.
    """
    xp: Any = np if isinstance(some, np.ndarray) else jnp
    if len(some) == 0:
        some = xp.zeros((1, *some.shape[1:]), some.dtype)

    def median(some: Any) -> Any:  # one of the numbers: the mean of two may be more than there is
        half = len(some) // 2
        return xp.sort(some, axis=0)[half : half + 1]

    def power(size: Any) -> Any:  # the largest power of two up to a number
        return xp.frexp(size)[1] - 1

    some = xp.where(xp.isfinite(some), some, 0)
    middle = median(some)
    spread = xp.max(median(xp.abs(some - middle)))
    whole = power(xp.max(high / 2 - low / 2))
    least = xp.maximum(whole - _FAR, power(xp.max(xp.abs(middle))) - _LARGEST)
    exponent = xp.clip(xp.maximum(xp.where(spread > 0, power(spread), whole), least), -120, 120)
    scaled = xp.ldexp(middle, -exponent)
    return xp.where(spread > 0, xp.trunc(scaled), scaled), exponent


@jax.jit
def apply_centering(vectors: Array, frame: tuple[Array, Array]) -> Array:
    """Move and scale vectors ``[N, D]`` by a centering; the order of their distances is the same."""
    centre, exponent = frame
    return jnp.ldexp(vectors, -exponent) - centre


def ranking_score(queries: Array, gallery: Array, half_squares: Array) -> Array:
    """``q · g − ‖g‖²/2`` for all pairs: greater is nearer."""
    scores = similarities(queries, gallery) - half_squares[None, :]
    scores = jnp.where(scores == 0, 0.0, scores)  # 0 and −0 are a tie
    return jnp.where(half_squares[None, :] < jnp.inf, scores, -jnp.inf)


def merge(axis: Axis, k: int, scores: Array, *others: Array) -> tuple[Array, ...]:
    """The k best of what each device has found, its own best first."""
    if not axis.names:
        return others
    scores, *gathered = (
        jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1)
        for x in axis.all_gather_stacked((scores, *others))
    )
    places = jax.lax.top_k(scores, k)[1]
    return tuple(jnp.take_along_axis(x, places, axis=1) for x in gathered)


def order(scores: Array) -> Array:
    """Unsigned integers that grow as a float32 score falls: the bits of a float, in the order of nearness."""
    bits = jax.lax.bitcast_convert_type(scores, jnp.int32)
    places = jnp.where(bits < 0, bits, ~bits & 0x7FFFFFFF)
    return jax.lax.bitcast_convert_type(places, jnp.uint32)


def first_in_order(places: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k first of every row by (place, index), by a partial sort on the host."""
    rows, size = places.shape
    # Place and index in one 64-bit integer; JAX's machines are little-endian: the high half is the second.
    halves = np.empty((rows, size, 2), np.uint32)
    halves[..., 0] = np.arange(size, dtype=np.uint32)[None, :]
    halves[..., 1] = places
    keys = halves.view(np.uint64)[..., 0]
    if k < size:
        keys.partition(k - 1, axis=1)
    smallest = np.sort(keys[:, :k], axis=1).view(np.uint32).reshape(rows, k, 2)
    return smallest[..., 0].astype(np.int32), smallest[..., 1] != _LAST


def rows_per_block(size: int, floats_per_row: int) -> int:
    """How many of ``size`` queries to compare at a time, if each needs that many float32 numbers."""
    budget = by_platform(_CPU_BLOCK, _ACCELERATOR_BLOCK)
    rows = budget // (4 * max(1, floats_per_row)) // 8 * 8
    return min(max(8, rows), max(1, size))
