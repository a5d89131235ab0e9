"""Options of the commands that train, in groups: the data, the weights, the run's folder, the devices."""

import contextlib
import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import jax

from jdml import data, models, registry
from jdml._import_path import is_pointer
from jdml._paths import check_folder, expand_user
from jdml.cli.options.reading import NOT_DEFINING, Help, check_options, option_of
from jdml.data.load import recognize
from jdml.models.tensors import read_metadata
from jdml.models.weights import ARCHITECTURE
from jdml.ops.checks import (
    at_least,
    did_you_mean,
    fraction_below_1,
    one_of,
    open_unit_interval,
    positive,
    uint32,
)
from jdml.training import initialize, standard

if TYPE_CHECKING:
    PaperData = str
else:
    PaperData = Literal[tuple(sorted(data.IMAGE_FILES))]

LABELS = Help(
    "Labels to train on, "
    + "; ".join(
        f"{' or '.join(dataset.labellings)} ({name})"
        for name, dataset in registry.DATASETS.items()
        if len(dataset.labellings) > 1
    )
    + "."
)
DATA = Help(
    f"{', '.join(sorted(registry.DATASETS))}; or a folder of classes, a .csv of file,label[,split], Parquet, "
    "module:name. Default: what --data-dir holds, else digits."
)
OF_FILES = ("augmentation", "workers", "on_bad_image", "split", "test_share", "classes_file")
"""Options of data sets of image files."""
MOST_OF_A_CPU = 64
"""Devices that a CPU is divided into, at most."""


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

    data: Annotated[str | None, DATA] = None
    split: Literal["classes", "images", "none"] | None = None
    """What is scored: classes (half of them), images (a fifth of each class's) or none. Default: the data set's own;
    of a folder its second half."""
    test_share: Annotated[float | None, open_unit_interval] = None
    """Share that --split scores. Default: 0.5 of classes, 0.2 of images."""
    classes_file: Path | None = None
    """Text file with the classes that train, one a line."""
    augmentation: Literal["conventional", "mlrc", "none"] | None = None
    """Crops in training: conventional (default), mlrc, or none (the centre)."""
    labels: Annotated[str | None, LABELS] = None
    train_classes: tuple[int, ...] = ()
    """Train on these classes only, by number; score seen and unseen apart."""
    validation: Annotated[float, fraction_below_1] = 0.0
    """Share of the training rows held out for evaluations."""

    def __post_init__(self) -> None:
        """Take a path or module:name for the folder."""
        place = self.data
        if place is None or place in registry.DATASETS or self.data_dir is not None:
            return
        if is_pointer(place) or expand_user(place).exists():
            object.__setattr__(self, "data_dir", Path(place))
            object.__setattr__(self, "data", None)

    @property
    def data_name(self) -> str:
        """The data set, as typed or as its folder shows."""
        if self.data is not None or self.data_dir is None:
            return self.data or "digits"

        return recognize(self.data_dir)

    @property
    def of_files(self) -> bool:
        """Whether images are decoded when they are read."""
        record = registry.DATASETS.get(self.data_name)
        return record is not None and record.kind == "files"

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
        sized = files or registry.DATASETS[name].sized
        for option in (*(() if files else OF_FILES), *(() if sized else ("image_size",))):
            if getattr(self, option) is not None:
                raise ValueError(
                    f"{option_of(type(self), option)} is for image files; {name} lies in memory"
                )
        if files and self.train_classes:
            raise ValueError(
                "--train-classes is for data sets in memory: of image files --classes-file names those that train"
            )
        if self.split is not None and self.classes_file is not None:
            raise ValueError(
                "--split and --classes-file both say which classes train: give one of them"
            )
        if self.test_share is not None and self.split not in ("classes", "images"):
            raise ValueError("--test-share needs --split classes or --split images")

    def resolve(self) -> "DataOptions":
        """Return the options with the data set named, and how its files are cropped, after checking them."""
        self.check()
        if not self.of_files:
            return replace(self, data=self.data_name)

        crops = data.mlrc if self.augmentation == "mlrc" else data.conventional
        return replace(
            self,
            data=self.data_name,
            image_size=self.image_size or crops().size,
            augmentation=self.augmentation or "conventional",
            on_bad_image=self.on_bad_image or "stop",
        )


