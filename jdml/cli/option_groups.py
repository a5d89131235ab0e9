"""Options of the commands that train, in groups: the data, the weights, the run's folder, the devices."""

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import jax

from jdml import data, models, registry
from jdml._optional_imports import is_pointer
from jdml._paths import check_folder, expand_user
from jdml.cli.options import NOT_DEFINING, option_of
from jdml.data.load import recognize
from jdml.distributed import is_main_process
from jdml.ops.checks import at_least, fraction_below_1, one_of, open_unit_interval, positive, uint32
from jdml.runs.model_metadata import build_part
from jdml.runs.run_files import MODEL, read_description
from jdml.training import Devices, RunConfig, default_preprocess, initialize, pretrained

OF_FILES = "augmentation workers on_bad_image split test_share classes_file group".split()
"""Options of data sets of image files."""


@dataclass(frozen=True)
class ImageOptions:
    """The images: their folder, size and decoding."""

    data_dir: Annotated[Path | None, NOT_DEFINING] = None
    """Folder with the data set's files. Default: that of jdml data get NAME."""
    image_size: Annotated[int | None, at_least(1)] = None
    """Height and width of crops in pixels. Default: 224; small networks: 64."""
    label_noise: Annotated[float, fraction_below_1] = 0.0
    """Fraction of the training rows that get a wrong label."""
    workers: Annotated[int | None, positive, NOT_DEFINING] = None
    """Threads that decode image files. Default: one per core."""
    on_bad_image: Annotated[Literal["skip", "stop"] | None, NOT_DEFINING] = None
    """Whether a damaged image stops the run (default), or is skipped and counted."""

    def batches(self, seed: int, **settings: Any) -> Any:
        """Return the function from image files and a sampler to the batches that are decoded for training."""
        settings |= {"workers": self.workers, "on_bad_image": self.on_bad_image or "stop"}
        return partial(data.ImageBatches, seed=seed, **settings)


@dataclass(frozen=True)
class DataOptions(ImageOptions):
    """The data set, its split and its labels."""

    data: str | None = None
    """The data set: {datasets}; or a folder of classes, a .csv of file,label[,split], Parquet, module:name. Default:
    what --data-dir holds, else digits."""
    split: Literal["classes", "images", "none"] | None = None
    """Test part: classes (half of them), images (a fifth of each class) or none. Default: the data set's own; the
    second half of a folder's classes."""
    test_share: Annotated[float | None, open_unit_interval] = None
    """Fraction in the test part. Default: 0.5 of classes, 0.2 of images."""
    classes_file: Path | None = None
    """Text file with the names of the training classes, one a line."""
    group: str | None = None
    """Keep recordings, sessions or identities on one side of every split: a column of the .csv, or a regular expression
    with one group in parentheses for the files' paths, such as "_session(\\d+)"."""
    augmentation: Literal["conventional", "mlrc", "none"] | None = None
    """Training crops: conventional (default), mlrc, or none (the centre)."""
    labels: str | None = None
    """Labels to train on, where there are several: digit or parity, alphabet or letter, class or super_class."""
    validation: Annotated[float, fraction_below_1] = 0.0
    """Fraction of the training rows to hold out for evaluation."""

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
        """Whether the images are files, decoded when they are read."""
        record = registry.DATASETS.get(self.data_name)
        return record is not None and record.kind == "files"

    def resolve(self) -> Self:
        """Check the options, and fill in the data set's name, the crops and the decoding."""
        name, files = self.data_name, self.of_files
        one_of("--data", name, (*sorted(registry.DATASETS), "a path or module:name"))
        record = registry.DATASETS[name]
        has = dict.fromkeys(OF_FILES, files)
        has |= {"image_size": files or record.sized, "data_dir": record.needs_folder}
        for option in has:
            if not has[option] and getattr(self, option) is not None:
                raise ValueError(
                    f"{option_of(type(self), option)} is for image files, not for {name}: for your own images write "
                    "--data folder"
                )
        if self.split is not None and self.classes_file is not None:
            raise ValueError("--split does not go with --classes-file: write one of them")
        if self.test_share is not None and self.split not in ("classes", "images"):
            raise ValueError("--test-share needs --split classes or --split images")
        if not files:
            return replace(self, data=name)
        crops = data.mlrc if self.augmentation == "mlrc" else data.conventional
        return replace(
            self,
            data=name,
            image_size=self.image_size or crops().size,
            augmentation=self.augmentation or "conventional",
            on_bad_image=self.on_bad_image or "stop",
        )


