"""Where files are read and written: paths of this machine, and nothing that only looks like one."""

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
    """A path, ``~`` as the user's home; where there is no such user, as it is."""
    return Path(os.path.expanduser(place))


def read_bytes(file: Path) -> bytes:
    """The bytes of a file; of a device or a pipe, which may have no end, none.

    Raises:
        ValueError: it is there, and no file.
        FileNotFoundError: it is not there.
    """
    if file.exists() and not file.is_file():
        raise ValueError(f"{file} is not a file")
    return file.read_bytes()


def check_disk_space(folder: Path, needed: int) -> None:
    """Refuse to write bytes that a folder's disk has no room for, before any is written.

    A process that writes to a mapped file on a full disk is ended by the system, without a word.

    Args:
        folder: which is there.
        needed: how many.

    Raises:
        OSError: as the system has it, naming the folder.
    """
    if shutil.disk_usage(folder).free < needed + SPARE:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def check_local(name: str, place: object) -> None:
    """Refuse an address: ``Path("s3://bucket/run")`` is the folder ``s3:`` of where one happens to be.

    Args:
        name: what the place is called in the message.
        place: a path, or text; anything else is no address.

    Raises:
        ValueError: an address, such as ``s3://bucket/run``, naming it and what to write; or no text at all.

    Example:
        >>> check_local("out_dir", "runs/photos")
        >>> check_local("out_dir", "gs://bucket/run")
        Traceback (most recent call last):
        ...
        ValueError: out_dir must be a path of this machine, got the address gs://bucket/run: mount it, or copy to and \
from a local folder
    """
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
    """Parse JSON that a file holds.

    Args:
        text: the JSON.
        where: what the message names: the file.
        kind: what it must be: ``dict``, of an object; ``list``, of an array.

    Raises:
        ValueError: naming the file, if it is no JSON, nested without end, or of another kind.

    Example:
        >>> json_of('{"a": 1}', "config.json")
        {'a': 1}
        >>> json_of("[1]", "config.json", dict)
        Traceback (most recent call last):
        ...
        ValueError: config.json must hold JSON, an object, got [1]
    """
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
    """Tell that a file is not what its writer writes, whatever reading it stumbles over.

    Args:
        where: what the message names: the file, or its folder.
        writer: the program that writes such files.

    Raises:
        ValueError: in place of what JSON of another form leads to.

    Example:
        >>> with wrap_read_errors("config.json"):
        ...     {"seed": 0}["step"]
        Traceback (most recent call last):
        ...
        ValueError: config.json is not what jdml writes (KeyError: 'step')
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(
            f"{where} is not what {writer} writes ({type(error).__name__}: {error})"
        ) from error


def check_file(name: str, file: Path, endings: tuple[str, ...]) -> None:
    """Refuse a file that cannot be written, before any work.

    Args:
        name: what the file is called in the message.
        file: the file.
        endings: with which its name may end.

    Raises:
        ValueError: another ending, a folder, or a folder above that is not there or may not be written.

    Example:
        >>> check_file("out", Path("report.txt"), (".html", ".htm"))
        Traceback (most recent call last):
        ...
        ValueError: out must end in .html or .htm, got report.txt
    """
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
    """Refuse a folder that cannot be made or written into, before hours of work.

    Args:
        name: what the folder is called in the message.
        folder: the folder, which need not be there.

    Raises:
        ValueError: a path that is a file, or lies in one, or that may not be written.

    Example:
        >>> check_folder("out", Path("runs/photos"))
    """
    place = expand_user(folder).absolute()
    if place.exists() and not place.is_dir():
        raise ValueError(f"{name} must be a folder, {folder} is a file")
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise ValueError(f"{name} must be a folder, {place} in it is a file")
    if not os.access(place, os.W_OK):
        raise ValueError(f"{name} must be a folder that may be written: no permission for {place}")
