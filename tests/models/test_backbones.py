"""All networks by name: sizes, frozen batch norm, types, pooling; what the large ones refuse."""

from functools import cache, partial
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.errors import ModifyScopeVariableError

from jdml.models import EpsNet, ResNet, ResNet20V2, SmallConvNet, create, layers
from jdml.models.convnets import max_pool_2x2
from jdml.models.heads import POOLINGS
from jdml.registry import NETWORKS

pytestmark = pytest.mark.slow

BATCH_NORMED = [name for name, network in NETWORKS.items() if network.batch_norm]
LARGE = {  # width of the features, parameters of the published network without its classifier
    "bn_inception": (1024, 10_270_240),
    "efficientnet_lite0": (1280, 3_371_008),
    "vit_s16": (384, 21_665_664),
}


def images_of(size: int, channels: int = 3) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((2, size, size, channels), jnp.float32)


@cache
def shapes_of(net, size: int):
    return jax.eval_shape(net.init_with_output, jax.random.key(0), images_of(size))


@pytest.mark.parametrize("name", LARGE)
def test_as_many_parameters_as_everybodys(name):
    width, body = LARGE[name]
    embeddings, variables = shapes_of(create(name, dim=7), 64)
    assert (embeddings.shape, embeddings.dtype) == ((2, 7), jnp.float32)
    count = sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
    assert count == body + width * 7 + 7


@pytest.mark.parametrize("size", [16, 33, 224, 227])
@pytest.mark.parametrize("name", LARGE)
def test_one_set_of_parameters_fits_every_size(name, size):
    net = create(name, dim=7)
    _, variables = shapes_of(net, 64)
    assert jax.eval_shape(net.apply, variables, images_of(size)).shape == (2, 7)


@pytest.mark.parametrize("name", NETWORKS)
def test_parameters_and_statistics_are_float32_where_jax_has_float64_too(name):
    with jax.enable_x64(True):
        images = images_of(224 if name.startswith(("dino", "clip", "siglip")) else 64)
        pooling = {"pooling": "gem"} if NETWORKS[name].pooling else {}
        embeddings, variables = jax.eval_shape(
            create(name, dim=7, **pooling).init_with_output, jax.random.key(0), images
        )
        types = {leaf.dtype for leaf in jax.tree.leaves((embeddings, variables))}
    assert types == {np.dtype(np.float32)}


@pytest.mark.parametrize("name", BATCH_NORMED)
def test_frozen_batch_norm_makes_training_and_evaluation_one_program(name):
    net = create(name, dim=3, freeze_batch_norm=True)
    _, variables = shapes_of(net, 32)
    evaluated, trained = (
        jax.make_jaxpr(partial(net.apply, train=train, mutable=["batch_stats"]))(
            variables, images_of(32)
        )
        for train in (False, True)
    )
    assert str(evaluated) == str(trained)
    _, *statistics = trained.jaxpr.outvars
    count = len(jax.tree.leaves(variables["batch_stats"]))
    assert statistics == trained.jaxpr.invars[:count]  # as they were
    jax.eval_shape(partial(net.apply, train=True), variables, images_of(32))
    with pytest.raises(ModifyScopeVariableError):
        jax.eval_shape(
            lambda v, x: create(name, dim=3).apply(v, x, train=True), variables, images_of(32)
        )


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("pooling", ["max", "average+max", "gem"])
def test_in_half_precision_parameters_and_embeddings_stay_float32(name, pooling):
    net = create(name, dim=4, dtype=jnp.bfloat16, pooling=pooling)
    embeddings, variables = shapes_of(net, 64)
    chex.assert_type([*jax.tree.leaves(variables), embeddings], jnp.float32)


TINY = {"width": 8, "depth": 1, "heads": 2, "patch": 4}


def tiny_vit(**settings):
    return create("vit_s16", dim=5, **{**TINY, "grid": 3, **settings})


@pytest.fixture(scope="module")
def tiny_variables():
    """Of the tiny transformer, random."""
    _, shapes = jax.eval_shape(
        tiny_vit().init_with_output, jax.random.key(0), jnp.zeros((1, 12, 12, 3))
    )
    draw = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: draw.normal(size=leaf.shape).astype(np.float32), shapes)


def photographs(size: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(2, size, size, 3)).astype(np.float32)


def embed(net, variables, images) -> np.ndarray:
    return np.asarray(jax.jit(net.apply)(variables, images))


def with_positions(variables, positions):
    return {"params": {**variables["params"], "positions": positions}}


def test_class_token_or_patch_tokens_are_pooled(tiny_variables):
    images = photographs(12)
    token, average = (
        embed(tiny_vit(pooling=p), tiny_variables, images) for p in ("token", "average")
    )
    assert not np.allclose(token, average)


