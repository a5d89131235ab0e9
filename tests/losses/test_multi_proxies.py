"""Potential field and multi-proxy losses, beyond the property matrix."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml
from oracles import multi_proxy_losses

RNG = np.random.default_rng(5)
B, C, K, D = 10, 4, 3, 3
X = jnp.asarray(RNG.normal(size=(B, D)), jnp.float32)
P = jnp.asarray(RNG.normal(size=(C, K, D)), jnp.float32)
Y = jnp.asarray(np.arange(B) % (C - 1))


@pytest.mark.parametrize("tau", [0.2, 0.7])
def test_mpa_equation_4_sums_rows_and_adds_the_regularizer_once(tau: float) -> None:
    """Eq. 1 to 4, line by line, with the settings in SoftTriple's docstring."""
    rng = np.random.default_rng(4)
    x, w, y = rng.normal(size=(5, 3)), rng.normal(size=(4, 3, 3)), [0, 1, 3, 1, 2]
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    w /= np.linalg.norm(w, axis=-1, keepdims=True)
    scale, gamma, margin = 20.0, 0.1, 0.01

    def similarity(i: int, c: int) -> float:
        weights = [math.exp(x[i] @ w[c, k] / gamma) for k in range(3)]
        return sum(weights[k] / sum(weights) * (x[i] @ w[c, k]) for k in range(3))

    def of_sample(i: int) -> float:
        own = math.exp(scale * (similarity(i, y[i]) - margin))
        others = sum(math.exp(scale * similarity(i, c)) for c in range(4) if c != y[i])
        return -math.log(own / (own + others))

    regularizer = sum(
        math.sqrt(2 - 2 * w[c, s] @ w[c, t]) for c in range(4) for t in range(3) for s in range(t)
    ) / (4 * 3 * 2)
    expected = sum(of_sample(i) for i in range(5)) + tau * regularizer
    with jax.enable_x64(True):
        arrays = jnp.asarray(x), jnp.asarray(y), jnp.asarray(w)
        settings = {"scale": scale, "gamma": gamma, "margin": margin, "reduce_fn": jdml.total}
        sums = jdml.soft_triple_loss(*arrays, tau=None, **settings)
        actual = sums + tau * jdml.losses.center_regularizer(arrays[2])
        np.testing.assert_allclose(actual, expected, rtol=1e-10)
        in_each_row = jdml.soft_triple_loss(*arrays, tau=tau, **settings)
        np.testing.assert_allclose(in_each_row - actual, 4 * tau * regularizer, rtol=1e-8)


def test_mpa_with_one_proxy_equals_proxy_anchor() -> None:
    one = P[:, :1]
    np.testing.assert_allclose(
        jdml.multi_proxy_anchor_loss(X, Y, one), jdml.proxy_anchor_loss(X, Y, one), rtol=1e-5
    )
    np.testing.assert_allclose(
        jdml.multi_proxy_anchor_dw_loss(X, Y, one), jdml.proxy_nca_margin_loss(X, Y, one), rtol=1e-5
    )


