"""``Listing``: image files with their classes and splits, as lists and folders describe them."""

import os
import unicodedata
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jdml._paths import natural_key
from jdml.data.dataset import Dataset, check_split
from jdml.data.images import ImageFiles, Readable
from jdml.data.transforms import Crops

# Splits whose rows are labelled together: a query and its gallery have one numbering.
_SHARED = {"query": "test", "gallery": "test"}
PARTS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
    "query": "query",
    "queries": "query",
    "gallery": "gallery",
}
"""The names of parts, as folders and as values of a list."""
FIRST = 3
"""How many examples an error message names."""


@dataclass(frozen=True, eq=False)
class Listing:
    """All images of a data set, with their classes and splits."""

    name: str
    files: Sequence[Any]
    views: Mapping[str, np.ndarray]
    splits: Mapping[str, np.ndarray]
    names: Mapping[str, Mapping[Any, str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    own_split: bool = False
    has_unreadable: bool = False
    split_notes: tuple[str, ...] = ()
    groups: np.ndarray | None = None

    @property
    def all_files(self) -> list[Any]:
        """The files in the order of the split ``all``."""
        return [self.files[row] for row in self.splits["all"]]

    @property
    def checksum(self) -> int:
        """A checksum of the names and classes of all images, wherever these lie."""
        labels = np.unique(next(iter(self.views.values())), return_inverse=True)[1]
        content = "\n".join(short_names(self.files)).encode(errors="surrogateescape")
        return zlib.crc32(np.asarray(labels, np.int64).tobytes(), zlib.crc32(content))

    def dataset(
        self, split: str, *, transform: Crops | None = None, check_files: bool = True
    ) -> Dataset:
        """Return one split, its classes numbered 0, 1, … in the order of their ids."""
        check_split(split, self.splits)
        rows = self.splits[split]
        files = [self.files[row] for row in rows]
        gone = missing_files(files) if check_files else []
        if gone:
            raise FileNotFoundError(
                f"{self.name}: {len(gone)} of {len(files)} image files are missing: {first_few(gone)}"
            )
        together = self.splits[_SHARED.get(split, split)]
        labels, class_names = {}, {}
        for view, ids in self.views.items():
            known = np.unique(ids[together])
            labels[view] = np.searchsorted(known, ids[rows])
            if view in self.names:
                class_names[view] = tuple(self.names[view][i] for i in known.tolist())
        images, first = ImageFiles(files, transform), next(iter(labels.values()))
        groups = None if self.groups is None else self.groups[rows]
        return Dataset(self.name, images, first, labels, class_names, groups)


def short_names(files: Iterable[Any]) -> list[str]:
    """Return the names of files in their folders, the same wherever these lie, and in every locale."""
    return [normalized("/".join(str(file).split("/")[-2:])) for file in files]


def zero_shot(train: np.ndarray) -> dict[str, np.ndarray]:
    """Return the rows of the splits ``train``, ``test`` and ``all`` (train, then test) from a mask ``[N]``."""
    parts = {"train": np.flatnonzero(train), "test": np.flatnonzero(~train)}
    return {**parts, "all": np.concatenate([parts["train"], parts["test"]])}


def missing_files(files: Sequence[Any]) -> list[str]:
    """Return the names of the paths that do not exist."""
    return [str(file) for file in files if isinstance(file, Path) and not file.is_file()]


def pluralize(number: int, one: str, more: str) -> str:
    """Return a number and a noun."""
    return f"{number} {one if number == 1 else more}"


def first_few(names: Sequence[str], most: int = FIRST) -> str:
    """Return the first few names."""
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def read_text(path: Path) -> str:
    """Read a text file in UTF-8; its line ends become line feeds."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected UTF-8 text: {error}") from error


class LabelledFile(NamedTuple):
    """An image file with its label, its part and its group, and where that stands."""

    file: Readable
    label: str
    part: str
    where: str
    group: str | None = None


def normalized(label: str) -> str:
    """Return a name in Unicode's form NFC, as a file's is read under UTF-8, whatever the locale."""
    label = label.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    return unicodedata.normalize("NFC", label)


def number_classes(labels: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Number classes in the order of their names: return the numbers ``[N]`` of labels, and the names."""
    names = tuple(sorted(set(labels), key=natural_key))
    number = {name: n for n, name in enumerate(names)}
    return np.array([number[label] for label in labels]), names


def as_listing(
    rows: Sequence[LabelledFile],
    notes: Sequence[str] = (),
    *,
    repeats: bool = False,
    has_unreadable: bool = False,
) -> Listing:
    """Make a listing whose classes are numbered in the order of their names; ``repeats``: links are left out."""
    once = _each_once(rows, repeats)
    twice = len(rows) - len(once)
    if twice:
        files = pluralize(twice, "file is", "files are")
        notes = (*notes, f"{files} linked again in their class: each is read once")
    ids, names = number_classes([row.label for row in once])
    own = any(row.part for row in once)
    parts, split_notes = (_own_parts(once), ()) if own else _halves(ids, len(names))
    has_groups = all(row.group is not None for row in once)
    return Listing(
        "folder",
        [row.file for row in once],
        {"class": ids},
        {**parts, "all": np.arange(len(once))},
        {"class": dict(enumerate(names))},
        tuple(notes),
        own,
        has_unreadable,
        split_notes,
        np.array([row.group for row in once]) if has_groups else None,
    )


def _each_once(rows: Sequence[LabelledFile], repeats: bool) -> list[LabelledFile]:
    """Return each file once, whatever path leads to it; refuse one of two classes or parts."""
    real_folder = cache(os.path.realpath)  # of which there are few
    once: dict[str, LabelledFile] = {}
    for row in rows:
        folder, name = os.path.split(str(row.file))
        file = os.path.join(real_folder(folder), name)
        first = once.setdefault(os.path.realpath(file) if os.path.islink(file) else file, row)
        if first is row or (repeats and (first.label, first.part) == (row.label, row.part)):
            continue
        raise ValueError(
            f"{row.where}: {row.file} is listed twice, here as {row.label!r} {row.part} and in "
            f"{first.where} as {first.label!r} {first.part}"
        )
    return list(once.values())


def _own_parts(rows: Sequence[LabelledFile]) -> dict[str, np.ndarray]:
    """Return the parts that rows name; query and gallery together are the test part."""
    part_of = np.array([row.part for row in rows])
    parts = {part: np.flatnonzero(part_of == part) for part in dict.fromkeys(PARTS.values())}
    parts = {part: members for part, members in parts.items() if len(members)}
    if "query" in parts or "gallery" in parts:
        if not {"query", "gallery"} <= parts.keys() or "test" in parts:
            raise ValueError(
                f"{rows[0].where}: query and gallery go together, in place of test: got the parts {', '.join(parts)}"
            )
        parts["test"] = np.concatenate([parts["query"], parts["gallery"]])
    return parts


def _halves(ids: np.ndarray, count: int) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Split classes in halves by name: the first trains, and has one more of an odd number."""
    first = (count + 1) // 2
    how = f"of {count} classes the first {first} by name are for training, the other {count - first} for scoring"
    return zero_shot(ids < first), (f"no train and test parts: {how}",)
