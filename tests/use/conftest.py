"""Fixtures: a folder of drawn photographs, and one run on it that all tests share."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from cli.photos import TINY, draw_photos


@pytest.fixture(scope="session")
def succeed(jdml_command):
    """Run a command that must not fail; return its output."""

    def call(*words: object) -> str:
        done = jdml_command(*words)
        assert done.code == 0, done.err
        return done.out

    return call


@pytest.fixture(scope="session")
def photos(tmp_path_factory) -> Path:
    return draw_photos(tmp_path_factory.mktemp("photos") / "photos")


@pytest.fixture(scope="session")
def run(photos, tmp_path_factory, jdml_command) -> SimpleNamespace:
    """Run `jdml train` on the photographs; return the exit code, the output and the folder."""
    folder = tmp_path_factory.mktemp("runs") / "photos"
    done = jdml_command("train", "--data-dir", photos, *TINY, "--out", folder)
    assert done.code == 0, done.err
    return SimpleNamespace(folder=folder, **vars(done))
