import tracemalloc

import chex
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from scipy.spatial.distance import cdist

from jdml.metrics import (
    augment_gallery,
    expand_queries,
    gallery_search,
    nearest,
    ranking_score,
    rerank,
)
from jdml.metrics.reranking import look_again
from oracles import metrics as oracle


@pytest.mark.parametrize("exclude_self", [False, True])
@pytest.mark.parametrize("whole", [False, True], ids=["generic", "ties"])
@pytest.mark.parametrize("block_size", [None, 7])
def test_nearest_equals_the_oracle(exclude_self, whole, block_size):
    rng = np.random.default_rng(0)
    vectors = rng.integers(-2, 3, (50, 3)) if whole else rng.normal(size=(50, 3))
    vectors = vectors.astype(np.float32)
    queries = vectors if exclude_self else vectors[::2] + 1
    apart = cdist(queries, vectors)
    if exclude_self:
        np.fill_diagonal(apart, np.inf)
    order = np.argsort(apart, axis=1, kind="stable")
    for k in (5, 49):
        options = {"exclude_self": exclude_self, "block_size": block_size}
        distances, indices = nearest(queries, vectors, k, **options)
        np.testing.assert_array_equal(indices, order[:, :k])
        expected = np.take_along_axis(apart, order[:, :k], axis=1)
        np.testing.assert_allclose(distances, expected, rtol=1e-6)
        assert indices.dtype == jnp.int32


def test_distances_of_near_points_far_from_zero_are_accurate():
    """Neighbours at 1e-5 around points of length 100: the expanded square would be mostly rounding."""
    rng = np.random.default_rng(1)
    points = rng.normal(size=(20, 8)).astype(np.float32) * 100
    near = points + 1e-4 * np.sign(points)
    distances, indices = nearest(points, near, 1)
    np.testing.assert_array_equal(indices[:, 0], np.arange(20))
    wide = near.astype(np.float64) - points.astype(np.float64)
    np.testing.assert_allclose(distances[:, 0], np.linalg.norm(wide, axis=1), rtol=1e-5)
    chex.assert_trees_all_equal(nearest(points, points, 1)[0], jnp.zeros((20, 1)))


def test_array_types():
    """Distances in half precision would make most of them tie."""
    points = np.random.default_rng(2).normal(size=(60, 16)).astype(np.float32) / 64 + 1
    for dtype in (jnp.float16, jnp.bfloat16, ml_dtypes.float8_e4m3fn):
        narrow = points.astype(dtype)
        expected = nearest(narrow.astype(np.float32), points, 3)
        for queries in (narrow, jnp.asarray(narrow)):
            chex.assert_trees_all_equal(nearest(queries, points, 3), expected)
    expected = nearest(points, points, 3)
    with jax.enable_x64(True):
        wide, indices = nearest(points.astype(np.float64), points, 3)
    assert wide.dtype == np.float64
    np.testing.assert_array_equal(indices, expected[1])


def test_jit_vmap_and_one_trace():
    points = jnp.asarray(np.random.default_rng(3).normal(size=(2, 11, 3)), jnp.float32)

    def search(queries):
        return nearest(queries, queries, 4, exclude_self=True, block_size=4)

    batched = jax.vmap(search)(points)
    once = jax.jit(chex.assert_max_traces(search, n=1))
    for i in range(2):
        one = once(points[i])
        chex.assert_trees_all_close(one, jax.tree.map(lambda x, i=i: x[i], batched), rtol=1e-6)


def test_number_of_queries_may_be_left_open_in_an_exported_search():
    points = np.random.default_rng(4).normal(size=(30, 3)).astype(np.float32)
    (rows,) = jax.export.symbolic_shape("rows")
    several = jax.ShapeDtypeStruct((rows, 3), jnp.float32)
    program = jax.export.export(jax.jit(lambda queries: nearest(queries, points, 4)))(several)
    for queries in (points[:1], points[5:12]):
        chex.assert_trees_all_close(program.call(queries), nearest(queries, points, 4), rtol=1e-6)
    with pytest.raises(ValueError, match=r"^gallery\b"):
        jax.export.export(jax.jit(lambda gallery: nearest(points, gallery, 4)))(several)
    with pytest.raises(ValueError, match=r"^queries\b"):
        jax.export.export(jax.jit(lambda x: nearest(x, x, 4, exclude_self=True)))(several)


def test_gradients_of_distances_are_finite_and_correct():
    points = jnp.array([[0.0, 0.0], [3.0, 4.0], [3.0, 4.0], [9.0, 9.0]])

    def total(queries):
        return nearest(queries, points, 2)[0].sum()

    gradient = jax.grad(total)(points[:3])
    expected = [[-0.6 - 0.0, -0.8], [0.0, 0.0], [0.0, 0.0]]
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_empty_and_many_queries():
    points = np.zeros((3, 2), np.float32)
    for search in (nearest, jax.jit(nearest, static_argnums=2)):
        distances, indices = search(points[:0], points, 2)
        assert distances.shape == indices.shape == (0, 2)
    assert ranking_score.rows_per_block(10**6, 10**7) == 8
    assert ranking_score.rows_per_block(5, 10) == 5


