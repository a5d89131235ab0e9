"""Bytes and floating-point numbers are never taken for each other."""

import sys
from types import SimpleNamespace

import flax.linen as nn
import numpy as np
import optax
import pytest

import jdml
from jdml import data, objectives, training
from jdml.models.creation import normalizer
from jdml.training.trained_model import _cut, _Grey

BYTES = np.random.default_rng(0).integers(0, 256, (24, 4, 4, 3), np.uint8)
UNIT = (BYTES / 255).astype(np.float32)
LABELS = np.arange(24) % 4


class Net(nn.Module):
    """One layer."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(x.reshape(len(x), -1))


def fit(images, out=None, **options):
    return training.fit(
        Net(), objectives.pair(jdml.triplet_loss), optax.sgd(1e-2), data.Dataset("toy", images, LABELS),
        data.RandomBatchSampler(24, 8), steps=1, out_dir=out, progress=False, **options,
    )  # fmt: skip


def trained(images, tmp_path):
    fit(images, tmp_path)
    return training.load(tmp_path, model=Net())


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    ("values", "instead"),
    [
        (255 * UNIT, r"0 to 255: write images\.astype\(numpy\.uint8\)"),
        (2 * UNIT - 1, r"-1 to 1: write \(images \+ 1\) / 2"),
        (10000 * UNIT, "write images / 1e"),
        ((UNIT - 0.45) / 0.22, "before they were standardized"),
    ],
)
def test_a_run_on_bytes_embeds_no_other_numbers(tmp_path, dtype, values, instead):
    run = trained(BYTES, tmp_path)
    with pytest.raises(ValueError, match=f"0…1, as the run was trained, got float.*{instead}"):
        run.embed(values.astype(dtype))
    np.testing.assert_allclose(run.embed(UNIT.astype(dtype)), run.embed(BYTES), atol=1e-3)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint16, np.int8, bool])
def test_other_integers_are_refused(tmp_path, dtype):
    run = trained(BYTES, tmp_path)
    with pytest.raises(TypeError, match=f"images must be uint8 .*, got {np.dtype(dtype)}: write"):
        run.embed(BYTES.astype(dtype))


def test_advice_spoils_nothing(tmp_path):
    run = trained(BYTES, tmp_path)
    for images, advice in (
        (257 * BYTES.astype(np.uint16), r"got uint16: write \(images / white\)"),
        (BYTES > 9, r"got bool: write images.astype\(numpy.float32\)"),
        (BYTES.astype(np.int64), r"got int64: write images.astype\(numpy.uint8\)"),
    ):
        with pytest.raises(TypeError, match=advice):
            run.embed(images)
    with pytest.raises(ValueError, match="on_bad_image must be one of nan, stop, got 'skip'"):
        run.embed(BYTES, on_bad_image="skip")


def test_a_run_on_numbers_embeds_such_numbers(tmp_path):
    standardized = ((UNIT - 0.45) / 0.22).astype(np.float32)
    run = trained(standardized, tmp_path / "standardized")
    for images in (BYTES, UNIT, 255 * UNIT):
        with pytest.raises(ValueError, match=r"trained on, -2\.045 to 2\.5, got"):
            run.embed(images)
    assert run.embed(standardized[:3] + 0.2).shape == (3, 2)
    run = trained(UNIT, tmp_path / "unit")
    for images in (255 * UNIT, 2 * UNIT - 1):
        with pytest.raises(ValueError, match="trained on, 0 to 1, got float32 from"):
            run.embed(images)
    np.testing.assert_allclose(run.embed(BYTES), run.embed(UNIT), atol=1e-5)


def test_fit_takes_no_bytes_as_numbers():
    with pytest.raises(
        ValueError, match=r"train\.images must be uint8 in 0…255, or float .*astype"
    ):
        fit(255 * UNIT)
    fit(255 * UNIT, preprocess=lambda images: images / 255)
    fit(2 * UNIT - 1)
    for images in (255 * UNIT, 2 * UNIT - 1):
        with pytest.raises(ValueError, match="0…1, as its preprocess expects, got float32 from"):
            fit(images, preprocess=normalizer("resnet18"))
    fit(BYTES, preprocess=normalizer("resnet18"))


def test_bytes_that_are_0_and_1_alone_are_refused():
    drawn = (BYTES > 128).astype(np.uint8)
    with pytest.raises(
        ValueError, match=r"got uint8 of 0 and 1 alone: write .*astype\(numpy.float"
    ):
        fit(drawn)
    fit(drawn, preprocess=lambda images: images.astype(np.float32))
    fit(255 * drawn)


def test_what_is_not_finite_is_not_embedded(tmp_path):
    run = trained(UNIT, tmp_path)
    holed = np.where(np.arange(24).reshape(-1, 1, 1, 1) == 5, np.nan, UNIT).astype(np.float32)
    with pytest.raises(ValueError, match="images must be finite, row 5 is not"):
        run.embed(holed)


def test_what_fit_returns_refuses_them_too():
    embedder = fit(BYTES).embedder
    assert embedder(BYTES).shape == embedder(UNIT).shape == (24, 2)
    for images in (255 * UNIT, 2 * UNIT - 1):
        with pytest.raises(ValueError, match="0…1, as the run was trained, got float32"):
            embedder(images)
    broken = UNIT.copy()
    broken[7, 1, 1] = np.nan
    with pytest.raises(ValueError, match="images must be finite, row 7 is not"):
        embedder(broken)
    with pytest.raises(ValueError, match="trained on, -1 to 1, got uint8, read as 0…1"):
        fit(2 * UNIT - 1).embedder(BYTES)


def test_features_have_any_range(tmp_path):
    features = 1000 * np.abs(UNIT.reshape(24, -1))
    run = trained(features, tmp_path)
    assert run.embed(50 * features).shape == (24, 2)
    features[3, 4] = np.nan  # which a model of features may know
    with pytest.raises(ValueError, match="the embedding of row 3 is not"):
        run.embed(features)
    with pytest.raises(ValueError, match=r"inputs of shape .*48.*, not on images: give arrays"):
        run.images_of(data.ImageFiles(["a.jpg"]))


def test_grey_images_and_cuts(monkeypatch):
    assert _Grey(SimpleNamespace(shape=(2, 4, 4, 3))).shape == (2, 4, 4, 1)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="cutting images needs pillow"):
        _cut(BYTES, None)


def test_a_run_embeds_and_exports_the_same(tmp_path):
    run = trained(UNIT, tmp_path)
    np.testing.assert_allclose(run.function()(UNIT), run.embed(UNIT), rtol=1e-5)
    alone = training.load(tmp_path / "model.safetensors", model=Net())
    np.testing.assert_array_equal(alone.embed(UNIT), run.embed(UNIT))
    with pytest.raises(ValueError, match=r"images must have shape \[N, H, W, C\]"):
        run.embed(np.zeros((2, 3, 9, 9), np.float32))
