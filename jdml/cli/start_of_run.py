"""How a run was started: the command that repeats it, and which images and weights it began with."""

import dataclasses
import hashlib
import shlex
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jdml.registry.places import at_home
from jdml.registry.pointers import is_pointer

if TYPE_CHECKING:
    from jdml.data import Dataset


def words_of(options: Any, *, without: Sequence[str] = ()) -> list[str]:
    """Turn options into the words of a command line, those at their defaults left out.

    Args:
        options: a command's dataclass.
        without: fields that are left out, too.

    Returns:
        The words.

    Example:
        >>> from jdml.cli.train import Train
        >>> words_of(Train(loss="triplet", lr=1e-4, quiet=True))
        ['--loss', 'triplet', '--lr', '0.0001', '--quiet']
    """
    words: list[str] = []
    for field in dataclasses.fields(options):
        value, default = getattr(options, field.name), field.default
        if value == default or field.name in without:
            continue
        name = f"--{field.name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(name if value else name.replace("--", "--no-", 1))
        elif isinstance(value, list | tuple):
            words += [name, *map(str, value)]
        else:
            words += [name, str(value)]
    return words


def started(command: str, options: Any) -> dict[str, Any]:
    """Say how a run was started: the command that repeats it, and where its images lay.

    Args:
        command: such as ``jdml train``.
        options: its dataclass.

    Returns:
        JSON-able ``command`` and ``data_dir``.
    """
    folder = options.data_dir
    if folder is not None and not is_pointer(str(folder)):
        folder = at_home(folder).absolute()
    return {
        "command": shlex.join([*command.split(), *words_of(options)]),
        "data_dir": None if folder is None else str(folder),
    }


def file_digest(path: Path) -> str:
    """What a file holds."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def data_checksum(dataset: "Dataset") -> int:
    """Which images these are, wherever their folder lies: their pixels, or the names of their files, and the labels."""
    from jdml.data import ImageFiles
    from jdml.data.lists import images_checksum

    if isinstance(dataset.images, ImageFiles):
        return images_checksum(dataset.images.files, dataset.labels)
    content = np.ascontiguousarray(dataset.images).tobytes()
    return zlib.crc32(np.asarray(dataset.labels, np.int64).tobytes(), zlib.crc32(content))
