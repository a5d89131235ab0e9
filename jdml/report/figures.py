"""Figures of embeddings, neighbours, confusions and logs; the page shows the same and more."""

import io
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jdml._optional_imports import require_package
from jdml._paths import atomic_write
from jdml.data.folder import image_named
from jdml.data.images import open_image
from jdml.ops.checks import default_of, one_of
from jdml.report import embedding_stats as stats
from jdml.report.compare import compare_runs
from jdml.report.images import picture_of
from jdml.report.runs import NOT_CURVES, as_runs

FRAMES = {
    "query": ("0.2", "solid", "query"),
    "right": ("#0a6b34", "solid", "✓ right"),
    "wrong": ("#b3261e", "dashed", "✗ wrong"),
    "plain": ("0.6", "solid", ""),
}
MARKERS = "os^Dv"
"""Classes of one colour differ in their mark."""
SIDE = 160
"""Longest side of an image on a sheet of neighbours, in pixels."""
MOST = 40
"""Queries on a sheet."""
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
        path: the file to write: ``.png``, ``.pdf`` or ``.svg``.
        columns: panels in a row. Default: all.
        row_titles: a text at the left of each row.
        title: of the figure.
        class_names: the name of label i. Default: its number.
        max_points: points in a panel; of more a random choice is drawn.
        seed: of that choice.

    Returns:
        The path.
    """
    columns = columns or len(panels)
    figure, grid = _panels(len(panels), columns, (3.1, 3.1), (0.9, 0.4), title)
    classes = np.unique(np.concatenate([labels for _, _, labels in panels]))
    rng = np.random.default_rng(seed)
    for i, (axes, (name, points, labels)) in enumerate(zip(grid, panels, strict=True)):
        rows = rng.permutation(len(points))[:max_points]
        points, labels = np.asarray(points)[rows], np.asarray(labels)[rows]
        _draw_classes(axes, points, labels, classes, class_names)
        axes.set(xticks=[], yticks=[], aspect="equal")
        axes.set_adjustable("datalim")
        axes.set_title(name, fontsize=10)
        if i % columns == 0 and i // columns < len(row_titles):
            axes.set_ylabel(row_titles[i // columns])
    handles = grid[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside right center", frameon=False)
    return save_figure(figure, path)


def gallery(
    images: Any,
    embeddings: Any,
    labels: Any,
    *,
    queries: int | Sequence[int] = 8,
    k: int = 6,
    order: Literal["best", "random", "spread", "worst"] = "worst",
    class_names: Sequence[str] | None = None,
    title: str = "",
    seed: int = 0,
) -> Any:
    """Draw queries with their nearest neighbours, marked as right or wrong.

    Args:
        images: of a :class:`jdml.data.Dataset`: ``[N, H, W, C]`` or image files.
        embeddings: ``[N, D]``.
        labels: ``[N]`` integers.
        queries: how many, or which rows.
        k: neighbours of each.
        order: of the queries: ``"worst"`` or ``"best"`` by MAP@R, ``"random"``, or ``"spread"`` over the classes.
        class_names: the name of label i. Default: its number.
        title: of the figure.
        seed: of a random order.

    Returns:
        A ``matplotlib.figure.Figure``.

    Raises:
        ValueError: lengths that do not fit, fewer than two rows, or an unknown order.
    """
    x, y = _check_inputs(embeddings, labels)
    if len(images) != len(x):
        raise ValueError(f"images must have N = {len(x)} rows, got {len(images)}")
    distances, indices = stats.nearest_neighbours(x, k)
    scores = stats.score_neighbours(x, y, distances, indices)
    rows = _order(scores, order, seed)[:queries] if isinstance(queries, int) else queries
    asked = np.asarray(rows, int)
    shown = np.column_stack([asked, indices[asked]])
    kinds = np.where(y[shown] == y[asked][:, None], "right", "wrong")
    kinds[y[asked] < 0] = "plain"
    kinds[:, 0] = "query"
    figure, grid = _panels(shown.size, shown.shape[1], (1.3, 1.6), (0, 0.4), title)
    for axes, row, kind in zip(grid, shown.flat, kinds.flat, strict=True):
        colour, style, word = FRAMES[kind]
        picture = picture_of(images, row)
        if picture is not None:
            axes.imshow(np.asarray(picture), cmap="gray" if picture.mode == "L" else None)
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(linewidth=3, color=colour, linestyle=style)
        axes.set_title(f"{word}\n{_name(class_names, y[row])}", fontsize=7, color=colour)
    return figure


def embedding_map(
    embeddings: Any,
    labels: Any,
    *,
    method: stats.Projection = default_of(stats.project, "method"),
    proxies: Any = None,
    class_names: Sequence[str] | None = None,
    title: str = "",
    max_points: int = 5000,
    seed: int = 0,
) -> Any:
    """Draw embeddings in the plane, a colour and mark for each class.

    Args:
        embeddings: ``[N, D]``; two dimensions are drawn as they are.
        labels: ``[N]`` integers.
        method: ``"pca"`` or ``"tsne"`` (needs scikit-learn).
        proxies: ``[C, K, D]`` or ``[C, D]``, drawn as stars.
        class_names: the name of label i. Default: its number.
        title: of the figure.
        max_points: of more a random choice is drawn.
        seed: of that choice, and of t-SNE.

    Returns:
        A ``matplotlib.figure.Figure``.

    Raises:
        ValueError: shapes that do not fit, an unknown method, or one whose library is not installed.
    """
    x, y = _check_inputs(embeddings, labels)
    rows = np.random.default_rng(seed).permutation(len(x))[:max_points]
    x, y = x[rows], y[rows]
    if proxies is not None:
        proxies = np.asarray(proxies, np.float64).reshape(-1, x.shape[1])
    if x.shape[1] == 2:
        points, words = x if proxies is None else np.concatenate([x, proxies]), "two dimensions"
    else:
        points, words = stats.project(x, method, others=proxies, seed=seed)
    points, others = points[: len(x)], points[len(x) :]
    known = np.unique(y)
    figure, (axes,) = _panels(1, 1, (7.2, 6))
    _draw_classes(axes, points, y, known, class_names)
    if len(others):
        axes.scatter(*others.T, s=140, c="black", marker="*", edgecolors="white", label="proxies")
    if len(known) <= 30:
        figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    axes.set(xticks=[], yticks=[], xlabel=words, title=title)
    return figure


def confusions(
    embeddings: Any,
    labels: Any,
    *,
    k: int = 1,
    max_pairs: int = 15,
    class_names: Sequence[str] | None = None,
    title: str = "",
) -> Any:
    """Draw the pairs of classes that are most often taken for each other.

    Args:
        embeddings: ``[N, D]``.
        labels: ``[N]`` integers.
        k: neighbours of each row that count.
        max_pairs: pairs that are drawn.
        class_names: the name of label i. Default: its number.
        title: of the figure.

    Returns:
        A ``matplotlib.figure.Figure``: of the neighbours of rows of two classes, the share that is of the other one.

    Raises:
        ValueError: shapes that do not fit, fewer than two rows.
    """
    x, y = _check_inputs(embeddings, labels)
    pairs = stats.confused_pairs(stats.nearest_neighbours(x, k)[1], y, max_pairs)
    figure, (axes,) = _panels(1, 1, (7, 0.32 * max(len(pairs), 1) + 1.2))
    # Escaped here: an axis writes the names of its ticks again as it is drawn.
    names = [_escaped(f"{_name(class_names, a)} ↔ {_name(class_names, b)}") for a, b, _, _ in pairs]
    bars = axes.barh(range(len(pairs)), [100 * share for *_, share in pairs], color="#0072b2")
    axes.bar_label(bars, [str(count) for _, _, count, _ in pairs], padding=3, fontsize=8)
    axes.set_yticks(range(len(pairs)), names)
    axes.invert_yaxis()
    axes.set(xlabel="neighbours of the other class (%, with their number)", title=title)
    if not pairs:
        axes.text(0.5, 0.5, "no neighbour of another class", transform=axes.transAxes, ha="center")
    return figure


def curves(
    runs: Any, *, metrics: Sequence[str] | None = None, title: str = "", columns: int = 3
) -> Any:
    """Draw the logs of runs, by step, the runs overlaid.

    Args:
        runs: by name, the records of a log (``FitResult.history``) or several of them, seeds of one setting; or the
            runs that :func:`jdml.report.html_report` takes, such as folders.
        metrics: which. Default: all numbers, ``loss`` and ``grad_norm`` first.
        title: of the figure.
        columns: panels in a row.

    Returns:
        A ``matplotlib.figure.Figure``, with a panel for each metric.

    Raises:
        ValueError: a metric that nothing logged, or nothing logged at all.
    """
    if not isinstance(runs, Mapping):
        rows = compare_runs(as_runs(runs)).rows
        runs = {row.name: [run.log for run in row.runs if run.log] for row in rows}
    logs: dict[str, list[Any]] = {
        str(name): [log] if log and isinstance(log[0], Mapping) else list(log)
        for name, log in runs.items()
    }
    known = logged_metrics(log for several in logs.values() for log in several)
    if not known:
        raise ValueError("runs have logged nothing that can be drawn")
    for name in metrics or ():
        one_of("metrics", name, known)
    shown = list(metrics or known)
    figure, grid = _panels(len(shown), min(columns, len(shown)), (4.4, 3), (0, 0.5), title)
    for axes, metric in zip(grid, shown, strict=True):
        for place, (name, several) in enumerate(logs.items()):
            for number, log in enumerate(several):
                points = curve(log, metric)
                if points:
                    style = ("-", "--", ":", "-.")[place % 4]
                    label = literal(name) if number == 0 else None
                    color = f"C{place}"
                    axes.plot(*zip(*points, strict=True), style, color=color, label=label, lw=1.4)
        axes.set(title=metric, xlabel="step")
        axes.grid(alpha=0.3)
    if len(logs) > 1:
        handles, names = grid[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _draw_classes(
    axes: Any, points: np.ndarray, labels: np.ndarray, classes: np.ndarray, names: Any
) -> None:
    """Draw points, a colour and mark for each class."""
    from matplotlib import colormaps

    colours = colormaps["tab10" if len(classes) <= 10 else "tab20"]
    for place, label in enumerate(classes):
        axes.scatter(
            *points[labels == label].T,
            s=9,
            color=colours(place % colours.N),
            marker=MARKERS[place // colours.N % len(MARKERS)],
            linewidths=0,
            label=_name(names, label),
        )


def _panels(
    count: int,
    columns: int,
    cell: tuple[float, float],
    margin: tuple[float, float] = (0, 0),
    title: str = "",
) -> tuple[Any, Any]:
    """Make a figure, which a notebook shows whether pyplot is imported or not, and its panels row by row."""
    require_package("matplotlib", "a picture")
    from matplotlib.figure import Figure

    class InlineFigure(Figure):
        def savefig(self, *args: Any, **settings: Any) -> None:
            _choose_fonts(self)
            super().savefig(*args, **settings)

        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png", dpi=100)
            return file.getvalue()

    rows = -(-count // columns)
    size = columns * cell[0] + margin[0], rows * cell[1] + margin[1]
    figure = InlineFigure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flat
    for axes in grid[count:]:
        axes.set_axis_off()
    figure.suptitle(title)
    return figure, grid[:count]


def logged_metrics(logs: Iterable[Sequence[Mapping[str, Any]]]) -> list[str]:
    """Name the numbers that logs hold, the loss first."""
    names = dict.fromkeys(
        name
        for log in logs
        for record in log
        for name, value in record.items()
        if name not in NOT_CURVES and isinstance(value, int | float)
    )
    return sorted(names, key=lambda name: ({"loss": 0, "grad_norm": 1}.get(name, 2), "/" in name))


def curve(log: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    """Read a curve out of a log."""
    return [
        (int(record["step"]), float(f"{record[name]:.6g}"))
        for record in log
        if isinstance(record.get(name), int | float)
    ]


def _check_inputs(embeddings: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(embeddings, np.float64), np.asarray(labels)
    if x.ndim != 2 or len(x) < 2:
        raise ValueError(f"embeddings must be [N, D] with two rows at least, got {list(x.shape)}")
    if y.shape != (len(x),):
        raise ValueError(f"labels must have shape [N] = [{len(x)}], got {list(y.shape)}")
    return x, y


def _order(scores: stats.Scores, order: str, seed: int) -> np.ndarray:
    """Order queries; those without a match come last."""
    one_of("order", order, ("best", "random", "spread", "worst"))
    if order == "random":
        return np.random.default_rng(seed).permutation(len(scores.labels))
    if order == "spread":  # the first row of each class, classes far apart first
        first = np.unique(scores.labels, return_index=True)[1]
        return first[np.argsort(np.arange(len(first)) * 0.6180339887 % 1)]
    return np.argsort(scores.quality if order == "worst" else -scores.quality, kind="stable")


def _name(names: Sequence[str] | None, label: Any) -> str:
    name = stats.label_name(names, label)
    return literal(name if len(name) <= 24 else name[:23] + "…")


def save_figure(figure: Any, path: str | Path) -> Path:
    """Write a figure of matplotlib atomically, in the format of the file's ending."""
    path = Path(path)
    with atomic_write(path) as file:
        figure.savefig(file, format=path.suffix[1:] or None, dpi=150)
    return path


