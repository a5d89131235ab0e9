"""Options of the data: which images, what of them trains, what is scored."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from jdml import registry
from jdml.cli.options.base import ASIDE, Part, as_help, flag
from jdml.registry.constraints import at_least, inside_unit, nearest, positive, share
from jdml.registry.places import at_home
from jdml.registry.pointers import is_pointer

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
    return as_help(
        f"The labels to train on: {'; '.join(several)}. Default: the first. The table scores all of them."
    )


def _data_help() -> Any:
    """All data sets by their names, and what else images lie in."""
    return as_help(
        f"Data set: {', '.join(sorted(registry.DATASETS))}; or where images lie, as --data-dir has it. Default: what "
        "--data-dir holds, else digits (1,797 real 8x8 images, which need no files). folder: a folder of images for "
        "each class; or train/, val/ and test/ of such; or a .csv file of file,label[,split]; a Parquet file, a folder "
        "of such, or what Hugging Face's save_to_disk wrote, with columns image and label; or module:name, a data set "
        "of your own module, of any library."
    )


@dataclass(frozen=True)
class Images(Part):
    """Where images lie, how large they are, how they are decoded."""

    data_dir: Annotated[Path | None, ASIDE] = None
    """Folder with the data set's own files, as the original comes (jdml data check NAME DIR looks at it). Default:
    where jdml data get NAME prepares it, which is done on first use."""
    image_size: Annotated[int | None, at_least(1)] = None
    """Height and width of the images, in pixels: of Omniglot's (default: 28), or of the crops of image files
    (default: 64 with a small network, else the augmentation's, 224 or 227)."""
    label_noise: Annotated[float, share] = 0.0
    """Share of the training rows that get a wrong label, drawn by --seed."""
    workers: Annotated[int | None, positive, ASIDE] = None
    """Threads that decode image files. Default: one for each core."""
    on_bad_image: Annotated[Literal["skip", "stop"] | None, ASIDE] = None
    """What a damaged image file does: stop the run (the default), or be left out and counted. With skip, the images
    that are scored are looked through before the first step."""


@dataclass(frozen=True)
class Data(Images):
    """Which data set, how it is split, which labels train."""

    data: Annotated[str | None, _data_help()] = None
    split: Literal["classes", "images", "none"] | None = None
    """What of image files is scored. classes: half of the classes; images: a fifth of each class's images, both drawn
    by --seed; none: nothing, all train, for a final model. Default: as the data set comes; of a folder of classes the
    second half of them, by their names (numbers in them as numbers), or every second by its number of images where
    one of these halves has less than a quarter of them."""
    test_share: Annotated[float | None, inside_unit] = None
    """How much --split scores. Default: 0.5 of the classes, 0.2 of the images."""
    classes_file: Path | None = None
    """A text file with the names of the classes that train, one a line; all others are scored."""
    augmentation: Literal["conventional", "mlrc", "none"] | None = None
    """How image files are cropped in training. conventional (the default): 224 pixels; mlrc: 227, of images of short
    side 256; none: the centre, 224."""
    labels: Annotated[str | None, _labels_help()] = None
    train_classes: tuple[int, ...] = ()
    """Train on these classes only (numbers of the data set's first labels, such as digits 0 1 2 3 4 5); the table then
    scores seen and unseen classes apart. Default: all."""
    validation: Annotated[float, share] = 0.0
    """Share of the training rows held out for evaluation during training, 0 to below 1."""

    def __post_init__(self) -> None:
        """Take a place for what lies there."""
        place = self.data
        if place is None or place in registry.DATASETS or self.data_dir is not None:
            return
        if is_pointer(place) or at_home(place).exists():
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
        super().check()
        if self.data is not None and self.data not in registry.DATASETS:
            known = sorted(registry.DATASETS)
            raise ValueError(
                f"--data must be one of {', '.join(known)}, a path or module:name, got {self.data!r}"
                f"{nearest(self.data, known)}"
            )
        name, files = self.data_name, self.of_files
        if not registry.DATASETS[name].needs_folder and self.data_dir is not None:
            raise ValueError(
                f"--data-dir is not for {name}, which need no files: write --data folder"
            )
        options = ("augmentation", "workers", "on_bad_image", "split", "test_share", "classes_file")
        for option in options:
            if not files and getattr(self, option) is not None:
                raise ValueError(f"{flag(option)} is for image files; {name} lies in memory")
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

    def settled(self) -> Self:
        """Also name the data set, and how its files are cut."""
        options = super().settled()
        if not options.of_files:
            return replace(options, data=options.data_name)
        from jdml import data

        crops = data.mlrc if options.augmentation == "mlrc" else data.conventional
        return replace(
            options,
            data=options.data_name,
            image_size=options.image_size or crops().size,
            augmentation=options.augmentation or "conventional",
            on_bad_image=options.on_bad_image or "stop",
        )
