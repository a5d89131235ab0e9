"""Callbacks: functions called after steps of a run, which may read its state, replace it or end the run."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jdml._optional_imports import require_package
from jdml._paths import check_local
from jdml.distributed import Tree, is_main_process
from jdml.ops import checks
from jdml.training.step import TrainState


@dataclass(frozen=True)
class Stop:
    """End the run, returned by a callback.

    Attributes:
        reason: the ``stop_reason`` of :class:`jdml.training.FitResult`.
    """

    reason: str = "callback"


class Callback(Protocol):
    """A function that :func:`jdml.training.fit` calls after the last step and each that its ``every`` divides.

    Without the attribute ``every`` it is called after each evaluation; in a run without evaluations at each log record.
    An attribute ``config``, a JSON-able mapping, is compared with the folder's when a run is resumed.

    Example:
        >>> def show(step, state, metrics):
        ...     print(step, metrics["loss"])
        >>> every(100, show).every
        100
    """

    def __call__(
        self, step: int, state: TrainState, metrics: Mapping[str, float], /
    ) -> "TrainState | Stop | None":
        """Act after a step.

        Args:
            step: how many steps are done.
            state: the train state. The next step reuses its arrays' memory: copy what you need later.
            metrics: the log record of this step: means since the record before, and the evaluation's scores.

        Returns:
            None; a state of the same shapes to continue from, ignored after the last step; or :class:`Stop`. All
            processes must return the same.
        """
        ...


class CallbackResult(NamedTuple):
    """The result of :meth:`StatefulCallback.update`.

    Attributes:
        carried: the arrays for the next call.
        state: the train state to continue from.
        metrics: numbers for the log record.
        stop: ends the run.
    """

    carried: Tree
    state: TrainState
    metrics: Mapping[str, float | int] = MappingProxyType({})
    stop: Stop | None = None


@runtime_checkable
class StatefulCallback(Protocol):
    """A callback that carries arrays from call to call, saved with each checkpoint, such as ``AlternatingProblems``.

    Its attributes ``every`` and ``config`` are those of :class:`Callback`.
    """

    def template(self, state: TrainState, /) -> Tree:
        """Return arrays of the structure that is carried: a resumed run fills them from its checkpoint."""
        ...

    def start(self, state: TrainState, /) -> tuple[Tree, TrainState]:
        """Return the first carried arrays and the state to begin with, before the first step of a run."""
        ...

    def update(
        self, carried: Tree, step: int, state: TrainState, metrics: Mapping[str, float], /
    ) -> CallbackResult:
        """Act after a step, as :class:`Callback` does."""
        ...


def every(n: int, function: Callable[..., Any]) -> Callback:
    """Make a callback of a function that is called every n steps, and after the last.

    Args:
        n: the number of steps.
        function: ``(step, state, metrics) -> None | TrainState | Stop``, see :class:`Callback`.

    Returns:
        The callback.

    Raises:
        TypeError: n is no integer.
        ValueError: n is below 1.

    Example:
        >>> every(10, lambda step, state, metrics: print(step)).every
        10
    """
    checks.count("n", n)
    callback: Any = functools.partial(function)
    callback.every, callback.config = n, getattr(function, "config", None)
    return callback


@dataclass(frozen=True)
class EMA:
    """Keep an exponential moving average of the parameters.

    Evaluations, ``model.safetensors`` and the embedder use the average, with the latest running statistics;
    ``FitResult.state`` has the parameters themselves. Not together with a :class:`StatefulCallback`.

    Attributes:
        decay: weight of a step relative to the next one, such as 0.999.

    Raises:
        TypeError: no number.
        ValueError: not between 0 and 1.
    """

    decay: float

    def __post_init__(self) -> None:
        checks.open_unit_interval("decay", self.decay)


@dataclass(frozen=True)
class SkipNonfinite:
    """Skip steps whose loss or gradient is not finite; the log has their number as ``skipped``.

    Attributes:
        limit: number of skipped steps in a row that ends the run with an error.

    Raises:
        TypeError: no integer.
        ValueError: below 1.
    """

    limit: int

    def __post_init__(self) -> None:
        checks.count("limit", self.limit)


@dataclass(frozen=True)
class LossScale:
    """Scale the loss before it is differentiated, for a model that computes in float16.

    The scale begins at 2**15, doubles after 2000 steps, and halves after one whose gradient is not finite, which is
    skipped as by :class:`SkipNonfinite`, by default with a limit of 40. It is saved with checkpoints; the loss in the
    log is not scaled.
    """


class TensorBoard:
    """Write each record's numbers to TensorBoard event files (needs tensorboardX).

    Args:
        folder: of the event files.
        every: steps between calls, as of :class:`Callback`.

    Raises:
        MissingLibraryError: tensorboardX is not installed.
    """

    def __init__(self, folder: str | Path, *, every: int | None = None) -> None:
        check_local("folder", folder)
        require_package("tensorboardX", "writing TensorBoard's files")
        self.folder, self.every = Path(folder), every
        self._writer: Any = None

    def __call__(self, step: int, state: TrainState, metrics: Mapping[str, float]) -> None:
        """Write a record; those that a killed process wrote from this step on are replaced."""
        if not is_main_process():
            return
        from tensorboardX import SummaryWriter

        if self._writer is None:
            self._writer = SummaryWriter(str(self.folder), purge_step=step)
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()


AnyCallback = Callback | StatefulCallback | EMA | SkipNonfinite | LossScale
"""An element of ``fit(callbacks=)``."""
DECLARED = (EMA, SkipNonfinite, LossScale)
"""Callbacks that are part of the compiled step."""


class Callbacks:
    """The callbacks of a run: those that the loop calls, by name, and settings of the compiled step."""

    def __init__(self, callbacks: Sequence[AnyCallback]) -> None:
        declared: dict[type, Any] = {type(c): c for c in callbacks if type(c) in DECLARED}
        self.called: dict[str, Any] = {}
        for callback in callbacks:
            name = type(callback).__name__
            if type(callback) not in DECLARED:
                number = 1 + sum(type(other).__name__ == name for other in self.called.values())
                self.called[name if number == 1 else f"{name} {number}"] = callback
        self.stateful: dict[str, StatefulCallback] = {
            name: each for name, each in self.called.items() if isinstance(each, StatefulCallback)
        }
        if EMA in declared and self.stateful:
            raise ValueError("callbacks: EMA cannot be combined with a StatefulCallback")
        self.loss_scale = LossScale in declared
        # Each skipped step halves the scale: from 2**15 to 2**-25.
        default = SkipNonfinite(40) if self.loss_scale else None
        skip = declared.get(SkipNonfinite, default)
        self.skip_limit = skip and int(skip.limit)
        self.decay = float(declared[EMA].decay) if EMA in declared else None
        asked = [getattr(callback, "every", None) for callback in self.called.values()]
        self.steps = tuple(int(n) for n in asked if n is not None)
        configs = {name: getattr(each, "config", None) for name, each in self.called.items()}
        self.config = {name: dict(config) for name, config in configs.items() if config}
        """Their settings by name, compared with the run folder's."""
