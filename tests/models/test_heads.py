"""Pooling against plain NumPy, and the embedding head; batch norm and max-pooling against those of Flax."""

from functools import partial

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from jdml.models import EmbeddingHead
from jdml.models.convnets import max_pool_2x2
from jdml.models.layers import POOLINGS, BatchNorm, ConvNorm, gem_pool, max_pool


def pooled_by_numpy(x: np.ndarray, pooling: str, p: float = 3.0) -> np.ndarray:
    """Pool in float64."""
    values = x.astype(np.float64).reshape(x.shape[0], -1, x.shape[3])
    generalized = (np.maximum(values, 1e-6) ** p).mean(1) ** (1 / p)
    return {
        "average": values.mean(1),
        "max": values.max(1),
        "sum": values.sum(1),
        "average+max": values.mean(1) + values.max(1),
        "cubic": generalized,
        "gem": generalized,
    }[pooling]


def head_with_identity(pooling: str, features: jax.Array, p: float = 3.0, **settings) -> jax.Array:
    """Apply the head with an identity for its dense layer, to see the pooling."""
    head = EmbeddingHead(features.shape[-1], pooling, use_bias=False, **settings)
    params = {"embedding": {"kernel": jnp.eye(features.shape[-1])}}
    params |= {"p": jnp.array(p)} if pooling == "gem" else {}
    return jax.jit(head.apply)({"params": params}, features)


@pytest.mark.parametrize(
    ("pooling", "p"), [*((name, 3.0) for name in POOLINGS), ("gem", 1.0), ("gem", 7.5)]
)
def test_pooling_equals_its_definition(pooling, p):
    x = np.random.default_rng(0).normal(size=(3, 4, 5, 6)).astype(np.float32)
    expected = pooled_by_numpy(x, pooling, p)
    np.testing.assert_allclose(head_with_identity(pooling, jnp.asarray(x), p), expected, rtol=2e-5)


def test_gradient_of_gem_equals_finite_differences():
    x = np.random.default_rng(2).uniform(0.1, 2, (1, 2, 3, 2)).astype(np.float32)
    check_grads(gem_pool, (x, 3.0), order=1, modes=["rev"], eps=1e-2, rtol=1e-2, atol=1e-3)


def test_gradients_of_gem_are_finite_on_constant_maps():
    slopes = jax.jit(jax.grad(lambda x, p: gem_pool(x, p).sum(), (0, 1)))
    for fill in (0.0, -1.0, 1e-30, 1e30):
        chex.assert_tree_all_finite(slopes(jnp.full((2, 3, 3, 4), fill), 3.0))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_half_precision_pools_in_float32(pooling):
    """A sum of 4,096 ones is 4,096; accumulation in bfloat16 would give less."""
    x = jnp.ones((1, 64, 64, 2), jnp.bfloat16)
    out = head_with_identity(pooling, x, dtype=jnp.bfloat16)
    assert out.dtype == jnp.float32
    expected = {"sum": 4096.0, "average+max": 2.0}.get(pooling, 1.0)
    np.testing.assert_allclose(out, expected, rtol=1e-2)


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
def test_batch_norm_equals_flaxs(use_running_average, dtype):
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


