"""What a run begins with, images and weights, in short: a run that goes on begins with the same."""

import hashlib
import zlib
from pathlib import Path

import numpy as np

from jdml.data import Dataset, ImageFiles


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
