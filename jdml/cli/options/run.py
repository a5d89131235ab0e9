"""Options of a run: its seed, its folder, what is told on the way."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from jdml.cli.options.base import ASIDE, Part, flag
from jdml.registry.constraints import of_32_bits, positive
from jdml.registry.places import check_folder


@dataclass(frozen=True)
class Folder(Part):
    """Where a run is kept, and what its random numbers come from."""

    seed: Annotated[int, of_32_bits] = 0
    """Of the initial parameters, the batches, the miners, augmentation, --split and the held-out rows."""
    out: Annotated[Path | None, ASIDE] = None
    """Folder of the run: config.json, log.jsonl, checkpoints, metrics.json, model.safetensors."""
    quiet: Annotated[bool, ASIDE] = False
    """No progress bar."""

    def check(self) -> None:
        """Refuse a folder that cannot be one."""
        super().check()
        if self.out is not None:
            check_folder("--out", self.out)


@dataclass(frozen=True)
class RunOptions(Folder):
    """When a run is looked at, saved, stopped."""

    evaluate_every: Annotated[int | None, positive] = None
    """Steps between evaluations on the validation part. Default: 100."""
    patience: Annotated[int | None, positive] = None
    """Stop after this many evaluations without improvement, and score the best parameters. Needs --validation.
    Default: train all steps and score the last."""
    monitor: str | None = None
    """What improvement is measured by, LABELS/METRIC. Default: MAP@R of the training labels, such as digit/MAP@R."""
    checkpoint_every: Annotated[int | None, positive, ASIDE] = None
    """Steps between checkpoints. Default: --evaluate-every."""
    log_every: Annotated[int | None, positive, ASIDE] = None
    """Steps between lines of the log. Default: 50."""
    tensorboard: Annotated[bool, ASIDE] = False
    """Also write TensorBoard event files into the folder."""

    def check(self) -> None:
        """Refuse what needs a folder where there is none."""
        super().check()
        for name in ("checkpoint_every", "log_every", "tensorboard"):
            if getattr(self, name) and self.out is None:
                raise ValueError(f"{flag(name)} needs --out, a folder to write into")
