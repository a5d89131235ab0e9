"""The recipe: how a method is trained, in six parts of plain values; and the one to begin with on own photographs."""

import dataclasses
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Annotated, Any, Final, Literal

import numpy as np

from jdml.metrics import evaluate_retrieval
from jdml.ops.checks import at_least, default_of, one_of, open_unit_interval, positive
from jdml.recipes.batch import BatchConfig
from jdml.recipes.config import Config, RecipeError
from jdml.recipes.loss import LossConfig
from jdml.recipes.network import FinetuneConfig, NetworkConfig
from jdml.recipes.optimizer import OptimizerConfig

DATASETS = ("cub", "cars", "sop", "inshop")
"""Data sets that the papers give settings for; all others are treated like ``cub``."""
LARGE = ("sop", "inshop")
"""Data sets of many classes with few images."""
PRESET: Final = "paper"
"""The preset of every method, unless another is given: as printed."""
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
    """Decay of a moving average of the parameters, which is evaluated and saved."""
    nmi: bool = False
    """Measure NMI, too."""
    nmi_cluster_factor: Annotated[int | None, positive] = None
    """Also measure NMI with this many clusters per class (NMI+)."""
    map_divisor: Literal["min", "k", "relevant", "class"] = default_of(
        evaluate_retrieval, "map_divisor"
    )
    """Divisor of mAP@1000, see ``jdml.metrics.map_at_k``."""


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


STEPS = 1000
ROWS, SAMPLES = 64, 4
"""Rows of a batch, at most, and samples of a class, at least."""
MULTIMODAL_SIZE, MAX_SAMPLES, MIN_CLASSES = 100, 40, 4
"""Classes of 100 images, if half have as many, may have several modes, which a loss that pulls every positive pair
merges: each image is pulled to the nearest of its class. At most 40 samples per class, at least 4 classes per batch."""
Pretraining = Literal["small", "untrained", "pretrained", "frozen"]
RATES: dict[Pretraining, float] = {
    "small": 3e-3,
    "untrained": 1e-3,
    "pretrained": 1e-4,
    "frozen": 3e-4,
}
"""Learning rates by what the network knows; frozen: nothing but the head, or low-rank changes, learns."""


def recommended(
    labels: Any = None,
    *,
    pretraining: Pretraining = "untrained",
    steps: int = STEPS,
    rows: int = ROWS,
) -> Recipe:
    """Give the recipe to begin with: circle loss, a cosine, and batches and positives by the size of the classes.

    ``jdml train`` takes it for photographs where neither a loss nor a method is named. What it is measured on, and what
    it is not, stands in ``experiments/recommended``.

    Args:
        labels: ``[N]``, of the training images; None leaves batch and miner open.
        pretraining: chooses the learning rate. ``"small"``: an untrained network for small images; ``"untrained"``:
            another untrained one; ``"pretrained"``: all of it learns, slowly, with a head that begins on principal
            directions; ``"frozen"``: only that head, or low-rank changes, learn.
        steps: of training; the learning rates rise in the first twentieth.
        rows: of a batch, if there are as many.

    Returns:
        The recipe. Anything of it may be replaced.

    Raises:
        TypeError: steps or rows that are no integers.
        ValueError: an unknown ``pretraining``, steps below 0, or fewer than four rows.

    Example:
        >>> recipe = recommended(np.repeat(np.arange(50), 60), pretraining="pretrained")
        >>> recipe.loss.name, str(recipe.batch), recipe.loss.miner, recipe.optimizer.learning_rate
        ('circle', '16x4', 'none', 0.0001)
        >>> recommended(np.repeat(np.arange(9), 500)).loss.miner
        'easy_positive'
    """
    one_of("pretraining", pretraining, RATES)
    at_least(0)("steps", steps)
    at_least(MIN_CLASSES)("rows", rows)
    parts = recommended_parts(pretraining, steps, rows)
    if labels is not None:
        parts |= for_classes(parts["loss"], parts["batch"], labels, rows=rows)
    return Recipe(**parts)


def recommended_parts(pretraining: Pretraining, steps: int, rows: int = ROWS) -> dict[str, Any]:
    """Return the parts of the recommended recipe that are no defaults."""
    return {
        "loss": LossConfig("circle", {"margin": 0.1, "gamma": 100.0}),
        "network": NetworkConfig(
            head_init="principal" if pretraining in ("pretrained", "frozen") else "random"
        ),
        "batch": BatchConfig(size=rows, on_small_class="refuse", steps=int(steps)),
        "optimizer": OptimizerConfig(
            learning_rate=RATES[pretraining], lr_warmup_steps=int(steps) // 20, schedule="cosine"
        ),
    }


def for_classes(
    loss: LossConfig, batch: BatchConfig, labels: Any, *, rows: int = ROWS
) -> dict[str, Any]:
    """Choose the batch, and the positives that a pair loss pulls, by the size of the classes."""
    sizes = np.unique(labels, return_counts=True)[1]
    if np.median(sizes) < MULTIMODAL_SIZE:
        return {"loss": loss, "batch": usual_batch(batch, loss, labels, rows=rows)}
    samples = max(min(MAX_SAMPLES, rows // MIN_CLASSES), rows // len(sizes))
    batch = batch.replace(
        classes=min(len(sizes), rows // samples),
        samples_per_class=samples,
        on_small_class="pad" if sizes.min() < samples else batch.on_small_class,
    )
    return {"loss": loss.replace(miner="easy_positive"), "batch": batch}


def usual_batch(
    batch: BatchConfig, loss: LossConfig, labels: np.ndarray, *, rows: int = ROWS
) -> BatchConfig:
    """Return random rows for a proxy loss; for a pair loss 4 samples of each class, more if there are few classes."""
    if loss.has_proxies:
        return batch.replace(size=min(rows, len(labels)))
    sizes = np.unique(labels, return_counts=True)[1]
    most = int(sizes.min())
    if most == 1:  # classes of one image leave places empty, others do not
        most, batch = max(2, int(np.median(sizes))), batch.replace(on_small_class="pad")
    samples = min(max(SAMPLES, rows // len(sizes)), most)
    return batch.replace(classes=min(len(sizes), rows // samples), samples_per_class=samples)


def check_positives(batch: BatchConfig, loss: LossConfig, labels: np.ndarray) -> None:
    """Refuse batches in which a pair loss without a memory has nothing to compare."""
    if loss.has_proxies or loss.memory_size:
        return
    usual = usual_batch(batch, loss, labels)
    instead = f"take {usual}, {usual.classes} classes with {usual.samples_per_class} images each"
    if np.unique(labels, return_counts=True)[1].max() < 2:
        without_pair = "one class: each training class has one image"
        instead = "take a proxy loss such as proxy_anchor"
    elif batch.expected_positive_pairs(labels) == 0:
        without_pair = "one class"
    elif batch.classes == 1:
        without_pair = "different classes"
    else:
        return
    raise RecipeError(
        f"{{batch}} {batch} has no two images of {without_pair}: {loss.name} would learn nothing; {instead}"
    )
