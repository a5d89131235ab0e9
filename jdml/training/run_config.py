"""Values of a run: its evaluations, folder, devices, schedule, progress and result."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jdml._paths import check_local
from jdml.data import Dataset
from jdml.data.dataset import labels_as_in
from jdml.distributed import Tree
from jdml.losses.comparison import Normalize
from jdml.metrics import evaluate_retrieval
from jdml.models.adapters import Model
from jdml.models.embedding import Preprocess, check_as_trained, default_preprocess, embed
from jdml.ops import checks, sphere
from jdml.registry import DATASETS, DataSet
from jdml.training.step import TrainState


class Embedder(NamedTuple):
    """The model with the parameters of a step: call it on images to get embeddings.

    Attributes:
        model: the model.
        state: the train state. Its arrays are the loop's: copy what you need after the call.
        preprocess: as in training.
        input: shape, type and range of the training images; None if unknown.
    """

    model: Model
    state: TrainState
    preprocess: Preprocess = default_preprocess
    input: Mapping[str, Any] | None = None

    def __call__(self, images: Tree) -> np.ndarray:
        """Embed images ``[N, H, W, C]`` in evaluation mode as NumPy ``[N, D]``.

        Raises:
            TypeError: integers other than uint8.
            ValueError: photographs in another range than the training images.
        """
        check_as_trained(images, self.input or {}, self.preprocess)
        params, stats = self.state.params["model"], self.state.batch_stats
        return embed(self.model, params, stats, images, preprocess=self.preprocess)


Evaluate = Callable[[Embedder], Mapping[str, float]]


@dataclass(frozen=True)
class Evaluation:
    """The evaluations of a run, and its early stopping.

    Attributes:
        function: called with an :class:`jdml.training.Embedder`; returns metrics by name. None: nothing is evaluated;
            for :func:`jdml.training.train` retrieval in ``validation``.
        every: steps between evaluations; there is one after the last step, too.
        monitor: the metric, larger is better, that chooses the best parameters.
        patience: evaluations without improvement of ``monitor`` after which the run ends.

    Raises:
        TypeError: a function that cannot be called, a number that is no integer.
        ValueError: a number below 1.
    """

    function: Evaluate | None = None
    every: int = 100
    monitor: str | None = None
    patience: int | None = None

    def __post_init__(self) -> None:
        checks.check_function("function", self.function)
        checks.count("every", self.every)
        checks.optional(checks.count)("patience", self.patience)


def recall_ranks(name: str) -> tuple[int, ...]:
    """Return the ranks k at which papers give R@k on a data set.

    Args:
        name: the data set's name, as for :func:`jdml.data.load`.

    Returns:
        The ranks.
    """
    return DATASETS[name].recall_at if name in DATASETS else DataSet.recall_at


def score(
    embed: Callable[[Any], ArrayLike],
    queries: Dataset,
    gallery: Dataset | None = None,
    *,
    normalize: Normalize | None = sphere,
    recall_at: Sequence[int] = DataSet.recall_at,
) -> dict[str, float]:
    """Measure retrieval by all labellings of a data set.

    Args:
        embed: images ``[N, H, W, C]`` to embeddings ``[N, D]``, such as an :class:`jdml.training.Embedder`.
        queries: the images that search.
        gallery: the images that are searched, labelled as the queries are; classes with names in both are the same
            where their names are. Default: the queries, each among all others.
        normalize: what is done to the embeddings before they are compared; None for nothing.
        recall_at: k of ``"R@k"``.

    Returns:
        ``"VIEW/R@k"`` for each k, ``"VIEW/RP"`` and ``"VIEW/MAP@R"``, as fractions.
    """
    prepare = normalize or (lambda vectors: vectors)
    parts = [queries] if gallery is None else [queries, gallery]
    vectors = [prepare(jnp.asarray(embed(part.images))) for part in parts]
    scores: dict[str, float] = {}
    for view in queries.views:
        labels = [jnp.asarray(labels_as_in(queries, part, view)) for part in parts]
        columns = [column for both in zip(vectors, labels, strict=True) for column in both]
        measured = evaluate_retrieval(*columns, recall_at=tuple(recall_at))
        scores |= {f"{view}/{name}": float(measured[name]) for name in metric_names(recall_at)}
    return scores


def metric_names(recall_at: Sequence[int]) -> tuple[str, ...]:
    """Return the names of the metrics that :func:`score` gives of each labelling.

    Args:
        recall_at: k of ``"R@k"``.

    Returns:
        Their names.
    """
    return (*(f"R@{k}" for k in recall_at), "RP", "MAP@R")


Record = dict[str, float | int]
Config = TypeVar("Config")


def as_config(kind: type[Config], value: Any) -> Config:
    """Return the settings that a short form means, such as ``RunConfig(folder)`` for a folder."""
    return value if isinstance(value, kind) else kind(value)  # type: ignore[call-arg]


@dataclass(frozen=True)
class RunConfig:
    """The folder of a run, and how often it is written.

    Attributes:
        folder: ``config.json``, ``log.jsonl``, ``checkpoints/``; ``model.safetensors``, the best parameters (without a
            monitor the last), their scores in ``metrics.json``; with a monitor ``last.safetensors``: see
            :func:`jdml.training.load`. None writes nothing.
        checkpoint_every: steps between checkpoints; None: as many as between evaluations.
        log_every: steps between log records; evaluations, checkpoints and callbacks with ``every`` make one, too.
        resume: continue from the folder's last checkpoint; False refuses a folder that has one.
        allow_more_steps: also resume where the folder's run had fewer steps, and was otherwise the same; not with a
            stateful callback.
        async_checkpoints: write checkpoints while training continues, from a copy of the state.
        config: JSON-able description of the run, compared with the folder's on resume.
        normalize: what retrieval does to embeddings, such as :func:`jdml.sphere`: recorded for
            :func:`jdml.training.load`.

    Raises:
        TypeError: a number of steps that is no integer.
        ValueError: below 1; an address instead of a folder.
    """

    folder: str | Path | None = None
    checkpoint_every: int | None = None
    log_every: int = 50
    resume: bool = True
    config: Mapping[str, Any] | None = None
    allow_more_steps: bool = False
    async_checkpoints: bool = False
    normalize: Normalize | None = None

    def __post_init__(self) -> None:
        check_local("folder", self.folder)
        checks.optional(checks.count)("checkpoint_every", self.checkpoint_every)
        checks.count("log_every", self.log_every)


@dataclass(frozen=True)
class Devices:
    """The devices of a run, and how a step is divided among them.

    Attributes:
        mesh: the devices, whose first axis carries the batch, with axes of any kind; None: one device. Results are
            those of one device, to rounding; a batch that does not divide is padded with places that count for nothing.
        shard: what is partitioned, by role: ``{"proxies": P("data")}`` for classes. Optimizer state goes with it; all
            else is the same on every device.
        micro_batch: rows that go through the network at a time, twice each: loss and gradient are those of the whole
            batch, with the activations of so many rows. Dropout draws by the turn.

    Raises:
        TypeError: a ``micro_batch`` that is no integer.
        ValueError: below 1.
    """

    mesh: jax.sharding.Mesh | None = None
    shard: Mapping[str, jax.sharding.PartitionSpec] | None = None
    micro_batch: int | None = None

    def __post_init__(self) -> None:
        checks.optional(checks.count)("micro_batch", self.micro_batch)


@dataclass(frozen=True)
class Schedule:
    """When things happen: functions of the step alone, so that a resumed run does the same."""

    steps: int
    evaluation: Evaluation
    run: RunConfig
    callback_steps: tuple[int, ...]

    def __post_init__(self) -> None:
        checks.at_least(0)("steps", self.steps)
        function, monitor = self.evaluation.function, self.evaluation.monitor
        if self.evaluation.patience is not None and monitor is None:
            raise ValueError("patience needs monitor, the name of the metric to watch")
        if monitor is not None and function is None:
            raise ValueError(f"monitor is {monitor!r}, but there is no evaluation function")

    def evaluates(self, step: int) -> bool:
        """Tell whether there is an evaluation after this step."""
        return step % self.evaluation.every == 0 or step == self.steps

    def saves(self, step: int) -> bool:
        """Tell whether there is a checkpoint after this step."""
        every = self.run.checkpoint_every or self.evaluation.every
        return step % every == 0 or step == self.steps

    def pauses(self, step: int) -> bool:
        """Tell whether the host reads the device's metrics after this step."""
        every = (self.run.log_every, *self.callback_steps)
        return any(step % n == 0 for n in every) or self.evaluates(step) or self.saves(step)


