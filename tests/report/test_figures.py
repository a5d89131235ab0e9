"""Figures: panels of points, curves, galleries, maps and confusions."""

import numpy as np
import pytest
from PIL import Image
from report.files import train_config, write_run

from jdml import report

pytest.importorskip("matplotlib", reason="figures are drawn with matplotlib")


def test_grid_of_panels_is_written(tmp_path):
    panel = "points", np.random.default_rng(0).normal(size=(50, 2)), np.arange(50) % 4
    path = report.scatter_grid([panel] * 5, tmp_path / "f.png", columns=3, row_titles=["a"])
    with Image.open(path) as image:
        assert min(image.size) > 300


def test_curves_from_logs_and_folders(tmp_path):
    log = [{"step": s, "loss": 1 / s, "R@1": s / 9 if s > 1 else None} for s in (1, 2, 3)]
    figure = report.curves({"a": log, "b": [log, log]})
    assert [axes.get_title() for axes in figure.axes] == ["loss", "R@1"]
    assert len(figure.axes[0].lines) == 3
    assert figure.axes[1].lines[0].get_xdata().tolist() == [2, 3]
    write_run(tmp_path / "r", train_config(), log=log)
    assert len(report.curves(tmp_path / "r", metrics=["loss"]).axes) == 1


def titles(figure):
    return [axes.get_title() for axes in figure.axes]


def test_gallery_has_a_row_per_query(cloud):
    x, y = cloud
    images, names = np.zeros((24, 4, 4, 1), np.uint8), ["a", "b", "c"]
    figure = report.gallery(images, x, y, queries=3, k=4, class_names=names, title="t")
    assert len(titles(figure)) == 15
    assert figure._repr_png_().startswith(b"\x89PNG")  # shown by a notebook
    first = {title.split("\n")[0] for title in titles(figure)}
    assert first <= {"query", "✓ right", "✗ wrong"}
    assert titles(report.gallery(images, x, y, queries=[10], k=1))[0] == "query\n1"
    for order in ("best", "random", "spread"):
        assert len(report.gallery(images, x, y, queries=2, k=1, order=order).axes) == 4


def test_maps_and_confusions_name_classes(cloud):
    x, y = cloud
    names = ["a", "b", "c"]
    (axes,) = report.embedding_map(x, y, proxies=np.eye(3, 8), class_names=names).axes
    assert [group.get_label() for group in axes.collections] == [*names, "proxies"]
    (axes,) = report.embedding_map(x, np.array(names)[y]).axes
    assert [group.get_label() for group in axes.collections] == names
    with pytest.raises(ValueError, match="two rows at least"):
        report.embedding_map(x[:1], y[:1])
    assert len(report.embedding_map(x[:, :2], y, max_points=10).axes[0].collections) <= 3
    mixed = np.random.default_rng(0).permutation(y)
    (axes,) = report.confusions(x, mixed, k=3, class_names=names).axes
    assert {text.get_text() for text in axes.get_yticklabels()} == {"a ↔ b", "a ↔ c", "b ↔ c"}
    (axes,) = report.confusions(np.eye(4)[[0, 0, 1, 1]], np.array([0, 0, 1, 1])).axes
    assert len(axes.patches) == 0


def test_rows_without_a_class_in_figures():
    """They have no class name and no wrong neighbours; queries without a match come last."""
    x = np.array([[0.0], [1.0], [10.0], [11.5], [20.0], [30.0], [31.0]])
    y = np.array([0, 0, 1, 1, 2, -1, -1])
    names, images = ["a", "b", "alone"], np.zeros((7, 4, 4, 1), np.uint8)
    (axes,) = report.embedding_map(x.repeat(2, 1), y, class_names=names).axes
    assert [group.get_label() for group in axes.collections] == ["(no class)", *names]
    shown = report.gallery(images, x, y, queries=[5, 4], k=2, class_names=names)
    assert titles(shown) == [
        *("query\n(no class)", "\n(no class)", "\nalone"),
        *("query\nalone", "✗ wrong\nb", "✗ wrong\nb"),
    ]
    for order in ("best", "worst"):
        shown = report.gallery(images, x, y, queries=7, k=1, order=order, class_names=names)
        last = [title.removeprefix("query\n") for title in titles(shown)[8::2]]
        assert last == ["alone", "(no class)", "(no class)"]


def test_any_names_are_text_in_figures(cloud, tmp_path, recwarn):
    """Dollar signs, a leading underscore and a character without a font, also in legends."""
    x, y = cloud
    names = ["ärger $5", "\U000f0001 a$b$", "_$\\foo$"]
    figure = report.embedding_map(x, y, class_names=names)
    figure.savefig(tmp_path / "map.png")
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert shown == [r"ärger \$5", r"\U000f0001 a\$b\$", r" _\$\foo\$"]  # \$ is drawn as one
    images = np.zeros((24, 4, 4, 1), np.uint8)
    report.gallery(images, x, y, queries=2, class_names=names).savefig(tmp_path / "g.png")
    report.scatter_grid([("p", x[:, :2], y)], tmp_path / "s.svg", class_names=names)
    report.confusions(x, np.roll(y, 1), class_names=names).savefig(tmp_path / "c.png")
    assert [str(w.message) for w in recwarn if "Glyph" in str(w.message)] == []
