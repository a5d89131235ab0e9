"""MNIST from its four IDX files, from a copy prepared by TensorFlow Datasets, or from the tables that Colab has."""

import gzip
import math
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from jdml.data.dataset import Dataset
from jdml.data.digits import check_split, digit_dataset
from jdml.data.listing import data_folder
from jdml.data.tfds import open_prepared, prepared, rows_of

SPLITS = ("train", "test", "all")
_PREFIXES = {"train": "train", "test": "t10k"}
_TABLES = {"train": "mnist_train_small.csv", "test": "mnist_test.csv"}
_LINE = re.compile(r"\d(,(25[0-5]|2[0-4]\d|1\d\d|\d?\d)){784}")
_UNSIGNED_BYTE = 8
LARGEST = 1 << 30
"""Bytes of an array; MNIST's largest has 47 million."""


def load_mnist(data_dir: str | Path | None, split: str = "train") -> Dataset:
    """Load MNIST: 60,000 training and 10,000 test images, 28×28.

    Args:
        data_dir: a folder with the four IDX files (``train-images-idx3-ubyte``,
            ``train-labels-idx1-ubyte``, ``t10k-images-idx3-ubyte``, ``t10k-labels-idx1-ubyte``; each
            unpacked or with ``.gz``), or one in which TensorFlow Datasets has prepared MNIST as
            array_record (it has a folder ``mnist/VERSION``), or Colab's ``sample_data``:
            ``mnist_train_small.csv``, 20,000 of the training images, and ``mnist_test.csv``.
        split: ``"train"``, ``"test"``, or ``"all"``: train, then test.

    Returns:
        A data set with uint8 images ``[N, 28, 28, 1]``, ink bright, labelled by digit, with views
        ``digit`` and ``parity``.

    Raises:
        FileNotFoundError: if the folder holds none of these; the message says what is expected where.
        ValueError: if there is no such split, or a file is not what its name says; the message
            names the file, and of a table the line.
    """
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
    """Read one IDX file of unsigned bytes.

    The format: two zero bytes, the type (8 = unsigned byte), the rank, each dimension as a
    big-endian 32-bit integer, then the values in C order.

    Args:
        path: the file; gzipped if its name ends in ``.gz``.
        rank: the number of dimensions it must have (3 for images, 1 for labels).

    Returns:
        The uint8 array.

    Raises:
        ValueError: if the file is damaged, truncated, too long, or of another type or rank.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _read_array(path, file, rank)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: expected a whole gzip file: {error}") from error


def _read_array(path: Path, file: Any, rank: int) -> np.ndarray:
    """The array of an opened IDX file, of which no more is read than its header says."""
    header = 4 + 4 * rank
    head = file.read(header)
    magic = int.from_bytes(head[:4], "big")
    expected = _UNSIGNED_BYTE << 8 | rank
    if magic != expected or len(head) < 4:
        raise ValueError(f"{path}: magic number must be {expected}, got {magic}")
    if len(head) < header:
        raise ValueError(f"{path}: expected a header of {header} bytes, got {len(head)} bytes")
    shape = [int(n) for n in np.frombuffer(head, ">u4", rank, offset=4)]
    size = math.prod(shape)
    if size > LARGEST:
        raise ValueError(f"{path}: expected {LARGEST:,} bytes at most, got the shape {shape}")
    content = file.read(size + 1)
    if len(content) != size:
        raise ValueError(
            f"{path}: expected {header + size} bytes for an array of shape {shape}, got {header + len(content)}"
        )
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
    rows = rows_of(open_prepared(folder, "mnist"), part)
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
