"""Bad inputs: each is refused with an error that names it, or read correctly; no code runs, nothing is written."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

MEMORY = 400 << 20
"""Bytes that reading may take beyond what the process holds."""
SECONDS = 20
"""Seconds of the processor that reading may take."""
X = np.eye(4, 3, dtype=np.float32)


class Bad(NamedTuple):
    """A bad input.

    Attributes:
        what: Its description.
        make: Write it into an empty folder, and return the path to read.
        reader: Reads it.
        refused: A pattern that the error must match; "" for the name of the file.
        read: The reader's expected result, if the input is not refused.
    """

    what: str
    make: Callable[[Path], Path]
    reader: Callable[[Path], Any]
    refused: str | None = None
    read: Any = None


def put(name: str, content: bytes) -> Callable[[Path], Path]:
    """Write a file of some bytes."""

    def make(place: Path) -> Path:
        (place / name).write_bytes(content)
        return place / name

    return make


def truncate(file: Path) -> Path:
    """Cut the end off a file."""
    content = file.read_bytes()
    file.write_bytes(content[: len(content) * 3 // 5])
    return file


def tree(place: Path) -> list[Path]:
    return sorted(place.rglob("*"))


def memory_of(name: str) -> int:
    """Return an entry of this process's status in bytes, 0 if the system does not report it."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def forget_peak() -> bool:
    """Reset this process's peak memory; return whether the system can."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def check_bad(bad: Bad, made: Path, place: Path) -> None:
    """Check that a bad input is refused or read, within bounds, and that nothing is written there or beside it."""
    before, known, start = tree(place.parent), forget_peak(), time.process_time()
    memory = memory_of("VmRSS")
    if bad.refused is None:
        np.testing.assert_array_equal(bad.reader(made), bad.read)
    else:
        with pytest.raises((ValueError, TypeError, OSError)) as refused:
            bad.reader(made)
        message = str(refused.value).replace(str(place.parent), "")  # which holds the test's name
        assert re.search(bad.refused or re.escape(made.name), message), message
    grown, seconds = memory_of("VmHWM") - memory, time.process_time() - start
    assert tree(place.parent) == before
    assert not known or grown < MEMORY, f"{grown / 2**20:.0f} MiB"
    assert seconds < SECONDS
