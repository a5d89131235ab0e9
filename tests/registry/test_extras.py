"""What an extra brings is asked for by its name, in Python as on the command line."""

import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import jdml.cli
from jdml import data, metrics, models, training
from jdml.registry.extras import ALONE, EXTRAS, MissingLibraryError, need
from jdml.training import exporting

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_the_extras_are_those_of_the_project():
    declared = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    names = {
        extra: {re.split(r"[<>=\[]", text)[0] for text in declared[extra]} for extra in declared
    }
    for extra, modules in EXTRAS.items():
        assert set(modules.values()) <= names[extra]
    imported = set(EXTRAS["train"].values())
    assert names["train"] - imported <= {"filelock"}  # which JAX imports
    assert not set(ALONE.values()) & set().union(*(modules.values() for modules in EXTRAS.values()))


@pytest.fixture
def without(monkeypatch):
    """Make a library one that is not installed."""

    def block(library):
        for module in [name for name in sys.modules if name.partition(".")[0] == library]:
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, library, None)

    return block


@pytest.mark.parametrize("module", [module for modules in EXTRAS.values() for module in modules])
def test_every_extra_is_asked_for_by_its_name(without, module):
    without(module)
    extra = next(extra for extra, modules in EXTRAS.items() if module in modules)
    with pytest.raises(
        MissingLibraryError, match=rf"^this needs \S+: pip install 'jdml\[{extra}\]'$"
    ):
        need(module, "this")


def test_it_is_an_import_error_and_what_a_user_mends(without):
    without("sklearn")
    for kind in (ImportError, ValueError):
        with pytest.raises(kind, match="scikit-learn"):
            metrics.nmi(np.eye(4, dtype=np.float32), np.arange(4) // 2)


def batches():
    files = data.ImageFiles([Path("a.png"), Path("b.png")])
    images = data.Dataset("own", files, np.arange(2))
    return next(data.ImageBatches(images, data.RandomBatchSampler(2, 2)))


@pytest.mark.parametrize(
    ("library", "use", "extra"),
    [
        ("sklearn", lambda folder: data.load("digits"), "train"),
        (
            "sklearn",
            lambda folder: metrics.nmi(np.eye(4, dtype=np.float32), np.arange(4) // 2),
            "train",
        ),
        ("PIL", lambda folder: data.ImageFiles([folder / "a.png"])[0:1], "train"),
        ("grain", lambda folder: batches(), "train"),
        ("safetensors", lambda folder: models.load_weights(folder / "w.safetensors", {}), "train"),
        ("tqdm", lambda folder: training.log.progress_bar(False), "train"),
        ("orbax", lambda folder: training.checkpoint.RunFolder(folder / "run", {}), "train"),
        ("safetensors", lambda folder: training.checkpoint.RunFolder(folder / "run", {}), "train"),
        (
            "flatbuffers",
            lambda folder: exporting.export_stablehlo(SimpleNamespace(input={"shape": ()})),
            "train",
        ),
        ("tensorboardX", lambda folder: training.log.Log(folder, tensorboard=True), "all"),
    ],
)
def test_python_asks_before_anything_is_made(without, library, use, extra, tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "w.safetensors").write_bytes(b"")
    without(library)
    with pytest.raises(ValueError, match=rf"needs .*: pip install 'jdml\[{extra}\]'"):
        use(tmp_path)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("library", "words"),
    [
        ("tyro", "train --help"),
        ("tyro", "compare x"),
        ("rich", "train"),
        ("tqdm", "train"),
        ("sklearn", "train"),
        ("flatbuffers", "export nowhere --out m.stablehlo"),
    ],
)
def test_the_command_line_asks_in_a_line(without, capsys, library, words):
    without(library)
    assert jdml.cli.main(words.split()) == 2
    told = capsys.readouterr()
    assert "pip install 'jdml[train]'" in told.err
    assert (told.out, told.err.count("\n")) == ("", 1)


def test_flows_ask_for_theirs(without, monkeypatch):
    without("distrax")
    for module in [name for name in sys.modules if name.startswith("jdml.flows")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(ImportError, match=r"flows .* needs distrax: pip install 'jdml\[flows\]'"):
        __import__("jdml.flows.conditional")
