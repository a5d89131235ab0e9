"""Augmentation: where crops may lie, what evaluation cuts out, that randomness is the generator's."""

import pickle

import numpy as np
import pytest

from jdml.data import Crops, conventional, mlrc

Image = pytest.importorskip("PIL.Image")


def gradient(width: int, height: int):
    """Red grows to the right, green to the bottom, from 0 to 240: a pixel's colour tells its place."""
    x, y = np.meshgrid(np.linspace(0, 240, width), np.linspace(0, 240, height))
    return Image.fromarray(np.stack([x, y, 0 * x], 2).round().astype(np.uint8))


@pytest.mark.parametrize("crops", [mlrc(), conventional()])
@pytest.mark.parametrize("size", [(500, 375), (375, 500), (100, 100), (1200, 30), (1, 1), (3, 900)])
def test_sizes(crops, size):
    image = Image.new("RGB", size, (10, 20, 30))
    for random in (None, np.random.default_rng(0)):
        out = crops(image, random)
        assert out.shape == (crops.size, crops.size, 3)
        assert out.dtype == np.uint8
        assert (out == [10, 20, 30]).all()


def test_evaluation_is_the_centre():
    """Of 512 × 256, resized to 512 × 256, the middle 224 columns and rows."""
    out = conventional()(gradient(512, 256)).astype(int)
    np.testing.assert_allclose(out[112, [0, -1], 0], [240 * 144 / 511, 240 * 367 / 511], atol=1)
    np.testing.assert_allclose(out[[0, -1], 112, 1], [240 * 16 / 255, 240 * 239 / 255], atol=1)


def test_evaluation_resizes_the_short_side():
    wide, high = mlrc(), mlrc()
    np.testing.assert_allclose(
        wide(gradient(1024, 512)).astype(int),
        np.swapaxes(high(gradient(512, 1024)), 0, 1)[..., [1, 0, 2]].astype(int),
        atol=1,
    )


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (333, 217), (90, 61), (227, 900)])
def test_evaluation_is_resizing_then_cropping(size):
    """As its words say, with Pillow's own resize and crop of the whole image."""
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    image = Image.fromarray(noise)
    width, height = (side * 256 // min(size) for side in size)
    left, upper = (width - 227) // 2, (height - 227) // 2
    whole = image.resize((width, height), Image.Resampling.BILINEAR)
    expected = np.asarray(whole.crop((left, upper, left + 227, upper + 227))).astype(int)
    np.testing.assert_allclose(mlrc()(image).astype(int), expected, atol=1)


@pytest.mark.parametrize(("crops", "smallest"), [(mlrc(64), 0.16), (conventional(64), 0.08)])
def test_random_boxes_keep_to_scale_and_ratio(crops, smallest):
    random = np.random.default_rng(1)
    boxes = np.array([crops._draw(400, 300, random) for _ in range(2000)])
    widths, heights = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2] <= 400).all()
    assert (boxes[:, 3] <= 300).all()
    shares, aspects = widths * heights / (400 * 300), widths / heights
    assert smallest * 0.98 < shares.min() < smallest * 1.1
    assert 0.95 < shares.max() <= 1
    assert 0.74 < aspects.min() < 0.76
    assert 1.32 < aspects.max() < 1.35


def test_half_of_the_crops_are_mirrored():
    crops = Crops(8, 8, (1.0, 1.0))
    image = gradient(16, 16)
    random = np.random.default_rng(0)
    outs = [crops(image, random) for _ in range(400)]
    mirrored = [out[4, 0, 0] > out[4, -1, 0] for out in outs]
    assert 0.4 < np.mean(mirrored) < 0.6


def test_an_extreme_aspect_falls_back_to_the_centre():
    crops = conventional(16)
    left, upper, right, lower = crops._draw(3000, 30, np.random.default_rng(0))
    assert (right - left, lower - upper) == (40, 30)
    assert left == (3000 - 40) // 2


def test_the_generator_decides():
    image = gradient(90, 70)
    one, again, other = (mlrc(32)(image, np.random.default_rng(s)) for s in (3, 3, 4))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


def test_pickles():
    assert pickle.loads(pickle.dumps(mlrc())) == mlrc()


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"size": 0}, "size must be from 1 to short_side = 256, got 0"),
        ({"size": 300}, "size must be from 1 to short_side = 256, got 300"),
        ({"scale": (0, 1)}, r"scale must be 0 < low ≤ high ≤ 1, got \(0, 1\)"),
        ({"scale": (0.5, 1.5)}, r"scale must be .* got \(0.5, 1.5\)"),
        ({"ratio": (2, 1)}, r"ratio must be 0 < low ≤ high ≤ inf, got \(2, 1\)"),
    ],
)
def test_bad_settings(settings, match):
    with pytest.raises(ValueError, match=match):
        Crops(**({"size": 224, "short_side": 256, "scale": (0.1, 1)} | settings))
