"""What a bad input is, and what a door may do with it: refuse it in a sentence or read it rightly, in bounds."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

MEMORY = 400 << 20
"""Bytes that a door may take beside what the process holds."""
SECONDS = 20
DEEP = "[" * 100_000


class Bad(NamedTuple):
    """A bad input.

    Attributes:
        what: it is.
        make: it, in a folder of its own.
        door: what reads it.
        refused: what the sentence says; or
        read: what the door must give.
    """

    what: str
    make: Callable[[Path], Any]
    door: Callable[[Any], Any]
    refused: str | None = None
    read: Any = None


class Code:
    """A pickle that leaves a mark when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def mark(place: Path) -> Path:
    return place.parent / "code-was-run"


def put(name: str, content: bytes | Callable[[], bytes]) -> Callable[[Path], Path]:
    """A file of some bytes."""

    def make(place: Path) -> Path:
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content() if callable(content) else content)
        return file

    return make


def cut(file: Path, share: float = 0.6) -> Path:
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    return file


def tree(place: Path) -> list[str]:
    return sorted(os.path.join(at, name) for at, _, names in os.walk(place) for name in names)


class Peak:
    """The most memory that the process has held since, where the system tells."""

    STATUS = Path("/proc/self/status")

    def __enter__(self) -> "Peak":
        if self.STATUS.exists():
            Path("/proc/self/clear_refs").write_text("5")
        self.before, self.start = self._read("VmRSS"), time.monotonic()
        return self

    def __exit__(self, *_: Any) -> None:
        self.grown, self.seconds = self._read("VmHWM") - self.before, time.monotonic() - self.start

    def _read(self, name: str) -> int:
        if not self.STATUS.exists():
            return 0
        (line,) = (line for line in self.STATUS.read_text().splitlines() if line.startswith(name))
        return 1024 * int(line.split()[1])


def judge(bad: Bad, made: Any, place: Path) -> None:
    """Refused or read, nothing run, nothing written, in bounds."""
    before = tree(place)
    with Peak() as peak:
        if bad.refused is None:
            found = bad.door(made)
        else:
            with pytest.raises((ValueError, TypeError, OSError), match=bad.refused):
                bad.door(made)
    if bad.refused is None and bad.read is not None:
        np.testing.assert_array_equal(found, bad.read)
    assert not mark(place).exists()
    assert tree(place) == before
    assert peak.grown < MEMORY, f"{peak.grown / 2**20:.0f} MiB"
    assert peak.seconds < SECONDS
