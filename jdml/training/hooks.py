"""What may act between the steps of a run."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from jdml.training.placement import Tree
from jdml.training.step import TrainState


class HookResult(NamedTuple):
    """What a :class:`Hook` makes of an evaluation.

    Attributes:
        carried: what it carries to the next one.
        state: the train state to go on from.
        seen: scalars for the log record.
        ended: whether the run is over.
    """

    carried: Tree
    state: TrainState
    seen: Mapping[str, float | int]
    ended: bool


class Hook(Protocol):
    """What may change the train state after an evaluation; CCP is one (:class:`jdml.training.AlternatingProblems`).

    What it carries from one evaluation to the next is a pytree of arrays, and saved with every checkpoint.
    """

    @property
    def config(self) -> Mapping[str, Any]:
        """What a run's folder must agree with, beside the recipe, to be resumed, JSON-able."""
        ...

    def template(self, state: TrainState) -> Tree:
        """Give what is carried, for its structure alone: a run that goes on fills it from its checkpoint."""
        ...

    def start(self, state: TrainState) -> tuple[Tree, TrainState]:
        """Begin, before the first step of a run: what is carried, and the state to begin with."""
        ...

    def after_evaluation(
        self, carried: Tree, state: TrainState, metrics: Mapping[str, float]
    ) -> HookResult:
        """Act after every evaluation."""
        ...
