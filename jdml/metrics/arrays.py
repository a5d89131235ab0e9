"""Metrics of arrays by their names, as a file holds them: checked, scaled, measured."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from jdml._paths import check_disk_space
from jdml.metrics.clustering import agreement
from jdml.metrics.reranking import look_again
from jdml.metrics.retrieval import evaluate_retrieval
from jdml.ops import checks, sphere
from jdml.ops.checks import Rerank

AT_A_TIME = 1 << 16
"""Rows of a gallery on disk that are scaled at a time."""


def evaluate_arrays(
    arrays: Mapping[str, np.ndarray],
    *,
    embeddings: str = "embeddings",
    labels: str = "labels",
    gallery_embeddings: str = "gallery_embeddings",
    gallery_labels: str = "gallery_labels",
    self_index: str = "self_index",
    ignore_same_group: str | None = None,
    rerank: Rerank = "none",
    normalize: Literal["none", "sphere"] = "none",
    nmi: bool = False,
    **ranks: Any,
) -> dict[str, Any]:
    """Measure embeddings that lie with their labels among other arrays, such as those of a ``.npz`` file.

    Example:
        >>> arrays = {"embeddings": np.array([[0.0], [0.1], [5.0], [5.1]]), "labels": np.array(list("aabb"))}
        >>> evaluate_arrays(arrays, recall_at=(1,))["R@1"]
        1.0
    """
    queries, classes = _pair(arrays, embeddings, labels)
    gallery, gallery_classes = None, None
    renamed = gallery_embeddings != "gallery_embeddings" or gallery_labels != "gallery_labels"
    if renamed or gallery_embeddings in arrays or gallery_labels in arrays:
        gallery, gallery_classes = _pair(arrays, gallery_embeddings, gallery_labels, whole=False)
        dim = queries.shape[1]
        checks.check_embeddings(gallery_embeddings, gallery, dim=dim, like=embeddings)
        if (classes.dtype.kind in "iu") != (gallery_classes.dtype.kind in "iu"):
            raise ValueError("labels and gallery labels must both be integers or both be strings")
    own = None
    if self_index != "self_index" or self_index in arrays:
        own = np.asarray(_named(arrays, self_index))
    groups = None
    if ignore_same_group is not None:
        theirs = ignore_same_group if gallery is None else f"gallery_{ignore_same_group}"
        groups = tuple(np.asarray(_named(arrays, name)) for name in (ignore_same_group, theirs))
    with ExitStack() as stack:
        if normalize == "sphere":
            queries = _unit(queries)
            if isinstance(gallery, np.memmap):
                gallery = stack.enter_context(_unit_on_disk(gallery))
            elif gallery is not None:
                gallery = _unit(gallery)
        ranked = look_again(rerank, queries, gallery, own)
        if ranked.gallery is not None and gallery_classes is None:
            gallery_classes = classes
        measured: dict[str, Any] = evaluate_retrieval(
            ranked.queries,
            classes,
            ranked.gallery,
            gallery_classes,
            self_index=ranked.self_index,
            ignore=groups,
            distances=ranked.distances,
            **ranks,
        )
    if nmi:
        scores = [agreement(queries, level) for level in np.atleast_2d(classes.T)]
        by_name = {name: np.array([score[name] for score in scores]) for name in scores[0]}
        measured |= scores[0] if classes.ndim == 1 else by_name
    return {name: value.tolist() if classes.ndim > 1 else value for name, value in measured.items()}


def _named(arrays: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    if name not in arrays:
        raise ValueError(f"the file has no array {name!r}; it has {', '.join(sorted(arrays))}")
    return arrays[name]


def _pair(
    arrays: Mapping[str, np.ndarray], vectors: str, classes: str, *, whole: bool = True
) -> tuple[Any, Any]:
    """Take embeddings [N, D] and labels [N] from the arrays, checked; not ``whole``: those on disk stay there."""
    embeddings, labels = _named(arrays, vectors), _named(arrays, classes)
    checks.check_embeddings(vectors, embeddings)
    if not len(embeddings):
        raise ValueError(f"{vectors} must hold at least one row, got none")
    if labels.ndim not in (1, 2) or len(labels) != len(embeddings):
        raise ValueError(
            f"{classes} must have shape [N] = [{len(embeddings)}], got {list(labels.shape)}"
        )
    if labels.dtype.kind not in "iuUS":
        raise ValueError(f"{classes} must be integers or strings, got {labels.dtype}")
    if isinstance(embeddings, np.memmap) and not whole:
        return embeddings, np.asarray(labels)  # checked when it is read
    with np.errstate(over="ignore"):
        embeddings = np.array(embeddings, np.float32)
    checks.check_finite(vectors, embeddings)
    return embeddings, np.asarray(labels)


@contextmanager
def _unit_on_disk(vectors: np.memmap) -> Iterator[np.memmap]:
    """Rows scaled to length 1, in a temporary file."""
    with tempfile.TemporaryDirectory() as folder:
        check_disk_space(Path(folder), 4 * vectors.size)
        scaled = np.memmap(f"{folder}/unit", np.float32, "w+", shape=vectors.shape)
        for start in range(0, len(vectors), AT_A_TIME):
            part = np.asarray(vectors[start : start + AT_A_TIME], np.float32)
            scaled[start : start + AT_A_TIME] = _unit(part)
        yield scaled


def _unit(vectors: np.ndarray) -> Any:
    """Every row with length 1; a zero row stays zero."""
    return np.asarray(sphere(jnp.asarray(vectors)))