def _choose_fonts(figure: Any) -> None:
    """Let each text use fonts that have its characters, of any script; write those that no font has escaped."""
    from matplotlib.font_manager import findfont
    from matplotlib.text import Text

    for item in figure.findobj(Text):
        item.set_text(_escaped(item.get_text()))
        known = _characters(findfont(item.get_fontproperties()))
        for character in sorted({*item.get_text()} - known - {"\n"}):
            item.set_fontfamily([*item.get_fontfamily(), _family_with(character)])


def _escaped(text: str) -> str:
    return "".join(
        c if c == "\n" or _family_with(c) else c.encode("unicode_escape").decode() for c in text
    )


@cache
def _family_with(character: str) -> str | None:
    """Return the first family of fonts that has a character."""
    from matplotlib.font_manager import fontManager

    fonts = (f.name for f in fontManager.ttflist if character in _characters(f.fname))
    return next(fonts, None)


@cache
def _characters(file: str) -> frozenset[str]:
    """Return the characters that a font has; none of the one that has boxes for all."""
    from matplotlib.font_manager import get_font

    font = get_font(file)
    return frozenset(map(chr, {} if "LastResort" in file else font.get_charmap()))


def neighbour_sheet(answers: Sequence[Mapping[str, Any]], path: str | Path) -> Path:
    """Draw queries, each in a row with its neighbours, and under each its class and distance."""
    shown = answers[:MOST]
    columns = 1 + max(len(answer["hits"]) for answer in shown)
    figure, grid = _panels(columns * len(shown), columns, (1.3, 1.55))
    for axes in grid:
        axes.set_axis_off()
    for row, answer in enumerate(shown):
        query = {"file": answer["query"], "label": "query"}
        for axes, hit in zip(grid[row * columns :], [query, *answer["hits"]], strict=False):
            image = open_image(image_named(hit["file"]))
            image.thumbnail((SIDE, SIDE))
            axes.imshow(image)
            below = f"\n{hit['distance']:.3f}" if "distance" in hit else ""
            name = _name(None, str(hit.get("label", "")))
            axes.set_title(f"{name}{below}".strip(), fontsize=6)
    return save_figure(figure, path)


def literal(name: str) -> str:
    """Write a name so that a figure shows it as it is: no formula between dollars, no legend that hides ``_name``."""
    return (" " if name.startswith("_") else "") + name.replace("$", r"\$")
