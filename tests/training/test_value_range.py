"""Value ranges of images: bytes and floating-point numbers are not confused."""

import dataclasses
import sys

import numpy as np
import optax
import pytest
from training.custom_parts import Net

import jdml
from jdml import data, objectives, training
from jdml.models.weights import normalizer

BYTES = np.random.default_rng(0).integers(0, 256, (24, 4, 4, 3), np.uint8)
UNIT = (BYTES / 255).astype(np.float32)
LABELS = np.arange(24) % 4


def fit(images, out=None, **options):
    """Train for zero steps."""
    parts = objectives.pair(jdml.triplet_loss), optax.sgd(1e-2), data.Dataset("toy", images, LABELS)
    sampler = data.RandomBatchSampler(24, 8)
    return training.fit(Net(2), *parts, sampler, steps=0, run=out, progress=False, **options)


def trained(images, tmp_path):
    fit(images, tmp_path)
    return training.load(tmp_path, model=Net(2))


@pytest.fixture(scope="module")
def on_bytes(tmp_path_factory):
    """Return a run that was trained on bytes."""
    return trained(BYTES, tmp_path_factory.mktemp("bytes"))


@pytest.mark.parametrize("values", [255 * UNIT, 2 * UNIT - 1, 10000 * UNIT, (UNIT - 0.45) / 0.22])
def test_run_on_bytes_refuses_other_ranges(on_bytes, values):
    for wrong in (values, UNIT.astype(np.uint8)):  # cast after dividing by 255
        with pytest.raises(ValueError, match=r"^images\b"):
            on_bytes.embed(wrong)
    embedded = on_bytes.embed(UNIT.astype(np.float16))
    np.testing.assert_allclose(embedded, on_bytes.embed(BYTES), atol=1e-3)


@pytest.mark.parametrize(
    "images", [BYTES.astype(np.int64), 257 * BYTES.astype(np.uint16), BYTES > 9]
)
def test_other_integers_are_refused(on_bytes, images):
    with pytest.raises(TypeError, match=r"^images\b"):
        on_bytes.embed(images)


def test_run_on_floats_refuses_other_ranges(tmp_path):
    standardized = ((UNIT - 0.45) / 0.22).astype(np.float32)
    run = trained(standardized, tmp_path / "standardized")
    for images in (BYTES, UNIT, 255 * UNIT):
        with pytest.raises(ValueError, match=r"^images\b.*-2\.045 to 2\.5"):
            run.embed(images)
    assert run.embed(standardized[:3] + 0.2).shape == (3, 2)
    run = trained(UNIT, tmp_path / "unit")
    for images in (255 * UNIT, 2 * UNIT - 1):
        with pytest.raises(ValueError, match=r"^images\b.* 0 to 1\b"):
            run.embed(images)
    np.testing.assert_allclose(run.embed(BYTES), run.embed(UNIT), atol=1e-5)
    np.testing.assert_array_equal(run.embed(UNIT.astype(">f4")), run.embed(UNIT))
    np.testing.assert_allclose(run.function()(UNIT), run.embed(UNIT), rtol=1e-5)
    alone = training.load(tmp_path / "unit" / "model.safetensors", model=Net(2))
    np.testing.assert_array_equal(alone.embed(UNIT), run.embed(UNIT))


def test_fit_refuses_floats_up_to_255_and_bytes_of_0_and_1_only():
    with pytest.raises(ValueError, match=r"^train\.images\b"):
        fit(255 * UNIT)
    fit(255 * UNIT, preprocess=lambda images: images / 255)
    fit(2 * UNIT - 1)
    for images in (255 * UNIT, 2 * UNIT - 1):
        with pytest.raises(ValueError, match=r"^train\.images\b"):
            fit(images, preprocess=normalizer("resnet18"))
    fit(BYTES, preprocess=normalizer("resnet18"))
    drawn = (BYTES > 128).astype(np.uint8)
    with pytest.raises(ValueError, match=r"^train\.images\b"):
        fit(drawn)
    fit(drawn, preprocess=lambda images: images.astype(np.float32))
    fit(255 * drawn)


def test_embedder_of_fit_refuses_other_ranges(on_bytes):
    embedder = fit(BYTES).embedder
    with pytest.raises(ValueError, match=r"^images\b"):
        embedder(255 * UNIT)
    broken = UNIT.copy()
    broken[7, 1, 1] = np.nan
    for embed in (embedder, on_bytes.embed):
        with pytest.raises(ValueError, match=r"^images\b.*\brow 7\b"):
            embed(broken)
    with pytest.raises(ValueError, match=r"^images\b.*-1 to 1\b"):
        fit(2 * UNIT - 1).embedder(BYTES)


def test_features_have_any_range(tmp_path):
    features = 1000 * np.abs(UNIT.reshape(24, -1))
    run = trained(features, tmp_path)
    assert run.embed(50 * features).shape == (24, 2)
    features[3, 4] = np.nan
    with pytest.raises(ValueError, match=r"\brow 3\b"):
        run.embed(features)
    with pytest.raises(ValueError, match=r"^source\b"):
        run.images_of(data.ImageFiles(["a.jpg"]))


def test_grey_image_files(tmp_path):
    images = trained(BYTES[..., :1], tmp_path).images_of(data.ImageFiles(["a.jpg"]))
    assert images.shape == (1, 4, 4, 1)


def test_larger_images_are_cropped_with_pillow(on_bytes, monkeypatch):
    run = dataclasses.replace(on_bytes, crop=data.conventional(4))
    larger = np.repeat(BYTES[:2], 2, axis=2)
    assert run.embed(larger).shape == (2, 2)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="pillow"):
        run.embed(larger)
