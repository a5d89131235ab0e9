"""A list of image files and their labels."""

import csv
import io
import os
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from jdml.data.listing import PARTS, LabelledFile, Listing, as_listing, normalized, read_text

SEPARATORS = ",;\t"
ENDINGS = (".csv", ".tsv")


def read_table(path: Path, column: str | None = None) -> Listing:
    """Read a list of files and their labels: ``file,label`` or ``file,label,split``, named in its first line.

    A list with one more column, which is named, may have others.
    """
    rows = []
    known = ("file", "label", "split") if column is None else None
    for where, row in _read_rows(path, ("file", "label"), known):
        split = row.get("split", "").strip().lower()
        if split not in PARTS and "split" in row:
            raise ValueError(
                f"{where}: split must be train, val or test, got {split!r} (or query and gallery for test)"
            )
        file, label = _find_file(path.parent, row["file"]), normalized(row["label"].strip())
        if label == "-1":
            raise ValueError(
                f"{where}: label must be a class, got -1, which is none: leave the row out"
            )
        rows.append(LabelledFile(file, label, PARTS.get(split, ""), where, row["file"].strip()))
    if not rows:
        raise ValueError(f"{path}: expected at least one image, got none")
    return as_listing(rows, repeats=False)


def read_column(path: Path, column: str) -> dict[str, str]:
    """Read one more column of a list by file, such as the camera that took the images."""
    column = column.lower()
    return {
        str(_find_file(path.parent, row["file"]).absolute()): row[column].strip()
        for _, row in _read_rows(path, ("file", column))
    }


def has_column(path: Path, column: str) -> bool:
    """Return whether a list has a column of this name."""
    if path.suffix.lower() not in ENDINGS or not path.is_file():
        return False
    names = next(_read_records(path), (1, []))[1]
    return column.lower() in [name.strip().lower() for name in names]


def _read_rows(
    path: Path, needed: tuple[str, ...], known: tuple[str, ...] | None = None
) -> Iterator[tuple[str, dict[str, str]]]:
    """Return each row by the names of its columns, in lower case, and where it stands (``file:line``)."""
    records = _read_records(path)
    number, names = next(records, (1, []))
    header = [name.strip().lower() for name in names]
    if not set(needed) <= set(header) or set(header) - {*(known or header)}:
        expected = ",".join(needed)
        raise ValueError(f"{path}:{number}: expected {expected}, got {','.join(names)!r}")
    for number, values in records:
        row = dict(zip(header, values, strict=False))
        empty = any(not row.get(name, "").strip() for name in known or needed if name in header)
        if len(values) != len(header) or empty:
            raise ValueError(
                f"{path}:{number}: expected {','.join(header)}, got {','.join(values)!r}"
            )
        yield f"{path}:{number}", row


def _read_records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Return the records of a table that are not empty, with the number of their first line."""
    text = read_text(path)
    first = next((line for line in text.split("\n") if line.strip()), "")
    names_separator = first.lower().startswith("sep=")  # as Excel writes it
    separator = first[4:5] if names_separator else max(SEPARATORS, key=first.count)
    reader = csv.reader(io.StringIO(text, newline="\n"), delimiter=separator, strict=True)
    before = 0
    try:
        for values in reader:
            number, before = before + 1, reader.line_num
            if names_separator and any(values):
                names_separator = False
            elif any(value.strip() for value in values):
                yield number, values
    except csv.Error as error:
        raise ValueError(f"{path}:{before + 1}: expected text with commas: {error}") from error


def _find_file(folder: Path, name: str) -> Path:
    """Return a file of a list; if it does not exist, try it without spaces, and as other systems write its name."""
    if name != name.strip() and os.path.isfile(folder / name):
        return folder / name
    name = name.strip()
    path = folder / (os.path.expanduser(name) if name.startswith("~") else name)
    if os.path.isfile(path):
        return path
    others = [unicodedata.normalize(form, name) for form in ("NFC", "NFD")]
    others.append(name.replace("\\", "/"))
    return next((folder / other for other in others if (folder / other).is_file()), path)
