"""``jdml embed``: photographs to embeddings, with what was trained."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jdml._optional_imports import require_package
from jdml._paths import check_file
from jdml.data.image_source import Source, Split, check_data_dir, read_source
from jdml.runs.embedding_io import ENDINGS, EmbeddingTable, write_embeddings
from jdml.training import load


@dataclass(frozen=True)
class Embed:
    """Embed images with the model of a run, cropped and normalized as the run did when it was scored.

    A .npz file holds embeddings [N, D] and, where there are any, labels [N] (names of classes) and files [N]:
    what jdml evaluate and jdml search read. A .npy file holds the embeddings alone, a .parquet file (needs pyarrow) a
    row for each image. Damaged images are named and left out.
    """

    run: Path
    """Folder of a run of jdml train, jdml benchmark or jdml.training.fit; or a .safetensors file of jdml export."""
    source: str
    """A folder of images (of classes or flat), an image, a .csv file of file,label[,split], a Parquet file, or a data
    set with its folder, such as cub:CUB_200_2011; or module:name, a data set of your own module."""
    out: Path | None = None
    """The file to write: .npz, .npy or .parquet. Default: SOURCE.npz in this folder."""
    data_dir: Path | None = None
    """Folder of a data set that is given by its name alone."""
    split: Split = "all"
    """Which part. Of what the run was trained on test is what it did not train on."""
    labels: str | None = None
    """The labelling, where a data set has several. Default: the one that was trained on."""
    which: Literal["best", "last"] = "best"
    """The parameters that metrics.json scores, or those of the last checkpoint."""
    on_bad_image: Literal["skip", "stop"] = "skip"
    """Whether a damaged image is named and left out, or stops the command."""
    quiet: bool = False
    """No progress bar."""

    def execute(self) -> None:
        """Embed, write, say what was written."""
        out = self.out or Path(f"{Path(self.source.replace(':', '_')).name}.npz")
        check_file("--out", out, ENDINGS)
        if out.suffix == ".parquet":
            require_package("pyarrow", f"writing {out}")
        check_data_dir(self.source, self.data_dir)
        trained = load(self.run, which=self.which)
        source = read_source(
            self.source, self.data_dir, split=self.split, view=self.labels, config=trained.config
        )
        for note in source.notes:
            print(f"note: {note}")
        embedded, damaged = embed_source(
            trained, source, skip=self.on_bad_image == "skip", progress=not self.quiet
        )
        write_embeddings(out, embedded)
        vectors, labels = embedded.vectors, embedded.labels
        what = "" if labels is None else f" of {len(np.unique(labels)):,} classes"
        left = f", {damaged:,} damaged left out" if damaged else ""
        plural = "" if len(vectors) == 1 else "s"
        print(f"{len(vectors):,} image{plural}{what}, {vectors.shape[1]}-D{left}: {out}")


def embed_source(
    trained: Any, source: Source, *, skip: bool, progress: bool
) -> tuple[EmbeddingTable, int]:
    """Embed a source; with ``skip`` without its damaged images, of which it tells the number."""
    bad = "nan" if skip else "stop"
    vectors = trained.embed(source.images, on_bad_image=bad, progress=progress)
    whole = ~np.isnan(vectors).any(axis=1)
    if not whole.any():
        raise ValueError("every image is damaged: nothing to embed")
    labels, files = (
        None if column is None else column[whole] for column in (source.labels, source.files)
    )
    return EmbeddingTable(vectors[whole], labels, files, trained.identity), int((~whole).sum())
