"""Any folder of classes: a folder for each class, with its images, or parts (``train/``, ``test/``) of such.

And what stands in its place: a list, tables, or what a user's own module has.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jdml._import_path import call_user_object, import_user_object, is_pointer
from jdml._paths import expand_user
from jdml.data.csv_list import ENDINGS, read_table
from jdml.data.image_discovery import image_files, images_in, kinds, pluralize, subfolders, suffixes
from jdml.data.images import Readable
from jdml.data.listing import PARTS, Labelled, Listing, as_listing, data_folder, in_one_form
from jdml.data.rows import TABLES, Classes, images_of, of_table, open_tables


def read_folder(data_dir: str | Path | None) -> Listing:
    """Read a folder of classes, or of parts of such; or a list, tables, or what a user's own module has.

    A class is a folder with images at any depth. Where two folders or more are called like parts (``train/``, ``val/``,
    ``test/``, ``query/``, ``gallery/``), each of them holds classes; else half of the classes train.
    """
    root = data_folder("folder", data_dir)
    if root.suffix.lower() in ENDINGS and not root.is_dir():
        return read_table(root)
    if is_pointer(str(root)) and not root.exists():
        return read_pointer(str(root))
    if has_tables(root):
        tables = _tables(str(root))
        parts = {part: PARTS.get(part, part) for part in tables} if len(tables) > 1 else {"": ""}
        return _of_images((parts.get(part, ""), of) for part, of in tables.items())
    if not root.is_dir():
        raise FileNotFoundError(f"{root.absolute()} is not a folder of classes")
    others: Counter[str] = Counter()
    notes: list[str] = []
    rows: list[Labelled] = []
    for part, holder in _holders(root, others):
        classes = subfolders(holder)
        for place in classes:
            images, unread = image_files(place)
            others += unread
            if not images:
                also = f" (but {kinds(unread)})" if unread else ""
                raise ValueError(
                    f"{place}: expected images ({', '.join(sorted(suffixes()))}), found none{also}"
                )
            inner = sorted({image.relative_to(place).parts[0] for image in images})
            if len(inner) > 1 and all(image.parent != place for image in images):
                notes.append(
                    f"{place.name}/ is one class, with images in {inner[0]}/, {inner[1]}/: if each of these is a "
                    "class or a part, move it up, or give a .csv file of file,label,split"
                )
            label = in_one_form(place.name)
            rows += [Labelled(file, label, part, str(file), file.name) for file in images]
        loose = images_in(holder)
        if not classes:
            there = f", and {pluralize(loose, 'image', 'images')}" if loose else ""
            raise ValueError(f"{holder}: expected a folder for each class, found none{there}")
        if loose:
            lie = pluralize(loose, "image lies", "images lie")
            notes.append(f"{lie} beside the classes' folders, in none of them")
    return as_listing(rows, repeats=True, others=others, notes=notes)


def has_tables(root: Path) -> bool:
    """Whether a path is tables of rows; a folder that holds images, too, is a folder of these."""
    if root.is_file():
        return root.suffix.lower() in TABLES
    if any((root / note).is_file() for note in ("dataset_dict.json", "state.json")):
        return True
    return (
        root.is_dir()
        and bool([*root.glob("*.parquet"), *root.glob("*/*.parquet")])
        and not image_files(root)[0]
    )


@cache
def _tables(path: str) -> dict[str, tuple[Sequence[Any], Classes]]:
    """The images and classes of each part of tables; an image is called ``PATH[ROW]``, or ``PATH PART[ROW]``."""
    tables = open_tables(path)
    found: dict[str, tuple[Sequence[Any], Classes]] = {}
    for part, table in tables.items():
        rows, classes = of_table(table, f"{path} {part}" if len(tables) > 1 else path)
        found[part] = rows.files(), classes
    return found


@cache
def read_pointer(pointer: str) -> Listing:
    """Read what a name of a user's module stands for; modules are looked for in the working directory, too."""
    made = import_user_object(pointer)
    made = call_user_object(pointer, made) if callable(made) else made
    if not isinstance(made, Mapping):
        return _of_images([("", images_of(made, pointer))])
    if not made:
        raise ValueError(f"{pointer} must have parts of {', '.join(PARTS)}, got none")
    unknown = next((part for part in made if part not in PARTS), None)
    if unknown is not None:
        raise ValueError(f"{pointer} must have parts of {', '.join(PARTS)}, got {unknown!r}")
    return _of_images(
        (PARTS[part], images_of(of, f"{pointer} {part}")) for part, of in made.items()
    )


