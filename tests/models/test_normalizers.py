"""Images as pretrained weights expect them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdml.models import normalizer

PIXEL = np.array([255, 127, 0], np.uint8).reshape(1, 1, 1, 3)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet18", [(1 - 0.485) / 0.229, (127 / 255 - 0.456) / 0.224, -0.406 / 0.225]),
        ("vit_s16_dino", [(1 - 0.485) / 0.229, (127 / 255 - 0.456) / 0.224, -0.406 / 0.225]),
        ("vit_s16", [1, 2 * 127 / 255 - 1, -1]),
        ("bn_inception", [0 - 104, 127 - 117, 255 - 128]),
        ("efficientnet_lite0", [1, 0, -127 / 128]),
    ],
)
def test_values(name, expected):
    from_bytes = normalizer(name)(PIXEL)
    from_floats = normalizer(name)((PIXEL / 255).astype(np.float16))
    assert from_bytes.dtype == from_floats.dtype == jnp.float32
    np.testing.assert_allclose(from_bytes[0, 0, 0], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(from_floats[0, 0, 0], expected, rtol=1e-2, atol=0.06)


def test_equal_names_compile_once():
    assert normalizer("resnet18") == normalizer("resnet50") == normalizer("resnet50")
    assert hash(normalizer("resnet18")) == hash(normalizer("resnet50"))
    assert normalizer("resnet50") != normalizer("bn_inception")
    traced = []

    def step(preprocess, images):
        traced.append(preprocess)
        return preprocess(images)

    compiled = jax.jit(step, static_argnums=0)
    compiled(normalizer("resnet18"), PIXEL)
    compiled(normalizer("resnet50"), PIXEL)
    assert len(traced) == 1


def test_refusals():
    with pytest.raises(ValueError, match=r"name must be one of \('resnet18', .* got 'small'"):
        normalizer("small")
    with pytest.raises(ValueError, match=r"images must have shape .* 3\], got \[1, 8, 8, 1\]"):
        normalizer("resnet50")(jnp.zeros((1, 8, 8, 1)))
    with pytest.raises(TypeError, match="images must be uint8 or floating point, got int32"):
        normalizer("resnet50")(jnp.zeros((1, 8, 8, 3), jnp.int32))
