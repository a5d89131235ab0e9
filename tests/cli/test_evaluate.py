"""The command jdml evaluate: files of embeddings, their labels, refusals."""

import json
import re

import numpy as np
import pytest

from jdml.cli.commands import print_table


@pytest.fixture
def embeddings(tmp_path):
    """Three classes on a line: every neighbour is right but one."""
    x = np.array([[0.0], [1.0], [10.0], [11.0], [20.0], [11.4]], np.float32)
    y = np.array([0, 0, 1, 1, 2, 2])
    np.savez(tmp_path / "e.npz", embeddings=x, labels=y)
    return tmp_path / "e.npz"


def test_evaluate_json(jdml_main, embeddings, tmp_path):
    options = ("--recall-at", 1, 2, "--ndcg-at", 2, "--precision-at", 2, "--true-recall-at", 2)
    code, out, _ = jdml_main("evaluate", embeddings, *options, "--json", "-")
    assert code == 0
    metrics = json.loads(out)
    # Nearest of 10 is 11, of 11 is 11.4, of 11.4 is 11, of 20 is 11.4: four of six are right.
    assert metrics["R@1"] == pytest.approx(4 / 6)
    assert metrics["MAP@R"] == pytest.approx(4 / 6)
    assert metrics["queries"] == 6
    assert {"nDCG@2", "P@2", "recall(true)@2"} <= set(metrics)
    code, out, _ = jdml_main("evaluate", embeddings, *options, "--json", tmp_path / "m.json")
    assert json.loads((tmp_path / "m.json").read_text()) == metrics
    assert all(name in out for name in ("R@1", "R@2", "MAP@R", "nDCG@2", "P@2", "recall(true)@2"))


X, Y = np.zeros((4, 2), np.float32), np.zeros(4, int)


@pytest.mark.parametrize(
    ("arrays", "names"),
    [
        ({"x": X, "labels": Y}, "'embeddings'.* labels, x"),
        ({"embeddings": X + [[np.nan, 0]], "labels": Y}, "embeddings .*row 0"),
    ],
)
def test_evaluate_refuses(jdml_main, tmp_path, arrays, names):
    np.savez(tmp_path / "e.npz", **arrays)
    code, _, err = jdml_main("evaluate", tmp_path / "e.npz")
    assert (code, err.count("\n")) == (2, 1)
    assert re.search(names, err), err


def test_evaluate_reads_big_endian_arrays_and_skips_objects(jdml_main, embeddings, tmp_path):
    """Arrays of the other byte order are read; Python objects in the same file are not loaded."""
    content = dict(np.load(embeddings))
    expected = jdml_main("evaluate", embeddings, "--json", "-")
    swapped = {name: array.astype(array.dtype.newbyteorder()) for name, array in content.items()}
    np.savez(tmp_path / "other.npz", **swapped, meta=np.array([{"run": 1}, None]))
    assert jdml_main("evaluate", tmp_path / "other.npz", "--json", "-") == expected


def test_evaluate_warns_of_queries_in_the_gallery(jdml_main, embeddings, tmp_path):
    """With their rows given it excludes them."""
    content = dict(np.load(embeddings))
    file = tmp_path / "both.npz"
    arrays = content | {f"gallery_{name}": array for name, array in content.items()}
    np.savez(file, **arrays)
    code, out, err = jdml_main("evaluate", file, "--json", "-")
    assert (code, json.loads(out)["R@1"]) == (0, 1.0)
    assert re.search(r"\b6 of 6\b", err)
    assert err.count("\n") == 1
    _, expected, _ = jdml_main("evaluate", embeddings, "--json", "-")
    np.savez(file, **arrays, rows=np.arange(6))
    assert jdml_main("evaluate", file, "--self-index", "rows", "--json", "-") == (0, expected, "")