def test_patch_tokens_without_positions_know_no_order(tiny_variables):
    """Average pooling of tokens is the same when the patches change places; with positions it is not."""
    images, net = photographs(12), tiny_vit(pooling="average")
    turned = np.roll(images, 4, axis=1)
    orders = embed(net, tiny_variables, images), embed(net, tiny_variables, turned)
    assert not np.allclose(*orders, atol=1e-3)
    blind = with_positions(tiny_variables, np.zeros((1, 10, 8), np.float32))
    np.testing.assert_allclose(embed(net, blind, images), embed(net, blind, turned), atol=1e-4)


def test_positions_are_resampled_for_other_sizes(tiny_variables):
    """Positions that are one vector everywhere stay so on every grid."""
    images = photographs(20)
    small = with_positions(tiny_variables, np.ones((1, 10, 8), np.float32))
    large = with_positions(tiny_variables, np.ones((1, 26, 8), np.float32))
    np.testing.assert_allclose(
        embed(tiny_vit(), small, images), embed(tiny_vit(grid=5), large, images), atol=1e-4
    )


def test_half_precision_is_near(tiny_variables):
    images = photographs(12)
    full = embed(tiny_vit(), tiny_variables, images)
    half = embed(tiny_vit(dtype=jnp.bfloat16), tiny_variables, images)
    np.testing.assert_allclose(half, full, atol=0.1 * float(np.abs(full).max()))
    assert np.any(half != full)


@pytest.mark.parametrize("name", LARGE)
def test_refusals(name):
    def start(images, **settings):
        net = create(name, **{"dim": 4, **settings})
        return jax.eval_shape(net.init, jax.random.key(0), images)

    with pytest.raises(TypeError, match=r"images must be floating-point .* got uint8"):
        start(jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.uint8))
    with pytest.raises(ValueError, match=r"images must have shape \[B, H, W, C\], got \[32, 32\]"):
        start(jax.ShapeDtypeStruct((32, 32), jnp.float32))
    with pytest.raises(ValueError, match="dim must be a positive integer, got 0"):
        start(images_of(32), dim=0)
    with pytest.raises(
        ValueError, match=rf"pooling must be one of .*{POOLINGS[-2]}.* got 'median'"
    ):
        start(images_of(32), pooling="median")


def test_vit_refuses_images_smaller_than_a_patch():
    with pytest.raises(ValueError, match="images must be at least 16×16, got 15×32"):
        create("vit_s16", dim=4).init(jax.random.key(0), jnp.zeros((1, 15, 32, 3)))


# Residual networks: sizes, what batch norm does, gradients, refusals.


def count(params) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize(
    ("depth", "width", "body"), [(18, 512, 11_176_512), (50, 2048, 23_508_032)]
)
def test_residual_networks_have_as_many_parameters_as_everybodys(depth, width, body):
    images = jax.ShapeDtypeStruct((2, 64, 64, 3), jnp.float32)
    embeddings, variables = jax.eval_shape(
        ResNet(dim=7, depth=depth).init_with_output, jax.random.key(0), images
    )
    assert (embeddings.shape, embeddings.dtype) == ((2, 7), jnp.float32)
    assert count(variables["params"]) == body + width * 7 + 7


def test_resnet20_has_twenty_layers():
    variables = jax.eval_shape(ResNet20V2().init, jax.random.key(0), jnp.zeros((1, 28, 28, 1)))
    kernels = [
        leaf.shape for path, leaf in jax.tree.leaves_with_path(variables["params"]) if leaf.ndim > 1
    ]
    assert sum(shape[:2] == (3, 3) for shape in kernels) == 19  # and the dense layer
    assert sum(shape[:2] == (1, 1) for shape in kernels) == 2


def test_resnet20_takes_any_size_and_learns():
    net = ResNet20V2(dim=3, features=(4, 8, 8), blocks=1)
    images = jax.random.uniform(jax.random.key(0), (4, 33, 33, 1))
    variables = jax.jit(net.init)(jax.random.key(1), images)
    for size in (8, 28):
        assert jax.eval_shape(net.apply, variables, images[:, :size, :size]).shape == (4, 3)

    def loss(params):
        x, updates = net.apply(
            {**variables, "params": params}, images, train=True, mutable=["batch_stats"]
        )
        return jnp.square(x - 1.0).sum(), updates

    gradients, updates = jax.jit(jax.grad(loss, has_aux=True))(variables["params"])
    chex.assert_tree_all_finite(gradients)
    assert all(jnp.any(leaf != 0) for leaf in jax.tree.leaves(gradients))
    moved = jax.tree.map(
        lambda a, b: jnp.any(a != b), updates["batch_stats"], variables["batch_stats"]
    )
    assert all(jax.tree.leaves(moved))


def test_in_half_precision_those_of_residual_networks_stay_float32():
    images = jax.ShapeDtypeStruct((1, 64, 64, 3), jnp.float32)
    net = create("resnet50", dim=4, dtype=jnp.bfloat16, pooling="gem")
    embeddings, variables = jax.eval_shape(net.init_with_output, jax.random.key(0), images)
    chex.assert_type(jax.tree.leaves(variables) + [embeddings], jnp.float32)


