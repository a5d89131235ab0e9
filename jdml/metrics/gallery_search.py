"""The ranking of a gallery for every query: blocks of queries, chunks of a gallery on a device, a mesh or disk.

Shapes are padded to few sizes, so that other numbers of queries, rows and neighbours compile few programs.
"""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jdml.metrics import ranking_score, relevance
from jdml.ops import checks
from jdml.ops.chunking import by_platform
from jdml.ops.meshes import Axis, by_parts, by_rows, mesh_of, on_host

Neighbors = tuple[np.ndarray, np.ndarray]
"""Distances and rows ``[Q, k]``."""
DEEP = 256
"""Beyond this many ranks a partial sort in NumPy beats a CPU's top_k (17 times at 6,000 of 60,000)."""
QUERIES, ROWS = 64, 1024
"""Rows to which fewer queries, and a smaller gallery, are padded."""
DIFFERENCES = 1 << 18
"""Entries of the differences of queries and neighbours that are computed at a time."""
PIECE = 8 * 2**20
"""Bytes of a chunk of a gallery on disk, in float32."""
SPARE = 32
"""Neighbours that are proposed beyond those that are wanted."""
BLOCK = 1 << 24
"""Scores that are computed at a time."""


class Chunk(NamedTuple):
    """Rows of a gallery, centred by :func:`jdml.metrics.ranking_score.choose_centering`."""

    half_squares: Any  # [n], ∞ where there is no row
    references: Any = None  # [n, D]; None where distances are given
    mask: Any = None  # [n] integers


class Block(NamedTuple):
    """Some of the queries, and what does not count for them."""

    queries: Any  # [b, D]
    own: Any = None  # [b], the gallery's row that each query is itself, −1 for none
    mask: Any = None  # [b] integers, or [b, N] bool
    distances: Any = None  # [b, N], that were given


class Search(NamedTuple):
    """All queries, and a gallery in one chunk, or on disk."""

    block: Block
    gallery: Any  # a Chunk, or the rows on disk
    frame: Any = None
    mask: np.ndarray | None = None  # [N] integers, of a gallery on disk

    @property
    def is_on_disk(self) -> bool:
        """Whether the gallery is read in pieces."""
        return isinstance(self.gallery, np.memmap)

    @property
    def size(self) -> int:
        """The gallery's number of rows, with padding."""
        return len(self.gallery if self.is_on_disk else self.gallery.half_squares)

    def among(self, mask: relevance.IgnoreMask) -> "Search":
        """The search of what counts; the gallery's groups lie where the gallery does."""
        search, theirs = self._replace(block=self.block._replace(mask=mask[0])), mask[1]
        if self.is_on_disk or theirs is None:
            return search._replace(mask=theirs)
        groups = jnp.asarray(pad_rows(theirs, self.size, fill=-4))
        return search._replace(gallery=self.gallery._replace(mask=groups))

    def of(self, rows: np.ndarray) -> "Search":
        """The search of some of the queries."""
        return self._replace(block=jax.tree.map(lambda x: x[rows], self.block))


def prepare(queries: Any, gallery: Any, own: Any = None, distances: Any = None) -> Search:
    """Bring vectors into a frame where distances lose few digits. A gallery on disk stays there."""
    queries = on_host(queries)
    if distances is not None:
        matrix = on_host(checks.as_finite("distances", distances))
        size = padded_size(matrix.shape[1])
        padded = pad_rows(matrix.T, size, fill=np.inf).T
        return Search(Block(queries, own, None, padded), Chunk(np.zeros(size, np.float32)))
    frame = frame_of(queries, gallery)
    if isinstance(gallery, np.memmap):
        return Search(Block(queries, own), gallery, frame)
    size = len(gallery)
    rows = gallery if mesh_of(gallery) is not None else pad_rows(gallery, padded_size(size))
    return Search(Block(queries, own), _chunk(rows, frame, np.int32(size)), frame)


