"""Batch norm and max-pooling with gradients of their own: Flax's, to rounding."""

from functools import partial

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from jdml.models.layers import BatchNorm, max_pool

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
MAPS = 3 * jax.random.normal(KEY, (4, 5, 6, 3)) + 5
SETTINGS = {"momentum": 0.9, "epsilon": 1e-3}


def value_and_gradients(layer: nn.Module, x: jax.Array) -> tuple:
    variables = layer.init(KEY, x)
    variables = jax.tree.map(lambda leaf: leaf + 0.3, variables)

    def total(params: dict, x: jax.Array) -> tuple:
        y, updates = layer.apply({**variables, "params": params}, x, mutable=["batch_stats"])
        return jnp.sum(y.astype(jnp.float32) ** 3) / 1e3, (y, updates)

    return jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))(variables["params"], x)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("use_running_average", [False, True])
def test_batch_norm_is_flaxs(use_running_average, dtype):
    """Parameters, statistics, values and gradients, under the same names."""
    x = MAPS.astype(dtype)
    actual, expected = (
        value_and_gradients(layer(use_running_average, dtype=dtype, **SETTINGS), x)
        for layer in (BatchNorm, nn.BatchNorm)
    )
    chex.assert_trees_all_equal_shapes_and_dtypes(actual, expected)
    tolerance = 1e-5 if dtype == jnp.float32 else 3e-2
    chex.assert_trees_all_close(actual, expected, rtol=tolerance, atol=tolerance)


def test_batch_norm_without_spread_is_finite():
    """One row, or equal rows: the variance is 0."""
    for x in (jnp.full((1, 1, 1, 2), 7.0), jnp.full((3, 2, 2, 2), 1e4)):
        chex.assert_tree_all_finite(value_and_gradients(BatchNorm(False, **SETTINGS), x))


def test_batch_norm_keeps_x_and_nothing_of_its_size():
    layer = BatchNorm(False)
    x = jnp.zeros((8, 16, 16, 8))
    variables = layer.init(KEY, x)

    def loss(x: jax.Array) -> jax.Array:
        y, _ = layer.apply(variables, x, mutable=["batch_stats"])
        return jnp.sum(y)

    _, pull = jax.vjp(loss, x)
    kept = [leaf for leaf in jax.tree.leaves(pull) if getattr(leaf, "shape", ()) == x.shape]
    assert len(kept) == 1


POOLS = [
    (3, 2, ((1, 1), (1, 1))),
    (2, 2, ((0, 0), (0, 0))),
    (3, 1, ((1, 1), (1, 1))),
    (3, 2, ((0, 1), (0, 0))),
]


@pytest.mark.parametrize(("size", "stride", "padding"), POOLS)
def test_max_pool_is_flaxs(size, stride, padding):
    weights = jnp.arange(MAPS.size, dtype=jnp.float32).reshape(MAPS.shape)

    def total(pool, x):
        y = pool(x)
        return jnp.sum(y * weights.ravel()[: y.size].reshape(y.shape)), y

    ours = partial(max_pool, size=size, stride=stride, padding=padding)
    theirs = partial(nn.max_pool, window_shape=(size, size), strides=(stride,) * 2, padding=padding)
    both = [
        jax.jit(jax.value_and_grad(partial(total, pool), has_aux=True))(MAPS)
        for pool in (ours, theirs)
    ]
    chex.assert_trees_all_close(*both, rtol=1e-6)


def test_equal_pixels_share_the_gradient():
    slope = jax.grad(lambda x: max_pool(x, 2, 2, ((0, 0), (0, 0))).sum())
    ties = jnp.array([[2.0, 2.0], [1.0, 2.0]]).reshape(1, 2, 2, 1)
    chex.assert_trees_all_close(slope(ties).reshape(4), jnp.array([1, 1, 0, 1]) / 3)
