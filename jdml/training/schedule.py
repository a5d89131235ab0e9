"""When things happen in a run, how far it is, and which evaluation was the best so far."""

import math
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from jdml.ops import checks

Record = dict[str, float | int | str]


@dataclass(frozen=True)
class Schedule:
    """When things happen: functions of the step alone, so that a resumed run does the same."""

    steps: int
    evaluate_every: int
    log_every: int
    checkpoint_every: int
    monitor: str | None
    patience: int | None
    callback_steps: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        checks.at_least(0)("steps", self.steps)
        if self.patience is not None and self.monitor is None:
            raise ValueError("patience needs monitor, the name of the metric to watch")

    def evaluates(self, step: int) -> bool:
        """Whether there is an evaluation after this step."""
        return step % self.evaluate_every == 0 or step == self.steps

    def saves(self, step: int) -> bool:
        """Whether there is a checkpoint after this step."""
        return step % self.checkpoint_every == 0 or step == self.steps

    def pauses(self, step: int) -> bool:
        """Whether the host looks at the device's numbers after this step."""
        every = (self.log_every, *self.callback_steps)
        return any(step % n == 0 for n in every) or self.evaluates(step) or self.saves(step)

    @property
    def config(self) -> dict[str, int | str | None]:
        """What a run's folder compares: all but when callbacks are called."""
        return {k: v for k, v in asdict(self).items() if k != "callback_steps"}


class Best(NamedTuple):
    """The best evaluation so far.

    Attributes:
        value: the monitored metric's best value; −∞ before the first evaluation.
        step: the step at which it was reached.
        stale: evaluations since then.
    """

    value: float = -math.inf
    step: int = 0
    stale: int = 0


def improve(best: Best, value: float, step: int) -> tuple[Best, bool]:
    """Take one evaluation into account; larger is better and NaN never is.

    Args:
        best: the best so far.
        value: the monitored metric now.
        step: the step of this evaluation.

    Returns:
        The best now, and whether this evaluation is it. Ties keep the earlier one.

    Example:
        >>> best, improved = improve(Best(), 0.5, 100)
        >>> best, improved
        (Best(value=0.5, step=100, stale=0), True)
        >>> improve(best, 0.5, 200)
        (Best(value=0.5, step=100, stale=1), False)
    """
    if value > best.value:
        return Best(value, step, 0), True
    return best._replace(stale=best.stale + 1), False


@dataclass
class Progress:
    """The loop's own state: JSON-able, saved beside the train state."""

    step: int = 0
    history: list[Record] = field(default_factory=list)
    best: Best = field(default_factory=Best)
    stopped: str | None = None
    skipped_in_a_row: int = 0
    scored: list[str] = field(default_factory=list)
