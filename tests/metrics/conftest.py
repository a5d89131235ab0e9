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


@pytest.fixture(scope="session")
def large() -> tuple[np.ndarray, np.ndarray]:
    """Return a gallery of three chunks of 8 MiB, the last one shorter, with many ties; and its labels."""
    rng = np.random.default_rng(5)
    vectors = np.zeros((4_200, 1024), np.float32)
    vectors[:, :5] = rng.integers(-2, 3, (4_200, 5))
    return vectors, rng.integers(0, 420, 4_200) ** 2 - 7
