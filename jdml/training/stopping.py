"""Early stopping: the best value of a monitored metric so far, as a pure state machine."""

import math
from typing import NamedTuple


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
