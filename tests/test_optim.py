"""One optimizer per role, and no parameter without a role."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jdml import optim
from jdml.optim import partition_by_role

PARAMS = {"model": {"a": jnp.ones(2), "b": jnp.ones(3)}, "proxies": jnp.ones((2, 2))}
ROLES = {"model": "model", "proxies": "proxies"}
TRANSFORMS = {"model": optax.sgd(0.1), "proxies": optax.sgd(10.0)}


@pytest.mark.parametrize(
    "roles", [ROLES, lambda params: {name: name for name in params}], ids=["prefix", "function"]
)
def test_each_role_learns_at_its_own_rate(roles) -> None:
    transform = partition_by_role(TRANSFORMS, roles)
    update = jax.jit(transform.update)
    updates, _ = update(jax.tree.map(jnp.ones_like, PARAMS), transform.init(PARAMS), PARAMS)
    np.testing.assert_allclose(updates["model"]["b"], -0.1)
    np.testing.assert_allclose(updates["proxies"], -10.0)


def test_roles_may_stand_deeper_than_the_top() -> None:
    roles = {"model": {"a": "model", "b": "proxies"}, "proxies": "proxies"}
    transform = partition_by_role(TRANSFORMS, roles)
    updates, _ = transform.update(PARAMS, transform.init(PARAMS), PARAMS)
    np.testing.assert_allclose(updates["model"]["a"], -0.1)
    np.testing.assert_allclose(updates["model"]["b"], -10.0)


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"model": "model"}, r"no role covers the parameter \['proxies'\]"),
        (
            {"model": {"a": "model"}, "proxies": "proxies"},
            r"no role covers the parameter \['model'\]\['b'\]",
        ),
        ({"model": "model", "proxies": "flow"}, "has the role 'flow', which has no transformation"),
        ({"model": "model", "proxies": None}, "no role covers"),
    ],
)
def test_a_parameter_without_a_role_is_refused(roles: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        partition_by_role(TRANSFORMS, roles).init(PARAMS)


def test_transforms_must_be_given() -> None:
    with pytest.raises(TypeError, match="transforms must map roles"):
        partition_by_role(optax.sgd(1.0), ROLES)
    with pytest.raises(ValueError, match="transforms is empty"):
        partition_by_role({}, ROLES)


def test_vectors_are_cut_one_by_one_and_keep_their_directions():
    vectors = jnp.array([[[3e30, 4e30], [0.3, 0.4]], [[0.0, 0.0], [-5.0, 0.0]]])
    tx = optim.clip_by_vector_norm(2.5)
    clipped, _ = tx.update({"proxies": vectors}, tx.init(None))
    expected = [[[1.5, 2.0], [0.3, 0.4]], [[0.0, 0.0], [-2.5, 0.0]]]
    np.testing.assert_allclose(clipped["proxies"], expected, rtol=1e-6)
    with pytest.raises(ValueError, match="max_norm must be > 0, got 0"):
        optim.clip_by_vector_norm(0)


def test_retraction_keeps_vectors_on_the_sphere():
    tx = optax.chain(optax.adam(0.5), optim.retract_to_sphere())
    params = {"proxies": jnp.asarray(np.random.default_rng(0).normal(size=(3, 2, 4)), jnp.float32)}
    params = jax.tree.map(lambda p: p / jnp.linalg.norm(p, axis=-1, keepdims=True), params)
    state = tx.init(params)
    for _ in range(3):
        updates, state = tx.update(jax.tree.map(jnp.sin, params), state, params)
        params = optax.apply_updates(params, updates)
        np.testing.assert_allclose(jnp.linalg.norm(params["proxies"], axis=-1), 1, rtol=1e-6)
    still = optim.retract_to_sphere()
    away, _ = still.update(-params["proxies"], still.init(params), params["proxies"])
    np.testing.assert_array_equal(away, jnp.zeros((3, 2, 4)))  # nowhere to go: it stays
    with pytest.raises(ValueError, match="params must be passed to update"):
        tx.update(params, state)
