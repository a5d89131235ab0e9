"""What the readers of image lists share: finding the folder, reading lines, splits, labels."""

import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from jdml._paths import check_local, expand_user
from jdml.data.dataset import Dataset, check_split
from jdml.data.image_discovery import RealFiles, pluralize, unread, unread_kinds
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
NO_NAMES = ("nan", "<na>", "na", "null", "none")
"""What is written for a value that is missing."""
UNLIKE = 0.25
"""Where one half of the classes has fewer of the images than this share, halves are not made by names."""
FIRST = 3
"""How many examples an error message names."""


@dataclass(frozen=True, eq=False)
class Listing:
    """What the lists of a data set say: all images, their classes, which split each belongs to."""

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
        """One split, its classes numbered 0, 1, … in the order of their ids."""
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
    """The folder that a user gave."""
    if data_dir is None:
        raise ValueError(f"data_dir must be the folder of the {name} files, got None")
    check_local("data_dir", data_dir)
    return expand_user(data_dir)


def find_folder(name: str, folder: Path, inside: Sequence[str], files: Sequence[str]) -> Path:
    """The folder that holds the lists: the one given, or one of the original's names in it."""
    places = [folder, *(folder / part for part in inside)]
    place = next((p for p in places if any((p / file).is_file() for file in files)), folder)
    gone = [file for file in files if not (place / file).is_file()]
    if gone:
        raise FileNotFoundError(f"{name} needs {', '.join(gone)} in {place.absolute()}")
    return place


def read_lines(
    path: Path, fields: Sequence[str], *, skip: int = 0
) -> Iterator[tuple[str, list[str]]]:
    """The lines of a list file: where each stands (``file:line``) and its fields."""
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
    """A number ≥ 0 of a list file."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{where}: {name} must be an integer ≥ 0, got {text!r}")
    return int(text)


def image_path(where: str, text: str) -> str:
    """A path of a list file, relative to the folder of the images."""
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or "\\" in text:
        raise ValueError(f"{where}: expected a path inside the folder of the images, got {text!r}")
    return text


def put_once(where: str, table: dict[Any, Any], key: Any, value: Any, name: str) -> None:
    """Add a row to a table."""
    if key in table:
        raise ValueError(f"{where}: {name} {key} is there twice")
    table[key] = value


def some(where: Path, rows: Collection[Any]) -> None:
    """Refuse a list without rows."""
    if not rows:
        raise ValueError(f"{where}: expected at least one image, got none")


@dataclass(frozen=True)
class Labelled:
    """An image file and what is said of it."""

    file: Readable
    label: str
    part: str
    where: str
    name: str


def in_one_form(label: str) -> str:
    """A name in one form (NFC): an accent may be written as one character or as two."""
    return unicodedata.normalize("NFC", label)


def by_number(name: str) -> tuple[list[str | int], str]:
    """The place of a name among others: numbers in it count as numbers."""
    words = re.split("([0-9]+)", name)
    return [int(word) if odd % 2 else word for odd, word in enumerate(words)], name


def numbered(labels: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Number classes in the order of their names: the labels' numbers ``[N]``, and the names."""
    names = tuple(sorted(set(labels), key=by_number))
    number = {name: n for n, name in enumerate(names)}
    return np.array([number[label] for label in labels]), names


def as_listing(
    rows: Sequence[Labelled],
    *,
    repeats: bool,
    others: Counter[str] | None = None,
    notes: Sequence[str] = (),
) -> Listing:
    """Make a listing whose classes are numbered in the order of their names."""
    others = others or Counter()
    once = _each_once(rows, repeats)
    twice = len(rows) - len(once)
    if twice:
        links = pluralize(twice, "file is a link to another", "files are links to others")
        notes = (*notes, f"{links} of their class: each is taken once")
    ids, names = numbered([row.label for row in once])
    own = any(row.part for row in once)
    parts, told = (_own_parts(once), ()) if own else _halves(ids, len(names))
    return Listing(
        "folder",
        [row.file for row in once],
        {"class": ids},
        parts,
        {"class": dict(enumerate(names))},
        (*notes, *_odd_names(names), *unread_kinds(others)),
        own,
        unread(others),
        told,
    )


def _odd_names(names: Sequence[str]) -> tuple[str, ...]:
    """A line for classes whose names differ in case or spaces alone, and one for a missing value that became a name."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault("".join(name.casefold().split()), []).append(name)
    groups = ["/".join(map(repr, group)) for group in alike.values() if len(group) > 1]
    lines = [f"classes with names that differ in case or spaces alone: {first(groups)}"] * bool(
        groups
    )
    lines += [
        f"a class is called {name!r}: rows without a label?"
        for name in names
        if name.lower() in NO_NAMES
    ]
    return tuple(lines)


def _each_once(rows: Sequence[Labelled], repeats: bool) -> list[Labelled]:
    """Each file once, whatever it is called."""
    real = RealFiles()
    seen: dict[str, Labelled] = {}
    for row in rows:
        first = seen.setdefault(real(str(row.file)), row)
        if first is row or (repeats and (first.label, first.part) == (row.label, row.part)):
            continue
        said = [f"{of.label!r}{' in ' + of.part if of.part else ''}" for of in (row, first)]
        called = "" if row.name == first.name else f" as {first.name}"
        raise ValueError(
            f"{row.where}: {row.name} is there twice, as {said[0]} here and as {said[1]} "
            f"in {first.where}{called}: it is one file"
        )
    return list(seen.values())


def _own_parts(rows: Sequence[Labelled]) -> dict[str, np.ndarray]:
    """The parts that rows name; query and gallery together are the test part."""
    of = np.array([row.part for row in rows])
    parts = {part: np.flatnonzero(of == part) for part in dict.fromkeys(PARTS.values())}
    parts = {part: members for part, members in parts.items() if len(members)}
    if "query" in parts or "gallery" in parts:
        if not {"query", "gallery"} <= parts.keys() or "test" in parts:
            raise ValueError(
                f"{rows[0].where}: query and gallery go together, in place of test: got the parts {', '.join(parts)}"
            )
        parts["test"] = np.concatenate([parts["query"], parts["gallery"]])
    alone = [members for part, members in parts.items() if part not in ("query", "gallery")]
    return {**parts, "all": np.concatenate(alone)}


def _halves(ids: np.ndarray, count: int) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """The first half of the classes trains, the other is scored; every second by size, where the halves are unlike."""
    train = 2 * np.arange(count) < count
    sizes = np.bincount(ids, minlength=count)
    share = float(sizes[~train].sum() / len(ids))
    if count < 4 or UNLIKE <= share <= 1 - UNLIKE:
        return zero_shot(train[ids]), ()
    place = np.empty(count, int)
    place[np.argsort(-sizes, kind="stable")] = np.arange(count)
    train = np.isin(place % 4, (0, 3) if count % 4 != 3 else (1, 2))
    now = float(sizes[~train].sum() / len(ids))
    return zero_shot(train[ids]), (
        f"the second half of the classes, by their names, has {share:.0%} of the images: every second class by its "
        f"number of images is scored instead, {now:.0%} of the images (--split classes draws them by the seed)",
    )
