"""Constraints of plain values: each stands on the field that it constrains, as ``Annotated[float, positive]``."""

import dataclasses
import difflib
import functools
import math
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

Constraint = Callable[[Any], str | None]
"""From a value to what it must be, where it is not: "must be positive"."""

SecondLook = Literal["augment", "expand", "none", "reciprocal"]
"""How what was found is ranked again."""


def number(value: Any) -> str | None:
    """Any number; of a field of integers a whole one."""
    return None


def positive(value: Any) -> str | None:
    """A number above 0."""
    return None if value > 0 else "must be positive"


def non_negative(value: Any) -> str | None:
    """A number that is 0 or more."""
    return None if value >= 0 else "must not be negative"


def of_32_bits(value: Any) -> str | None:
    """A seed: of a larger one a key of JAX keeps 32 bits, which are another seed's."""
    return None if 0 <= value < 2**32 else "must be from 0 to 4294967295"


def share(value: Any) -> str | None:
    """A part of a whole, which is never all of it."""
    return None if 0 <= value < 1 else "must be from 0 to below 1"


def unit(value: Any) -> str | None:
    """A number from 0 to 1, or one of them."""
    return None if 0 <= value <= 1 else "must be from 0 to 1"


def inside_unit(value: Any) -> str | None:
    """A number between 0 and 1, neither of them."""
    return None if 0 < value < 1 else "must be between 0 and 1"


def at_least(least: int) -> Constraint:
    """A number that is not below a bound."""

    def constraint(value: Any) -> str | None:
        return None if value >= least else f"must be at least {least}"

    return constraint


def check_fields(values: Any, called: Callable[[str], str] = str) -> None:
    """Check the fields of a dataclass by their types and by the constraints that stand on them.

    A constraint wants a number, ``bool`` a flag, ``str`` a text, a ``Literal`` one of its words; None is for fields
    that say so. Numbers of NumPy and JAX become Python's.

    Args:
        values: an instance.
        called: from a field's name to what it is called in a message.

    Raises:
        TypeError: a value of another kind.
        ValueError: naming the field, what it must be, and what it was.

    Example:
        >>> from typing import Annotated
        >>> Point = dataclasses.make_dataclass("Point", [("x", Annotated[float, positive])])
        >>> check_fields(Point(-1.0))
        Traceback (most recent call last):
        ...
        ValueError: x must be positive, got -1.0
    """
    kind: Any = type(values)
    for rule in _rules(kind):
        value, name = getattr(values, rule.field), called(rule.field)
        if hasattr(value, "dtype") and hasattr(value, "tolist") and value.ndim == 0:
            value = value.tolist()
            object.__setattr__(values, rule.field, value)
        if value is None:
            if not rule.optional:
                raise TypeError(f"{name} must be given, got None")
            continue
        if {str} == {*rule.kinds} - {types.NoneType} and not isinstance(value, str):
            raise TypeError(f"{name} must be a text, got a {type(value).__name__}")
        if bool in rule.kinds and not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, got {value!r}")
        if rule.constraints and float not in rule.kinds and isinstance(value, float):
            raise TypeError(f"{name} must be a whole number, got {value!r}")
        if rule.words and str not in rule.kinds:  # beside any word they are suggestions
            one_of(name, value, rule.words)
        for constraint in rule.constraints:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"{name} must be a number, got {value!r}")
            wrong = "must be finite" if not math.isfinite(value) else constraint(value)
            if wrong:
                raise ValueError(f"{name} {wrong}, got {value!r}")


class _Rule(NamedTuple):
    """What a field may be: which kinds, what of a number is asked, which words; whether also None."""

    field: str
    kinds: tuple[Any, ...]
    constraints: tuple[Constraint, ...]
    words: tuple[Any, ...]
    optional: bool


@functools.cache
def _rules(kind: Any) -> tuple[_Rule, ...]:
    """The types of a dataclass's fields, read once: a record is made often."""
    hints, rules = get_type_hints(kind, include_extras=True), []
    for field in dataclasses.fields(kind):
        told, constraints = hints[field.name], ()
        if get_origin(told) is Annotated:
            constraints = tuple(rule for rule in told.__metadata__ if callable(rule))
            told = told.__origin__
        kinds = get_args(told) if get_origin(told) in (Union, types.UnionType) else (told,)
        words = tuple(word for one in kinds if get_origin(one) is Literal for word in get_args(one))
        optional = type(None) in kinds or told is Any
        rules.append(_Rule(field.name, kinds, constraints, words, optional))
    return tuple(rules)


def plain_settings(name: str, settings: Any) -> dict[str, Any]:
    """Give settings as plain values: those that JSON has, lists as tuples.

    Args:
        name: what they are called.
        settings: values by name.

    Returns:
        A copy.

    Raises:
        TypeError: what is no mapping, or holds what JSON has no word for.

    Example:
        >>> plain_settings("settings", {"k": [1, 2], "margin": 0.1})
        {'k': (1, 2), 'margin': 0.1}
    """
    if not isinstance(settings, Mapping):
        raise TypeError(f"{name} must be values by name, got a {type(settings).__name__}")
    return {str(key): _plain(f"{name}[{key!r}]", value) for key, value in settings.items()}


def _plain(name: str, value: Any) -> Any:
    if hasattr(value, "tolist") and hasattr(value, "dtype"):  # arrays and numbers of NumPy and JAX
        value = value.tolist()
    if isinstance(value, tuple | list):
        return tuple(_plain(name, part) for part in value)
    if isinstance(value, float) and not math.isfinite(value):
        raise TypeError(f"{name} must be a finite number, got {value}")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"{name} must be a plain value (a number, a word, a list of such), got a {type(value).__name__}: "
        "jdml.training.train(objective=…) takes an objective of your own"
    )


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
