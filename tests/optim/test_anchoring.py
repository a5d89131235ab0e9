"""`add_anchored_weights` wherever optax lets a transformation stand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jdml.optim import add_anchored_weights, partition_by_role, set_anchor

PARAMS = {
    "model": {"kernel": jnp.array([[1.0, 2.0]]), "bias": jnp.array([3.0])},
    "proxies": jnp.ones(2),
}
ANCHOR = jax.tree.map(lambda p: p - 1.0, PARAMS)
ZEROS = jax.tree.map(jnp.zeros_like, PARAMS)
MODEL_ONLY = {"model": True, "proxies": False}


def pulls(tx: optax.GradientTransformation, state: Any) -> Any:
    return jax.jit(tx.update)(ZEROS, state, PARAMS)[0]


@pytest.mark.parametrize("mask", [None, MODEL_ONLY, lambda params: MODEL_ONLY])
def test_adds_nothing_before_and_the_pull_after(mask: Any) -> None:
    tx = add_anchored_weights(0.25, mask)
    state = tx.init(PARAMS)
    assert not any(p.any() for p in jax.tree.leaves(pulls(tx, state)))
    pulled = pulls(tx, set_anchor(state, ANCHOR))
    np.testing.assert_allclose(pulled["model"]["kernel"], [[0.25, 0.25]])
    np.testing.assert_allclose(pulled["model"]["bias"], [0.25])
    np.testing.assert_allclose(pulled["proxies"], 0.25 if mask is None else 0.0)


WRAPPINGS = {
    "chain": lambda tx: optax.chain(tx, optax.identity()),
    "inject": lambda tx: optax.chain(optax.inject_hyperparams(add_anchored_weights)(strength=0.25)),
    "multi_transform": lambda tx: optax.multi_transform(
        {"a": tx, "b": optax.identity()}, {"model": "a", "proxies": "b"}
    ),
    "by role": lambda tx: partition_by_role(
        {"a": optax.chain(tx, optax.identity()), "b": optax.identity()},
        {"model": "a", "proxies": "b"},
    ),
    "masked": lambda tx: optax.masked(tx, MODEL_ONLY),
    "MultiSteps": lambda tx: optax.MultiSteps(tx, every_k_schedule=1).gradient_transformation(),
}


@pytest.mark.parametrize("name", WRAPPINGS)
def test_works_inside(name: str) -> None:
    tx = WRAPPINGS[name](add_anchored_weights(0.25))
    state = tx.init(PARAMS)
    assert not any(p.any() for p in jax.tree.leaves(pulls(tx, state)))
    pulled = pulls(tx, jax.jit(set_anchor)(state, ANCHOR))
    np.testing.assert_allclose(pulled["model"]["bias"], [0.25], rtol=1e-6)
    assert jax.tree.structure(set_anchor(state, ANCHOR)) == jax.tree.structure(state)


def test_equals_the_penalty_s_gradient() -> None:
    def penalty(params: Any) -> jax.Array:
        gaps = jax.tree.map(lambda p, a: jnp.sum((p - a) ** 2), params, ANCHOR)
        return 0.5 * 0.3 * sum(jax.tree.leaves(gaps))

    tx = add_anchored_weights(0.3)
    pulled = pulls(tx, set_anchor(tx.init(PARAMS), ANCHOR))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), pulled, jax.grad(penalty)(PARAMS)
    )


def test_training_ends_between_optimum_and_anchor() -> None:
    """min ½(θ − 4)² + ½(θ − 0)² is at 2."""
    tx = optax.chain(add_anchored_weights(1.0), optax.sgd(0.1))
    theta = jnp.array(0.0)
    state = set_anchor(tx.init(theta), theta)
    for _ in range(200):
        updates, state = tx.update(theta - 4.0, state, theta)
        theta = optax.apply_updates(theta, updates)
    np.testing.assert_allclose(theta, 2.0, rtol=1e-4)


def test_keeps_the_updates_type_and_sharding() -> None:
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.NamedSharding(mesh, jax.P("data"))
    params = jax.device_put(jnp.ones(4, jnp.bfloat16), sharding)
    tx = add_anchored_weights(0.5)
    state = set_anchor(tx.init(params), params)
    assert state.anchor.sharding == sharding
    assert tx.update(params, state, params)[0].dtype == jnp.bfloat16


def test_updates_that_are_none_stay_none() -> None:
    params = {"a": jnp.ones(2), "b": jnp.ones(2)}
    tx = add_anchored_weights(0.5)
    state = set_anchor(tx.init(params), jax.tree.map(jnp.zeros_like, params))
    updates, _ = tx.update({"a": jnp.zeros(2), "b": None}, state, params)
    assert updates["b"] is None
    np.testing.assert_allclose(updates["a"], 0.5)


def test_mistakes() -> None:
    for negative in (jnp.array(-1.0), np.float32(-1.0)):
        with pytest.raises(ValueError, match="strength must be >= 0"):
            add_anchored_weights(negative)
    with pytest.raises(ValueError, match="strength must be >= 0"):
        optax.inject_hyperparams(add_anchored_weights)(strength=-0.25).init(PARAMS)
    with pytest.raises(ValueError, match="strength must be >= 0"):
        add_anchored_weights(-1.0)
    tx = add_anchored_weights(1.0)
    with pytest.raises(ValueError, match="params must be passed"):
        tx.update(ZEROS, tx.init(PARAMS))
    with pytest.raises(ValueError, match="opt_state holds no anchor"):
        set_anchor(optax.adam(1.0).init(PARAMS), PARAMS)
    with pytest.raises(ValueError, match="params must have the structure"):
        set_anchor(tx.init(PARAMS), {"model": jnp.ones(1)})
    with pytest.raises(ValueError, match=r"shape \[3\] where \[2\] was expected"):
        set_anchor(tx.init(jnp.zeros(2)), jnp.ones(3))
