"""The images of a path: folders of classes, or parts (``train/``, ``test/``) of such; lists; tables; a user's rows."""

import csv
import io
import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from jdml._optional_imports import is_pointer, require_package
from jdml._paths import expand_user
from jdml.data.images import Readable
from jdml.data.listing import (
    PARTS,
    LabelledFile,
    Listing,
    as_listing,
    normalized,
    pluralize,
    read_text,
)
from jdml.data.rows import is_table, list_rows, open_tables, read_pointer

SEPARATORS = ",;\t"
ENDINGS = (".csv", ".tsv")
FORMATS = frozenset(
    "AVIF BMP DIB GIF HEIF JPEG JPEG2000 MPO PCX PNG PPM PSD QOI SGI TGA TIFF WEBP".split()
)
"""Pillow's formats of pictures."""
FOLDER, IMAGE, BROKEN_LINK = "folder", "image", "broken link"
"""Kinds of entries of a folder; other files are called by their suffix."""
UNREADABLE = frozenset(
    ".ai .arw .avif .avifs .cr2 .cr3 .dng .eps .exr .hdr .heic .heif .hif .j2c .j2k .jp2 .jpc .jpf .jpx .jxl .nef .orf "
    ".pef .pfm .psd .raf .rw2 .srw .svg .svgz .webp .xcf".split()
)
"""Suffixes of images that are not read, or not everywhere."""
SYSTEM_FOLDERS = ("$recycle.bin", "@eadir", "__macosx", "lost+found", "system volume information")
"""Folders that archives and file systems add."""


def read_folder(folder: Path, column: str | None = None) -> Listing:
    """Read a folder of classes, or of two parts or more; or a list, with a column of groups, tables, a user's rows."""
    if folder.suffix.lower() in ENDINGS and not folder.is_dir():
        return _read_list(folder, column)
    if is_pointer(str(folder)) and not folder.exists():
        return read_pointer(str(folder))
    if has_tables(folder):
        return list_rows(str(folder), open_tables([folder]))
    if not folder.is_dir():
        why = "is not a folder of classes" if folder.exists() else "does not exist"
        raise FileNotFoundError(f"{folder.absolute()} {why}")
    parts = _part_folders(folder)
    depth = 2 if parts else 1
    images, others = image_files(folder)
    rows: list[LabelledFile] = []
    inner: dict[Path, set[str]] = defaultdict(set)  # the folders within each class that hold images
    outside: Counter[str] = Counter()
    loose = 0
    for image in images:
        names = image.relative_to(folder).parts
        if parts and len(names) > 1 and names[0] not in parts:
            outside[names[0]] += 1
        elif len(names) <= depth:
            loose += 1
        else:
            below = names[depth] if len(names) > depth + 1 else ""
            inner[folder.joinpath(*names[:depth])].add(below)
            label, part = normalized(names[depth - 1]), parts.get(names[0], "")
            rows.append(LabelledFile(image, label, part, str(image)))
    notes = [
        f"{name}/ is not a part: its {pluralize(count, 'image is', 'images are')} left out"
        for name, count in outside.items()
    ]
    holders = [folder / name for name in parts] or [folder]
    for place in [place for holder in holders for place in subfolders(holder)]:
        nested = sorted(filter(None, inner.get(place, ())))
        like_a_part = PARTS.keys() & re.split(r"[\W_]+", place.name.lower())
        if nested and not parts and (like_a_part or _part_folders(place)):
            raise ValueError(
                f"{place} looks like a part, or holds parts ({', '.join(nested[:3])}), but {folder} has no other part: "
                "name file, label and split in a .csv file"
            )
        if place not in inner:
            notes.append(f"{place.name}/ has no images: it is not a class")
        elif len(nested) > 1 and "" not in inner[place]:
            notes.append(
                f"{place.name}/ is one class, with images in {nested[0]}/, {nested[1]}/: move them up if they are "
                "classes, or give a .csv file of file,label,split"
            )
    if loose:
        lie = pluralize(loose, "image lies", "images lie")
        notes.append(f"{lie} next to the classes' folders, in none of them")
    if not rows:
        raise ValueError(f"{folder}: expected a folder of images for each class, got none")
    has_unreadable = not {*UNREADABLE, BROKEN_LINK}.isdisjoint(others)
    notes += omission_notes(others)
    return as_listing(rows, notes, repeats=True, has_unreadable=has_unreadable)


