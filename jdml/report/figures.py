"""Figures of embeddings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jdml._optional_imports import require_package
from jdml.models.tensors import replacing
from jdml.report.embedding_analysis import label_name

Panel = tuple[str, np.ndarray, np.ndarray]


def scatter_grid(
    panels: Sequence[Panel],
    path: str | Path,
    *,
    columns: int | None = None,
    row_titles: Sequence[str] = (),
    title: str = "",
    class_names: Sequence[str] | None = None,
    max_points: int = 3000,
    seed: int = 0,
) -> Path:
    """Draw 2-D embeddings as a grid of scatter plots, coloured by class.

    Args:
        panels: ``(title, points [N, 2], labels [N])`` each, row by row. A class has one colour in all panels.
        path: the file to write; its ending gives the format (``.png``, ``.pdf``, ``.svg``).
        columns: panels in a row; by default all.
        row_titles: a text at the left of each row.
        title: a text above all panels.
        class_names: the name of label i; by default its number.
        max_points: panels with more points show a random choice of so many.
        seed: of that choice.

    Returns:
        The path.

    Raises:
        ValueError: if there are no panels, or points are not ``[N, 2]`` with ``[N]`` labels.
    """
    require_package("matplotlib", "a figure")
    from matplotlib.figure import Figure

    if not panels:
        raise ValueError("panels must hold at least one panel, got none")
    for name, points, labels in panels:
        if np.ndim(points) != 2 or np.shape(points)[1] != 2:
            raise ValueError(
                f"points of panel {name!r} must be [N, 2], got {list(np.shape(points))}"
            )
        if np.shape(labels) != (len(points),):
            raise ValueError(
                f"labels of panel {name!r} must have shape [N] = [{len(points)}], "
                f"got {list(np.shape(labels))}"
            )
    columns = columns or len(panels)
    rows = -(-len(panels) // columns)
    classes = np.unique(np.concatenate([labels for _, _, labels in panels]))
    figure = Figure(figsize=(3.1 * columns + 0.9, 3.1 * rows + 0.4), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    rng = np.random.default_rng(seed)
    for i, (name, points, labels) in enumerate(panels):
        axes = grid.flat[i]
        _scatter(axes, np.asarray(points), np.asarray(labels), classes, max_points, rng)
        axes.set_title(name, fontsize=10)
        if i % columns == 0 and i // columns < len(row_titles):
            axes.set_ylabel(row_titles[i // columns])
    figure.suptitle(title)
    _legend(figure, classes, class_names)
    return save_figure(figure, path)


def save_figure(figure: Any, path: str | Path) -> Path:
    """Write a figure of matplotlib atomically, in the format that the file's ending names."""
    path = Path(path)
    with replacing(path) as file:
        figure.savefig(file, format=path.suffix[1:] or None, dpi=150)
    return path


def literal(name: str) -> str:
    r"""Write a name so that a figure shows it as it is: no formula between dollars, no legend that hides ``_name``.

    Example:
        >>> literal("$5"), literal("_rest")
        ('\\$5', ' _rest')
    """
    return (" " if name.startswith("_") else "") + name.replace("$", r"\$")


def _color(index: int) -> tuple[float, float, float, float]:
    require_package("matplotlib", "a figure")
    from matplotlib import colormaps

    return colormaps["tab10"](index % 10) if index < 10 else colormaps["tab20b"](index % 20)


def _scatter(
    axes: object,
    points: np.ndarray,
    labels: np.ndarray,
    classes: np.ndarray,
    max_points: int,
    rng: np.random.Generator,
) -> None:
    """Draw one panel, in random order so that no class lies on top."""
    rows = rng.permutation(len(points))[:max_points]
    colors = [_color(int(i)) for i in np.searchsorted(classes, labels[rows])]
    axes.scatter(points[rows, 0], points[rows, 1], s=6, c=colors, linewidths=0, alpha=0.8)  # type: ignore[attr-defined]
    axes.set(xticks=[], yticks=[], aspect="equal")  # type: ignore[attr-defined]
    axes.set_adjustable("datalim")  # type: ignore[attr-defined]


def _legend(figure: object, classes: np.ndarray, names: Sequence[str] | None) -> None:
    from matplotlib.lines import Line2D

    marks = [
        Line2D(
            [],
            [],
            marker="o",
            linestyle="",
            color=_color(i),
            label=literal(label_name(names, c)),
        )
        for i, c in enumerate(classes)
    ]
    figure.legend(handles=marks, loc="outside right center", frameon=False)  # type: ignore[attr-defined]
