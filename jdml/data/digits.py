"""scikit-learn's 1,797 real handwritten digits, 8×8: the data set that needs no file."""

import numpy as np

from jdml._optional_imports import require_package
from jdml.data.dataset import Dataset
from jdml.data.labels import parity_labels

SPLITS = ("train", "test", "all")


def load_digits(data_dir: str | None = None, split: str = "train") -> Dataset:
    """Load the 8×8 digits (a part of UCI's optical recognition of handwritten digits).

    Grey values 0…16 are brought to 0…255 (``round(value · 255 / 16)``), uint8. The split is fixed and
    stratified: a third of each digit (rounded) tests, the rest trains, and the rows keep their
    original order.

    Args:
        data_dir: not used: the data is a part of scikit-learn.
        split: ``"train"`` (1,198 images), ``"test"`` (599) or ``"all"``.

    Returns:
        A data set with images ``[N, 8, 8, 1]``, labelled by digit, with views ``digit`` and ``parity``.

    Raises:
        ValueError: if there is no such split.
    """
    require_package("sklearn", "the data set digits, a part of scikit-learn,")
    from sklearn.datasets import load_digits as read

    check_split(split, SPLITS)
    raw = read()
    images = np.rint(raw.images[..., None] * (255 / 16)).astype(np.uint8)
    data = digit_dataset("digits", images, raw.target)
    if split == "all":
        return data
    test = _test_rows(data.labels)
    return data.select(test if split == "test" else ~test)


def digit_dataset(name: str, images: np.ndarray, digits: np.ndarray) -> Dataset:
    """Images of digits, labelled by digit, with views ``digit`` and ``parity``."""
    return Dataset(name, images, digits, {"digit": digits, "parity": parity_labels(digits)})


class NoSuchPartError(ValueError):
    """Images that are there do not have the part that was asked for."""


def check_split(split: str, splits: tuple[str, ...]) -> None:
    """Refuse a split that the data set does not have."""
    if split not in splits:
        raise NoSuchPartError(f"split must be one of {splits}, got {split!r}")


def _test_rows(digits: np.ndarray) -> np.ndarray:
    """The mask of the test images: a third of each digit, by one fixed shuffle."""
    random = np.random.RandomState(0)  # NumPy keeps this generator's stream unchanged for ever
    test = np.zeros(len(digits), bool)
    for digit in range(10):
        rows = random.permutation(np.flatnonzero(digits == digit))
        test[rows[: round(len(rows) / 3)]] = True
    return test
