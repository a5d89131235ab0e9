"""The provenance of a run: the command that repeats it, and its images and weights."""

import shlex
import zlib
from typing import Any

import numpy as np

from jdml._import_path import is_pointer
from jdml._paths import expand_user
from jdml.cli.options.reading import to_argv
from jdml.data import Dataset, ImageFiles
from jdml.data.listing import images_checksum


def started(command: str, options: Any) -> dict[str, Any]:
    """Return the command that repeats a run, and where its images lay, as JSON has it."""
    folder = options.data.data_dir
    if folder is not None and not is_pointer(str(folder)):
        folder = expand_user(folder).absolute()
    return {
        "command": shlex.join([*command.split(), *to_argv(options)]),
        "data_dir": None if folder is None else str(folder),
    }


def data_checksum(dataset: "Dataset") -> int:
    """Return a checksum of the labels and of the pixels, or of the names of the files below their folder."""
    if isinstance(dataset.images, ImageFiles):
        return images_checksum(dataset.images.files, dataset.labels)
    content = np.ascontiguousarray(dataset.images).tobytes()
    return zlib.crc32(np.asarray(dataset.labels, np.int64).tobytes(), zlib.crc32(content))
