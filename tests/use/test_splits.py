"""The test part of a run has no training image: in its folder, in its file, in a report."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from cli.photos import TINY, draw_photos

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
def place(request, tmp_path_factory) -> Path:
    """Write eight classes of photographs, as a folder and in CUB's layout, whose own split would train on all."""
    folder = tmp_path_factory.mktemp("parts") / "photos"
    if request.param == "folder":
        return draw_photos(folder, kinds=8)
    draw_photos(folder / "images", kinds=8)
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


def session(file) -> str:
    return f"s{int(Path(file).stem) // 2}"


@pytest.mark.parametrize(
    # Another run.
    "rule",
    ["classes", pytest.param("images", marks=pytest.mark.slow), "classes-file", "groups"],
)
def test_scored_images_are_not_training_images(place, rule, tmp_path, succeed):
    """Nor of a group that trains; and the commands that follow draw the same parts."""
    run, out, exported = tmp_path / "run", tmp_path / "e.npz", tmp_path / "m.safetensors"
    how, source = ["--split", rule, "--seed", 3], place
    if rule == "images":
        how += ["--test-share", 0.4]
    if rule == "classes-file":
        (tmp_path / "names.txt").write_text("kind1\nkind2\nkind7\n")
        how = ["--classes-file", tmp_path / "names.txt"]
    if rule == "groups":
        rows = [f"{f},{f.parent.name},{session(f)}" for f in sorted(place.rglob("*.png"))]
        source = tmp_path / "list.csv"
        source.write_text("\n".join(["file,label,Session", *rows]))
        how = ["--group", "session", "--validation", 0.3]
    shown = succeed("train", "--data-dir", source, *TINY, *how, "--out", run)
    assert ("3 groups (session)" in shown) == (rule == "groups")
    succeed("export", run, "--out", exported)
    scored, files = json.loads((run / "metrics.json").read_text())["test class"], {}
    for which in (run, run / "model.safetensors", exported):
        for part in ("train", "test"):
            succeed("embed", which, source, "--split", part, "--out", out, "--quiet")
            with np.load(out) as arrays:
                files[part] = set(arrays["files"])
        rescored = json.loads(succeed("evaluate", out, "--json", "-"))
        assert {name: rescored[name] for name in scored} == scored
        assert len(files["train"] | files["test"]) == len(files["train"]) + len(files["test"]) == 48
        if rule == "groups":
            assert not {*map(session, files["train"])} & {*map(session, files["test"])}
    shown, why = attach_images(read_runs(run)[0])
    assert not why
    assert {str(file) for file in shown.data.images.files} == files["test"]
    assert {str(file) for file in shown.train.images.files} == files["train"]


def test_added_images_make_the_drawn_parts_unknown(tmp_path, jdml_command, succeed):
    photos, run, out = draw_photos(tmp_path / "photos"), tmp_path / "run", tmp_path / "e.npz"
    moved = tmp_path / "elsewhere" / "photos"
    rule = ["--split", "images", "--test-share", 0.4]
    succeed("train", "--data-dir", photos, *TINY, *rule, "--out", run)
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


def test_run_on_all_images_has_no_test_part(place, tmp_path, jdml_command, succeed):
    run, out = tmp_path / "run", tmp_path / "e.npz"
    succeed("train", "--data-dir", place, *TINY, "--split", "none", "--out", run)
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
