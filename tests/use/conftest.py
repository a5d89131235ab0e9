"""A folder of drawn photographs, and one run on it that all tests share."""

import contextlib
import io
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import jdml.cli

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


def run_command(*words: object) -> SimpleNamespace:
    """Run a command in this process; its code, output and error output."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = jdml.cli.main([str(word) for word in words])
        except SystemExit as stop:
            code = stop.code
    return SimpleNamespace(code=code, out=out.getvalue(), err=err.getvalue())


@pytest.fixture(scope="session")
def jdml_command():
    return run_command


@pytest.fixture(scope="session")
def check():
    """Run `jdml data`; return its code, output and error output."""

    def run(*words):
        done = run_command("data", *words)
        return done.code, done.out, done.err

    return run


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
def run(photos, tmp_path_factory) -> SimpleNamespace:
    """A run of `jdml train` on the photographs, what it printed, and its folder."""
    folder = tmp_path_factory.mktemp("runs") / "photos"
    done = run_command("train", "--data-dir", photos, *TINY, "--out", folder)
    assert done.code == 0, done.err
    return SimpleNamespace(folder=folder, **vars(done))
