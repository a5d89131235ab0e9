"""Images that lie in tables, Parquet files or what Hugging Face's ``datasets`` saved: rows are read when asked for."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jdml._paths import json_of, wrap_read_errors
from jdml.data.images import Readable, Row
from jdml.data.labelled import PARTS
from jdml.data.tables import HELD, Column, Table, open_table

TABLES = (".arrow", ".parquet")
"""Endings of such files."""
SAVER = "Hugging Face's save_to_disk"
_INDEX = re.compile(r"__index_level_\d+__")
"""What pandas writes of the numbers of rows."""
LARGE = 1 << 26
"""Bytes of a row group beyond which reading any row is slow, where not all groups are kept."""
_log = logging.getLogger(__name__)


class Classes(NamedTuple):
    """The classes of rows.

    Attributes:
        labels: ``[N]``, numbers or names.
        names: of the numbers, where they have names.
    """

    labels: np.ndarray
    names: tuple[str, ...] | None = None


class Images(NamedTuple):
    """Images and their classes.

    Attributes:
        files: what to read.
        labels: ``[N]``, numbers or names of classes.
        names: of the numbers, where they have names.
    """

    files: Sequence[Readable]
    labels: np.ndarray
    names: tuple[str, ...] | None = None


def read_columns(
    files: Sequence[Path], image: str | None = None, label: str | None = None
) -> Images:
    """Read the labels of tables; of the images no more than how many there are.

    Args:
        files: tables, Parquet or Arrow.
        image: the column of the images, as bytes or as Hugging Face has them. None: ``image``, else the only one.
        label: the column of the labels, integers, ``ClassLabel`` or strings. None: ``label``, else the only
            ``ClassLabel``, else the only column of integers or strings.

    Returns:
        The rows of all files in their order.

    Raises:
        MissingLibraryError: pyarrow is not installed.
        TypeError: a column of another kind; labels of two kinds.
        ValueError: no such column, naming those there are; no row; a row without a label; a file that is damaged.
    """
    tables = [table for table in map(open_table, files) if len(table)]
    if not tables:
        raise ValueError(f"{files[0]} must hold at least one row, got none")
    rows: list[Readable] = []
    labels: list[np.ndarray] = []
    names: dict[tuple[str, ...] | None, Path] = {}
    for table in tables:
        column = Column(table, image_column(table, image))
        rows += [Row(column, number) for number in range(len(table))]
        chosen = label_column(table, column.name, label)
        own = table.class_names(chosen)
        labels.append(labels_of(str(table.file), chosen, table.read(chosen), own))
        names[own] = table.file
    if len({own.dtype.kind == "U" for own in labels}) > 1:
        raise TypeError(
            f"{files[0]} and others must hold labels of one kind, got integers and strings"
        )
    if len(names) > 1:
        one, other = list(names.values())[:2]
        raise ValueError(f"{one} and {other} name their classes differently")
    _tell_large(tables, sum(table.size for table in tables))
    return Images(rows, np.concatenate(labels), next(iter(names)))


def tables_in(path: Path) -> list[tuple[str, Path]]:
    """The tables that a path stands for, each with its part of the data.

    Args:
        path: a Parquet or Arrow file; a folder of Parquet files, named after parts (``train-00000-of-00002.parquet``)
            or in folders that are, perhaps in ``data/``, as Hugging Face's hub has them; or what ``save_to_disk``
            wrote.

    Returns:
        Parts, ``""`` where there is one alone, and files; nothing for any other path.

    Raises:
        ValueError: files that are named after no part beside some that are.
    """
    if path.suffix.lower() in TABLES and path.is_file():
        return [("", path)]
    if not path.is_dir():
        return []
    if (path / "dataset_dict.json").is_file():
        with wrap_read_errors(path / "dataset_dict.json", SAVER):
            splits = [str(split) for split in _json(path / "dataset_dict.json")["splits"]]
        found = [(split, file) for split in splits for file in _saved(path / split)]
    elif (path / "state.json").is_file():
        found = [("", file) for file in _saved(path)]
    else:
        inside = (path, path / "data", *(path / part for part in PARTS))
        files = [file for place in inside for file in sorted(place.glob("*.parquet"))]
        found = [(_called(file), file) for file in files]
    parts = [(PARTS.get(part, ""), file) for part, file in found]
    if len({part for part, _ in parts}) < 2:
        return [("", file) for _, file in parts]
    unknown = next((file for part, file in parts if not part), None)
    if unknown is not None:
        raise ValueError(f"{unknown} is named after none of {', '.join(PARTS)}, others are")
    return parts


def row_named(name: str) -> Row | None:
    """The image of a table that is called ``FILE[ROW]``; None for any other name, and where there is no such file."""
    called = re.fullmatch(r"(.+)\[(\d+)\]", name)
    if not called or not called[1].lower().endswith(TABLES) or not Path(called[1]).is_file():
        return None
    table = open_table(Path(called[1]))
    return Row(Column(table, image_column(table, None)), int(called[2]))


def image_column(table: Table, wanted: str | None) -> str:
    """The column of the images."""
    kinds = {field.name: field.type for field in table.schema}
    if wanted is None:
        several = [name for name, kind in kinds.items() if _holds_images(kind)]
        wanted = several[0] if len(several) == 1 and "image" not in several else "image"
    if wanted not in kinds:
        raise ValueError(f"{table.file} has no column {wanted!r}: it has {', '.join(kinds)}")
    if not _holds_images(kinds[wanted]):
        raise TypeError(
            f"{table.file}: the column {wanted!r} must hold images as bytes, or as Hugging Face's struct of bytes and "
            f"path, got {kinds[wanted]}"
        )
    return wanted


def label_column(table: Table, image: str, wanted: str | None) -> str:
    """The column of the labels."""
    kinds = {field.name: field.type for field in table.schema}
    if wanted is None and "label" not in kinds:
        named = [name for name in kinds if table.class_names(name)]
        plain = [
            name
            for name, kind in kinds.items()
            if name != image and _holds_labels(kind) and not _INDEX.fullmatch(name)
        ]
        wanted = next((some[0] for some in (named, plain) if len(some) == 1), None)
    wanted = wanted or "label"
    if wanted not in kinds:
        raise ValueError(
            f"{table.file} has no column {wanted!r}: it has {', '.join(kinds)} (label= of jdml.data.from_parquet "
            "names another)"
        )
    return wanted


def _holds_labels(kind: Any) -> bool:
    """Whether a column is of integers or of text, however that is kept."""
    import pyarrow.types as types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind)


def labels_of(where: str, name: str, column: Any, names: Sequence[str] | None) -> np.ndarray:
    """A column of labels as numbers or names.

    Args:
        where: the file, for messages.
        name: the column's.
        column: a ``ChunkedArray`` of Arrow.
        names: of the numbers, where they have names.

    Returns:
        Integers or strings ``[N]``.

    Raises:
        TypeError: neither integers nor strings.
        ValueError: a row without a label, or with a number that has no name.
    """
    import pyarrow.types as types

    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise ValueError(f"{where}[{row}] has no {name}")
    if types.is_string(column.type) or types.is_large_string(column.type):
        words = np.array(column.to_pylist(), dtype=str)
        blank = np.strings.strip(words) == ""
        if blank.any():
            row = int(blank.argmax())
            raise ValueError(f"{where}[{row}] has no {name}: it is {str(words[row])!r}")
        return words
    if not types.is_integer(column.type):
        raise TypeError(
            f"{where}: the column {name!r} must hold integers, ClassLabel or strings, got {column.type}"
        )
    labels: np.ndarray = column.to_numpy()
    if names is not None and len(labels) and not 0 <= labels.min() <= labels.max() < len(names):
        row = int(np.argmax((labels < 0) | (labels >= len(names))))
        raise ValueError(f"{where}[{row}] has the {name} {labels[row]}, which is no class")
    return labels


def _holds_images(kind: Any) -> bool:
    import pyarrow.types as types

    if types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _tell_large(tables: Sequence[Table], size: int) -> None:
    """Say how a file is made that can be read in any order, where it cannot."""
    slow = next((table for table in tables if table.largest > LARGE), None)
    if slow is not None and size > HELD:
        _log.warning(
            "%s has row groups of %.0f MB, one of which is read for an image: write it anew in groups of a hundred "
            "rows (pyarrow.parquet.write_table(table, file, row_group_size=100))",
            slow.file,
            slow.largest / 1e6,
        )


def _saved(folder: Path) -> list[Path]:
    """The files that ``save_to_disk`` wrote."""
    with wrap_read_errors(folder / "state.json", SAVER):
        return [folder / each["filename"] for each in _json(folder / "state.json")["_data_files"]]


def _json(file: Path) -> Any:
    try:
        return json_of(file.read_bytes(), file, dict)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is not what {SAVER} writes: {error}") from error


def _called(file: Path) -> str:
    """The part that a file is named after, by itself or by its folder."""
    word = re.match("[a-z]*", file.name.lower())
    own = word[0] if word else ""
    return own if own in PARTS else file.parent.name.lower()
