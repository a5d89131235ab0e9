"""Callbacks: what acts after steps of a run, and may read its state, replace it or end the run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import jax
import jax.numpy as jnp

from jdml._optional_imports import require_package
from jdml._paths import check_local
from jdml.distributed import Tree, is_main_process
from jdml.ops import checks
from jdml.training.step import TrainState
from jdml.training.step_config import SKIPPED_IN_A_ROW
from jdml.training.validation import check_same_arrays


@dataclass(frozen=True)
class Stop:
    """End the run: what a callback returns.

    Attributes:
        reason: what :class:`jdml.training.FitResult` has as ``stopped``.

    Raises:
        TypeError: a reason that is no text.
    """

    reason: str = "callback"

    def __post_init__(self) -> None:
        if not isinstance(self.reason, str):
            raise TypeError(f"reason must be a text, got {self.reason!r}")


class Callback(Protocol):
    """A function that :func:`jdml.training.fit` calls after some of its steps.

    It is called after each step that its attribute ``every`` divides, and after the last one. Without ``every``, or
    where it is None: after each evaluation; in a run without evaluations: at each log record. An attribute ``config``,
    a JSON-able mapping, is compared with the folder's where a run is resumed.

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
            state: the train state. The next step reuses its arrays' memory: copy what is to be kept.
            metrics: the log record of this step: means since the record before, and the evaluation's scores.

        Returns:
            None; a state of the same shapes to continue from, which counts for nothing after the last step; or
            :class:`Stop`. All processes must return the same.
        """
        ...


class CallbackResult(NamedTuple):
    """What :meth:`StatefulCallback.update` returns.

    Attributes:
        carried: the arrays that it carries to its next call.
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
    """A callback that carries arrays from call to call, saved with each checkpoint.

    :class:`jdml.training.AlternatingProblems` is one. Its attributes ``every`` and ``config`` are those of
    :class:`Callback`.
    """

    def template(self, state: TrainState, /) -> Tree:
        """Return what is carried, for its structure alone: a resumed run fills it from its checkpoint."""
        ...

    def start(self, state: TrainState, /) -> tuple[Tree, TrainState]:
        """Return what is carried and the state to begin with, before the first step of a run."""
        ...

    def update(
        self, carried: Tree, step: int, state: TrainState, metrics: Mapping[str, float], /
    ) -> CallbackResult:
        """Act after a step, as :class:`Callback` does."""
        ...


@dataclass(frozen=True)
class Every:
    """A function, and every how many steps it is called."""

    every: int
    function: Callable[..., Any]

    @property
    def config(self) -> Mapping[str, Any] | None:
        """What a run's folder compares of the function, if anything."""
        return getattr(self.function, "config", None)

    def __call__(self, step: int, state: TrainState, metrics: Mapping[str, float], /) -> Any:
        """Call the function."""
        return self.function(step, state, metrics)


def every(n: int, function: Callable[..., Any]) -> Every:
    """Make a callback of a function that is called every n steps, and after the last.

    Args:
        n: the number of steps.
        function: ``(step, state, metrics) -> None | TrainState | Stop``, see :class:`Callback`.

    Returns:
        The callback.

    Raises:
        TypeError: n is no integer, function cannot be called.
        ValueError: n is below 1.

    Example:
        >>> every(10, lambda step, state, metrics: print(step)).every
        10
    """
    checks.count("n", n)
    if not callable(function):
        raise TypeError(f"function must be a function (step, state, metrics), got {function!r}")
    return Every(n, function)


@dataclass(frozen=True)
class EMA:
    """Keep an exponential moving average of the parameters.

    Evaluations, the best parameters, ``model.safetensors`` and the embedder use the average, with the latest running
    statistics; ``FitResult.state`` has the parameters themselves. Not together with a :class:`StatefulCallback`.

    Attributes:
        decay: how many times what the next step does a step counts, such as 0.999.

    Raises:
        TypeError: no number.
        ValueError: not between 0 and 1.
    """

    decay: float

    def __post_init__(self) -> None:
        checks.positive("decay", self.decay)
        if self.decay >= 1:
            raise ValueError(f"decay must be below 1, such as 0.999, got {self.decay}")


