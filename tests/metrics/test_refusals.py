"""Refusals of metrics, once each: by the error's class and the argument's name."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse

from jdml import metrics
from jdml.metrics import evaluate_retrieval, nearest
from jdml.metrics import expand_queries as expand
from jdml.metrics.arrays import evaluate_arrays

X, Y = np.zeros((6, 3), np.float32), np.arange(6) % 2
BAD = X.copy()
BAD[4, 1] = np.nan
ONES, PAST = np.ones((6, 3), np.float32), np.arange(1, 7)
NAMES = np.array(["cat", "dog"])[Y]
HITS, R = np.zeros((3, 5), bool), np.ones(3, np.int32)

RNG = np.random.default_rng(0)
PROXIES = RNG.normal(size=(4, 3, 5)).astype(np.float32)
POINTS = RNG.normal(size=(30, 5)).astype(np.float32)
LABELS = np.arange(30) % 3
OUTSIDE = LABELS + 2
BROKEN = np.where(np.arange(30)[:, None] == 6, np.nan, POINTS)
CLASSED = {"proxies": PROXIES, "embeddings": POINTS, "labels": LABELS}

# Calls to come: a metric with its usual arguments, some of which a row of a table changes.
spread = partial(partial, metrics.proxy_spread, **CLASSED, modes=LABELS)
distance = partial(partial, metrics.proxy_distance, **CLASSED)
mixture = partial(partial, metrics.vmf_mixture_likelihood, **CLASSED | {"proxies": PROXIES[:, 0]})
violation = partial(partial, metrics.violation_probability, beta=1.0, alpha=0.5)
retrieval = partial(partial, evaluate_retrieval)
options = partial(partial, evaluate_retrieval, X, Y)
own = partial(partial, evaluate_retrieval, X, Y, X, Y)
traced = partial(partial, jax.eval_shape)


def arrays(embeddings, labels, **gallery):
    return lambda: evaluate_arrays({"embeddings": embeddings, "labels": labels, **gallery})


RETRIEVAL = [
    (retrieval(X[0], Y), ValueError, "queries"),
    (retrieval(X.astype(int), Y), TypeError, "queries"),
    (retrieval(X.astype(object), Y), TypeError, "queries"),
    (retrieval(np.ma.masked_less(X, 1), Y), TypeError, "queries"),
    (retrieval(BAD, Y), ValueError, r"queries .*row 4\b"),
    (retrieval(np.full((6, 3), 1e300), Y), ValueError, r"queries .*row 0\b"),
    (retrieval(X, Y[:5]), ValueError, "query_labels"),
    (retrieval(X, Y * 1.0), TypeError, "query_labels"),
    (retrieval(X, np.ma.masked_less(Y, 1)), TypeError, "query_labels"),
    (retrieval(X, Y.astype(np.uint64) + np.uint64(2**63)), ValueError, r"query_labels\[0\]"),
    (retrieval(X, Y, X), ValueError, "gallery and gallery_labels"),
    (retrieval(X, Y, X[:, :2], Y), ValueError, "gallery"),
    (retrieval(X, Y, BAD, Y), ValueError, r"gallery .*row 4\b"),
    (retrieval(X, Y, X, Y[:3]), ValueError, "gallery_labels"),
    (retrieval(X, NAMES, X, Y), TypeError, "gallery_labels"),
    (retrieval(X, np.stack([Y, Y], 1), X, Y), ValueError, "query_labels and gallery_labels"),
    (own(self_index=Y * 1.0), TypeError, "self_index"),
    (own(self_index=Y[:3]), ValueError, "self_index"),
    (own(self_index=Y * 6), ValueError, r"self_index\[1\] is 6"),
    (own(self_index=-2 * Y), ValueError, r"self_index\[1\] is -2"),
    (options(ignore=Y), TypeError, "ignore"),
    (options(ignore=(Y,)), ValueError, "ignore"),
    (options(ignore=(Y, Y[:2])), ValueError, r"ignore\[1\]"),
    (options(ignore=(Y, Y / 2)), TypeError, r"ignore\[1\]"),
    (options(ignore=(Y, np.array([1, np.nan] * 3, object))), ValueError, r"ignore\[1\] .*row 1"),
    (options(ignore=(["a", np.nan, *"bcde"], [*"abcdef"])), ValueError, r"ignore\[0\] .*row 1"),
    (options(ignore=(Y, Y.astype(str))), TypeError, r"ignore\[0\] and ignore\[1\]"),
    (options(distances=np.zeros((6, 5))), ValueError, "distances"),
    (options(relevant=np.eye(6)), TypeError, "relevant"),
    (options(relevant=sparse.eye_array(5)), ValueError, "relevant"),
    (options(relevant=2 * sparse.eye_array(6)), ValueError, "relevant"),
    (retrieval(X, None, relevant=np.eye(6) > 0, average="class"), ValueError, "average"),
    (retrieval(X, np.stack([Y, Y], 1), relevant=np.eye(6) > 0), ValueError, "query_labels"),
    (options(average="classes"), ValueError, "average"),
    (retrieval(X, None), TypeError, "query_labels"),
    (retrieval(X, np.eye(6, 3, dtype=int)), ValueError, "query_labels .*relevant="),
    (retrieval(X, np.stack([[*"abcdef"], [*"xyxyxy"]], 1)), ValueError, "query_labels .*coarsest"),
    (options(recall_at=(1, 0)), ValueError, r"recall_at\[1\]"),
    (options(ndcg_at=8), TypeError, "ndcg_at"),
    (options(recall_at=(k for k in (1, 5))), TypeError, "recall_at"),
    (options(map_divisor="r"), ValueError, "map_divisor"),
    (options(block_size=0), ValueError, "block_size"),
    (retrieval(X, query_labels=Y, labels=Y), TypeError, ".*'labels'"),
    (traced(evaluate_retrieval, X, Y), TypeError, "evaluate_retrieval"),
    (traced(lambda y: evaluate_retrieval(X, Y, ignore=(y, y)), Y), TypeError, "evaluate_retrieval"),
    (traced(lambda x: evaluate_retrieval(X, Y, distances=x), X), TypeError, "evaluate_retrieval"),
]
SEARCHES = [
    (lambda: nearest(X[0], X, 1), ValueError, "queries"),
    (lambda: nearest(X, X[:, :2], 1), ValueError, "gallery"),
    (lambda: nearest(X, X.tolist(), 1), TypeError, "gallery .*list"),
    (lambda: nearest(X, X, 0), ValueError, "k"),
    (lambda: nearest(X, X, 7), ValueError, "k .* 6, got 7"),
    (lambda: nearest(X, X, 6, exclude_self=True), ValueError, "k .* 5, got 6"),
    (lambda: nearest(X, X[:2], 1, exclude_self=True), ValueError, "exclude_self"),
    (lambda: nearest(X, X, 1, block_size=0), ValueError, "block_size"),
    (lambda: metrics.rerank(ONES[0]), ValueError, "queries"),
    (lambda: metrics.rerank(ONES, k1=0), ValueError, "k1"),
    (lambda: metrics.rerank(ONES, weight=1.5), ValueError, "weight"),
    (lambda: metrics.rerank(ONES, ONES, self_index=PAST), ValueError, r"self_index\[5\]"),
    (lambda: expand(ONES, ONES, k=9), ValueError, "k .* 6, got 9"),
    (lambda: expand(ONES, ONES, k=6, self_index=np.arange(6)), ValueError, "k .* 5, got 6"),
    (lambda: expand(ONES, ONES, k=1, self_index=PAST), ValueError, r"self_index\[5\]"),
    (lambda: metrics.augment_gallery(ONES, k=6), ValueError, "k .* 5, got 6"),
    (lambda: metrics.augment_gallery(ONES, k=1, alpha=-1.0), ValueError, "alpha"),
    (lambda: metrics.augment_gallery(ONES * np.nan, k=1), ValueError, "gallery"),
    (traced(lambda x: expand(x, x, k=1), ONES), TypeError, "expand_queries"),
]
RANKINGS = [
    (lambda: metrics.ndcg_at_k(HITS * 0.5, R), TypeError, "hits"),
    (lambda: metrics.map_at_r(HITS, R * 1.0), TypeError, "num_relevant"),
    (lambda: metrics.map_at_r(HITS, R[:2]), ValueError, "num_relevant"),
    (lambda: metrics.r_precision(HITS[:, :0], R), ValueError, "hits"),
    (lambda: metrics.recall_at_k(HITS, R, 0), ValueError, "k"),
    (lambda: metrics.map_at_k(HITS, R, divisor="r"), ValueError, "divisor"),
]
CLUSTERS = [
    (lambda: metrics.nmi(X, Y[:4]), ValueError, "labels"),
    (lambda: metrics.nmi(X, Y * 0.5), TypeError, "labels"),
    (lambda: metrics.nmi(X, Y, 0), ValueError, "num_clusters"),
    (lambda: metrics.nmi(X, Y, 7), ValueError, "num_clusters"),
    (lambda: metrics.adjusted_mutual_information(Y, Y[:4]), ValueError, "labels and clusters"),
    (lambda: metrics.nmi(BAD, Y), ValueError, r"embeddings .*row 4\b"),
    (lambda: metrics.nmi(X, Y - 2), ValueError, "labels"),
    (lambda: metrics.adjusted_mutual_information(Y - 2, Y), ValueError, "labels"),
    (lambda: metrics.adjusted_mutual_information(X, Y), TypeError, "labels"),
    (lambda: metrics.adjusted_mutual_information(Y, Y / 2), TypeError, "clusters"),
]
PAIRS = [
    (lambda: metrics.verification(X, Y[:5]), ValueError, "labels"),
    (lambda: metrics.verification(X, Y, far=(2.0,)), ValueError, r"far\[0\]"),
    (lambda: metrics.verification(X, Y, far=0.1), TypeError, "far"),
    (lambda: metrics.verification(X, np.arange(6)), ValueError, "labels .*one class"),
    (lambda: metrics.verification(X, np.zeros(6, int)), ValueError, "labels .*two classes"),
    (lambda: metrics.verification(X[:1], Y[:1]), ValueError, "labels .*one class"),
    (lambda: metrics.verification(X, np.stack([Y, Y], 1)), ValueError, "labels"),
    (lambda: metrics.open_set(X, Y, X, Y + 2), ValueError, "labels: .* known"),
    (lambda: metrics.open_set(X, Y, X, Y), ValueError, "labels: .* unknown"),
    (lambda: metrics.rejection_threshold(X, Y * 0), ValueError, "gallery_labels"),
    (lambda: metrics.rejection_threshold(X, -Y), ValueError, "gallery_labels"),
    (lambda: metrics.rejection_threshold([[0.0]], Y), TypeError, "gallery"),
    (lambda: metrics.rejection_threshold(X * np.nan, Y), ValueError, "gallery"),
    (lambda: metrics.rejection_threshold(X, Y, far=-1), ValueError, "far"),
]
STRUCTURE = [
    (lambda: metrics.spectral_decay(jnp.ones((9, 4)), mode=5), ValueError, "mode"),
    (lambda: metrics.spectral_decay(jnp.ones((9, 4)), mode=0), ValueError, "mode"),
    (distance(kind="w2"), ValueError, "kind"),
    (distance(labels=OUTSIDE), ValueError, r"labels\[2\] is 4"),
    (distance(proxies=[1.0]), TypeError, "proxies"),
    (distance(proxies=PROXIES * np.nan), ValueError, r"proxies .*row 0\b"),
    (spread(delta=0.0), ValueError, "delta"),
    (spread(modes=None), ValueError, "embeddings, labels and modes"),
    (spread(modes=np.zeros(3, int)), ValueError, "modes"),
    (lambda: metrics.uniformity(BAD), ValueError, r"embeddings .*row 4\b"),
    (lambda: metrics.spectral_decay(BAD), ValueError, r"embeddings .*row 4\b"),
    (lambda: metrics.covering_radius(X, BAD), ValueError, r"centers .*row 4\b"),
    (lambda: metrics.class_covering(X, Y - 2), ValueError, "labels"),
    (traced(metrics.class_covering, X, Y), TypeError, "class_covering"),
]
PROBABILITIES = [
    (mixture(concentrations=np.inf), ValueError, "concentrations"),
    (mixture(concentrations=[1, 2]), ValueError, "concentrations"),
    (mixture(concentrations="a"), TypeError, "concentrations"),
    (mixture(weights=[1, -1, 1, 1]), ValueError, "weights"),
    (mixture(labels=OUTSIDE), ValueError, r"labels\[2\] is 4"),
    (lambda: metrics.vmf_mixture_likelihood(X, Y, BAD), ValueError, r"proxies .*row 4\b"),
    (violation(X, Y, alpha=2.0), ValueError, "alpha"),
    (violation(X, Y, beta="a"), TypeError, "beta"),
    (violation(X, Y, X), ValueError, "anchors and anchor_labels"),
    (violation(X[:1], Y[:1]), ValueError, "embeddings and anchors"),
    (violation(X, np.full(6, -1)), ValueError, "embeddings and anchors"),
    (violation(BAD, Y), ValueError, r"embeddings .*row 4\b"),
    (violation(X, Y, BAD, Y), ValueError, r"anchors .*row 4\b"),
]
ARRAYS = [
    (arrays(X[:0], Y[:0]), ValueError, "embeddings"),
    (arrays(X + 1j, Y), TypeError, "embeddings"),
    (arrays(BAD, Y), ValueError, r"embeddings .*row 4\b"),
    (arrays(X, Y / 2), ValueError, "labels"),
    (lambda: evaluate_arrays({"embeddings": X}), ValueError, ".*'labels'"),
]
TABLE = [*RETRIEVAL, *SEARCHES, *RANKINGS, *CLUSTERS, *PAIRS, *STRUCTURE, *PROBABILITIES, *ARRAYS]


@pytest.mark.parametrize(("call", "error", "name"), TABLE)
def test_refusals(call, error, name):
    with pytest.raises(error, match=rf"^{name}(?!\w)"):
        call()


@pytest.mark.parametrize("pair", [("cat", None), ("cat", float("nan")), ("cat", 3), (1, 2.5)])
def test_labels_of_several_kinds_are_refused(pair):
    labels = np.array(pair * 3, object)
    with pytest.raises(TypeError, match=r"^query_labels .*labels\.astype\(str\)"):
        evaluate_retrieval(RNG.normal(size=(6, 3)), labels)
    assert evaluate_retrieval(RNG.normal(size=(6, 3)), labels.astype(str))["queries"] == 6


LABELLED = [
    metrics.class_density,
    metrics.concentration_variance,
    lambda x, y: metrics.covering_radius(x, POINTS, where=y >= 0),
    lambda x, y: metrics.proxy_distance(PROXIES, x, y),
    lambda x, y: metrics.vmf_mixture_likelihood(x, y, PROXIES[:, 0], concentrations=2.0),
    lambda x, y: metrics.violation_probability(x, y, beta=0.5, alpha=0.1),
]


@pytest.mark.parametrize("metric", LABELLED)
def test_row_that_is_not_finite_is_refused_unless_ignored(metric):
    with pytest.raises(ValueError, match=r"row 6\b"):
        metric(BROKEN, LABELS)
    unlabelled = np.where(np.arange(30) == 6, -1, LABELS)
    assert metric(BROKEN, unlabelled) == metric(POINTS, unlabelled)


@pytest.mark.parametrize("metric", LABELLED[:2])
def test_row_that_is_not_finite_gives_nan_under_jit(metric):
    assert np.isnan(jax.jit(metric)(BROKEN, LABELS))
