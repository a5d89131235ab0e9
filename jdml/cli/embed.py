"""``jdml embed`` and ``jdml export``: use a trained model, here and in other programs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jdml._optional_imports import require_package
from jdml._paths import check_file, check_folder
from jdml.data.listing import pluralize
from jdml.data.load import Split, read_source
from jdml.ops.checks import default_of
from jdml.runs.embedding_io import READERS, embed_source, update_gallery, write_embeddings
from jdml.runs.export import PROGRAMS, export_file
from jdml.training import load


@dataclass(frozen=True)
class Embed:
    """Embed images with the model of a run, cropped and normalized as in its evaluation.

    A .npz file holds embeddings [N, D] and, if known, labels [N] (names of classes) and files [N], for jdml evaluate
    and jdml search. A .npy file holds the embeddings alone, with the rest in a .npy.json file; a .parquet file (needs
    pyarrow) a row for each image. Any other name is the folder of a gallery (jdml.Gallery), which --update
    extends. Damaged images are reported and skipped.
    """

    run: Path
    """Folder of a run of jdml train, jdml benchmark or jdml.training.fit; or a .safetensors file of jdml export."""
    source: str
    """A folder of images (of classes or flat), an image, a .csv file of file,label[,split], a Parquet file, or a data
    set with its folder, such as cub:CUB_200_2011; or module:name, a data set of your own module."""
    out: Path | None = None
    """The file to write, .npz, .npy or .parquet, or a gallery's folder. Default: SOURCE.npz in the working folder."""
    update: bool = False
    """Embed into the gallery only images that are new or changed (by size, modification time or class), and remove
    those that are gone. What jdml.Gallery added otherwise stays."""
    data_dir: Path | None = None
    """Folder of a data set that is given by its name alone."""
    split: Split = default_of(read_source, "split")
    """Part of the data set; for the data of the run, test is the part that it was not trained on."""
    labels: str | None = None
    """The labelling. Default: the one that was trained on."""
    which: Literal["best", "last"] = default_of(load, "which")
    """The best parameters, which metrics.json scores, or the last ones."""
    on_bad_image: Literal["skip", "stop"] = "skip"
    """Whether a damaged image is reported and skipped, or stops the command."""
    quiet: bool = False
    """No progress bar."""

    def execute(self) -> None:
        """Embed the images and write the file."""
        out = self.out or Path(f"{Path(self.source.replace(':', '_')).name}.npz")
        is_file = out.suffix in READERS
        if is_file and self.update:
            raise ValueError(f"--update needs a gallery, --out FOLDER, got the file {out}")
        if is_file:
            check_file("--out", out, tuple(READERS))
        else:
            if out.suffix[1:].isalpha() and not out.is_dir():
                raise ValueError(f"--out must be a folder or {', '.join(READERS)}, got {out}")
            check_folder("--out", out)
            if not self.update and out.is_dir() and any(out.iterdir()):
                raise ValueError(f"--out must be a new folder, or write --update, got {out}")
        if out.suffix == ".parquet":
            require_package("pyarrow", f"writing {out}")
        trained = load(self.run, which=self.which)
        source = read_source(
            self.source, self.data_dir, split=self.split, view=self.labels, config=trained.config
        )
        for note in source.notes:
            print(f"note: {note}")
        settings: Any = {"on_bad_image": "nan" if self.on_bad_image == "skip" else "stop"}
        settings["progress"] = not self.quiet
        if is_file:
            embedded, damaged = embed_source(trained, source, **settings)
            write_embeddings(out, embedded)
            (size, dim), labels = embedded.vectors.shape, embedded.labels
        else:
            gallery, done = update_gallery(out, trained, source, **settings)
            damaged, size, dim = done["damaged"], len(gallery), gallery.dim
            labels = None if source.labels is None else gallery.labels
            print(", ".join(f"{name} {number:,}" for name, number in done.items()))
        what = "" if labels is None else f" of {len(np.unique(labels)):,} classes"
        left = f", {damaged:,} damaged left out" if damaged else ""
        print(f"{pluralize(size, 'image', 'images')}{what}, {dim}-D{left}: {out}")


@dataclass(frozen=True)
class Export:
    """Write a trained model as one file: parameters, or a program that runs without jdml.

    A .safetensors file holds the parameters and their description: jdml embed, jdml search and jdml.training.load take
    it like a run. A .stablehlo file holds the program from images to embeddings for CPU, CUDA and TPU, for any number
    of images: jax.export.deserialize(open(FILE, "rb").read()).call(images). FILE.json describes the crops and the
    version of JAX. JAX reads such programs for at least six months: keep the .safetensors file to export it again.
    An .onnx file holds the same for ONNX Runtime and others: it takes images, and returns embeddings.
    """

    run: Path
    """Folder of a run of jdml train, jdml benchmark or jdml.training.fit."""
    out: Path | None = None
    """The file to write: .safetensors, .stablehlo or .onnx. Default: model.safetensors in the working directory."""
    which: Literal["best", "last"] = default_of(load, "which")
    """The best parameters, which metrics.json scores, or the last ones."""

    def execute(self) -> None:
        """Export the model."""
        out = self.out or Path("model.safetensors")
        check_file("--out", out, (".safetensors", *PROGRAMS))
        if out.suffix in PROGRAMS:
            require_package(PROGRAMS[out.suffix], f"writing {out}")
        trained = load(self.run, which=self.which)
        for file in export_file(trained, out):
            print(f"written: {file} ({file.stat().st_size / 2**10:,.0f} KiB)")
        if out.suffix in PROGRAMS:
            shape = ", ".join(map(str, trained.input["shape"]))
            print(
                f"takes images [N, {shape}] of type {trained.input['dtype']}, returns embeddings [N, D]"
            )
