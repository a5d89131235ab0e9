"""Damaged or foreign runs and wrong words: refused in one line; nothing is executed or written."""

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.photos import draw_noise
from hunt.bad import Bad, X, check_bad, put, truncate
from safetensors.numpy import save

import jdml.cli
from jdml import report, training
from jdml.models.io import write_tensors
from jdml.runs.embedding_io import read_embeddings
from jdml.runs.run_files import read_model


def changed(place: Path, factor: float = 1.0, **parts: Any) -> Path:
    """Return a run with other parameters, and some fields of its model's description changed."""
    file = place / "model.safetensors"
    tensors, told = read_model(file)
    told["embedding"] |= parts
    tensors = {name: factor * array for name, array in tensors.items()}
    write_tensors(file, tensors, {"jdml": json.dumps(told)})
    return place


def load_run(file: Path) -> Any:
    return training.load(file.parent)


def embed(place: Path) -> Any:
    noise = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3)).astype(np.uint8)
    return training.load(place).embed(noise)


RUNS = [
    Bad("scores of words", put("metrics.json", b"R@1 = 1"), load_run, ""),
    Bad(
        "a log of bytes",
        put("log.jsonl", b'\xff\n{"step": 1, "loss": "low"}\n[]\n{"step": 2, "loss": 0.5}\n'),
        lambda file: [r["step"] for r in report.read_runs(file.parent)[0].log],
        read=[1, 2],
    ),
    Bad(
        "a run of 0.1",
        lambda place: changed(place, crop=None, preprocess="to_float"),
        lambda place: embed(place).shape,
        read=(2, 4),
    ),
    Bad("a truncated model", lambda place: truncate(place / "model.safetensors"), load_run, ""),
    Bad("a model that says nothing", put("model.safetensors", save({"a": X})), load_run, ""),
    Bad("a model of NaN", lambda place: changed(place, np.nan), embed, "row 0"),
    *(
        Bad(
            f"a description with another {name}",
            lambda place, name=name, value=value: changed(place, **{name: value}),
            training.load,
            what,
        )
        for name, value, what in (
            ("network", "vgg", "vgg"),
            ("settings", {"wide": 3}, "^/run .*wide"),
            ("input", {"shape": [0.5], "dtype": "uint8"}, "^/run .*float"),
        )
    ),
    Bad("an exported program in its place", put("m.stablehlo", bytes(99)), training.load, ""),
]


# Orbax leaves threads behind that no longer find an event loop.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("bad", RUNS, ids=[bad.what for bad in RUNS])
def test_damaged_runs_are_refused(tmp_path, run, bad):
    place = tmp_path / "there" / "run"
    shutil.copytree(run.folder, place)
    check_bad(bad, bad.make(place), place)


def test_hostile_names_are_shown_as_text(tmp_path, run, jdml_command, succeed):
    names = ("[red]ant", "=1+1", "<script>alert(1)<!--", "\udcff", "a\nb", "b\x1b[31m")
    root = tmp_path / "photos"
    draw_noise(root / name / f"{each}.png" for name in names for each in range(2))
    stream = io.TextIOWrapper(io.BytesIO(), "utf-8")
    with contextlib.redirect_stdout(stream):
        assert jdml.cli.main(["data", "check", "folder", str(root), "--quiet"]) == 0
    succeed("embed", run.folder, root, "--out", tmp_path / "e.npz", "--quiet")
    assert set(read_embeddings(tmp_path / "e.npz").labels.tolist()) == set(names)
    done = jdml_command(
        "search", run.folder, root / names[3] / "0.png", "--gallery", root, "--quiet"
    )
    assert (done.code, "[red]ant" in done.out) == (0, True), done.err
