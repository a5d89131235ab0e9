"""Small pictures of images: as what a page can hold, and on a sheet of what a search found."""

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jdml._optional_imports import require_package
from jdml.data import ImageFiles
from jdml.data.folder import image_named
from jdml.data.images import open_image
from jdml.report.figures import literal, save_figure

SIDES = (96, 72, 56, 40, 28)
"""Longest sides that are tried, until the pictures fit."""
ROOM = 3_000_000
"""Characters that all pictures of a page may take."""


def picture_of(images: Any, row: int) -> Any:
    """Read one image of a data set."""
    require_package("PIL", "drawing thumbnails")
    from PIL import Image

    if isinstance(images, ImageFiles):
        try:
            return open_image(images.files[row])
        except (
            Exception
        ):  # Pillow's readers raise many kinds on damaged files; there is no picture then
            return None
    if getattr(images, "ndim", 0) != 4 or images.shape[-1] not in (1, 3, 4):
        return None
    pixels = np.asarray(images[row])
    if pixels.dtype != np.uint8:
        low, high = float(pixels.min()), float(pixels.max())
        low, high = (0.0, 1.0) if 0 <= low and high <= 1 else (low, high)
        pixels = np.clip(255 * (pixels - low) / max(high - low, 1e-12), 0, 255).astype(np.uint8)
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def thumbnails(images: Any, rows: Sequence[int], room: int = ROOM) -> dict[int, str]:
    """Make pictures that a page holds in itself."""
    tried = list(rows)[:: max(1, len(rows) // 24)]
    pictures = [picture for row in tried if (picture := picture_of(images, row)) is not None]
    side = SIDES[-1]
    for side in SIDES:
        if sum(len(address(p, side)) for p in pictures) * len(rows) <= 0.9 * room * len(pictures):
            break
    pictures_by_row: dict[int, str] = {}
    for row in rows:
        picture = picture_of(images, row)
        if picture is not None:
            pictures_by_row[int(row)] = address(picture, side)
            room -= len(pictures_by_row[int(row)])
        if room < 0:
            break
    return pictures_by_row


def address(picture: Any, side: int) -> str:
    """One picture as a ``data:`` address: small drawings without loss, photographs as WebP."""
    kept = picture.convert("L" if picture.mode in ("1", "L") else "RGB")
    exact = max(kept.size) <= min(side, 32)
    if not exact:
        kept.thumbnail((side, side))
    file = io.BytesIO()
    kept.save(file, "WEBP", lossless=exact, quality=100 if exact else 70, method=4)
    return "data:image/webp;base64," + base64.b64encode(file.getvalue()).decode()


SIDE = 160
"""Longest side of an image on the sheet, in pixels."""
MOST = 40
"""Queries on a sheet."""


def neighbour_sheet(answers: Sequence[Mapping[str, Any]], path: str | Path) -> Path:
    """Draw queries, each in a row with its neighbours, and under each its class and distance."""
    require_package("matplotlib", "a picture of neighbours")
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
            name = literal(_short(str(hit.get("label", ""))))
            axes.set_title(f"{name}\n{hit['distance']:.3f}".strip(), fontsize=6)
    return save_figure(figure, path)


def _thumbnail(file: str) -> Any:
    try:
        image = open_image(image_named(file))
    except Exception as error:  # Pillow's readers raise many kinds on damaged files
        raise ValueError(f"{file}: expected a whole image: {error}") from error
    image.thumbnail((SIDE, SIDE))
    return image


def _short(name: str, most: int = 18) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
