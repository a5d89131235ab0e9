import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from jdml.metrics import proxy_distance

RNG = np.random.default_rng(0)
C, K, D, N = 4, 3, 5, 30
PROXIES = RNG.normal(size=(C, K, D)).astype(np.float32)
POINTS = RNG.normal(size=(N, D)).astype(np.float32)
LABELS = np.arange(N) % (C - 1)  # one class has no embedding


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def costs(c):
    points = unit(POINTS[LABELS == c].astype(float))
    return np.array([[np.linalg.norm(p - z) for z in points] for p in unit(PROXIES[c])])


def test_assignment_tries_every_choice():
    best = []
    for c in range(C - 1):
        table = costs(c)
        choices = itertools.permutations(range(table.shape[1]), K)
        best.append(min(np.mean([table[k, z] for k, z in enumerate(p)]) for p in choices))
    assert proxy_distance(PROXIES, POINTS, LABELS) == pytest.approx(np.mean(best), rel=1e-5)


def test_nearest_takes_each_proxy_for_itself():
    expected = np.mean([costs(c).min(axis=1).mean() for c in range(C - 1)])
    found = proxy_distance(PROXIES, POINTS, LABELS, kind="nearest")
    assert found == pytest.approx(expected, rel=1e-5)
    assert found <= proxy_distance(PROXIES, POINTS, LABELS)


def test_one_proxy_per_class_is_the_closest_embedding():
    expected = np.mean([costs(c)[0].min() for c in range(C - 1)])
    for kind in ("assignment", "nearest"):
        found = proxy_distance(jnp.asarray(3 * PROXIES[:, 0]), POINTS, LABELS, kind=kind)
        assert found == pytest.approx(expected, rel=1e-5)


def test_fewer_embeddings_than_proxies():
    found = proxy_distance(PROXIES, POINTS[:1], np.array([1]))
    assert found == pytest.approx(
        np.linalg.norm(unit(PROXIES[1]) - unit(POINTS[0]), axis=1).min(), rel=1e-5
    )


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"kind": "w2"}, ValueError, "kind must be"),
        ({"labels": LABELS + 2}, ValueError, r"labels\[2\] is 4, expected 0…3"),
        (
            {"proxies": PROXIES[..., :2]},
            ValueError,
            "embeddings must have the dimension of proxies, 2",
        ),
        ({"proxies": [1.0]}, TypeError, "proxies must be an array"),
        ({"embeddings": POINTS[:0], "labels": LABELS[:0]}, ValueError, "at least one row"),
    ],
)
def test_mistakes(changes, error, message):
    arguments = {"proxies": PROXIES, "embeddings": POINTS, "labels": LABELS} | changes
    with pytest.raises(error, match=message):
        proxy_distance(**arguments)
