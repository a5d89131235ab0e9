"""The small networks: shapes, modes, types, gradients; pooling by reshape against Flax's own."""

from functools import cache
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdml.models import EpsNet, SmallConvNet, create
from jdml.models.convnets import max_pool_2x2

pytestmark = pytest.mark.slow

NAMES = ["eps", "small"]


def small_network(name: str, **settings) -> nn.Module:
    """The network, narrow where it can be, to compile quickly."""
    return create(
        name, dim=3, **({"features": (4, 4, 8, 8)} if name == "small" else {}), **settings
    )


@cache
def fresh_variables(name: str, dtype: Any = jnp.float32) -> dict:
    return jax.jit(small_network(name, dtype=dtype).init)(jax.random.key(0), images_of(8))


def images_of(size: int, batch: int = 4) -> jax.Array:
    return jax.random.uniform(jax.random.key(7), (batch, size, size, 1))


@pytest.mark.parametrize("size", [8, 28, 105])
@pytest.mark.parametrize("name", NAMES)
def test_shapes(name, size):
    net = create(name, dim=16)
    images = jax.ShapeDtypeStruct((2, size, size, 1), jnp.float32)
    embeddings, variables = jax.eval_shape(net.init_with_output, jax.random.key(0), images)
    assert (embeddings.shape, embeddings.dtype) == ((2, 16), jnp.float32)
    assert set(variables) == {"params", "batch_stats"}


def test_eps_net_is_the_papers():
    variables = jax.eval_shape(EpsNet().init, jax.random.key(0), images_of(28))
    kernels = {name: p["kernel"].shape for name, p in variables["params"].items() if "kernel" in p}
    assert kernels == {
        "Conv_0": (3, 3, 1, 32),
        "Conv_1": (3, 3, 32, 64),
        "Dense_0": (14 * 14 * 64, 128),
        "embedding": (128, 2),
    }
    assert [variables["params"][f"BatchNorm_{i}"]["scale"].shape for i in (0, 1)] == [(32,), (64,)]


def test_small_net_is_32_64_64_64_without_bias():
    variables = jax.eval_shape(SmallConvNet().init, jax.random.key(0), images_of(28))
    params = variables["params"]
    kernels = [params[f"Conv_{i}"]["kernel"].shape for i in range(4)]
    assert kernels == [(3, 3, 1, 32), (3, 3, 32, 64), (3, 3, 64, 64), (3, 3, 64, 64)]
    assert not any("bias" in params[f"Conv_{i}"] for i in range(4))
    assert params["head"]["embedding"]["kernel"].shape == (64, 128)


def test_one_set_of_parameters_fits_every_size():
    net = small_network("small")
    variables = fresh_variables("small")
    for size in (1, 2, 3, 28, 105):
        images = jax.ShapeDtypeStruct((4, size, size, 1), jnp.float32)
        assert jax.eval_shape(net.apply, variables, images).shape == (4, 3)


@pytest.mark.parametrize("name", NAMES)
def test_training_moves_the_running_statistics_and_evaluation_does_not(name):
    net = small_network(name)
    images = images_of(8)
    variables = fresh_variables(name)
    apply = jax.jit(net.apply, static_argnames=("train", "mutable"))
    _, updates = apply(variables, images, train=True, mutable=("batch_stats",))
    before, after = variables["batch_stats"], updates["batch_stats"]
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool(jnp.any(a != b)), before, after)))
    _, updates = apply(variables, images, mutable=("batch_stats",))
    chex.assert_trees_all_equal(updates["batch_stats"], before)


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_embeds_each_image_by_itself(name):
    net = small_network(name)
    images = images_of(8)
    variables = fresh_variables(name)
    apply = jax.jit(net.apply)
    np.testing.assert_allclose(
        apply(variables, images)[1:2], apply(variables, images[1:2]), atol=1e-6
    )


