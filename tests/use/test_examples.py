"""The examples that end each command's help, and README's, run in a folder with `photos`, in any order."""

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from jdml import models, training
from jdml.cli import main
from jdml.cli.commands import COMMANDS
from jdml.models import SmallConvNet

README = Path(__file__).parents[2] / "README.md"
# What makes an example small, and changes nothing else.
SMALL = {
    "demo": "--steps 3 --seeds 1",
    "train": "--image-size 16 --dim 4 --batch 3x4 --steps 4 --quiet --workers 1",
    "embed": "--quiet",
    "sweep": "--steps 2 --quiet",
    "benchmark": "--image-size 16 --dim 4 --steps 1 --quiet --workers 1",
    "data check": "--quiet",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory, photos, run) -> Path:
    """A folder with photographs, a run, a query, and the photographs' embeddings."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copytree(photos, folder / "photos")
    shutil.copytree(run.folder, folder / "runs" / "photos")
    shutil.copy(photos / "kind0" / "1.png", folder / "query.jpg")
    embed = ["embed", str(run.folder), str(folder / "photos"), "--out", str(folder / "photos.npz")]
    assert main([*embed, "--quiet"]) == 0
    return folder


def test_every_help_ends_with_its_example(jdml_command):
    for command, record in COMMANDS.items():
        example = record.example
        done = jdml_command(*command.split(), "--help")
        assert done.code == 0
        assert done.out.splitlines()[-1] == f"  {example}"
        assert example.startswith(f"jdml {command} ")


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [name for name in COMMANDS if name not in ("data get", "weights convert")]
)
def test_examples_run(place, photos, jdml_command, monkeypatch, command):
    monkeypatch.chdir(place)
    if command == "benchmark":

        def create(name, *, dim, pooling="average", freeze_batch_norm=False, dtype=None):
            return SmallConvNet(dim, (8, 8), pooling=pooling)

        monkeypatch.setattr(models, "create", create)
    words = shlex.split(COMMANDS[command].example)[1:] + SMALL.get(command, "").split()
    if command == "train":
        words[words.index("runs/photos")] = "runs/again"
    done = jdml_command(*words)
    assert done.code == 0, done.err
    out = words[words.index("--out") + 1] if "--out" in words else None
    assert out is None or Path(out).exists()
    if command in ("train", "benchmark"):
        trained = training.load(out)
        assert trained.embed(photos / "kind0").shape == (6, 4)


@pytest.mark.slow
def test_weights_are_converted(place, jdml_command, monkeypatch):
    torch = pytest.importorskip("torch")
    from jdml.models.dialects import dialects
    from jdml.models.weights import _shapes, _stored_shape

    dialect = dialects("resnet18")[0]
    named = {
        dialect.name(target.partition("/")[2]): _stored_shape(target, shape, dialect, "")
        for target, shape in _shapes("resnet18").items()
    }
    monkeypatch.chdir(place)
    torch.save({name: torch.zeros(shape) for name, shape in named.items()}, "resnet18.pth")
    done = jdml_command(*shlex.split(COMMANDS["weights convert"].example)[1:])
    assert done.code == 0, done.err
    assert "0 missing" in done.out
    Path("resnet18.pth").unlink()


def test_the_readme_shows_these_and_no_more_than_fifteen_lines(place, photos):
    section = re.search(r"^## Use what you trained\n(.*?)^(?=## )", README.read_text(), re.M | re.S)
    assert section is not None
    lines = section[0].strip().splitlines()
    assert len(lines) <= 15
    shown = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    assert shown == [COMMANDS[name].example for name in ("train", "embed", "search", "export")]
    (expression,) = re.findall(r"`(jdml\.training\.load\(.*?\]\))`", section[0])
    values = eval(expression.replace("runs/photos", str(place / "runs" / "photos")).replace(
        "query.jpg", str(place / "query.jpg")), {"jdml": __import__("jdml")})  # fmt: skip
    expected = training.load(place / "runs" / "photos").embed(photos / "kind0" / "1.png")
    np.testing.assert_allclose(values, expected, atol=1e-6)
