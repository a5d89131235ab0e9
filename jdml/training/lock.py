"""One process at a time writes into a run's folder."""

import contextlib
import os
import weakref
from pathlib import Path


class Lock:
    """A folder that this process writes into, until nothing refers to the lock any more or the process ends."""

    def __init__(self, folder: Path) -> None:
        import fcntl  # Windows has none

        self._folder = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"out_dir {folder} is written by another process at this moment: wait for it, or choose another folder"
            ) from None
        except OSError:
            pass  # a file system without locks

    def __del__(self) -> None:
        if hasattr(self, "_folder"):
            os.close(self._folder)


_HELD: weakref.WeakValueDictionary[tuple[int, int], Lock] = weakref.WeakValueDictionary()
"""By the folders' own numbers: who takes one twice in a process has it already."""


def lock(folder: Path) -> Lock | None:
    """Take a folder for this process.

    Args:
        folder: one that is there.

    Returns:
        The lock, to be kept; None where the system has none.

    Raises:
        ValueError: another process has it.
    """
    status = folder.stat()
    place = status.st_dev, status.st_ino
    held = _HELD.get(place)
    if held is None:
        with contextlib.suppress(ImportError):
            held = _HELD[place] = Lock(folder)
    return held
