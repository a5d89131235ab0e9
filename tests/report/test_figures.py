"""Figures and tables, and what is found for a query."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from jdml.cli import main
from jdml.metrics import expand_queries, rerank
from jdml.report import holm, markdown_table, mean_std, paired, paired_table, scatter_grid
from jdml.report.demo import COLUMNS, DemoResult, load_parts, methods, run_demo, table
from jdml.report.searching import search_images
from jdml.training.embedded import Embedded

# The scatter figure and the demo.


def panel(classes, size=50):
    rng = np.random.default_rng(0)
    return "points", rng.normal(size=(size, 2)), rng.integers(0, classes, size)


@pytest.mark.slow
def test_a_picture_is_the_old_or_the_new_one(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "full")

    path = scatter_grid([panel(2)], tmp_path / "f.png")
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        scatter_grid([panel(4)], path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
@pytest.mark.parametrize(("count", "columns"), [(1, None), (4, 2), (5, 3)])
def test_scatter_grid_writes_a_picture(tmp_path, count, columns):
    from PIL import Image

    path = scatter_grid([panel(4)] * count, tmp_path / "f.png", columns=columns, row_titles=["a"])
    with Image.open(path) as image:
        width, height = image.size
    assert width > 300
    assert height > 300


@pytest.mark.slow
def test_scatter_grid_names_classes(tmp_path):
    path = scatter_grid([panel(12)], tmp_path / "f.svg", class_names="abcdefghijkl", max_points=20)
    assert path.stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("panels", "message"),
    [
        ([], "at least one panel"),
        ([("a", np.zeros((3, 3)), np.zeros(3, int))], r"points of panel 'a' must be \[N, 2\]"),
        ([("a", np.zeros((3, 2)), np.zeros(4, int))], r"labels of panel 'a' .* \[3\], got \[4\]"),
    ],
)
def test_scatter_grid_checks(tmp_path, panels, message):
    with pytest.raises(ValueError, match=message):
        scatter_grid(panels, tmp_path / "f.png")


@pytest.mark.slow
def test_demo_keeps_the_tested_images_out_of_training():
    parts = load_parts()
    assert set(parts.train.labels.tolist()) == {0, 1}
    assert set(parts.train.views["digit"].tolist()) == set(range(6))
    assert set(parts.seen.labels.tolist()) == set(range(6))
    assert set(parts.unseen.labels.tolist()) == {6, 7, 8, 9}
    trained = {image.tobytes() for image in parts.train.images}
    assert not any(image.tobytes() in trained for image in parts.seen.images)


@pytest.mark.slow
def test_demo_compares_what_it_says():
    names = [method.name for method in methods()]
    assert names == ["triplet", "triplet + EPS", "MS + EPS", "ProxyAnchor"]


@pytest.mark.slow
def test_demo_table():
    scores = {"triplet": {name: [0.4, 0.5] for name in COLUMNS}}
    columns, rows = table(DemoResult(scores, {}, 0.0))
    assert columns == ["method", "0–5 R@1", "0–5 MAP@R", "6–9 R@1", "6–9 MAP@R"]
    assert rows == [["triplet", *["45.0 ± 7.1"] * 4]]


@pytest.mark.slow
def test_demo_writes_its_folder(tmp_path, monkeypatch, capsys):
    """A short run of one of the methods by the command line, from the data to the figure."""
    import jdml.report.demo as demo

    one = methods()[1:2]
    monkeypatch.setattr(demo, "methods", lambda: one)
    assert main(["demo", "--out", str(tmp_path), "--steps", "2", "--seeds", "1"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {
        "config.json", "metrics.json", "demo.png", "report.html"
    }  # fmt: skip
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert "triplet + EPS" in capsys.readouterr().out
    assert set(metrics["triplet + EPS"]) == set(COLUMNS)
    assert all(0 < runs[0] < 1 for runs in metrics["triplet + EPS"].values())


@pytest.mark.slow
def test_demo_checks_its_numbers(tmp_path):
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        run_demo(tmp_path, steps=0)
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    with pytest.raises(ValueError, match="holds another run: choose another folder"):
        run_demo(tmp_path, steps=1, seeds=1)


# Tables: means with their spread, and columns that line up.


def test_mean_and_sample_standard_deviation() -> None:
    assert mean_std([0.1, 0.3]) == "20.0 ± 14.1"
    assert mean_std([1.0, 2.0, 3.0], scale=1, digits=2) == "2.00 ± 1.00"
    assert mean_std([0.25]) == "25.0"


def test_a_table_needs_values_and_whole_rows() -> None:
    with pytest.raises(ValueError, match="values must hold at least one run"):
        mean_std([])
    with pytest.raises(ValueError, match="rows must have 2 cells"):
        markdown_table(["a", "b"], [["1"]])


ONE, OTHER = {0: 0.5, 1: 0.62, 2: 0.41, 7: 0.9}, {2: 0.4, 1: 0.55, 0: 0.5, 3: 0.1}


@pytest.mark.parametrize("confidence", [0.95, 0.8])
def test_paired_differences_are_students(confidence: float) -> None:
    actual = paired(ONE, OTHER, confidence=confidence)
    both = np.array([[100 * values[seed] for seed in (0, 1, 2)] for values in (ONE, OTHER)])
    expected = stats.ttest_rel(*both)
    assert actual.seeds == 3
    np.testing.assert_allclose(actual.mean, np.mean(both[0] - both[1]))
    np.testing.assert_allclose(actual.p, expected.pvalue)
    np.testing.assert_allclose((actual.low, actual.high), expected.confidence_interval(confidence))


def test_paired_differences_that_have_no_spread() -> None:
    assert paired(ONE, ONE)[:4] == (0, 0, 0, 1)
    assert paired({0: 1, 1: 2}, {0: 0, 1: 1}, scale=1)[:4] == (1, 1, 1, 0)
    alone = paired({0: 0.5}, ONE)
    assert str(alone) == "+0 (1 seed)"
    assert np.isnan([alone.low, alone.high, alone.p]).all()
    assert str(paired({}, ONE)) == "–"


@pytest.mark.parametrize("confidence", [0, 1, float("nan")])
def test_a_confidence_is_between_0_and_1(confidence: float) -> None:
    with pytest.raises(ValueError, match=f"confidence must be between 0 and 1, got {confidence}"):
        paired(ONE, OTHER, confidence=confidence)


def test_holm_steps_down() -> None:
    corrected = holm({"a": 0.04, "b": 0.01, "c": 0.03, "d": float("nan")})
    assert list(corrected) == ["b", "c", "a"]
    np.testing.assert_allclose(list(corrected.values()), [3 * 0.01, 2 * 0.03, 2 * 0.03])
    np.testing.assert_allclose(list(holm({"a": 0.4, "b": 0.9}, tests=3).values()), [1, 1])
    assert holm({}) == {}
    assert holm({"a": 0.25, 1: 0.25}) == {"a": 0.5, 1: 0.5}
    with pytest.raises(ValueError, match="tests must be at least 2, the number of p-values, got 1"):
        holm({"a": 0.1, "b": 0.2}, tests=1)
    for p in (-1.0, 1.5, float("inf")):
        with pytest.raises(ValueError, match=rf"values\['a'\] must be a p-value .* got {p}"):
            holm({"a": p})


def test_the_first_of_several_paired_tests_decides() -> None:
    columns = {"triplet": {"new": ONE, "old": OTHER}, "margin": {"new": OTHER, "old": ONE}}
    tests = {"gain": ("new", "old"), "loss": ("old", "new")}
    table, said = paired_table("points", tests, columns, planned=3).split("\n\n")
    header, _, gain, loss = ([cell.strip() for cell in row.split("|")] for row in table.split("\n"))
    assert header == ["", "points", "triplet", "margin", ""]
    assert gain[1:-1] == ["gain: new − old", str(paired(ONE, OTHER)), str(paired(OTHER, ONE))]
    assert loss[1:-1] == ["loss: old − new", str(paired(OTHER, ONE)), str(paired(ONE, OTHER))]
    p = f"{3 * paired(ONE, OTHER).p:.2g}"
    assert said == f"gain, p with Holm's correction over 3 tests: triplet {p}, margin {p}.\n"


def test_paired_tests_without_runs() -> None:
    nothing = {"triplet": {"new": {0: 0.5}}}
    tests = {"gain": ("new", "old")}
    decided = paired_table("points", tests, nothing, planned=1)
    table = paired_table("points", tests, nothing)
    assert "| – " in table
    assert decided == f"{table}\ngain, p with Holm's correction over 1 tests: no runs yet.\n"


def test_paired_tests_are_as_many_as_planned() -> None:
    scores = {"triplet": {"new": ONE, "old": OTHER}}
    with pytest.raises(
        ValueError, match="planned must be at least 1, the number of columns, got 0"
    ):
        paired_table("points", {"gain": ("new", "old")}, scores, planned=0)
    with pytest.raises(ValueError, match="tests must hold at least one pair of ways, got none"):
        paired_table("points", {}, scores)


# What is found for a query: the nearest of a gallery, but not itself.


def test_a_query_and_its_copies_are_not_found(tmp_path):
    files = [tmp_path / name for name in "abcd"]
    for file, content in zip(files, ("one", "one", "two", "three"), strict=True):
        file.write_text(content)
    names = np.array([str(file) for file in files])
    gallery = Embedded(np.array([[0.0], [0.0], [1.0], [3.0]]), np.array([5, 5, 5, 7]), names)
    (answer,) = search_images(np.array([[0.0]]), [str(files[0])], gallery, k=2, max_distance=1e99)
    assert [(hit["file"], hit["label"]) for hit in answer["found"]] == [
        (names[2], 5),
        (names[3], 7),
    ]
    assert [hit["rank"] for hit in answer["found"]] == [1, 2]


@pytest.mark.parametrize("second_look", ["expand", "reciprocal"])
def test_a_second_look_does_not_see_the_query_in_the_gallery(tmp_path, second_look):
    x = np.random.default_rng(0).normal(size=(15, 4)).astype(np.float32)
    names = np.array([str(tmp_path / f"{row}.png") for row in range(15)])
    for name in names:
        Path(name).write_text(name)
    found = search_images(
        x[:3], names[:3].tolist(), Embedded(x, None, names), 14, np.inf, second_look
    )
    own = np.arange(3)
    if second_look == "expand":
        moved = expand_queries(x[:3], x, k=10, self_index=own)
        apart = np.linalg.norm(np.asarray(moved)[:, None] - x, axis=-1)
    else:
        apart = np.array(rerank(x[:3], x, self_index=own))
    apart[own, own] = np.inf
    for row, answer in enumerate(found):
        expected = apart[row].argsort()[:14]
        assert [hit["file"] for hit in answer["found"]] == names[expected].tolist()


def test_a_gallery_of_another_dimension_is_refused():
    with pytest.raises(ValueError, match=r"must hold embeddings \[N, 2\], got \[4, 3\]"):
        search_images(np.zeros((1, 2)), ["q"], Embedded(np.zeros((4, 3))), k=1)
