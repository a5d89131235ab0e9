"""What a run takes and returns as values: its folder, its evaluations, its devices, its result."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import numpy as np

from jdml._paths import check_local
from jdml.distributed import Tree
from jdml.losses.comparison import Normalize
from jdml.models.adapters import Model
from jdml.models.embedding import Preprocess, check_as_trained, embed, standard
from jdml.ops import checks
from jdml.training.schedule import Best, Record
from jdml.training.step import TrainState


class Embedder(NamedTuple):
    """The model at one moment of training: call it on images to get embeddings.

    Attributes:
        model: the model.
        state: the train state at that moment. Its arrays are the loop's: do not keep them past the call.
        preprocess: as in training.
        batch_size: rows per forward pass; None: as :func:`embed` chooses.
        input: shape, type and range of the images that are trained on; None where it is not known.
    """

    model: Model
    state: TrainState
    preprocess: Preprocess = standard
    batch_size: int | None = None
    input: Mapping[str, Any] | None = None

    def __call__(self, images: Tree) -> np.ndarray:
        """Embed images ``[N, H, W, C]`` in evaluation mode as NumPy ``[N, D]``.

        Raises:
            TypeError: integers other than uint8.
            ValueError: photographs in another range than those that are trained on.
        """
        check_as_trained(images, self.input or {}, self.preprocess)
        return embed(
            self.model,
            self.state.params["model"],
            self.state.batch_stats,
            images,
            batch_size=self.batch_size,
            preprocess=self.preprocess,
        )


Evaluate = Callable[[Embedder], Mapping[str, float]]


@dataclass(frozen=True)
class RunConfig:
    """What of a run is kept, where and how often.

    Attributes:
        folder: the run's folder: ``config.json``, ``log.jsonl``, ``checkpoints/``; ``model.safetensors``, the best
            parameters (without a monitor the last), and their scores in ``metrics.json``: see
            :func:`jdml.training.load`. None writes nothing.
        checkpoint_every: steps between checkpoints; None: as many as between evaluations.
        log_every: steps between log records; evaluations, checkpoints and callbacks with ``every`` make one, too.
        resume: continue from the folder's last checkpoint; False refuses a folder that has one.
        allow_more_steps: also resume where the folder's run had fewer steps, and was otherwise the same; not with a
            stateful callback.
        async_checkpoints: write checkpoints while training continues; a copy of the state is kept meanwhile.
        config: JSON-able description of the run, compared with the folder's on resume.
        normalize: what retrieval does to embeddings, such as :func:`jdml.sphere`: not done here, but recorded in the
            folder, so that :func:`jdml.training.load` does it.

    Raises:
        TypeError: a number of steps that is no integer, a flag that is no boolean.
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
        for name in ("resume", "allow_more_steps", "async_checkpoints"):
            checks.check_flag(name, getattr(self, name))

    @classmethod
    def of(cls, run: "str | Path | RunConfig | None") -> Self:
        """Return what ``fit(run=)`` means."""
        if isinstance(run, cls):
            return run
        if not isinstance(run, str | Path | None):
            raise TypeError(
                f"run must be a folder or a jdml.training.RunConfig, got a {type(run).__name__}"
            )
        return cls(run)


@dataclass(frozen=True)
class Evaluation:
    """How a run is evaluated on the way, and when it ends early.

    Attributes:
        function: called with an :class:`jdml.training.Embedder`; returns metrics by name. None: nothing is evaluated;
            for :func:`jdml.training.train` retrieval in ``validation``.
        every: steps between evaluations; there is one after the last step, too.
        monitor: the metric, larger is better, whose best parameters are kept.
        patience: stop after so many evaluations without improvement of ``monitor``.

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

    @classmethod
    def of(cls, evaluation: "Evaluate | Evaluation | None", *, every: int = 100) -> Self:
        """Return what ``fit(evaluation=)`` means, with a number of steps where it has none."""
        if isinstance(evaluation, cls):
            return evaluation
        if evaluation is not None and not callable(evaluation):
            raise TypeError(
                "evaluation must be a function of an Embedder or a jdml.training.Evaluation, got a "
                f"{type(evaluation).__name__}"
            )
        return cls(evaluation, every)


@dataclass(frozen=True)
class Devices:
    """Which devices train, and how a step is divided.

    Attributes:
        mesh: the devices, whose first axis carries the batch; None: one device. Batches, random numbers and results
            are those of one device, to rounding; a batch that does not divide is padded with places that count for
            nothing. Axes may be of any kind.
        shard: what is partitioned, by role: ``{"proxies": P("data")}`` for classes. Optimizer state goes with it; all
            else is the same on every device.
        micro_batch: rows that go through the network at a time, twice each: the loss sees the whole batch, and the
            gradient is that of the whole batch, with the activations of so many rows. Dropout draws by the turn.

    Raises:
        TypeError: a ``micro_batch`` that is no integer.
        ValueError: below 1.
    """

    mesh: jax.sharding.Mesh | None = None
    shard: Mapping[str, jax.sharding.PartitionSpec] | None = None
    micro_batch: int | None = None

    def __post_init__(self) -> None:
        checks.optional(checks.count)("micro_batch", self.micro_batch)

    @classmethod
    def of(cls, devices: "jax.sharding.Mesh | Devices | None") -> Self:
        """Return what ``fit(devices=)`` means."""
        if isinstance(devices, cls):
            return devices
        if not isinstance(devices, jax.sharding.Mesh | None):
            raise TypeError(
                "devices must be a jax.sharding.Mesh or a jdml.training.Devices, got a "
                f"{type(devices).__name__}"
            )
        return cls(devices)


class FitResult(NamedTuple):
    """What a run leaves.

    Attributes:
        state: the last state.
        history: one record per log step: ``step``, mean ``loss`` and other metrics since the record before, and the
            evaluation's metrics where there was one. The same for every run of the same configuration. The last one of
            a run with a folder says where the ``model`` lies in it.
        best: the best monitored value and its step; None without ``monitor``.
        best_params: parameters of all roles at that step (those of ``state`` without ``monitor``).
        best_batch_stats: the model's running statistics at that step.
        stopped: ``"steps"`` (all were done), ``"patience"``, or the reason of a callback's :class:`Stop`.
        embedder: the model with the best parameters, ready to call on images.
    """

    state: TrainState
    history: list[Record]
    best: Best | None
    best_params: dict[str, Tree]
    best_batch_stats: Tree
    stopped: str
    embedder: Embedder
