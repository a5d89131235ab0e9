"""The whole workflow: from a folder of photographs to embeddings, search and export."""

import contextlib
import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from jdml import training
from jdml.runs import export


def test_search_by_photograph(run, photos, tmp_path, succeed):
    query = photos / "kind4" / "2.png"
    sheet, neighbours = tmp_path / "sheet.png", tmp_path / "found.json"
    gallery = tmp_path / "gallery.npz"
    succeed("embed", run.folder, photos, "--out", gallery, "--quiet")
    options = ("-k", 3, "--json", neighbours, "--out", sheet, "--quiet")
    answers = []
    for where in (photos, gallery):
        shown = succeed("search", run.folder, query, "--gallery", where, *options)
        answers.append(json.loads(neighbours.read_text()))
    assert answers[0] == answers[1]
    (answer,) = answers[0]
    vectors = training.load(run.folder).embed(photos)
    distances = np.linalg.norm(vectors - vectors[26], axis=1)  # kind4/2.png
    nearest = [row for row in np.argsort(distances, kind="stable") if row != 26][:3]
    assert [hit["file"] for hit in answer["hits"]] == [
        str(photos / f"kind{row // 6}" / f"{row % 6}.png") for row in nearest
    ]
    assert [hit["rank"] for hit in answer["hits"]] == [1, 2, 3]
    np.testing.assert_allclose(
        [h["distance"] for h in answer["hits"]], distances[nearest], atol=1e-5
    )
    assert "kind" in shown
    assert sheet.stat().st_size > 1000
    search = functools.partial(succeed, "search", run.folder, query, "--gallery", gallery, *options)
    search("--max-distance", distances[nearest[0]] / 2)
    assert json.loads(neighbours.read_text())[0]["hits"] == []
    search("--rerank", "augment")
    assert len(json.loads(neighbours.read_text())[0]["hits"]) == 3
    limit = float(re.search(r"max distance: ([\d.]+)", search("--max-distance", "auto"))[1])
    (answer,) = json.loads(neighbours.read_text())
    assert [hit["distance"] for hit in answer["hits"]] == pytest.approx(
        [d for d in distances[nearest] if d <= limit], abs=1e-5
    )


def test_no_match_is_near_enough_if_all_classes_share_a_vector(run, photos, tmp_path, succeed):
    gallery, found, query = tmp_path / "g.npz", tmp_path / "found.json", photos / "kind4" / "2.png"
    files = np.array([str(photos / "kind0" / f"{i}.png") for i in range(4)])
    labels = np.array(list("aabb"))
    np.savez(gallery, embeddings=np.ones((4, 4), np.float32), labels=labels, files=files)
    options = ("--gallery", gallery, "--max-distance", "auto", "--json", found)
    shown = succeed("search", run.folder, query, *options)
    assert "jdml data check --duplicates" in shown
    assert json.loads(found.read_text())[0]["hits"] == []


ALONE = """
import sys
import jax, numpy as np
from jax import export
program = export.deserialize(open(sys.argv[1], "rb").read())
images = np.load(sys.argv[2])
np.save(sys.argv[3], np.concatenate([program.call(images[:1]), program.call(images[1:])]))
assert program.platforms == ("cpu", "cuda", "tpu"), program.platforms
assert not [name for name in sys.modules if name.partition(".")[0] in ("jdml", "flax")]
"""


def test_exported_file_is_used_like_a_run(run, photos, tmp_path, succeed):
    pytest.importorskip("flatbuffers")
    trained = training.load(run.folder)
    shown = succeed("export", run.folder, "--out", tmp_path / "model.stablehlo")
    assert "[N, 16, 16, 3]" in shown
    told = json.loads((tmp_path / "model.stablehlo.json").read_text())
    assert told["embedding"]["crop"]["short_side"] == 18
    assert told["written"]["jax"] == jax.__version__
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", told["written"]["date"])
    images = trained.images_of(photos / "kind3")[:]
    np.save(tmp_path / "images.npy", images)
    names = [tmp_path / name for name in ("model.stablehlo", "images.npy", "found.npy")]
    alone = [sys.executable, "-c", ALONE, *map(str, names)]
    done = subprocess.run(alone, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(names[2]), trained.embed(images), atol=1e-5)
    exported = tmp_path / "model.safetensors"
    succeed("export", run.folder, "--out", exported)
    again = training.load(exported)
    np.testing.assert_array_equal(again.embed(images), trained.embed(images))
    facts = [(each.identity, each.step, each.class_names) for each in (again, trained)]
    assert facts[0] == facts[1]


