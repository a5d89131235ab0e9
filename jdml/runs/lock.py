"""One process at a time writes into a run's folder."""

import os
import weakref
from pathlib import Path


class Lock:
    """A folder that this process writes into, until nothing refers to the lock any more or the process ends."""

    def __init__(self, folder: Path) -> None:
        self._folder: int | None = None
        if not hasattr(os, "register_at_fork"):
            return  # Windows opens no folders
        import fcntl

        self._folder = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            pass  # a file system without locks

    def close(self) -> None:
        """Give the folder back; in a fork, leave it to the process that has it."""
        if self._folder is not None:
            os.close(self._folder)
        self._folder = None

    __del__ = close


_HELD: weakref.WeakValueDictionary[tuple[int, int], Lock] = weakref.WeakValueDictionary()
"""By the folders' own numbers: who takes one twice in a process has it already."""


def lock(folder: Path) -> Lock:
    """Take a folder for this process.

    Args:
        folder: one that is there.

    Returns:
        The lock, to be kept.

    Raises:
        BlockingIOError: another process has it.
    """
    status = folder.stat()
    place = status.st_dev, status.st_ino
    held = _HELD.get(place)
    if held is None:
        held = _HELD[place] = Lock(folder)
    return held


def _leave() -> None:
    """A fork's copies would keep a folder after the process that writes into it has ended."""
    for held in list(_HELD.values()):
        held.close()
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave)
