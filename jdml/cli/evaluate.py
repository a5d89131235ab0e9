"""``jdml evaluate``: retrieval and clustering metrics of embeddings from any framework."""

import json
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jdml.cli.arrays import read_array, read_arrays

GALLERY = ("gallery_embeddings", "gallery_labels")
"""Names of arrays that are searched."""
AT_A_TIME = 1 << 16
"""Rows of a gallery on disk that are scaled at a time."""


@dataclass(frozen=True)
class Evaluate:
    """Measure embeddings that lie in a .npz file, or in .npy files: retrieval metrics and, on request, NMI.

    The file holds embeddings [N, D] and labels [N], and optionally a separate gallery,
    gallery_embeddings [M, D] and gallery_labels [M]. Without one, every row is searched among all
    others. Neighbours are ranked by Euclidean distance. All values are fractions, 0 to 1. Rows with a
    negative label belong to no class: they are no queries and no right answers.

    Example: np.savez("e.npz", embeddings=x, labels=y), then
    jdml evaluate e.npz --normalize sphere --recall-at 1 10 --map-at 1000 --json metrics.json

    Arrays may also be .npy files of their own (numpy.save). A gallery of such stays on disk, however large:
    jdml evaluate x.npy --labels y.npy --gallery-embeddings g.npy --gallery-labels h.npy
    """

    file: Path
    """The .npz file with the arrays (numpy.savez), or the .npy file with the query embeddings (numpy.save)."""
    recall_at: tuple[int, ...] = (1, 2, 4, 8)
    """R@k: share of queries with a neighbour of their class among the k nearest."""
    ndcg_at: tuple[int, ...] = ()
    """nDCG@k for each k given."""
    map_at: tuple[int, ...] = ()
    """MAP@k for each k given (MAP@R is always shown)."""
    nmi: bool = False
    """Also cluster by k-means, one cluster per class, and compare with the labels (NMI)."""
    normalize: Literal["none", "sphere"] = "none"
    """sphere: scale every vector to length 1 first, so that the ranking is by cosine."""
    embeddings: str = "embeddings"
    """Name of the array of query embeddings."""
    labels: str = "labels"
    """Name of the array of query labels, or its .npy file."""
    gallery_embeddings: str = "gallery_embeddings"
    """Name of the array of gallery embeddings, or its .npy file."""
    gallery_labels: str = "gallery_labels"
    """Name of the array of gallery labels, or its .npy file."""
    self_index: str = "self_index"
    """Name of an array [N] of the gallery's row that each query is itself, which it is not to find (-1: none), or its
    .npy file; where there is one."""
    json: str | None = None
    """Write the metrics as JSON to this file; - is the screen, instead of the table."""

    def execute(self) -> None:
        """Read, measure, show."""
        from jdml.cli.terminal import print_table
        from jdml.training.checkpoint import write_json

        arrays = self._read_files() if self.file.suffix == ".npy" else read_arrays(self.file)
        metrics = self.measure(arrays)
        if self.json == "-":
            print(json.dumps(metrics, indent=2))
            return
        print_table(f"{self.file}", ["metric", "value"], [[k, v] for k, v in metrics.items()])
        if self.json is not None:
            write_json(self.json, metrics)

    def measure(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return the metrics by name, as plain numbers."""
        import jax.numpy as jnp

        from jdml import metrics

        queries, query_labels = _pair(arrays, self.embeddings, self.labels)
        gallery, gallery_labels = None, None
        if self.gallery_embeddings in arrays or self.gallery_labels in arrays:
            names = self.gallery_embeddings, self.gallery_labels
            gallery, gallery_labels = _pair(arrays, *names, whole=False)
            if gallery.shape[1] != queries.shape[1]:
                raise ValueError(
                    f"{self.gallery_embeddings} must have dimension D = {queries.shape[1]} as "
                    f"{self.embeddings}, got {gallery.shape[1]}"
                )
            query_labels, gallery_labels = _common_labels(query_labels, gallery_labels)
        else:
            (query_labels,) = _common_labels(query_labels)
        with ExitStack() as stack:
            if self.normalize == "sphere":
                queries = unit(queries)
                if isinstance(gallery, np.memmap):
                    gallery = stack.enter_context(_unit_on_disk(gallery))
                elif gallery is not None:
                    gallery = unit(gallery)
            told = stack.enter_context(
                warnings.catch_warnings(record=True, action="always", category=UserWarning)
            )
            retrieval = metrics.evaluate_retrieval(
                jnp.asarray(queries),
                jnp.asarray(query_labels),
                gallery,
                None if gallery_labels is None else jnp.asarray(gallery_labels),
                self_index=self._self_index(arrays),
                recall_at=self.recall_at,
                ndcg_at=self.ndcg_at,
                map_at=self.map_at,
            )
        for warning in told:
            print(f"note: {warning.message}", file=sys.stderr)
        result = {name: plain(value) for name, value in retrieval.items()}
        if self.nmi:
            result["NMI"] = plain(metrics.nmi(jnp.asarray(queries), jnp.asarray(query_labels)))
        return result

    def _self_index(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray | None:
        if self.self_index in arrays:
            return np.asarray(arrays[self.self_index])
        if self.self_index == "self_index":
            return None
        raise ValueError(
            f"the file has no array {self.self_index!r}; it has {', '.join(sorted(arrays))}"
        )

    def _read_files(self) -> dict[str, np.ndarray]:
        """The arrays that lie in .npy files, by the names of the options."""
        if self.labels == "labels":
            raise ValueError(f"--labels must be the .npy file with the labels of {self.file}")
        files = {self.embeddings: self.file, self.labels: Path(self.labels)}
        if (self.gallery_embeddings, self.gallery_labels) != GALLERY:
            files[self.gallery_embeddings] = Path(self.gallery_embeddings)
            files[self.gallery_labels] = Path(self.gallery_labels)
        if self.self_index != "self_index":
            files[self.self_index] = Path(self.self_index)
        return {name: read_array(file) for name, file in files.items()}


@contextmanager
def _unit_on_disk(vectors: np.memmap) -> Iterator[np.memmap]:
    """Rows scaled to length 1, in a temporary file."""
    with tempfile.TemporaryDirectory() as folder:
        scaled = np.memmap(f"{folder}/unit", np.float32, "w+", shape=vectors.shape)
        for start in range(0, len(vectors), AT_A_TIME):
            scaled[start : start + AT_A_TIME] = unit(np.asarray(vectors[start : start + AT_A_TIME]))
        yield scaled


def _pair(
    arrays: Mapping[str, np.ndarray], vectors: str, classes: str, *, whole: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Take embeddings [N, D] and labels [N] from the arrays, checked; not ``whole``: those on disk stay there."""
    for name in (vectors, classes):
        if name not in arrays:
            raise ValueError(f"the file has no array {name!r}; it has {', '.join(sorted(arrays))}")
    embeddings, labels = arrays[vectors], arrays[classes]
    if embeddings.ndim != 2 or 0 in embeddings.shape:
        raise ValueError(f"{vectors} must have shape [N, D], got {list(embeddings.shape)}")
    if not np.issubdtype(embeddings.dtype, np.floating):
        raise ValueError(f"{vectors} must be floating point, got {embeddings.dtype}")
    if labels.shape != (len(embeddings),):
        raise ValueError(
            f"{classes} must have shape [N] = [{len(embeddings)}], got {list(labels.shape)}"
        )
    if labels.dtype.kind not in "iuUS":
        raise ValueError(f"{classes} must be integers or strings, got {labels.dtype}")
    if isinstance(embeddings, np.memmap) and not whole:
        return embeddings, np.asarray(labels)  # checked when it is read
    broken = ~np.isfinite(embeddings).all(axis=1)
    if broken.any():
        raise ValueError(f"{vectors} must be finite, row {int(np.argmax(broken))} is not")
    return embeddings.astype(np.float32), np.asarray(labels)


def _common_labels(*labels: np.ndarray) -> list[np.ndarray]:
    """Number the labels of all arrays together 0, 1, …, as int32; negative ones are no classes, and -1."""
    kinds = {array.dtype.kind in "iu" for array in labels}
    if len(kinds) > 1:
        raise ValueError("labels and gallery labels must both be integers or both be strings")
    every = np.concatenate(labels)
    classes = np.ones(every.shape, bool) if every.dtype.kind in "US" else every >= 0
    numbers = np.full(every.shape, -1, np.int32)
    numbers[classes] = np.unique(every[classes], return_inverse=True)[1]
    ends = np.cumsum([len(array) for array in labels])[:-1]
    return np.split(numbers, ends)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Scale every row to length 1; a zero row stays zero."""
    import jax.numpy as jnp

    from jdml.ops import sphere

    return np.asarray(sphere(jnp.asarray(vectors)))


def plain(value: Any) -> int | float:
    """Turn a scalar array into a Python number."""
    number = np.asarray(value).item()
    return number if isinstance(number, int) else float(number)
