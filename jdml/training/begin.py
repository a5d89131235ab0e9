"""How a run begins: at a state that is given or a fresh one and what is made of it; in a folder that is its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jdml.losses.comparison import Normalize
from jdml.ops import checks
from jdml.training import door
from jdml.training.checkpoint import RunFolder
from jdml.training.description import describe, trained_view, versions
from jdml.training.fingerprint import fingerprint, of_data, settings_of
from jdml.training.lora import WithLora
from jdml.training.models import Model, unwrapped
from jdml.training.placement import Tree
from jdml.training.spec import StepSpec, TrainSet
from jdml.training.step import Pretrained, Start, TrainState, create_state
from jdml.training.wrapped import HoldsLayers


@dataclass(frozen=True, eq=False)
class Beginning:
    """What :func:`jdml.training.fit` is told of the state to begin with.

    Attributes:
        seed: of a fresh state.
        state: given instead of a fresh one.
        pretrained: from a fresh state's variables to those to begin with.
        start: from a fresh state to the one to begin with.

    Raises:
        TypeError: no function of the right arguments, a seed that is no integer.
        ValueError: a state, and what makes another; a seed of more than 32 bits.
    """

    seed: int
    state: TrainState | None = None
    pretrained: Pretrained | None = None
    start: Start | None = None

    def __post_init__(self) -> None:
        checks.seed("seed", self.seed)
        for name in ("pretrained", "start"):
            if self.state is not None and getattr(self, name) is not None:
                raise ValueError(f"state and {name} both say what to begin with: give one of them")
        door.check_start(self.start)

    @property
    def told(self) -> Any:
        """What tells this beginning from others; None where it is a fresh state."""
        first: Any = self.pretrained if self.state is None else self.state
        return first if self.start is None else (first, self.start)

    def make(self, spec: StepSpec, train: TrainSet, sample: Tree, *, going_on: bool) -> TrainState:
        """Make the state before the first step.

        Args:
            spec: what the steps are made from.
            train: the data set.
            sample: one row of it.
            going_on: whether a checkpoint takes its place, so that only its structure counts.

        Returns:
            The state.
        """
        if self.state is not None:
            return self.state
        fresh = create_state(
            spec.model,
            spec.objective,
            spec.optimizer,
            sample,
            seed=self.seed,
            preprocess=spec.preprocess,
            pretrained=self.pretrained,
            freeze=spec.freeze,
        )
        if self.start is None or going_on:
            return fresh
        started = self.start(fresh, spec.model, train, preprocess=spec.preprocess)
        door.check_started(started, fresh)
        return started


def open_run(
    out_dir: str | Path,
    config: Mapping[str, Any],
    settings: Mapping[str, Any],
    spec: StepSpec,
    train: TrainSet,
    begin: Beginning,
    *,
    normalize: Normalize | None,
    resume: bool,
    growing: bool | None,
    asynchronous: bool = False,
) -> RunFolder:
    """Open a run's folder, or refuse it: another run's results are never this run's.

    Args:
        out_dir: the folder.
        config: what the caller says of the run.
        settings: of the loop.
        spec: what a step is made from.
        train: the data set.
        begin: where the run begins.
        normalize: what retrieval does to embeddings.
        resume: accept a folder that has a checkpoint.
        growing: whether more steps than the folder's are the same run going on; None: they never are.
        asynchronous: whether checkpoints are written while training goes on.

    Returns:
        The folder.
    """
    defining = {
        "data": of_data(train),
        "model": fingerprint(_of_model(spec.model), spec.preprocess),
        "objective": fingerprint(spec.objective),
        "optimizer": fingerprint(spec.optimizer),
        "start": None if begin.told is None else fingerprint(begin.told),
    }
    started = config.get("started", {})
    if isinstance(started, Mapping):
        started = {"labels": trained_view(train), **started}
    told = {
        **config,
        "started": started,
        "fit": dict(settings),
        "fingerprint": defining,
        "embedding": describe(spec.model, spec.preprocess, normalize, train),
        "versions": versions(),
    }
    return RunFolder(out_dir, told, resume=resume, growing=growing, asynchronous=asynchronous)


def _of_model(model: Model) -> Any:
    """What tells models apart: of a module that holds its parameters these, beside its kind."""
    if isinstance(model, WithLora):
        return model.settings, _of_model(model.base)
    if isinstance(model, HoldsLayers):
        return model.init(None, None), settings_of(model.parts()), model.frozen
    return unwrapped(model)
