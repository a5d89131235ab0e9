"""Metrics of arrays by their names, as a file holds them: checked, scaled, measured."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jdml._paths import check_disk_space
from jdml.metrics.clustering import agreement
from jdml.metrics.gallery_search import pieces
from jdml.metrics.reranking import look_again
from jdml.metrics.retrieval import evaluate_retrieval
from jdml.ops import checks, sphere


def evaluate_arrays(
    arrays: Mapping[str, Any],
    *,
    embeddings: str = "embeddings",
    labels: str = "labels",
    gallery_embeddings: str = "gallery_embeddings",
    gallery_labels: str = "gallery_labels",
    self_index: str = "self_index",
    ignore_same_group: str | None = None,
    rerank: checks.Rerank = "none",
    normalize: Literal["none", "sphere"] = "none",
    nmi: bool = False,
    **ranks: Any,
) -> dict[str, Any]:
    """Measure embeddings that lie with their labels among other arrays, such as those of a ``.npz`` file."""
    queries, classes = _pair(arrays, embeddings, labels)
    queries = np.asarray(checks.as_finite(embeddings, queries))
    gallery, theirs = None, None
    renamed = gallery_embeddings != "gallery_embeddings" or gallery_labels != "gallery_labels"
    if renamed or gallery_embeddings in arrays or gallery_labels in arrays:
        gallery, theirs = _pair(arrays, gallery_embeddings, gallery_labels)
        if not isinstance(gallery, np.memmap):  # which is checked when it is read
            gallery = np.asarray(checks.as_finite(gallery_embeddings, gallery))
    own = None
    if self_index != "self_index" or self_index in arrays:
        own = np.asarray(_named(arrays, self_index))
    groups = None
    if ignore_same_group is not None:
        other = ignore_same_group if gallery is None else f"gallery_{ignore_same_group}"
        groups = tuple(np.asarray(_named(arrays, name)) for name in (ignore_same_group, other))
    if normalize == "sphere":
        queries, gallery = _unit(queries), None if gallery is None else _unit(gallery)
    searched, gallery, own, distances = look_again(rerank, queries, gallery, own)
    measured: dict[str, Any] = evaluate_retrieval(
        searched,
        classes,
        gallery,
        classes if theirs is None and gallery is not None else theirs,
        self_index=own,
        ignore=groups,
        distances=distances,
        **ranks,
    )
    if nmi:
        scores = [agreement(queries, level) for level in np.atleast_2d(classes.T)]
        by_name = {name: np.array([score[name] for score in scores]) for name in scores[0]}
        measured |= scores[0] if classes.ndim == 1 else by_name
    return {name: value.tolist() if classes.ndim > 1 else value for name, value in measured.items()}


def _named(arrays: Mapping[str, Any], name: str) -> Any:
    if name not in arrays:
        raise ValueError(f"the file has no array {name!r}; it has {', '.join(sorted(arrays))}")
    return arrays[name]


def _pair(arrays: Mapping[str, Any], vectors: str, classes: str) -> tuple[Any, Any]:
    """Return embeddings and their labels, checked."""
    embeddings, labels = _named(arrays, vectors), np.asarray(_named(arrays, classes))
    checks.check_embeddings(vectors, embeddings)
    if not len(embeddings):
        raise ValueError(f"{vectors} must hold at least one row, got none")
    if labels.dtype.kind not in "iuUS" or labels.shape[:1] != (len(embeddings),):
        raise ValueError(
            f"{classes} must be integers or strings, one for each of {len(embeddings)} rows, got {labels.dtype} "
            f"{list(labels.shape)}"
        )
    return embeddings, labels


def _unit(vectors: Any) -> Any:
    """Every row with length 1, a zero row as it is; rows on disk in a file that goes with its last use."""
    if not isinstance(vectors, np.memmap):
        rows: Any = np.asarray(vectors, np.float32)
        return np.asarray(sphere(rows))
    check_disk_space(Path(tempfile.gettempdir()), 4 * vectors.size)
    with tempfile.TemporaryFile() as file:
        for _, piece in pieces(vectors):
            file.write(_unit(piece))
        file.flush()
        return np.memmap(file, np.float32, "r", shape=vectors.shape)