@pytest.mark.parametrize("loss", ["potential_field", "contrastive_potential"])
@pytest.mark.parametrize("tile", [None, 7])
def test_fields_without_proxies(loss: str, tile: int | None) -> None:
    labels = np.array([0, 0, 9, 9, 500, -1, 0, 9, 2, 2])
    with jax.enable_x64(True):
        actual = getattr(jdml, f"{loss}_loss")(
            jnp.asarray(X, jnp.float64), labels, delta=0.6, tile=tile, reduce_fn=None
        )
    expected = getattr(multi_proxy_losses, loss)(
        np.asarray(X, float), labels, None, delta=0.6, reduce="none"
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_field_loss_sum_is_the_papers_energy_without_self_terms() -> None:
    actual = jdml.potential_field_loss(X, Y, P, delta=0.5, alpha=2.0, reduce_fn=jnp.sum)
    expected = multi_proxy_losses.potential_field(
        np.asarray(X, float),
        np.asarray(Y),
        np.asarray(P, float),
        delta=0.5,
        alpha=2.0,
        reduce="total",
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-4)
    mean = jdml.potential_field_loss(X, Y, P, delta=0.5, alpha=2.0)
    np.testing.assert_allclose(actual, mean * (B + C * K), rtol=1e-5)


def test_field_hyper_parameters_have_gradients() -> None:
    def value(delta: jax.Array, alpha: jax.Array) -> jax.Array:
        return jdml.potential_field_loss(
            jnp.asarray(X, jnp.float64), Y, jnp.asarray(P, jnp.float64), delta=delta, alpha=alpha
        )

    with jax.enable_x64(True):
        slopes = jax.grad(value, (0, 1))(0.61, 2.0)
        step = 1e-6
        by_delta = (value(0.61 + step, 2.0) - value(0.61 - step, 2.0)) / (2 * step)
        by_alpha = (value(0.61, 2.0 + step) - value(0.61, 2.0 - step)) / (2 * step)
    np.testing.assert_allclose(slopes, (by_delta, by_alpha), rtol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"repulsion_delta": 1.4}])
def test_activity_counts_pairs_and_forces(settings: dict[str, float]) -> None:
    activity = jdml.losses.field_activity(X, Y, P, delta=0.9, alpha=2.0, **settings)
    points = np.concatenate([np.asarray(X), np.asarray(P).reshape(-1, D)]).astype(float)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    owners = np.concatenate([np.asarray(Y), np.repeat(np.arange(C), K)])
    r = np.linalg.norm(points[:, None] - points[None], axis=-1)
    other = ~np.eye(len(points), dtype=bool)
    same = (owners[:, None] == owners[None]) & other
    different = (owners[:, None] != owners[None]) & other
    reach = settings.get("repulsion_delta", 0.9)
    np.testing.assert_allclose(activity["attracting"], (r > 0.9)[same].mean(), rtol=1e-5)
    np.testing.assert_allclose(activity["repelling"], (r < reach)[different].mean(), rtol=1e-5)
    slope = np.where(same & (r > 0.9), 2 / np.where(other, r, 1) ** 3, 0.0)
    slope -= np.where(different & (r < reach), 2 / np.where(other, r, 1) ** 3, 0.0)
    direction = (points[:, None] - points[None]) / np.where(other, r, 1)[..., None]
    forces = np.linalg.norm((slope[..., None] * direction).sum(1), axis=1)
    np.testing.assert_allclose(activity["force"], forces.mean(), rtol=1e-4)


def test_equal_proxies_count_as_one_for_any_softmax_scale() -> None:
    one, two = P[:, :1], jnp.concatenate([P[:, :1], P[:, :1]], axis=1)
    step = jax.jit(jax.grad(lambda x, p, g: jdml.soft_triple_loss(x, Y, p, gamma=g, tau=0.0)))
    for gamma in (0.1, 1e-6, 1e-38):
        gradients = [step(X, p, gamma) for p in (one, two)]
        np.testing.assert_allclose(*gradients, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss", [jdml.soft_triple_loss, jdml.multi_proxy_anchor_loss])
def test_zero_tau_skips_the_regularizer(loss) -> None:
    with_weight = jax.jit(jax.value_and_grad(lambda p, tau: loss(X, Y, p, tau=tau)))
    assert with_weight(P, 0.2)[0] > with_weight(P, None)[0]
    chex.assert_trees_all_close(with_weight(P, 0.0), with_weight(P, None), rtol=1e-6, atol=1e-7)


def test_short_half_precision_vectors_have_finite_gradients() -> None:
    short = (1e-4 * X).astype(jnp.float16)
    for loss in (jdml.proxy_anchor_loss, jdml.multi_proxy_anchor_loss, jdml.potential_field_loss):
        assert np.isfinite(jax.jit(jax.grad(lambda x, f=loss: f(x, Y, P)))(short)).all()
