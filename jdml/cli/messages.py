"""Mistakes as the command line reports them: one line, with options as they are typed."""

import dataclasses
import errno
from typing import Any

from jdml._paths import check_local

OPTIONS = {
    "data_dir": "--data-dir",
    "miner": "--miner",
    "folder": "--out",
    "out_dir": "--out",
    "source": "SOURCE",
    "split": "--split",
    "view": "--labels",
}
"""Options of the arguments that messages name."""
TEXTS = ("coordinator", "set", "title")
"""Options that name no file."""
REASONS = {
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "no space left: the quota is used up",
    errno.EACCES: "no permission",
    errno.EPERM: "no permission",
    errno.EROFS: "the file system is read-only",
    errno.EEXIST: "it is a file, expected a folder",
    errno.ENOTDIR: "a part of the path is a file, expected a folder",
    errno.EISDIR: "it is a folder, expected a file",
    errno.ENOENT: "does not exist",
}


def check_places(options: Any) -> None:
    """Refuse addresses where a command reads and writes files, before any work."""
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if dataclasses.is_dataclass(value):
            check_places(value)
        elif field.name not in TEXTS and not isinstance(value, dict):
            required = field.default is field.default_factory is dataclasses.MISSING
            name = field.name.upper() if required else f"--{field.name.replace('_', '-')}"
            for place in value if isinstance(value, tuple) else (value,):
                check_local(name, place)


def error_line(error: BaseException) -> str:
    """Return an error as one line, with the names that a user typed."""
    if isinstance(error, OSError) and error.errno is not None:
        file = error.filename2 or error.filename or ""
        reason = REASONS.get(error.errno, error.strerror or type(error).__name__)
        return f"{file}: {reason}" if file else reason
    line = " ".join(str(error).split())
    first, space, rest = line.partition(" ")
    return f"{OPTIONS.get(first, first)}{space}{rest}"
