"""Paths of files on this machine, and checks before they are read or written."""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

SPARE = 1 << 20
"""Bytes that files need beside their arrays."""


def expand_user(place: str | os.PathLike[str]) -> Path:
    """Return a path with ``~`` as the user's home."""
    return Path(os.path.expanduser(place))


def read_bytes(file: Path) -> bytes:
    """Return the bytes of a file; refuse a device or a pipe, which may have no end."""
    if file.exists() and not file.is_file():
        raise ValueError(f"{file} is not a file")
    return file.read_bytes()


def check_disk_space(folder: Path, needed: int) -> None:
    """Refuse to write bytes that a folder's disk has no room for: a mapped file on a full disk ends the process."""
    if shutil.disk_usage(folder).free < needed + SPARE:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def check_local(name: str, place: object) -> None:
    """Refuse an address: ``Path("s3://bucket/run")`` is the folder ``s3:`` of where one happens to be."""
    if not isinstance(place, str | os.PathLike):
        return
    text = os.fspath(place)
    if not isinstance(text, str):
        return
    if not text:
        raise ValueError(f"{name} must be a path, got ''")
    # A path has one slash left of two; in text one slash is that of NAME:FOLDER.
    mark = ":/" if isinstance(place, PurePath) else "://"
    scheme, found, rest = text.partition(mark)
    if not found or len(scheme) < 2 or "/" in scheme or "\\" in scheme:
        return
    address = text if mark == "://" else f"{scheme}://{rest}"
    if scheme.lower() == "file":
        raise ValueError(f"{name} must be a path, got {address}: write /{rest.lstrip('/')}")
    raise ValueError(
        f"{name} must be a path of this machine, got the address {address}: mount it, or copy to and from a local "
        "folder"
    )


def json_of(text: str | bytes, where: object, kind: type = object) -> Any:
    """Parse the JSON of a file ``where``, an object (``kind`` dict), an array (list) or anything."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not valid JSON: {error}") from error
    if not isinstance(value, kind):
        wanted = "an array" if kind is list else "an object"
        raise ValueError(f"{where} must hold JSON, {wanted}, got {json.dumps(value)[:40]}")
    return value


@contextmanager
def wrap_read_errors(where: object, writer: str = "jdml") -> Iterator[None]:
    """Raise a ValueError that a file is not what its writer writes, in place of what reading it raises."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(
            f"{where} is not what {writer} writes ({type(error).__name__}: {error})"
        ) from error


def check_file(name: str, file: Path, endings: tuple[str, ...]) -> None:
    """Refuse a file that cannot be written, or has another ending, before any work."""
    if file.suffix not in endings:
        raise ValueError(f"{name} must end in {' or '.join(endings)}, got {file}")
    if file.is_dir():
        raise ValueError(f"{name} must be a file, {file} is a folder")
    if not file.parent.is_dir():
        raise ValueError(f"{name} must lie in a folder that exists, got {file}")
    if not os.access(file.parent, os.W_OK):
        raise ValueError(
            f"{name} must lie in a folder that may be written: no permission for {file.parent}"
        )


def check_folder(name: str, folder: Path) -> None:
    """Refuse a folder that cannot be made or written into, before hours of work."""
    place = expand_user(folder).absolute()
    if place.exists() and not place.is_dir():
        raise ValueError(f"{name} must be a folder, {folder} is a file")
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise ValueError(f"{name} must be a folder, {place} in it is a file")
    if not os.access(place, os.W_OK):
        raise ValueError(f"{name} must be a folder that may be written: no permission for {place}")
