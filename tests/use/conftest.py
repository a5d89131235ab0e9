"""A folder of drawn photographs, and one run on it that all tests share."""

import functools
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("grain")

TINY = "--image-size 16 --dim 4 --batch 3x4 --steps 4 --quiet --workers 1".split()


def draw_photos(root: Path, kinds: int = 6, each: int = 6, size: int = 24) -> Path:
    """Folders `kind0`, `kind1`, … of noisy pictures of a colour, hard enough to be confused."""
    random = np.random.default_rng(0)
    for kind in range(kinds):
        (root / f"kind{kind}").mkdir(parents=True)
        colour = random.integers(90, 166, (1, 1, 3))
        for i in range(each):
            noise = random.integers(-90, 91, (size // 8, size // 8, 3)).repeat(8, 0).repeat(8, 1)
            pixels = np.clip(colour + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / f"kind{kind}" / f"{i}.png")
    return root


@pytest.fixture(scope="session")
def check(jdml_main):
    """Run `jdml data`; return its code, output and error output."""
    return functools.partial(jdml_main, "data")


@pytest.fixture(scope="session")
def draw():
    return draw_photos


@pytest.fixture(scope="session")
def tiny():
    return TINY


@pytest.fixture(scope="session")
def photos(tmp_path_factory) -> Path:
    return draw_photos(tmp_path_factory.mktemp("photos") / "photos")


@pytest.fixture(scope="session")
def run(photos, tmp_path_factory, jdml_command) -> SimpleNamespace:
    """A run of `jdml train` on the photographs, what it printed, and its folder."""
    folder = tmp_path_factory.mktemp("runs") / "photos"
    done = jdml_command("train", "--data-dir", photos, *TINY, "--out", folder)
    assert done.code == 0, done.err
    return SimpleNamespace(folder=folder, **vars(done))
