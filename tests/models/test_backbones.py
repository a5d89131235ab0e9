"""All networks by name: sizes, frozen batch norm, types, pooling; what the large ones refuse."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.errors import ModifyScopeVariableError

from jdml.models import create
from jdml.models.heads import POOLINGS
from jdml.models.registry import NETWORKS

BATCH_NORMED = [name for name in NETWORKS if name != "vit_s16"]
LARGE = {  # width of the features, parameters of the published network without its classifier
    "bn_inception": (1024, 10_270_240),
    "efficientnet_lite0": (1280, 3_371_008),
    "vit_s16": (384, 21_665_664),
}


def images_of(size: int, channels: int = 3) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((2, size, size, channels), jnp.float32)


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


@pytest.mark.parametrize("name", BATCH_NORMED)
def test_frozen_batch_norm_makes_training_and_evaluation_one_program(name):
    net = create(name, dim=3, freeze_batch_norm=True)
    _, variables = shapes_of(net, 32)
    programs = {
        str(jax.make_jaxpr(lambda v, x, train=train: net.apply(v, x, train=train))(variables, x))
        for train in (False, True)
        for x in [images_of(32)]
    }
    assert len(programs) == 1
    with pytest.raises(ModifyScopeVariableError):
        jax.eval_shape(lambda v: create(name, dim=3).apply(v, jnp.zeros((2, 32, 32, 3)), train=True),
                       variables)  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("pooling", ["max", "average+max", "gem"])
def test_in_half_precision_parameters_and_embeddings_stay_float32(name, pooling):
    net = create(name, dim=4, dtype=jnp.bfloat16, pooling=pooling)
    embeddings, variables = shapes_of(net, 64)
    chex.assert_type([*jax.tree.leaves(variables), embeddings], jnp.float32)


def tiny_vit(**settings):
    return create("vit_s16", dim=5, width=8, depth=2, heads=2, patch=4, grid=3, **settings)


def test_class_token_or_patch_tokens_are_pooled():
    images = jax.random.normal(jax.random.key(0), (2, 12, 12, 3))
    variables = tiny_vit().init(jax.random.key(1), images)
    embeddings = [tiny_vit(pooling=p).apply(variables, images) for p in ("token", "average", "max")]
    for i in range(3):
        assert not np.allclose(embeddings[i], embeddings[i - 1])
    gradients = jax.grad(lambda v: (tiny_vit().apply(v, images) ** 2).sum())(variables)
    chex.assert_tree_all_finite(gradients)
    assert all(jnp.any(leaf != 0) for leaf in jax.tree.leaves(gradients["params"]["head"]))


def test_patch_tokens_without_positions_know_no_order():
    """Average pooling of tokens is the same when the patches change places; with positions it is not."""
    images = jax.random.normal(jax.random.key(0), (2, 12, 12, 3))
    net = tiny_vit(pooling="average")
    variables = net.init(jax.random.key(1), images)
    turned = jnp.concatenate([images[:, 4:], images[:, :4]], 1)
    assert not np.allclose(net.apply(variables, images), net.apply(variables, turned), atol=1e-5)
    variables["params"]["positions"] = jnp.zeros_like(variables["params"]["positions"])
    chex.assert_trees_all_close(
        net.apply(variables, images), net.apply(variables, turned), atol=1e-5
    )


def test_positions_are_resampled_for_other_sizes():
    """Positions that are one vector everywhere stay so on every grid."""
    net = tiny_vit()
    variables = net.init(jax.random.key(1), jnp.zeros((1, 12, 12, 3)))
    variables["params"]["positions"] = jnp.ones((1, 10, 8))
    other = create("vit_s16", dim=5, width=8, depth=2, heads=2, patch=4, grid=5)
    wider = {**variables["params"], "positions": jnp.ones((1, 26, 8))}
    images = jax.random.normal(jax.random.key(0), (2, 20, 20, 3))
    chex.assert_trees_all_close(
        net.apply(variables, images), other.apply({"params": wider}, images), atol=1e-5
    )


def test_half_precision_is_near():
    images = jax.random.normal(jax.random.key(0), (2, 12, 12, 3))
    variables = tiny_vit().init(jax.random.key(1), images)
    full, half = tiny_vit().apply(variables, images), tiny_vit(dtype=jnp.bfloat16)
    embeddings = half.apply(variables, images)
    np.testing.assert_allclose(embeddings, full, atol=0.05 * float(jnp.abs(full).max()))
    assert np.any(embeddings != full)


@pytest.mark.parametrize("name", LARGE)
def test_refusals(name):
    def embed(images, **settings):
        net = create(name, **{"dim": 4, **settings})
        return jax.eval_shape(net.init, jax.random.key(0), images)

    with pytest.raises(TypeError, match=r"images must be floating-point .* got uint8"):
        embed(jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.uint8))
    with pytest.raises(ValueError, match=r"images must have shape \[B, H, W, C\], got \[32, 32\]"):
        embed(jax.ShapeDtypeStruct((32, 32), jnp.float32))
    with pytest.raises(ValueError, match="dim must be a positive integer, got 0"):
        embed(images_of(32), dim=0)
    with pytest.raises(
        ValueError, match=rf"pooling must be one of .*{POOLINGS[-2]}.* got 'median'"
    ):
        embed(images_of(32), pooling="median")


def test_vit_refuses_images_smaller_than_a_patch():
    with pytest.raises(ValueError, match="images must be at least 16×16, got 15×32"):
        create("vit_s16", dim=4).init(jax.random.key(0), jnp.zeros((1, 15, 32, 3)))
