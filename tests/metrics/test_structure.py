"""The structure of embeddings: proxies, density and width of classes, covering radii."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.distance import cdist, pdist

from jdml import ccp, metrics
from jdml.metrics import proxy_distance
from jdml.metrics.chance import mean_distance

RNG = np.random.default_rng(0)
C, K, D, N = 4, 3, 5, 30
PROXIES = RNG.normal(size=(C, K, D)).astype(np.float32)
POINTS = RNG.normal(size=(N, D)).astype(np.float32)
LABELS = np.arange(N) % (C - 1)  # one class has no embedding


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def costs(c):
    return cdist(unit(PROXIES[c].astype(float)), unit(POINTS[LABELS == c].astype(float)))


def test_proxy_distances_equal_loops():
    expected = {"assignment": [], "nearest": [], "represented": []}
    for c in range(C - 1):
        table = costs(c)
        choices = itertools.permutations(range(table.shape[1]), K)
        best = min(np.mean([table[k, z] for k, z in enumerate(p)]) for p in choices)
        owner = table.argmin(axis=0)
        means = [table[k, owner == k].mean() for k in range(K) if (owner == k).any()]
        expected["assignment"].append(best)
        expected["nearest"].append(table.min(axis=1).mean())
        expected["represented"].append(np.mean(means))
    for kind, of_classes in expected.items():
        actual = proxy_distance(PROXIES, POINTS, LABELS, kind=kind)
        assert actual == pytest.approx(np.mean(of_classes), rel=1e-5)
    lone = proxy_distance(PROXIES, POINTS[:2], np.array([1, -1]))  # fewer embeddings than proxies
    nearest = np.linalg.norm(unit(PROXIES[1]) - unit(POINTS[0]), axis=1).min()
    assert lone == pytest.approx(nearest, rel=1e-5)


def test_collapsed_proxies_have_distance_and_spread_zero():
    """The proxies' distance does not show that fifteen act as one; the spread does."""
    points = np.repeat(np.eye(3, dtype=np.float32), 15, axis=0)
    digits, parity = np.repeat(np.arange(3), 15), np.zeros(45, int)
    fallen = np.tile(np.eye(3, dtype=np.float32)[0], (1, 15, 1))
    assert proxy_distance(fallen, points, parity) == 0
    measured = metrics.proxy_spread(fallen, points, parity, digits)
    assert measured == metrics.ProxySpread(1.0, 0.0, pytest.approx(1 / 3))
    assert metrics.proxy_spread(fallen) == (1.0, 0.0, None)
    assert metrics.proxy_spread(PROXIES[:, 0]) == (0.0, 0.0, None)


