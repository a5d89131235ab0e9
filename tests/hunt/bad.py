"""Bad inputs: each is refused with an error that names it, or read correctly; no code runs, nothing is written."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

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


def truncate(file: Path) -> Path:
    """Cut the end off a file."""
    content = file.read_bytes()
    file.write_bytes(content[: len(content) * 3 // 5])
    return file


def tree(place: Path) -> list[Path]:
    return sorted(place.rglob("*"))


def check_bad(bad: Bad, made: Path, place: Path) -> None:
    """Check that a bad input is refused or read, and that nothing is written, in its folder or beside it."""
    before = tree(place.parent)
    if bad.refused is None:
        np.testing.assert_array_equal(bad.reader(made), bad.read)
    else:
        with pytest.raises((ValueError, TypeError, OSError)) as refused:
            bad.reader(made)
        message = str(refused.value).replace(str(place.parent), "")  # which holds the test's name
        assert re.search(bad.refused or re.escape(made.name), message), message
    assert tree(place.parent) == before
