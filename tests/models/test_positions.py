"""Positions resampled to another grid, and images normalized, as pretrained weights expect."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.files import GRID, convert, random_arrays, zeros

from jdml import registry
from jdml.cli.option_groups import WeightOptions
from jdml.models import create, load_weights, normalizer, weights_settings
from jdml.models.vit import resample
from jdml.models.weight_formats import weight_formats

# Positions of another grid: each program's bicubic compared with a small reference, PyTorch, and a whole network.

SIDE, CHANNELS = 5, 3
POSITIONS = np.random.default_rng(0).normal(size=(1, 1 + SIDE**2, CHANNELS)).astype(np.float32)
SHAPES = [(5, 5), (3, 3), (4, 7), (9, 9), (2, 12)]


def kernel(r: float, a: float) -> float:
    r = abs(r)
    if r <= 1:
        return (a + 2) * r**3 - (a + 3) * r**2 + 1
    return a * r**3 - 5 * a * r**2 + 8 * a * r - 4 * a if r < 2 else 0.0


def along(values: np.ndarray, new: int, origin: str) -> np.ndarray:
    """Resample the first axis, entry by entry."""
    size, scale = len(values), new / len(values)
    if origin == "timm":  # like Pillow: a wider kernel when it shrinks, only over existing entries
        result, wide = [], max(1.0, 1 / scale)
        for i in range(new):
            place = (i + 0.5) / scale - 0.5
            weights = np.array([kernel((place - j) / wide, -0.5) for j in range(size)])
            result.append(np.tensordot(weights / weights.sum(), values, 1))
        return np.array(result)
    scale = (new + 0.1) / size if origin == "dino" else scale
    result = []
    for i in range(new):
        place = (i + 0.5) / scale - 0.5
        first = int(np.floor(place))
        taps = range(first - 1, first + 3)
        result.append(
            sum(kernel(place - j, -0.75) * values[min(max(j, 0), size - 1)] for j in taps)
        )
    return np.array(result)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("origin", ["timm", "transformers", "dino"])
def test_bicubic_of_each_program_equals_the_reference(origin, shape):
    actual = resample(jnp.asarray(POSITIONS), SIDE, shape, origin)
    patches = POSITIONS[0, 1:].reshape(SIDE, SIDE, CHANNELS).astype(np.float64)
    if shape != (SIDE, SIDE):
        patches = along(patches, shape[0], origin)
        patches = along(patches.swapaxes(0, 1), shape[1], origin).swapaxes(0, 1)
    np.testing.assert_array_equal(actual[:, 0], POSITIONS[:, 0])
    np.testing.assert_allclose(actual[0, 1:], patches.reshape(-1, CHANNELS), atol=2e-6)


@pytest.mark.parametrize("origin", ["timm", "transformers", "dino"])
def test_network_at_another_size_resamples_like_its_weights_origin(origin, tmp_path, small):
    """It equals a network made for that size with resampled positions."""
    network = small("vit_s16")
    named = weight_formats(network)[1 if origin == "transformers" else 0]
    arrays = {name: 0.1 * (value - 1) for name, value in random_arrays(network, named).items()}
    file = convert(arrays, tmp_path, network)[1]
    stats = "vit_s16_dino" if origin == "dino" else None
    given = WeightOptions(weights=file, normalization=stats).network_settings(network)
    settings = weights_settings(file) | given
    assert settings == ({} if origin == "timm" else {"resampling": origin})
    images = np.random.default_rng(0).normal(size=(2, 96, 96, 3)).astype(np.float32)
    net, other = create(network, dim=8, **settings), create(network, dim=8, grid=6)
    rng = np.random.default_rng(2)
    fresh = jax.tree.map(lambda a: 0.05 * rng.standard_normal(a.shape, a.dtype), zeros(network))
    variables = load_weights(file, fresh)
    resampled = resample(variables["params"]["positions"], GRID, (6, 6), origin)
    placed = {"params": {**variables["params"], "positions": resampled}}
    expected = jax.jit(other.apply)(placed, images)
    np.testing.assert_allclose(jax.jit(net.apply)(variables, images), expected, atol=1e-4)


def test_weights_without_settings_change_no_setting():
    assert weights_settings(None) == {}
    assert weights_settings(partial(load_weights, "weights.npz")) == {}
    assert WeightOptions().network_settings("vit_s16") == {}
    dino = WeightOptions(normalization="vit_s16_dino")
    assert dino.network_settings("resnet50") == {}
    for network in registry.NETWORKS.values():
        assert network.other_settings.keys() <= network.other_images.keys()
        for settings in network.other_settings.values():
            create(network.name, dim=4, **settings)


# Normalization of images.

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
def test_normalization_values(name, expected):
    from_bytes = normalizer(name)(PIXEL)
    from_floats = normalizer(name)((PIXEL / 255).astype(np.float16))
    assert from_bytes.dtype == from_floats.dtype == jnp.float32
    np.testing.assert_allclose(from_bytes[0, 0, 0], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(from_floats[0, 0, 0], expected, rtol=1e-2, atol=0.06)


def test_preprocess_functions_of_equal_statistics_are_equal():
    """As a static argument of a compiled step."""
    assert normalizer("resnet50") != normalizer("bn_inception")
    assert len({normalizer("resnet18"), normalizer("resnet50")}) == 1