def test_proxy_spread_equals_loops():
    expected = np.array([pdist(unit(of_class.astype(float))) for of_class in PROXIES])
    names = np.array(["even", "odd"], object)[np.arange(N) // 3 % 2]
    reached = []
    for c in range(C - 1):
        near, own = costs(c).min(axis=0) <= 0.9, names[LABELS == c]
        reached.append(np.mean([near[own == name].any() for name in sorted(set(own))]))
    actual = metrics.proxy_spread(PROXIES, POINTS, LABELS, names, delta=0.9)
    assert actual.together == pytest.approx(np.mean(expected <= 0.9))
    assert actual.distance == pytest.approx(np.mean(expected), rel=1e-6)
    assert 0 < np.mean(reached) < 1
    assert actual.covered == pytest.approx(np.mean(reached))


X = RNG.normal(size=(23, 4))
# 900: one sample
Y = np.array([7, 3, 3, 7, 0, 900, 3, 0, 7, 7, 3, -1, 0, 0, 3, 3, 7, -5, 0, 3, 7, 0, 3])


def by_class():
    return {c: X[c == Y] for c in sorted(set(Y)) if c >= 0}


def between(kind):
    return pdist([points.mean(0) for points in by_class().values()], kind).mean()


@pytest.mark.parametrize("kind", ["euclidean", "cosine"])
def test_class_density(kind):
    widths = [pdist(points, kind).mean() for points in by_class().values() if len(points) > 1]
    with jax.enable_x64(True):
        density = metrics.class_density(jnp.asarray(X), jnp.asarray(Y), distance=kind)
        jitted = jax.jit(lambda x: metrics.class_density(x, jnp.asarray(Y), distance=kind))
        np.testing.assert_allclose(jitted(jnp.asarray(X)), density, rtol=1e-12)
    np.testing.assert_allclose(density, np.mean(widths) / between(kind), rtol=1e-9)


def test_concentration_variance():
    ratios = [
        np.mean(np.linalg.norm(points - points.mean(0), axis=1)) / between("euclidean")
        for points in by_class().values()
    ]
    with jax.enable_x64(True):
        variance = metrics.concentration_variance(jnp.asarray(X), jnp.asarray(Y))
    np.testing.assert_allclose(variance, np.var(ratios), rtol=1e-9)


@pytest.mark.parametrize("t", [0.5, 2.0])
def test_uniformity(t):
    expected = np.exp(-t * pdist(X, "sqeuclidean")).mean()
    with jax.enable_x64(True):
        np.testing.assert_allclose(metrics.uniformity(jnp.asarray(X), t), expected, rtol=1e-10)
        slope = jax.grad(lambda x: metrics.uniformity(x, t))(jnp.asarray(X))
    assert np.isfinite(slope).all()
    assert metrics.uniformity(jnp.ones((1, 3))) == 0


@pytest.mark.parametrize("mode", [1, 2, 3, -1, -2])
@pytest.mark.parametrize("shape", [(23, 4), (3, 8)])
def test_spectral_decay(mode, shape):
    x = RNG.normal(size=shape)
    values = np.linalg.svd(x, compute_uv=False)[abs(mode) - 1 :]
    share, even = values / values.sum(), 1 / len(values)
    expected = sum(even * np.log(even / s) if mode > 0 else s * np.log(s / even) for s in share)
    with jax.enable_x64(True):
        actual = metrics.spectral_decay(jnp.asarray(x), mode=mode)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12)


def test_spectral_decay_of_a_collapsed_embedding_is_finite():
    for x in (jnp.ones((9, 4)), jnp.zeros((9, 4))):
        assert np.isfinite(metrics.spectral_decay(x))


def test_covering_radius():
    apart = cdist(POINTS, POINTS[:4])
    expected = apart.min(axis=1).max()
    np.testing.assert_allclose(metrics.covering_radius(POINTS, POINTS[:4]), expected, rtol=1e-5)
    where, centers_where = np.arange(N) % 3 != 0, np.array([True, False, True, False])
    expected = apart[where][:, centers_where].min(axis=1).max()
    actual = metrics.covering_radius(POINTS, POINTS[:4], where=where, centers_where=centers_where)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    assert metrics.covering_radius(POINTS, POINTS[:4], where=np.zeros(N, bool)) == 0
    assert np.isinf(metrics.covering_radius(POINTS, POINTS[:4], centers_where=np.zeros(4, bool)))


def test_relative_width_of_a_single_class_is_zero():
    labels = jnp.zeros(len(X), int)
    assert metrics.class_density(jnp.asarray(X), labels) == 0
    assert metrics.concentration_variance(jnp.asarray(X), labels) == 0


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e19, 1e30, 7e37])
def test_scale_costs_no_precision(size):
    """Nearly the smallest and the largest floats: ratios do not change, distances scale."""
    small = np.clip(POINTS, -4, 4)
    large = (small.astype(float) * size).astype(np.float32)
    for quotient in (
        lambda x: metrics.class_density(x, LABELS),
        lambda x: metrics.class_density(x, LABELS, distance="cosine"),
        lambda x: metrics.concentration_variance(x, LABELS),
        metrics.spectral_decay,
        lambda x: metrics.covering_radius(x, x[:4]) / np.abs(x).max(),
    ):
        np.testing.assert_allclose(quotient(large), quotient(small), rtol=1e-4)
    expected = metrics.uniformity(np.repeat(np.eye(2, dtype=np.float32), 3, axis=0), t=1e9)
    several = np.repeat(size * np.eye(2), 3, axis=0).astype(np.float32)
    assert metrics.uniformity(several) == (expected if size > 1 else 1.0)


