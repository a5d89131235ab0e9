"""``jdml evaluate``: retrieval and clustering metrics of embeddings from any framework."""

import json
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

GALLERY = ("gallery_embeddings", "gallery_labels")
"""Names of arrays that are searched."""


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
        from jdml.data.arrays import read_arrays
        from jdml.training.checkpoint import write_json

        arrays = self._read_files() if self.file.suffix == ".npy" else read_arrays(self.file)
        metrics = self._measure(arrays)
        if self.json == "-":
            print(json.dumps(metrics, indent=2))
            return
        print_table(f"{self.file}", ["metric", "value"], [[k, v] for k, v in metrics.items()])
        if self.json is not None:
            write_json(self.json, metrics)

    def _measure(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Metrics by name, as plain numbers; what is to be known of them goes to stderr."""
        from jdml.metrics.arrays import evaluate_arrays

        with warnings.catch_warnings(record=True, action="always", category=UserWarning) as told:
            metrics = evaluate_arrays(
                arrays,
                embeddings=self.embeddings,
                labels=self.labels,
                gallery_embeddings=self.gallery_embeddings,
                gallery_labels=self.gallery_labels,
                self_index=self.self_index,
                recall_at=self.recall_at,
                ndcg_at=self.ndcg_at,
                map_at=self.map_at,
                on_sphere=self.normalize == "sphere",
                clustered=self.nmi,
            )
        for warning in told:
            print(f"note: {warning.message}", file=sys.stderr)
        return metrics

    def _read_files(self) -> dict[str, np.ndarray]:
        """The arrays that lie in .npy files, by the names of the options."""
        from jdml.data.arrays import read_array

        if self.labels == "labels":
            raise ValueError(f"--labels must be the .npy file with the labels of {self.file}")
        files = {self.embeddings: self.file, self.labels: Path(self.labels)}
        if (self.gallery_embeddings, self.gallery_labels) != GALLERY:
            files[self.gallery_embeddings] = Path(self.gallery_embeddings)
            files[self.gallery_labels] = Path(self.gallery_labels)
        if self.self_index != "self_index":
            files[self.self_index] = Path(self.self_index)
        return {name: read_array(file) for name, file in files.items()}
