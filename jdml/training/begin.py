"""Where a run begins: at a state that is given, or at a fresh one and what is made of it."""

from dataclasses import dataclass
from typing import Any

from jdml.training import door
from jdml.training.placement import Tree
from jdml.training.spec import StepSpec, TrainSet
from jdml.training.step import Pretrained, Start, TrainState, create_state


@dataclass(frozen=True, eq=False)
class Beginning:
    """What :func:`jdml.training.fit` is told of the state to begin with.

    Attributes:
        seed: of a fresh state.
        state: given instead of a fresh one.
        pretrained: from a fresh state's variables to those to begin with.
        start: from a fresh state to the one to begin with.

    Raises:
        TypeError: no function of the right arguments.
        ValueError: a state, and what makes another.
    """

    seed: int
    state: TrainState | None = None
    pretrained: Pretrained | None = None
    start: Start | None = None

    def __post_init__(self) -> None:
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
        )
        if self.start is None or going_on:
            return fresh
        started = self.start(fresh, spec.model, train, preprocess=spec.preprocess)
        door.check_started(started, fresh)
        return started
