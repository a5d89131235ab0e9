"""Refusals of networks, layers and preprocessing, once each: by the error's class and the argument's name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdml.models import EmbeddingHead, create, normalizer
from jdml.models.convolution import convolve
from jdml.models.vit import resample
from jdml.registry import NETWORKS

ONE_OF_A_KIND = {network.module: name for name, network in reversed(NETWORKS.items())}.values()


def start(name, shape=(2, 32, 32, 3), dtype=jnp.float32, dim=4, **settings):
    """Evaluate the shapes of a network's variables for images."""
    net = create(name, dim=dim, **settings)
    return jax.eval_shape(net.init, jax.random.key(0), jax.ShapeDtypeStruct(shape, dtype))


@pytest.mark.parametrize("name", ONE_OF_A_KIND)
def test_networks_refuse_wrong_images(name):
    with pytest.raises(TypeError, match=r"^images\b"):
        start(name, dtype=jnp.uint8)
    with pytest.raises(ValueError, match=r"^images\b"):
        start(name, (32, 32))
    if NETWORKS[name].pooling:
        with pytest.raises(ValueError, match=r"^pooling\b.*'median'"):
            start(name, pooling="median")


IMAGES, KERNEL = jnp.ones((1, 4, 4, 1)), jnp.ones((3, 3, 1, 1))
KEY, POSITIONS = jax.random.key(0), jnp.zeros((1, 26, 3))


@pytest.mark.parametrize(
    ("call", "error", "name"),
    [
        (lambda: create("vgg", dim=8), ValueError, "name"),
        (lambda: start("vit_s16", (1, 15, 32, 3)), ValueError, "images"),
        (lambda: start("vit_s16", activation="relu"), ValueError, "activation"),
        (lambda: start("siglip_b16", pooling="token"), ValueError, "pooling"),
        (lambda: EmbeddingHead(2).init(KEY, jnp.ones((2, 4))), ValueError, "features"),
        (lambda: convolve(IMAGES, KERNEL, (1, 1), "SAME", (2, 2)), ValueError, "lhs_dilation"),
        (lambda: resample(POSITIONS, 5, (3, 3), "scipy"), ValueError, "resampling"),
        (lambda: normalizer("small"), ValueError, "name"),
        (lambda: normalizer("resnet50")(jnp.zeros((1, 8, 8, 1))), ValueError, "images"),
        (lambda: normalizer("resnet50")(np.zeros((1, 8, 8, 3), np.int32)), TypeError, "images"),
    ],
)
def test_refusals(call, error, name):
    with pytest.raises(error, match=rf"^{name}\b"):
        call()
