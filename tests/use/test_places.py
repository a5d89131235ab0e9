"""One list of images for every command and in Python, and what a file is: links, copies, moved folders."""

import json
import os
import shutil

import numpy as np
import pytest

from jdml import training


@pytest.fixture
def linked(photos, tmp_path):
    """Photographs, half of them behind links."""
    root = tmp_path / "linked"
    shutil.copytree(photos / "kind0", root / "kind0")
    (root / "kind1").symlink_to(photos / "kind1")
    (root / "kind2").mkdir()
    (root / "kind2" / "deep").symlink_to(photos / "kind2")
    (root / "kind3").mkdir()
    for i in range(6):
        (root / "kind3" / f"{i}.jpe").symlink_to(photos / "kind3" / f"{i}.png")
    (root / "kind3" / "up").symlink_to(root)
    return root


def test_what_one_sees_all_see(run, linked, tmp_path, jdml_command, tiny):
    embedded, found = tmp_path / "e.npz", tmp_path / "f.json"
    done = jdml_command("embed", run.folder, linked, "--out", embedded, "--quiet")
    assert done.code == 0, done.err
    files = np.load(embedded)["files"]
    assert len(files) == 24
    vectors = training.load(run.folder).embed(linked)
    np.testing.assert_allclose(vectors, np.load(embedded)["embeddings"], atol=1e-6)
    options = ("--gallery", linked, "--json", found, "-k", 30, "--quiet")
    done = jdml_command("search", run.folder, linked, *options)
    assert done.code == 0, done.err
    answers = json.loads(found.read_text())
    assert [answer["query"] for answer in answers] == files.tolist()
    assert {len(answer["found"]) for answer in answers} == {23}
    assert "24 images" in jdml_command("data", "check", "folder", linked, "--quiet").out
    words = ("--batch", "2x4", "--split", "none", "--out", tmp_path / "run")
    done = jdml_command("train", "--data-dir", linked, *tiny, *words)
    assert done.code == 0, done.err
    assert "train 24 images of 4 classes" in done.out


def test_python_reads_lists_and_parts_as_commands_do(run, photos, tmp_path, caplog):
    trained = training.load(run.folder)
    lines = ["file;label", f"{photos}/kind1/0.png;b", f"{photos}/kind0/0.png;a"]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    assert trained.embed(tmp_path / "t.csv").shape == (2, 4)
    root = tmp_path / "parts"
    for part in ("train", "test", "unlabeled"):
        shutil.copytree(photos / "kind0", root / part / "kind0")
    assert trained.embed(root).shape == (12, 4)
    assert "unlabeled/: 6 images have no class" in caplog.text


@pytest.mark.parametrize("way", ["link", "folder", "dots", "relative", "copy", "twice"])
@pytest.mark.parametrize("embedded", [False, True])
def test_a_query_is_not_found_whatever_it_is_called(
    run, photos, tmp_path, jdml_command, monkeypatch, way, embedded
):
    root, query = tmp_path / "photos", tmp_path / "query.png"
    shutil.copytree(photos, root)
    own = root / "kind4" / "2.png"
    if way == "link":
        query.symlink_to(own)
    elif way == "folder":
        (tmp_path / "door").symlink_to(root)
        query = tmp_path / "door" / "kind4" / "2.png"
    elif way == "dots":
        query = root / "kind0" / ".." / "kind4" / "2.png"
    elif way == "relative":
        monkeypatch.chdir(root / "kind4")
        query = "2.png"
    else:
        shutil.copy(own, query)
    if way == "twice":
        for n in range(5):
            shutil.copy(own, root / "kind5" / f"copy{n}.png")
    gallery, found = root, tmp_path / "found.json"
    if embedded:
        gallery = tmp_path / "g.npz"
        assert jdml_command("embed", run.folder, root, "--out", gallery, "--quiet").code == 0
    options = ("--gallery", gallery, "-k", 3, "--json", found, "--quiet")
    done = jdml_command("search", run.folder, query, *options)
    assert done.code == 0, done.err
    (answer,) = json.loads(found.read_text())
    hits = [os.path.relpath(hit["file"], root) for hit in answer["found"]]
    assert len(hits) == 3
    assert "kind4/2.png" not in hits
    assert not any("copy" in hit for hit in hits)


def test_a_folder_that_moved(run, photos, tmp_path, jdml_command):
    root, gallery = tmp_path / "photos", tmp_path / "g.npz"
    shutil.copytree(photos, root)
    assert jdml_command("embed", run.folder, root, "--out", gallery, "--quiet").code == 0
    root.rename(tmp_path / "moved")
    query, found, sheet = (
        tmp_path / "moved" / "kind4" / "2.png",
        tmp_path / "f.json",
        tmp_path / "s.png",
    )
    options = ("--gallery", gallery, "-k", 3, "--json", found, "--quiet")
    assert jdml_command("search", run.folder, query, *options).code == 0
    (answer,) = json.loads(found.read_text())
    assert str(root / "kind4" / "2.png") not in [hit["file"] for hit in answer["found"]]
    assert len(answer["found"]) == 3
    found.unlink()
    done = jdml_command("search", run.folder, query, *options, "--out", sheet)
    assert done.code == 2
    assert "--out needs the gallery's images, 36 of 36 are gone: " in done.err
    assert not found.exists()
    assert not sheet.exists()


def test_parts_are_trained_held_out_and_scored(photos, tmp_path, jdml_command, tiny):
    root = tmp_path / "parts"
    for part, kinds in (("train", "012"), ("valid", "34"), ("query", "35"), ("gallery", "35")):
        for kind in kinds:
            shutil.copytree(photos / f"kind{kind}", root / part / f"kind{kind}")
    done = jdml_command("train", "--data-dir", root, *tiny, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    assert "train 18 images of 3 classes; validation 12 of 2; test 12 of 2; " in done.out
    out = tmp_path / "e.npz"
    words = (tmp_path / "run", root, "--split", "gallery", "--out", out, "--quiet")
    assert jdml_command("embed", *words).code == 0
    assert sorted(set(np.load(out)["labels"])) == ["kind3", "kind5"]
