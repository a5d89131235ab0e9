import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdml.metrics import clustering, nmi
from oracles import metrics as oracle

pytest.importorskip("sklearn", reason="nmi clusters with scikit-learn")


def blobs(noise=0.1):
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 4
    centres = 10 * np.eye(4)[:, :3]
    return (centres[labels] + noise * rng.normal(size=(60, 3))).astype(np.float32), labels * 7


def test_equals_the_formula_on_the_clusters_found(monkeypatch):
    points, labels = blobs(noise=5.0)
    clusters = np.random.default_rng(1).integers(0, 6, 60)
    monkeypatch.setattr(clustering, "_k_means", lambda *_: clusters)
    assert nmi(points, labels, 6) == pytest.approx(oracle.nmi(labels, clusters), rel=1e-9)


@pytest.mark.slow
def test_separated_classes_reach_one():
    points, labels = blobs()
    scores = [nmi(points, labels, key=jax.random.key(seed)) for seed in range(8)]
    assert max(scores) == pytest.approx(1.0)
    assert all(0 <= value <= 1 for value in scores)


def test_the_key_decides():
    points, labels = blobs(noise=5.0)
    results = [nmi(points, labels, 9, jax.random.key(seed)) for seed in (0, 0, 1, 2, 3)]
    assert results[0] == results[1] == nmi(points, labels, num_clusters=9)
    assert len(set(results)) > 1
    assert isinstance(nmi(points, labels, key=jax.random.PRNGKey(0)), float)


def test_kinds_of_arrays_agree():
    points, labels = blobs()
    points = np.round(points)
    expected = nmi(points, labels)
    assert nmi(jnp.asarray(points, jnp.bfloat16), jnp.asarray(labels)) == expected
    assert nmi(points.astype(np.float16), labels) == expected


def test_rows_with_a_negative_label_take_no_part():
    points, labels = blobs(noise=5.0)
    expected = nmi(points[:45], labels[:45])
    labels[45:], points[50:] = -1, np.nan
    labels[47:] = -7
    assert nmi(points, labels) == expected


@pytest.mark.parametrize("exponent", [-100, -40, 64, 120])
def test_the_size_of_embeddings_changes_nothing(exponent):
    points, labels = blobs(noise=5.0)
    assert nmi(np.ldexp(points, exponent), labels) == nmi(points, labels)


def test_a_collapsed_embedding_is_no_error():
    assert nmi(np.ones((12, 2), np.float32), np.arange(12) % 3) == pytest.approx(0.0, abs=1e-9)


X, Y = np.zeros((6, 3), np.float32), np.arange(6) % 2
BAD = X.copy()
BAD[2, 0] = np.inf


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: nmi(X[0], Y), ValueError, r"embeddings must have shape \[N, D\]"),
        (lambda: nmi(X, Y[:4]), ValueError, r"labels must have shape \[6\], got \[4\]"),
        (lambda: nmi(X, Y * 0.5), TypeError, "labels must be integers"),
        (lambda: nmi(X, Y, 0), ValueError, "num_clusters must be >= 1"),
        (lambda: nmi(X, Y, 7), ValueError, "number of embeddings, 6, got 7"),
        (lambda: nmi(BAD, Y), ValueError, "embeddings must be finite .* row 2 is not"),
        (lambda: nmi(X, Y, max_iterations=0), ValueError, "max_iterations must be >= 1"),
        (lambda: nmi(X, Y - 2), ValueError, "num_clusters must be >= 1, got 0"),
        (lambda: nmi(X[:0], Y[:0]), ValueError, "num_clusters must be >= 1, got 0"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