def frame_of(queries: np.ndarray, gallery: Any) -> Any:
    """The common frame of queries and a gallery; one on disk is read and checked."""
    if not checks.is_on_host(gallery):
        return jax.device_get(_frame_on_device(gallery, queries))
    low, high = queries.min(0, initial=np.inf), queries.max(0, initial=-np.inf)
    for start, piece in pieces(gallery):
        if isinstance(gallery, np.memmap):
            checks.check_finite("gallery", piece, first=start)
        low, high = np.minimum(low, piece.min(axis=0)), np.maximum(high, piece.max(axis=0))
    with np.errstate(over="ignore"):
        some = [ranking_score.sample(x).astype(np.float32) for x in (queries, np.asarray(gallery))]
    return ranking_score.frame_of(low, high, np.concatenate(some))


@jax.jit
def _frame_on_device(gallery: Array, queries: Array) -> tuple[Array, Array]:
    return by_parts(lambda axis, g, q: ranking_score.choose_centering(q, g, axis), gallery, queries)


def chunk_of(rows: Array, frame: Any) -> Chunk:
    """Move rows into a frame."""
    references = ranking_score.apply_centering(rows, frame)
    return Chunk(0.5 * jnp.sum(jnp.square(references), axis=-1), references)


@jax.jit
def _chunk(rows: Array, frame: Any, size: Array | int) -> Chunk:
    """Rows of which the first ``size`` count; on a mesh, where none are padding, all."""

    def moved(rows: Array, others: Any) -> Chunk:
        chunk = chunk_of(rows, others[0])
        is_there = jnp.arange(len(rows)) < others[1]
        return chunk._replace(half_squares=jnp.where(is_there, chunk.half_squares, jnp.inf))

    chunk: Chunk = by_rows(moved, rows, (frame, size))
    return chunk


