"""Small images in memory: scikit-learn's 1,797 digits of 8×8 pixels, MNIST's digits, and Omniglot's letters."""

import gzip
import math
import re
import zipfile
import zlib
from pathlib import Path

import numpy as np

from jdml._optional_imports import package_folder
from jdml.data.dataset import Dataset
from jdml.data.images import Readable, named_if_bad, open_image
from jdml.data.splits import parity_labels
from jdml.data.tfds import prepared, read_prepared

_PREFIXES = {"train": "train", "test": "t10k"}
_SOURCES = {"train": "images_background", "test": "images_evaluation"}


# Digits


def load_digits(folder: Path, split: str) -> Dataset:
    """Load the 8×8 digits (a part of UCI's optical recognition of handwritten digits)."""
    # Only its file is read: importing the library takes longer than importing JAX.
    library = package_folder("sklearn", "the data set digits, a part of scikit-learn,")
    rows = np.loadtxt(library / "datasets" / "data" / "digits.csv.gz", int, delimiter=",")
    images = np.rint(rows[:, :-1].reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    data = _digit_dataset("digits", images, rows[:, -1])
    test = np.zeros(len(data), bool)  # a third of each digit, by one fixed shuffle
    random = np.random.RandomState(0)  # NumPy never changes this generator's stream
    for digit in range(10):
        rows = random.permutation(np.flatnonzero(data.labels == digit))
        test[rows[: round(len(rows) / 3)]] = True
    return data if split == "all" else data.select(test if split == "test" else ~test)


def _digit_dataset(name: str, images: np.ndarray, digits: np.ndarray) -> Dataset:
    return Dataset(name, images, digits, {"digit": digits, "parity": parity_labels(digits)})


# MNIST


def load_mnist(folder: Path, split: str) -> Dataset:
    """Load MNIST: 60,000 training and 10,000 test images, 28×28."""
    parts = [part for part in _PREFIXES if split in (part, "all")]
    if prepared(folder, "mnist") and not any(folder.glob("*-idx?-ubyte*")):
        copy = read_prepared(folder, "mnist", {"digit": "label"})
        rows = np.concatenate([copy.splits[part] for part in parts])
        images = np.stack([np.asarray(open_image(copy.files[row]))[..., :1] for row in rows])
        return _digit_dataset("mnist", images, copy.views["digit"][rows])
    images, digits = (
        np.concatenate([_read_idx(folder, f"{_PREFIXES[part]}-{name}", rank) for part in parts])
        for name, rank in (("images-idx3-ubyte", 3), ("labels-idx1-ubyte", 1))
    )
    return _digit_dataset("mnist", images[..., None], digits)


def _read_idx(folder: Path, name: str, rank: int) -> np.ndarray:
    """Read an IDX file of unsigned bytes: its type and rank, each dimension as four bytes, then the values."""
    path = next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)
    if path is None:
        raise FileNotFoundError(
            f"mnist needs {name} or {name}.gz (or a folder mnist/VERSION that TensorFlow Datasets prepared) in "
            f"{folder.absolute()}"
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


# Omniglot: 1,623 handwritten letters of 50 alphabets, by 20 people each


def load_omniglot(folder: Path, split: str, *, image_size: int = 28) -> Dataset:
    """Load Omniglot, labelled by alphabet."""
    read = _read_prepared_drawings if prepared(folder, "omniglot") else _read_drawings
    drawings: dict[str, Readable] = {}
    for part in _SOURCES:
        if split in (part, "all"):
            drawings |= read(folder, part)
    names = sorted(drawings, key=lambda name: name.split("/"))
    images = [_decode_letter(drawings[name], image_size) for name in names]
    letter, letter_names = _number([name.rsplit("/", 1)[0] for name in names])
    alphabet, alphabet_names = _number([name.rsplit("/", 2)[0] for name in names])
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


def _read_prepared_drawings(folder: Path, part: str) -> dict[str, Readable]:
    """Return the drawings of a copy prepared by tfds, whose letters are called ``ALPHABET_N``, N from 0."""
    copy = read_prepared(folder, "omniglot", {"letter": "label"})
    drawings = {}
    for row in copy.splits[part].tolist():
        alphabet, _, number = copy.names["letter"][copy.views["letter"][row]].rpartition("_")
        letter = f"{_SOURCES[part]}/{alphabet}/character{int(number) + 1:02d}"
        drawings[f"{letter}/{row:05d}.png"] = copy.files[row]
    return drawings


def _read_drawings(folder: Path, part: str) -> dict[str, Readable]:
    """Return the drawings ``SOURCE/ALPHABET/characterNN/*.png`` of a zip, or of the folder that it unpacks to."""
    source = _SOURCES[part]
    archive, unpacked = folder / f"{source}.zip", folder / source
    files: dict[str, Readable]
    if archive.is_file():
        try:
            opened = zipfile.ZipFile(archive)
        except (OSError, RuntimeError, zipfile.BadZipFile) as error:
            raise ValueError(f"{archive}: expected a whole zip archive: {error}") from error
        files = {name: zipfile.Path(opened, name) for name in opened.namelist()}
    elif unpacked.is_dir():
        files = {path.relative_to(folder).as_posix(): path for path in unpacked.glob("*/*/*.png")}
    else:
        raise FileNotFoundError(
            f"omniglot needs {source}.zip, or the folder {source} that it unpacks to, in {folder.absolute()}"
        )
    pattern = re.compile(rf"{source}/[^/]+/[^/]+/[^/]+\.png")
    drawings = {name: file for name, file in files.items() if pattern.fullmatch(name)}
    if not drawings:
        place = archive if archive.is_file() else unpacked
        raise ValueError(f"{place}: expected {source}/ALPHABET/characterNN/*.png, got none")
    return drawings


def _decode_letter(file: Readable, image_size: int) -> np.ndarray:
    """Decode a drawing, dark ink on white paper, as uint8 ``[s, s]`` with ink 255 on 0."""
    with named_if_bad(file):
        grey = open_image(file).convert("L")
    from PIL import Image

    if grey.size != (image_size, image_size):
        grey = grey.resize((image_size, image_size), Image.Resampling.BOX)
    return 255 - np.asarray(grey)
