"""``jdml evaluate``: retrieval and clustering metrics of embeddings from any framework."""

import json
import sys
import warnings
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jdml._paths import expand_user
from jdml.cli.terminal import print_table
from jdml.ops.checks import Rerank

GALLERY = ("gallery_embeddings", "gallery_labels")
"""Names of arrays that are searched."""


@dataclass(frozen=True)
class Evaluate:
    """Measure embeddings that lie in a .npz file, or in .npy files: retrieval metrics and, on request, clusters.

    The file holds embeddings [N, D] and labels [N] ([N, L] by level, coarsest first), and optionally
    a separate gallery, gallery_embeddings [M, D] and gallery_labels [M]. Without one, every row is
    searched among all others. Neighbours are ranked by Euclidean distance. All values are fractions,
    0 to 1. Rows with a negative label belong to no class: they are no queries and no right answers.

    Example: np.savez("e.npz", embeddings=x, labels=y), then
    jdml evaluate e.npz --normalize sphere --recall-at 1 10 --map-at 1000 --json metrics.json

    Arrays may also be .npy files of their own (numpy.save). A gallery of such stays on disk, however large:
    jdml evaluate x.npy --labels y.npy --gallery-embeddings g.npy --gallery-labels h.npy
    """

    file: Path
    """The .npz file with the arrays (numpy.savez), or the .npy file with the query embeddings (numpy.save)."""
    recall_at: tuple[int, ...] = (1, 2, 4, 8)
    """R@k, the hit rate: share of queries with a neighbour of their class among the k nearest."""
    precision_at: tuple[int, ...] = ()
    """P@k: the share of right ones among the k nearest."""
    found_at: tuple[int, ...] = ()
    """found@k, recommenders' recall@k: the share of all right ones that are among the k nearest."""
    ndcg_at: tuple[int, ...] = ()
    """nDCG@k for each k given."""
    map_at: tuple[int, ...] = ()
    """MAP@k for each k given (MAP@R is always shown)."""
    nmi: bool = False
    """Also cluster by k-means, one cluster per class, and compare with the labels (NMI, AMI)."""
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
    ignore_same: str | None = None
    """Name of an array [N] (gallery_NAME [M] for a gallery), such as camera: what is of one class and equal there does
    not count, neither right nor wrong. Or TABLE.csv:COLUMN, of the files that jdml embed wrote; or an .npy file (for
    a gallery beside it gallery_FILE.npy)."""
    rerank: Rerank = "none"
    """A second look: reciprocal prefers neighbours that are each other's (k-reciprocal), expand moves queries towards
    what they find, augment every row of the gallery towards its neighbours."""
    json: str | None = None
    """Write the metrics as JSON to this file; - is the screen, instead of the table."""

    def execute(self) -> None:
        """Read, measure, show."""
        if self.json not in (None, "-") and not Path(str(self.json)).absolute().parent.is_dir():
            raise ValueError(f"--json {self.json}: there is no folder to write it into")
        metrics = self._measure(self._grouped(self._read()))
        if self.json == "-":
            print(json.dumps(metrics, indent=2))
            return
        rows = [[k, *(v if isinstance(v, list) else [v])] for k, v in metrics.items()]
        levels = ["value"] if len(rows[0]) == 2 else [f"level {n}" for n in range(len(rows[0]) - 1)]
        print_table(f"{self.file}", ["metric", *levels], rows)
        if self.json is not None:
            from jdml.runs.run_files import write_json

            write_json(self.json, metrics)

    def _measure(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return metrics by name, as plain numbers; warnings go to stderr."""
        from jdml.metrics.arrays import evaluate_arrays

        with warnings.catch_warnings(record=True, action="always", category=UserWarning) as warned:
            metrics = evaluate_arrays(
                arrays,
                embeddings=self.embeddings,
                labels=self.labels,
                gallery_embeddings=self.gallery_embeddings,
                gallery_labels=self.gallery_labels,
                self_index=self.self_index,
                ignore_same=self.ignore_same,
                second_look=self.rerank,
                recall_at=self.recall_at,
                precision_at=self.precision_at,
                found_at=self.found_at,
                ndcg_at=self.ndcg_at,
                map_at=self.map_at,
                on_sphere=self.normalize == "sphere",
                clustered=self.nmi,
            )
        for warning in warned:
            print(f"note: {warning.message}", file=sys.stderr)
        return metrics

    def _grouped(self, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arrays, with a column of a table where one was named."""
        from jdml.data.csv_list import read_column

        table, _, column = (self.ignore_same or "").rpartition(":")
        if not table:
            return arrays
        values = read_column(expand_user(table), column)
        groups = {}
        for prefix in ("", "gallery_") if self.gallery_embeddings in arrays else ("",):
            if f"{prefix}files" not in arrays:
                raise ValueError(
                    f"--ignore-same {self.ignore_same} needs an array {prefix}files, as jdml embed writes"
                )
            files = arrays[f"{prefix}files"].tolist()
            gone = [file for file in files if file not in values]
            if gone:
                raise ValueError(
                    f"{table} does not name {len(gone)} of {len(files)} files: {gone[0]}"
                )
            groups[f"{prefix}{self.ignore_same}"] = np.array([values[file] for file in files])
        return ChainMap(groups, arrays)  # type: ignore[arg-type]  # nothing is written

    def _read(self) -> Mapping[str, Any]:
        """Return the arrays by the names of the options: those of the file, and .npy files of their own."""
        from jdml.runs.embedding_io import NpzArrays, map_array

        lone = self.file.suffix == ".npy"
        if lone and self.labels == "labels":
            raise ValueError(f"--labels must be the .npy file with the labels of {self.file}")
        arrays = {self.embeddings: map_array(self.file)} if lone else NpzArrays(self.file)
        names = {
            name: getattr(self, name)
            for name in ("labels", *GALLERY, "self_index", "ignore_same")
            if getattr(self, name) not in (name, None)
        }
        files = {
            value: Path(value)
            for name, value in names.items()
            if (lone and not (name == "ignore_same" and ":" in value))
            or (value.endswith(".npy") and value not in arrays)
        }
        if self.ignore_same in files:
            path = files[self.ignore_same]
            if self.gallery_embeddings in files or self.gallery_embeddings in arrays:
                files[f"gallery_{self.ignore_same}"] = path.with_name(f"gallery_{path.name}")
        apart = {name: map_array(file) for name, file in files.items()}
        return ChainMap(apart, arrays)  # type: ignore[arg-type]
