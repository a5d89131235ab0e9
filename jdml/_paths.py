"""Paths of files on this machine, and checks before they are read or written."""

import contextlib
import errno
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import IO, Any

from jdml._optional_imports import require_package

SPARE = 1 << 20
"""Bytes that a disk needs besides those of the arrays."""


def expand_user(place: str | os.PathLike[str]) -> Path:
    """Return a path with ``~`` as the user's home."""
    return Path(os.path.expanduser(place))


def check_disk_space(folder: Path, needed: int) -> None:
    """Refuse to write bytes that do not fit on a folder's disk: a mapped file on a full disk ends the process."""
    if shutil.disk_usage(folder).free < needed + SPARE:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def check_local(name: str, place: object) -> None:
    """Refuse an address: ``Path("s3://bucket/run")`` would be the folder ``s3:`` in the working directory."""
    if place == "":
        raise ValueError(f"{name} must be a path, got ''")
    text = os.fspath(place) if isinstance(place, str | os.PathLike) else ""
    # A Path has one slash left of two; in text one slash is that of NAME:/FOLDER.
    slashes = "/" if isinstance(place, PurePath) else "//"
    if isinstance(text, str) and re.match(rf"\w[\w+.-]+:{slashes}", text):
        raise ValueError(f"{name} must be a path of this machine, got the address {text}")


def natural_key(name: str) -> tuple[list[str | int], str]:
    """Return a sort key by which numbers in names count as numbers."""
    words = re.split("([0-9]+)", name)
    return [int(word) if odd % 2 else word for odd, word in enumerate(words)], name


def json_of(text: str | bytes, where: object, kind: type = object) -> Any:
    """Parse the JSON of a file ``where``, an object (``kind`` dict), an array (list) or anything."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not valid JSON: {error}") from error
    if not isinstance(value, kind):
        expected = "an array" if kind is list else "an object"
        raise ValueError(f"{where} must hold JSON, {expected}, got {json.dumps(value)[:40]}")
    return value


@contextlib.contextmanager
def wrap_read_errors(where: object) -> Iterator[None]:
    """Raise a ValueError that names the file for errors of reading its content."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        kind = type(error).__name__
        raise ValueError(f"{where} is not what jdml writes ({kind}: {error})") from error


def check_file(name: str, file: Path, endings: tuple[str, ...]) -> None:
    """Refuse a file that cannot be written, or has another ending, before any work."""
    check_local(name, file)
    if file.suffix not in endings:
        known = " or ".join(", ".join(endings).rsplit(", ", 1))
        raise ValueError(f"{name} must end in {known}, got {file}")
    if file.is_dir() or not os.access(file.parent, os.W_OK):
        raise ValueError(f"{name} must be a file in a folder that may be written, got {file}")


def check_folder(name: str, folder: Path) -> None:
    """Refuse a folder that cannot be made or written, before any work."""
    check_local(name, folder)
    place = expand_user(folder).absolute()
    existing = next(path for path in (place, *place.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise ValueError(f"{name} must be a folder that may be written, got {folder}")


@contextlib.contextmanager
def atomic_write(path: Path, *, shared: bool = False) -> Iterator[IO[bytes]]:
    """Open a file that replaces ``path`` once it is complete; ``shared`` between processes that write it."""
    check_local("path", path)
    own = f".{uuid.uuid4().hex}" if shared else ""
    partial = path.with_name(f"{path.name}{own}.tmp")
    try:
        with with_filename(path), partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def lock_of(path: Path, *, needed: bool = True) -> Any:
    """Return a lock among processes that write a path; not ``needed``: none where ``filelock`` is not installed."""
    if not needed and find_spec("filelock") is None:
        return contextlib.nullcontext()
    require_package("filelock", "several processes that write one file")
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path.with_name(f".{path.name}.lock"), is_singleton=True)


@contextlib.contextmanager
def with_filename(path: Path) -> Iterator[None]:
    """Add the file's name to errors of the system, such as a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically; names of files that are not UTF-8 are escaped."""
    with atomic_write(path) as file:
        file.write(text.encode(errors="backslashreplace"))