@pytest.mark.parametrize("name", NAMES)
def test_training_goes_on_after_the_running_statistics_settled(name):
    """Statistics of one batch, repeated, are that batch's: both modes then agree."""
    net = small_network(name)
    images = images_of(8, batch=16)
    variables = fresh_variables(name)
    step = jax.jit(lambda v: net.apply(v, images, train=True, mutable=["batch_stats"]))
    for _ in range(200):
        trained, updates = step(variables)
        variables = {**variables, **updates}
    np.testing.assert_allclose(jax.jit(net.apply)(variables, images), trained, atol=1e-3)


@pytest.mark.parametrize("images", [images_of(8), jnp.zeros((4, 8, 8, 1))], ids=["random", "black"])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_finite(name, images):
    net = small_network(name)
    variables = fresh_variables(name)

    def loss(params):
        embeddings, _ = net.apply(
            {**variables, "params": params}, images, train=True, mutable=["batch_stats"]
        )
        return (embeddings**2).sum()

    chex.assert_tree_all_finite(jax.jit(jax.grad(loss))(variables["params"]))


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_computes_with_float32_parameters(name):
    images = images_of(8)
    net, half = small_network(name), small_network(name, dtype=jnp.bfloat16)
    variables = fresh_variables(name, jnp.bfloat16)
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}
    embeddings = jax.jit(half.apply)(variables, images)
    assert embeddings.dtype == jnp.float32
    full = jax.jit(net.apply)(variables, images)
    np.testing.assert_allclose(embeddings, full, atol=0.05 * float(jnp.abs(full).max()))
    assert np.any(embeddings != full)


@pytest.mark.parametrize("shape", [(2, 4, 6, 3), (1, 7, 5, 2), (2, 2, 2, 1), (1, 105, 28, 2)])
def test_pooling_by_reshape_is_max_pool(shape):
    x = jax.random.normal(jax.random.key(0), shape)

    def value_and_gradient(pool):
        pooled, pull = jax.vjp(pool, x)
        return pooled, pull(jnp.cos(pooled))[0]

    chex.assert_trees_all_close(
        jax.jit(value_and_gradient, static_argnums=0)(max_pool_2x2),
        jax.jit(value_and_gradient, static_argnums=0)(lambda x: nn.max_pool(x, (2, 2), (2, 2))),
        rtol=1e-6,
    )


@pytest.mark.parametrize(
    ("shape", "pooled"), [((2, 1, 1, 3), (2, 1, 1, 3)), ((2, 1, 5, 3), (2, 1, 2, 3))]
)
def test_a_side_of_one_is_not_pooled(shape, pooled):
    x = jax.random.normal(jax.random.key(0), shape)
    assert max_pool_2x2(x).shape == pooled
    assert float(max_pool_2x2(x)[0, 0, 0, 0]) == float(x[0, 0, : min(shape[2], 2), 0].max())


@pytest.mark.parametrize("name", NAMES)
def test_bad_images(name):
    net = small_network(name)
    with pytest.raises(
        TypeError, match=r"images must be floating-point \(uint8 / 255\), got uint8"
    ):
        net.init(jax.random.key(0), jnp.zeros((2, 8, 8, 1), jnp.uint8))
    with pytest.raises(ValueError, match=r"images must have shape \[B, H, W, C\], got \[8, 8, 1\]"):
        net.init(jax.random.key(0), jnp.zeros((8, 8, 1)))


@pytest.mark.parametrize("name", NAMES)
def test_bad_dim(name):
    with pytest.raises(ValueError, match="dim must be a positive integer, got -1"):
        jax.eval_shape(create(name, dim=-1).init, jax.random.key(0), images_of(8))


def test_create_makes_the_named_network():
    assert create("eps", dim=2) == EpsNet(2)
    assert create("small", dim=4, pooling="gem") == SmallConvNet(4, pooling="gem")
    with pytest.raises(ValueError, match=r"name must be one of \('eps', .*'vit_s16'\), got 'vgg'"):
        create("vgg", dim=8)
