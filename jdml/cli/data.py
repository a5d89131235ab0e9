"""``jdml data check``, ``jdml data get`` and ``jdml weights convert``: files to train with."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from jdml import data
from jdml._optional_imports import is_pointer
from jdml._paths import check_file
from jdml.cli.commands import print_table
from jdml.models import convert_weights
from jdml.ops.checks import positive
from jdml.registry import DATASETS, NETWORKS, pretrained_networks
from jdml.runs.run_files import write_json
from jdml.training import load

SHOWN = 40
"""Pairs of near-duplicate images that are printed."""


@dataclass(frozen=True)
class Get:
    """Download and prepare a data set with TensorFlow Datasets, unless it is prepared.

    Without --data-dir, jdml train --data NAME finds it. Preparing needs pip install 'jdml[tfds]'.
    """

    name: Literal[tuple(sorted(name for name, each in DATASETS.items() if each.tfds))]  # type: ignore[valid-type]
    """The data set."""
    data_dir: Path | None = None
    """Folder to prepare it in. Default: $TFDS_DATA_DIR, else ~/tensorflow_datasets."""

    def execute(self) -> None:
        """Prepare it, and print its folder."""
        print(f"{self.name} is prepared in {data.get(self.name, self.data_dir)}")


@dataclass(frozen=True)
class Check:
    """Check a data set's folder: counts next to the published ones, missing files, damaged images.

    Nothing is downloaded. The exit code is 1 if something is missing or wrong.
    """

    name: Literal[tuple(sorted(name for name, each in DATASETS.items() if each.needs_folder))]  # type: ignore[valid-type]
    """The data set. folder: any folder with a folder of images for each class."""
    dir: Path
    """Its folder, as in the original archive; for folder also a .csv file of file,label[,split], a Parquet file or
    module:name."""
    sample: Annotated[int | None, positive] = None
    """Decode this many images only, drawn evenly. Default: all."""
    duplicates: bool = False
    """Also find near-duplicate images in two parts (train, val, test) or under two labels, by a perceptual hash:
    resized, compressed or slightly cropped copies. Needs pip install 'jdml[duplicates]'."""
    embeddings_of: Path | None = None
    """Find near-duplicates by the embeddings of this run instead; they may also find mirrored and larger crops."""
    threshold: float | None = None
    """Largest distance of near-duplicates. Default: 48 bits of 256 of their hashes; for embeddings a fifth of the
    median distance of two images."""
    json: Path | None = None
    """Also write the result into this file, with all near-duplicates."""
    quiet: bool = False
    """No progress bar."""

    def execute(self) -> int:
        """Check the folder and print the result; return 1 if something is wrong."""
        other = self.dir.is_file() or is_pointer(str(self.dir))
        if not self.dir.is_dir() and not (self.name == "folder" and other):
            raise ValueError(f"DIR must be a folder, got {self.dir}")
        if self.json is not None:
            check_file("--json", self.json, (".json",))
        checked = data.check(
            self.name,
            self.dir,
            sample=self.sample,
            duplicates=self.duplicates if self.embeddings_of is None else self._embed(),
            within=self.threshold,
            progress=not self.quiet,
        )
        print(f"{self.name} in {self.dir}")
        if checked.parts:
            columns = ["found / published", "classes", "images", "missing files"]
            print_table(None, columns, list(map(_row, checked.parts)))
            print(f"decoded: {checked.decoded:,} images")
        if checked.lists_are_whole:
            print("the lists are complete: every count is the published one")
        if checked.alike:
            print("near-duplicates, by distance:")
            for pair in checked.alike[:SHOWN]:
                print(f"{pair.distance:8.4g}  {pair.first}\n{'':8}  {pair.second}")
            if len(checked.alike) > SHOWN:
                print(f"and {len(checked.alike) - SHOWN:,} more: --json FILE has all of them")
        for note in checked.notes:
            print(f"note: {note}")
        for problem in checked.problems:
            print(f"wrong: {problem}")
        if not checked.problems:
            print("no problems")
        if self.json is not None:
            values = {name: _plain(value) for name, value in vars(checked).items()}
            write_json(self.json, {"data": self.name, "dir": str(self.dir), **values})
        return 1 if checked.problems else 0

    def _embed(self) -> Any:
        """Return a function that embeds images as the run does."""
        trained = load(self.embeddings_of or "")
        return lambda images: trained.embed(images, on_bad_image="nan", progress=not self.quiet)


def _plain(value: Any) -> Any:
    """Return a result as JSON has it."""
    if hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    return [_plain(part) for part in value] if isinstance(value, tuple) else value


def _row(part: Any) -> list[str]:
    """Return the counts of a part, next to the published ones."""
    counts = zip(*filter(None, (part.counts, part.published)), strict=True)
    shown = [" / ".join(f"{count:,}" for count in both) for both in counts]
    return [part.split, *shown, f"{part.missing:,}"]


@dataclass(frozen=True)
class Convert:
    """Convert pretrained weights into a file for jdml.models.load_weights.

    Reads files of torchvision, timm, transformers (Hugging Face), open_clip, DINO and DINOv2, pretrainedmodels and
    efficientnet_lite_pytorch, and checks every parameter's name and shape. A file with a missing parameter or another
    shape is refused; additional parameters, such as a classifier, are listed and left out.

    Which file of which library (jdml downloads nothing):

    {published}
    """

    file: Path
    """The downloaded .safetensors file, or one of PyTorch (.pth, .pt, .bin; needs torch)."""
    arch: Literal[tuple(sorted(pretrained_networks()))] = "resnet50"  # type: ignore[valid-type]
    """The network, as in jdml.models.create."""
    out: Path | None = None
    """The .safetensors file to write. Default: ARCH.safetensors."""
    names: bool = False
    """Also list every parameter with its name in the file."""

    def execute(self) -> None:
        """Convert the weights, and print what matched."""
        out = self.out or Path(f"{self.arch}.safetensors")
        done = convert_weights(self.file, out, arch=self.arch)
        if self.names:
            print_table(f"{self.file}", ["parameter", "in the file"], list(done.converted.items()))
        print(
            f"{self.arch}, by the names of {done.origin}: "
            f"{len(done.converted)} converted, {len(done.unused)} unused, 0 missing"
        )
        if done.unused:
            print(f"unused: {', '.join(done.unused)}")
        print(f"written: {out}")


if Convert.__doc__:  # which `python -OO` leaves out
    published = [f"{name}: {NETWORKS[name].weights}" for name in pretrained_networks()]
    Convert.__doc__ = Convert.__doc__.replace("{published}", "\n\n    ".join(published))
