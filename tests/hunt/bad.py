"""Bad inputs: each is refused with an error that names it, or read correctly; no code runs, nothing is written."""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

MEMORY = 400 << 20
"""Bytes that reading may take beyond what the process holds."""
SECONDS = 20
"""Seconds of the processor that reading may take."""
DEEP = "[" * 100_000
X = np.eye(4, 3, dtype=np.float32)


class Bad(NamedTuple):
    """A bad input.

    Attributes:
        what: Its description.
        make: Write it into an empty folder, and return the path or object to read.
        reader: Reads it.
        refused: A pattern that the error must match; "" for the name of the file.
        read: The reader's expected result, if the input is not refused.
    """

    what: str
    make: Callable[[Path], Any]
    reader: Callable[[Any], Any]
    refused: str | None = None
    read: Any = None


class Code:
    """A pickle that leaves a mark when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def mark(place: Path) -> Path:
    """Return the folder that code in a bad input would make."""
    return place.parent / "code-was-run"


def put(name: str, content: bytes | Callable[[], bytes]) -> Callable[[Path], Path]:
    """Write a file of some bytes."""

    def make(place: Path) -> Path:
        file = place / name
        file.write_bytes(content() if callable(content) else content)
        return file

    return make


def truncate(file: Path, share: float = 0.6) -> Path:
    """Cut the end off a file."""
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    return file


def classes(place: Path, *names: str) -> Path:
    """Write a folder of classes with an image each."""
    root = place / "photos"
    for shade, name in zip(("red", "blue", "green"), names, strict=False):
        (root / name).mkdir(parents=True)
        Image.new("RGB", (12, 10), shade).save(root / name / "0.png")
    return root


def tree(place: Path) -> list[str]:
    """Return all files below a folder."""
    return sorted(os.path.join(at, name) for at, _, names in os.walk(place) for name in names)


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


def check_bad(
    bad: Bad, made: Any, place: Path, errors: Any = (ValueError, TypeError, OSError)
) -> None:
    """Check that a bad input is refused or read, within bounds, and that nothing runs or is written."""
    before, known, start = tree(place), forget_peak(), time.process_time()
    memory = memory_of("VmRSS")
    if bad.refused is None:
        found = bad.reader(made)
    else:
        with pytest.raises(errors) as refused:
            bad.reader(made)
        message = str(refused.value).replace(str(place.parent), "")  # which holds the test's name
        assert re.search(bad.refused or re.escape(Path(made).name), message), message
    grown, seconds = memory_of("VmHWM") - memory, time.process_time() - start
    if bad.refused is None and bad.read is not None:
        np.testing.assert_array_equal(found, bad.read)
    assert not mark(place).exists()
    assert tree(place) == before
    assert not known or grown < MEMORY, f"{grown / 2**20:.0f} MiB"
    assert seconds < SECONDS
