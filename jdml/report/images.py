"""The images of runs: find them, search for the nearest ones, make small pictures for a page."""

import base64
import contextlib
import filecmp
import io
import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jdml._optional_imports import require_package
from jdml.data import Dataset, ImageFiles
from jdml.data.dataset import NoSuchPartError
from jdml.data.folder import image_named
from jdml.data.images import open_image
from jdml.data.load import read_source, trained_labelling
from jdml.metrics import nearest
from jdml.metrics.arrays import evaluate_arrays
from jdml.metrics.reranking import look_again
from jdml.ops.checks import Rerank, default_of
from jdml.report.runs import Run
from jdml.runs.embedding_io import EmbeddingTable

SCORED = ("test", "query", "val", "all")
"""Parts of a data set; a report shows the first that exists."""
SELF_SEARCH = 32
"""The nearest rows of a gallery among which reranking looks for the query itself."""


def attach_images(
    run: Run, source: str | None = None, data_dir: Path | None = None
) -> tuple[Run, str]:
    """Attach the images that a run was scored on and trained on, if they are found; else return a note."""
    if run.data is not None or not run.trained:
        return run, ""
    config = run.config
    options = config.get("benchmark", config)
    name = options.get("dataset", options.get("data"))
    place = config.get("provenance", {}).get("data_dir") or options.get("data_dir")
    folder = data_dir or (Path(place) if place else None)
    own = str(folder) if name == "folder" and folder else name
    if source is None and own is None:
        return run, "its images are unknown: name them by source"
    try:
        scored = _read_part(source or own, folder, config, SCORED)
    except (FileNotFoundError, ValueError, TypeError) as error:
        return run, f"its images are not found ({error}): name them by source or data_dir"
    run = replace(run, data=scored)
    with contextlib.suppress(FileNotFoundError, ValueError, TypeError):  # shown without them
        run = replace(run, train=_trained(own, folder, config))
    return run, ""


def _read_part(text: str, folder: Path | None, config: Any, splits: Sequence[Any]) -> Dataset:
    """Read the first part of a data set that exists."""
    for split in splits:
        with contextlib.suppress(NoSuchPartError):
            images = read_source(text, folder, split=split, config=config).images
            if isinstance(images, Dataset):
                return images
            return Dataset(Path(text).name, images, np.zeros(len(images), np.int32))
    raise NoSuchPartError(f"{text} has no part {' or '.join(splits)}")


def _trained(text: str | None, folder: Path | None, config: Any) -> Dataset:
    """Read the training part with the labels that were trained on, numbered as in the run."""
    options = config.get("benchmark", {})
    some = options.get("protocol") in ("mlrc", "ablation") or options.get("method") == "ccp"
    if text is None or some:
        raise ValueError("the run does not say which classes it was trained on")
    part = _read_part(text, folder, config, ("train",))
    view = trained_labelling(config) or ""
    part = part.relabel(view) if view in part.views else part
    names = config.get("embedding", {}).get("class_names") or []
    own = next((part.class_names[v] for v in part.class_names if part.views[v] is part.labels), ())
    if names and own and list(own) != list(names):
        place = {name: number for number, name in enumerate(names)}
        part = part.select(np.array([own[label] in place for label in part.labels]))
        return replace(part, labels=np.array([place[own[label]] for label in part.labels]))
    return part


def search_images(
    vectors: np.ndarray,
    queries: Sequence[str],
    gallery: EmbeddingTable,
    k: int,
    max_distance: float = np.inf,
    second_look: Rerank = default_of(evaluate_arrays, "rerank"),
) -> list[dict[str, Any]]:
    """Find the nearest images of a gallery by Euclidean distance, other than the query itself and its copies."""
    rows = gallery.vectors
    files = gallery.files.tolist() if gallery.files is not None else [*map(str, range(len(rows)))]

    def is_query(query: int, row: int) -> bool:
        asked, file = queries[query], files[row]
        if _same_bytes(asked, file):
            return True
        moved = Path(asked).name == Path(file).name and not Path(file).exists()
        # One image's embeddings differ a little between batches.
        rounding = 1e-3 * float(np.abs(vectors[query]).max())
        return moved and np.allclose(vectors[query], rows[row], rtol=0, atol=rounding)

    asked, searched = jnp.asarray(vectors), jnp.asarray(rows, jnp.float32)
    own = None
    if second_look != "none":
        near = np.asarray(nearest(asked, searched, min(SELF_SEARCH, len(rows)))[1]).tolist()
        own = np.array([next((i for i in of if is_query(q, i)), -1) for q, of in enumerate(near)])
    asked, searched, _, apart = look_again(second_look, asked, searched, own)
    limit = np.float32(min(max_distance, float(np.finfo(np.float32).max)))

    def hits_of(query: int, distances: np.ndarray, near: np.ndarray) -> list[dict[str, Any]]:
        within = zip(near[distances <= limit], distances[distances <= limit], strict=True)
        others = ((row, distance) for row, distance in within if not is_query(query, row))
        hits: list[dict[str, Any]] = []
        for rank, (row, distance) in enumerate(itertools.islice(others, k), 1):
            hits.append({"rank": rank, "file": files[row], "distance": round(float(distance), 6)})
            if gallery.labels is not None:
                hits[-1]["label"] = gallery.labels[row].item()
        return hits

    def search(most: int) -> list[list[dict[str, Any]]]:
        if apart is None:
            distances, indices = map(np.asarray, nearest(asked, searched, most))
        else:
            indices = np.argsort(apart, axis=1, kind="stable")[:, :most]
            distances = np.take_along_axis(np.asarray(apart), indices, axis=1)
        answers = list(map(hits_of, range(len(queries)), distances, indices))
        enough = all(
            len(hits) == k or farthest > limit
            for hits, farthest in zip(answers, distances[:, -1], strict=True)
        )
        if enough or most == len(rows):
            return answers
        return search(min(2 * most, len(rows)))  # a query has several copies

    answers = search(min(k + 1, len(rows)))
    return [{"query": name, "hits": hits} for name, hits in zip(queries, answers, strict=True)]


def _same_bytes(asked: str, file: str) -> bool:
    """Whether two image files, or rows of tables, hold the same image."""
    try:
        one, other = map(image_named, (asked, file))
        if isinstance(one, Path) and isinstance(other, Path):
            return filecmp.cmp(one, other, shallow=False)
        return np.array_equal(np.asarray(open_image(one)), np.asarray(open_image(other)))
    except (OSError, ValueError):
        return False


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


def thumbnails(images: Any, rows: Sequence[int]) -> dict[int, str]:
    """Make pictures that a page holds in itself."""
    side = 80 if len(rows) <= 1000 else 56 if len(rows) <= 2500 else 40
    pictures = ((int(row), picture_of(images, row)) for row in rows)
    return {row: _address(picture, side) for row, picture in pictures if picture is not None}


def _address(picture: Any, side: int) -> str:
    """Write one picture as a ``data:`` address: small drawings without loss, photographs as WebP."""
    small = picture.convert("L" if picture.mode in ("1", "L") else "RGB")
    exact = max(small.size) <= 32
    if not exact:
        small.thumbnail((side, side))
    file = io.BytesIO()
    small.save(file, "WEBP", lossless=exact, quality=100 if exact else 70, method=4)
    return "data:image/webp;base64," + base64.b64encode(file.getvalue()).decode()
