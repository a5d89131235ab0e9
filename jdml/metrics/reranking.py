"""A second look at a ranking: neighbours that are each other's, vectors moved towards their neighbours."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jdml.metrics.array_conversion import accepts_any_array
from jdml.metrics.gallery_search import without_own
from jdml.metrics.neighbors import nearest
from jdml.metrics.relevance import checked_own, rows_of
from jdml.ops import checks, sphere

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
    from scipy.spatial.distance import cdist

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
        return jnp.zeros((0, 0), jnp.float32)
    near = np.arange(size)[:, None]
    most = min(max(k1, k2 - 1), size - 1)
    if most:
        near = np.concatenate(
            [near, np.asarray(nearest(every, every, most, exclude_self=True)[1])], 1
        )
    vectors = np.asarray(every, np.float64)
    encoded = _neighbourhoods(near, k1).astype(np.float64)
    rows, columns = encoded.nonzero()
    for part in (slice(n, n + AT_A_TIME) for n in range(0, len(rows), AT_A_TIME)):
        apart = np.linalg.norm(vectors[rows[part]] - vectors[columns[part]], axis=1)
        encoded.data[part] = np.exp(-apart)
    encoded = _listed(near[:, :k2]).astype(np.float64) @ encoded / min(k2, near.shape[1])
    among, sums = encoded[first:].tocsc(), encoded.sum(axis=1)
    final = np.empty((len(asked), len(searched)), np.float32)
    for query, place in enumerate(places):
        of_query = encoded[[place]].tocoo()
        there = among[:, of_query.col].tocsc()
        there.data = np.minimum(there.data, np.repeat(of_query.data, np.diff(there.indptr)))
        shared = there.sum(axis=1)
        jaccard = 1 - shared / (sums[place] + sums[first:] - shared)
        apart = cdist(asked[[query]], vectors[first:])[0]
        final[query] = (1 - weight) * jaccard + weight * apart
    return jnp.asarray(final)


def _listed(near: np.ndarray) -> Any:
    """Lists of neighbours ``[M, k]`` as a sparse matrix ``[M, M]`` of ones."""
    from scipy.sparse import csr_array

    rows = np.repeat(np.arange(len(near)), near.shape[1])
    ones = np.ones(near.size, np.int32)
    return csr_array((ones, (rows, near.reshape(-1))), shape=(len(near), len(near)))


def _neighbourhoods(near: np.ndarray, k1: int) -> Any:
    """R* of every row: a sparse matrix whose entries count, sorted by row and column."""
    whole, half = (_listed(near[:, : k + 1]) for k in (k1, int(np.around(k1 / 2))))
    mutual, close = whole.multiply(whole.T).tocsr(), half.multiply(half.T).tocsr()
    shared = (mutual @ close.T).multiply(mutual).tocoo()  # how much of R(q, k1/2) lies in R(p, k1)
    shared.data = (3 * shared.data >= 2 * close.sum(axis=1)[shared.col]).astype(np.int32)
    joined = (mutual + shared.tocsr() @ close).tocsr()
    joined.eliminate_zeros()
    joined.sort_indices()
    return joined


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
    checks.check_embeddings("queries", queries)
    checks.check_embeddings("gallery", gallery, dim=queries.shape[1], like="queries")
    checks.count("k", k)
    size = len(gallery)
    own = checked_own(self_index, len(queries), size)
    if own is None or (own < 0).all():
        rows = np.asarray(nearest(queries, gallery, k)[1])
    elif k < size:
        rows = without_own(nearest(queries, gallery, k + 1), own)[1]
    else:
        raise ValueError(f"k must be at most the number of the other rows, {size - 1}, got {k}")
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
    rows = np.asarray(nearest(vectors, vectors, k, exclude_self=True)[1])
    return _moved(vectors, rows, vectors, alpha)


def look_again(
    kind: checks.Rerank, queries: Any, gallery: Any = None, self_index: Any = None
) -> tuple[Any, Any, Any, Array | None]:
    """Rank again in one of the ways of this module: queries, gallery, own rows, and distances ``[Q, N]`` if others."""
    if kind == "none":
        return queries, gallery, self_index, None
    if gallery is None:
        gallery, self_index = queries, np.arange(len(queries)) if self_index is None else self_index
    if kind == "reciprocal":
        apart = rerank(queries, gallery, self_index=self_index)
        return queries, gallery, self_index, apart
    has_own = self_index is not None and bool((np.asarray(self_index) >= 0).any())
    k = min(10, len(gallery) - (has_own or kind == "augment"))
    if kind == "augment" and k > 0:
        gallery = augment_gallery(gallery, k=k)
    elif k > 0:
        queries = expand_queries(queries, gallery, k=k, self_index=self_index)
    return queries, gallery, self_index, None


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