def test_memory_is_bounded():
    vectors = jax.ShapeDtypeStruct((60_000, 512), jnp.float32)
    search = jax.jit(nearest, static_argnames="k")
    used = search.lower(vectors, vectors, k=100).compile().memory_analysis()
    # The queries in blocks and the moved gallery, 117 MiB each, and one block's work.
    assert used.temp_size_in_bytes < 512 * 2**20


@pytest.mark.parametrize("path", ["_top", "_places"])
def test_temporaries_of_sixty_thousand_queries_are_small(path):
    size, dim = 60_000, 512
    vectors = jax.ShapeDtypeStruct((size, dim), jnp.float32)
    numbers = jax.ShapeDtypeStruct((size,), jnp.float32)
    rows = ranking_score.rows_per_block(size, size)
    own = jax.ShapeDtypeStruct((rows,), jnp.int32)
    queries = jax.ShapeDtypeStruct((rows, dim), jnp.float32)
    frame = jnp.zeros((1, dim)), jnp.int32(0)
    block = gallery_search.Block(queries, own)
    depth = (8192,) if path == "_top" else ()
    arguments = gallery_search.Chunk(numbers, vectors), block, frame, *depth
    compiled = getattr(gallery_search, path).lower(*arguments).compile()
    used = compiled.memory_analysis()
    assert used.temp_size_in_bytes + used.output_size_in_bytes < 128 * 2**20  # the issue: 512 MiB


def test_differences_of_many_neighbours_are_computed_in_small_parts():
    points = np.random.default_rng(4).normal(size=(700, 64)).astype(np.float32)
    tracemalloc.start()
    distances, _ = nearest(points, points, 600)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30 * 2**20, peak  # all differences: 103 MiB
    expected, _ = jax.jit(nearest, static_argnames="k")(points, points, k=600)
    chex.assert_trees_all_close(distances, expected, rtol=1e-5)


