"""A list of image files and their labels."""

import csv
import io
import os
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

from jdml.data.listing import PARTS, Labelled, Listing, as_listing, in_one_form

COLUMNS = ("file", "label", "split")
SEPARATORS = ",;\t"
ENDINGS = (".csv", ".tsv")


def read_table(path: Path) -> Listing:
    """Read a list of files and their labels: ``file,label`` or ``file,label,split``, named in its first line."""
    header, lines = _headed(path, COLUMNS[:2], COLUMNS, "file,label or file,label,split")
    rows = [_row(path, number, header, values) for number, values in lines]
    if not rows:
        raise ValueError(f"{path}: expected at least one image, got none")
    return as_listing(rows, repeats=False)


def read_column(path: Path, column: str) -> dict[str, str]:
    """Read what a table says of its files in one more column, such as the camera that took them."""
    header, lines = _headed(path, ("file", column.lower()), None, f"file and {column}")
    rows: dict[str, str] = {}
    for number, values in lines:
        if len(values) != len(header):
            raise ValueError(
                f"{path}:{number}: expected {','.join(header)}, got {','.join(values)!r}"
            )
        row = dict(zip(header, values, strict=True))
        file, value = str(_file(path.parent, row["file"]).absolute()), row[column.lower()].strip()
        if not value:
            raise ValueError(f"{path}:{number}: {row['file']} has no {column}")
        if rows.setdefault(file, value) != value:
            raise ValueError(
                f"{path}:{number}: {row['file']} has {column} {value!r}, and {rows[file]!r} before"
            )
    return rows


def _headed(
    path: Path, needed: Sequence[str], known: Sequence[str] | None, expected: str
) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """The names of a table's columns, in lower case, and the lines below."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    lines = _records(path)
    number, names = next(lines, (1, []))
    header = [name.strip().lower() for name in names]
    if not set(needed) <= set(header) <= set(header if known is None else known):
        raise ValueError(f"{path}:{number}: expected {expected}, got {','.join(names)!r}")
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice:
        raise ValueError(f"{path}:{number}: the column {twice} is there twice")
    return header, lines


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The lines of a table that are not empty, with their numbers: of a record of several lines its first."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # line ends become \n
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected UTF-8 text with commas: {error}") from error
    first = next((line for line in text.split("\n") if line.strip()), "")
    told = first.lower().startswith("sep=")  # as Excel has it
    separator = first[4:5] if told else max(SEPARATORS, key=first.count)
    if separator not in tuple(SEPARATORS):
        raise ValueError(f"{path}: expected commas, semicolons or tabs, got {first!r}")
    reader = csv.reader(io.StringIO(text, newline="\n"), delimiter=separator, strict=True)
    before = 0
    try:
        for values in reader:
            number, before = before + 1, reader.line_num
            if told and any(values):
                told = False
            elif any(value.strip() for value in values):
                yield number, values
    except csv.Error as error:
        raise ValueError(
            f"{path}:{before + 1}: expected text with commas: {error} (a quotation mark that does not end?)"
        ) from error


def _row(path: Path, number: int, header: list[str], values: list[str]) -> Labelled:
    where = f"{path}:{number}"
    row = dict(zip(header, (value.strip() for value in values), strict=False))
    if len(values) != len(header) or not all(row.values()):
        raise ValueError(f"{where}: expected {','.join(header)}, got {','.join(values)!r}")
    split = row.get("split", "").lower()
    if split and split not in PARTS:
        raise ValueError(
            f"{where}: split must be train, val or test, got {split!r} (or query and gallery for test)"
        )
    file = _file(path.parent, values[header.index("file")])
    return Labelled(file, in_one_form(row["label"]), PARTS.get(split, ""), where, row["file"])


def _file(folder: Path, name: str) -> Path:
    """A file of a list; where it is not there, without spaces around, or as another system writes its name."""
    if name != name.strip() and os.path.isfile(folder / name):
        return folder / name
    name = name.strip()
    path = folder / (os.path.expanduser(name) if name.startswith("~") else name)
    if os.path.isfile(path):
        return path
    others = [unicodedata.normalize(form, name) for form in ("NFC", "NFD")]
    others.append(name.replace("\\", "/"))
    return next((folder / other for other in others if (folder / other).is_file()), path)
