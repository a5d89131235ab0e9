"""The images of runs: find them where the runs read them, and make small pictures for a page."""

import base64
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from jdml._optional_imports import require_package
from jdml.data import Dataset, ImageFiles
from jdml.data.dataset import NoSuchPartError
from jdml.data.image_source import read_source, trained_labelling
from jdml.data.images import open_image
from jdml.report.runs import Run

SIDES = (96, 72, 56, 40, 28)
"""Longest sides that are tried, until the pictures fit."""
ROOM = 3_000_000
"""Characters that all pictures of a page may take."""
SCORED = ("test", "query", "val", "all")
"""Parts of a data set; a report shows the first of which there is one."""


def attach_images(
    run: Run, source: str | None = None, data_dir: Path | None = None
) -> tuple[Run, str]:
    """Give a run the images that it was scored on and those that it was trained on, as far as they are at hand.

    Example:
        >>> attach_images(Run("a run in memory"))[1]
        ''
    """
    if run.data is not None or not run.trained:
        return run, ""
    config = run.config
    options = config.get("benchmark", config)
    name = options.get("dataset", options.get("data"))
    there = config.get("started", {}).get("data_dir") or options.get("data_dir")
    folder = data_dir or (Path(there) if there else None)
    own = str(folder) if name == "folder" and folder else name
    if source is None and own is None:
        return run, "it does not say what images it read: source names them"
    try:
        scored = _read_part(source or own, folder, config, SCORED)
    except (FileNotFoundError, ValueError, TypeError) as error:
        return run, f"its images are not at hand ({error}): source or data_dir names them"
    with_scored = replace(run, data=scored)
    try:
        return replace(with_scored, train=_trained(own, folder, config)), ""
    except (FileNotFoundError, ValueError, TypeError):
        return with_scored, ""  # proxies are then shown without what they stand for


def _read_part(text: str, folder: Path | None, config: Any, splits: Sequence[Any]) -> Dataset:
    """Read the first part of a data set of which there is one."""
    missing: list[NoSuchPartError] = []
    for split in splits:
        try:
            images = read_source(text, folder, split=split, config=config).images
        except NoSuchPartError as error:
            missing.append(error)
            continue
        if isinstance(images, Dataset):
            return images
        files = ImageFiles(images)
        return Dataset(Path(text).name, files, np.zeros(len(files), np.int32))
    raise missing[0]


def _trained(text: str | None, folder: Path | None, config: Any) -> Dataset:
    """The training part, by the labels that were trained on, numbered as the run numbered them."""
    options = config.get("benchmark", {})
    if (
        text is None
        or options.get("protocol") in ("mlrc", "ablation")
        or options.get("method") == "ccp"
    ):
        raise ValueError("the run does not say which classes it was trained on")
    part = _read_part(text, folder, config, ("train",))
    view = trained_labelling(config)
    part = part.relabel(view) if view is not None and view in part.views else part
    names = config.get("embedding", {}).get("class_names") or []
    own = next((part.class_names[v] for v in part.class_names if part.views[v] is part.labels), ())
    if names and own and list(own) != list(names):
        place = {name: number for number, name in enumerate(names)}
        known = np.array([own[label] in place for label in part.labels])
        part = part.select(known)
        return replace(part, labels=np.array([place[own[label]] for label in part.labels]))
    return part


def picture_of(images: Any, row: int) -> Any:
    """Read one image of a data set; None if there is none to show."""
    require_package("PIL", "drawing thumbnails")
    from PIL import Image

    if isinstance(images, ImageFiles):
        try:
            return open_image(images.files[row])
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
