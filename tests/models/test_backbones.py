"""All networks by name: sizes, frozen batch norm, types, gradients, updates in training."""

from functools import cache, partial

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdml.models import create
from jdml.registry import NETWORKS

BATCH_NORMED = [name for name, network in NETWORKS.items() if network.batch_norm]
KINDS = {network.module: name for name, network in reversed(NETWORKS.items())}.values()
PUBLISHED = {  # parameters before the embedding, as papers and libraries count them
    "eps": 1_624_768,
    "small": 92_896,
    "resnet20v2": 271_344,
    "resnet18": 11_176_512,
    "resnet50": 23_508_032,
    "bn_inception": 10_270_240,
    "efficientnet_lite0": 3_371_008,
    "vit_s16": 21_665_664,
}
VITS = {  # without DINOv2's mask token; they differ from those above only in size
    "vit_b16": 85_798_656,
    "vit_l16": 303_301_632,
    "dinov2_s14": 22_056_192,
    "dinov2_b14_reg": 86_582_784,
    "dinov2_l14": 304_367_616,
    "clip_b32": 87_849_216,
    "clip_l14": 303_966_208,
    "siglip_b16": 92_884_224,
    "siglip_l16": 315_956_224,
    "siglip_so400m14": 427_680_704,
}


def images_of(size: int, channels: int = 3) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((2, size, size, channels), jnp.float32)


@cache
def shapes_of(net, size: int, channels: int = 3):
    return jax.eval_shape(net.init_with_output, jax.random.key(0), images_of(size, channels))


@pytest.mark.parametrize(
    "name",
    [*PUBLISHED, *(pytest.param(n, marks=pytest.mark.slow) for n in VITS)],  # large networks
)
def test_parameter_counts_equal_the_published(name):
    small = NETWORKS[name].small_images
    net, channels = create(name, dim=7), 1 if small else 3
    embeddings, variables = shapes_of(net, 28 if small else 64, channels)
    assert (embeddings.shape, embeddings.dtype) == ((2, 7), jnp.float32)
    assert set(variables) == {"params", *["batch_stats"] * NETWORKS[name].batch_norm}
    body = [part for key, part in variables["params"].items() if key not in ("head", "embedding")]
    assert sum(leaf.size for leaf in jax.tree.leaves(body)) == (PUBLISHED | VITS)[name]
    if name == "eps" or name in VITS:
        return
    for size in (1, 2, 3, 33) if small else (16, 33):  # the same parameters for every size
        assert jax.eval_shape(net.apply, variables, images_of(size, channels)).shape == (2, 7)


@pytest.mark.parametrize("name", [*KINDS, "dinov2_s14_reg", "clip_b16", "siglip_b16"])
def test_parameters_and_statistics_are_float32(name):
    """Also when computing in half precision, and with JAX's float64 enabled."""
    pooling = {"pooling": "gem"} if NETWORKS[name].pooling else {}
    net = create(name, dim=7, dtype=jnp.bfloat16, **pooling)
    with jax.enable_x64(True):
        tree = jax.eval_shape(net.init_with_output, jax.random.key(0), images_of(32))
        assert {leaf.dtype for leaf in jax.tree.leaves(tree)} == {np.dtype(np.float32)}


@pytest.mark.parametrize("name", BATCH_NORMED)
def test_frozen_batch_norm_gives_training_and_evaluation_one_program(name):
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
    assert statistics == trained.jaxpr.invars[:number]  # unchanged


def test_rematerialized_blocks_give_the_same_gradient():
    settings = {"width": 8, "depth": 1, "heads": 2, "patch": 4, "grid": 3}
    nets = [create("vit_s16", dim=5, remat=remat, **settings) for remat in (False, True)]
    images = np.random.default_rng(1).normal(size=(2, 12, 12, 3)).astype(np.float32)
    variables = jax.jit(nets[0].init)(jax.random.key(0), images)
    gradients = [
        jax.jit(jax.grad(lambda v, net=net: (net.apply(v, images) ** 2).sum()))(variables)
        for net in nets
    ]
    chex.assert_trees_all_close(*gradients, rtol=1e-5)


# The small networks.

SMALL = ["eps", "small", "resnet20v2"]
NARROW = {"small": {"features": (4, 4, 8, 8)}, "resnet20v2": {"features": (4, 8, 8), "blocks": 1}}


def small_network(name: str, **settings) -> nn.Module:
    """Return the network, narrow if possible, to compile quickly."""
    return create(name, dim=3, **NARROW.get(name, {}), **settings)


@cache
def fresh_variables(name: str) -> dict:
    return jax.jit(small_network(name).init)(jax.random.key(0), small_images(8))


@cache
def training(name: str):
    """Return gradients of a loss in training, embeddings and updated statistics."""
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


@pytest.mark.parametrize("name", SMALL)
def test_only_training_updates_the_running_statistics(name):
    """After many updates with one batch the statistics are that batch's, and both modes agree."""
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
    for images in (jnp.zeros((16, 8, 8, 1)), small_images(8)):
        gradients, _ = training(name)(fresh_variables(name), images)
        chex.assert_tree_all_finite(gradients)
    kernels = [leaf for leaf in jax.tree.leaves(gradients) if leaf.ndim > 1]
    assert all(jnp.any(leaf != 0) for leaf in kernels)


@pytest.mark.parametrize("name", SMALL)
def test_evaluation_of_one_image_and_in_bfloat16(name):
    """An image's embedding does not depend on the others; parameters and embeddings are float32."""
    images, variables = small_images(8), fresh_variables(name)
    apply = jax.jit(small_network(name).apply)
    full, alone = apply(variables, images), apply(variables, images[1:2])
    np.testing.assert_allclose(full[1:2], alone, atol=1e-6)
    half = jax.jit(small_network(name, dtype=jnp.bfloat16).apply)(variables, images)
    assert half.dtype == np.float32
    np.testing.assert_allclose(half, full, atol=0.05 * float(np.abs(full).max()))
    assert np.any(half != full)
