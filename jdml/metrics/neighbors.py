"""Nearest neighbours by Euclidean distance: exact, in blocks of queries, ties to the lowest index."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jdml.metrics.array_conversion import accepts_any_array
from jdml.metrics.gallery_search import (
    Block,
    Neighbors,
    chunk_of,
    exact_nearest,
    nearest_rows,
    norms,
    scores_of,
    without_own,
)
from jdml.metrics.ranking_score import choose_centering, merge, rows_per_block
from jdml.ops import checks, safe_norm
from jdml.ops.chunking import by_platform, over_rows
from jdml.ops.meshes import Axis, by_parts
from jdml.ops.numerics import accumulate_in


@accepts_any_array()
def nearest(
    queries: Array,
    gallery: Any,
    k: int,
    *,
    exclude_self: bool = False,
    block_size: int | None = None,
) -> tuple[Array, Array]:
    """Find the k nearest gallery rows of every query, nearest first.

    Formula:
        ``indices[i] = argsort_j ‖q_i − g_j‖`` (the first k), ``distances[i, n] = ‖q_i − g_{indices[i, n]}‖``

    Args:
        queries: ``[Q, D]`` floating, compared as given.
        gallery: ``[N, D]`` floating. On a mesh each device searches its own rows, and the best are merged; a
            ``numpy.memmap`` is read from disk in pieces, and searched in float32.
        k: how many neighbours, at most N (N − 1 with ``exclude_self``).
        exclude_self: query i is gallery row i, and no neighbour of its own; other rows equal to it are.
        block_size: how many queries are compared at a time; default: a few tens of MiB at once.

    Returns:
        Distances ``[Q, k]`` in float32 (float64 for float64 inputs), and indices ``[Q, k]`` int32.

    Raises:
        ValueError: k out of range, ``exclude_self`` with more queries than gallery rows; a row that is not finite,
            outside ``jit``.

    Implementation notes:
        The neighbours are chosen by a matrix product in full precision, with vectors moved and scaled so that neither
        a common offset, nor large numbers, nor a few rows far away cost the others digits. Rows within a thousandth of
        what most are apart, and rows far from most of a gallery, are told from each other by rounding. The distances of
        what is chosen, and its order, are computed from the differences of the vectors: exact zeros for duplicates,
        gradient 0 there. Differentiable in the distances. Under ``jit``, where a row that is not finite cannot be
        refused, it is the last of all neighbours, and its distances are NaN: other rows' answers do not depend on it.
        Memory O(block × (N + k·D)). On a CPU, outside ``jit``, up to 64 float32 queries are compared by NumPy, for
        which nothing is compiled, and more by programs for few sizes, to which they and the gallery are padded: a
        gallery may grow row by row. Otherwise there is a program for each shape and k.
        ``jax.export`` may leave the number of queries open, not the gallery's size.

    Reference:
        Johnson, Douze & Jégou, *Billion-scale similarity search with GPUs* (exact search there).

    Example:
        >>> import jax.numpy as jnp
        >>> points = jnp.array([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])
        >>> distances, indices = nearest(points, points, 2, exclude_self=True)
        >>> indices
        Array([[2, 1],
               [2, 0],
               [0, 1]], dtype=int32)
        >>> distances[0]
        Array([1., 5.], dtype=float32)
    """
    is_on_disk = isinstance(gallery, np.memmap)
    if is_on_disk or _are_on_host(queries, gallery):
        _check_search(queries, gallery, k, exclude_self, block_size)
        neighbors, wanted = None, k + exclude_self
        if len(queries) <= FEW and block_size is None and not is_on_disk:
            neighbors = _nearest_of_few(np.asarray(queries), np.asarray(gallery), wanted)
        neighbors = neighbors or nearest_rows(queries, gallery, wanted, block_size)
        if exclude_self:
            neighbors = without_own(neighbors, np.arange(len(queries)))
        return jax.device_put(neighbors)  # which compiles nothing
    if not exclude_self and not checks.is_fixed_shape(queries):
        neighbors = jax.vmap(lambda query: _nearest(query[None], gallery, k))(queries)
        return neighbors[0][:, 0], neighbors[1][:, 0]
    distances, indices, whole = _nearest(
        queries, gallery, k, exclude_self=exclude_self, block_size=block_size
    )
    if not isinstance(whole, jax.core.Tracer) and not whole:
        checks.check_finite("queries", queries)
        checks.check_finite("gallery", gallery)
    return distances, indices


FEW = 64
"""Queries that a CPU compares without compiling a program."""


def _are_on_host(queries: Any, gallery: Any) -> bool:
    """Whether both are float32, or narrower, and in this process's memory, where JAX computes, too."""
    both = (queries, gallery)
    return (
        by_platform(True, False)
        and all(checks.is_on_host(x) and x.ndim == 2 for x in both)
        and all(jnp.issubdtype(x.dtype, jnp.floating) for x in both)
        and accumulate_in(*both) == jnp.float32
    )


