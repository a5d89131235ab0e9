"""The provenance of a run: the command that repeats it, and its images and weights."""

import shlex
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from jdml.cli.options.parts import to_argv
from jdml.registry.places import at_home
from jdml.registry.pointers import is_pointer

if TYPE_CHECKING:
    from jdml.data import Dataset


def started(command: str, options: Any) -> dict[str, Any]:
    """Say how a run was started: the command that repeats it, and where its images lay.

    Args:
        command: such as ``jdml train``.
        options: its dataclass.

    Returns:
        JSON-able ``command`` and ``data_dir``.
    """
    folder = options.data.data_dir
    if folder is not None and not is_pointer(str(folder)):
        folder = at_home(folder).absolute()
    return {
        "command": shlex.join([*command.split(), *to_argv(options)]),
        "data_dir": None if folder is None else str(folder),
    }


def data_checksum(dataset: "Dataset") -> int:
    """Which images these are, wherever their folder lies: their pixels, or the names of their files, and the labels."""
    from jdml.data import ImageFiles
    from jdml.data.listing import images_checksum

    if isinstance(dataset.images, ImageFiles):
        return images_checksum(dataset.images.files, dataset.labels)
    content = np.ascontiguousarray(dataset.images).tobytes()
    return zlib.crc32(np.asarray(dataset.labels, np.int64).tobytes(), zlib.crc32(content))
