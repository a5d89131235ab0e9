"""Residual networks: sizes, what batch norm does, gradients, refusals."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdml.models import ResNet, ResNet20V2, create

pytestmark = pytest.mark.slow


def count(params) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize(
    ("depth", "width", "body"), [(18, 512, 11_176_512), (50, 2048, 23_508_032)]
)
def test_as_many_parameters_as_everybodys(depth, width, body):
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


@pytest.mark.parametrize("size", [8, 28, 33])
def test_resnet20_takes_any_size_and_learns(size):
    net = ResNet20V2(dim=3, features=(4, 8, 8), blocks=1)
    images = jax.random.uniform(jax.random.key(0), (4, size, size, 1))
    variables = jax.jit(net.init)(jax.random.key(1), images)

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


def test_frozen_batch_norm_is_the_same_in_training():
    images = jax.random.uniform(jax.random.key(0), (2, 32, 32, 3))
    net = ResNet(dim=3, depth=18, freeze_batch_norm=True)

    @jax.jit
    def both(key):
        variables = net.init(key, images)
        trained = net.apply(variables, images, train=True, mutable=["batch_stats"])
        return variables, trained, net.apply(variables, images)

    variables, (trained, updates), evaluated = both(jax.random.key(1))
    chex.assert_trees_all_close(trained, evaluated)
    chex.assert_trees_all_equal(
        updates.get("batch_stats", variables["batch_stats"]), variables["batch_stats"]
    )


def test_in_half_precision_parameters_and_embeddings_stay_float32():
    images = jax.ShapeDtypeStruct((1, 64, 64, 3), jnp.float32)
    net = create("resnet50", dim=4, dtype=jnp.bfloat16, pooling="gem")
    embeddings, variables = jax.eval_shape(net.init_with_output, jax.random.key(0), images)
    chex.assert_type(jax.tree.leaves(variables) + [embeddings], jnp.float32)


def test_refuses_depths_that_are_not_there():
    with pytest.raises(ValueError, match=r"depth must be one of \(18, 50\), got 34"):
        ResNet(depth=34).init(jax.random.key(0), jnp.zeros((1, 8, 8, 3)))
    with pytest.raises(TypeError, match="images must be floating-point"):
        ResNet20V2().init(jax.random.key(0), jnp.zeros((1, 8, 8, 1), jnp.uint8))