# Covering radii of classes, compared with plain loops.

SAMPLES = np.random.default_rng(0).normal(size=(14, 3)).astype(np.float32)
OF_SAMPLES = np.array([0, 1, 2, 0, 1, 2, 0, 1, -1, 0, 1, 0, 0, 2])


def plain_radius(points: np.ndarray) -> float:
    """Return the mean over k of the radius of k centres, each the point farthest from those before it."""
    centres, radii = [points[0]], []
    for _ in points:
        nearest = [min(float(np.linalg.norm(p - c)) for c in centres) for p in points]
        radii.append(max(nearest))
        centres.append(points[int(np.argmax(nearest))])
    return float(np.mean(radii))


@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e25, 1e30])
def test_radius_and_distance_of_classes(scale: float) -> None:
    covering = metrics.class_covering(jnp.asarray(scale * SAMPLES), OF_SAMPLES)
    radii = [plain_radius(SAMPLES[c == OF_SAMPLES]) for c in range(3)]
    np.testing.assert_allclose(covering.radius, scale * np.mean(radii), rtol=1e-5)
    apart = pdist([SAMPLES[c == OF_SAMPLES].mean(0) for c in range(3)])
    np.testing.assert_allclose(covering.between, scale * np.mean(apart), rtol=1e-5)
    np.testing.assert_allclose(covering.ratio, covering.radius / covering.between)


def test_equal_class_means_have_an_infinite_ratio() -> None:
    points = jnp.array([[0.0], [1.0], [0.0], [1.0]])
    for labels in ([0, 0, 1, 1], [3, 3, -1, -1]):
        assert metrics.class_covering(points, np.array(labels)) == (0.5, 0.0, float("inf"))


def test_gradients_are_finite_where_points_coincide() -> None:
    for points in ([[0.0, 0.0], [1.0, 0.0], [5.0, 2.0]], [[1.0, 1.0]] * 3):
        gradient = jax.grad(lambda v: ccp.greedy_covering_radii(v).sum())(jnp.array(points))
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("centre", [1e3, 1e5, "of a class"])
def test_common_offset_costs_no_precision(centre):
    """Float32 points far from 0, or close together around their class's direction, give float64's values."""
    rows = np.arange(40) % 4
    moved = np.random.default_rng(0).normal(size=(40, 8))
    moved = 1e-4 * moved + np.eye(4, 8)[rows] if centre == "of a class" else moved + centre
    x = moved.astype(np.float32)
    functions = [
        metrics.class_density,
        metrics.concentration_variance,
        lambda x, y: metrics.uniformity(x, 0.1),
        lambda x, y: metrics.covering_radius(x, x[:4]),
        lambda x, y: mean_distance(jnp.asarray(x)),
        lambda x, y: jnp.stack(metrics.violation_probability(x, y, beta=1.0, alpha=0.5)),
    ]
    if centre != "of a class":
        assert metrics.covering_radius(x, x) == 0
    if centre != 1e5:  # directions have lost precision there
        functions.append(lambda x, y: metrics.class_density(x, y, distance="cosine"))
    narrow = [function(x, rows) for function in functions]
    with jax.enable_x64(True):
        wide = [function(jnp.asarray(x, jnp.float64), rows) for function in functions]
    for one, other in zip(narrow, wide, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3)


def test_labels_beyond_int32_are_exact():
    x, y = POINTS[:6], np.arange(6) // 2
    expected = metrics.violation_probability(x, y, beta=1.0, alpha=0.5)
    assert metrics.violation_probability(x, y * 2**32, beta=1.0, alpha=0.5) == expected


def test_nan_gives_nan_unless_ignored() -> None:
    broken = np.where(np.arange(N)[:, None] == 5, np.nan, POINTS)
    assert np.isnan(metrics.class_covering(broken, LABELS).ratio)
    unlabelled = np.where(np.arange(N) == 5, -1, LABELS)
    assert np.isfinite(metrics.class_covering(broken, unlabelled).ratio)
