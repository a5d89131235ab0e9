"""The ranking of a gallery for every query, in blocks of queries: in memory, on a mesh or on disk."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jdml.metrics import memmap_search, ranking_score, relevance
from jdml.ops import checks
from jdml.ops.meshes import Axis, by_parts, by_rows, mesh_of, off_mesh

T = TypeVar("T")

# From this many ranks on, a partial sort in NumPy beats a CPU's top_k (17 times at 6,000 of 60,000).
_DEEP = 64


class Search(NamedTuple):
    """The queries and their options, centred by :func:`jdml.metrics.ranking_score.choose_centering`."""

    queries: Array  # [Q, D]
    gallery: Any  # [N, D], or a gallery on disk
    own: Array | None = None  # [Q], the gallery's row that each query is itself, −1 for none
    half_squares: Array | None = None  # [N], where the gallery is on one device
    mask: relevance.IgnoreMask = relevance.IgnoreMask()  # what does not count
    distances: Array | None = None  # [Q, N], that were given

    def among(self, mask: relevance.IgnoreMask) -> "Search":
        """Search what counts; the gallery's groups lie where the gallery does."""
        if not isinstance(self.gallery, memmap_search.Gallery):
            mask = jax.tree.map(jnp.asarray, mask)
        return self._replace(mask=mask)

    def of(self, rows: np.ndarray) -> "Search":
        """Search for some of the queries."""
        by_query = self.queries, self.own, self.distances, self.mask.of_queries
        queries, own, distances, mask = jax.tree.map(lambda x: x[rows], by_query)
        some = self._replace(queries=queries, own=own, distances=distances)
        return some._replace(mask=self.mask._replace(of_queries=mask))


def prepare(task: relevance.RetrievalTask, distances: Any = None) -> Search:
    """Put everything on the device, centred so that distances lose few digits; a gallery on disk is left there."""
    queries, gallery, own = task.queries, task.gallery, task.own
    itself = None if own is None else jnp.asarray(own)
    if distances is not None:
        matrix = off_mesh(checks.as_finite("distances", distances))
        return Search(queries, jnp.arange(matrix.shape[1]), itself, distances=matrix)
    if isinstance(gallery, np.memmap):
        centering = memmap_search.choose_centering(queries, gallery)
        moved = ranking_score.apply_centering(queries, centering)
        return Search(moved, memmap_search.Gallery(gallery, centering), itself)
    if mesh_of(gallery) is not None:
        centering = jax.device_get(mesh_centering(gallery, queries))
        references = by_rows(ranking_score.apply_centering, gallery, centering)
        return Search(ranking_score.apply_centering(queries, centering), references, itself)
    centering = ranking_score.choose_centering(queries, gallery)
    moved = ranking_score.apply_centering(queries, centering)
    references = moved if gallery is queries else ranking_score.apply_centering(gallery, centering)
    return Search(moved, references, itself, _half_squares(references))


def _half_squares(references: Array) -> Array:
    return 0.5 * jnp.sum(jnp.square(references), axis=-1)


@jax.jit
def mesh_centering(gallery: Array, queries: Array) -> tuple[Array, Array]:
    """Choose one centering for queries and a gallery, which may be on a mesh."""

    def choose(axis: Axis, gallery: Array, queries: Array) -> Any:
        return ranking_score.choose_centering(queries, gallery, axis=axis)

    return by_parts(choose, gallery, queries)


def ranked(
    search: Search, wanted: int, block_size: int | None = None
) -> Iterator[tuple[int, Array, Array]]:
    """Rank the gallery for every query."""
    size, gallery = len(search.queries), search.gallery
    depth = min(gallery.shape[0], 1 << (int(wanted) - 1).bit_length())
    on_disk = isinstance(gallery, memmap_search.Gallery)
    at_a_time = memmap_search.rows_of_a_piece(gallery.rows) if on_disk else gallery.shape[0]
    rows = min(block_size or ranking_score.rows_per_block(size, at_a_time), size)
    starts = [min(start, size - rows) for start in range(0, size, rows)]
    blocks = _ranker(search, depth)(search, starts, rows, depth)
    for start, (indices, valid) in zip(starts, blocks, strict=True):
        yield start, indices, valid


def first(search: Search) -> np.ndarray:
    """The row of the gallery ``[Q]`` that is nearest to each query; any row if all are excluded."""
    first_rows = np.zeros(len(search.queries), np.int32)
    blocks = [(start, indices[:, 0]) for start, indices, _ in ranked(search, 1)]
    for start, nearest in jax.device_get(blocks):
        first_rows[start : start + len(nearest)] = nearest
    return first_rows


