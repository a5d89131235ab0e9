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

from jdml._paths import check_file, expand_user
from jdml.cli.commands import print_table
from jdml.data.folder import read_column
from jdml.metrics.arrays import evaluate_arrays
from jdml.metrics.retrieval import Average, evaluate_retrieval
from jdml.ops.checks import Rerank, default_of
from jdml.runs.embedding_io import MODEL, NpzArrays, map_array, read_table
from jdml.runs.run_files import write_json


@dataclass(frozen=True)
class Evaluate:
    """Measure embeddings in a .npz file or in .npy files: retrieval metrics and, on request, clustering.

    The file holds embeddings [N, D] and labels [N] ([N, L] by level, coarsest first), and optionally
    a separate gallery, gallery_embeddings [M, D] and gallery_labels [M]. Without one, every row is
    searched among all others. Neighbours are ranked by Euclidean distance. All values are fractions,
    0 to 1. Rows with a negative label have no class: they only count as wrong answers.

    Example: np.savez("e.npz", embeddings=x, labels=y), then
    jdml evaluate e.npz --normalize sphere --recall-at 1 10 --map-at 1000 --json metrics.json

    Arrays may also be .npy files (numpy.save), from which a large gallery is read in pieces:
    jdml evaluate x.npy --labels y.npy --gallery-embeddings g.npy --gallery-labels h.npy

    Queries and gallery in two files of jdml embed, whose classes are matched by name:
    jdml evaluate q.npz --gallery g.npz
    """

    file: Path
    """The .npz file with the arrays (numpy.savez), or the .npy file with the query embeddings (numpy.save)."""
    gallery: Path | None = None
    """Search the queries of the file in this gallery: another file, or a gallery's folder, of jdml embed."""
    recall_at: tuple[int, ...] = default_of(evaluate_retrieval, "recall_at")
    """R@k, the hit rate: fraction of queries with a neighbour of their class among the k nearest."""
    precision_at: tuple[int, ...] = ()
    """P@k: fraction of right answers among the k nearest."""
    true_recall_at: tuple[int, ...] = ()
    """recall(true)@k, recommenders' recall@k: fraction of all right answers that are among the k nearest."""
    ndcg_at: tuple[int, ...] = ()
    """nDCG@k for each k."""
    map_at: tuple[int, ...] = ()
    """MAP@k for each k (MAP@R is always shown)."""
    mrr: bool = False
    """Also show MRR, the mean of 1 / the rank of the first right answer."""
    average: Average = default_of(evaluate_retrieval, "average")
    """Average over queries, or over classes (the mean of each class's mean), so that small classes count alike."""
    nmi: bool = False
    """Also cluster by k-means, one cluster per class, and compare with the labels (NMI, AMI)."""
    normalize: Literal["none", "sphere"] = default_of(evaluate_arrays, "normalize")
    """sphere: scale every vector to length 1 first, so that the ranking is by cosine."""
    embeddings: str = default_of(evaluate_arrays, "embeddings")
    """Name of the array of query embeddings."""
    labels: str = default_of(evaluate_arrays, "labels")
    """Name of the array of query labels, or its .npy file."""
    gallery_embeddings: str = default_of(evaluate_arrays, "gallery_embeddings")
    """Name of the array of gallery embeddings, or its .npy file."""
    gallery_labels: str = default_of(evaluate_arrays, "gallery_labels")
    """Name of the array of gallery labels, or its .npy file."""
    self_index: str = default_of(evaluate_arrays, "self_index")
    """Name of the optional array [N] of each query's own row in the gallery (-1: none), which is not an answer, or its
    .npy file."""
    ignore_same_group: str | None = None
    """Name of an array [N] (gallery_NAME [M] for a gallery), such as camera: pairs of one class and one group are
    ignored. Or TABLE.csv:COLUMN, for the files that jdml embed wrote; or a .npy file (for a gallery gallery_FILE.npy
    next to it)."""
    rerank: Rerank = default_of(evaluate_arrays, "rerank")
    """Rerank the neighbours: reciprocal prefers mutual neighbours (k-reciprocal), expand moves queries towards their
    neighbours, augment moves the gallery's rows towards theirs."""
    json: Path | None = None
    """Write the metrics into this .json file; - prints them instead of the table."""

    def execute(self) -> None:
        """Read the arrays, print and write the metrics."""
        if self.json not in (None, Path("-")):
            check_file("--json", self.json, (".json",))
        arrays, settings = self._read(), dict(vars(self))
        for name in ("file", "gallery", "json"):
            del settings[name]
        with warnings.catch_warnings(record=True, action="always", category=UserWarning) as warned:
            metrics = evaluate_arrays(arrays, **settings)
        for warning in warned:
            print(f"note: {warning.message}", file=sys.stderr)
        if self.json == Path("-"):
            print(json.dumps(metrics, indent=2))
            return
        rows = [[k, *(v if isinstance(v, list) else [v])] for k, v in metrics.items()]
        levels = ["value"] if len(rows[0]) == 2 else [f"level {n}" for n in range(len(rows[0]) - 1)]
        print_table(f"{self.file}", ["metric", *levels], rows)
        if self.json is not None:
            write_json(self.json, metrics)

    def _read(self) -> Mapping[str, Any]:
        """Read the arrays of the file, and the .npy files and the column of a table that options name."""
        lone, group = self.file.suffix == ".npy", self.ignore_same_group or ""
        if lone and self.labels == "labels":
            raise ValueError(f"--labels must be the .npy file with the labels of {self.file}")
        arrays = {self.embeddings: map_array(self.file)} if lone else NpzArrays(self.file)
        names = self.labels, self.gallery_embeddings, self.gallery_labels, self.self_index, group
        files = {n: Path(n) for n in names if n.endswith(".npy") and n not in arrays}
        if group in files and {*files, *arrays} & {self.gallery_embeddings}:
            files[f"gallery_{group}"] = files[group].with_name(f"gallery_{files[group].name}")
        apart = {name: map_array(file) for name, file in files.items()}
        if self.gallery is not None:
            apart |= self._read_gallery(self.gallery, arrays)
        both: ChainMap[str, Any] = ChainMap(apart, arrays)
        table, _, column = group.rpartition(":")
        if table:
            for prefix in ("", "gallery_") if self.gallery_embeddings in both else ("",):
                files = both.get(f"{prefix}files", ())
                apart[prefix + group] = read_column(expand_user(table), column, files)
        return both

    def _read_gallery(self, gallery: Path, queries: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Read the arrays of --gallery, by their names in one file with the queries."""
        table = read_table(expand_user(gallery), str(queries.get(MODEL, "")))
        if table is None or table.labels is None:
            what = "a file or gallery of jdml embed" if table is None else "of images with classes"
            raise ValueError(f"--gallery must be {what}, got {gallery}")
        named = {self.gallery_embeddings: table.vectors, self.gallery_labels: table.labels}
        group = self.ignore_same_group or ""
        if gallery.suffix == ".npz" and group in (arrays := NpzArrays(gallery)):
            named[f"gallery_{group}"] = arrays[group]
        return named if table.files is None else {**named, "gallery_files": table.files}