@pytest.mark.parametrize("freeze", [False, True])
def test_layers_store_only_inputs_and_outputs(freeze):
    """The memory for the gradient is that of each convolution's input and output, also with relu6."""

    class Layers(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            for _ in range(6):
                x = ConvNorm(16, 1, activation=nn.relu6, freeze=freeze)(x, train=True)
            return x

    x = jnp.zeros((8, 32, 32, 16))
    variables = Layers().init(KEY, x)

    @jax.jit
    @jax.grad
    def slope(params: dict, stats: dict, x: jax.Array) -> jax.Array:
        return Layers().apply({"params": params, **stats}, x, mutable=["batch_stats"])[0].sum()

    stats = {"batch_stats": variables["batch_stats"]}
    held = slope.lower(variables["params"], stats, x).compile().memory_analysis()
    assert held.temp_size_in_bytes < (2 * 6 + 4) * x.nbytes


@pytest.mark.parametrize("use_running_average", [False, True])
def test_batch_norm_far_from_zero(use_running_average):
    """Channels whose mean is hundreds of times their spread, compared with float64."""
    x = MAPS + jnp.array([1000, -1000, 0])
    y, up = np.asarray(x, np.float64), np.asarray(jnp.cos(7 * MAPS), np.float64)
    stats = {"mean": jnp.asarray(y.mean((0, 1, 2)), jnp.float32), "var": jnp.array([2, 0.5, 1])}
    params = {"scale": jnp.array([0.5, 1, 2]), "bias": jnp.ones(3)}
    layer = BatchNorm(use_running_average, **{**SETTINGS, "momentum": 0})

    def apply(params: dict, x: jax.Array) -> tuple[jax.Array, dict]:
        given = {"params": params, "batch_stats": stats}
        return layer.apply(given, x, mutable=["batch_stats"])

    actual, pull, updates = jax.vjp(apply, params, x, has_aux=True)
    slopes, dx = pull(jnp.asarray(up, jnp.float32))
    mean, variance = (np.asarray(updates["batch_stats"][k], np.float64) for k in ("mean", "var"))
    inverse = (variance + SETTINGS["epsilon"]) ** -0.5
    centred = (y - mean) * inverse
    by_scale, by_bias = (up * centred).mean((0, 1, 2)), up.mean((0, 1, 2))
    passed = up if use_running_average else up - by_bias - centred * by_scale
    expected = (
        centred * params["scale"] + 1,
        {"scale": by_scale * centred[..., 0].size, "bias": by_bias * centred[..., 0].size},
        passed * inverse * params["scale"],
    )
    chex.assert_trees_all_close((actual, slopes, dx), expected, rtol=1e-5, atol=1e-4)


def test_frozen_batch_norm_has_forward_derivatives_and_gradients_by_statistics():
    layer = BatchNorm(True, **SETTINGS)

    def apply(params: dict, stats: dict, x: jax.Array) -> jax.Array:
        return layer.apply({"params": params, "batch_stats": stats}, x)

    params = {"scale": jnp.array([0.5, 1, 2]), "bias": jnp.ones(3)}
    stats = {"mean": jnp.array([0.1, 0.2, 0.3]), "var": jnp.array([2, 0.5, 1])}
    check_grads(apply, (params, stats, MAPS), order=2, atol=2e-2, rtol=2e-2)


POOLS = [
    (3, 2, ((1, 1), (1, 1))),
    (2, 2, ((0, 0), (0, 0))),
    (3, 1, ((1, 1), (1, 1))),
    (3, 2, ((0, 1), (0, 0))),
    (3, 2, ((1, 1), (0, 1))),
]


def value_and_gradient(pool, x):
    @jax.jit
    def both(x):
        pooled, pull = jax.vjp(pool, x)
        return pooled, pull(jnp.cos(jnp.arange(pooled.size, dtype=x.dtype)).reshape(pooled.shape))

    return both(x)


@pytest.mark.parametrize(("size", "stride", "padding"), POOLS)
def test_max_pool_equals_flaxs(size, stride, padding):
    ours = partial(max_pool, size=size, stride=stride, padding=padding)
    theirs = partial(nn.max_pool, window_shape=(size, size), strides=(stride,) * 2, padding=padding)
    chex.assert_trees_all_close(
        value_and_gradient(ours, MAPS), value_and_gradient(theirs, MAPS), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("shape", "pooled"), [((2, 1, 1, 3), (2, 1, 1, 3)), ((2, 1, 5, 3), (2, 1, 2, 3))]
)
def test_side_of_one_pixel_is_not_pooled(shape, pooled):
    x = jax.random.normal(KEY, shape)
    assert max_pool_2x2(x).shape == pooled
    assert float(max_pool_2x2(x)[0, 0, 0, 0]) == float(x[0, 0, : min(shape[2], 2), 0].max())


def test_equal_pixels_share_the_gradient():
    slope = jax.grad(lambda x: max_pool(x, 2, 2, ((0, 0), (0, 0))).sum())
    ties = jnp.array([[2.0, 2.0], [1.0, 2.0]]).reshape(1, 2, 2, 1)
    chex.assert_trees_all_close(slope(ties).reshape(4), jnp.array([1, 1, 0, 1]) / 3)
