"""``jdml embed``: photographs to embeddings, with what was trained."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from jdml.cli.source import Source, Split, read_source
from jdml.models.tensors import replacing
from jdml.registry.extras import need

ENDINGS = (".npz", ".npy", ".parquet")


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
    """A folder of images (of classes or flat), an image, a .csv file of file,label[,split], or a data set with its
    folder, such as cub:CUB_200_2011."""
    out: Path | None = None
    """The file to write: .npz, .npy or .parquet. Default: SOURCE.npz in this folder."""
    data_dir: Path | None = None
    """Folder of a data set that is given by its name alone."""
    split: Split = "all"
    """Which part. Of a folder of classes test is what the run did not train on."""
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
        from jdml.training import load

        out = self.out or Path(f"{Path(self.source.replace(':', '_')).name}.npz")
        check_file(out, ENDINGS)
        if out.suffix == ".parquet":
            need("pyarrow", f"writing {out}")
        trained = load(self.run, which=self.which)
        source = read_source(
            self.source, self.data_dir, split=self.split, view=self.labels, config=trained.config
        )
        for note in source.notes:
            print(f"note: {note}")
        vectors, source, damaged = embed_source(
            trained, source, skip=self.on_bad_image == "skip", progress=not self.quiet
        )
        write_embeddings(out, vectors, source, trained.identity)
        what = "" if source.labels is None else f" of {len(np.unique(source.labels)):,} classes"
        left = f", {damaged:,} damaged left out" if damaged else ""
        plural = "" if len(vectors) == 1 else "s"
        print(f"{len(vectors):,} image{plural}{what}, {vectors.shape[1]}-D{left}: {out}")


def embed_source(
    trained: Any, source: Source, *, skip: bool, progress: bool
) -> tuple[np.ndarray, Source, int]:
    """Embed a source; with ``skip`` without its damaged images.

    Returns:
        Embeddings, what is left of the source, and how many images were damaged.
    """
    bad = "nan" if skip else "stop"
    vectors = trained.embed(source.images, on_bad_image=bad, progress=progress)
    whole = ~np.isnan(vectors).any(axis=1)
    if not whole.any():
        raise ValueError("every image is damaged: nothing to embed")
    return vectors[whole], source.select(whole), int((~whole).sum())


def write_embeddings(out: Path, vectors: np.ndarray, source: Source, identity: str) -> None:
    """Write embeddings atomically, in the format that the file's ending names."""
    named = {"labels": source.labels, "files": source.files}
    columns = {name: values for name, values in named.items() if values is not None}
    with replacing(out) as file:
        if out.suffix == ".npz":
            arrays: Any = {"embeddings": vectors, "model": np.array(identity), **columns}
            np.savez(file, **arrays)
        elif out.suffix == ".npy":
            np.save(file, vectors)
        else:
            _write_parquet(file, vectors, columns)


def check_file(out: Path, endings: tuple[str, ...], option: str = "--out") -> None:
    """Refuse a file that cannot be written, before any work.

    Raises:
        ValueError: another ending, a folder, or a folder above that is not there or may not be written.
    """
    if out.suffix not in endings:
        raise ValueError(f"{option} must end in {' or '.join(endings)}, got {out}")
    if out.is_dir():
        raise ValueError(f"{option} must be a file, {out} is a folder")
    if not out.parent.is_dir():
        raise ValueError(f"{option} must lie in a folder that exists, got {out}")
    if not os.access(out.parent, os.W_OK):
        raise ValueError(
            f"{option} must lie in a folder that may be written: no permission for {out.parent}"
        )


def _write_parquet(file: IO[bytes], vectors: np.ndarray, columns: dict[str, np.ndarray]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    flat = pa.array(np.ascontiguousarray(vectors).reshape(-1))
    arrays = {"embedding": pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])}
    names = {"labels": "label", "files": "file"}
    arrays |= {names[name]: pa.array(values.tolist()) for name, values in columns.items()}
    parquet.write_table(pa.table(arrays), file)