@dataclass(frozen=True)
class SkipNonfinite:
    """Leave out steps whose loss or gradient is not finite; the log has how many were ``skipped``.

    Attributes:
        limit: so many of them in a row end the run with an error.

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
    left out as by :class:`SkipNonfinite`, by default with a limit of 40. It is saved with checkpoints; the loss in the
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
        """Write a record; what a killed process had written from this step on is replaced."""
        if not is_main_process():
            return
        from tensorboardX import SummaryWriter

        if self._writer is None:
            self._writer = SummaryWriter(str(self.folder), purge_step=step)
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()


AnyCallback = Callback | StatefulCallback | EMA | SkipNonfinite | LossScale
"""What ``fit`` takes among ``callbacks``."""
DECLARED = (EMA, SkipNonfinite, LossScale)
"""Callbacks that are part of the compiled step."""


class Callbacks(NamedTuple):
    """The callbacks of a run: those that the loop calls, by name, and what the step is compiled with."""

    called: Mapping[str, Any]
    decay: float | None
    skip_limit: int | None
    loss_scale: bool

    @classmethod
    def of(cls, callbacks: Any) -> Self:
        """Sort callbacks; refuse what is none, and what does not go together."""
        if not isinstance(callbacks, Sequence):
            raise TypeError(f"callbacks must be a sequence, got a {type(callbacks).__name__}")
        declared: dict[type, Any] = {}
        called: dict[str, Any] = {}
        for callback in callbacks:
            kind = type(callback)
            if kind in DECLARED:
                if kind in declared:
                    raise ValueError(f"callbacks must hold one {kind.__name__}, got two")
                declared[kind] = callback
                continue
            if isinstance(callback, type) or not (
                callable(callback) or isinstance(callback, StatefulCallback)
            ):
                raise TypeError(
                    "callbacks must be functions (step, state, metrics), or have template, start and update, got "
                    f"{callback!r}"
                )
            checks.optional(checks.count)("every", getattr(callback, "every", None))
            names = (kind.__name__, *(f"{kind.__name__} {n}" for n in range(2, len(callbacks) + 1)))
            called[next(name for name in names if name not in called)] = callback
        if EMA in declared and any(isinstance(c, StatefulCallback) for c in called.values()):
            raise ValueError(
                "callbacks: EMA does not go with a stateful callback, which replaces parameters that the average has"
            )
        skip = declared.get(
            SkipNonfinite, SkipNonfinite(SKIPPED_IN_A_ROW) if LossScale in declared else None
        )
        decay = float(declared[EMA].decay) if EMA in declared else None
        return cls(called, decay, skip and int(skip.limit), LossScale in declared)

    @property
    def stateful(self) -> dict[str, StatefulCallback]:
        """Those that carry arrays."""
        return {name: c for name, c in self.called.items() if isinstance(c, StatefulCallback)}

    @property
    def steps(self) -> tuple[int, ...]:
        """Every how many steps there is a call, where a callback says so."""
        asked = (getattr(callback, "every", None) for callback in self.called.values())
        return tuple(int(n) for n in asked if n is not None)

    @property
    def config(self) -> dict[str, Any]:
        """What a run's folder compares, by name."""
        named = {name: getattr(callback, "config", None) for name, callback in self.called.items()}
        return {name: dict(config) for name, config in named.items() if config}


def replaced(state: Any, before: TrainState) -> TrainState:
    """The state to continue from: what a callback returned, its new arrays copied, as the next step takes them."""
    if not isinstance(state, TrainState):
        raise TypeError(
            f"callbacks must return None, a TrainState or jdml.training.Stop, got a {type(state).__name__}"
        )
    check_same_arrays("callbacks must return a state", before, state)
    return jax.tree.map(lambda new, old: new if new is old else jnp.copy(new), state, before)
