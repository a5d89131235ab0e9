"""Folders of images: a folder for each class, or parts (``train/``, ``test/``) of such; lists of files and labels."""

import csv
import io
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from jdml._optional_imports import is_pointer
from jdml._paths import expand_user
from jdml.data.image_discovery import count_by_suffix, image_files, images_in, pluralize, subfolders
from jdml.data.listing import PARTS, LabelledFile, Listing, as_listing, normalized, read_text
from jdml.data.rows import has_tables, read_pointer, read_tables

SEPARATORS = ",;\t"
ENDINGS = (".csv", ".tsv")


def read_folder(folder: Path, column: str | None = None) -> Listing:
    """Read a folder of classes, or of parts of such; or a list, tables, or an object of a user's module.

    A class is a folder with images at any depth. If two folders or more are called like parts (``train/``, ``val/``,
    ``test/``, ``query/``, ``gallery/``), each of them holds classes. The column of a list has the groups.
    """
    if folder.suffix.lower() in ENDINGS and not folder.is_dir():
        return _read_list(folder, column)
    if is_pointer(str(folder)) and not folder.exists():
        return read_pointer(str(folder))
    if has_tables(folder):
        return read_tables(folder)
    if not folder.is_dir():
        why = "is not a folder of classes" if folder.exists() else "does not exist"
        raise FileNotFoundError(f"{folder.absolute()} {why}")
    others: Counter[str] = Counter()
    notes: list[str] = []
    rows: list[LabelledFile] = []
    for part, holder in _find_parts(folder, others, notes):
        for place in subfolders(holder):
            images, other = image_files(place)
            others += other
            if not images:
                also = f" (but {count_by_suffix(other)})" if other else ""
                notes.append(f"{place.name}/ has no images{also}: it is not a class")
            inner = sorted({image.relative_to(place).parts[0] for image in images})
            if len(inner) > 1 and all(image.parent != place for image in images):
                notes.append(
                    f"{place.name}/ is one class, with images in {inner[0]}/, {inner[1]}/: move them up if they are "
                    "classes, or give a .csv file of file,label,split"
                )
            rows += [LabelledFile(file, normalized(place.name), part) for file in images]
        loose = images_in(holder)
        if loose:
            lie = pluralize(loose, "image lies", "images lie")
            notes.append(f"{lie} next to the classes' folders, in none of them")
    if not rows:
        raise ValueError(f"{folder}: expected a folder of images for each class, got none")
    return as_listing(rows, repeats=True, others=others, notes=notes)


def _part_folders(root: Path) -> dict[Path, str]:
    """Return the folders that are called like parts, each with its part; none if there are not two parts."""
    places = subfolders(root)
    parts = {place: PARTS[place.name.lower()] for place in places if place.name.lower() in PARTS}
    return parts if len(set(parts.values())) > 1 else {}


def _find_parts(root: Path, others: Counter[str], notes: list[str]) -> list[tuple[str, Path]]:
    """Return the folders that hold classes, each with its part; ``""`` for a folder without parts."""
    parts = _part_folders(root)
    for place in subfolders(root):
        if parts and place not in parts:
            images, other = image_files(place)
            others += other
            if images:
                left_out = pluralize(len(images), "image is", "images are")
                notes.append(f"{place.name}/ is not a part: its {left_out} left out")
        elif not parts:
            like_a_part = PARTS.keys() & re.split(r"[\W_]+", place.name.lower())
            inner = subfolders(place)
            # Only folders called like parts are searched: reading comes later, once.
            if (like_a_part or _part_folders(place)) and any(image_files(x)[0] for x in inner):
                raise ValueError(
                    f"{place} looks like a part, or holds parts ({', '.join(x.name for x in inner[:3])}), but "
                    f"{root} has no other part: name file, label and split in a .csv file"
                )
    return [(part, place) for place, part in parts.items()] or [("", root)]


