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


@functools.partial(jax.jit, static_argnames="axis")
def choose_centering(queries: Array, gallery: Array, axis: Axis = NOWHERE) -> tuple[Array, Array]:
    """Choose an origin and a scale with which distances lose few digits: ``(centre [1, D], exponent)``."""
    low, high = _bounds(queries, gallery)
    is_finite = (jnp.isfinite(low) & jnp.isfinite(high)).all()
    seldom = functools.partial(_bounds, queries, gallery, finite_only=True)  # several times as slow
    low, high = jax.lax.cond(is_finite, lambda: (low, high), seldom)
    elsewhere = axis.all_gather_stacked(sample(gallery)).reshape(-1, gallery.shape[1])
    some = jnp.concatenate([sample(queries), elsewhere])
    return frame_of(axis.least(low), axis.most(high), some)


def sample(vectors: Any) -> Any:
    """At most 64 of some vectors, from all along them."""
    return vectors[:: max(1, -(-len(vectors) // 64))]


def _bounds(*several: Array, finite_only: bool = False) -> tuple[Array, Array]:
    """The lowest and the highest of every coordinate."""
    masks = [jnp.isfinite(x) if finite_only else None for x in several]
    pairs = list(zip(several, masks, strict=True))
    lowest = (jnp.min(x, axis=0, initial=jnp.inf, where=where) for x, where in pairs)
    highest = (jnp.max(x, axis=0, initial=-jnp.inf, where=where) for x, where in pairs)
    return functools.reduce(jnp.minimum, lowest), functools.reduce(jnp.maximum, highest)


def frame_of(low: Any, high: Any, some: Any) -> tuple[Any, Any]:
    """The frame of vectors whose coordinates ``[D]`` lie between two bounds, by some of them ``[n, D]``."""
    # The centre is their median, as scores lose digits by the square of how far from it vectors lie. It is cut to
    # multiples of the largest power of two up to their spread (the largest median of a coordinate's deviations; without
    # any it is not cut): whole numbers stay exact, with their ties. The exponent is that power's, or a larger one that
    # keeps squares finite.
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
    # Beyond 2⁵⁰ spreads the square of a coordinate might not be finite once moved, beyond 2¹²⁶ not itself before.
    least = xp.maximum(whole - 50, power(xp.max(xp.abs(middle))) - 126)
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
    keys = places.astype(np.uint64) << 32  # place and index in one integer
    keys |= np.arange(places.shape[1], dtype=np.uint64)
    if k < places.shape[1]:
        keys.partition(k - 1, axis=1)
    smallest = np.sort(keys[:, :k], axis=1)
    is_counted = smallest >> 32 != 0xFF800000  # the place of −∞
    return smallest.astype(np.uint32).astype(np.int32), is_counted


def rows_per_block(size: int, floats_per_row: int) -> int:
    """How many of ``size`` queries to compare at a time, if each needs that many float32 numbers."""
    # Bytes of a block of scores that fit a processor's cache, and that keep an accelerator busy.
    budget = by_platform(12 * 2**20, 128 * 2**20)
    rows = budget // (4 * max(1, floats_per_row)) // 8 * 8
    return min(max(8, rows), max(1, size))
