"""Small pictures of images that a page holds in itself."""

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from jdml._optional_imports import require_package
from jdml.data import ImageFiles
from jdml.data.images import decode

SIDES = (96, 72, 56, 40, 28)
"""Longest sides that are tried, until the pictures fit."""
ROOM = 3_000_000
"""Characters that all pictures of a page may take."""


def picture_of(images: Any, row: int) -> Any:
    """Read one image of a data set; None if there is none to show."""
    require_package("PIL", "drawing thumbnails")
    from PIL import Image

    if isinstance(images, ImageFiles):
        try:
            return decode(images.files[row].read_bytes())
        except Exception:  # Pillow's readers raise many kinds on damaged files
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
    some = [picture_of(images, row) for row in list(rows)[:: max(1, len(rows) // 24)]]
    some = [picture for picture in some if picture is not None]
    side = SIDES[-1]
    for side in SIDES:
        if sum(len(address(p, side)) for p in some) * len(rows) <= 0.9 * room * len(some):
            break
    pictures: dict[int, str] = {}
    for row in rows:
        picture = picture_of(images, row)
        if picture is not None:
            pictures[int(row)] = address(picture, side)
            room -= len(pictures[int(row)])
        if room < 0:
            break
    return pictures


def address(picture: Any, side: int) -> str:
    """Write one picture as a ``data:`` address: small drawings without loss, photographs as WebP."""
    small = picture.convert("L" if picture.mode in ("1", "L") else "RGB")
    exact = max(small.size) <= min(side, 32)
    if not exact:
        small.thumbnail((side, side))
    file = io.BytesIO()
    small.save(file, "WEBP", lossless=exact, quality=100 if exact else 70, method=4)
    return "data:image/webp;base64," + base64.b64encode(file.getvalue()).decode()
