"""From a run to a gallery that grows: `jdml embed --update`, `search` and `evaluate` in it."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from jdml import Gallery, evaluate_retrieval, training
from jdml.data.load import read_source
from jdml.runs import embedding_io

COUNTS = ("added", "changed", "removed", "unchanged", "damaged")


@pytest.fixture
def copy(photos, tmp_path) -> Path:
    return Path(shutil.copytree(photos, tmp_path / "photos"))


@pytest.fixture
def update(run, copy, tmp_path, succeed):
    """Update the gallery; return its numbers."""

    def call(*words):
        options = ("--out", tmp_path / "g", "--update", "--quiet", *words)
        shown = succeed("embed", run.folder, copy, *options)
        return tuple(int(re.search(rf"\b{name} (\d+)", shown)[1]) for name in COUNTS)

    return call


def assert_embeds(gallery: Path, run: Path, images: Path) -> None:
    """Compare a gallery with the embeddings of all images of a folder."""
    found = Gallery.load(gallery)
    files = sorted(images.glob("*/*.png"))
    names = [file.relative_to(images).as_posix() for file in files]
    assert sorted(found.ids) == names
    order = np.argsort(found.ids)
    assert found.labels[order].tolist() == [file.parent.name for file in files]
    vectors = training.load(run).embed(files)
    np.testing.assert_allclose(found.embeddings[order], vectors, atol=1e-6)


def test_update_embeds_what_is_new_or_changed_and_removes_what_is_gone(
    run, copy, tmp_path, update, jdml_command, caplog
):
    assert update() == (36, 0, 0, 0, 0)
    assert Gallery.load(tmp_path / "g").model == training.load(run.folder).identity
    assert_embeds(tmp_path / "g", run.folder, copy)
    assert update() == (0, 0, 0, 36, 0)
    shutil.copy(copy / "kind0" / "0.png", copy / "kind5" / "new.png")
    shutil.copyfile(copy / "kind0" / "1.png", copy / "kind1" / "1.png")
    os.utime(copy / "kind1" / "1.png", (1, 1))
    (copy / "kind2" / "2.png").unlink()
    (copy / "kind3").rename(copy / "sort3")
    assert update() == (7, 1, 7, 28, 0)
    assert_embeds(tmp_path / "g", run.folder, copy)
    (copy / "kind4" / "4.png").write_bytes(b"no image")
    assert update() == (0, 0, 0, 35, 1)  # a damaged image is not in the gallery any more
    assert "kind4/4.png" not in Gallery.load(tmp_path / "g").ids
    assert "kind4/4.png" in caplog.text
    words = ("--out", tmp_path / "e.npz", "--quiet", "--on-bad-image", "stop")
    done = jdml_command("embed", run.folder, copy, *words)
    assert (done.code, "kind4/4.png" in done.err) == (2, True)


def test_update_leaves_what_a_service_added(run, copy, photos, tmp_path, update, succeed):
    update()
    gallery, trained = Gallery.load(tmp_path / "g"), training.load(run.folder)
    sent = photos / "kind0" / "0.png"
    gallery.add(trained.embed([sent, sent]), ["sent.png", "kind0/sent.png"], model=trained)
    gallery.save(tmp_path / "g")
    (copy / "kind2" / "2.png").unlink()
    assert update() == (0, 0, 1, 35, 0)
    assert {"sent.png", "kind0/sent.png"} < {*Gallery.load(tmp_path / "g").ids}
    shutil.copy(sent, copy / "kind0" / "sent.png")  # from now on it is the folder's
    assert update() == (0, 1, 0, 35, 0)
    found = tmp_path / "found.json"
    words = ("search", run.folder, photos / "kind4" / "2.png", "--gallery", tmp_path / "g")
    succeed(*words, "-k", 37, "--json", found, "--quiet")
    (answer,) = json.loads(found.read_text())
    files = {Path(hit["file"]) for hit in answer["hits"]}
    assert {file for file in files if not file.is_file()} == {Path("sent.png")}
    (copy / "kind0" / "sent.png").unlink()
    assert update() == (0, 0, 1, 35, 0)


def test_galleries_move_with_their_images(run, photos, copy, tmp_path, update, succeed):
    update()
    found = tmp_path / "found.json"

    def search(*galleries):
        query = photos / "kind4" / "2.png"
        options = ("-k", 3, "--json", found, "--quiet")
        succeed("search", run.folder, query, "--gallery", *galleries, *options)
        (answer,) = json.loads(found.read_text())
        return [(Path(hit["file"]), hit["distance"]) for hit in answer["hits"]]

    first = search(tmp_path / "g")
    assert first == [(Path(file), distance) for file, distance in search(copy)]
    kinds = [copy / f"kind{kind}" for kind in range(6)]
    assert first == sorted(search(*kinds), key=lambda hit: hit[1])  # several galleries together
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("g", "photos"):
        (tmp_path / name).rename(moved / name)
    again = search(moved / "g")
    assert [distance for _, distance in again] == [distance for _, distance in first]
    assert all(file.is_file() for file, _ in again)
    shutil.rmtree(moved / "photos")
    assert [str(file) for file, _ in search(moved / "g")] == [
        file.relative_to(copy).as_posix() for file, _ in first
    ]


@pytest.mark.parametrize("name", ["g", "g.npz", "g.npy", "g.parquet"])
def test_search_and_evaluate_read_what_embed_writes(name, run, photos, tmp_path, succeed):
    if name == "g.parquet":
        pytest.importorskip("pyarrow")
    gallery, queries = tmp_path / name, tmp_path / "q.npz"
    for out, split in ((gallery, "train"), (queries, "test")):
        succeed("embed", run.folder, photos, "--split", split, "--out", out, "--quiet")
    assert len(training.load(run.folder).class_names) == 3
    found, query = tmp_path / "found.json", photos / "kind4" / "2.png"
    succeed("search", run.folder, query, "-k", 2, "--json", found, "--gallery", gallery)
    (answer,) = json.loads(found.read_text())
    assert {(Path(h["file"]).is_file(), h["label"][:4]) for h in answer["hits"]} == {(True, "kind")}

    whole = tmp_path / f"all-{name}"
    succeed("embed", run.folder, photos, "--out", whole, "--quiet")
    scores = json.loads(succeed("evaluate", queries, "--gallery", whole, "--json", "-"))
    vectors = training.load(run.folder).embed(photos)
    classes = np.repeat(np.arange(6), 6)
    alone = np.full(18, -1)  # queries that the gallery holds count as others
    expected = evaluate_retrieval(vectors[18:], classes[18:], vectors, classes, self_index=alone)
    for metric in ("R@1", "MAP@R", "RP"):
        np.testing.assert_allclose(scores[metric], expected[metric], atol=1e-6)


def test_tables_without_pyarrow_are_refused_before_any_work(tmp_path, monkeypatch, jdml_command):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = jdml_command("embed", tmp_path / "no-run", "photos", "--out", tmp_path / "e.parquet")
    assert (done.code, "'jdml[parquet]'" in done.err) == (2, True), done.err


def test_galleries_of_other_models_are_refused(run, copy, tmp_path, update, jdml_command, succeed):
    update()
    other = Gallery(model="0" * 16)
    other.add(np.eye(4, dtype=np.float32), list("abcd"), list("xxyy"))
    other.save(tmp_path / "other")
    queries, file = tmp_path / "q.npz", tmp_path / "other.npz"
    succeed("embed", run.folder, copy, "--out", queries, "--quiet")
    vectors = np.eye(4, dtype=np.float32)
    np.savez(file, embeddings=vectors, labels=list("xxyy"), model=np.array("0" * 16))
    query = copy / "kind0" / "0.png"
    for option, words in {
        f"{tmp_path / 'other'} ": ("search", run.folder, query, "--gallery", tmp_path / "other"),
        f"{tmp_path / 'other'} was": ("evaluate", queries, "--gallery", tmp_path / "other"),
        f"{file} ": ("search", run.folder, query, "--gallery", file),
        f"{file} was": ("evaluate", queries, "--gallery", file),
        "--out ": ("embed", run.folder, copy, "--update", "--out", tmp_path / "other"),
        "--out": ("embed", run.folder, copy, "--out", tmp_path / "g"),
        "--update ": ("embed", run.folder, copy, "--out", queries, "--update"),
    }.items():
        done = jdml_command(*words)
        assert (done.code, done.err.count("\n"), option in done.err) == (2, 1, True), done.err
    assert len(Gallery.load(tmp_path / "g")) == 36


@pytest.mark.parametrize("saves", [0, 2])
def test_killed_updates_lose_nothing(run, copy, tmp_path, update, monkeypatch, saves):
    """An update in pieces ends after one is saved, before the record of its files: the next one completes it."""
    written, records = embedding_io.write_text, []

    def die(path, text):
        if len(records) == saves:
            raise KeyboardInterrupt
        records.append(written(path, text))

    trained, source = training.load(run.folder), read_source(str(copy), None)
    with monkeypatch.context() as patch:
        patch.setattr(embedding_io, "write_text", die)  # which writes nothing but the record
        with pytest.raises(KeyboardInterrupt):
            embedding_io.update_gallery(tmp_path / "g", trained, source, piece=7)
    assert len(Gallery.load(tmp_path / "g")) == 7 * (saves + 1)
    assert update() == (36 - 7 * (saves + 1), 7, 0, 7 * saves, 0)
    assert_embeds(tmp_path / "g", run.folder, copy)