def ranked(
    search: Search, wanted: int, block_size: int | None = None
) -> Iterator[tuple[slice, Any, Any]]:
    """Yield which queries, at least the wanted rows ``[b, depth]`` nearest to them, and whether these count."""
    queries = len(search.block.queries)
    size = max(QUERIES, 1 << (queries - 1).bit_length() >> 2)  # one size an octave
    depth = min(max(16, 1 << (int(wanted) - 1).bit_length()), search.size)
    length = _rows_of_a_piece(search.gallery) if search.is_on_disk else search.size
    rows = min(block_size or ranking_score.rows_per_block(size, length), size)
    parts = [slice(start, min(start + rows, queries)) for start in range(0, queries, rows)]
    blocks = (_cut(search, part, -(-rows // 8) * 8) for part in parts)
    chunk, is_on_mesh = search.gallery, mesh_of(search.gallery) is not None
    if search.is_on_disk:
        results = _rank_on_disk(search, [*blocks], depth)
    elif by_platform(True, False) and depth > DEEP and not is_on_mesh:
        places = (_places(chunk, block, search.frame) for block in blocks)
        results = (ranking_score.first_in_order(np.asarray(x), depth) for x in places)
    else:
        best = (_top(chunk, block, search.frame, depth)[1:] for block in blocks)
        results = map(jax.device_get, best) if is_on_mesh else best
    for part, (indices, valid) in zip(parts, results, strict=True):
        yield part, indices, valid


def nearest_rows(queries: Any, gallery: Any, k: int, block_size: int | None = None) -> Neighbors:
    """Distances and rows ``[Q, k]`` in a gallery in memory or on disk, ordered by distances from differences."""
    blocks = [(np.zeros((0, k), np.float32), np.zeros((0, k), np.int32))]
    queries = checks.as_finite("queries", queries)
    if not isinstance(gallery, np.memmap):
        gallery = checks.as_finite("gallery", gallery)
    search, rows = prepare(queries, gallery), np.asarray(gallery)
    for part, indices, _ in ranked(search, k, block_size):
        points = search.block.queries[part]
        indices = np.asarray(indices)[: len(points), :k]
        step = max(1, DIFFERENCES // (k * points.shape[1]))
        for start in range(0, len(points), step):
            some = slice(start, start + step)
            blocks.append(by_distance(points[some], rows[indices[some]], indices[some], k))
    first, second = map(np.concatenate, zip(*blocks, strict=True))
    return first, second


def by_distance(points: np.ndarray, vectors: np.ndarray, rows: np.ndarray, k: int) -> Neighbors:
    """Return distances to ``vectors [Q, c, D]`` and their rows, the k nearest by distance, then row."""
    apart = (points[:, None] - vectors).astype(np.float64)
    distances = np.linalg.norm(apart, axis=-1).astype(np.float32)
    order = np.lexsort((rows, distances), axis=1)[:, :k]
    rows = np.take_along_axis(rows, order, 1).astype(np.int32)
    return np.take_along_axis(distances, order, 1), rows


def without_own(neighbors: Any, own: np.ndarray) -> Neighbors:
    """Return the k nearest other rows than the own ``[Q]`` of the k + 1 nearest."""
    distances, rows = map(np.asarray, neighbors)
    others = np.argsort(rows == own[:, None], axis=1, kind="stable")[:, :-1]
    return np.take_along_axis(distances, others, 1), np.take_along_axis(rows, others, 1)


def padded_size(size: int) -> int:
    """Round up to one of eight sizes an octave."""
    step = 1 << max(0, (size - 1).bit_length() - 4)
    return max(ROWS, -(-size // step) * step)


def pad_rows(values: Any, size: int, *, fill: float = 0) -> Any:
    """Fill up to ``size`` rows; NumPy does it on a CPU, without compilation."""
    missing = size - len(values)
    if missing <= 0:
        return values
    padding = [(0, missing)] + [(0, 0)] * (values.ndim - 1)
    xp = np if checks.is_on_host(values) else jnp
    return xp.pad(xp.asarray(values), padding, constant_values=fill)


def _cut(search: Search, part: slice, rows: int) -> Block:
    """A block of queries, padded; a mask of pairs has a column for every row of a gallery in memory."""
    block = jax.tree.map(lambda x: pad_rows(np.asarray(x[part]), rows), search.block)
    if search.is_on_disk or np.ndim(block.mask) != 2:
        return block
    return block._replace(mask=pad_rows(block.mask.T, search.size).T)


def _rank_on_disk(search: Search, blocks: list[Block], depth: int) -> Iterator[tuple[Any, Any]]:
    """Rank one piece of the gallery after the other, each for all queries; it is read once."""
    shapes = [(len(block.queries), depth) for block in blocks]
    best = [(np.full(shape, -np.inf, np.float32), np.zeros(shape, np.int32)) for shape in shapes]
    length = _rows_of_a_piece(search.gallery)
    for start, piece in pieces(search.gallery):
        chunk = _chunk(pad_rows(piece, length), search.frame, np.int32(len(piece)))
        if search.mask is not None:
            chunk = chunk._replace(mask=pad_rows(search.mask[start : start + length], length))
        for turn, block in enumerate(blocks):
            new = _top(chunk, block, search.frame, depth, np.int32(start))
            best[turn] = _merged(best[turn], new[:2])
    for scores, indices in best:
        yield np.asarray(indices), np.asarray(scores) > -np.inf


@jax.jit
def _merged(old: Any, new: Any) -> tuple[Array, Array]:
    """The best of those before and of a chunk; what came before wins ties."""
    scores, indices = (jnp.concatenate(pair, axis=1) for pair in zip(old, new, strict=True))
    scores, places = jax.lax.top_k(scores, old[0].shape[1])
    return scores, jnp.take_along_axis(indices, places, axis=1)


@functools.partial(jax.jit, static_argnames="depth")
def _top(
    chunk: Chunk, block: Block, frame: Any, depth: int, start: Array | int = 0
) -> tuple[Array, Array, Array]:
    """Scores and indices ``[b, depth]`` of the nearest of each query, and whether they count."""

    def top(axis: Axis, chunk: Chunk, others: Any) -> tuple[Array, ...]:
        block, frame, start = others
        offset = start + axis.index * len(chunk.half_squares)
        scores = scores_of(chunk, block, frame, offset)
        scores, indices = jax.lax.top_k(scores, min(depth, scores.shape[1]))
        return ranking_score.merge(axis, depth, scores, scores, indices + offset)

    scores, indices = by_parts(top, chunk, (block, frame, start))
    return scores, indices.astype(jnp.int32), scores > -jnp.inf


@jax.jit
def _places(chunk: Chunk, block: Block, frame: Any) -> Array:
    return ranking_score.order(scores_of(chunk, block, frame, 0))


def scores_of(chunk: Chunk, block: Block, frame: Any, offset: Array | int) -> Array:
    """Compute scores ``[b, n]``: greater is nearer, −∞ for what does not count."""
    rows = offset + jnp.arange(len(chunk.half_squares), dtype=jnp.int32)
    if block.distances is not None:
        scores = 0.0 - block.distances
    else:
        queries = ranking_score.apply_centering(block.queries, frame)
        scores = ranking_score.ranking_score(queries, chunk.references, chunk.half_squares)
    if block.own is not None:
        scores = jnp.where(rows[None, :] == block.own[:, None], -jnp.inf, scores)
    if chunk.mask is not None:
        scores = jnp.where(chunk.mask[None, :] == block.mask[:, None], -jnp.inf, scores)
    elif block.mask is not None:
        is_whole = block.mask.shape[1] == len(rows)
        mask = block.mask if is_whole else jnp.take(block.mask, rows, axis=1, mode="clip")
        scores = jnp.where(mask, -jnp.inf, scores)
    return scores


def _rows_of_a_piece(rows: Any) -> int:
    return min(len(rows), max(1, PIECE // (4 * rows.shape[1])))


def pieces(rows: Any, size: int | None = None) -> Iterator[tuple[int, Any]]:
    """Pieces of a gallery, and where they start; in float32 where NumPy reads them."""
    is_on_host = checks.is_on_host(rows)
    rows, size = np.asarray(rows) if is_on_host else rows, size or _rows_of_a_piece(rows)
    for start in range(0, len(rows), size):
        piece = rows[start : start + size]
        with np.errstate(over="ignore"):
            yield start, piece.astype(np.float32, copy=False) if is_on_host else piece


def norms(part: np.ndarray) -> tuple[np.ndarray, float]:
    """Return ``‖g‖²/2`` of every row, and the largest norm: what a search needs to know of a gallery."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("nd,nd->n", part, part)
    return squares / 2, float(np.sqrt(squares.max()))


def exact_nearest(
    points: np.ndarray, part: np.ndarray, halves: np.ndarray, longest: float, k: int
) -> Neighbors:
    """Return the k nearest rows: proposed by scores ``q · g − ‖g‖²/2``, ordered by distances from differences."""
    step = max(1, BLOCK // max(len(part), (k + SPARE) * points.shape[1]))
    if len(points) > step:
        starts = range(0, len(points), step)
        blocks = [exact_nearest(points[i : i + step], part, halves, longest, k) for i in starts]
        return np.concatenate([b[0] for b in blocks]), np.concatenate([b[1] for b in blocks])
    many = min(k + SPARE, len(part))
    scores = points @ part.T
    scores -= halves
    proposed = np.argpartition(scores, len(part) - many, axis=1)[:, len(part) - many :]
    neighbors = by_distance(points, part[proposed], proposed, k)
    if many == len(part):
        return neighbors
    best = np.sort(np.take_along_axis(scores, proposed, 1), axis=1)
    rounding = np.linalg.norm(points, axis=1) * longest + longest**2
    rounding *= 2 * points.shape[1] * np.finfo(np.float32).eps
    # Where rounding could have hidden a neighbour, it is searched in a frame.
    hidden = ~(best[:, many - k] - best[:, 0] > rounding)
    if hidden.any():
        exact = nearest_rows(points[hidden], part, many)
        for mine, theirs in zip(neighbors, exact, strict=True):
            mine[hidden] = theirs[:, :k]
    return neighbors
