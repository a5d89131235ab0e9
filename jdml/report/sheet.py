"""A picture of what a search found."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jdml.registry.extras import need

SIDE = 160
"""Longest side of an image on the sheet, in pixels."""
MOST = 40
"""Queries on a sheet."""


def neighbour_sheet(answers: Sequence[Mapping[str, Any]], path: str | Path) -> Path:
    """Draw queries, each in a row with its neighbours, and under each its class and distance.

    Args:
        answers: for each query ``{"query": FILE, "found": [{"file", "distance", "label"}, …]}``, what ``jdml search``
            finds. Of more than 40 the first 40 are drawn.
        path: the file to write; its ending gives the format.

    Returns:
        The path.

    Raises:
        ValueError: nothing to draw, or an image that cannot be read, by its name.
    """
    need("matplotlib", "a picture of neighbours")
    from matplotlib.figure import Figure

    if not answers:
        raise ValueError("answers must hold at least one query, got none")
    shown = answers[:MOST]
    columns = 1 + max(len(answer["found"]) for answer in shown)
    figure = Figure(figsize=(1.3 * columns, 1.55 * len(shown)), layout="constrained")
    grid = figure.subplots(len(shown), columns, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for row, answer in zip(grid, shown, strict=True):
        row[0].imshow(_thumbnail(answer["query"]))
        row[0].set_title("query", fontsize=7, fontweight="bold")
        for axes, hit in zip(row[1:], answer["found"], strict=False):
            axes.imshow(_thumbnail(hit["file"]))
            name = _short(str(hit.get("label", "")))
            axes.set_title(f"{name}\n{hit['distance']:.3f}".strip(), fontsize=6)
    figure.savefig(path, dpi=150)
    return Path(path)


def _thumbnail(file: str) -> Any:
    from jdml.data.images import decode

    try:
        image = decode(Path(file).read_bytes())
    except Exception as error:  # Pillow's readers raise many kinds on damaged files
        raise ValueError(f"{file}: expected a whole image: {error}") from error
    image.thumbnail((SIDE, SIDE))
    return image


def _short(name: str, most: int = 18) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