def _part_folders(root: Path) -> dict[str, str]:
    """Return the names of folders that are called like parts, each with its part; none if there are not two parts."""
    names = [place.name for place in subfolders(root)]
    parts = {name: PARTS[name.lower()] for name in names if name.lower() in PARTS}
    return parts if len(set(parts.values())) > 1 else {}


def check_apart(name: str, folder: Path, root: Path) -> None:
    """Refuse a folder among classes, which would be read as a class the next time."""
    inside, around = (expand_user(place).absolute().resolve() for place in (folder, root))
    if not around.is_dir() or not inside.is_relative_to(around):
        return
    parts = _part_folders(around)
    if not parts or inside == around or any(inside.is_relative_to(around / part) for part in parts):
        raise ValueError(
            f"{name} must not lie among the images in {root}, where it would be read as a class, got {folder}"
        )


# The image files below a folder, found alike by every reader


@cache
def suffixes() -> frozenset[str]:
    """Return the suffixes of images that Pillow reads here, in lower case."""
    require_package("PIL", "a folder of images")
    from PIL import Image

    Image.init()
    readable = FORMATS & Image.OPEN.keys()
    known = {suffix for suffix, kind in Image.registered_extensions().items() if kind in readable}
    return frozenset(known - {".pfm"})  # whose pixels have no known range


def image_files(place: Path) -> tuple[list[Path], Counter[str]]:
    """Return the images of a folder, at any depth and through links, and the number of other files by suffix."""
    images: list[Path] = []
    others: Counter[str] = Counter()
    folders = [place]
    while folders:
        for path, kind in _entries(folders.pop()):
            if kind == FOLDER:
                folders.append(path)
            elif kind == IMAGE:
                images.append(path)
            else:
                others[kind] += 1
    return sorted(images, key=lambda path: path.parts), others


def subfolders(place: Path) -> list[Path]:
    """Return the folders in a folder that :func:`image_files` enters, by name."""
    return sorted(path for path, kind in _entries(place) if kind == FOLDER)


def _entries(place: Path) -> Iterator[tuple[Path, str]]:
    """Return what is in a folder, and its kind: links to folders and files, and only these, are looked up."""
    with os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name.lower() in SYSTEM_FOLDERS:
                continue
            path, is_link = Path(entry.path), entry.is_symlink()
            if os.path.isdir(path) if is_link else entry.is_dir():
                if not (is_link and _is_circle(path)):
                    yield path, FOLDER
            elif os.path.isfile(path) if is_link else entry.is_file():
                suffix = path.suffix.lower()
                yield path, IMAGE if suffix in suffixes() else suffix or "without a suffix"
            elif not os.path.exists(path):
                yield path, BROKEN_LINK


def _is_circle(link: Path) -> bool:
    """Return whether a link leads to a folder above it, whatever links lead there."""
    above = {Path(os.path.realpath(folder)) for folder in link.absolute().parents}
    return any(folder.is_relative_to(os.path.realpath(link)) for folder in above)


def omission_notes(others: Mapping[str, int]) -> tuple[str, ...]:
    """Return a line for images that are not read, and one for other files and broken links."""
    lost = {kind: others[kind] for kind in others if kind in UNREADABLE}
    rest = {kind: others[kind] for kind in others if kind not in lost}
    lines = [f"{count_by_suffix(rest)} left out"] if rest else []
    if lost:
        lines.insert(0, f"{count_by_suffix(lost)} left out: convert images to .jpg or .png")
    return tuple(lines)


def count_by_suffix(others: Mapping[str, int]) -> str:
    """Return the number of files, and of the most frequent suffixes."""
    common = Counter(others).most_common(3)
    listed = ", ".join(f"{count} {kind}" for kind, count in common)
    more = ", …" if len(others) > len(common) else ""
    return f"{pluralize(sum(others.values()), 'file', 'files')} of other kinds ({listed}{more})"


# A list of image files and their labels


