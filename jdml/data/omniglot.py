"""Omniglot: 1,623 handwritten letters of 50 alphabets, 20 drawers each."""

import io
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from jdml._optional_imports import require_package
from jdml.data.dataset import Dataset, check_split
from jdml.data.listing import data_folder
from jdml.data.tfds import prepared, read_prepared

SPLITS = ("train", "test", "all")
_SOURCES = {"train": "images_background", "test": "images_evaluation"}
_DAMAGED = (  # RuntimeError, of which NotImplementedError is one: encrypted, or packed in another way
    OSError, EOFError, SyntaxError, ValueError, RuntimeError, zlib.error, zipfile.BadZipFile
)  # fmt: skip
LARGEST = 1 << 20
"""Bytes of a drawing in an archive; Omniglot's have some hundred."""


def load_omniglot(
    data_dir: str | Path | None, split: str = "train", *, image_size: int = 28
) -> Dataset:
    """Load Omniglot, labelled by alphabet."""
    check_split(split, SPLITS)
    folder = data_folder("omniglot", data_dir)
    if not isinstance(image_size, int) or image_size < 1:
        raise ValueError(f"image_size must be a positive integer, got {image_size!r}")
    if prepared(folder, "omniglot"):
        return _read_prepared(folder, split, image_size)
    letters: list[str] = []
    images: list[np.ndarray] = []
    for part, source in _SOURCES.items():
        if split in (part, "all"):
            for name, image in _read_source(folder, source, image_size):
                letters.append(name.rsplit("/", 1)[0])
                images.append(image)
    return _label(np.stack(images)[..., None], letters)


def _read_prepared(folder: Path, split: str, image_size: int) -> Dataset:
    """A copy prepared by tfds, whose letters are called ``ALPHABET_N``, N from 0."""
    records, columns, names = read_prepared(folder, "omniglot", {"letter": "label"})
    letters = []
    for part, label in zip(columns["split"], columns["letter"], strict=True):
        alphabet, _, number = names["letter"][int(label)].rpartition("_")
        letters.append(f"{_SOURCES[part]}/{alphabet}/character{int(number) + 1:02d}")
    wanted = [row for row, part in enumerate(columns["split"]) if split in (part, "all")]
    wanted.sort(key=lambda row: letters[row].split("/"))
    images = np.stack([_decode(records[row].read_bytes(), image_size) for row in wanted])
    return _label(images[..., None], [letters[row] for row in wanted])


def _label(images: np.ndarray, letters: list[str]) -> Dataset:
    """Numbers letters (``SOURCE/ALPHABET/characterNN``) and alphabets in the order they come."""
    letter, letter_names = _number(letters)
    alphabet, alphabet_names = _number([name.rsplit("/", 1)[0] for name in letters])
    return Dataset(
        "omniglot",
        images,
        alphabet,
        {"alphabet": alphabet, "letter": letter},
        {
            "alphabet": tuple(name.split("/")[1] for name in alphabet_names),
            "letter": tuple(name.split("/", 1)[1] for name in letter_names),
        },
    )


def _number(names: list[str]) -> tuple[np.ndarray, list[str]]:
    """Labels by first appearance, and the name of each label."""
    ids = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array([ids[name] for name in names], np.int32), list(ids)


def _read_source(folder: Path, source: str, image_size: int) -> Iterator[tuple[str, np.ndarray]]:
    """Names and images of one zip or folder, sorted by alphabet, letter and file."""
    with _open_source(folder, source) as (where, names, read):
        images = [name for name in names if _is_image(name, source)]
        if not images:
            raise ValueError(f"{where}: expected {source}/ALPHABET/characterNN/*.png, found none")
        for name in sorted(images, key=lambda name: name.split("/")):
            try:
                image = _decode(read(name), image_size)
            except _DAMAGED as error:
                raise ValueError(f"{where}: {name} is not a whole image: {error}") from error
            yield name, image


@contextmanager
def _open_source(
    folder: Path, source: str
) -> Iterator[tuple[Path, list[str], Callable[[str], bytes]]]:
    """Where a source is, the names of its files, and the function that reads one of them."""
    archive, unpacked = folder / f"{source}.zip", folder / source
    if archive.is_file():
        try:
            opened = zipfile.ZipFile(archive)
        except _DAMAGED as error:
            raise ValueError(f"{archive}: expected a whole zip archive: {error}") from error
        with opened:
            yield archive, opened.namelist(), partial(_member, opened)
    elif unpacked.is_dir():
        files = [path.relative_to(folder).as_posix() for path in unpacked.glob("*/*/*.png")]
        yield unpacked, files, lambda name: (folder / name).read_bytes()
    else:
        raise FileNotFoundError(
            f"omniglot needs {source}.zip, or the folder {source} that it unpacks to, "
            f"in {folder.absolute()}"
        )


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    """A file of an archive, which is to be a drawing of some hundred bytes."""
    if archive.getinfo(name).file_size > LARGEST:
        raise ValueError(f"it has {archive.getinfo(name).file_size:,} bytes")
    return archive.read(name)


def _is_image(name: str, source: str) -> bool:
    """Whether a file of an archive is ``SOURCE/ALPHABET/characterNN/*.png``."""
    parts = name.split("/")
    return len(parts) == 4 and parts[0] == source and name.endswith(".png")


def _decode(content: bytes, image_size: int) -> np.ndarray:
    """A PNG, dark ink on white paper, as uint8 ``[s, s]`` with ink 255 on 0."""
    require_package("PIL", "Omniglot")
    from PIL import Image

    with Image.open(io.BytesIO(content), formats=("PNG",)) as png:
        grey = png.convert("L")
    if grey.size != (image_size, image_size):
        grey = grey.resize((image_size, image_size), Image.Resampling.BOX)
    return 255 - np.asarray(grey)
