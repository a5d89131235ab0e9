"""All networks by name: sizes, frozen batch norm, types, gradients, what training moves."""

from functools import cache, partial

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.errors import ModifyScopeVariableError

from jdml.models import EpsNet, ResNet20V2, SmallConvNet, create
from jdml.registry import NETWORKS

BATCH_NORMED = [name for name, network in NETWORKS.items() if network.batch_norm]
KINDS = {network.make: name for name, network in reversed(NETWORKS.items())}.values()
LARGE = {  # width of the features, parameters of the published network without its classifier
    "resnet18": (512, 11_176_512),
    "resnet50": (2048, 23_508_032),
    "bn_inception": (1024, 10_270_240),
    "efficientnet_lite0": (1280, 3_371_008),
    "vit_s16": (384, 21_665_664),
}
VITS = {  # millions of parameters, as the libraries count them, without DINOv2's mask token
    "vit_b16": 85.798656,
    "vit_l16": 303.301632,
    "dinov2_s14": 22.056192,
    "dinov2_b14_reg": 86.582784,
    "dinov2_l14": 304.367616,
    "clip_b32": 87.849216,
    "clip_l14": 303.966208,
    "siglip_b16": 92.884224,
    "siglip_l16": 315.956224,
    "siglip_so400m14": 427.680704,
}


def images_of(size: int, channels: int = 3) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((2, size, size, channels), jnp.float32)


@cache
def shapes_of(net, size: int, channels: int = 3):
    return jax.eval_shape(net.init_with_output, jax.random.key(0), images_of(size, channels))


def count(variables) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))


@pytest.mark.parametrize("name", LARGE)
def test_as_many_parameters_as_published(name):
    width, body = LARGE[name]
    net = create(name, dim=7)
    embeddings, variables = shapes_of(net, 64)
    assert (embeddings.shape, embeddings.dtype) == ((2, 7), jnp.float32)
    assert count(variables) == body + width * 7 + 7
    for size in (16, 33):  # one set of parameters for every size
        assert jax.eval_shape(net.apply, variables, images_of(size)).shape == (2, 7)


@pytest.mark.slow  # sizes alone differ from those above
@pytest.mark.parametrize("name", VITS)
def test_transformers_have_as_many_parameters_as_published(name):
    _, variables = shapes_of(create(name, dim=1), 64)
    del variables["params"]["head"]
    assert count(variables) == 1e6 * VITS[name]


@pytest.mark.parametrize("name", [*KINDS, "dinov2_s14_reg", "clip_b16", "siglip_b16"])
def test_parameters_and_statistics_are_float32(name):
    """Also in half precision, and where JAX has float64."""
    pooling = {"pooling": "gem"} if NETWORKS[name].pooling else {}
    net = create(name, dim=7, dtype=jnp.bfloat16, **pooling)
    with jax.enable_x64(True):
        tree = jax.eval_shape(net.init_with_output, jax.random.key(0), images_of(32))
        assert {leaf.dtype for leaf in jax.tree.leaves(tree)} == {np.dtype(np.float32)}


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
    number = len(jax.tree.leaves(variables["batch_stats"]))
    assert statistics == trained.jaxpr.invars[:number]  # as they were
    jax.eval_shape(partial(net.apply, train=True), variables, images_of(32))
    moving = partial(create(name, dim=3).apply, train=True)
    with pytest.raises(ModifyScopeVariableError):
        jax.eval_shape(moving, variables, images_of(32))


# A tiny transformer.

TINY = {"width": 8, "depth": 1, "heads": 2, "patch": 4}


def tiny_vit(**settings):
    return create("vit_s16", dim=5, **{**TINY, "grid": 3, **settings})


@pytest.fixture(scope="module")
def tiny_variables():
    """Of the tiny transformer, random."""
    _, shapes = shapes_of(tiny_vit(), 12)
    draw = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: draw.normal(size=leaf.shape).astype(np.float32), shapes)


def photographs(size: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(2, size, size, 3)).astype(np.float32)


def embed(net, variables, images) -> np.ndarray:
    return np.asarray(jax.jit(net.apply)(variables, images))


def with_positions(variables, positions):
    return {"params": {**variables["params"], "positions": positions}}


def test_patch_tokens_without_positions_know_no_order(tiny_variables):
    """Average pooling of tokens is the same when the patches change places; with positions it is not."""
    images, net = photographs(12), tiny_vit(pooling="average")
    turned = np.roll(images, 4, axis=1)
    apply = jax.jit(net.apply)
    orders = [apply(tiny_variables, some) for some in (images, turned)]
    assert not np.allclose(*orders, atol=1e-3)
    blind = with_positions(tiny_variables, np.zeros((1, 10, 8), np.float32))
    np.testing.assert_allclose(apply(blind, images), apply(blind, turned), atol=1e-4)
    assert not np.allclose(orders[0], embed(tiny_vit(pooling="token"), tiny_variables, images))


def test_half_precision_is_near(tiny_variables):
    images = photographs(12)
    full = embed(tiny_vit(), tiny_variables, images)
    half = embed(tiny_vit(dtype=jnp.bfloat16), tiny_variables, images)
    np.testing.assert_allclose(half, full, atol=0.1 * float(np.abs(full).max()))
    assert np.any(half != full)


def test_blocks_computed_anew_give_the_same_gradient(tiny_variables):
    images = photographs(12)
    gradients = [
        jax.jit(jax.grad(lambda v, net=net: (net.apply(v, images) ** 2).sum()))(tiny_variables)
        for net in (tiny_vit(depth=1), tiny_vit(depth=1, remat=True))
    ]
    chex.assert_trees_all_close(*gradients, rtol=1e-5)


# The small networks.

