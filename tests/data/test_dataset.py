"""The data set type: views, selection, what it refuses; loading by name, the digits, and that the room stays light."""

import subprocess
import sys

import numpy as np
import pytest

from jdml.data import Dataset, load


def dataset() -> Dataset:
    images = np.arange(4 * 2 * 2, dtype=np.uint8).reshape(4, 2, 2, 1)
    digits = np.array([3, 0, 7, 2])
    return Dataset("toy", images, digits, {"digit": digits, "parity": digits % 2})


def test_labels_and_views_are_int32():
    data = dataset()
    assert data.labels.dtype == data.views["parity"].dtype == np.int32
    assert (len(data), data.num_classes) == (4, 8)


def test_relabel_changes_the_labels_alone():
    data = dataset()
    parity = data.relabel("parity")
    np.testing.assert_array_equal(parity.labels, [1, 0, 1, 0])
    assert parity.num_classes == 2
    np.testing.assert_array_equal(parity.relabel("digit").labels, data.labels)
    assert parity.images is data.images


@pytest.mark.parametrize("rows", [[2, 0], np.array([2, 0], np.uint8)])
def test_select_by_index(rows):
    part = dataset().select(rows)
    np.testing.assert_array_equal(part.labels, [7, 3])
    np.testing.assert_array_equal(part.views["parity"], [1, 1])
    np.testing.assert_array_equal(part.images[:, 0, 0, 0], [8, 0])


def test_select_by_mask():
    data = dataset()
    np.testing.assert_array_equal(data.select(data.labels > 2).labels, [3, 7])


@pytest.mark.parametrize("rows", [[], np.zeros(4, bool)])
def test_select_nothing(rows):
    none = dataset().select(rows)
    assert (len(none), none.num_classes, none.images.shape) == (0, 0, (0, 2, 2, 1))


def test_float_images_stay():
    assert Dataset("f", np.zeros((1, 2, 2, 3), np.float32), [0]).images.dtype == np.float32


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (
            {"images": np.zeros((2, 2, 2, 1))},
            TypeError,
            "images must be uint8 or float32, got floa",
        ),
        (
            {"images": np.zeros((2, 2, 2), np.uint8)},
            ValueError,
            r"images must have shape \[N, H, W, C\], got \[2, 2, 2\]",
        ),
        (
            {"images": [np.zeros((4, 6, 3), np.uint8), np.zeros((4, 5, 3), np.uint8)]},
            ValueError,
            r"images must have one shape each, got \[4, 5, 3\] and \[4, 6, 3\]: cut them to one size",
        ),
        ({"labels": np.zeros(2)}, TypeError, "labels must be integers, got float64"),
        (
            {"labels": np.zeros(3, int)},
            ValueError,
            r"labels must have shape \[N\] = \[2\], got \[3\]",
        ),
        ({"labels": np.array([0, -4])}, ValueError, "labels must be at least 0, got -4 in row 1"),
        ({"labels": np.array([0, 2**31])}, ValueError, "labels must fit into int32.* in row 1"),
        (
            {"views": {"letter": np.zeros((2, 1), int)}},
            ValueError,
            r"views\['letter'\] must have shape \[N\] = \[2\], got \[2, 1\]",
        ),
    ],
)
def test_bad_fields(change, error, match):
    fields = {"images": np.zeros((2, 2, 2, 1), np.uint8), "labels": np.zeros(2, int)}
    with pytest.raises(error, match=match):
        Dataset("bad", **{**fields, **change})


def test_unknown_view():
    with pytest.raises(
        ValueError, match=r"view must be one of \['digit', 'parity'\], got 'colour'"
    ):
        dataset().relabel("colour")


@pytest.mark.parametrize(
    ("rows", "error", "match"),
    [
        (np.ones(3, bool), ValueError, r"rows must be a mask of shape \[4\], got \[3\]"),
        ([4], ValueError, r"rows must be indices \[n\] from 0 to 3, got \[4\]"),
        ([-1], ValueError, r"rows must be indices \[n\] from 0 to 3, got \[-1\]"),
        ([[1]], ValueError, r"rows must be indices \[n\]"),
        ([0.5], TypeError, "rows must be a boolean mask or integer indices, got float64"),
    ],
)
def test_bad_rows(rows, error, match):
    with pytest.raises(error, match=match):
        dataset().select(rows)


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
