"""Runs that are damaged or another's, and words that are no input: refused in a sentence, nothing run or written."""

import contextlib
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hunt.bad import DEEP, Bad, Code, X, classes, cut, judge, mark, tree
from PIL import Image
from safetensors.numpy import save

import jdml.cli
from jdml import report, training
from jdml.models.tensors import write_tensors
from jdml.training.checkpoint import RunFolder
from jdml.training.embedded import read_embeddings
from jdml.training.exporting import export_file
from jdml.training.run_files import read_model


def changed(place: Path, **parts: Any) -> Path:
    """A run whose model's description is another in some parts."""
    file = place / "model.safetensors"
    tensors, told = read_model(file)
    told["embedding"] |= parts
    write_tensors(file, tensors, {"jdml": json.dumps(told)})
    return place


def with_arrays(change: Callable[[dict[str, np.ndarray]], Any]) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        file = place / "model.safetensors"
        tensors, told = read_model(file)
        change(tensors)
        write_tensors(file, tensors, {"jdml": json.dumps(told)})
        return place

    return make


def with_file(name: str, content: str | bytes) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        (place / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return place

    return make


def checkpoint(place: Path) -> Path:
    (found,) = sorted((place / "checkpoints").iterdir())[-1:]
    return found


def half_written(place: Path) -> Path:
    for file in (checkpoint(place) / "state").rglob("*"):
        if file.is_file() and file.parent.name == "d":
            cut(file)
    return place


def being_written(place: Path) -> Path:
    (place / "model.safetensors").unlink()
    for step in (place / "checkpoints").iterdir():
        step.rename(step.with_name(f"{step.name}.orbax-checkpoint-tmp-7"))
    return place


def last(place: Path) -> Any:
    return training.load(place, which="last")


def embed(place: Path) -> Any:
    noise = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3)).astype(np.uint8)
    return training.load(place).embed(noise)


def spoil(arrays: dict[str, np.ndarray]) -> None:
    for array in arrays.values():
        array.fill(np.nan)


def exported(place: Path) -> Path:
    (made,) = export_file(training.load(place), place / "m.safetensors")
    return made


def resumed(place: Path) -> Any:
    return RunFolder(place, {"fit": {}})