def _ranker(search: Search, depth: int) -> Callable[..., Iterator[tuple[Any, Any]]]:
    """How to rank: by where the gallery is."""
    if isinstance(search.gallery, memmap_search.Gallery):
        return _rank_on_disk
    if mesh_of(search.gallery) is not None:
        return _rank_on_mesh
    on_cpu = all(device.platform == "cpu" for device in search.gallery.devices())
    return _rank_on_host if on_cpu and depth > _DEEP else _rank_on_device


def _rank_on_mesh(
    search: Search, starts: list[int], rows: int, depth: int
) -> Iterator[tuple[Any, Any]]:
    """The same as :func:`_rank_on_device`, each device ranking its rows of the gallery."""
    for start in starts:
        block = _block(search, start, rows)
        yield jax.device_get(_top_on_mesh((search.gallery, search.mask.of_gallery), block, depth))


def _rank_on_disk(
    search: Search, starts: list[int], rows: int, depth: int
) -> Iterator[tuple[Any, Any]]:
    """The same, one piece of the gallery after the other, each for all queries."""
    blocks = [_block(search, start, rows) for start in starts]
    yield from memmap_search.rank(blocks, search.gallery, depth, search.mask.of_gallery)


def _rank_on_device(
    search: Search, starts: list[int], rows: int, depth: int
) -> Iterator[tuple[Any, Any]]:
    """Indices ``[rows, depth]`` of the nearest of each block, and whether they take part, by ``top_k``."""
    for start in starts:
        yield _top(search, start, rows, depth)


def _rank_on_host(
    search: Search, starts: list[int], rows: int, depth: int
) -> Iterator[tuple[Any, Any]]:
    """The same by a partial sort in NumPy, while the device computes the next block."""
    places = (_places(search, start, rows) for start in starts)
    for block in _one_ahead(places):
        yield ranking_score.first_in_order(np.asarray(block), depth)


def _one_ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items; each is asked for before its predecessor is handed out, to be computed meanwhile."""
    ready = next(items)
    for item in items:
        yield ready
        ready = item
    yield ready


@functools.partial(jax.jit, static_argnames=("rows", "depth"))
def _top(search: Search, start: Array | int, rows: int, depth: int) -> tuple[Array, Array]:
    scores, indices = jax.lax.top_k(_scores(search, start, rows), depth)
    return indices.astype(jnp.int32), scores > -jnp.inf


@functools.partial(jax.jit, static_argnames="depth")
def _top_on_mesh(gallery: Any, block: Any, depth: int) -> tuple[Array, Array]:
    def top(axis: Axis, gallery: Any, block: Any) -> tuple[Array, ...]:
        (references, groups), (queries, *askers) = gallery, block
        offset = axis.index * len(references)
        out = ranking_score.exclusion_mask(askers, groups, offset, len(references))
        scores = ranking_score.ranking_score(queries, references, _half_squares(references), out)
        scores, indices = jax.lax.top_k(scores, min(depth, len(references)))
        candidates = indices.astype(jnp.int32) + offset, scores > -jnp.inf
        return ranking_score.merge(axis, depth, scores, *candidates)

    ranked: tuple[Array, Array] = by_parts(top, gallery, block)
    return ranked


@functools.partial(jax.jit, static_argnames="rows")
def _places(search: Search, start: Array | int, rows: int) -> Array:
    return ranking_score.order(_scores(search, start, rows))


def _scores(search: Search, start: Array | int, rows: int) -> Array:
    queries, *askers = _block(search, start, rows)
    out = ranking_score.exclusion_mask(askers, search.mask.of_gallery, 0, search.gallery.shape[0])
    if search.distances is not None:
        scores = 0.0 - jax.lax.dynamic_slice_in_dim(search.distances, start, rows)
        return scores if out is None else jnp.where(out, -jnp.inf, scores)
    assert search.half_squares is not None
    return ranking_score.ranking_score(queries, search.gallery, search.half_squares, out)


def _block(
    search: Search, start: Array | int, rows: int
) -> tuple[Array, Array | None, Array | None]:
    """Some of the queries, the rows of the gallery that they are, and which do not count."""
    of_all = (search.queries, search.own, search.mask.of_queries)
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, rows), of_all)