SMALL = ["eps", "small", "resnet20v2"]
NARROW = {"small": {"features": (4, 4, 8, 8)}, "resnet20v2": {"features": (4, 8, 8), "blocks": 1}}


def small_network(name: str, **settings) -> nn.Module:
    """The network, narrow where it can be, to compile quickly."""
    return create(name, dim=3, **NARROW.get(name, {}), **settings)


@cache
def fresh_variables(name: str) -> dict:
    return jax.jit(small_network(name).init)(jax.random.key(0), small_images(8))


@cache
def training(name: str):
    """Gradients of a loss in training, embeddings and moved statistics."""
    net = small_network(name)

    def loss(params, variables, images):
        x, updates = net.apply(
            {**variables, "params": params}, images, train=True, mutable=["batch_stats"]
        )
        return jnp.square(x - 1.0).sum(), (x, updates)

    step = jax.jit(jax.grad(loss, has_aux=True))
    return lambda variables, images: step(variables["params"], variables, images)


def small_images(size: int, batch: int = 16) -> jax.Array:
    return jax.random.uniform(jax.random.key(7), (batch, size, size, 1))


@pytest.mark.parametrize("size", [8, 28, 105])
@pytest.mark.parametrize("name", SMALL)
def test_shapes(name, size):
    embeddings, variables = shapes_of(create(name, dim=16), size, 1)
    assert (embeddings.shape, embeddings.dtype) == ((2, 16), jnp.float32)
    assert set(variables) == {"params", "batch_stats"}


def kernels_of(net: nn.Module) -> dict[str, tuple[int, ...]]:
    _, variables = shapes_of(net, 28, 1)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape
        for path, leaf in jax.tree.leaves_with_path(variables["params"])
    }


def test_eps_net_is_the_papers():
    shapes = kernels_of(EpsNet())
    kernels = {name: shape for name, shape in shapes.items() if name.endswith("kernel")}
    assert kernels == {
        "Conv_0/kernel": (3, 3, 1, 32),
        "Conv_1/kernel": (3, 3, 32, 64),
        "Dense_0/kernel": (14 * 14 * 64, 128),
        "embedding/kernel": (128, 2),
    }
    assert [shapes[f"BatchNorm_{i}/scale"] for i in (0, 1)] == [(32,), (64,)]


def test_small_net_is_32_64_64_64_without_bias():
    shapes = kernels_of(SmallConvNet())
    kernels = [shapes[f"Conv_{i}/kernel"] for i in range(4)]
    assert kernels == [(3, 3, 1, 32), (3, 3, 32, 64), (3, 3, 64, 64), (3, 3, 64, 64)]
    assert not any(f"Conv_{i}/bias" in shapes for i in range(4))
    assert shapes["head/embedding/kernel"] == (64, 128)


def test_resnet20_has_twenty_layers():
    kernels = [shape for shape in kernels_of(ResNet20V2()).values() if len(shape) > 1]
    assert sum(shape[:2] == (3, 3) for shape in kernels) == 19  # and the dense layer
    assert sum(shape[:2] == (1, 1) for shape in kernels) == 2


@pytest.mark.parametrize("name", ["small", "resnet20v2"])
def test_one_set_of_parameters_fits_every_size(name):
    net = small_network(name)
    for size in (1, 2, 3, 28, 33):
        images = jax.ShapeDtypeStruct((4, size, size, 1), jnp.float32)
        assert jax.eval_shape(net.apply, fresh_variables(name), images).shape == (4, 3)


@pytest.mark.parametrize("name", SMALL)
def test_training_moves_the_running_statistics_and_evaluation_does_not(name):
    """Statistics of one batch, repeated, are that batch's: both modes then agree."""
    images, variables = small_images(8), fresh_variables(name)
    evaluate = jax.jit(partial(small_network(name).apply, mutable=("batch_stats",)))
    _, updates = evaluate(variables, images)
    chex.assert_trees_all_equal(updates["batch_stats"], variables["batch_stats"])
    _, (_, updates) = training(name)(variables, images)
    before, after = variables["batch_stats"], updates["batch_stats"]
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool(jnp.any(a != b)), before, after)))
    for _ in range(200):
        _, (trained, updates) = training(name)(variables, images)
        variables = {**variables, **updates}
    np.testing.assert_allclose(evaluate(variables, images)[0], trained, atol=1e-3)


@pytest.mark.parametrize("name", SMALL)
def test_gradients_are_finite(name):
    for images in (small_images(8), jnp.zeros((16, 8, 8, 1))):
        gradients, _ = training(name)(fresh_variables(name), images)
        chex.assert_tree_all_finite(gradients)
    gradients, _ = training(name)(fresh_variables(name), small_images(8))
    kernels = [leaf for leaf in jax.tree.leaves(gradients) if leaf.ndim > 1]
    assert all(jnp.any(leaf != 0) for leaf in kernels)


@pytest.mark.parametrize("name", SMALL)
def test_evaluation_embeds_each_image_by_itself(name):
    apply, images = jax.jit(small_network(name).apply), small_images(8)
    alone = apply(fresh_variables(name), images[1:2])
    np.testing.assert_allclose(apply(fresh_variables(name), images)[1:2], alone, atol=1e-6)


@pytest.mark.parametrize("name", SMALL)
def test_bfloat16_computes_with_float32_parameters(name):
    images, variables = small_images(8), fresh_variables(name)
    half = embed(small_network(name, dtype=jnp.bfloat16), variables, images)
    full = embed(small_network(name), variables, images)
    assert half.dtype == np.float32
    np.testing.assert_allclose(half, full, atol=0.05 * float(np.abs(full).max()))
    assert np.any(half != full)


def test_create_makes_the_named_network():
    assert create("eps", dim=2) == EpsNet(2)
    assert create("small", dim=4, pooling="gem") == SmallConvNet(4, pooling="gem")