def _nearest_of_few(queries: np.ndarray, gallery: np.ndarray, k: int) -> Neighbors | None:
    """Search by NumPy; None where the square of a row is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        queries, gallery = (x.astype(np.float32, copy=False) for x in (queries, gallery))
        halves, longest = norms(gallery)
        is_short = np.isfinite(longest) and np.isfinite(np.square(queries).sum(1)).all()
    return exact_nearest(queries, gallery, halves, longest, k) if is_short else None


@functools.partial(jax.jit, static_argnames=("k", "exclude_self", "block_size"))
def _nearest(
    queries: Array,
    gallery: Array,
    k: int,
    *,
    exclude_self: bool = False,
    block_size: int | None = None,
) -> tuple[Array, Array, Array]:
    """Distances, indices, and whether all that was compared is finite."""
    _check_search(queries, gallery, k, exclude_self, block_size)
    dtype = accumulate_in(queries, gallery)
    queries, gallery = jnp.asarray(queries, dtype), jnp.asarray(gallery, dtype)

    def search(axis: Axis, gallery: Array, queries: Array) -> tuple[Array, Array, Array]:
        """Each device searches its rows of the gallery, and the best are merged."""
        frame = choose_centering(*map(jax.lax.stop_gradient, (queries, gallery)), axis=axis)
        chunk = chunk_of(jax.lax.stop_gradient(gallery), frame)
        offset = axis.index * len(gallery)

        def of_block(block: Block) -> tuple[tuple[Array, ...], tuple[()]]:
            probes = block._replace(queries=jax.lax.stop_gradient(block.queries))
            score, here = jax.lax.top_k(
                scores_of(chunk, probes, frame, offset), min(k, len(gallery))
            )
            distances = safe_norm(block.queries[:, None, :] - gallery[here])[..., 0]
            distances, indices = merge(axis, k, score, distances, here.astype(jnp.int32) + offset)
            return tuple(jax.lax.sort((distances, indices), num_keys=2)), ()

        own = jnp.arange(len(queries), dtype=jnp.int32) if exclude_self else None
        rows = block_size or rows_per_block(len(queries), len(gallery) + k * queries.shape[1])
        (distances, indices), _ = over_rows(of_block, Block(queries, own), block=rows)
        is_whole = axis.least(jnp.isfinite(chunk.half_squares).all().astype(jnp.int32)) > 0
        return distances, indices, is_whole & jnp.isfinite(queries).all()

    neighbors: tuple[Array, Array, Array] = by_parts(search, gallery, queries)
    return neighbors


def _check_search(
    queries: Array, gallery: Any, k: int, exclude_self: bool, block_size: int | None
) -> None:
    checks.check_embeddings("queries", queries)
    checks.check_fixed_shape("queries", queries)
    checks.check_fixed_shape("gallery", gallery)
    checks.check_embeddings("gallery", gallery, dim=queries.shape[1], like="queries")
    checks.count("k", k)
    checks.optional(checks.count)("block_size", block_size)
    size = gallery.shape[0]
    if exclude_self and queries.shape[0] > size:
        raise ValueError(
            f"exclude_self takes query i for gallery row i: queries must have at most {size} rows, "
            f"got {queries.shape[0]}"
        )
    others = size - exclude_self
    if k > others:
        rows = "the other gallery rows" if exclude_self else "the gallery rows"
        raise ValueError(f"k must be at most the number of {rows}, {others}, got {k}")