@pytest.mark.parametrize("same", [1e4, 1e30, 3e38])
def test_shared_offset_costs_no_precision(same):
    points = np.random.default_rng(3).normal(size=(40, 3)).astype(np.float32)
    shared = np.column_stack([points, np.full(40, same, np.float32)])
    expected = nearest(points, points, 5, exclude_self=True)
    chex.assert_trees_all_equal(nearest(shared, shared, 5, exclude_self=True), expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_row_that_is_not_finite_is_refused_and_isolated_under_jit(bad):
    points = np.random.default_rng(4).normal(size=(12, 3)).astype(np.float32)
    queries, gallery = points[:5].copy(), points.copy()
    expected = nearest(np.delete(queries, 1, 0), gallery, 4)
    queries[1, 2] = bad
    with pytest.raises(ValueError, match=r"^queries .*row 1\b"):
        nearest(queries, gallery, 4)
    search = jax.jit(nearest, static_argnames="k")
    distances, indices = search(queries, gallery, k=4)
    assert np.isnan(distances[1]).all()
    others = jax.tree.map(lambda x: np.delete(x, 1, 0), (distances, indices))
    chex.assert_trees_all_close(others, expected, rtol=1e-6)

    expected = nearest(points, points[:8], 4)
    gallery[8:] = bad
    with pytest.raises(ValueError, match=r"^gallery .*row 8\b"):
        nearest(points, gallery, 4)
    chex.assert_trees_all_close(search(points, gallery, k=4), expected, rtol=1e-6)
    distances, indices = search(points, gallery, k=9)
    assert np.isnan(distances[:, 8]).all()
    assert (np.asarray(indices)[:, 8] >= 8).all()


@pytest.mark.parametrize("whole", [False, True], ids=["generic", "ties"])
def test_rerank_equals_the_oracle(whole):
    rng = np.random.default_rng(0)
    x = rng.integers(-2, 3, (34, 3)) if whole else rng.normal(size=(34, 3))
    x = (x / 4).astype(np.float32)
    for k1, k2, weight in ((6, 3, 0.3), (5, 1, 0.0), (50, 60, 0.5)):
        settings = {"k1": k1, "k2": k2, "weight": weight}
        expected = oracle.reranked(x[:9], x[9:], **settings)
        np.testing.assert_allclose(rerank(x[:9], x[9:], **settings), expected, atol=2e-6)
    np.testing.assert_allclose(np.diagonal(rerank(x, k1=6, k2=3)), np.zeros(34), atol=1e-6)
    assert rerank(x[:0]).shape == (0, 0)
    apart = np.linalg.norm(x[:9, None] - x[9:], axis=-1)
    np.testing.assert_allclose(rerank(x[:9], x[9:], weight=1.0), apart, rtol=1e-5)


def test_rerank_counts_a_query_in_the_gallery_once():
    x = np.random.default_rng(3).normal(size=(40, 3)).astype(np.float32)
    settings = {"k1": 6, "k2": 3, "weight": 0.3}
    order = np.random.default_rng(4).permutation(40)
    whole = rerank(x, x[order], self_index=np.argsort(order), **settings)
    np.testing.assert_allclose(whole, rerank(x, **settings)[:, order], atol=2e-6)
    queries, gallery = np.stack([x[13], x[0]]), x[10:]  # the first is in the gallery
    actual = rerank(queries, gallery, self_index=np.array([3, -1]), **settings)
    expected = oracle.reranked(x[:1], gallery, **settings)
    np.testing.assert_allclose(actual[1:], expected, atol=2e-6)
    others = np.delete(gallery, 3, axis=0)
    expected = oracle.reranked(x[13:14], np.concatenate([x[:1], others]), **settings)[:, 1:]
    np.testing.assert_allclose(np.delete(actual[:1], 3, axis=1), expected, atol=2e-6)
    alone = rerank(queries, gallery, self_index=np.full(2, -1), **settings)
    np.testing.assert_allclose(alone, rerank(queries, gallery, **settings), atol=1e-7)


def test_query_expansion_and_gallery_augmentation_equal_the_oracle(to_disk):
    rng = np.random.default_rng(0)
    x, gallery = rng.normal(size=(9, 4)).astype(np.float32), rng.normal(size=(30, 4)).astype("f4")
    x, gallery = (some / np.linalg.norm(some, axis=1, keepdims=True) for some in (x, gallery))
    there = to_disk(gallery)
    for alpha in (3.0, 0.0):
        expected = oracle.expanded(x, gallery, 4, alpha, alone=False)
        for lies in (gallery, there):
            actual = expand_queries(x, lies, k=4, alpha=alpha)
            np.testing.assert_allclose(actual, expected, atol=1e-5)
        expected = oracle.expanded(gallery, gallery, 4, alpha, alone=True)
        np.testing.assert_allclose(augment_gallery(gallery, k=4, alpha=alpha), expected, atol=1e-5)
    assert expand_queries(x[:0], there, k=4).shape == (0, 4)
    own = np.arange(30)[::-1]
    found = expand_queries(gallery, gallery[::-1].copy(), k=4, alpha=0.0, self_index=own)
    np.testing.assert_allclose(found, expected, atol=1e-5)  # equals the augmented gallery
    found = expand_queries(x, gallery, k=30, self_index=np.full(9, -1))
    expected = oracle.expanded(x, gallery, 30, 3.0, alone=False)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    many = expand_queries(np.tile(x, (250, 1)), there, k=30)  # two chunks, the last one shorter
    np.testing.assert_allclose(many, np.tile(expected, (250, 1)), atol=1e-5)


def test_second_look_at_a_single_row():
    x = np.ones((1, 3), np.float32)
    for kind in ("none", "reciprocal", "expand", "augment"):
        for gallery in (None, x):
            assert len(look_again(kind, x, gallery)[0]) == 1


def test_answers_are_the_same_bits_whatever_the_shapes():
    """Of fewer queries, for fewer neighbours, and in a gallery that grew by rows far away."""
    rng = np.random.default_rng(7)
    gallery, queries = (rng.normal(size=(size, 24)).astype(np.float32) for size in (900, 64))
    expected = nearest(queries, gallery, 60)
    for size, k, more in ((1, 60, 0), (7, 1, 1), (33, 20, 300), (64, 60, 17)):
        grown = np.concatenate([gallery, np.full((more, 24), 100, np.float32)])
        for answer, whole in zip(nearest(queries[:size], grown, k), expected, strict=True):
            np.testing.assert_array_equal(answer, whole[:size, :k])


def test_nearest_on_disk_equals_memory(large, to_disk):
    gallery, _ = large
    there, queries = to_disk(gallery), gallery[:20] + np.float32(0.25)
    for k, settings in ((3, {}), (900, {"block_size": 7}), (4, {"exclude_self": True})):
        some = gallery[:20] if "exclude_self" in settings else queries
        expected, actual = (nearest(some, rows, k, **settings) for rows in (gallery, there))
        np.testing.assert_allclose(actual[0], expected[0], rtol=1e-6)
        np.testing.assert_array_equal(actual[1], expected[1])
    with pytest.raises(ValueError, match="^k .*4200"):
        nearest(queries, there, 4_201)
