"""The test part of a run has no training image: in its folder, in its file, in a report."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import jdml
from jdml import training
from jdml.data.load import read_source
from jdml.models.io import write_tensors
from jdml.report import read_runs
from jdml.report.images import attach_images
from jdml.runs.export import export_file
from jdml.runs.run_files import read_model


# Reads photographs.
@pytest.fixture(scope="module", params=["folder", pytest.param("cub", marks=pytest.mark.slow)])
def place(request, tmp_path_factory, draw) -> Path:
    """Write eight classes of photographs, as a folder and in CUB's layout, whose own split would train on all."""
    folder = tmp_path_factory.mktemp("parts") / "photos"
    if request.param == "folder":
        return draw(folder, kinds=8)
    draw(folder / "images", kinds=8)
    files = sorted(folder.glob("images/*/*.png"))
    names = [file.parent.name for file in files]
    numbers = {name: i + 98 for i, name in enumerate(sorted(set(names)))}
    lines = {
        "images.txt": [f"{i} {file.parent.name}/{file.name}" for i, file in enumerate(files, 1)],
        "image_class_labels.txt": [f"{i} {numbers[name]}" for i, name in enumerate(names, 1)],
        "classes.txt": [f"{number} {name}" for name, number in numbers.items()],
    }
    for name, content in lines.items():
        (folder / name).write_text("\n".join(content) + "\n")
    return folder


@pytest.mark.parametrize(
    # Another run.
    "rule",
    ["classes", pytest.param("images", marks=pytest.mark.slow), "classes-file"],
)
def test_scored_images_are_not_training_images(place, rule, tmp_path, tiny, jdml_command, succeed):
    run, out, exported = tmp_path / "run", tmp_path / "e.npz", tmp_path / "m.safetensors"
    how = ["--split", rule, "--seed", 3]
    if rule == "images":
        how += ["--test-share", 0.4]
    if rule == "classes-file":
        (tmp_path / "names.txt").write_text("kind1\nkind2\nkind7\n")
        how = ["--classes-file", tmp_path / "names.txt"]
    succeed("train", "--data-dir", place, *tiny, *how, "--out", run)
    succeed("export", run, "--out", exported)
    scored, files = json.loads((run / "metrics.json").read_text())["test class"], {}
    for which in (run, run / "model.safetensors", exported):
        for part in ("train", "test"):
            succeed("embed", which, place, "--split", part, "--out", out, "--quiet")
            with np.load(out) as arrays:
                files[part] = set(arrays["files"])
        rescored = json.loads(jdml_command("evaluate", out, "--json", "-").out)
        assert {name: rescored[name] for name in scored} == scored
        assert len(files["train"] | files["test"]) == len(files["train"]) + len(files["test"]) == 48
    shown, why = attach_images(read_runs(run)[0])
    assert not why
    assert {str(file) for file in shown.data.images.files} == files["test"]
    assert {str(file) for file in shown.train.images.files} == files["train"]


@pytest.mark.parametrize("rule", [None, "images"])
def test_groups_are_on_one_side_of_the_split_and_of_held_out_rows(
    draw, rule, tmp_path, tiny, jdml_command, succeed
):
    """And the commands that follow draw the same parts."""
    photos, run, out = draw(tmp_path / "photos"), tmp_path / "run", tmp_path / "e.npz"
    files = sorted(photos.glob("*/*.png"))
    session = {str(file): f"s{int(file.stem) // 2}" for file in files}
    rows = [f"{file},{file.parent.name},{session[str(file)]}" for file in files]
    (tmp_path / "list.csv").write_text("\n".join(["file,label,session", *rows]))
    how = ["--group", "session", "--validation", 0.3, *(["--split", rule] if rule else [])]
    done = jdml_command("train", "--data-dir", tmp_path / "list.csv", *tiny, *how, "--out", run)
    assert done.code == 0, done.err
    assert re.search(r"\b3 groups \(session\)", done.out + done.err)
    parts = {}
    for part in ("train", "test"):
        embed = ["--split", part, "--out", out, "--quiet"]
        succeed("embed", run, tmp_path / "list.csv", *embed)
        with np.load(out) as arrays:
            parts[part] = set(arrays["files"])
    of_parts = [{session[file] for file in parts[part]} for part in ("train", "test")]
    assert not of_parts[0] & of_parts[1]
    assert len(parts["train"] | parts["test"]) == len(files)
    shown, why = attach_images(read_runs(run)[0])
    assert not why
    assert {str(file) for file in shown.data.images.files} == parts["test"]


def test_added_images_make_the_drawn_parts_unknown(draw, tmp_path, tiny, jdml_command, succeed):
    photos, run, out = draw(tmp_path / "photos"), tmp_path / "run", tmp_path / "e.npz"
    moved = tmp_path / "elsewhere" / "photos"
    rule = ["--split", "images", "--test-share", 0.4]
    succeed("train", "--data-dir", photos, *tiny, *rule, "--out", run)
    embed = ["--split", "test", "--out", out, "--quiet"]
    shutil.copytree(photos, moved)
    succeed("embed", run, moved, *embed)
    shutil.copy(photos / "kind0" / "0.png", photos / "kind0" / "new.png")
    done = jdml_command("embed", run, photos, *embed)
    assert done.code == 2
    assert re.search(r"split test: .*--split images", done.err)
    succeed("embed", run, photos, "--out", out, "--quiet")
    shown, why = attach_images(read_runs(run)[0])
    assert shown.data is None
    assert why


def test_run_on_all_images_has_no_test_part(place, tmp_path, tiny, jdml_command, succeed):
    run, out = tmp_path / "run", tmp_path / "e.npz"
    succeed("train", "--data-dir", place, *tiny, "--split", "none", "--out", run)
    done = jdml_command("embed", run, place, "--split", "test", "--out", out)
    assert (done.code, "--split none" in done.err) == (2, True)
    done = jdml_command("embed", run, place, "--split", "train", "--out", out, "--quiet")
    assert re.search(r"\b48 .*\b8 ", done.out)
    shown, why = attach_images(read_runs(run)[0])
    assert (len(shown.data), why) == (48, "")


def test_file_without_its_run_does_not_know_its_parts(photos, run, tmp_path):
    new, old = tmp_path / "new.safetensors", tmp_path / "old.safetensors"
    export_file(training.load(run.folder), new)
    assert training.load(new).config["data"] == "folder"
    arrays, described = read_model(new)
    assert "command" not in described["run"]["provenance"]  # it could contain private paths
    del described["run"]
    write_tensors(old, arrays, {"jdml": json.dumps(described)})
    config = training.load(old).config
    with pytest.raises(ValueError, match=r"\bsplit test\b"):
        read_source(str(photos), None, split="test", config=config)
    assert len(read_source(str(photos), None, config=config).labels) == 36


def test_labels_are_those_of_training(tmp_path):
    """Also for a run without a command line."""
    digits = jdml.data.load("digits").relabel("parity")
    easy = jdml.recipes.recipe("eps", "digits").replace(
        network={"dim": 4}, batch={"size": 16, "steps": 1}
    )
    run, file = tmp_path / "run", tmp_path / "m.safetensors"
    config = training.RunConfig(run, config={"data": "digits"})
    training.train(easy, digits, run=config, progress=False)
    export_file(training.load(run), file)
    for place in (run, run / "model.safetensors", file):
        labels = read_source("digits", None, config=training.load(place).config).labels
        assert len(set(labels)) == 2
    assert set(attach_images(read_runs(run)[0])[0].train.labels) == {0, 1}
