"""Constraints of numbers: each a function of a name and a value, which raises where the value cannot be meant."""

import functools
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jdml.ops.checks.running import require

Constraint = Callable[[str, Any], None]
"""Checks one hyper-parameter: ``constraint(name, value)`` raises where the value cannot be meant."""


def _number(test: Callable[[Any], Any], expected: str, *, rank: int = 0) -> Constraint:
    def constraint(name: str, value: Any) -> None:
        if isinstance(value, bool | str) or not isinstance(
            value, numbers.Real | Array | np.ndarray
        ):
            raise TypeError(f"{name} must be a number {expected}, got {value!r}")
        if isinstance(value, Array | np.ndarray) and value.dtype == bool:
            raise TypeError(f"{name} must be a number {expected}, got a boolean")
        if isinstance(value, Array | np.ndarray) and value.ndim > rank:
            allowed = "a scalar" if rank == 0 else "a scalar or one-dimensional"
            raise ValueError(f"{name} must be {allowed}, got shape {list(value.shape)}")
        if isinstance(value, Array):
            flat = jnp.ravel(value)
            require(test(flat), f"{name} must be {expected}, got {{0}}", flat)
        elif not np.all(test(np.asarray(value))):
            raise ValueError(f"{name} must be {expected}, got {value}")

    return constraint


finite = _number(lambda v: abs(v) < math.inf, "finite")

finite_per_class = _number(lambda v: abs(v) < math.inf, "finite", rank=1)

positive = _number(lambda v: (v > 0) & (v < math.inf), "> 0")

non_negative = _number(lambda v: (v >= 0) & (v < math.inf), ">= 0")

angle = _number(lambda v: (v >= 0) & (v <= math.pi), "an angle in radians, 0…π")

angle_per_class = _number(lambda v: (v >= 0) & (v <= math.pi), "an angle in radians, 0…π", rank=1)

unit_interval = _number(lambda v: (v >= 0) & (v <= 1), "in [0, 1]")


def count(name: str, value: Any, *, least: int = 1) -> None:
    """Constraint of a static whole number ≥ 1 (of bins, blocks, clusters), or ≥ ``least``, and below 2³¹."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be a Python integer >= {least}, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be >= {least}, got {value}")
    if int(value) >= 2**31:
        raise ValueError(f"{name} must fit into int32, got {value}")


def seed(name: str, value: Any) -> None:
    """Constraint of a seed: 0…2³² − 1. Of a larger one a key of JAX keeps 32 bits, which are another seed's."""
    expected = f"{name} must be an integer from 0 to {2**32 - 1}"
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{expected}, got a {type(value).__name__}")
    if not 0 <= int(value) < 2**32:
        raise ValueError(f"{expected}, got {value}")


def counts(name: str, value: Any) -> None:
    """Constraint of one or several static whole numbers ≥ 1."""
    several = isinstance(value, Sequence) and not isinstance(value, str)
    if several and not value:
        raise ValueError(f"{name} must hold at least one integer >= 1, got {value!r}")
    for number in value if several else (value,):
        count(name, number)


@functools.cache
def optional(constraint: Constraint) -> Constraint:
    """The same constraint, or None.

    Args:
        constraint: one of these.

    Returns:
        The constraint, the same function for the same argument.
    """

    def constraint_or_none(name: str, value: Any) -> None:
        if value is not None:
            constraint(name, value)

    return constraint_or_none


def block(name: str, value: Any) -> None:
    """Constraint of a block size: a static whole number ≥ 1, ``"auto"``, or None."""
    if isinstance(value, str) and value != "auto":
        raise ValueError(f'{name} must be an integer >= 1, "auto" or None, got {value!r}')
    if value is not None and not isinstance(value, str):
        count(name, value)


def nonzero_integer(name: str, value: Any) -> None:
    """Constraint of a static whole number other than 0."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be a Python integer other than 0, got {value!r}")
    if value == 0:
        raise ValueError(f"{name} must not be 0")


STATIC = frozenset({count, counts, optional(count), block, nonzero_integer})
"""The constraints of what is part of a compiled program: sizes."""
