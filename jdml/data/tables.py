"""Opened Parquet and Arrow files: their columns, and the row groups that were read last."""

from collections import OrderedDict
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from jdml._optional_imports import require_package
from jdml._paths import json_of, read_bytes, wrap_read_errors

HELD = 1 << 30
"""Bytes of row groups that a process keeps."""


class Table:
    """A Parquet or Arrow file: its columns, and any of its row groups.

    Attributes:
        file: where it lies.
        schema: of Arrow.
        size: bytes of what is not kept on disk; 0 of an Arrow file, which the system maps.
        largest: those of the largest row group.
    """

    def __init__(self, file: Path) -> None:
        """Open it; no row is read."""
        require_package("pyarrow", f"reading {file}")
        import pyarrow as pa

        self.file = file
        self.size = self.largest = 0
        self._batches: Any = None
        try:
            rows = self._open_parquet() if file.suffix.lower() == ".parquet" else self._open_arrow()
        except (OSError, pa.ArrowException) as error:
            raise ValueError(f"{file} is not a readable {file.suffix} file: {error}") from error
        self.ends = np.cumsum([0, *rows])

    def __reduce__(self) -> Any:
        """Another process opens it again."""
        return open_table, (self.file,)

    def __len__(self) -> int:
        """Number of rows."""
        return int(self.ends[-1])

    def _open_parquet(self) -> list[int]:
        from pyarrow import parquet

        opened = parquet.ParquetFile(self.file)
        self.schema, self._metadata = opened.schema_arrow, opened.metadata
        groups = [self._metadata.row_group(n) for n in range(self._metadata.num_row_groups)]
        sizes = [group.total_byte_size for group in groups]
        self.size, self.largest = sum(sizes), max(sizes, default=0)
        return [group.num_rows for group in groups]

    def _open_arrow(self) -> list[int]:
        import pyarrow as pa

        mapped = pa.memory_map(str(self.file))
        try:
            table = pa.ipc.open_stream(mapped).read_all()
        except pa.ArrowInvalid:
            table = pa.ipc.open_file(mapped).read_all()
        self.schema, self._batches = table.schema, table.to_batches()
        return [len(batch) for batch in self._batches]

    def read(self, column: str) -> Any:
        """A whole column, Arrow's ``ChunkedArray``."""
        import pyarrow as pa

        if self._batches is not None:
            kind = self.schema.field(column).type
            return pa.chunked_array([batch[column] for batch in self._batches], kind)
        from pyarrow import parquet

        with parquet.ParquetFile(self.file, metadata=self._metadata) as opened:
            return opened.read([column])[column]

    def group(self, number: int, column: str) -> Any:
        """A column of one row group."""
        if self._batches is not None:
            return self._batches[number][column]
        from pyarrow import parquet

        with parquet.ParquetFile(self.file, metadata=self._metadata) as opened:
            return opened.read_row_group(number, [column], use_threads=False)[column]

    def class_names(self, column: str) -> tuple[str, ...] | None:
        """The names of a column's numbers, where Hugging Face's ``ClassLabel`` has noted them."""
        noted = json_of((self.schema.metadata or {}).get(b"huggingface", b"{}"), self.file, dict)
        with wrap_read_errors(self.file, "Hugging Face's datasets"):
            feature = noted.get("info", {}).get("features", {}).get(column)
            names = feature.get("names") if isinstance(feature, Mapping) else None
            return None if names is None else tuple(names)


def open_table(file: Path) -> Table:
    """Open a file, once for as long as it stays as it is."""
    try:
        told = file.stat()
    except OSError as error:
        raise FileNotFoundError(f"{file} does not exist") from error
    return _opened(file.absolute(), told.st_mtime_ns, told.st_size)


@lru_cache(maxsize=4096)
def _opened(file: Path, changed: int, size: int) -> Table:
    return Table(file)


class Column:
    """The images of a table: ``column[row]`` are the bytes of one.

    Attributes:
        table: whose column it is.
        name: the column's.
    """

    def __init__(self, table: Table, name: str) -> None:
        self.table, self.name = table, name

    def __str__(self) -> str:
        """The file."""
        return str(self.table.file)

    def __getitem__(self, row: int) -> bytes:
        """The bytes of an image file.

        Raises:
            IndexError: there is no such row.
            ValueError: there is none in this row.
        """
        if row >= len(self.table):
            raise IndexError(f"there are {len(self.table)} rows, from 0")
        number = int(np.searchsorted(self.table.ends, row, "right")) - 1
        value = _kept(self.table, number, self.name)[row - int(self.table.ends[number])].as_py()
        content: bytes | None = unwrapped(value, self.table.file.parent)
        if content is None:
            raise ValueError("there is none in this row")
        return content


def unwrapped(value: Any, folder: Path = Path()) -> Any:
    """What is in Hugging Face's struct of an image, ``bytes`` or a ``path`` in a folder; anything else as it is."""
    if not isinstance(value, Mapping) or "bytes" not in value:
        return value
    content, place = value["bytes"], value.get("path")
    return read_bytes(folder / place) if content is None and place else content


class _Kept:
    """The row groups that were read last, ``HELD`` bytes of them at most, or one; each is read by one thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._gates: dict[Any, Lock] = {}
        self._groups: OrderedDict[Any, Any] = OrderedDict()
        self.held = 0

    def __call__(self, table: Table, number: int, column: str) -> Any:
        """A column of a row group."""
        if not table.size:  # the system keeps what it has mapped
            return table.group(number, column)
        key = table, number, column
        with self._lock:
            gate = self._gates.setdefault(key, Lock())
        with gate:
            with self._lock:
                if key in self._groups:
                    self._groups.move_to_end(key)
                    return self._groups[key]
            group = table.group(number, column)
            with self._lock:
                self._groups[key] = group
                self.held += group.nbytes
                while self.held > HELD and len(self._groups) > 1:
                    self.held -= self._groups.popitem(last=False)[1].nbytes
            return group


_kept = _Kept()
