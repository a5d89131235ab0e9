"""Any folder of classes: a folder for each class, with its images; or a list of files and their labels."""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jdml.data.lists import Listing, data_folder, zero_shot

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
UNREAD = (".arw", ".avif", ".cr2", ".dng", ".heic", ".heif", ".jp2", ".jxl", ".nef", ".psd", ".svg")
"""Images of kinds that are not read."""
ARCHIVERS = "__MACOSX"
"""A folder that macOS puts into archives, with a file of its own for each image."""
SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
"""The names of splits, as folders and as values of a list."""
COLUMNS = ("file", "label", "split")


def read_folder(data_dir: str | Path | None) -> Listing:
    """Read a folder of classes, in the order of the classes' names.

    The first half of the classes trains (the larger one, if their number is odd), the others test. A folder that holds
    ``train/`` and ``val/`` or ``test/``, and nothing else, is read as what it says: each of them holds classes.

    Args:
        data_dir: the folder. Each folder in it is a class; images lie in it at any depth. Hidden files and folders,
            ``__MACOSX``, and files that are no images by their suffix are passed over, the latter counted. Or a
            ``.csv`` file, see ``read_table``.

    Returns:
        The listing, with the view ``class``.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if there is no class in it, or a class without images; the message names it.
    """
    root = data_folder("folder", data_dir)
    if root.suffix.lower() == ".csv" and not root.is_dir():
        return read_table(root)
    if not root.is_dir():
        raise FileNotFoundError(f"folder needs a folder of classes: {root.absolute()} is none")
    places = _folders(root)
    own = {SPLITS.get(place.name.lower()) for place in places}
    if "train" in own and len(own) > 1 and None not in own:
        parts = [
            (SPLITS[place.name.lower()], folder) for place in places for folder in _classes(place)
        ]
    else:
        parts = [("", place) for place in _classes(root)]
    files: list[Path] = []
    labels: list[str] = []
    splits: list[str] = []
    others: Counter[str] = Counter()
    for split, place in parts:
        images, unread = image_files(place)
        others += unread
        if not images:
            also = f" (but {_kinds(unread)})" if unread else ""
            raise ValueError(f"{place}: expected images ({', '.join(SUFFIXES)}), found none{also}")
        files += images
        labels += [place.name] * len(images)
        splits += [split] * len(images)
    loose = len([path for path in root.iterdir() if _is_image(path)])
    notes = [f"{loose} images lie beside the classes' folders, in none of them"] if loose else []
    return _listing(files, labels, splits, others, notes)


def read_table(path: Path) -> Listing:
    """Read a list of files and their labels: ``file,label`` or ``file,label,split``, named in its first line.

    Args:
        path: a ``.csv`` file, UTF-8. Files are relative to its folder, or absolute. Splits are ``train``, ``val`` and
            ``test``; without them the first half of the classes, in the order of their names, trains.

    Returns:
        The listing, with the view ``class``.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if a line cannot be read as that; the message names it.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    try:
        lines = list(csv.reader(path.read_text(encoding="utf-8-sig").splitlines()))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: expected UTF-8 text with commas: {error}") from error
    header = [name.strip().lower() for name in lines[0]] if lines else []
    if not {"file", "label"} <= set(header) <= set(COLUMNS):
        raise ValueError(
            f"{path}:1: expected file,label or file,label,split, got {','.join(header)!r}"
        )
    rows: dict[str, tuple[str, str]] = {}
    for number, values in enumerate(lines[1:], 2):
        if not any(values):
            continue
        row = dict(zip(header, (value.strip() for value in values), strict=False))
        if len(values) != len(header) or not all(row.values()):
            raise ValueError(
                f"{path}:{number}: expected {','.join(header)}, got {','.join(values)!r}"
            )
        split = row.get("split", "").lower()
        if split and split not in SPLITS:
            raise ValueError(f"{path}:{number}: split must be train, val or test, got {split!r}")
        if row["file"] in rows:
            raise ValueError(f"{path}:{number}: {row['file']} is there twice")
        rows[row["file"]] = row["label"], SPLITS.get(split, "")
    if not rows:
        raise ValueError(f"{path}: expected at least one image, got none")
    files = [path.parent / name for name in rows]
    labels, splits = zip(*rows.values(), strict=True)
    return _listing(files, labels, splits, Counter(), [])


def image_files(place: Path) -> tuple[list[Path], Counter[str]]:
    """The images of a folder, at any depth, and the kinds of all other files, counted.

    Args:
        place: the folder. Hidden files and folders and ``__MACOSX`` are passed over.

    Returns:
        Paths in the order of their names, and numbers by suffix.
    """
    images, others = [], Counter[str]()
    for path in sorted(place.rglob("*")):
        within = path.relative_to(place).parts
        if any(part[0] == "." or part == ARCHIVERS for part in within) or not path.is_file():
            continue
        if _is_image(path):
            images.append(path)
        else:
            others[path.suffix.lower() or path.name] += 1
    return images, others


def unread_kinds(others: Mapping[str, int]) -> tuple[str, ...]:
    """What is to be said of files that are no images by their suffix.

    Args:
        others: numbers by suffix.

    Returns:
        A line for images of kinds that are not read, and one for all else.
    """
    images = {kind: count for kind, count in others.items() if kind in UNREAD}
    rest = {kind: count for kind, count in others.items() if kind not in UNREAD}
    lines = []
    if images:
        lines.append(f"{_kinds(images)} left out: convert them to .jpg or .png")
    if rest:
        lines.append(f"{_kinds(rest)} left out")
    return tuple(lines)


def _listing(
    files: Sequence[Path],
    labels: Sequence[str],
    splits: Sequence[str],
    others: Counter[str],
    notes: Sequence[str],
) -> Listing:
    """A listing whose classes are numbered in the order of their names."""
    names, ids = np.unique(np.array(labels, dtype=object).astype(str), return_inverse=True)
    own = any(splits)
    if own:
        places = np.array(splits)
        rows = {split: np.flatnonzero(places == split) for split in ("train", "val", "test")}
        parts = {split: members for split, members in rows.items() if len(members)}
        parts["all"] = np.concatenate(list(parts.values()))
        missing = np.flatnonzero(places == "")
        if len(missing):
            raise ValueError(f"{files[missing[0]]} has no split, others have")
    else:
        parts = zero_shot(2 * ids < len(names))
    class_names = {"class": dict(enumerate(names.tolist()))}
    told = (*notes, *unread_kinds(others))
    unread = sum(count for kind, count in others.items() if kind in UNREAD)
    return Listing("folder", files, {"class": ids}, parts, class_names, told, own, unread)


def _folders(root: Path) -> list[Path]:
    """The folders in a folder, without hidden ones and an archiver's."""
    inside = (path for path in root.iterdir() if path.is_dir())
    return sorted(path for path in inside if path.name[0] != "." and path.name != ARCHIVERS)


def _classes(root: Path) -> list[Path]:
    """The folders of classes."""
    classes = _folders(root)
    if not classes:
        loose = len([path for path in root.iterdir() if _is_image(path)])
        also = f", and {loose} images: their labels may come from a .csv file" if loose else ""
        raise ValueError(f"{root}: expected a folder for each class, found none{also}")
    return classes


def _kinds(others: Mapping[str, int]) -> str:
    total = sum(others.values())
    listed = ", ".join(f"{count} {kind}" for kind, count in sorted(others.items()))
    return f"{total} file{'s' if total > 1 else ''} of other kinds ({listed})"


def _is_image(path: Path) -> bool:
    """Whether it is an image by its name."""
    return path.suffix.lower() in SUFFIXES and path.name[0] != "." and path.is_file()
