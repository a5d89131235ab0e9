"""Constraints of numbers: what a hyper-parameter of a loss, a field of a recipe and an option may be."""

import dataclasses
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, eq=False)
class Constraint:
    """The condition on a number; ``constraint(name, value)`` raises where the value does not meet it."""

    test: Callable[[Any], Any]
    expected: str
    integer: bool = False
    rank: int = 0
    or_none: bool = False
    words: tuple[str, ...] = ()

    def __call__(self, name: str, value: Any) -> None:
        """Raise a TypeError or a ValueError where the value does not meet the condition."""
        if (value is None and self.or_none) or (isinstance(value, str) and value in self.words):
            return
        if isinstance(value, str) and self.words:
            raise ValueError(f"{name} must be {self.expected}, got {value!r}")
        kind = numbers.Integral if self.integer else numbers.Real
        if isinstance(value, bool) or not isinstance(value, kind):
            if self.integer or not hasattr(value, "dtype"):
                noun = "a Python integer" if self.integer else "a number"
                shown = repr(value).replace("\n", " ")  # an array's has several lines
                raise TypeError(f"{name} must be {noun} {self.expected}, got {shown}")
            from jdml.ops.checks.arrays import check_array

            check_array(name, value, self.test, self.expected, self.rank)
        elif not self.test(value):
            raise ValueError(f"{name} must be {self.expected}, got {value}")


def optional(constraint: Constraint) -> Constraint:
    """Return the same constraint, or None."""
    return dataclasses.replace(constraint, or_none=True)


def at_least(least: int) -> Constraint:
    """Return the constraint of a whole number ≥ ``least`` and below 2³¹."""
    return Constraint(lambda v: least <= v < 2**31, f">= {least} and below 2**31", integer=True)


finite = Constraint(lambda v: abs(v) < math.inf, "finite")
finite_per_class = dataclasses.replace(finite, rank=1)
positive = Constraint(lambda v: (v > 0) & (v < math.inf), "> 0")
non_negative = Constraint(lambda v: (v >= 0) & (v < math.inf), ">= 0")
angle = Constraint(lambda v: (v >= 0) & (v <= math.pi), "an angle in radians, 0…π")
angle_per_class = dataclasses.replace(angle, rank=1)
unit_interval = Constraint(lambda v: (v >= 0) & (v <= 1), "in [0, 1]")
open_unit_interval = Constraint(lambda v: (v > 0) & (v < 1), "between 0 and 1")
fraction_below_1 = Constraint(lambda v: (v >= 0) & (v < 1), "in [0, 1)")
count = at_least(1)
block = dataclasses.replace(
    count, expected='an integer >= 1, "auto" or None', or_none=True, words=("auto",)
)
nonzero_integer = Constraint(lambda v: v != 0, "other than 0", integer=True)
uint32 = Constraint(lambda v: 0 <= v < 2**32, f"from 0 to {2**32 - 1}", integer=True)
"""A key of JAX keeps 32 bits of a larger one, which are another seed's."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Counts(Constraint):
    def __call__(self, name: str, value: Any) -> None:
        several = isinstance(value, Sequence) and not isinstance(value, str)
        if several and not value:
            raise ValueError(f"{name} must hold at least one integer >= 1, got {value!r}")
        for number in value if several else (value,):
            count(name, number)


counts = _Counts(count.test, count.expected, integer=True)
"""One or several whole numbers ≥ 1."""
