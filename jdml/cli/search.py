"""``jdml search``: the nearest of a gallery to photographs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jdml._paths import check_file, expand_user
from jdml.cli.commands import print_table
from jdml.data.folder import image_named
from jdml.data.load import image_id, read_path, read_source
from jdml.gallery import Gallery
from jdml.metrics import rejection_threshold
from jdml.ops.checks import Rerank, at_least, default_of
from jdml.report.figures import neighbour_sheet
from jdml.report.images import search_images
from jdml.runs.embedding_io import EmbeddingTable, embed_source, join_tables, read_table
from jdml.runs.run_files import write_json
from jdml.training import load


@dataclass(frozen=True)
class Search:
    """Find the nearest images of a gallery to photographs, by Euclidean distance of their embeddings.

    The gallery is a folder of images, which is embedded with the run's model, or what jdml embed wrote with the same
    model. The query itself and copies of it are left out of the results.
    """

    run: Path
    """Folder of a run of jdml train, jdml benchmark or jdml.training.fit; or a .safetensors file of jdml export."""
    query: tuple[str, ...]
    """Images, folders of images, .csv or Parquet files, or a row of a Parquet file, FILE[ROW]."""
    gallery: tuple[str, ...] = ()
    """The images to search: a folder, a .csv or Parquet file, module:name, a data set with its folder
    (cub:CUB_200_2011), or a file or gallery of jdml embed; or several of these."""
    k: int = default_of(Gallery.search, "k")
    """Neighbours of each query."""
    max_distance: float | Literal["auto"] | None = None
    """Maximum distance of a match; queries without a match are reported as not in the gallery. auto: estimated at a 1 %
    false accept rate on the gallery."""
    rerank: Rerank = default_of(search_images, "second_look")
    """Rerank the neighbours: reciprocal prefers mutual neighbours (k-reciprocal), expand moves queries towards their
    neighbours, augment moves the gallery's images towards theirs. This changes the distances."""
    json: Path | None = None
    """Also write the neighbours into this file."""
    out: Path | None = None
    """Also draw each query with its neighbours: .png, .jpg, .pdf or .svg."""
    labels: str | None = None
    """The labelling of the gallery's data set. Default: the one that was trained on."""
    data_dir: Path | None = None
    """Folder of a gallery that is given by its data set's name alone."""
    which: Literal["best", "last"] = default_of(load, "which")
    """The best parameters, which metrics.json scores, or the last ones."""
    quiet: bool = False
    """No progress bar."""

    def execute(self) -> None:
        """Search the gallery, print and write the neighbours."""
        if not self.gallery:
            raise ValueError(
                "--gallery is missing: write a folder of images, or a file or gallery of jdml embed"
            )
        at_least(1)("k", self.k)
        if self.max_distance == "auto" and self.rerank != "none":
            raise ValueError("--max-distance auto does not go with --rerank: write a number")
        if self.out is not None:
            check_file("--out", self.out, (".png", ".jpg", ".pdf", ".svg"))
        if self.json is not None:
            check_file("--json", self.json, (".json",))
        trained = load(self.run, which=self.which)
        queries, notes = _queries(self.query)
        gallery = join_tables({name: self._gallery(name, trained, notes) for name in self.gallery})
        limit = self._limit(gallery, notes)
        for note in notes:
            print(f"note: {note}")
        vectors = trained.embed([Path(name) for name in queries])
        neighbours = search_images(vectors, queries, gallery, self.k, limit, self.rerank)
        rows, here = [], Path.cwd()
        for answer in neighbours:
            query = Path(answer["query"]).name
            for hit in answer["hits"]:
                path, file = Path(hit["file"]), hit["file"]
                file = str(path.relative_to(here)) if path.is_relative_to(here) else file
                rows.append([query, hit["rank"], hit["distance"], hit.get("label", ""), file])
            if not answer["hits"] and np.isfinite(limit):
                rows.append([query, "", "", "", "not in the gallery"])
        print_table(None, ["query", "rank", "distance", "class", "file"], rows)
        if self.json is not None:
            write_json(self.json, neighbours)
        if self.out is not None:
            print(f"figure: {neighbour_sheet(neighbours, self.out)}")

    def _limit(self, gallery: EmbeddingTable, notes: list[str]) -> float:
        """Return the largest distance of a match."""
        if self.max_distance != "auto":
            return np.inf if self.max_distance is None else self.max_distance
        if gallery.labels is None:
            raise ValueError("--max-distance auto needs a gallery with classes")
        limit = rejection_threshold(gallery.vectors, gallery.labels)
        print(f"max distance: {limit:.4g}, at which 1 % of the gallery finds another class")
        if limit < 0:
            notes.append("no match: images are in two classes (jdml data check --duplicates)")
        return limit

    def _gallery(self, name: str, trained: Any, notes: list[str]) -> EmbeddingTable:
        """Read or embed the images to search."""
        path = expand_user(name)
        gallery = read_table(path, trained.identity)
        if gallery is None:
            source = read_source(name, self.data_dir, view=self.labels, config=trained.config)
            notes += source.notes
            return embed_source(trained, source, on_bad_image="nan", progress=not self.quiet)[0]
        if not gallery.model:
            notes.append(f"{path} does not say which model embedded it")
        labels = gallery.labels
        finest = labels if labels is None or labels.ndim == 1 else labels[:, -1]
        return gallery._replace(labels=finest)


def _queries(names: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return the images of all queries, and notes."""
    files: list[str] = []
    notes: list[str] = []
    for path in map(expand_user, names):
        if isinstance(image_named(str(path)), Path) and not path.exists():
            raise FileNotFoundError(f"QUERY must be images or folders, {path} does not exist")
        images = read_path(path)
        notes += [f"{path}: {note}" for note in images.notes]
        files += [image_id(file) for file in images.all_files]
    if not files:
        raise ValueError("QUERY is missing: an image, or several")
    return files, notes