def test_evaluate_ignores_pairs_of_one_group(jdml_main, embeddings, tmp_path):
    """Groups come from a key, a column or a file; queries that are left without a match are counted."""
    content = dict(np.load(embeddings))
    x, camera = content["embeddings"], np.array(list("lrlrll"))
    ignore, file = "--ignore-same-group", tmp_path / "both.npz"
    files = np.array([str(tmp_path / f"{row}.jpg") for row in range(6)])
    np.savez(file, **content, camera=camera, files=files)
    lines = [f"{row}.jpg,1,{c}" for row, c in enumerate(camera)]
    (tmp_path / "t.csv").write_text("\n".join(["file,label,Camera", *lines]))
    for name, array in (("x", x), ("y", content["labels"]), ("c", camera)):
        np.save(tmp_path / f"{name}.npy", array)
    expected = {"R@1": 0.75, "queries": 4, "unanswered": 2}
    lone = (tmp_path / "x.npy", "--labels", tmp_path / "y.npy")
    for options in (
        (file, ignore, "camera"),
        (file, ignore, f"{tmp_path / 't.csv'}:camera"),
        (*lone, ignore, tmp_path / "c.npy"),
    ):
        code, out, err = jdml_main("evaluate", *options, "--json", "-")
        assert (code, err) == (0, "")
        assert json.loads(out).items() >= expected.items()
    arrays = {
        f"{part}{name}": array for part in ("", "gallery_") for name, array in content.items()
    }
    twice = {"camera": camera, "gallery_camera": camera, "self_index": np.arange(6)}
    np.savez(file, **arrays, **twice, files=files, gallery_files=files[::-1])
    _, out, _ = jdml_main("evaluate", file, ignore, "camera", "--json", "-")
    assert json.loads(out).items() >= expected.items()
    (tmp_path / "few.csv").write_text("\n".join(["file,camera", "0.jpg,l"]))
    code, _, err = jdml_main("evaluate", file, ignore, f"{tmp_path / 'few.csv'}:camera")
    assert (code, "few.csv" in err) == (2, True)


def test_evaluate_by_level(jdml_main, embeddings, tmp_path):
    content, file = dict(np.load(embeddings)), tmp_path / "levels.npz"
    labels = np.stack([content["labels"] // 2, content["labels"]], axis=1).astype(str)
    np.savez(file, embeddings=content["embeddings"], labels=labels)
    _, out, _ = jdml_main("evaluate", file, "--nmi", "--json", "-")
    assert json.loads(out)["R@1"] == pytest.approx([4 / 6, 4 / 6])
    coarse, fine = json.loads(out)["NMI"]
    assert 0 <= coarse < 0.7 < fine < 0.8  # of the clusters 0, 1 and 10, 11, 11.4 and 20
    assert "level 0" in jdml_main("evaluate", file)[1]
    file.write_bytes(b"PK\x03\x04 broken")
    code, _, err = jdml_main("evaluate", file)
    assert (code, "levels.npz" in err) == (2, True)


@pytest.mark.parametrize("terminal", [True, False])
def test_tables_show_all_digits(terminal, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    names = [f"metric {i}" for i in range(12)]
    print_table("a title", ["%", *names], [["ours", *range(1000, 1012)], ["paper", *["–"] * 12]])
    shown = capsys.readouterr().out
    assert all(str(1000 + i) in shown and name in shown for i, name in enumerate(names))
    assert ("metric 0" in shown.splitlines()[2]) != terminal  # on its side


def test_evaluate_files_on_disk(jdml_main, tmp_path):
    """.npy pairs: the same as in a .npz file, the gallery read in pieces."""
    random = np.random.default_rng(0)
    arrays = {
        "embeddings": random.normal(size=(9, 3)).astype(np.float32),
        "labels": np.array(list("abcabcabc")),
        "gallery_embeddings": random.normal(size=(30, 3)).astype(np.float32),
        "gallery_labels": np.array(list("abcde") * 6),
    }
    np.savez(tmp_path / "all.npz", **arrays)
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    first, label_file, *others = (tmp_path / f"{name}.npy" for name in arrays)
    labels = ["--labels", label_file]
    alone = tmp_path / "alone.npz"
    np.savez(alone, embeddings=arrays["embeddings"], labels=arrays["labels"])
    gallery = ["--gallery-embeddings", others[0], "--gallery-labels", others[1]]
    more = ["--normalize", "sphere", "--recall-at", 1, 3, "--json", "-"]
    _, expected, _ = jdml_main("evaluate", tmp_path / "all.npz", *more)
    for queries in ([first, *labels], [alone]):
        code, out, _ = jdml_main("evaluate", *queries, *gallery, *more)
        assert code == 0
        assert json.loads(out) == pytest.approx(json.loads(expected), rel=1e-6)
    np.save(tmp_path / "objects.npy", np.array([None] * 9))
    for words, name in (
        ([first], "--labels"),
        ([first, "--labels", "gone.npy"], "gone.npy"),
        ([first, "--labels", tmp_path / "objects.npy"], "objects.npy"),
        ([first, *labels, *gallery[:2]], "'gallery_labels'"),
        ([alone, *gallery[:2]], "'gallery_labels'"),
        ([alone, "--gallery-embeddings", "typo"], "'typo'"),
    ):
        code, _, err = jdml_main("evaluate", *words)
        assert (code, name in err) == (2, True), err
