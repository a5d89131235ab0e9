"""What the readers of image lists share: finding the folder, reading lines, splits, labels."""

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from jdml._paths import check_local, expand_user
from jdml.data.dataset import Dataset
from jdml.data.digits import check_split
from jdml.data.images import ImageFiles
from jdml.data.transforms import Crops

# Splits whose rows are labelled together: a query and its gallery have one numbering.
_SHARED = {"query": "test", "gallery": "test"}
FIRST = 3
"""How many examples an error message names."""


@dataclass(frozen=True, eq=False)
class Listing:
    """What the lists of a data set say: all images, their classes, which split each belongs to.

    Attributes:
        name: the data set's name.
        files: ``[N]`` objects with ``read_bytes()``: paths, mostly.
        views: for each view the class ids ``[N]``, numbers or strings as in the lists. The first view
            is the labels.
        splits: the rows of each split.
        names: for a view, the name of each class id, where there are names.
        notes: lines about what was passed over.
        own_split: whether the lists say themselves what trains and what is scored.
        unread: how many images were passed over.
        split_notes: lines about how the splits were chosen.
    """

    name: str
    files: Sequence[Any]
    views: Mapping[str, np.ndarray]
    splits: Mapping[str, np.ndarray]
    names: Mapping[str, Mapping[Any, str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    own_split: bool = False
    unread: int = 0
    split_notes: tuple[str, ...] = ()

    @property
    def checksum(self) -> int:
        """Which images these are, of all splits, and of which classes."""
        ids = next(iter(self.views.values()))
        return images_checksum(self.files, np.unique(ids, return_inverse=True)[1])

    def dataset(
        self, split: str, *, transform: Crops | None = None, check_files: bool = True
    ) -> Dataset:
        """One split, its classes numbered 0, 1, … in the order of their ids.

        Args:
            split: one of the splits.
            transform: how images are cut to one size, by default ``conventional(224)``.
            check_files: refuse to go on if image files are missing.

        Raises:
            FileNotFoundError: if image files are missing: how many, and the first few.
            ValueError: if there is no such split.
        """
        check_split(split, tuple(self.splits))
        rows = self.splits[split]
        files = [self.files[row] for row in rows]
        gone = missing(files) if check_files else []
        if gone:
            raise FileNotFoundError(
                f"{self.name}: {len(gone)} of {len(files)} image files are missing: {first(gone)}"
            )
        together = self.splits[_SHARED.get(split, split)]
        labels, class_names = {}, {}
        for view, ids in self.views.items():
            known = np.unique(ids[together])
            labels[view] = np.searchsorted(known, ids[rows])
            if view in self.names:
                class_names[view] = tuple(self.names[view][i] for i in known.tolist())
        images = ImageFiles(files, transform)
        return Dataset(self.name, images, next(iter(labels.values())), labels, class_names)


def images_checksum(files: Iterable[Any], labels: np.ndarray) -> int:
    """Which image files these are, wherever their folder lies: by their names, their folders' and their labels."""
    names = ["/".join(str(file).split("/")[-2:]) for file in files]
    content = "\n".join(names).encode(errors="surrogateescape")
    return zlib.crc32(np.asarray(labels, np.int64).tobytes(), zlib.crc32(content))


def zero_shot(train: np.ndarray) -> dict[str, np.ndarray]:
    """The rows of the splits ``train``, ``test`` and ``all`` (train, then test) from a mask ``[N]``."""
    parts = {"train": np.flatnonzero(train), "test": np.flatnonzero(~train)}
    return {**parts, "all": np.concatenate([parts["train"], parts["test"]])}


def missing(files: Sequence[Any]) -> list[str]:
    """The names of those files that are paths and do not exist."""
    return [str(file) for file in files if isinstance(file, Path) and not file.is_file()]


def first(names: Sequence[str]) -> str:
    """The first few names."""
    return ", ".join(names[:FIRST]) + (", …" if len(names) > FIRST else "")


def data_folder(name: str, data_dir: str | Path | None) -> Path:
    """The folder that a user gave.

    Raises:
        ValueError: if none was given.
    """
    if data_dir is None:
        raise ValueError(f"data_dir must be the folder of the {name} files, got None")
    check_local("data_dir", data_dir)
    return expand_user(data_dir)


def find_folder(name: str, folder: Path, inside: Sequence[str], files: Sequence[str]) -> Path:
    """The folder that holds the lists: the one given, or one of the original's names in it.

    Raises:
        FileNotFoundError: if a list is missing; the message names it.
    """
    places = [folder, *(folder / part for part in inside)]
    place = next((p for p in places if any((p / file).is_file() for file in files)), folder)
    gone = [file for file in files if not (place / file).is_file()]
    if gone:
        raise FileNotFoundError(f"{name} needs {', '.join(gone)} in {place.absolute()}")
    return place


def read_lines(
    path: Path, fields: Sequence[str], *, skip: int = 0
) -> Iterator[tuple[str, list[str]]]:
    """The lines of a list file: where each stands (``file:line``) and its fields.

    Fields are separated by white space; the last one may hold some. Empty lines are passed over.

    Args:
        path: the file, UTF-8, with or without a byte-order mark.
        fields: the fields' names, for error messages.
        skip: lines of header.

    Raises:
        ValueError: if the file is not text or a line has fewer fields; the message names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected UTF-8 text: {error}") from error
    for number, line in enumerate(lines, 1):
        if number <= skip or not line.strip():
            continue
        values = line.strip().split(maxsplit=len(fields) - 1)
        if len(values) != len(fields):
            raise ValueError(f"{path}:{number}: expected {' '.join(fields)!r}, got {line!r}")
        yield f"{path}:{number}", values


def integer(where: str, name: str, text: str) -> int:
    """A number ≥ 0 of a list file.

    Raises:
        ValueError: if it is none.
    """
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{where}: {name} must be an integer ≥ 0, got {text!r}")
    return int(text)


def image_path(where: str, text: str) -> str:
    """A path of a list file, relative to the folder of the images.

    Raises:
        ValueError: if it leads out of that folder.
    """
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or "\\" in text:
        raise ValueError(f"{where}: expected a path inside the folder of the images, got {text!r}")
    return text


def put_once(where: str, table: dict[Any, Any], key: Any, value: Any, name: str) -> None:
    """Add a row to a table.

    Raises:
        ValueError: if the key is there already.
    """
    if key in table:
        raise ValueError(f"{where}: {name} {key} is there twice")
    table[key] = value


def some(where: Path, rows: Collection[Any]) -> None:
    """Refuse a list without rows."""
    if not rows:
        raise ValueError(f"{where}: expected at least one image, got none")
