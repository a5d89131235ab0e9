"""The scatter figure and the demo."""

import json

import numpy as np
import pytest

from jdml.cli import main
from jdml.report import scatter_grid
from jdml.report.demo import COLUMNS, DemoResult, load_parts, methods, run_demo, table

pytestmark = pytest.mark.slow


def panel(classes, size=50):
    rng = np.random.default_rng(0)
    return "points", rng.normal(size=(size, 2)), rng.integers(0, classes, size)


@pytest.mark.parametrize(("count", "columns"), [(1, None), (4, 2), (5, 3)])
def test_scatter_grid_writes_a_picture(tmp_path, count, columns):
    from PIL import Image

    path = scatter_grid([panel(4)] * count, tmp_path / "f.png", columns=columns, row_titles=["a"])
    with Image.open(path) as image:
        width, height = image.size
    assert width > 300
    assert height > 300


def test_scatter_grid_names_classes(tmp_path):
    path = scatter_grid([panel(12)], tmp_path / "f.svg", class_names="abcdefghijkl", max_points=20)
    assert path.stat().st_size > 1000


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


def test_demo_keeps_the_tested_images_out_of_training():
    parts = load_parts()
    assert set(parts.train.labels.tolist()) == {0, 1}
    assert set(parts.train.views["digit"].tolist()) == set(range(6))
    assert set(parts.seen.labels.tolist()) == set(range(6))
    assert set(parts.unseen.labels.tolist()) == {6, 7, 8, 9}
    trained = {image.tobytes() for image in parts.train.images}
    assert not any(image.tobytes() in trained for image in parts.seen.images)


def test_demo_compares_what_it_says():
    names = [method.name for method in methods()]
    assert names == ["triplet", "triplet + EPS", "MS + EPS", "ProxyAnchor"]


def test_demo_table():
    scores = {"triplet": {name: [0.4, 0.5] for name in COLUMNS}}
    columns, rows = table(DemoResult(scores, {}, 0.0))
    assert columns == ["method", "0–5 R@1", "0–5 MAP@R", "6–9 R@1", "6–9 MAP@R"]
    assert rows == [["triplet", *["45.0 ± 7.1"] * 4]]


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


def test_demo_checks_its_numbers(tmp_path):
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        run_demo(tmp_path, steps=0)
