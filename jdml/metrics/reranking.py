"""A second look at a ranking: neighbours that are each other's, vectors moved towards their neighbours."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jdml.metrics.array_conversion import accepts_any_array
from jdml.metrics.neighbors import nearest
from jdml.metrics.relevance import checked_own, rows_of
from jdml.ops import checks, sphere
from jdml.ops.checks import Rerank

AT_A_TIME = 1 << 16
"""Pairs of vectors whose distances are taken at once."""


@accepts_any_array()
def rerank(
    queries: Array,
    gallery: Array | None = None,
    *,
    k1: int = 20,
    k2: int = 6,
    weight: float = 0.3,
    released: bool = False,
    self_index: Any = None,
) -> Array:
    """Compute distances by which neighbours that are each other's come first: k-reciprocal re-ranking.

    Formula:
        Among queries and gallery together, N(p, k): p and its k nearest; R(p, k) = {g ∈ N(p, k): p ∈ N(g, k)};
        R*(p): R(p, k1) and every R(q, k1/2) of a q in it that has at least 2/3 of its rows in R(p, k1).
        ``V_pg = exp(−d_pg)`` for g in R*(p), else 0, averaged over p's k2 nearest (with p);
        ``d* = (1 − weight) (1 − Σ_g min(V_p, V_q) / Σ_g max(V_p, V_q)) + weight d_pq`` with Euclidean d.

    Args:
        queries: ``[Q, D]`` floating, on the sphere as a rule: d is compared with a share.
        gallery: ``[N, D]``. Default: the queries.
        k1: how many neighbours are looked at; about as many as a class has rows.
        k2: over how many the neighbourhoods are averaged; 1 for none.
        weight: λ, of the distance that was; 1 changes nothing.
        released: as the authors' program has it: d² over the largest of its row in place of d, V divided by its sum,
            and *more* than 2/3.
        self_index: ``[Q]``, the gallery's row that a query is itself: it counts once among the neighbours, as that row;
            −1: none. Default: −1 for all, and the own row where there is no gallery.

    Returns:
        ``[Q, N]`` float32, for ``evaluate_retrieval(distances=…)``.

    Raises:
        ValueError: k1 or k2 < 1, ``weight`` outside 0…1, a row that is not finite, ``self_index`` outside −1…N−1.

    Implementation notes:
        The neighbourhoods are sparse matrices on the host: memory O((Q + N)·k1²) at most and the result. Other queries
        count among the neighbours, so that a query's answers depend on who else asks. Not for ``jit``.

    Reference:
        Zhong, Zheng, Cao & Li, *Re-ranking Person Re-identification with k-reciprocal Encoding*, eq. 1 to 12.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[0.0], [0.3], [-0.2], [-0.32], [-0.34], [-0.36]])
        >>> rerank(x[:1], x[1:], k1=2, k2=1)[0].argsort()  # -0.2 is nearer, but has nearer ones
        Array([0, 1, 2, 3, 4], dtype=int32)
    """
    checks.check_concrete("rerank", queries, gallery, self_index)
    checks.check_embeddings("queries", queries)
    checks.count("k1", k1)
    checks.count("k2", k2)
    checks.unit_interval("weight", weight)
    asked = np.asarray(checks.as_finite("queries", queries))
    if gallery is None:
        gallery, self_index = queries, np.arange(len(asked)) if self_index is None else self_index
    checks.check_embeddings("gallery", gallery, dim=queries.shape[1], like="queries")
    searched = np.asarray(checks.as_finite("gallery", gallery))
    self_index = np.full(len(asked), -1) if self_index is None else self_index
    own = np.asarray(checked_own(self_index, len(asked), len(searched)))
    lone = own < 0  # they come first, and then the gallery
    first = lone.sum()
    places = np.where(lone, np.cumsum(lone) - 1, first + own)
    every = jnp.asarray(np.concatenate([asked[lone], searched]))
    size = len(every)
    if not size:
        return jnp.zeros((len(asked), 0), jnp.float32)
    near = np.arange(size)[:, None]
    most = min(max(k1, k2 - 1), size - 1)
    if most:
        near = np.concatenate(
            [near, np.asarray(nearest(every, every, most, exclude_self=True)[1])], 1
        )
    vectors = np.asarray(every, np.float64)
    scale = _farthest(vectors) if released else np.ones(size)
    neighbours = _neighbourhoods(near, k1, strict=released)
    rows, columns = neighbours.nonzero()
    apart = np.empty(len(rows))
    for part in (slice(n, n + AT_A_TIME) for n in range(0, len(rows), AT_A_TIME)):
        apart[part] = np.linalg.norm(vectors[rows[part]] - vectors[columns[part]], axis=1)
    apart = np.square(apart) / scale[rows] if released else apart
    encoded = neighbours.astype(np.float64)
    encoded.data = np.exp(-apart)
    if released:
        encoded = encoded.multiply(1 / encoded.sum(axis=1)[:, None]).tocsr()
    encoded = _listed(near[:, :k2]).astype(np.float64) @ encoded / min(k2, near.shape[1])
    far = scale[places] if released else None
    return jnp.asarray(_final(encoded, places, first, weight, asked, vectors[first:], far))


def _listed(near: np.ndarray) -> Any:
    """Lists of neighbours ``[M, k]`` as a sparse matrix ``[M, M]`` of ones."""
    from scipy.sparse import csr_array

    rows = np.repeat(np.arange(len(near)), near.shape[1])
    ones = np.ones(near.size, np.int32)
    return csr_array((ones, (rows, near.reshape(-1))), shape=(len(near), len(near)))


def _neighbourhoods(near: np.ndarray, k1: int, *, strict: bool) -> Any:
    """R* of every row: a sparse matrix whose entries count, sorted by row and column."""
    whole, half = (_listed(near[:, : k + 1]) for k in (k1, int(np.around(k1 / 2))))
    mutual, close = whole.multiply(whole.T).tocsr(), half.multiply(half.T).tocsr()
    shared = (mutual @ close.T).multiply(mutual).tocoo()  # how much of R(q, k1/2) lies in R(p, k1)
    thirds = 3 * shared.data - 2 * close.sum(axis=1)[shared.col]
    shared.data = (thirds > 0 if strict else thirds >= 0).astype(np.int32)
    joined = (mutual + shared.tocsr() @ close).tocsr()
    joined.eliminate_zeros()
    joined.sort_indices()
    return joined


def _farthest(vectors: np.ndarray) -> np.ndarray:
    """The squared distance of each row to the farthest; 1 where all are one point."""
    from scipy.spatial.distance import cdist

    step = max(1, AT_A_TIME * 16 // len(vectors))
    blocks = (cdist(vectors[n : n + step], vectors) for n in range(0, len(vectors), step))
    most = np.square(np.concatenate([block.max(axis=1) for block in blocks]))
    return np.where(most > 0, most, 1.0)


def _final(
    encoded: Any,
    places: np.ndarray,
    first: int,
    weight: float,
    asked: np.ndarray,
    searched: np.ndarray,
    scale: np.ndarray | None,
) -> np.ndarray:
    """The final distances ``[Q, N]`` of the rows at some places to those of the gallery, query by query."""
    from scipy.spatial.distance import cdist

    gallery, sums = encoded[first:].tocsc(), encoded.sum(axis=1)
    final = np.empty((len(places), gallery.shape[0]), np.float32)
    for query, place in enumerate(places):
        own = encoded[[place]].tocoo()
        there = gallery[:, own.col].tocsc()
        there.data = np.minimum(there.data, np.repeat(own.data, np.diff(there.indptr)))
        shared = there.sum(axis=1)
        jaccard = 1 - shared / (sums[place] + sums[first:] - shared)
        apart = cdist(asked[[query]], searched)[0]
        apart = apart if scale is None else np.square(apart) / scale[query]
        final[query] = (1 - weight) * jaccard + weight * apart
    return final


@accepts_any_array()
def expand_queries(
    queries: Array, gallery: Any, *, k: int = 10, alpha: float = 3.0, self_index: Any = None
) -> Array:
    """Move queries towards what they find: query expansion by similarity (αQE).

    Formula:
        ``sphere(q + Σ_{i≤k} max(cos(q, g_i), 0)^α g_i)`` over the k nearest g_i of the gallery.

    Args:
        queries: ``[Q, D]`` floating, on the sphere.
        gallery: ``[N, D]``, likewise; on a mesh, or a ``numpy.memmap``, too.
        k: how many neighbours.
        alpha: α; 0 is the plain average (AQE), large ones trust the nearest only.
        self_index: ``[Q]``, the gallery's row that a query is itself, which it does not find; −1: none.

    Returns:
        ``[Q, D]`` float32 on the sphere, to be searched with in place of the queries.

    Raises:
        ValueError: k beyond the gallery, α < 0, a row that is not finite, ``self_index`` outside −1…N−1.

    Reference:
        Chum et al., *Total Recall* (AQE); Radenović, Tolias & Chum, *Fine-tuning CNN Image Retrieval with No Human
        Annotation*, §3.3 (αQE).

    Example:
        >>> import jax.numpy as jnp
        >>> expand_queries(jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 1.0], [-1.0, 0.0]]), k=1, alpha=0.0).round(4)
        Array([[0.7071, 0.7071]], dtype=float32)
    """
    checks.check_concrete("expand_queries", queries, gallery, self_index)
    rows = _others(queries, gallery, k, self_index)
    return _moved(queries, rows, gallery, alpha)


@accepts_any_array()
def augment_gallery(gallery: Array, *, k: int = 10, alpha: float = 0.0) -> Array:
    """Replace every row of a gallery by the average of itself and its neighbours: database-side augmentation.

    Formula:
        ``sphere(g + Σ_{i≤k} max(cos(g, g_i), 0)^α g_i)`` over the k nearest other rows g_i.

    Args:
        gallery: ``[N, D]`` floating, on the sphere; on a mesh, too.
        k: how many neighbours; fewer than a class has rows.
        alpha: α; 0 is the plain average.

    Returns:
        ``[N, D]`` float32 on the sphere. Done once, it costs a search nothing.

    Raises:
        ValueError: k beyond the other rows, α < 0, a row that is not finite.

    Reference:
        Arandjelović & Zisserman, *Three Things Everyone Should Know to Improve Object Retrieval*, §5.

    Example:
        >>> import jax.numpy as jnp
        >>> augment_gallery(jnp.array([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]), k=1).round(4)
        Array([[ 0.7071,  0.7071],
               [ 0.7071,  0.7071],
               [ 0.7071, -0.7071]], dtype=float32)
    """
    checks.check_concrete("augment_gallery", gallery)
    checks.check_embeddings("gallery", gallery)
    vectors = checks.as_finite("gallery", gallery)
    on_disk = isinstance(gallery, np.memmap)
    searched = gallery if on_disk else vectors
    _, rows = nearest(vectors, searched, k, exclude_self=True)
    return _moved(vectors, np.asarray(rows), searched, alpha)


class Ranked(NamedTuple):
    """Queries in a gallery, ranked by their distances or by others ``[Q, N]``."""

    queries: Any
    gallery: Any
    self_index: Any
    distances: Array | None = None


def look_again(kind: Rerank, queries: Any, gallery: Any = None, self_index: Any = None) -> Ranked:
    """Rank again in one of the ways of this module."""
    if gallery is None and kind != "none":
        gallery, self_index = queries, np.arange(len(queries)) if self_index is None else self_index
    ranked = Ranked(queries, gallery, self_index)
    if kind == "none":
        return ranked
    if kind == "reciprocal":
        return ranked._replace(distances=rerank(queries, gallery, self_index=self_index))
    has_own = self_index is not None and bool((np.asarray(self_index) >= 0).any())
    k = min(10, len(gallery) - (has_own or kind == "augment"))
    if k < 1:
        return ranked
    if kind == "augment":
        return ranked._replace(gallery=augment_gallery(gallery, k=k))
    return ranked._replace(queries=expand_queries(queries, gallery, k=k, self_index=self_index))


def _others(queries: Array, gallery: Any, k: int, self_index: Any) -> np.ndarray:
    """The k nearest rows of a gallery ``[Q, k]``, without the one that a query is itself."""
    checks.check_embeddings("queries", queries)
    checks.check_embeddings("gallery", gallery, dim=queries.shape[1], like="queries")
    checks.count("k", k)
    own = checked_own(self_index, len(queries), len(gallery))
    if own is None or (own < 0).all():
        return np.asarray(nearest(queries, gallery, k)[1])
    others = len(gallery) - 1
    if k > others:
        raise ValueError(
            f"k must be at most the number of the other gallery rows, {others}, got {k}"
        )
    rows = np.asarray(nearest(queries, gallery, k + 1)[1])
    own_last = np.argsort(rows == own[:, None], axis=1, kind="stable")
    return np.take_along_axis(rows, own_last[:, :k], axis=1)


def _moved(vectors: Array, rows: np.ndarray, gallery: Any, alpha: float) -> Array:
    """Vectors moved towards rows ``[Q, k]`` of a gallery, some at a time, on the sphere; they lie where they lay."""
    checks.non_negative("alpha", alpha)
    every = jnp.asarray(vectors, jnp.float32)
    own, k = np.asarray(every), rows.shape[1]
    step, moved = max(1, AT_A_TIME // k), [own[:0]]
    for part in (slice(start, start + step) for start in range(0, len(own), step)):
        near = rows_of(gallery, rows[part].reshape(-1)).astype(np.float32)
        moved.append(np.asarray(_towards(own[part], near.reshape(-1, k, own.shape[1]), alpha)))
    return jax.device_put(np.concatenate(moved), every.sharding)


@jax.jit
def _towards(own: Array, near: Array, alpha: Array | float) -> Array:
    """Vectors ``[n, D]`` moved towards their neighbours ``[n, k, D]``."""
    cosines = jnp.sum(sphere(own)[:, None, :] * sphere(near), axis=-1)
    weights = jnp.maximum(cosines, 0.0) ** alpha
    return sphere(own + jnp.sum(weights[..., None] * near, axis=1))
