"""Ranking a gallery that lies on disk: read in pieces, each compared with all queries."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jdml.metrics import ranking_score

PIECE = 8 * 2**20
"""Bytes of a piece, in float32."""
GROUP = 64
"""Neighbouring rows of a piece, of which first the nearest is looked at."""


class Gallery(NamedTuple):
    """Vectors on disk, and the centering with which they are compared."""

    rows: np.memmap
    centering: tuple[Array, Array]

    @property
    def shape(self) -> tuple[int, ...]:
        """``(N, D)``."""
        return self.rows.shape


def choose_centering(queries: Array, rows: np.memmap) -> tuple[Array, Array]:
    """Choose one centering for queries and a gallery on disk, which is read and checked."""
    low = np.asarray(queries.min(axis=0, initial=jnp.inf))
    high = np.asarray(queries.max(axis=0, initial=-jnp.inf))
    for start, piece in _pieces(rows):
        finite = np.isfinite(piece).all(axis=1)
        if not finite.all():
            row = start + int(finite.argmin())
            raise ValueError(f"gallery must be finite (in float32), row {row} is not")
        low, high = np.minimum(low, piece.min(axis=0)), np.maximum(high, piece.max(axis=0))
    some = np.concatenate(
        [ranking_score.sample(queries), ranking_score.sample(rows)], dtype=low.dtype
    )
    return ranking_score.centering_within(*map(jnp.asarray, (low, high, some)))


def rank(
    blocks: Sequence[tuple[Array, Array | None, Array | None]],
    gallery: Gallery,
    depth: int,
    gallery_groups: np.ndarray | None = None,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The nearest rows of each block of queries; the gallery is read once."""
    best = [_nothing(len(block), depth) for block, *_ in blocks]
    longest = rows_of_a_piece(gallery.rows)
    for start, piece in _pieces(gallery.rows):
        missing = longest - len(piece)
        padded = jnp.asarray(np.pad(piece, ((0, missing), (0, 0))))
        references = ranking_score.apply_centering(padded, gallery.centering)
        theirs = (
            None
            if gallery_groups is None
            else np.pad(gallery_groups[start : start + longest], (0, missing))
        )
        for turn, block in enumerate(blocks):
            best[turn] = _better(best[turn], block, references, theirs, len(piece), start)
    for scores, indices in best:
        yield np.asarray(indices), np.asarray(scores > -jnp.inf)


def _nothing(rows: int, depth: int) -> tuple[Array, Array]:
    return jnp.full((rows, depth), -jnp.inf), jnp.zeros((rows, depth), jnp.int32)


@functools.partial(jax.jit, donate_argnums=0)
def _better(
    best: tuple[Array, Array],
    block: tuple[Array, Array | None, Array | None],
    references: Array,
    gallery_groups: Array | None,
    number: Array | int,
    start: Array | int,
) -> tuple[Array, Array]:
    """The best of those before and of a piece of the gallery; what came before wins ties."""
    scores, indices = best
    half_squares = 0.5 * jnp.sum(jnp.square(references), axis=-1)
    half_squares = jnp.where(jnp.arange(len(references)) < number, half_squares, jnp.inf)
    queries, *askers = block
    out = ranking_score.exclusion_mask(askers, gallery_groups, start, len(references))
    new = ranking_score.ranking_score(queries, references, half_squares, out)
    depth = scores.shape[1]
    new, places = _top(new, min(depth, len(references)))
    every = jnp.concatenate([scores, new], axis=1)
    candidates = jnp.concatenate([indices, places.astype(jnp.int32) + start], axis=1)
    every, places = jax.lax.top_k(every, depth)
    return every, jnp.take_along_axis(candidates, places, axis=1)


def _top(scores: Array, depth: int) -> tuple[Array, Array]:
    """``jax.lax.top_k``, which is slow over many columns: those of the ``depth`` groups whose best are best.

    Any entry of another group comes after the best of each of these, in value or, where they tie, in index.
    """
    rows, size = scores.shape
    if size <= 2 * depth * GROUP:
        return jax.lax.top_k(scores, depth)
    groups = jnp.pad(scores, ((0, 0), (0, -size % GROUP)), constant_values=-jnp.inf)
    groups = groups.reshape(rows, -1, GROUP)
    chosen = jnp.sort(jax.lax.top_k(groups.max(axis=2), depth)[1], axis=1)
    few = jnp.take_along_axis(groups, chosen[:, :, None], axis=1).reshape(rows, -1)
    best, places = jax.lax.top_k(few, depth)
    group = jnp.take_along_axis(chosen, places // GROUP, axis=1)
    return best, group * GROUP + places % GROUP


def nearest(
    queries: Array, rows: np.memmap, k: int, *, exclude_self: bool, block_size: int | None
) -> tuple[Array, Array]:
    """:func:`jdml.metrics.nearest` in a gallery on disk."""
    size, dim = queries.shape
    if not size:
        return jnp.zeros((0, k)), jnp.zeros((0, k), jnp.int32)
    gallery = Gallery(rows, choose_centering(queries, rows))
    at_a_time = block_size or ranking_score.rows_per_block(size, rows_of_a_piece(rows) + k * dim)
    missing = -size % at_a_time
    probes = jnp.pad(
        ranking_score.apply_centering(queries, gallery.centering), ((0, missing), (0, 0))
    )
    rows_of = np.split(np.arange(len(probes), dtype=np.int32), len(probes) // at_a_time)
    blocks = [(probes[own], jnp.asarray(own) if exclude_self else None, None) for own in rows_of]
    indices = np.concatenate([rows for rows, _ in rank(blocks, gallery, k)])[:size]
    distances = [
        ranking_score.exact(
            queries[start : start + at_a_time], jnp.asarray(rows[part], jnp.float32), part
        )
        for start, part in (
            (start, indices[start : start + at_a_time]) for start in range(0, size, at_a_time)
        )
    ]
    first, second = (jnp.concatenate(several) for several in zip(*distances, strict=True))
    return first, second


def rows_of_a_piece(rows: Any) -> int:
    """How many rows of a gallery are read at a time."""
    return min(len(rows), max(1, PIECE // (4 * rows.shape[1])))


def _pieces(rows: np.memmap) -> Iterator[tuple[int, np.ndarray]]:
    """Pieces of a gallery in float32, and where they start."""
    size = rows_of_a_piece(rows)
    for start in range(0, len(rows), size):
        with np.errstate(over="ignore"):
            yield start, np.asarray(rows[start : start + size], np.float32)
