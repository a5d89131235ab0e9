"""A folder of small drawn pictures, and what trains on them."""

import functools
from pathlib import Path

import numpy as np
import pytest


def draw_noise(path: Path, seed: int) -> None:
    """A small JPEG of noise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    from PIL import Image

    noise = np.random.default_rng(seed).integers(0, 256, (20, 24, 3), np.uint8)
    Image.fromarray(noise).save(path)


@pytest.fixture
def draw():
    return draw_noise


@pytest.fixture
def animals(tmp_path) -> Path:
    """Four classes of eight images: two train, two test."""
    for label, name in enumerate(("ant", "bee", "cat", "dog")):
        for i in range(8):
            draw_noise(tmp_path / "animals" / name / f"{i}.jpg", 10 * label + i)
    return tmp_path / "animals"


@pytest.fixture
def train_images(jdml_main):
    """Train three steps of a small network; return the exit code, output and error output."""
    options = "--model eps --dim 4 --steps 3 --quiet --image-size 16 --workers 2"
    return functools.partial(jdml_main, "train", *options.split())
