"""Folders of drawn pictures."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("grain")

TINY = "--image-size 16 --dim 4 --classes-per-batch 3 --samples-per-class 4 --steps 4 --quiet --workers 1".split()
"""Options of a small run on the photographs."""


def draw_photos(root: Path, kinds: int = 6, each: int = 6, size: int = 24) -> Path:
    """Draw folders `kind0`, `kind1`, … of noisy pictures of a colour, hard enough to be confused."""
    random = np.random.default_rng(0)
    for kind in range(kinds):
        (root / f"kind{kind}").mkdir(parents=True)
        colour = random.integers(90, 166, (1, 1, 3))
        for i in range(each):
            noise = random.integers(-90, 91, (size // 8, size // 8, 3)).repeat(8, 0).repeat(8, 1)
            pixels = np.clip(colour + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / f"kind{kind}" / f"{i}.png")
    return root


def draw_noise(files: Iterable[Path]) -> None:
    """Draw small pictures of noise, all different."""
    for seed, file in enumerate(files):
        file.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(seed).integers(0, 256, (20, 24, 3), np.uint8)
        Image.fromarray(noise).save(file)