class Best(NamedTuple):
    """The best evaluation so far.

    Attributes:
        value: the monitored metric's best value; −∞ before the first evaluation.
        step: the step at which it was reached.
        evals_since_improvement: evaluations since then.
    """

    value: float = -math.inf
    step: int = 0
    evals_since_improvement: int = 0


@dataclass
class Progress:
    """The loop's own state: JSON-able, saved with the train state."""

    step: int = 0
    history: list[Record] = field(default_factory=list)
    best: Best = field(default_factory=Best)
    stop_reason: str | None = None
    skipped_in_a_row: int = 0
    score_names: list[str] = field(default_factory=list)


class FitResult(NamedTuple):
    """The result of a run.

    Attributes:
        state: the last state.
        history: one record per log step: ``step``, mean ``loss`` and other metrics since the record before, and the
            evaluation's metrics, if there was one.
        best: the best monitored value and its step; None without ``monitor``.
        best_params: parameters of all roles at that step (those of ``state`` without ``monitor``).
        best_batch_stats: the model's running statistics at that step.
        stop_reason: ``"steps"`` (all were done), ``"patience"``, or the reason of a callback's :class:`Stop`.
        embedder: the model with the best parameters, ready to call on images.
    """

    state: TrainState
    history: list[Record]
    best: Best | None
    best_params: dict[str, Tree]
    best_batch_stats: Tree
    stop_reason: str
    embedder: Embedder

    def __repr__(self) -> str:
        """Return the end of the run in one line: its last record and its best value."""
        last = self.history[-1] if self.history else {}
        return f"FitResult({last}, best={self.best}, stop_reason={self.stop_reason!r})"