def test_refuses_depths_that_are_not_there():
    with pytest.raises(ValueError, match=r"depth must be one of \(18, 50\), got 34"):
        ResNet(depth=34).init(jax.random.key(0), jnp.zeros((1, 8, 8, 3)))
    with pytest.raises(TypeError, match="images must be floating-point"):
        ResNet20V2().init(jax.random.key(0), jnp.zeros((1, 8, 8, 1), jnp.uint8))


# The small networks: shapes, modes, types, gradients; pooling by reshape against Flax's own.

NAMES = ["eps", "small"]


def small_network(name: str, **settings) -> nn.Module:
    """The network, narrow where it can be, to compile quickly."""
    return create(
        name, dim=3, **({"features": (4, 4, 8, 8)} if name == "small" else {}), **settings
    )


@cache
def fresh_variables(name: str, dtype: Any = jnp.float32) -> dict:
    return jax.jit(small_network(name, dtype=dtype).init)(jax.random.key(0), small_images(8))


def small_images(size: int, batch: int = 4) -> jax.Array:
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
    variables = jax.eval_shape(EpsNet().init, jax.random.key(0), small_images(28))
    kernels = {name: p["kernel"].shape for name, p in variables["params"].items() if "kernel" in p}
    assert kernels == {
        "Conv_0": (3, 3, 1, 32),
        "Conv_1": (3, 3, 32, 64),
        "Dense_0": (14 * 14 * 64, 128),
        "embedding": (128, 2),
    }
    assert [variables["params"][f"BatchNorm_{i}"]["scale"].shape for i in (0, 1)] == [(32,), (64,)]


def test_small_net_is_32_64_64_64_without_bias():
    variables = jax.eval_shape(SmallConvNet().init, jax.random.key(0), small_images(28))
    params = variables["params"]
    kernels = [params[f"Conv_{i}"]["kernel"].shape for i in range(4)]
    assert kernels == [(3, 3, 1, 32), (3, 3, 32, 64), (3, 3, 64, 64), (3, 3, 64, 64)]
    assert not any("bias" in params[f"Conv_{i}"] for i in range(4))
    assert params["head"]["embedding"]["kernel"].shape == (64, 128)


def test_one_set_of_parameters_of_the_eps_net_fits_every_size():
    net = small_network("small")
    variables = fresh_variables("small")
    for size in (1, 2, 3, 28, 105):
        images = jax.ShapeDtypeStruct((4, size, size, 1), jnp.float32)
        assert jax.eval_shape(net.apply, variables, images).shape == (4, 3)


@pytest.mark.parametrize("name", NAMES)
def test_training_moves_the_running_statistics_and_evaluation_does_not(name):
    net = small_network(name)
    images = small_images(8)
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
    images = small_images(8)
    variables = fresh_variables(name)
    apply = jax.jit(net.apply)
    np.testing.assert_allclose(
        apply(variables, images)[1:2], apply(variables, images[1:2]), atol=1e-6
    )


@pytest.mark.parametrize("name", NAMES)
def test_training_goes_on_after_the_running_statistics_settled(name):
    """Statistics of one batch, repeated, are that batch's: both modes then agree."""
    net = small_network(name)
    images = small_images(8, batch=16)
    variables = fresh_variables(name)
    step = jax.jit(lambda v: net.apply(v, images, train=True, mutable=["batch_stats"]))
    for _ in range(200):
        trained, updates = step(variables)
        variables = {**variables, **updates}
    np.testing.assert_allclose(jax.jit(net.apply)(variables, images), trained, atol=1e-3)


@pytest.mark.parametrize(
    "images", [small_images(8), jnp.zeros((4, 8, 8, 1))], ids=["random", "black"]
)
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
    images = small_images(8)
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


def test_pooling_of_a_tpu_is_that_of_the_others():
    """Without equal pixels: these share the gradient elsewhere."""
    x = jax.random.permutation(jax.random.key(0), 2 * 7 * 6 * 3).reshape(2, 7, 6, 3) / 100

    def value_and_gradient(pool):
        pooled, pull = jax.vjp(partial(pool, 3, 2, ((1, 1), (0, 1))), x)
        return pooled, pull(jnp.cos(pooled))[0]

    chex.assert_trees_all_close(
        *(
            jax.jit(value_and_gradient, static_argnums=0)(pool)
            for pool in (layers._max_pool, layers._xla_max_pool)
        ),
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
        jax.eval_shape(create(name, dim=-1).init, jax.random.key(0), small_images(8))


def test_create_makes_the_named_network():
    assert create("eps", dim=2) == EpsNet(2)
    assert create("small", dim=4, pooling="gem") == SmallConvNet(4, pooling="gem")
    with pytest.raises(
        ValueError, match=r"name must be one of \('eps', .*'vit_s16', .*\), got 'vgg'"
    ):
        create("vgg", dim=8)
