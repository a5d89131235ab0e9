"""The recipe: the whole description of how a method is trained, in six parts of plain values."""

import dataclasses
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Annotated, Any, Literal

from jdml.ops.checks import open_unit_interval, positive
from jdml.recipes.batch import BatchConfig
from jdml.recipes.config import Config
from jdml.recipes.loss import LossConfig
from jdml.recipes.network import FinetuneConfig, NetworkConfig
from jdml.recipes.optimizer import OptimizerConfig

DATASETS = ("cub", "cars", "sop", "inshop")
"""Data sets that the papers give settings for; all others are treated like ``cub``."""
LARGE = ("sop", "inshop")
"""Data sets of many classes with few images."""
PAPER_SETTINGS = tomllib.loads(
    files("jdml.recipes").joinpath("paper_settings.toml").read_text("utf-8")
)


def of_dataset(settings: Mapping[str, Any], dataset: str) -> Any:
    """Return the settings that the papers print for a data set, or those of cub."""
    return settings.get(dataset, settings["cub"])


def pair_settings(loss: str, dataset: str) -> dict[str, Any]:
    """Return the settings of a pair loss in CCP's tables: no mining, all pairs."""
    return dict(of_dataset(PAPER_SETTINGS["pairs"].get(loss, {"cub": {}}), dataset))


@dataclasses.dataclass(frozen=True)
class EvaluationConfig(Config):
    """When a run is evaluated, what is kept, and what is measured."""

    every: Annotated[int | None, positive] = None
    """Steps between evaluations of held-out rows. None: an epoch."""
    monitor: str | None = None
    """Metric whose best parameters are kept. None: MAP@R."""
    patience: Annotated[int | None, positive] = None
    """Evaluations without improvement that end the run."""
    ema: Annotated[float | None, open_unit_interval] = None
    """Evaluate and keep an average of the parameters with this decay."""
    nmi: bool = False
    """Measure NMI, too."""
    nmi_cluster_factor: Annotated[int | None, positive] = None
    """Measure NMI with so many clusters a class, too (NMI+)."""
    map_divisor: Literal["min", "k", "relevant", "class"] = "min"
    """Divisor of mAP@1000, as ``jdml.metrics.map_at_k`` says."""


@dataclasses.dataclass(frozen=True)
class Recipe(Config):
    """How a method is trained: six parts of plain values, each of which builds what it describes.

    A recipe is read, compared, written as JSON and changed with ``replace`` or ``dataclasses.replace``;
    :func:`jdml.training.train` makes a run of it. What is no plain value (a loss, a miner or a network of your own) is
    an argument of ``train``.

    Raises:
        TypeError: a value that is not plain.
        ValueError: a value out of range, an unknown name, or values that contradict each other.

    Example:
        >>> from jdml.recipes import ProxyConfig
        >>> loss = LossConfig("potential_field", proxies=ProxyConfig(per_class=15))
        >>> field = Recipe(loss=loss, batch=BatchConfig(size=100, epochs=2))
        >>> Recipe.from_json(field.to_json()) == field
        True
        >>> field.replace(optimizer={"learning_rate": 1e-3}).optimizer.learning_rate
        0.001
        >>> Recipe(loss=LossConfig("proxy_anchor", miner="easy_positive"))
        Traceback (most recent call last):
        ...
        jdml.recipes.config.RecipeError: miner is for pair losses; proxy_anchor is a proxy loss
    """

    loss: LossConfig = dataclasses.field(default_factory=LossConfig)
    network: NetworkConfig = dataclasses.field(default_factory=NetworkConfig)
    finetune: FinetuneConfig = dataclasses.field(default_factory=FinetuneConfig)
    batch: BatchConfig = dataclasses.field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    evaluation: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch.steps is not None:
            self.optimizer.check_warmup(self.batch.steps)
        for name in ("last_blocks", "layer_decay"):
            if getattr(self.finetune, name) is not None and self.network.name is not None:
                self.network.blocks(name)
