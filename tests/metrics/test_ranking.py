"""Scores of rankings and of clusters equal their oracles."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdml import metrics
from jdml.metrics import nmi
from oracles import metrics as oracle

pytest.importorskip("sklearn", reason="nmi clusters with scikit-learn")

# MPA, Table 3: R = 4, k = 10, in percent: Recall@10, Precision@10, MAP@R, MAP@10, nDCG@10.
TABLE_3 = {
    "1000000000": (100, 10, 25.0, 10.0, 39.0),
    "1000000001": (100, 20, 25.0, 12.0, 50.3),
    "1010000000": (100, 20, 41.7, 16.7, 58.6),
    "1010001001": (100, 40, 41.7, 25.0, 82.9),
    "1111000000": (100, 40, 100.0, 40.0, 100.0),
}


@pytest.mark.parametrize(("ranking", "expected"), TABLE_3.items())
def test_table_3_of_the_mpa_paper(ranking, expected):
    hits = jnp.array([digit == "1" for digit in ranking])
    relevant = jnp.array(4)
    actual = (
        metrics.recall_at_k(hits, relevant, 10),
        metrics.precision_at_k(hits, relevant, 10),
        metrics.map_at_r(hits, relevant),
        metrics.map_at_k(hits, relevant, 10, divisor="k"),
        metrics.ndcg_at_k(hits, relevant, 10),
    )
    assert tuple(round(100 * float(value), 1) for value in actual) == expected


def random_rankings(seed=0, queries=40, width=24):
    rng = np.random.default_rng(seed)
    hits = rng.random((queries, width)) < rng.random((queries, 1))
    # Some relevant items may be beyond the ranking.
    return hits, np.maximum(1, hits.sum(1) + rng.integers(0, 3, queries)).astype(np.int32)


@pytest.mark.parametrize("k", [1, 5, 24, 40])
def test_every_metric_equals_its_oracle(k):
    hits, relevant = random_rankings()
    of_divisors = [
        (metrics.map_at_k(hits, relevant, k, divisor=d), partial(oracle.map_at_k, k=k, divisor=d))
        for d in ("min", "k", "relevant")
    ]
    for actual, plain in (
        (metrics.recall_at_k(hits, relevant, k), lambda h, r: oracle.recall(h, k)),
        (metrics.precision_at_k(hits, relevant, k), lambda h, r: sum(h[:k]) / k),
        (metrics.true_recall_at_k(hits, relevant, k), lambda h, r: sum(h[:k]) / r),
        (metrics.ndcg_at_k(hits, relevant, k), lambda h, r: oracle.ndcg(h, r, k)),
        (metrics.precision_at_1(hits, relevant), lambda h, r: h[0]),
        (metrics.r_precision(hits, relevant), oracle.r_precision),
        (metrics.map_at_r(hits, relevant), oracle.map_at_r),
        *of_divisors,
    ):
        assert actual.dtype == jnp.float32
        expected = list(map(plain, hits.tolist(), relevant.tolist()))
        np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-7)


def all_scores(hits, relevant):
    return (
        metrics.recall_at_k(hits, relevant, 3),
        metrics.precision_at_1(hits, relevant),
        metrics.r_precision(hits, relevant),
        metrics.map_at_r(hits, relevant),
        metrics.map_at_k(hits, relevant, 3),
        metrics.ndcg_at_k(hits, relevant, 3),
    )


def test_jit_vmap_and_leading_axes_agree_and_values_do_not_retrace():
    hits, relevant = map(jnp.asarray, random_rankings())
    whole = all_scores(hits, relevant)
    chex.assert_trees_all_close(jax.vmap(all_scores)(hits, relevant), whole, rtol=1e-6)
    chex.assert_trees_all_equal(all_scores(3 * hits.astype(jnp.int8), relevant), whole)
    stacked = all_scores(hits.reshape(4, 10, -1), relevant.reshape(4, 10))
    chex.assert_trees_all_close([v.reshape(-1) for v in stacked], list(whole), rtol=1e-6)
    once = jax.jit(chex.assert_max_traces(all_scores, n=1))
    chex.assert_trees_all_close(once(hits, relevant), whole, rtol=1e-6)
    once(~hits, relevant + 1)


def test_queries_without_relevant_items_score_zero():
    hits = jnp.array([[True, True], [False, False]])
    for divisor in ("min", "k", "relevant"):
        assert not metrics.map_at_k(hits, jnp.array([0, 0]), divisor=divisor).any()
    for value in all_scores(jnp.zeros((2, 4), bool), jnp.array([0, 3])):
        assert not value.any()


def test_map_divisor_class_counts_the_query_itself():
    perfect, relevant = jnp.arange(30)[None, :] < 19, jnp.array([19])
    score = metrics.map_at_k(perfect, relevant, 1000, divisor="class")
    np.testing.assert_allclose(score, 0.95, rtol=1e-6)
    x, y = jnp.repeat(jnp.eye(4), 3, axis=0), jnp.repeat(jnp.arange(4), 3)
    scores = metrics.evaluate_retrieval(x, y, map_at=(5,), map_divisor="class")
    np.testing.assert_allclose(scores["MAP@5"], 2 / 3, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_relevant_counts_of_any_integer_type(dtype):
    hits, relevant = np.random.default_rng(1).random((3, 150)) < 0.5, np.array([127, 100, 90])
    of_divisors = (partial(metrics.map_at_k, divisor=d) for d in ("min", "k", "relevant", "class"))
    for metric in (metrics.ndcg_at_k, *of_divisors):
        for k in (100, 1000):
            actual = metric(hits, relevant.astype(dtype), k)
            np.testing.assert_array_equal(actual, metric(hits, relevant, k))


def test_ndcg_equals_scikit_learn():
    from_sklearn = pytest.importorskip("sklearn.metrics", reason="compares with scikit-learn")
    rng = np.random.default_rng(3)
    right = rng.random((30, 20)) < 0.3
    right[:, 0] = True
    scores = rng.normal(size=right.shape)
    hits = np.take_along_axis(right, np.argsort(-scores, axis=1), axis=1)
    for k in (1, 8, 20):
        expected = from_sklearn.ndcg_score(right, scores, k=k)
        actual = metrics.ndcg_at_k(hits, right.sum(1), k).mean()
        np.testing.assert_allclose(actual, expected, rtol=1e-6)


def blobs(noise=0.1):
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 4
    centres = 10 * np.eye(4)[:, :3]
    return (centres[labels] + noise * rng.normal(size=(60, 3))).astype(np.float32), labels * 7


def test_nmi_equals_the_formula_on_known_clusters():
    """Two distant clusters, which every start finds; and each point its own cluster."""
    rng = np.random.default_rng(1)
    labels, heaps = rng.integers(0, 4, 60), rng.integers(0, 2, 60)
    points = rng.normal(size=(60, 3)).astype(np.float32)
    apart = points + np.float32(100) * heaps[:, None]
    for x, clusters, count in ((apart, heaps, 2), (points, np.arange(60), 60)):
        assert nmi(x, labels, count) == pytest.approx(oracle.nmi(labels, clusters), rel=1e-9)
    assert nmi(points, labels, 1) == pytest.approx(0, abs=1e-9)


@pytest.mark.slow  # clusters from 300 starts
def test_nmi_depends_on_the_key_unless_several_starts_find_the_clusters():
    points, labels = blobs(noise=5.0)
    results = [nmi(points, labels, 9, jax.random.key(seed)) for seed in (0, 0, 1, 2, 3)]
    assert results[0] == results[1] == nmi(points, labels, num_clusters=9)
    assert len(set(results)) > 1
    assert isinstance(nmi(points, labels, key=jax.random.PRNGKey(0)), float)
    rng, labels = np.random.default_rng(0), np.repeat(np.arange(6), 20)
    points = (20 * np.eye(6)[labels] + rng.normal(size=(120, 6))).astype(np.float32)
    keys = [jax.random.key(seed) for seed in range(6)]
    assert min(nmi(points, labels, key=key) for key in keys) < 0.99
    assert [nmi(points, labels, key=key, n_init=50) for key in keys] == pytest.approx([1.0] * 6)


def test_nmi_ignores_negative_labels():
    points, labels = blobs(noise=5.0)
    expected = nmi(points[:45], labels[:45])
    labels[45:], points[50:] = -1, np.nan
    labels[47:] = -7
    assert nmi(points, labels) == expected


@pytest.mark.parametrize("exponent", [-100, -40, 64, 120])
def test_nmi_is_independent_of_scale(exponent):
    points, labels = blobs(noise=5.0)
    assert nmi(np.ldexp(points, exponent), labels) == nmi(points, labels)


@pytest.mark.parametrize(
    ("clusters", "expected"),
    [((0, 1, 1, 2, 2, 2), -0.015175191045713), ((0, 0, 1, 1, 2, 2), 0.502360702720267)],
)
def test_adjusted_mutual_information(clusters, expected):
    """As by the enumeration of all assignments; rows with a negative label take no part."""
    for classes, parts in (
        ((0, 0, 1, 1, 1, 2), clusters),
        ((0, 0, 1, 1, 1, 2, -1), (*clusters, 7)),
    ):
        actual = metrics.adjusted_mutual_information(np.array(classes), np.array(parts))
        assert actual == pytest.approx(expected, abs=1e-12)


def test_collapsed_embeddings_score_zero():
    assert nmi(np.ones((12, 2), np.float32), np.arange(12) % 3) == pytest.approx(0.0, abs=1e-9)
