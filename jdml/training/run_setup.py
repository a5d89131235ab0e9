"""How a run begins: at a state that is given or a fresh one and what is made of it; in a folder that is its own."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from jdml.data.dataset import TrainSet
from jdml.distributed import Tree
from jdml.models.adapters import Model, unwrapped
from jdml.models.finetuning import WithLora
from jdml.ops import checks
from jdml.runs.checkpoint import RunFolder
from jdml.runs.identity import data_fingerprint, fingerprint, qualified_name
from jdml.runs.model_metadata import describe, trained_view, versions
from jdml.training import validation
from jdml.training.callbacks import Callbacks
from jdml.training.run_config import RunConfig
from jdml.training.step import Pretrained, Start, TrainState, fresh_state
from jdml.training.step_config import StepConfig


@dataclass(frozen=True)
class FromPretrained:
    """What :func:`pretrained` returns."""

    load: Pretrained
    then: Start | None = None


def pretrained(load: Pretrained, then: Start | None = None) -> FromPretrained:
    """Begin a run with pretrained parameters: ``fit(state=pretrained(load))``.

    Args:
        load: from the model's fresh variables ``{"params", "batch_stats"}`` to those to begin with, or some of them,
            such as :func:`jdml.models.load_weights` of a file.
        then: from the state with these, whose optimizer and objective are fresh, to the one to begin with, such as
            ``functools.partial(start_on_samples, model=model, train=train)``.

    Returns:
        What ``fit`` and ``train`` take as ``state``.

    Raises:
        TypeError: no functions.
    """
    if not callable(load):
        raise TypeError(f"load must be a function of a model's fresh variables, got {load!r}")
    if isinstance(then, TrainState):
        raise TypeError("then must be a function of a state, got a TrainState")
    validation.check_state(then)
    return FromPretrained(load, then)


State = TrainState | Start | FromPretrained
"""What ``fit`` takes as ``state``, where it is not None."""


class Beginning(NamedTuple):
    """Where a run begins: at a given state, or at a fresh one and what is made of it."""

    seed: int
    state: TrainState | None = None
    load: Pretrained | None = None
    start: Start | None = None

    @classmethod
    def of(cls, state: State | None, seed: int) -> Self:
        """Return what ``fit(state=, seed=)`` means."""
        checks.uint32("seed", seed)
        if isinstance(state, FromPretrained):
            return cls(seed, load=state.load, start=state.then)
        validation.check_state(state)
        if state is None or isinstance(state, TrainState):
            return cls(seed, state)
        return cls(seed, start=state)

    @property
    def identity(self) -> str | None:
        """What tells this beginning from others; None where it is a fresh state."""
        parts = (self.state, self.load, self.start and _names(self.start))
        return None if all(part is None for part in parts) else fingerprint(parts)

    def make(self, spec: StepConfig, sample: Tree, *, resumed: bool) -> TrainState:
        """Make the state before the first step; where a checkpoint takes its place, only its structure counts."""
        if self.state is not None:
            return self.state
        fresh = fresh_state(spec, sample, seed=self.seed, pretrained=self.load)
        if self.start is None or resumed:
            return fresh
        started = self.start(fresh)
        validation.check_initial_state(started, fresh)
        return started


def _names(function: Any) -> list[Any]:
    """Return a function's qualified name, and the plain ones among a partial's keywords; not its data set."""
    if isinstance(function, functools.partial):
        plain = {k: v for k, v in function.keywords.items() if isinstance(v, int | float | str)}
        return [*_names(function.func), plain]
    return [qualified_name(function)]


def open_run(
    run: RunConfig,
    settings: Mapping[str, Any],
    spec: StepConfig,
    train: TrainSet,
    begin: Beginning,
    callbacks: Callbacks,
) -> RunFolder:
    """Open a run's folder, or refuse it: another run's results are never this run's."""
    assert run.folder is not None
    config, acting = dict(run.config or {}), callbacks.config
    started = config.get("started", {})
    if isinstance(started, Mapping):
        started = {"labels": trained_view(train), **started}
    described = {
        **config,
        **({"callbacks": acting} if acting else {}),
        "started": started,
        "fit": dict(settings),
        "fingerprint": {
            "data": data_fingerprint(train),
            "model": fingerprint(_model_parts(spec.model), spec.preprocess),
            "objective": fingerprint(spec.objective),
            "optimizer": fingerprint(spec.optimizer),
            "start": begin.identity,
        },
        "embedding": describe(spec.model, spec.preprocess, run.normalize, train),
        "versions": versions(),
    }
    return RunFolder(
        run.folder,
        described,
        resume=run.resume,
        growing=None if callbacks.stateful else run.allow_more_steps,
        asynchronous=run.async_checkpoints,
    )


def _model_parts(model: Model) -> Any:
    """Return what tells models apart; the shapes of their arrays are compared with the checkpoint's."""
    return (
        (model.settings, _model_parts(model.base))
        if isinstance(model, WithLora)
        else unwrapped(model)
    )
