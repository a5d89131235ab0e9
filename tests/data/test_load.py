"""Loading by name; the embedded digits; that the room stays light."""

import subprocess
import sys

import numpy as np
import pytest

from jdml.data import load


def test_digits_are_scikit_learns():
    datasets = pytest.importorskip("sklearn.datasets")
    raw, data = datasets.load_digits(), load("digits", split="all")
    assert data.images.dtype == np.uint8
    assert data.images.shape == (1797, 8, 8, 1)
    np.testing.assert_array_equal(data.labels, raw.target)
    np.testing.assert_allclose(data.images[..., 0] * (16 / 255), raw.images, atol=0.04)
    assert (data.images.min(), data.images.max()) == (0, 255)


def test_digits_split_is_stratified_disjoint_and_fixed():
    whole, train, test = (load("digits", split=split) for split in ("all", "train", "test"))
    assert (len(train), len(test)) == (1198, 599)
    counts = np.bincount(whole.labels)
    np.testing.assert_array_equal(np.bincount(test.labels), np.rint(counts / 3))
    both = sorted(image.tobytes() for part in (train, test) for image in part.images)
    assert both == sorted(image.tobytes() for image in whole.images)
    assert test.labels[:10].tolist() == [3, 5, 7, 3, 6, 9, 2, 6, 5, 0]  # as first released


def test_digits_views():
    data = load("digits")
    assert set(data.views) == {"digit", "parity"}
    np.testing.assert_array_equal(data.views["digit"], data.labels)
    np.testing.assert_array_equal(data.relabel("parity").labels, data.labels % 2)


@pytest.mark.parametrize("name", ["digits", "mnist", "omniglot"])
def test_unknown_split(name, tmp_path):
    with pytest.raises(ValueError, match=r"split must be one of \('train', .*, got 'valid'"):
        load(name, data_dir=tmp_path, split="valid")


@pytest.mark.parametrize("name", ["mnist", "omniglot"])
def test_missing_folder_argument(name):
    with pytest.raises(ValueError, match="data_dir must be the folder of .*, got None"):
        load(name)


def test_unknown_name():
    with pytest.raises(ValueError, match=r"one of \('digits', 'mnist', .*, got 'cifar'"):
        load("cifar")


def test_unknown_option():
    with pytest.raises(TypeError, match="image_size"):
        load("digits", image_size=8)


def test_importing_the_room_imports_nothing_heavy():
    code = (
        "import sys, jdml.data; heavy = {'flax', 'optax', 'sklearn', 'PIL', 'orbax',"
        "'tensorflow_datasets', 'jdml.training', 'jdml.models'}; print(heavy & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
