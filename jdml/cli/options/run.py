"""Options of a run: its seed, its folder, its log; and of pretrained weights."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from jdml import registry
from jdml._import_path import is_pointer
from jdml._paths import check_folder
from jdml.cli.options.parts import NOT_DEFINING, check_options, option_of
from jdml.ops.checks import one_of, positive, uint32


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
        if self.normalization is not None and self.weights is None and not own:
            raise ValueError("--normalization needs --weights, whose images are normalized")
        if self.weights is not None and model is not None and model not in known:
            raise ValueError(
                f"--weights are those of {', '.join(known[:-1])} or {known[-1]}, got --model {model}"
            )

    def model_name(self) -> str | None:
        """Return the network that the weights name; None without weights."""
        from jdml.models.tensors import read_metadata
        from jdml.models.weights import ARCHITECTURE

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
        from jdml import models

        return None if self.weights is None else partial(models.load_weights, self.weights)

    def network_settings(self, model: str) -> dict[str, Any]:
        """Return the attributes of a network that the statistics imply."""
        own = {} if is_pointer(model) else registry.NETWORKS[model].other_settings
        return dict(own.get(self.normalization or "", {}))

    def preprocess(self, model: str, *, always: bool = False) -> Any:
        """Return what stands between stored images and a network."""
        from jdml import models
        from jdml.training import standard

        named = always or self.weights is not None or self.normalization is not None
        return models.normalizer(self.normalization or model) if named else standard
