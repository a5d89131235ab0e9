"""What a run begins with: its images, and what they and its weights are in short, for a run that goes on."""

import hashlib
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from jdml.data import Dataset, ImageFiles, load


def load_split(name: str, data_dir: Path | None, split: str, **settings: Any) -> Dataset:
    """A split of a data set, which must have images: training takes hours, and scoring comes after it."""
    part = load(name, data_dir=data_dir, split=split, **settings)
    if not len(part):
        raise ValueError(f"{name}: the split {split!r} has no images in {data_dir}")
    return part


def file_digest(path: Path) -> str:
    """What a file holds."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def data_checksum(dataset: Dataset) -> int:
    """Which images these are, wherever their folder lies: their pixels, or the names of their files, and the labels."""
    if isinstance(dataset.images, ImageFiles):
        names = ["/".join(str(file).split("/")[-2:]) for file in dataset.images.files]
        content = "\n".join(names).encode()
    else:
        content = np.ascontiguousarray(dataset.images).tobytes()
    return zlib.crc32(np.asarray(dataset.labels, np.int64).tobytes(), zlib.crc32(content))