def row_named(name: str) -> Readable | None:
    """The image of a table that is called ``PATH[ROW]`` or ``PATH PART[ROW]``; None for any other name."""
    called = re.fullmatch(r"(.+?)(?: (\w+))?\[(\d+)\]", name)
    if not called or not has_tables(expand_user(called[1])):
        return None
    files = _tables(called[1]).get(called[2] or "", ([], None))[0]
    if int(called[3]) >= len(files):
        raise ValueError(f"{name}: there are {len(files)} rows, from 0")
    row: Readable = files[int(called[3])]
    return row


@cache
def _rows_of(pointer: str) -> dict[str, Readable]:
    return {str(file): file for file in read_pointer(pointer).files}


def image_named(name: str) -> Readable:
    """The image that a name stands for: a row of a table, ``FILE[ROW]``, one of ``module:name``, or a file."""
    row = row_named(name)
    if row is not None:
        return row
    pointer = re.split(r"[ \[]", name, maxsplit=1)[0]
    if not name.endswith("]") or not is_pointer(pointer):
        return Path(name)
    found = _rows_of(pointer).get(name)
    if found is None:
        raise ValueError(f"{name}: {pointer} has no such row")
    return found


def _of_images(parts: Iterable[tuple[str, tuple[Sequence[Any], Classes]]]) -> Listing:
    """A listing of images that are no files of their own; classes are called by their names, or their numbers."""
    rows = []
    for part, (files, (numbers, known)) in parts:
        labels = numbers.tolist()
        if numbers.dtype.kind == "i" and numbers.min() < 0:
            row = int(numbers.argmin())
            raise ValueError(f"{files[row]}: label must be at least 0, got {labels[row]}")
        names = labels if known is None else [known[label] for label in labels]
        rows += [
            Labelled(file, in_one_form(str(name)), part, str(file), str(file))
            for file, name in zip(files, names, strict=True)
        ]
    return as_listing(rows, repeats=False)


def _holders(root: Path, others: Counter[str]) -> list[tuple[str, Path]]:
    """The folders that hold classes, each with the part that it is, or ``""``."""
    places = subfolders(root)
    parts = {place: PARTS[place.name.lower()] for place in places if place.name.lower() in PARTS}
    if len(set(parts.values())) < 2:
        if len(places) == 1 and subfolders(places[0]) and not images_in(places[0]):
            raise ValueError(
                f"{root} holds one folder, {places[0].name}/, which holds folders itself: give {places[0]}, whose "
                "classes are then split, or put other classes or parts (train/, test/) beside it"
            )
        for place in places:
            like_a_part = {word for word in re.split(r"[\W_]+", place.name.lower())} & PARTS.keys()
            inner = subfolders(place)
            holds_parts = sum(each.name.lower() in PARTS for each in inner) > 1
            # Only folders called like parts are looked into: reading comes later, once.
            if (like_a_part or holds_parts) and any(image_files(each)[0] for each in inner):
                raise ValueError(
                    f"{place} looks like a part, or holds parts ({', '.join(x.name for x in inner[:3])}), and is "
                    "not one of several parts: say which file is of which class and part in a .csv of file,label,split"
                )
        return [("", root)]
    for place in places:
        if place not in parts:
            images, unread = image_files(place)
            others += unread
            if images:
                raise ValueError(
                    f"{root} holds the parts {', '.join(f'{each.name}/' for each in parts)} and {place.name}/, which "
                    "is none: move it away, or say which is which in a .csv file of file,label,split"
                )
    return [(part, place) for place, part in parts.items()]


def check_apart(name: str, folder: Path, root: Path) -> None:
    """Refuse a folder among classes, as one of which it would be read the next time."""
    inside, around = (expand_user(place).absolute().resolve() for place in (folder, root))
    if not around.is_dir() or not inside.is_relative_to(around):
        return
    names = [place.name for place in subfolders(around)]
    parts = {name: PARTS[name.lower()] for name in names if name.lower() in PARTS}
    first = next(iter(inside.relative_to(around).parts), None)
    if len(set(parts.values())) < 2 or first in {None, *parts}:
        raise ValueError(
            f"{name} must not lie among the images in {root}, where it would be read as a class, got {folder}"
        )
