"""How few samples cover their class: against plain loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdml import ccp, metrics
from jdml.metrics import covering

X = np.random.default_rng(0).normal(size=(14, 3)).astype(np.float32)
Y = np.array([0, 1, 2, 0, 1, 2, 0, 1, -1, 0, 1, 0, 0, 2])


def plain_radius(points: np.ndarray) -> float:
    """The mean over k of the radius of k centres, each the point farthest from those before it."""
    centres, radii = [points[0]], []
    for _ in points:
        nearest = [min(float(np.linalg.norm(p - c)) for c in centres) for p in points]
        radii.append(max(nearest))
        centres.append(points[int(np.argmax(nearest))])
    return float(np.mean(radii))


def test_radius_and_distance_of_classes() -> None:
    covering = metrics.class_covering(jnp.asarray(X), Y)
    np.testing.assert_allclose(
        covering.radius, np.mean([plain_radius(X[c == Y]) for c in range(3)]), rtol=1e-5
    )
    means = [X[c == Y].mean(0) for c in range(3)]
    apart = [np.linalg.norm(means[a] - means[b]) for a, b in ((0, 1), (0, 2), (1, 2))]
    np.testing.assert_allclose(covering.between, np.mean(apart), rtol=1e-5)
    np.testing.assert_allclose(covering.ratio, covering.radius / covering.between)


def test_the_ratio_has_no_unit_and_the_radius_has() -> None:
    """Shrinking all embeddings covers nothing better."""
    whole, small = (metrics.class_covering(jnp.asarray(s * X), Y) for s in (1.0, 0.1))
    np.testing.assert_allclose(small.radius, 0.1 * whole.radius, rtol=1e-4)
    np.testing.assert_allclose(small.ratio, whole.ratio, rtol=1e-4)


def test_classes_in_one_heap_have_an_infinite_ratio() -> None:
    covering = metrics.class_covering(
        jnp.array([[0.0], [1.0], [0.0], [1.0]]), np.array([0, 0, 1, 1])
    )
    assert covering == (0.5, 0.0, float("inf"))
    one = metrics.class_covering(jnp.array([[0.0], [1.0]]), np.array([3, 3]))
    assert one == (0.5, 0.0, float("inf"))


def test_names_of_classes_and_mistakes() -> None:
    covering = metrics.class_covering(X[:4], np.array(["a", "b", "a", "b"]))
    assert covering == metrics.class_covering(jnp.asarray(X[:4]), np.array([0, 1, 0, 1]))
    with pytest.raises(ValueError, match="labels must hold at least one class"):
        metrics.class_covering(X[:2], np.array([-1, -1]))
    with pytest.raises(TypeError, match="class_covering runs on the host"):
        jax.jit(lambda x: metrics.class_covering(x, Y).ratio)(X)


def test_greedy_radii_depend_on_which_point_is_first() -> None:
    points = np.random.default_rng(3).normal(size=(9, 2))
    turned = [jnp.asarray(np.roll(points, -i, axis=0), jnp.float32) for i in range(9)]
    radii = [float(ccp.greedy_covering_radii(p)[2]) for p in turned]
    assert max(radii) > 1.1 * min(radii)


def test_gradients_are_finite_where_points_meet() -> None:
    for points in ([[0.0, 0.0], [1.0, 0.0], [5.0, 2.0]], [[1.0, 1.0]] * 3):
        gradient = jax.grad(lambda v: ccp.greedy_covering_radii(v).sum())(jnp.array(points))
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("offset", [0.0, 100.0, 1000.0])
def test_distances_between_points_far_from_0(offset: float) -> None:
    x = 0.1 * np.random.default_rng(0).normal(size=(20, 8)) + offset
    x = x.astype(np.float32)
    apart = np.linalg.norm(x[:, None].astype(float) - x, axis=-1).sum() / (20 * 19)
    np.testing.assert_allclose(covering.mean_distance(jnp.asarray(x)), apart, rtol=1e-4)


@pytest.mark.parametrize("scale", [1e-25, 1e25, 1e30])
def test_radius_and_distance_of_classes_at_any_scale(scale: float) -> None:
    covering, expected = (metrics.class_covering(jnp.asarray(s * X), Y) for s in (scale, 1.0))
    np.testing.assert_allclose(covering.between, scale * expected.between, rtol=1e-4)
    np.testing.assert_allclose(covering.ratio, expected.ratio, rtol=1e-4)


def test_what_is_not_a_number_stays_so() -> None:
    covering = metrics.class_covering(jnp.full((4, 2), jnp.nan), jnp.array([0, 0, 1, 1]))
    assert np.isnan(covering.ratio)
    points, labels = np.random.default_rng(0).normal(size=(12, 3)), np.arange(12) % 3
    for row in (0, 5, 11):
        broken = np.where(np.arange(12)[:, None] == row, np.nan, points)
        assert np.isnan(metrics.class_covering(broken, labels).ratio)
        unlabelled = np.where(np.arange(12) == row, -1, labels)
        assert np.isfinite(metrics.class_covering(broken, unlabelled).ratio)