def _read_list(path: Path, column: str | None) -> Listing:
    """Read a list with the columns file, label and perhaps split; with others only if it has that of the groups."""
    group = None if column is None else column.lower()
    rows = []
    for where, row in _read_rows(path, ["file", "label"], "split", group):
        split = row.get("split", "").strip().lower()
        if split not in PARTS and "split" in row:
            raise ValueError(
                f"{where}: split must be train, val or test, got {split!r} (or query and gallery for test)"
            )
        label = normalized(row["label"].strip())
        if label == "-1":
            raise ValueError(f"{where}: label must be a class, got -1: leave the row out")
        own = row[group].strip() if group in row else None
        file = _find_file(path.parent, row["file"])
        rows.append(LabelledFile(file, label, PARTS.get(split, ""), where, own))
    if not rows:
        raise ValueError(f"{path}: expected at least one image, got none")
    return as_listing(rows)


def read_column(path: Path, column: str, files: Iterable[str]) -> np.ndarray:
    """Return the values ``[N]`` that one more column of a list has for files, such as the camera that took them."""
    values = {
        str(_find_file(path.parent, row["file"]).absolute()): row[column.lower()].strip()
        for _, row in _read_rows(path, ["file", column.lower()])
    }
    missing = [file for file in files if file not in values]
    if missing:
        raise ValueError(f"{path} does not name {len(missing)} of the files: {missing[0]}")
    return np.array([values[file] for file in files])


def _read_rows(
    path: Path, needed: Sequence[str], optional: str | None = None, group: str | None = None
) -> Iterator[tuple[str, dict[str, str]]]:
    """Return where each row stands (``file:line``), and its values by column; see :func:`_read_list`."""
    text = read_text(path)
    first = next((line for line in text.split("\n") if line.strip()), "")
    separator = max(SEPARATORS, key=first.count)
    reader = csv.reader(io.StringIO(text, newline="\n"), delimiter=separator, strict=True)
    header: list[str] = []
    end = 0
    try:
        for values in reader:
            where, end = f"{path}:{end + 1}", reader.line_num
            if not any(value.strip() for value in values):
                continue
            if not header:
                header = [name.strip().lower() for name in values]
                known = {*needed, optional} if optional and group not in header else {*header}
                if not {*needed} <= {*header} <= known:
                    raise ValueError(
                        f"{where}: expected {','.join(needed)}, got {','.join(values)!r}"
                    )
                continue
            row = dict(zip(header, values, strict=False))
            filled = [row.get(n, "").strip() for n in (*needed, optional, group) if n in header]
            if len(values) != len(header) or not all(filled):
                raise ValueError(f"{where}: expected {','.join(header)}, got {values}")
            yield where, row
    except csv.Error as error:
        raise ValueError(f"{path}:{end + 1}: expected text with commas: {error}") from error
    if not header:
        raise ValueError(f"{path}:1: expected {','.join(needed)}, got ''")


def _find_file(folder: Path, name: str) -> Path:
    """Return a file of a list; if it does not exist, as other systems write its name."""
    name, short = (os.path.expanduser(each) for each in (name, name.strip()))
    others = [unicodedata.normalize(form, short) for form in ("NFC", "NFD")]
    places = [folder / each for each in (short, *others, short.replace("\\", "/"), name)]
    return next((place for place in places if place.is_file()), places[0])


# Tables of rows, and rows by name


def has_tables(root: Path) -> bool:
    """Return whether a path is tables of rows; a folder that also holds images is not."""
    return is_table(root) and (root.is_file() or not image_files(root)[0])


def row_named(name: str) -> Readable | None:
    """Return the row of a table or of a user's object, called ``PATH[ROW]`` or ``PATH PART[ROW]``, or None."""
    name = str(expand_user(name))
    match = re.fullmatch(r"(.+?)(?: \w+)?\[\d+\]", name)
    if not match or not (has_tables(Path(match[1])) or is_pointer(match[1])):
        return None
    rows = _rows_by_name(match[1])
    if name not in rows:
        raise ValueError(f"{name}: {match[1]} has no such row")
    return rows[name]


@cache
def _rows_by_name(source: str) -> dict[str, Readable]:
    return {str(file): file for file in read_folder(Path(source)).files}


def image_named(name: str) -> Readable:
    """Return the image of a name: a row, or a file."""
    return row_named(name) or Path(name)