MODEL = "model.safetensors is not what|/run is not what jdml writes"
RUNS = [
    Bad(
        "a configuration of another program",
        with_file("config.json", '{"epochs": 3}'),
        last,
        "does not say what its images and network were",
    ),
    Bad(
        "a configuration nested without end",
        with_file("config.json", DEEP),
        training.load,
        "config.json is not valid JSON",
    ),
    Bad(
        "a configuration that is a list",
        with_file("config.json", "[1]"),
        training.load,
        r"config.json must hold JSON, an object, got \[",
    ),
    Bad(
        "a configuration of bytes",
        with_file("config.json", b"\xff\xfe{"),
        report.read_runs,
        "config.json is not valid JSON",
    ),
    Bad(
        "a seed of words",
        with_file("config.json", '{"seed": "first"}'),
        report.read_runs,
        "seed must be an integer",
    ),
    Bad(
        "fingerprints that are a list",
        with_file("config.json", '{"fingerprint": []}'),
        report.read_runs,
        "fingerprint must be a JSON object",
    ),
    Bad(
        "a run that goes on from a list",
        with_file("config.json", "[]"),
        resumed,
        r"config.json must hold JSON, an object, got \[",
    ),
    Bad(
        "scores that are no JSON",
        with_file("metrics.json", "R@1 = 1"),
        training.load,
        "metrics.json is not valid JSON",
    ),
    Bad(
        "a log of bytes",
        with_file("log.jsonl", b'\xff\n{"step": 1, "loss": "low"}\n[]\n{"step": 2, "loss": 0.5}\n'),
        lambda place: [r["step"] for r in report.read_runs(place)[0].log],
        read=[1, 2],
    ),
    Bad(
        "an order of runs that is a number",
        lambda place: with_file("sweep.json", "3")(place.parent),
        report.read_runs,
        "sweep.json must hold JSON, an array, got 3",
    ),
    Bad(
        "an order of runs that is nothing",
        lambda place: with_file("sweep.json", "null")(place.parent),
        report.read_runs,
        "sweep.json must hold JSON, an array, got null",
    ),
    Bad(
        "a study's record that is there twice",
        with_file("r.jsonl", '{"name": "a", "x": 1}\n{"name": "a", "x": 2}\n'),
        lambda place: report.read_runs(place / "r.jsonl"),
        "r.jsonl, line 2: a is there twice",
    ),
    Bad(
        "a study's record of several seeds",
        with_file("r.jsonl", '{"name": "a", "job": {"seed": [1, 2]}, "metrics": {}}\n'),
        lambda place: report.read_runs(place / "r.jsonl"),
        r"a: seed must be an integer, got \[1, 2\]",
    ),
    Bad(
        "a time in words",
        with_file("r.jsonl", '{"name": "a", "job": {}, "metrics": {}, "seconds": "fast"}\n'),
        lambda place: report.read_runs(place / "r.jsonl")[0].seconds,
    ),
    Bad(
        "a study's record without a name",
        with_file("r.jsonl", '{"job": {}}'),
        lambda place: report.read_runs(place / "r.jsonl"),
        "line 1 is not a run's record",
    ),
    Bad(
        "a study's record of bytes",
        with_file("r.jsonl", b"\xff"),
        lambda place: report.read_runs(place / "r.jsonl"),
        "line 1 is not a run's record",
    ),
    Bad(
        "a model that is cut",
        lambda place: cut(place / "model.safetensors").parent,
        training.load,
        "is not a readable .safetensors file",
    ),
    Bad(
        "a model that says nothing",
        with_file("model.safetensors", save({"a": X})),
        training.load,
        "was not written by a run of jdml",
    ),
    Bad(
        "a model of other sizes",
        lambda place: changed(place, dim=5),
        embed,
        "parameters are not those of its network",
    ),
    Bad(
        "a model that lacks an array",
        with_arrays(lambda arrays: arrays.pop(min(arrays))),
        embed,
        "parameters are not those of its network",
    ),
    Bad("a model of NaN", with_arrays(spoil), embed, "the embedding of row 0 is not: look for NaN"),
    Bad(
        "a network that is none",
        lambda place: changed(place, network="vgg"),
        training.load,
        "its model, vgg, is not one of jdml.models",
    ),
    Bad(
        "settings that it has not",
        lambda place: changed(place, settings={"wide": 3}),
        training.load,
        MODEL,
    ),
    Bad("a crop of words", lambda place: changed(place, crop="none"), training.load, MODEL),
    Bad(
        "a preprocessing that is a number",
        lambda place: changed(place, preprocess=3),
        training.load,
        MODEL,
    ),
    Bad(
        "an input of half a pixel",
        lambda place: changed(place, input={"shape": [0.5], "dtype": "uint8"}),
        training.load,
        MODEL,
    ),
    Bad("a checkpoint that is half written", half_written, last, "checkpoint .* is damaged"),
    Bad(
        "a checkpoint that was being written", being_written, training.load, "has no parameters yet"
    ),
    Bad(
        "an exported file that is cut",
        lambda place: cut(exported(place)),
        training.load,
        "is not a readable .safetensors file",
    ),
    Bad(
        "an exported program in its place",
        with_file("m.stablehlo", b"\0" * 99),
        lambda place: training.load(place / "m.stablehlo"),
        "is not a readable .safetensors file",
    ),
]


# Orbax leaves threads behind that find no event loop any more.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("bad", RUNS, ids=[bad.what for bad in RUNS])
def test_bad_runs(tmp_path, run, bad):
    place = tmp_path / "there" / "run"
    shutil.copytree(run.folder, place)
    judge(bad, bad.make(place), place)


