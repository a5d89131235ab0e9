"""Options of the data: which images, what of them trains, what is scored."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from jdml import registry
from jdml._import_path import is_pointer
from jdml._paths import expand_user
from jdml.cli.options.parts import NOT_DEFINING, check_options, option_of
from jdml.ops.checks import at_least, did_you_mean, fraction_below_1, open_unit_interval, positive

if TYPE_CHECKING:
    PaperData = str
else:
    PaperData = Literal[tuple(sorted(registry.file_sets()))]


def _labels_help() -> Any:
    """Which data sets have several labellings, from their records."""
    several = [
        f"{' or '.join(dataset.labellings)} ({name})"
        for name, dataset in registry.DATASETS.items()
        if len(dataset.labellings) > 1
    ]
    return tyro.conf.arg(help=f"Labels to train on, {'; '.join(several)}.")


def _data_help() -> Any:
    """All data sets by their names, and what else images lie in."""
    return tyro.conf.arg(
        help=f"{', '.join(sorted(registry.DATASETS))}; or a folder of classes, a .csv of file,label[,split], Parquet, "
        "module:name. Default: what --data-dir holds, else digits."
    )


@dataclass(frozen=True)
class ImageOptions:
    """Where images lie, how large they are, how they are decoded."""

    data_dir: Annotated[Path | None, NOT_DEFINING] = None
    """Folder with the data set's files. Default: that of jdml data get NAME."""
    image_size: Annotated[int | None, at_least(1)] = None
    """Height and width of crops. Default: 64 with a small network, else 224."""
    label_noise: Annotated[float, fraction_below_1] = 0.0
    """Share of the training rows that get a wrong label."""
    workers: Annotated[int | None, positive, NOT_DEFINING] = None
    """Threads that decode image files. Default: one per core."""
    on_bad_image: Annotated[Literal["skip", "stop"] | None, NOT_DEFINING] = None
    """A damaged image stops the run (default), or is left out and counted."""


@dataclass(frozen=True)
class DataOptions(ImageOptions):
    """Which data set, how it is split, which labels train."""

    data: Annotated[str | None, _data_help()] = None
    split: Literal["classes", "images", "none"] | None = None
    """What is scored: classes (half of them), images (a fifth of each class's) or none. Default: the data set's own;
    of a folder its second half."""
    test_share: Annotated[float | None, open_unit_interval] = None
    """Share that --split scores. Default: 0.5 of classes, 0.2 of images."""
    classes_file: Path | None = None
    """Text file with the classes that train, one a line."""
    augmentation: Literal["conventional", "mlrc", "none"] | None = None
    """Crops in training: conventional (default), mlrc, or none (the centre)."""
    labels: Annotated[str | None, _labels_help()] = None
    train_classes: tuple[int, ...] = ()
    """Train on these classes only, by number; score seen and unseen apart."""
    validation: Annotated[float, fraction_below_1] = 0.0
    """Share of the training rows held out for evaluations."""

    def __post_init__(self) -> None:
        """Take a place for what lies there."""
        place = self.data
        if place is None or place in registry.DATASETS or self.data_dir is not None:
            return
        if is_pointer(place) or expand_user(place).exists():
            object.__setattr__(self, "data_dir", Path(place))
            object.__setattr__(self, "data", None)

    @property
    def data_name(self) -> str:
        """The data set, as typed or as its folder shows."""
        if self.data is not None:
            return self.data
        if self.data_dir is None:
            return "digits"
        from jdml.data.loading import recognize

        return recognize(self.data_dir)

    @property
    def of_files(self) -> bool:
        """Whether images are decoded when they are read."""
        return self.data_name in registry.file_sets()

    @property
    def may_hold_out(self) -> bool:
        """Whether rows may be held out: by a share of them, or by a folder's val/, which is looked for later."""
        return self.validation > 0 or self.data_name == "folder"

    def check(self) -> None:
        """Refuse what the data set does not have."""
        check_options(self)
        if self.data is not None and self.data not in registry.DATASETS:
            known = sorted(registry.DATASETS)
            raise ValueError(
                f"--data must be one of {', '.join(known)}, a path or module:name, got {self.data!r}"
                f"{did_you_mean(self.data, known)}"
            )
        name, files = self.data_name, self.of_files
        if not registry.DATASETS[name].needs_folder and self.data_dir is not None:
            raise ValueError(
                f"--data-dir is not for {name}, which need no files: write --data folder"
            )
        options = ("augmentation", "workers", "on_bad_image", "split", "test_share", "classes_file")
        for option in options:
            if not files and getattr(self, option) is not None:
                raise ValueError(
                    f"{option_of(type(self), option)} is for image files; {name} lies in memory"
                )
        if files and self.train_classes:
            *names, last = (each for each in registry.DATASETS if each not in registry.file_sets())
            raise ValueError(
                f"--train-classes is for {', '.join(names)} and {last}: "
                "of image files --classes-file names those that train"
            )
        if self.split is not None and self.classes_file is not None:
            raise ValueError(
                "--split and --classes-file both say which classes train: give one of them"
            )
        if self.test_share is not None and self.split not in ("classes", "images"):
            raise ValueError("--test-share needs --split classes or --split images")
        if self.image_size is not None and not files and not registry.DATASETS[name].sized:
            raise ValueError(f"--image-size is not for {name}, whose images are small")
        if self.classes_file is not None and not self.classes_file.is_file():
            raise ValueError(f"--classes-file must be a file, got {self.classes_file}")

    def settled(self) -> "DataOptions":
        """Return the options with the data set named, and how its files are cropped, after checking them."""
        self.check()
        if not self.of_files:
            return replace(self, data=self.data_name)
        from jdml import data

        crops = data.mlrc if self.augmentation == "mlrc" else data.conventional
        return replace(
            self,
            data=self.data_name,
            image_size=self.image_size or crops().size,
            augmentation=self.augmentation or "conventional",
            on_bad_image=self.on_bad_image or "stop",
        )
