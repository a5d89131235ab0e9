"""Fixtures for metrics: arrays on disk."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def to_disk(tmp_path: Path) -> Callable[..., np.memmap]:
    """Write an array to a file, and open it as a memory map."""

    def write(array: np.ndarray, dtype: Any = np.float32) -> np.memmap:
        file = tmp_path / f"array{len(list(tmp_path.iterdir()))}.npy"
        np.save(file, array.astype(dtype))
        return np.load(file, mmap_mode="r")

    return write
