"""``jdml search``: the nearest of a gallery to photographs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jdml._paths import check_file, expand_user
from jdml.cli.embed import embed_source
from jdml.cli.terminal import print_table
from jdml.data.folder import image_named
from jdml.data.image_source import check_data_dir, image_id, read_source
from jdml.data.load import read_path
from jdml.metrics import rejection_threshold
from jdml.ops.checks import Rerank
from jdml.report.figures import neighbour_sheet
from jdml.report.images import search_images
from jdml.runs.embedding_io import EmbeddingTable, read_embeddings
from jdml.runs.run_files import write_json
from jdml.training import load

PICTURES = (".png", ".jpg", ".pdf", ".svg")


@dataclass(frozen=True)
class Search:
    """Find the nearest of a gallery to photographs, by Euclidean distance of their embeddings.

    The gallery is embedded with the run's model, or was before: by jdml embed, with the same model. A query that lies
    in the gallery itself is not found, nor are copies of it.
    """

    run: Path
    """Folder of a run of jdml train, jdml benchmark or jdml.training.fit; or a .safetensors file of jdml export."""
    query: tuple[str, ...]
    """Images, or folders of images; a Parquet file, or a row of one, FILE[ROW]."""
    gallery: str | None = None
    """What is searched: a folder of images, a .csv or Parquet file, module:name, a data set with its folder
    (cub:CUB_200_2011), or a .npz file of jdml embed."""
    k: int = 10
    """How many are found for each query."""
    max_distance: float | Literal["auto"] | None = None
    """What is farther is not found: a query without an answer is not in the gallery. auto: the distance within which
    one in 100 of the gallery's own images finds another class."""
    rerank: Rerank = "none"
    """A second look: reciprocal prefers neighbours that are each other's (k-reciprocal), expand moves queries towards
    what they find, augment every image of the gallery towards its neighbours. Distances are then other ones."""
    json: Path | None = None
    """Also write what was found into this file."""
    out: Path | None = None
    """Also draw each query with what was found: .png, .jpg, .pdf or .svg."""
    labels: str | None = None
    """The labelling of the gallery, where its data set has several. Default: the one that was trained on."""
    data_dir: Path | None = None
    """Folder of a gallery that is given by its data set's name alone."""
    which: Literal["best", "last"] = "best"
    """The parameters that metrics.json scores, or those of the last checkpoint."""
    quiet: bool = False
    """No progress bar."""

    def execute(self) -> None:
        """Search, show, write."""
        self._check()
        trained = load(self.run, which=self.which)
        queries = _queries(self.query)
        gallery = self._gallery(trained)
        vectors = trained.embed([Path(name) for name in queries])
        limit = self._limit(gallery)
        neighbours = search_images(vectors, queries, gallery, self.k, limit, self.rerank)
        rows = []
        for answer in neighbours:
            for hit in answer["found"]:
                cells = hit["rank"], hit["distance"], hit.get("label", ""), _from_here(hit["file"])
                rows.append([Path(answer["query"]).name, *cells])
            if not answer["found"] and np.isfinite(limit):
                rows.append([Path(answer["query"]).name, "", "", "", "not in the gallery"])
        print_table(None, ["query", "rank", "distance", "class", "file"], rows)
        if self.json is not None:
            write_json(self.json, neighbours)
        if self.out is not None:
            print(f"figure: {neighbour_sheet(neighbours, self.out)}")

    def _check(self) -> None:
        if self.gallery is None:
            raise ValueError(
                "--gallery is missing: a folder of images, or a .npz file of jdml embed"
            )
        check_data_dir(self.gallery, self.data_dir)
        if self.labels is not None and self.gallery.endswith(".npz"):
            raise ValueError(
                f"--labels is for a gallery of images; {self.gallery} was embedded with the labels it holds"
            )
        if not self.query:
            raise ValueError("QUERY is missing: an image, or several")
        if self.k < 1:
            raise ValueError(f"-k must be at least 1, got {self.k}")
        if self.max_distance == "auto" and self.rerank != "none":
            raise ValueError(
                "--max-distance auto is of plain distances: give a number with --rerank"
            )
        if self.out is not None:
            check_file("--out", self.out, PICTURES)
        if self.json is not None:
            check_file("--json", self.json, (".json",))

    def _limit(self, gallery: EmbeddingTable) -> float:
        """Return the distance beyond which nothing is found."""
        if self.max_distance != "auto":
            return np.inf if self.max_distance is None else self.max_distance
        if gallery.labels is None or len(np.unique(gallery.labels)) < 2:
            raise ValueError(
                "--max-distance auto needs a gallery with the classes of its images, two at least"
            )
        limit = rejection_threshold(gallery.vectors, gallery.labels)
        print(f"max distance: {limit:.4g}, within which 1 % of the gallery finds another class")
        if limit < 0:
            print(
                "note: nothing is near enough, as more of the gallery equal an image of another class: "
                "jdml data check --duplicates finds such"
            )
        return limit

    def _gallery(self, trained: Any) -> EmbeddingTable:
        """What is searched."""
        assert self.gallery is not None
        path = expand_user(self.gallery)
        if path.suffix == ".npz":
            return _of_file(path, trained, drawn=self.out is not None)
        source = read_source(self.gallery, self.data_dir, view=self.labels, config=trained.config)
        if self.out is not None and source.files is None:
            raise ValueError(f"--out needs image files, {self.gallery} lies in memory")
        for note in source.notes:
            print(f"note: {note}")
        return embed_source(trained, source, skip=True, progress=not self.quiet)[0]


def _of_file(path: Path, trained: Any, *, drawn: bool) -> EmbeddingTable:
    """Return a gallery that was embedded before, by this model."""
    gallery = read_embeddings(path)
    if gallery.model and gallery.model != trained.identity:
        raise ValueError(
            f"{path} was embedded with another model: its distances to these queries mean nothing; "
            "embed it again (jdml embed)"
        )
    if drawn and gallery.files is None:
        raise ValueError(f"--out needs the names of image files, {path} has none")
    labels = gallery.labels
    return gallery if labels is None or labels.ndim == 1 else gallery._replace(labels=labels[:, -1])


def _queries(names: tuple[str, ...]) -> list[str]:
    """Return the images that queries stand for."""
    files: list[str] = []
    for path in (expand_user(name) for name in names):
        if isinstance(image_named(str(path)), Path) and not path.exists():
            raise FileNotFoundError(
                f"QUERY must be an image or a folder of images, {path} does not exist"
            )
        images = read_path(path)
        for note in images.notes:
            print(f"note: {path}: {note}")
        files += [image_id(file) for file in images.files]
    return files


def _from_here(file: str) -> str:
    """Return a path as it is typed in the working directory, where it lies below it."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file
