"""Paths of images and runs: links, copies, moved folders; remote addresses are refused."""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from cli.photos import TINY

from jdml import data, models, report, training
from jdml.runs import export, run_files
from jdml.studies import runner


def test_query_and_its_copies_are_not_found_under_any_path(
    run, photos, tmp_path, succeed, monkeypatch
):
    root = tmp_path / "photos"
    shutil.copytree(photos, root)
    own = root / "kind4" / "2.png"
    for n in range(5):
        shutil.copy(own, root / "kind5" / f"copy{n}.png")
    (tmp_path / "link.png").symlink_to(own)
    (tmp_path / "folder").symlink_to(root)
    shutil.copy(own, tmp_path / "copy.png")
    monkeypatch.chdir(own.parent)
    queries = [
        tmp_path / "link.png",
        tmp_path / "folder" / "kind4" / "2.png",
        root / "kind0" / ".." / "kind4" / "2.png",
        tmp_path / "copy.png",
        "2.png",
    ]
    gallery, found = tmp_path / "g.npz", tmp_path / "f.json"
    succeed("embed", run.folder, root, "--out", gallery, "--quiet")
    for there in (root, gallery):
        options = ("--gallery", there, "-k", 3, "--json", found, "--quiet")
        succeed("search", run.folder, *queries, *options)
        answers = json.loads(found.read_text())
        assert len(answers) == len(queries)
        for answer in answers:
            hits = [os.path.relpath(hit["file"], root) for hit in answer["hits"]]
            assert len(hits) == 3
            assert not any(hit == "kind4/2.png" or "copy" in hit for hit in hits)
    monkeypatch.chdir(tmp_path)  # the folder moves
    query = root.rename(tmp_path / "moved") / "kind4" / "2.png"
    succeed("search", run.folder, query, *options)
    (answer,) = json.loads(found.read_text())
    hits = [os.path.relpath(hit["file"], root) for hit in answer["hits"]]
    assert len(hits) == 3
    assert "kind4/2.png" not in hits


def test_named_parts_are_trained_held_out_and_scored(photos, tmp_path, succeed):
    root = tmp_path / "parts"
    parts = {"train": ("012", "012345"), "valid": ("34", "012345")}
    parts |= {"query": ("35", "012"), "gallery": ("35", "345")}
    for part, (kinds, images) in parts.items():
        for kind in kinds:
            folder = root / part / f"kind{kind}"
            folder.mkdir(parents=True)
            for image in images:
                shutil.copy(photos / f"kind{kind}" / f"{image}.png", folder)
    shown = succeed("train", "--data-dir", root, *TINY, "--out", tmp_path / "run")
    assert re.search(r"\b18\b.* \b3\b.*\b12 of 2\b.*\b6 of 2\b", shown)
    out = tmp_path / "e.npz"
    words = (tmp_path / "run", root, "--split", "gallery", "--out", out, "--quiet")
    succeed("embed", *words)
    assert sorted(set(np.load(out)["labels"])) == ["kind3", "kind5"]


@pytest.mark.parametrize(
    "use",
    [
        training.load,
        training.pretrained,
        training.RunConfig,
        report.read_runs,
        run_files.read_results,
        lambda place: data.load("folder", data_dir=place),
        lambda place: models.convert_weights("w.npz", place, arch="resnet18"),
        lambda place: export.export_file(None, place),
        lambda place: runner.run_jobs(dict, {}, place),
    ],
)
def test_python_refuses_remote_addresses(use, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    others = ("hf://bucket/run", "https://bucket/run", Path("gs://bucket/run"))
    for address in ("s3://bucket/run.safetensors", *(others if use is training.load else ())):
        with pytest.raises(ValueError, match=r"\baddress .*bucket"):
            use(address)
    assert not list(tmp_path.iterdir())
