"""The data set type: views, selection, and what it refuses."""

import numpy as np
import pytest

from jdml.data import Dataset


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