@dataclass(frozen=True)
class WeightOptions:
    """Pretrained weights, and how images are normalized for them."""

    weights: Path | None = None
    """Pretrained weights, from jdml weights convert."""
    normalization: str | None = None
    """Whose statistics normalize images, such as vit_s16_dino. Default: the network's."""

    def check(self, model: str | None) -> None:
        """Refuse weights that are no file, or of another network."""
        known = sorted(registry.pretrained_networks())
        own = model is not None and is_pointer(model)
        if self.weights is not None and not self.weights.is_file():
            raise ValueError(f"--weights must be a file, got {self.weights}")
        if self.normalization is not None:
            one_of("--normalization", self.normalization, sorted(registry.image_statistics()))
            if self.weights is None and not own:
                raise ValueError("--normalization needs --weights, whose images are normalized")
        if self.weights is not None and model is not None and model not in known:
            raise ValueError(
                f"--weights are those of {', '.join(known[:-1])} or {known[-1]}, got --model {model}"
            )

    def model_name(self) -> str | None:
        """Return the network that the weights name; None without weights."""
        if self.weights is None:
            return None
        model = read_metadata(self.weights).get(ARCHITECTURE)
        if model is None:
            raise ValueError(
                f"--weights {self.weights} does not name its network: convert it first (jdml weights convert)"
            )
        return str(model)

    def pretrained(self) -> Any:
        """Return what loads the weights; None without weights."""
        return None if self.weights is None else partial(models.load_weights, self.weights)

    def network_settings(self, model: str) -> dict[str, Any]:
        """Return the attributes of a network that the statistics imply."""
        own = {} if is_pointer(model) else registry.NETWORKS[model].other_settings
        return dict(own.get(self.normalization or "", {}))

    def preprocess(self, model: str, *, always: bool = False) -> Any:
        """Return what stands between stored images and a network."""
        normalizes = always or self.weights is not None or self.normalization is not None
        return models.normalizer(self.normalization or model) if normalizes else standard


@dataclass(frozen=True)
class FolderOptions:
    """The run's folder and its random numbers."""

    seed: Annotated[int, uint32] = 0
    """Of parameters, batches, miners, augmentation, --split, --validation."""
    out: Annotated[Path | None, NOT_DEFINING] = None
    """Folder of the run: config.json, log.jsonl, checkpoints, model.safetensors."""
    quiet: Annotated[bool, NOT_DEFINING] = False
    """No progress bar."""

    def check(self) -> None:
        """Refuse a folder that cannot be one."""
        check_options(self)
        if self.out is not None:
            check_folder("--out", self.out)


@dataclass(frozen=True)
class RunOptions(FolderOptions):
    """The run's folder, its log, its checkpoints."""

    checkpoint_every: Annotated[int | None, positive, NOT_DEFINING] = None
    """Steps between checkpoints. Default: --evaluate-every."""
    log_every: Annotated[int | None, positive, NOT_DEFINING] = None
    """Steps between lines of the log. Default: 50."""
    tensorboard: Annotated[bool, NOT_DEFINING] = False
    """Also write TensorBoard event files."""
    feature_cache: Annotated[Path | None, NOT_DEFINING] = None
    """Folder of cached features, for other runs. Default: features/ in --out."""

    def check(self) -> None:
        """Refuse what needs a folder where there is none."""
        super().check()
        for name in ("checkpoint_every", "log_every", "tensorboard"):
            if getattr(self, name) and self.out is None:
                raise ValueError(
                    f"{option_of(type(self), name)} needs --out, a folder to write into"
                )


@dataclass(frozen=True)
class DeviceOptions:
    """Which devices and processes train, and how many rows at a time."""

    devices: Annotated[str | None, NOT_DEFINING] = None
    """Devices that share a batch: a number (also of a CPU), or all."""
    micro_batch: Annotated[int | None, at_least(1), NOT_DEFINING] = None
    """Rows that go through the network at a time; the loss sees all."""
    coordinator: Annotated[str | None, NOT_DEFINING] = None
    """HOST:PORT of the first of several processes started by hand."""
    processes: Annotated[int | None, NOT_DEFINING] = None
    """Number of processes."""
    process: Annotated[int | None, NOT_DEFINING] = None
    """Which of them this is, from 0."""

    def check(self) -> None:
        """Refuse what is no number of devices or rows."""
        check_options(self)
        if self.devices not in (None, "all") and not str(self.devices).isdigit():
            raise ValueError(f"--devices must be a number or all, got {self.devices!r}")

    def join(self) -> None:
        """Join the other processes, if there are any, before anything touches a device."""
        self.check()
        initialize(self.coordinator, self.processes, self.process)
        user_says = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
        user_says |= jax.config.values["jax_num_cpu_devices"] >= 0
        if self.devices in (None, "all") or user_says or jax.distributed.is_initialized():
            return
        with contextlib.suppress(RuntimeError):  # the devices are in use already, in a notebook
            number = max(1, min(int(str(self.devices)), MOST_OF_A_CPU))
            jax.config.update("jax_num_cpu_devices", number)

    def mesh(self, rows: int) -> tuple[Any, list[str]]:
        """Return the devices that share batches of so many rows, and a line that says so; None where there is one."""
        there, processes = jax.device_count(), jax.process_count()
        number = there if self.devices in (None, "all") else int(str(self.devices))
        if not 1 <= number <= there:
            raise ValueError(f"--devices must be from 1 to {there}, which there are, got {number}")
        if processes > 1 and number < there:
            raise ValueError(
                f"--devices must be all {there} of {processes} processes, got {number}"
            )
        if there == 1:
            return None, []
        if self.devices is None and processes == 1:
            number = max(n for n in range(1, there + 1) if rows % n == 0)
        mesh = jax.make_mesh((number,), ("data",), devices=jax.devices()[:number])
        among = f" of {processes} processes" if processes > 1 else ""
        kind = mesh.devices.flat[0].device_kind
        each = f"{rows / number:g} rows of a batch of {rows} on each"
        return mesh, [f"{number} of {there} devices{among} ({kind}), {each}"]