def check_apart(name: str, folder: Path, root: Path) -> None:
    """Refuse a folder among classes, which would be read as a class the next time."""
    inside, around = (expand_user(place).absolute().resolve() for place in (folder, root))
    if not around.is_dir() or not inside.is_relative_to(around):
        return
    parts = _part_folders(around)
    if not parts or inside == around or any(inside.is_relative_to(part) for part in parts):
        raise ValueError(
            f"{name} must not lie among the images in {root}, where it would be read as a class, got {folder}"
        )


# A list of image files and their labels


def _read_list(path: Path, column: str | None) -> Listing:
    """Read a list of files and their labels: ``file,label`` or ``file,label,split``, named in its first line.

    A list that has the column of the groups may have others.
    """
    header = [name.strip().lower() for name in next(_read_records(path), (1, []))[1]]
    group = column.lower() if column is not None and column.lower() in header else None
    needed = ["file", "label", *([] if group is None else [group])]
    rows = []
    for where, row in _read_rows(path, needed, ["split"] if group is None else []):
        split = row.get("split", "").strip().lower()
        if split not in PARTS and "split" in row:
            raise ValueError(
                f"{where}: split must be train, val or test, got {split!r} (or query and gallery for test)"
            )
        label = normalized(row["label"].strip())
        if label == "-1":
            raise ValueError(f"{where}: label must be a class, got -1: leave the row out")
        file, own = _find_file(path.parent, row["file"]), group and row[group].strip()
        rows.append(LabelledFile(file, label, PARTS.get(split, ""), own, where))
    if not rows:
        raise ValueError(f"{path}: expected at least one image, got none")
    return as_listing(rows)


def read_column(path: Path, column: str, files: Iterable[str]) -> np.ndarray:
    """Return the values ``[N]`` that one more column of a list has for files, such as the camera that took them."""
    rows = [row for _, row in _read_rows(path, ["file", column.lower()])]
    places = [str(_find_file(path.parent, row["file"]).absolute()) for row in rows]
    values = {place: row[column.lower()].strip() for place, row in zip(places, rows, strict=True)}
    missing = [file for file in files if file not in values]
    if missing:
        raise ValueError(f"{path} does not name {len(missing)} of the files: {missing[0]}")
    return np.array([values[file] for file in files])


def _read_rows(
    path: Path, needed: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[tuple[str, dict[str, str]]]:
    """Return each row by the names of its columns, in lower case, and where it stands (``file:line``).

    With optional columns, others are refused.
    """
    records = _read_records(path)
    number, names = next(records, (1, []))
    header = [name.strip().lower() for name in names]
    known = {*needed, *optional} if optional else {*header}
    if not {*needed} <= {*header} <= known:
        raise ValueError(f"{path}:{number}: expected {','.join(needed)}, got {','.join(names)!r}")
    for number, values in records:
        row = dict(zip(header, values, strict=False))
        filled = [row.get(name, "").strip() for name in (*needed, *optional) if name in header]
        if len(values) != len(header) or not all(filled):
            raise ValueError(f"{path}:{number}: expected {','.join(header)}, got {values}")
        yield f"{path}:{number}", row


def _read_records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Return the records of a table that are not empty, with the number of their first line."""
    text = read_text(path)
    first = next((line for line in text.split("\n") if line.strip()), "")
    separator = max(SEPARATORS, key=first.count)
    reader = csv.reader(io.StringIO(text, newline="\n"), delimiter=separator, strict=True)
    before = 0
    try:
        for values in reader:
            number, before = before + 1, reader.line_num
            if any(value.strip() for value in values):
                yield number, values
    except csv.Error as error:
        raise ValueError(f"{path}:{before + 1}: expected text with commas: {error}") from error


def _find_file(folder: Path, name: str) -> Path:
    """Return a file of a list; if it does not exist, as other systems write its name."""
    name, short = (os.path.expanduser(each) for each in (name, name.strip()))
    others = [unicodedata.normalize(form, short) for form in ("NFC", "NFD")]
    places = [folder / each for each in (short, *others, short.replace("\\", "/"), name)]
    return next((place for place in places if place.is_file()), places[0])
