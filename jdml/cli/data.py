"""``jdml data check``: whether a folder holds a data set whole. ``jdml data get``: one that comes by itself."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jdml._import_path import is_pointer
from jdml._paths import check_file
from jdml.registry import DATASETS

SHOWN = 40
"""Pairs of images that are printed."""

if TYPE_CHECKING:
    Name = str
    Prepared = str
else:
    Name = Literal[tuple(sorted(name for name, data in DATASETS.items() if data.needs_folder))]
    Prepared = Literal[tuple(sorted(name for name, data in DATASETS.items() if data.tfds))]


@dataclass(frozen=True)
class Get:
    """Download and prepare a data set with TensorFlow Datasets, where it is not prepared yet.

    Without --data-dir it lies where jdml train --data NAME finds it. Preparing needs pip install 'jdml[tfds]'.
    """

    name: Prepared
    """The data set."""
    data_dir: Path | None = None
    """Where to prepare it. Default: $TFDS_DATA_DIR, else ~/tensorflow_datasets."""

    def execute(self) -> None:
        """Prepare it, and say where it lies."""
        from jdml.data import get

        print(f"{self.name} is prepared in {get(self.name, self.data_dir)}")


@dataclass(frozen=True)
class Check:
    """Check a data set's folder: counts beside the published ones, missing files, damaged images.

    Nothing is downloaded. The exit code is 1 if something is missing or wrong.
    """

    name: Name
    """The data set. folder: any folder with a folder of images for each class."""
    dir: Path
    """Its folder, as the original comes; for folder also a .csv file of file,label[,split], a Parquet file, or
    module:name."""
    sample: int | None = None
    """Decode this many images only, drawn evenly. Default: all."""
    duplicates: bool = False
    """Also look for images that are nearly the same in two parts (train, val, test) or under two labels, by a
    perceptual hash: resized, compressed, cropped by a per cent or two. Needs pip install 'jdml[duplicates]'."""
    by: Path | None = None
    """With --duplicates: compare embeddings of this run instead; they also know mirrored images and larger crops, as
    far as it was trained to."""
    within: float | None = None
    """With --duplicates: how near two images are. Default: 48 bits of 256 of their hashes; with --by a fifth of the
    median distance of two images."""
    json: Path | None = None
    """Also write what was found into this file, with all images that are nearly the same."""
    quiet: bool = False
    """No progress bar."""

    def execute(self) -> int:
        """Check and say what was found; 1 if something is wrong."""
        from jdml.cli.terminal import print_table
        from jdml.data import check

        other = self.dir.is_file() or is_pointer(str(self.dir))
        if not self.dir.is_dir() and not (self.name == "folder" and other):
            raise ValueError(f"DIR must be a folder, got {self.dir}")
        if not self.duplicates and (self.by is not None or self.within is not None):
            raise ValueError(f"--{'within' if self.by is None else 'by'} is for --duplicates")
        if self.json is not None:
            check_file("--json", self.json, (".json",))
        checked = check(
            self.name,
            self.dir,
            sample=self.sample,
            duplicates=self.duplicates if self.by is None else self._embed(),
            within=self.within,
            progress=not self.quiet,
        )
        rows = [
            [
                part.split,
                _with_published(part.counts.classes, part.published and part.published.classes),
                _with_published(part.counts.images, part.published and part.published.images),
                f"{part.missing:,}",
            ]
            for part in checked.parts
        ]
        print(f"{self.name} in {self.dir}")
        if rows:
            columns = ["found / published", "classes", "images", "missing files"]
            print_table(None, columns, rows)
            print(f"decoded: {checked.decoded:,} images")
        if checked.lists_are_whole:
            print("the lists are whole: every count is the published one")
        if checked.alike:
            print("nearly the same, by distance:")
            for pair in checked.alike[:SHOWN]:
                print(f"{pair.distance:8.4g}  {pair.first}\n{'':8}  {pair.second}")
            if len(checked.alike) > SHOWN:
                print(f"and {len(checked.alike) - SHOWN:,} more: --json FILE has all of them")
        for note in checked.notes:
            print(f"note: {note}")
        for problem in checked.problems:
            print(f"wrong: {problem}")
        if not checked.problems:
            print("all is well")
        if self.json is not None:
            from jdml.runs.run_files import write_json

            values = {name: _plain(value) for name, value in vars(checked).items()}
            write_json(self.json, {"data": self.name, "dir": str(self.dir), **values})
        return 1 if checked.problems else 0

    def _embed(self) -> Any:
        """What embeds images as the run does."""
        from jdml.training import load

        trained = load(self.by or "")
        return lambda images: trained.embed(images, on_bad_image="nan", progress=not self.quiet)


def _plain(value: Any) -> Any:
    """What was found, as JSON has it."""
    if hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    return [_plain(part) for part in value] if isinstance(value, tuple) else value


def _with_published(count: int, published: int | None) -> str:
    return f"{count:,}" if published is None else f"{count:,} / {published:,}"
