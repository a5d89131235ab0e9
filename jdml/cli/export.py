"""``jdml export``: what was trained as one file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jdml._paths import check_file


@dataclass(frozen=True)
class Export:
    """Write what was trained as one file: parameters, or a program that runs without jdml.

    A .safetensors file holds the parameters and, in its metadata, what they are: jdml embed, jdml search and
    jdml.training.load take it in the place of a run. A .stablehlo file holds the whole way from images to embeddings
    for CPU, CUDA and TPU, for any number of images: jax.export.deserialize(open(FILE, "rb").read()).call(images);
    FILE.json beside it says how images are cut, by which JAX it was written and when: JAX reads programs for six months
    at least, so keep the .safetensors file, from which it can be exported again.
    """

    run: Path
    """Folder of a run of jdml train, jdml benchmark or jdml.training.fit."""
    out: Path | None = None
    """The file to write: .safetensors or .stablehlo. Default: model.safetensors in this folder."""
    which: Literal["best", "last"] = "best"
    """The parameters that metrics.json scores, or those of the last checkpoint."""

    def execute(self) -> None:
        """Export, say what was written."""
        from jdml._optional_imports import require_package
        from jdml.runs.inference import export_file
        from jdml.training import load

        out = self.out or Path("model.safetensors")
        check_file("--out", out, (".safetensors", ".stablehlo"))
        if out.suffix == ".stablehlo":
            require_package("flatbuffers", f"writing {out}")
        trained = load(self.run, which=self.which)
        for file in export_file(trained, out):
            print(f"written: {file} ({file.stat().st_size / 2**10:,.0f} KiB)")
        if out.suffix == ".stablehlo":
            shape = ", ".join(map(str, trained.input["shape"]))
            print(
                f"takes images [N, {shape}] of type {trained.input['dtype']}, returns embeddings [N, D]"
            )
            print(
                "reading it needs jax and flatbuffers; JAX promises to for six months: keep the run, to export it again"
            )
