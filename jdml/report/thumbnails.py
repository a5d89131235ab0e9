"""Small pictures of a data set's images, as what a page can hold."""

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from jdml.registry.extras import need

SIDES = (96, 72, 56, 40, 28)
"""Longest sides that are tried, until the pictures fit."""
ROOM = 3_000_000
"""Characters that all pictures of a page may take."""


def picture_of(images: Any, row: int) -> Any:
    """Read one image of a data set.

    Args:
        images: of a :class:`jdml.data.Dataset`: an array ``[N, H, W, C]`` or image files.
        row: which.

    Returns:
        A Pillow image; None where the rows are no images, or this one cannot be read.
    """
    need("PIL", "thumbnails")
    from PIL import Image

    from jdml.data import ImageFiles
    from jdml.data.images import decode

    if isinstance(images, ImageFiles):
        try:
            return decode(images.files[row].read_bytes())
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
    """Make pictures that a page holds in itself.

    Args:
        images: of a :class:`jdml.data.Dataset`.
        rows: which.
        room: characters that they may take together; they become smaller until they fit.

    Returns:
        ``data:`` addresses by row; rows without a picture are left out.
    """
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
    """One picture as a ``data:`` address: small drawings without loss, photographs as WebP.

    Args:
        picture: a Pillow image.
        side: its longest side becomes at most so long.

    Returns:
        The address.
    """
    kept = picture.convert("L" if picture.mode in ("1", "L") else "RGB")
    exact = max(kept.size) <= min(side, 32)
    if not exact:
        kept.thumbnail((side, side))
    file = io.BytesIO()
    kept.save(file, "WEBP", lossless=exact, quality=100 if exact else 70, method=4)
    return "data:image/webp;base64," + base64.b64encode(file.getvalue()).decode()
