"""Fixtures for commands: folders of drawn pictures, short training runs, and snapshots of printed text."""

import dataclasses
import functools
import re
from pathlib import Path
from typing import Any

import pytest
from cli.photos import draw_noise
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from jdml.registry import NETWORKS


class PrintedText(SingleFileSnapshotExtension):
    """One text file per test in ``snapshots``, compared by its words.

    Layout differs between the versions of tyro and rich: white space, boxes (also those of hyphens, bars and plus
    signs), square brackets and the usage line do not count, nor does whether repeated words are required or have an
    empty default, or an emoji that tyro 0.9 makes of ``:factory:``.
    """

    file_extension = "txt"
    _write_mode = WriteMode.TEXT

    @classmethod
    def dirname(cls, *, test_location: Any) -> str:
        file = Path(test_location.filepath)
        return str(file.parent / "snapshots" / file.stem)

    def matches(self, *, serialized_data: str, snapshot_data: str) -> bool:
        return words(serialized_data) == words(snapshot_data)


def words(text: str) -> str:
    """Return the text without its layout."""
    text = re.sub(r"\Ausage: .*?\n\n", "", text, flags=re.DOTALL).replace("🏭", ":factory:")
    text = re.sub(r"\((required|default:\s*)\)", "", text)
    return re.sub(r"[\s\[\]|+\u2500-\u257f]|-{2,}(?!\w)", "", text)


@pytest.fixture
def printed(snapshot, monkeypatch):
    """Compare with the printed text on file; the screen is 100 wide."""
    monkeypatch.setenv("COLUMNS", "100")
    return snapshot.use_extension(PrintedText)


@pytest.fixture
def animals(tmp_path) -> Path:
    """Four classes of eight images: two train, two test."""
    names = ("ant", "bee", "cat", "dog")
    draw_noise(tmp_path / "animals" / name / f"{i}.jpg" for name in names for i in range(8))
    return tmp_path / "animals"


@pytest.fixture
def train_images(jdml_main):
    """Train three steps of a small network; return the exit code, output and error output."""
    options = "--model eps --dim 4 --steps 3 --quiet --image-size 16 --workers 2"
    return functools.partial(jdml_main, "train", *options.split())


@pytest.fixture
def small_backbone(monkeypatch):
    """Replace ResNet-50 in its record by a network that compiles quickly.

    A new record could not be typed, as the choices of --backbone are fixed when the command is imported.
    """
    record = NETWORKS["resnet50"]
    small = {"module": "jdml.models.convnets:SmallConvNet", "settings": {"features": (8,)}}
    # --backbone accepts only names of the library: one of them is small here.
    monkeypatch.setitem(NETWORKS, "resnet50", dataclasses.replace(record, **small))