GUIDES = Path(__file__).parents[2] / "docs" / "guides"


def code_of(guide: str, word: str = "") -> list[str]:
    """Return the guide's blocks of `py` that have the word."""
    blocks = re.findall(
        r"^```py\n(.*?)^```", (GUIDES / guide).read_text(), re.MULTILINE | re.DOTALL
    )
    return [block for block in blocks if word in block]


def test_service_of_the_guide_answers_and_grows(run, photos, tmp_path, monkeypatch, capsys):
    """A hundred requests at once find the photographs; a restart has the gallery."""
    why = "runs the guide's service: pip install jdml[parity]"
    pytest.importorskip("multipart", reason=why)
    pytest.importorskip("fastapi.testclient", reason=why, exc_type=ImportError)
    monkeypatch.setenv("JDML_CACHE", "off")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "photos").symlink_to(run.folder)
    (tmp_path / "photos").symlink_to(photos)
    service: dict = {"__name__": "service"}
    for block in code_of("serve.md"):
        exec(block, service)
    assert re.search(r"p50 \d+ ms, p99 \d+ ms", capsys.readouterr().out)
    files = service["photographs"]
    assert len(service["gallery"]) == len(files)
    content = [("files", file.read_bytes()) for file in files[:2]]
    answers = service["client"].post("/search?k=3", files=content).json()
    assert [answer[0][0] for answer in answers] == [str(file) for file in files[:2]]
    assert max(answer[0][1] for answer in answers) < 1e-3
    for query, files in (("", [("files", b"no image")]), ("?k=0", content)):
        refused = service["client"].post(f"/search{query}", files=files)
        assert (refused.status_code, len(refused.json()["detail"]) > 5) == (400, True)
    again: dict = {"__name__": "service"}
    exec(code_of("serve.md")[0], again)
    assert again["gallery"].ids == service["gallery"].ids


@pytest.mark.slow  # other libraries
def test_onnx_file_embeds_photographs_as_the_guide_says(
    run, photos, tmp_path, monkeypatch, succeed
):
    """Pillow's crop and ONNX Runtime, without jdml, give the embeddings of the run."""
    why = "writes and runs ONNX files: pip install jdml[onnx]"
    pytest.importorskip("jax2onnx", reason=why)
    pytest.importorskip("onnxruntime", reason=why)
    from PIL import Image

    assert "[N, 16, 16, 3]" in succeed("export", run.folder, "--out", tmp_path / "model.onnx")
    pixels = np.random.default_rng(0).integers(0, 256, (53, 91, 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned
    Image.fromarray(pixels).save(tmp_path / "query.jpg", exif=exif)
    monkeypatch.chdir(tmp_path)
    namespace: dict = {}
    for block in code_of("export.md", "onnxruntime"):
        exec(block, namespace)
    trained = training.load(run.folder)
    for file in [tmp_path / "query.jpg", photos / "kind3" / "0.png"]:
        np.testing.assert_array_equal(namespace["prepare"](file), trained.images_of(str(file))[0])
    np.testing.assert_allclose(namespace["embeddings"], trained.embed("query.jpg"), atol=1e-4)


@pytest.mark.parametrize("dies_at", [0, 1, 2])  # 2: after both files
def test_killed_export_leaves_program_and_description_consistent(
    run, dies_at, tmp_path, monkeypatch
):
    pytest.importorskip("flatbuffers")
    trained = training.load(run.folder)
    program, described = tmp_path / "m.stablehlo", tmp_path / "m.stablehlo.json"
    program.write_bytes(b"old")
    described.write_text('{"step": 1}')
    replace, replaced = os.replace, []

    def dying(old, new):
        if len(replaced) == dies_at:
            raise KeyboardInterrupt
        replaced.append(new)
        replace(old, new)

    killed = pytest.raises(KeyboardInterrupt) if dies_at < 2 else contextlib.nullcontext()
    with monkeypatch.context() as patch, killed:
        patch.setattr(os, "replace", dying)
        later = {**trained.description, "step": 7}
        export.export_file(dataclasses.replace(trained, description=later), program)
    assert (program.read_bytes() == b"old") == (dies_at == 0)
    assert described.exists() == (dies_at == 2)
    if described.exists():
        assert json.loads(described.read_text())["step"] == 7
    assert {path.name for path in tmp_path.iterdir()} <= {program.name, described.name}