@dataclass(frozen=True)
class WeightOptions:
    """Pretrained weights, and how images are normalized for them."""

    weights: Path | None = None
    """Initial weights: a file of jdml weights convert or jdml export, or the folder of another run."""
    normalization: str | None = None
    """Network whose image mean and deviation are used. Default: --model's."""

    def __post_init__(self) -> None:
        """Take the best parameters of a run's folder; refuse unknown statistics."""
        if self.weights is not None and expand_user(self.weights).is_dir():
            object.__setattr__(self, "weights", expand_user(self.weights) / MODEL)
        if self.normalization is not None:
            one_of("--normalization", self.normalization, sorted(registry.image_statistics()))

    @cached_property
    def of_run(self) -> dict[str, Any]:
        """Return the description of the network of a run's weights; empty for other weights."""
        description = {} if self.weights is None else read_description(self.weights)
        return dict(description.get("embedding") or {})

    def state(self) -> Any:
        """Return the state that a run with the weights begins with; None without weights."""
        if self.weights is None:
            return None
        is_run = bool(self.of_run)
        return pretrained(self.weights if is_run else partial(models.load_weights, self.weights))

    def network_settings(self, model: str, typed: Iterable[str] = ()) -> dict[str, Any]:
        """Return the settings of a network for the weights of a run, or those that --normalization names."""
        run = self.of_run
        if run and run.get("network") == model:
            skipped = {"dtype", "freeze_batch_norm", "remat", *typed}
            settings = {k: v for k, v in run["settings"].items() if k not in skipped}
            return {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
        own = {} if is_pointer(model) else registry.NETWORKS[model].other_settings
        return dict(own.get(self.normalization or "", {}))

    def preprocess(self, model: str, *, always: bool = False) -> Any:
        """Return the preprocessing of images before a network."""
        if self.normalization is None and (run := self.of_run):
            return build_part("preprocess", run)
        normalizes = always or self.weights is not None or self.normalization is not None
        return models.normalizer(self.normalization or model) if normalizes else default_preprocess


@dataclass(frozen=True)
class FolderOptions:
    """The run's folder and its random numbers."""

    seed: Annotated[int, uint32] = 0
    """Seed of parameters, batches, miners, augmentation, --split and --validation."""
    out: Annotated[Path | None, NOT_DEFINING] = None
    """Folder of the run: config.json, log.jsonl, checkpoints, model.safetensors."""
    quiet: Annotated[bool, NOT_DEFINING] = False
    """No progress bar."""

    def __post_init__(self) -> None:
        """Refuse a folder that cannot be one."""
        if self.out is not None:
            check_folder("--out", self.out)


@dataclass(frozen=True)
class RunOptions(FolderOptions):
    """The run's folder, its log, its checkpoints."""

    checkpoint_every: Annotated[int | None, positive, NOT_DEFINING] = None
    """Steps between checkpoints. Default: --evaluate-every."""
    log_every: Annotated[int, positive, NOT_DEFINING] = RunConfig.log_every
    """Steps between lines of the log."""
    tensorboard: Annotated[bool, NOT_DEFINING] = False
    """Also write TensorBoard event files into --out."""
    feature_cache: Annotated[Path | None, NOT_DEFINING] = None
    """Folder of cached features, for other runs. Default: features/ in --out."""


@dataclass(frozen=True)
class DeviceOptions:
    """Which devices and processes train, and how many rows at a time."""

    devices: Annotated[int | Literal["all"] | None, NOT_DEFINING] = None
    """Devices that share a batch: a number (also of a CPU), or all."""
    micro_batch: Annotated[int | None, at_least(1), NOT_DEFINING] = None
    """Rows in the network at a time; the loss still sees the whole batch."""
    coordinator: Annotated[str | None, NOT_DEFINING] = None
    """HOST:PORT of the first of several processes started by hand."""
    processes: Annotated[int | None, NOT_DEFINING] = None
    """Number of processes."""
    process: Annotated[int | None, NOT_DEFINING] = None
    """Number of this process, from 0."""

    def join(self) -> None:
        """Join the other processes, if there are any, before anything uses a device."""
        initialize(self.coordinator, self.processes, self.process)
        is_set = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
        is_set |= jax.config.values["jax_num_cpu_devices"] >= 0
        if not isinstance(self.devices, int) or is_set or jax.distributed.is_initialized():
            return
        with contextlib.suppress(RuntimeError):  # a notebook uses the devices already
            jax.config.update("jax_num_cpu_devices", max(1, min(self.devices, 64)))

    def build(self, rows: int) -> Devices:
        """Return the devices that share batches of so many rows, and print a line about them if there are several."""
        available, processes = jax.device_count(), jax.process_count()
        number = self.devices if isinstance(self.devices, int) else available
        least = 1 if processes == 1 else available
        if not least <= number <= available:
            raise ValueError(
                f"--devices must be {least} to {available}, the available devices, got {number}"
            )
        if available == 1:
            return Devices(micro_batch=self.micro_batch)
        if self.devices is None and processes == 1:
            number = max(n for n in range(1, available + 1) if rows % n == 0)
        mesh = jax.make_mesh((number,), ("data",), devices=jax.devices()[:number])
        if is_main_process():
            among = f" of {processes} processes" if processes > 1 else ""
            kind = mesh.devices.flat[0].device_kind
            each = f"{rows / number:g} rows of a batch of {rows} on each"
            print(f"{number} of {available} devices{among} ({kind}), {each}", flush=True)
        return Devices(mesh, micro_batch=self.micro_batch)
