"""Copies of data sets that TensorFlow Datasets has prepared, read without TensorFlow."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jdml._optional_imports import MissingLibraryError, require_package
from jdml.data.images import Row
from jdml.registry import DATASETS

VERSION = re.compile(r"\d+(\.\d+)*")
"""What a whole copy's folder is called."""


@dataclass(frozen=True)
class Undecoded:
    """The images of a split as they were stored.

    Attributes:
        source: the rows, whose images are left undecoded.
        name: of data set and split.
    """

    source: Any
    name: str

    def __getitem__(self, row: int) -> bytes:
        content: bytes = self.source[row]["image"]
        return content

    def __str__(self) -> str:
        """``NAME SPLIT``."""
        return self.name


def prepared(folder: Path, name: str) -> Path | None:
    """Find the newest copy of a data set that TensorFlow Datasets prepared in a folder.

    Args:
        folder: the ``data_dir`` of tfds.
        name: the data set's name here.

    Returns:
        The folder of that version; None where there is none.
    """
    copies = [info.parent for info in folder.glob(f"{DATASETS[name].tfds}/*/dataset_info.json")]
    copies = [place for place in copies if VERSION.fullmatch(place.name) and _has_rows(place)]
    return max(copies, key=lambda place: [int(n) for n in place.name.split(".")], default=None)


def _has_rows(place: Path) -> bool:
    """Whether there is more than descriptions."""
    return any(file.suffix not in (".json", ".txt") for file in place.iterdir())


def open_prepared(folder: Path, name: str) -> Any:
    """Open the newest prepared copy.

    Args:
        folder: the ``data_dir`` of tfds, which holds a copy.
        name: the data set's name here.

    Returns:
        The builder of tfds, for :func:`rows_of`.
    """
    require_package("tensorflow_datasets", f"{name} as TensorFlow Datasets prepared it")
    import tensorflow_datasets as tfds

    place = prepared(folder, name)
    with _whole(place):
        builder = tfds.builder_from_directory(str(place))
    _check_format(builder)
    with _whole(place):
        for split in builder.info.splits.values():
            for file in map(Path, split.filepaths):
                if not file.is_file() or not file.stat().st_size:
                    raise ValueError(f"{file.name} is {'empty' if file.is_file() else 'missing'}")
    return builder


@contextlib.contextmanager
def _whole(place: Any) -> Iterator[None]:
    """Say of a damaged copy where it lies, whatever its readers raise."""
    try:
        yield
    except (MissingLibraryError, MemoryError):
        raise
    except Exception as error:  # whatever tfds and its readers raise
        if getattr(error, "errno", None) and not isinstance(error, FileNotFoundError):
            raise  # of the system: the copy may be whole
        told = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"{place} must be a whole copy as TensorFlow Datasets prepares it: {told}; move it away, and `jdml data "
            "get` prepares it anew"
        ) from error


def rows_of(builder: Any, split: str, decoders: Any = None) -> Sequence[Mapping[str, Any]]:
    """The rows of a split, read when they are asked for.

    Args:
        builder: of a prepared copy.
        split: its name.
        decoders: by feature, such as what leaves images as they were stored.

    Returns:
        For each row its features.

    Raises:
        ValueError: the copy has another format than array_record, parquet or tfrecord, or a file is damaged.
    """
    if _check_format(builder) & {"array_record", "parquet"}:
        with _whole(builder.data_dir):
            return _Rows(builder.as_data_source(split=split, decoders=decoders), builder.data_dir)
    files = map(Path, builder.info.splits[split].filepaths)
    places = [(file, *place) for file in files for place in _tfrecord_places(file)]
    return TfRecordRows(builder.info.features, decoders, places)


def _check_format(builder: Any) -> set[str]:
    """The formats of a copy, one of which can be read without TensorFlow."""
    formats = {kind.value for kind in builder.info.available_file_formats()}
    if not formats & {"array_record", "parquet", "tfrecord"}:
        raise ValueError(
            f"{builder.data_dir} must be prepared as array_record or tfrecord, got {', '.join(sorted(formats))}: "
            "move it away, and `jdml data get` prepares it anew"
        )
    return formats


@dataclass(frozen=True)
class _Rows(Sequence[Mapping[str, Any]]):
    """Rows of a source of tfds, of which a damaged one is told in words."""

    source: Any
    place: Any

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, row: Any) -> Any:
        if not 0 <= row < len(self):
            raise IndexError(row)
        with _whole(self.place):
            return self.source[row]


@dataclass(frozen=True)
class TfRecordRows(Sequence[Mapping[str, Any]]):
    """Rows of tfrecord files, any of which can be read.

    Attributes:
        features: of tfds, which know how a row is stored.
        decoders: by feature.
        places: file, offset and number of bytes of each row.
    """

    features: Any
    decoders: Any
    places: list[tuple[Path, int, int]]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, row: Any) -> Any:
        file, offset, size = self.places[row]
        with file.open("rb") as opened:
            opened.seek(offset)
            return self.features.deserialize_example_np(opened.read(size), decoders=self.decoders)


def _tfrecord_places(file: Path) -> Iterator[tuple[int, int]]:
    """Offset and number of bytes of each row: before it stand its length and a checksum, behind it a checksum."""
    end, offset = file.stat().st_size, 0
    with file.open("rb") as opened:
        while offset < end:
            opened.seek(offset)
            size = int.from_bytes(opened.read(8), "little")
            if offset + 16 + size > end:
                raise ValueError(f"{file}: expected whole rows, the last is cut off")
            yield offset + 12, size
            offset += 16 + size


def read_prepared(
    folder: Path, name: str, views: Mapping[str, str]
) -> tuple[list[Row], dict[str, np.ndarray], dict[str, dict[int, str]]]:
    """All images of the splits ``train`` and ``test``, undecoded, and their labels.

    Args:
        folder: the ``data_dir`` of tfds.
        name: the data set's name here.
        views: for each view, the feature that holds it.

    Returns:
        The records; for each view its labels ``[N]``, and for ``split`` the name of each record's split;
        the classes' names for each view, numbered from 0.

    Raises:
        ValueError: if the copy has a format that cannot be read.
    """
    builder = open_prepared(folder, name)
    import tensorflow_datasets as tfds

    skip = tfds.decode.SkipDecoding()
    features = builder.info.features
    skipped = {key: skip for key, kind in features.items() if isinstance(kind, tfds.features.Image)}
    records: list[Row] = []
    columns: dict[str, list[Any]] = {view: [] for view in (*views, "split")}
    for split in ("train", "test"):
        source = rows_of(builder, split, skipped)
        images = Undecoded(source, f"{builder.name} {split}")
        for row, values in enumerate(source):
            records.append(Row(images, row))
            columns["split"].append(split)
            for view, feature in views.items():
                columns[view].append(values[feature])
    names = {view: dict(enumerate(features[feature].names)) for view, feature in views.items()}
    return records, {view: np.array(values) for view, values in columns.items()}, names
