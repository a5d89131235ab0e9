"""Search for the images nearest to a query, other than the query itself, and draw what was found."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jdml._optional_imports import require_package
from jdml.data.folder import image_named
from jdml.data.image_discovery import RealFiles, same_content
from jdml.data.images import open_image
from jdml.metrics import nearest
from jdml.metrics.reranking import look_again
from jdml.ops.checks import Rerank
from jdml.report.figures import literal, save_figure
from jdml.runs.embedding_io import EmbeddingTable

SELF_SEARCH = 32
"""The nearest rows of a gallery that may be the query itself."""
SIDE = 160
"""Longest side of an image on the sheet, in pixels."""
MOST = 40
"""Queries on a sheet."""


def search_images(
    vectors: np.ndarray,
    queries: Sequence[str],
    gallery: EmbeddingTable,
    k: int,
    max_distance: float = np.inf,
    second_look: Rerank = "none",
) -> list[dict[str, Any]]:
    """Find the nearest images of a gallery, by Euclidean distance; never the query itself, nor copies of it.

    Example:
        >>> gallery = EmbeddingTable(np.array([[0.0], [2.0], [3.0]]), np.array(["cat", "dog", "dog"]))
        >>> (answer,) = search_images(np.array([[1.8]]), ["query.jpg"], gallery, k=1)
        >>> answer["found"]
        [{'rank': 1, 'file': '1', 'distance': 0.2, 'label': 'dog'}]
    """
    rows = gallery.vectors
    if rows.ndim != 2 or rows.shape[1] != vectors.shape[1]:
        raise ValueError(
            f"gallery must hold embeddings [N, {vectors.shape[1]}], got {list(rows.shape)}"
        )
    files = gallery.files.tolist() if gallery.files is not None else [*map(str, range(len(rows)))]
    real = RealFiles()

    def is_query(query: int, row: int) -> bool:
        if gallery.files is None:
            return False
        asked, file = queries[query], files[row]
        if real(asked) == real(file) or _same_bytes(asked, file):
            return True
        moved = Path(asked).name == Path(file).name and not Path(file).exists()
        # One image's embeddings differ a little between batches.
        rounding = 1e-3 * float(np.abs(vectors[query]).max())
        return moved and np.allclose(vectors[query], rows[row], rtol=0, atol=rounding)

    asked, searched = jnp.asarray(vectors), jnp.asarray(rows, jnp.float32)
    own = None
    if gallery.files is not None and second_look != "none":
        _, near = nearest(asked, searched, min(SELF_SEARCH, len(rows)))
        own = np.array(
            [
                next((row for row in found if is_query(query, row)), -1)
                for query, found in enumerate(np.asarray(near).tolist())
            ]
        )
    asked, searched, _, apart = look_again(second_look, asked, searched, own)
    most = min(k + 1, len(rows))
    while True:
        if apart is None:
            distances, indices = map(np.asarray, nearest(asked, searched, most))
        else:
            indices = np.argsort(apart, axis=1, kind="stable")[:, :most]
            distances = np.take_along_axis(np.asarray(apart), indices, axis=1)
        others = [
            [place for place, row in enumerate(near) if not is_query(query, row)][:k]
            for query, near in enumerate(indices)
        ]
        if most == len(rows) or all(len(places) == k for places in others):
            break
        most = min(2 * most, len(rows))  # a query has several copies
    with np.errstate(over="ignore"):  # farther than any number of this type
        farthest = distances.dtype.type(max_distance)
    answers = []
    for query, near, of_rows, places in zip(queries, distances, indices, others, strict=True):
        hits: list[dict[str, Any]] = []
        for rank, place in enumerate(places, 1):
            if near[place] > farthest:
                break
            row = of_rows[place]
            hit = {"rank": rank, "file": files[row], "distance": round(float(near[place]), 6)}
            if gallery.labels is not None:
                hit["label"] = gallery.labels[row].item()
            hits.append(hit)
        answers.append({"query": query, "found": hits})
    return answers


def _same_bytes(asked: str, file: str) -> bool:
    try:
        one, other = map(image_named, (asked, file))
        if isinstance(one, Path) and isinstance(other, Path):
            return same_content(one, other)
        return np.array_equal(np.asarray(open_image(one)), np.asarray(open_image(other)))
    except (OSError, ValueError):
        return False


def neighbour_sheet(answers: Sequence[Mapping[str, Any]], path: str | Path) -> Path:
    """Draw queries, each in a row with its neighbours, and under each its class and distance."""
    require_package("matplotlib", "a picture of neighbours")
    from matplotlib.figure import Figure

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
            name = str(hit.get("label", ""))
            name = literal(name if len(name) <= 18 else name[:17] + "…")
            axes.set_title(f"{name}\n{hit['distance']:.3f}".strip(), fontsize=6)
    return save_figure(figure, path)


def _thumbnail(file: str) -> Any:
    try:
        image = open_image(image_named(file))
    except Exception as error:  # Pillow's readers raise many kinds on damaged files
        raise ValueError(f"{file}: expected a whole image: {error}") from error
    image.thumbnail((SIDE, SIDE))
    return image
