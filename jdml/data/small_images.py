"""Small images in memory: scikit-learn's 1,797 digits of 8×8 pixels, MNIST's digits, and Omniglot's letters."""

import gzip
import io
import math
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from jdml._optional_imports import require_package
from jdml.data.dataset import Dataset, check_split
from jdml.data.listing import data_folder
from jdml.data.splits import parity_labels
from jdml.data.tfds import complete_copy, open_prepared, prepared, read_prepared

SPLITS = ("train", "test", "all")
_PREFIXES = {"train": "train", "test": "t10k"}
_TABLES = {"train": "mnist_train_small.csv", "test": "mnist_test.csv"}
_SOURCES = {"train": "images_background", "test": "images_evaluation"}
_DAMAGED = (  # RuntimeError, of which NotImplementedError is one: encrypted, or packed in another way
    OSError, EOFError, SyntaxError, ValueError, RuntimeError, zlib.error, zipfile.BadZipFile
)  # fmt: skip


# Digits


def load_digits(data_dir: str | None, split: str) -> Dataset:
    """Load the 8×8 digits (a part of UCI's optical recognition of handwritten digits)."""
    require_package("sklearn", "the data set digits, a part of scikit-learn,")
    from sklearn.datasets import load_digits as read

    check_split(split, SPLITS)
    raw = read()
    images = np.rint(raw.images[..., None] * (255 / 16)).astype(np.uint8)
    data = _digit_dataset("digits", images, raw.target)
    test = np.zeros(len(data), bool)  # a third of each digit, by one fixed shuffle
    random = np.random.RandomState(0)  # NumPy never changes this generator's stream
    for digit in range(10):
        rows = random.permutation(np.flatnonzero(data.labels == digit))
        test[rows[: round(len(rows) / 3)]] = True
    return data if split == "all" else data.select(test if split == "test" else ~test)


def _digit_dataset(name: str, images: np.ndarray, digits: np.ndarray) -> Dataset:
    return Dataset(name, images, digits, {"digit": digits, "parity": parity_labels(digits)})


# MNIST


def load_mnist(data_dir: str | Path | None, split: str) -> Dataset:
    """Load MNIST: 60,000 training and 10,000 test images, 28×28."""
    check_split(split, SPLITS)
    folder = data_folder("mnist", data_dir)
    parts = [part for part in _PREFIXES if split in (part, "all")]
    read = _read_idx_pair
    if not any(folder.glob("*-idx?-ubyte*")):
        if prepared(folder, "mnist"):
            read = _read_prepared_mnist
        elif (folder / _TABLES["train"]).is_file():
            read = _read_table
    images, digits = zip(*(read(folder, part) for part in parts), strict=True)
    return _digit_dataset("mnist", np.concatenate(images)[..., None], np.concatenate(digits))


