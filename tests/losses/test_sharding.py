"""Scaling is JAX's: a batch or proxies sharded over two devices give the loss and gradients of one."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jdml

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(8, 4)), jnp.float32)
Y = jnp.arange(8) // 2
PROXIES = jnp.asarray(RNG.normal(size=(4, 4)), jnp.float32)


def mesh() -> jax.sharding.Mesh:
    if jax.device_count() < 2:
        pytest.skip("needs two devices (tests/conftest.py asks for two CPU devices)")
    return jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])


@pytest.mark.parametrize(
    "name", ["contrastive_loss", "triplet_loss", "multi_similarity_loss", "fast_ap_loss"]
)
def test_a_sharded_batch_gives_the_same_loss_and_gradient(name: str) -> None:
    step = jax.jit(jax.value_and_grad(getattr(jdml, name)))
    rows = NamedSharding(mesh(), P("data"))
    sharded = step(jax.device_put(X, rows), jax.device_put(Y, rows))
    chex.assert_trees_all_close(
        jax.device_get(sharded), jax.device_get(step(X, Y)), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("name", ["proxy_anchor_loss", "proxy_nca_pp_loss", "soft_triple_loss"])
def test_sharded_proxies_give_the_same_loss_and_gradient(name: str) -> None:
    step = jax.jit(jax.value_and_grad(getattr(jdml, name), argnums=(0, 2)))
    rows = NamedSharding(mesh(), P("data"))
    sharded = step(X, Y, jax.device_put(PROXIES, rows))
    chex.assert_trees_all_close(
        jax.device_get(sharded), jax.device_get(step(X, Y, PROXIES)), rtol=1e-5, atol=1e-6
    )


def test_losses_run_inside_shard_map() -> None:
    """Each device's own batch, averaged: the mean of the two losses."""
    grid = mesh()

    def local(x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.lax.pmean(jdml.multi_similarity_loss(x, y), "data")

    rows = P("data")
    sharded = jax.shard_map(local, mesh=grid, in_specs=(rows, rows), out_specs=P())(X, Y)
    halves = [jdml.multi_similarity_loss(X[i : i + 4], Y[i : i + 4]) for i in (0, 4)]
    np.testing.assert_allclose(sharded, np.mean(halves), rtol=1e-6)
