"""Image files with a label each, as a listing: classes in order, each file once, half of the classes to score."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jdml.data.image_discovery import RealFiles, counted, unread, unread_kinds
from jdml.data.images import Readable
from jdml.data.listing import Listing, first, zero_shot

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


@dataclass(frozen=True)
class Labelled:
    """An image file and what is said of it.

    Attributes:
        file: what holds it.
        label: its class.
        part: one of the values of ``PARTS``, or nothing.
        where: what says so, for error messages.
        name: what it is called there.
    """

    file: Readable
    label: str
    part: str
    where: str
    name: str


def in_one_form(label: str) -> str:
    """A name in one form (NFC): an accent may be written as one character or as two."""
    return unicodedata.normalize("NFC", label)


def by_number(name: str) -> tuple[list[str | int], str]:
    """The place of a name among others: numbers in it count as numbers.

    Example:
        >>> sorted(["10", "9", "b2", "b10", "a"], key=by_number)
        ['9', '10', 'a', 'b2', 'b10']
    """
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
    """Make a listing whose classes are numbered in the order of their names.

    Args:
        rows: the files.
        repeats: whether a file may be there twice with the same label in the same part; it is then taken once.
        others: files of other kinds that were passed over.
        notes: lines about what was passed over.

    Returns:
        The listing, with the view ``class``.

    Raises:
        ValueError: a file that is there twice, naming both; parts that do not go together.
    """
    others = others or Counter()
    once = _each_once(rows, repeats)
    twice = len(rows) - len(once)
    if twice:
        links = counted(twice, "file is a link to another", "files are links to others")
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
