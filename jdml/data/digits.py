"""Handwritten digits: scikit-learn's 1,797 of 8×8 pixels, which need no file, and MNIST."""

import gzip
import math
import re
import zlib
from pathlib import Path

import numpy as np

from jdml._optional_imports import require_package
from jdml.data.dataset import Dataset, check_split
from jdml.data.labels import parity_labels
from jdml.data.listing import data_folder
from jdml.data.tfds import open_prepared, prepared, rows_of, whole

SPLITS = ("train", "test", "all")
LARGEST = 1 << 30
"""Bytes of an array; MNIST's largest has 47 million."""
_PREFIXES = {"train": "train", "test": "t10k"}
_TABLES = {"train": "mnist_train_small.csv", "test": "mnist_test.csv"}
_LINE = re.compile(r"\d(,(25[0-5]|2[0-4]\d|1\d\d|\d?\d)){784}")


def load_digits(data_dir: str | None = None, split: str = "train") -> Dataset:
    """Load the 8×8 digits (a part of UCI's optical recognition of handwritten digits)."""
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


def _test_rows(digits: np.ndarray) -> np.ndarray:
    """The mask of the test images: a third of each digit, by one fixed shuffle."""
    random = np.random.RandomState(0)  # NumPy keeps this generator's stream unchanged for ever
    test = np.zeros(len(digits), bool)
    for digit in range(10):
        rows = random.permutation(np.flatnonzero(digits == digit))
        test[rows[: round(len(rows) / 3)]] = True
    return test


def load_mnist(data_dir: str | Path | None, split: str = "train") -> Dataset:
    """Load MNIST: 60,000 training and 10,000 test images, 28×28."""
    check_split(split, SPLITS)
    folder = data_folder("mnist", data_dir)
    parts = [part for part in _PREFIXES if split in (part, "all")]
    read = _read_idx_pair
    if not any(folder.glob("*-idx?-ubyte*")):
        if prepared(folder, "mnist"):
            read = _read_prepared
        elif (folder / _TABLES["train"]).is_file():
            read = _read_table
    images, digits = zip(*(read(folder, part) for part in parts), strict=True)
    return digit_dataset("mnist", np.concatenate(images)[..., None], np.concatenate(digits))


def read_idx(path: Path, rank: int) -> np.ndarray:
    """Read one IDX file of unsigned bytes: its type and rank, each dimension as four bytes, then the values."""
    expected, header = 8 << 8 | rank, 4 + 4 * rank
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            head = file.read(header)
            if len(head) < header or int.from_bytes(head[:4], "big") != expected:
                raise ValueError(f"{path}: expected an IDX file with the magic number {expected}")
            shape = [int(n) for n in np.frombuffer(head, ">u4", rank, offset=4)]
            size = min(math.prod(shape), LARGEST)
            content = file.read(size + 1)  # no more than the header says
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: expected a whole gzip file: {error}") from error
    if len(content) != math.prod(shape):
        raise ValueError(f"{path}: expected {math.prod(shape)} bytes for an array of shape {shape}")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _read_idx_pair(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Images ``[N, H, W]`` and digits ``[N]`` of one part, from two IDX files."""
    image_file = _find(folder, f"{_PREFIXES[part]}-images-idx3-ubyte")
    label_file = _find(folder, f"{_PREFIXES[part]}-labels-idx1-ubyte")
    images, digits = read_idx(image_file, 3), read_idx(label_file, 1)
    if len(images) != len(digits):
        raise ValueError(
            f"{label_file}: expected {len(images)} labels, as many as {image_file.name} has "
            f"images, got {len(digits)}"
        )
    if len(digits) and digits.max() > 9:
        raise ValueError(f"{label_file}: labels must be 0…9, got {digits.max()}")
    return images, digits


def _find(folder: Path, name: str) -> Path:
    """The file of that name, unpacked or gzipped."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"mnist needs {name} or {name}.gz (or a folder mnist/VERSION that TensorFlow Datasets "
        f"prepared, or Colab's {_TABLES['train']}) in {folder.absolute()}"
    )


def _read_prepared(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Images ``[N, H, W]`` and digits ``[N]`` of one part, from a copy prepared by tfds."""
    builder = open_prepared(folder, "mnist")
    with whole(builder.data_dir):
        rows = [*rows_of(builder, part)]
    images = np.stack([row["image"][..., 0] for row in rows])
    return images, np.array([row["label"] for row in rows], np.int32)


def _read_table(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Images ``[N, 28, 28]`` and digits ``[N]`` of one part, from a line for each: its digit, and its pixels by row."""
    path = folder / _TABLES[part]
    if not path.is_file():
        raise FileNotFoundError(f"mnist needs {path.name} in {folder.absolute()}")
    lines = path.read_text(errors="replace").splitlines()
    wrong = next((row for row, line in enumerate(lines) if not _LINE.fullmatch(line)), None)
    if wrong is not None or not lines:
        got = "no line" if wrong is None else repr(lines[wrong][:40])
        raise ValueError(
            f"{path}:{(wrong or 0) + 1}: expected a digit and 784 pixels of 0…255, with commas, got {got}"
        )
    rows = np.loadtxt(lines, np.uint8, delimiter=",", ndmin=2)
    return rows[:, 1:].reshape(-1, 28, 28), rows[:, 0]
