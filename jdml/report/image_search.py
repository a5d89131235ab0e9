"""Images found for images: the nearest of a gallery, but not the query itself, wherever it lies in the gallery."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jdml.data.folder import image_named
from jdml.data.image_discovery import RealFiles, same_content
from jdml.data.images import open_image
from jdml.metrics import nearest
from jdml.metrics.reranking import look_again
from jdml.ops.checks import Rerank
from jdml.runs.embedding_io import EmbeddingTable

LOOKED_AT = 32
"""Of the nearest rows of a gallery so many are asked whether they are the query."""


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
    named = gallery.files is not None
    files = gallery.files.tolist() if gallery.files is not None else [*map(str, range(len(rows)))]
    itself = SelfMatch(vectors, queries, rows, files)
    asked, searched = jnp.asarray(vectors), jnp.asarray(rows, jnp.float32)
    own = _own_rows(asked, searched, itself) if named and second_look != "none" else None
    asked, searched, _, apart = look_again(second_look, asked, searched, own)
    most = min(k + 1, len(rows))
    while True:
        distances, indices = map(np.asarray, _first(asked, searched, apart, most))
        others = [
            [place for place, row in enumerate(near) if not (named and itself(query, row))][:k]
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


def _own_rows(queries: Any, gallery: Any, itself: Callable[[int, int], bool]) -> np.ndarray:
    """The gallery's row that each query is, the nearest of them; -1 for none."""
    _, near = nearest(queries, gallery, min(LOOKED_AT, len(gallery)))
    return np.array(
        [
            next((int(row) for row in rows if itself(query, row)), -1)
            for query, rows in enumerate(np.asarray(near))
        ]
    )


def _first(queries: Any, gallery: Any, apart: Any, k: int) -> tuple[Any, Any]:
    """The nearest of a gallery, by given distances where there are any."""
    if apart is None:
        return nearest(queries, gallery, k)
    order = np.argsort(apart, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(np.asarray(apart), order, axis=1), order


class SelfMatch:
    """Tell whether a row of a gallery is a query: by another path, a copy of it, or as it was before it was moved."""

    def __init__(
        self, vectors: np.ndarray, queries: Sequence[str], gallery: np.ndarray, files: list[str]
    ) -> None:
        self.vectors, self.queries = vectors, queries
        self.gallery, self.files = gallery, files
        self.real = RealFiles()

    def __call__(self, query: int, row: int) -> bool:
        """Tell whether a row is the query."""
        asked, file = self.queries[query], self.files[row]
        if self.real(asked) == self.real(file) or self._same(asked, file):
            return True
        moved = Path(asked).name == Path(file).name and not Path(file).exists()
        return moved and bool(
            np.allclose(self.vectors[query], self.gallery[row], rtol=0, atol=self._rounding(query))
        )

    def _same(self, asked: str, file: str) -> bool:
        """Whether two images hold the same bytes."""
        try:
            one, other = map(image_named, (asked, file))
            if isinstance(one, Path) and isinstance(other, Path):
                return same_content(one, other)
            return bool(np.array_equal(open_image(one), open_image(other)))
        except (OSError, ValueError):
            return False

    def _rounding(self, query: int) -> float:
        """How far apart one image's embeddings may be, computed in different batches."""
        return 1e-3 * float(np.abs(self.vectors[query]).max())
