"""Ranking a gallery that lies on disk: read in pieces, each compared with all queries."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jdml.metrics import neighbors

PIECE = 64 * 2**20
"""Bytes of a piece, in float32."""


class Gallery(NamedTuple):
    """Vectors on disk, and the frame in which they are compared.

    Attributes:
        rows: ``[N, D]``.
        frame: see :func:`jdml.metrics.neighbors.common_frame`.
    """

    rows: np.memmap
    frame: tuple[Array, Array]

    @property
    def shape(self) -> tuple[int, ...]:
        """``(N, D)``."""
        return self.rows.shape


def frame_of(queries: Array, rows: np.memmap) -> tuple[Array, Array]:
    """The common frame of queries and a gallery on disk, which is read and checked.

    Args:
        queries: ``[Q, D]``.
        rows: ``[N, D]``.

    Returns:
        The frame.

    Raises:
        ValueError: a row that is not finite.
    """
    low, high = np.asarray(queries.min(axis=0)), np.asarray(queries.max(axis=0))
    for start, piece in _pieces(rows):
        finite = np.isfinite(piece).all(axis=1)
        if not finite.all():
            row = start + int(finite.argmin())
            raise ValueError(f"gallery must be finite (in float32), row {row} is not")
        low, high = np.minimum(low, piece.min(axis=0)), np.maximum(high, piece.max(axis=0))
    return neighbors.frame_of(jnp.asarray(low), jnp.asarray(high))


def rank(
    blocks: Sequence[Array], gallery: Gallery, depth: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The nearest rows of each block of queries; the gallery is read once.

    Args:
        blocks: queries ``[B, D]`` in the gallery's frame, all of one size.
        gallery: where to search.
        depth: how many ranks, at most N.

    Yields:
        For each block, indices ``[B, depth]``, and whether they take part.
    """
    best = [_nothing(len(block), depth) for block in blocks]
    longest = _rows_of_a_piece(gallery.rows)
    for start, piece in _pieces(gallery.rows):
        padded = jnp.asarray(np.pad(piece, ((0, longest - len(piece)), (0, 0))))
        references = neighbors.in_frame(padded, gallery.frame)
        for turn, block in enumerate(blocks):
            best[turn] = _better(best[turn], block, references, len(piece), start)
    for scores, indices in best:
        yield np.asarray(indices), np.asarray(scores > -jnp.inf)


def _nothing(rows: int, depth: int) -> tuple[Array, Array]:
    return jnp.full((rows, depth), -jnp.inf), jnp.zeros((rows, depth), jnp.int32)


@functools.partial(jax.jit, donate_argnums=0)
def _better(
    best: tuple[Array, Array],
    queries: Array,
    references: Array,
    number: Array | int,
    start: Array | int,
) -> tuple[Array, Array]:
    """The best of those before and of a piece of the gallery; what came before wins ties."""
    scores, indices = best
    half_squares = 0.5 * jnp.sum(jnp.square(references), axis=-1)
    half_squares = jnp.where(jnp.arange(len(references)) < number, half_squares, jnp.inf)
    new = neighbors.closeness(queries, references, half_squares, None)
    depth = scores.shape[1]
    new, places = jax.lax.top_k(new, min(depth, len(references)))
    every = jnp.concatenate([scores, new], axis=1)
    found = jnp.concatenate([indices, places.astype(jnp.int32) + start], axis=1)
    every, kept = jax.lax.top_k(every, depth)
    return every, jnp.take_along_axis(found, kept, axis=1)


def _rows_of_a_piece(rows: Any) -> int:
    return min(len(rows), max(1, PIECE // (4 * rows.shape[1])))


def _pieces(rows: np.memmap) -> Iterator[tuple[int, np.ndarray]]:
    """Pieces of a gallery in float32, and where they start."""
    size = _rows_of_a_piece(rows)
    for start in range(0, len(rows), size):
        with np.errstate(over="ignore"):
            yield start, np.asarray(rows[start : start + size], np.float32)
