"""Constraints of plain values: each stands on the field that it constrains, as ``Annotated[float, positive]``."""

import dataclasses
import difflib
import math
from collections.abc import Callable, Iterable
from typing import Any, get_type_hints

Constraint = Callable[[Any], str | None]
"""From a value to what it must be, where it is not: "must be positive"."""


def positive(value: Any) -> str | None:
    """A number above 0."""
    return None if value > 0 else "must be positive"


def non_negative(value: Any) -> str | None:
    """A number that is 0 or more."""
    return None if value >= 0 else "must not be negative"


def share(value: Any) -> str | None:
    """A part of a whole, which is never all of it."""
    return None if 0 <= value < 1 else "must be from 0 to below 1"


def inside_unit(value: Any) -> str | None:
    """A number between 0 and 1, neither of them."""
    return None if 0 < value < 1 else "must be between 0 and 1"


def at_least(least: int) -> Constraint:
    """A number that is not below a bound."""

    def constraint(value: Any) -> str | None:
        return None if value >= least else f"must be at least {least}"

    return constraint


def check_fields(values: Any, called: Callable[[str], str] = str) -> None:
    """Check the fields of a dataclass by the constraints that stand on them; None is always allowed.

    Args:
        values: an instance.
        called: from a field's name to what it is called in a message.

    Raises:
        TypeError: a value of another kind than numbers.
        ValueError: naming the field, what it must be, and what it was.

    Example:
        >>> from typing import Annotated
        >>> Point = dataclasses.make_dataclass("Point", [("x", Annotated[float, positive])])
        >>> check_fields(Point(-1.0))
        Traceback (most recent call last):
        ...
        ValueError: x must be positive, got -1.0
    """
    hints = get_type_hints(type(values), include_extras=True)
    for field in dataclasses.fields(values):
        value = getattr(values, field.name)
        if value is None:
            continue
        for constraint in getattr(hints[field.name], "__metadata__", ()):
            if not callable(constraint):
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"{called(field.name)} must be a number, got {value!r}")
            wrong = "must be finite" if not math.isfinite(value) else constraint(value)
            if wrong:
                raise ValueError(f"{called(field.name)} {wrong}, got {value!r}")


def one_of(name: str, value: Any, known: Iterable[str]) -> None:
    """Refuse what is none of some names.

    Args:
        name: what is checked.
        value: what was given.
        known: the names.

    Raises:
        ValueError: naming all of them, and the nearest.
    """
    known = tuple(known)
    if not isinstance(value, str) or value not in known:
        raise ValueError(
            f"{name} must be one of {', '.join(known)}, got {value!r}{nearest(value, known)}"
        )


def nearest(word: Any, known: Iterable[str]) -> str:
    """``"; did you mean X?"``, or nothing where nothing is near.

    Example:
        >>> nearest("tripplet", ["margin", "triplet"])
        '; did you mean triplet?'
    """
    near = difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""