# Commands


COMMANDS = [
    ("an empty folder's name", "train --data-dir {}", [""], "--data-dir is empty"),
    ("an empty source", "embed RUN {}", [""], "SOURCE is empty"),
    ("an empty option", "evaluate e.npz --json={}", [""], "--json is empty"),
    (
        "nobody's home",
        "data check folder {}",
        ["~no-such-user/photos"],
        "DIR must be a folder, got ~no-such-user/photos",
    ),
    (
        "nobody's home within a run",
        "embed {} photos",
        ["~no-such-user/run"],
        "~no-such-user/run does not exist",
    ),
    ("5,000 characters", "evaluate {}", ["x" * 5000], "File name too long|does not exist"),
    (
        "a pipe as a query",
        "search RUN {} --gallery g.npz",
        ["/dev/stdin"],
        "does not exist|is not a file|g.npz",
    ),
    (
        "labels that are code",
        "evaluate x.npy --labels {}",
        ["code.npy"],
        "holds Python objects, which are not read",
    ),
    ("a rank of 0", "evaluate e.npz --recall-at {}", ["0"], "recall_at"),
    ("a rank beyond all", "evaluate e.npz --map-at {}", ["9" * 30], "must fit into int32"),
    (
        "more neighbours than memory",
        "search RUN photos --gallery e.npz -k {}",
        ["-1"],
        "-k must be at least 1",
    ),
    (
        "an image as a recipe's classes",
        "train --data-dir photos --classes-file {}",
        ["photos/ant/0.png"],
        "expected UTF-8 text",
    ),
]


@pytest.mark.parametrize(
    ("what", "words", "values", "said"), COMMANDS, ids=[row[0] for row in COMMANDS]
)
def test_bad_words(tmp_path, monkeypatch, run, jdml_command, what, words, values, said):
    monkeypatch.chdir(tmp_path)
    classes(tmp_path, "ant", "bee")
    np.savez("e.npz", embeddings=X, labels=np.arange(4) % 2)
    np.save("x.npy", X)
    np.save("code.npy", np.array([Code(mark(tmp_path / "x"))] * 4, dtype=object))
    before = tree(tmp_path)
    done = jdml_command(
        *(word.replace("RUN", str(run.folder)).format(*values) for word in words.split())
    )
    assert (done.code, done.err.count("\n")) == (2, 1), done.err
    assert re.search(said, done.err), done.err
    assert tree(tmp_path) == before


def test_names_of_all_kinds_are_shown_and_never_obeyed(tmp_path, run, jdml_command):
    names = ("[red]ant", "=1+1", "<script>alert(1)<!--", "\udcff", "a\nb", "b\x1b[31m")
    root = tmp_path / "photos"
    for number, name in enumerate(names):
        for each in range(2):
            file = root / name / f"{each}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            noise = np.random.default_rng(2 * number + each).integers(0, 256, (9, 9, 3))
            Image.fromarray(noise.astype(np.uint8)).save(file)
    stream = io.TextIOWrapper(io.BytesIO(), "utf-8")
    with contextlib.redirect_stdout(stream):
        assert jdml.cli.main(["data", "check", "folder", str(root), "--quiet"]) == 0
    done = jdml_command("embed", run.folder, root, "--out", tmp_path / "e.npz", "--quiet")
    assert done.code == 0, done.err
    assert set(read_embeddings(tmp_path / "e.npz").labels.tolist()) == set(names)
    done = jdml_command("report", tmp_path / "e.npz", "--out", tmp_path / "r.html")
    assert done.code == 0, done.err
    assert "<script>alert" not in (tmp_path / "r.html").read_text()
    done = jdml_command(
        "search", run.folder, root / names[3] / "0.png", "--gallery", root, "--quiet"
    )
    assert (done.code, "[red]ant" in done.out) == (0, True), done.err
