"""Fixtures for metrics: arrays on disk, and gallery sizes for both ranking algorithms."""

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


@pytest.fixture(params=[60, 130], ids=["device", "host"])
def size(request: pytest.FixtureRequest) -> int:
    """Return a gallery size: up to 64 ranks are found by `top_k`, more on a CPU by a partial sort."""
    return request.param