def _read_idx_pair(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Read images ``[N, H, W]`` and digits ``[N]`` of one part from two IDX files."""
    images = _read_idx(folder, f"{_PREFIXES[part]}-images-idx3-ubyte", 3)
    return images, _read_idx(folder, f"{_PREFIXES[part]}-labels-idx1-ubyte", 1)


def _read_idx(folder: Path, name: str, rank: int) -> np.ndarray:
    """Read an IDX file of unsigned bytes: its type and rank, each dimension as four bytes, then the values."""
    path = next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)
    if path is None:
        raise FileNotFoundError(
            f"mnist needs {name} or {name}.gz (or a folder mnist/VERSION that TensorFlow Datasets prepared, or Colab's "
            f"{_TABLES['train']}) in {folder.absolute()}"
        )
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: expected a whole gzip file: {error}") from error
    header = 4 + 4 * rank
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4))
    is_idx = content[:4] == bytes([0, 0, 8, rank])
    if not is_idx or len(content) != header + math.prod(shape):
        raise ValueError(f"{path}: expected a whole IDX file of bytes with {rank} dimensions")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _read_prepared_mnist(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Read images ``[N, H, W]`` and digits ``[N]`` of one part from a copy prepared by tfds."""
    builder = open_prepared(folder, "mnist")
    with complete_copy(builder.data_dir):
        rows = [*builder.as_data_source(split=part)]
    images = np.stack([row["image"][..., 0] for row in rows])
    return images, np.array([row["label"] for row in rows], np.int32)


def _read_table(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Read images ``[N, 28, 28]`` and digits ``[N]`` of one part from a line for each: its digit, and its pixels."""
    rows = np.loadtxt(folder / _TABLES[part], np.uint8, delimiter=",", ndmin=2)
    return rows[:, 1:].reshape(-1, 28, 28), rows[:, 0]


# Omniglot: 1,623 handwritten letters of 50 alphabets, by 20 people each


def load_omniglot(data_dir: str | Path | None, split: str, *, image_size: int = 28) -> Dataset:
    """Load Omniglot, labelled by alphabet."""
    check_split(split, SPLITS)
    folder = data_folder("omniglot", data_dir)
    if prepared(folder, "omniglot"):
        return _read_prepared_omniglot(folder, split, image_size)
    letters: list[str] = []
    images: list[np.ndarray] = []
    for part, source in _SOURCES.items():
        if split in (part, "all"):
            for name, image in _read_source(folder, source, image_size):
                letters.append(name.rsplit("/", 1)[0])
                images.append(image)
    return _label_letters(images, letters)


def _read_prepared_omniglot(folder: Path, split: str, image_size: int) -> Dataset:
    """Read a copy prepared by tfds, whose letters are called ``ALPHABET_N``, N from 0."""
    records, columns, names = read_prepared(folder, "omniglot", {"letter": "label"})
    letters = []
    for part, label in zip(columns["split"], columns["letter"], strict=True):
        alphabet, _, number = names["letter"][int(label)].rpartition("_")
        letters.append(f"{_SOURCES[part]}/{alphabet}/character{int(number) + 1:02d}")
    wanted = [row for row, part in enumerate(columns["split"]) if split in (part, "all")]
    wanted.sort(key=lambda row: letters[row].split("/"))
    images = [_decode_letter(records[row].read_bytes(), image_size) for row in wanted]
    return _label_letters(images, [letters[row] for row in wanted])


def _label_letters(images: list[np.ndarray], letters: list[str]) -> Dataset:
    """Number letters (``SOURCE/ALPHABET/characterNN``) and alphabets in their order."""
    letter, letter_names = _number(letters)
    alphabet, alphabet_names = _number([name.rsplit("/", 1)[0] for name in letters])
    return Dataset(
        "omniglot",
        np.stack(images)[..., None],
        alphabet,
        {"alphabet": alphabet, "letter": letter},
        {
            "alphabet": tuple(name.split("/")[1] for name in alphabet_names),
            "letter": tuple(name.split("/", 1)[1] for name in letter_names),
        },
    )


def _number(names: list[str]) -> tuple[np.ndarray, list[str]]:
    """Return labels by first appearance, and the name of each label."""
    ids = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array([ids[name] for name in names], np.int32), list(ids)


def _read_source(folder: Path, source: str, image_size: int) -> Iterator[tuple[str, np.ndarray]]:
    """Read names and images of one zip or folder, sorted by alphabet, letter and file."""
    with _open_source(folder, source) as (where, names, read):
        drawings = [name.split("/") for name in names]  # SOURCE/ALPHABET/characterNN/*.png
        drawings = [d for d in drawings if len(d) == 4 and d[0] == source and d[3].endswith(".png")]
        if not drawings:
            raise ValueError(f"{where}: expected {source}/ALPHABET/characterNN/*.png, got none")
        for name in map("/".join, sorted(drawings)):
            try:
                image = _decode_letter(read(name), image_size)
            except _DAMAGED as error:
                raise ValueError(f"{where}: {name} is not a whole image: {error}") from error
            yield name, image


@contextmanager
def _open_source(
    folder: Path, source: str
) -> Iterator[tuple[Path, list[str], Callable[[str], bytes]]]:
    """Return the path of a source, the names of its files, and the function that reads one of them."""
    archive, unpacked = folder / f"{source}.zip", folder / source
    if archive.is_file():
        try:
            opened = zipfile.ZipFile(archive)
        except _DAMAGED as error:
            raise ValueError(f"{archive}: expected a whole zip archive: {error}") from error
        with opened:
            yield archive, opened.namelist(), opened.read
    elif unpacked.is_dir():
        files = [path.relative_to(folder).as_posix() for path in unpacked.glob("*/*/*.png")]
        yield unpacked, files, lambda name: (folder / name).read_bytes()
    else:
        raise FileNotFoundError(
            f"omniglot needs {source}.zip, or the folder {source} that it unpacks to, "
            f"in {folder.absolute()}"
        )


def _decode_letter(content: bytes, image_size: int) -> np.ndarray:
    """Decode a PNG, dark ink on white paper, as uint8 ``[s, s]`` with ink 255 on 0."""
    require_package("PIL", "Omniglot")
    from PIL import Image

    with Image.open(io.BytesIO(content), formats=("PNG",)) as png:
        grey = png.convert("L")
    if grey.size != (image_size, image_size):
        grey = grey.resize((image_size, image_size), Image.Resampling.BOX)
    return 255 - np.asarray(grey)
