"""`with_nir`: the terms it adds to a proxy objective, and the gradients of each."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml
from jdml import objectives

pytest.importorskip("distrax", reason="flows are built on distrax (the flows extra)")

B, C, D = 8, 3, 4
X = jax.random.normal(jax.random.key(0), (B, D))
Y = jnp.arange(B) % C
FLOW = jdml.flows.ConditionalFlow(D, D, num_blocks=2, hidden=8, depth=2)
# With one proxy, with several, and a field.
LOSSES = [
    pytest.param(jdml.proxy_anchor_loss, 1, marks=pytest.mark.slow),  # another program
    (jdml.soft_triple_loss, 3),
    pytest.param(jdml.potential_field_loss, 3, marks=pytest.mark.slow),  # another program
]


def made(loss: Any = jdml.proxy_anchor_loss, per_class: int = 1, **settings: Any) -> Any:
    objective = objectives.with_nir(objectives.proxy(loss, C, D, per_class), FLOW, **settings)
    return objective, objective.init(jax.random.key(1))


@pytest.mark.parametrize(("loss", "per_class"), LOSSES)
def test_regularizes_any_proxy_loss(loss: Any, per_class: int) -> None:
    objective, params = made(loss, per_class, weight=0.25)
    differentiated = jax.value_and_grad(lambda p, x: objective.loss(p, x, Y), (0, 1), has_aux=True)
    (value, metrics), gradients = jax.jit(differentiated)(params, X)
    proxies = jdml.sphere(params["proxies"])
    x = jdml.sphere(X)
    own = proxies[Y]
    nearest = jnp.argmax(jnp.sum(own * x[:, None], -1), axis=1)
    condition = own[jnp.arange(B), nearest]
    latents, log_dets = FLOW.apply({"params": params["flow"]}, x, condition)
    expected = jdml.nir_loss(latents, log_dets) + 0.25 * loss(X, Y, params["proxies"])
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["loss"], value)
    chex.assert_tree_all_finite(gradients)
    assert all(jnp.abs(g).max() > 0 for g in jax.tree.leaves(gradients))


def test_masked_rows_equal_removed_rows() -> None:
    objective, params = made()
    hidden = jnp.concatenate([X, jnp.full((2, D), jnp.nan)])
    labels = jnp.concatenate([Y, jnp.array([0, 1])])
    value, metrics = objective.loss(params, hidden, labels, where=jnp.arange(B + 2) < B)
    np.testing.assert_allclose(value, objective.loss(params, X, Y)[0], rtol=1e-5)
    outside, _ = objective.loss(params, hidden, labels.at[B:].set(-1))
    np.testing.assert_allclose(outside, value, rtol=1e-5)
    chex.assert_tree_all_finite(metrics)


def test_stop_proxy_gradient() -> None:
    objective, params = made(stop_proxy_gradient=True, weight=0.0)
    gradient = jax.jit(jax.grad(lambda p: objective.loss(p, X, Y)[0]))(params)
    assert not gradient["proxies"].any()
    assert max(jnp.abs(g).max() for g in jax.tree.leaves(gradient["flow"])) > 0


def test_model_gets_no_gradient_during_warm_up() -> None:
    objective, params = made(warmup=2)
    state = objective.init_state()
    by_model = jax.jit(jax.grad(lambda x, s: objective.loss(params, x, Y, state=s)[0]))
    sizes = []
    for _ in range(4):
        gradient = by_model(X, state)
        sizes.append(bool(jnp.abs(gradient).max() > 0))
        state = objective.update_state(state, X, Y)
    assert sizes == [False, False, True, True]


SAMPLES = jax.random.key(3)


def self_regularized(kind: str) -> Any:
    """Return the objective, its parameters, and as a function of these the term of its generated samples."""
    (objective, params), (plain, _) = made(self_regularization=kind, weight=1.0), made(weight=1.0)

    def added(params: Any) -> jax.Array:
        return objective.loss(params, X, Y, key=SAMPLES)[0] - plain.loss(params, X, Y)[0]

    return objective, params, added


@pytest.mark.parametrize("kind", ["generate", "match", "both"])
def test_generated_samples_train_flow_or_proxies(kind: str) -> None:
    objective, params, added = self_regularized(kind)
    gradient = jax.jit(jax.grad(added))(params)
    by_flow = max(float(jnp.abs(g).max()) for g in jax.tree.leaves(gradient["flow"]))
    by_proxies = float(jnp.abs(gradient["proxies"]).max())
    assert (by_proxies > 1e-6) == (kind in ("generate", "both"))
    assert (by_flow > 1e-6) == (kind in ("match", "both"))
    with pytest.raises(ValueError, match=r"^key\b"):
        objective.loss(params, X, Y)


def test_both_self_regularizations_are_one_term() -> None:
    """L(ψ, P) with ψ = τ(ζ | P); the gradient by proxies includes their effect on the generated samples."""
    _, params, added = self_regularized("both")

    def drawn_loss(params: Any) -> jax.Array:
        latents = jax.random.normal(jax.random.split(SAMPLES)[0], (B, D))
        condition = jdml.sphere(params["proxies"])[Y, 0]
        x, _ = FLOW.apply({"params": params["flow"]}, latents, condition, method="inverse")
        return jdml.proxy_anchor_loss(x, Y, params["proxies"])

    (value, gradient), (expected, of_term) = (
        jax.jit(jax.value_and_grad(function))(params) for function in (added, drawn_loss)
    )
    np.testing.assert_allclose(value, expected, rtol=1e-4)
    chex.assert_trees_all_close(gradient, of_term, rtol=1e-3, atol=1e-4)


def test_of_mean_applies_to_the_objective() -> None:
    objective, params = made(weight=0.0, of_mean=True)
    value, metrics = objective.loss(params, X, Y)
    np.testing.assert_allclose(value, jnp.exp(metrics["nll"]), rtol=1e-5)


def test_wrong_class_weight_lowers_the_likelihood_of_wrong_pairs() -> None:
    objective, params = made(wrong_class_weight=0.5, shape="identity", weight=0.0)
    plain, _ = made(shape="identity", weight=0.0)
    added = objective.loss(params, X, Y)[0] - plain.loss(params, X, Y)[0]
    # Each row is paired with the next sample of another class: the next row, and the first row for the last.
    other = (jnp.arange(B) + 1) % B
    wrong = np.asarray(Y != Y[other])
    assert wrong.all()
    condition = jdml.sphere(params["proxies"])[Y[other], 0]
    latents, log_dets = FLOW.apply({"params": params["flow"]}, jdml.sphere(X), condition)
    surprise = jdml.nir_loss(latents, log_dets, shape="identity", reduce_fn=None)
    np.testing.assert_allclose(added, -0.5 * surprise[wrong].mean(), rtol=1e-4)


def test_capped_latents_are_reported() -> None:
    objective, params = made()
    loud = {**params, "flow": jax.tree.map(lambda p: 100 * p, params["flow"])}
    value, metrics = objective.loss(loud, X, Y)
    assert jnp.isfinite(value)
    assert metrics["capped"] > 0


WRONG = {"weight": -1.0, "warmup": -1, "shape": "cube", "self_regularization": "all"}


@pytest.mark.parametrize(("setting", "value"), WRONG.items())
def test_wrong_settings_are_refused(setting: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{setting}\b"):
        made(**{setting: value})


def test_actnorm_starts_with_a_moderate_nll() -> None:
    flow = jdml.flows.ConditionalFlow(D, D, num_blocks=3, hidden=8, depth=2, actnorm=True)
    objective = objectives.with_nir(objectives.proxy(jdml.proxy_anchor_loss, C, D), flow)
    _, metrics = objective.loss(objective.init(jax.random.key(0)), X, Y)
    assert abs(metrics["nll"]) < 100


def test_half_precision_proxies_and_int8_labels() -> None:
    objective = objectives.with_nir(objectives.proxy(jdml.proxy_anchor_loss, 200, D), FLOW)
    params = objective.init(jax.random.key(0))
    expected, _ = objective.loss(params, X, Y)
    np.testing.assert_allclose(objective.loss(params, X, Y.astype(jnp.int8))[0], expected)
    half = {**params, "proxies": params["proxies"].astype(jnp.float16)}
    np.testing.assert_allclose(objective.loss(half, 1e5 * X, Y)[0], expected, rtol=0.1)
