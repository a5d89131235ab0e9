"""Copies of image data sets that TensorFlow Datasets has prepared as array_record."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jdml.registry.extras import need


@dataclass(frozen=True)
class Record:
    """One image of a prepared data set.

    Attributes:
        source: the data source, with images left as they were stored.
        row: its row there.
        name: what to call it in messages.
    """

    source: Any
    row: int
    name: str

    def read_bytes(self) -> bytes:
        """The image file."""
        return self.source[self.row]["image"]

    def __str__(self) -> str:
        """``NAME SPLIT[ROW]``."""
        return self.name


def prepared(folder: Path, name: str) -> bool:
    """Whether the folder holds a copy of ``name`` that TensorFlow Datasets prepared."""
    return any(folder.glob(f"{name}/*/dataset_info.json"))


def read_prepared(
    folder: Path, name: str, views: Mapping[str, str]
) -> tuple[list[Record], dict[str, np.ndarray], dict[str, dict[int, str]]]:
    """All images of the splits ``train`` and ``test``, undecoded, and their labels.

    Args:
        folder: the ``data_dir`` of tfds.
        name: the data set's name there.
        views: for each view, the feature that holds it.

    Returns:
        The records; for each view its labels ``[N]``, and for ``split`` the name of each record's split;
        the classes' names for each view, numbered from 0.

    Raises:
        ValueError: if the copy was prepared in another format than array_record.
    """
    need("tensorflow_datasets", "what TensorFlow Datasets prepared")
    import tensorflow_datasets as tfds

    versions = [path.parent for path in folder.glob(f"{name}/*/dataset_info.json")]
    newest = max(versions, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)])
    builder = tfds.builder_from_directory(str(newest))
    skip = tfds.decode.SkipDecoding()
    features = builder.info.features
    skipped = {key: skip for key, kind in features.items() if isinstance(kind, tfds.features.Image)}
    records: list[Record] = []
    columns: dict[str, list[Any]] = {view: [] for view in (*views, "split")}
    for split in ("train", "test"):
        try:
            source = builder.as_data_source(split=split, decoders=skipped)
        except NotImplementedError as error:
            raise ValueError(
                f"{newest} must be prepared as array_record, which can be read at any place: "
                f"tfds.builder({name!r}, file_format='array_record')"
            ) from error
        for row, values in enumerate(source):
            records.append(Record(source, row, f"{name} {split}[{row}]"))
            columns["split"].append(split)
            for view, feature in views.items():
                columns[view].append(values[feature])
    names = {view: dict(enumerate(features[feature].names)) for view, feature in views.items()}
    return records, {view: np.array(values) for view, values in columns.items()}, names
