"""Constraints of numbers, and checks of keywords, names, functions and the fields of dataclasses."""

import dataclasses
import difflib
import functools
import inspect
import math
import numbers
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints


@dataclasses.dataclass(frozen=True, eq=False)
class Constraint:
    """The condition on a number; ``constraint(name, value)`` raises where the value does not meet it."""

    test: Callable[[Any], Any]
    expected: str
    integer: bool = False
    rank: int = 0
    or_none: bool = False
    several: bool = False

    def __call__(self, name: str, value: Any) -> None:
        """Raise a TypeError or a ValueError where the value does not meet the condition."""
        if value is None and self.or_none:
            return
        if self.several and isinstance(value, Sequence) and not isinstance(value, str):
            if not value:
                raise ValueError(f"{name} must hold at least one number {self.expected}, got none")
            for each in value:
                dataclasses.replace(self, several=False)(name, each)
            return
        kind = numbers.Integral if self.integer else numbers.Real
        if isinstance(value, bool) or not isinstance(value, kind):
            if self.integer or not hasattr(value, "dtype"):
                noun = "a Python integer" if self.integer else "a number"
                shown = repr(value).replace("\n", " ")  # an array's has several lines
                raise TypeError(f"{name} must be {noun} {self.expected}, got {shown}")
            from jdml.ops.checks.arrays import check_array

            check_array(name, value, self)
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
nonzero_integer = Constraint(lambda v: v != 0, "other than 0", integer=True)
uint32 = Constraint(lambda v: 0 <= v < 2**32, f"from 0 to {2**32 - 1}", integer=True)
"""A key of JAX keeps 32 bits of a larger one, which are another seed's."""


counts = dataclasses.replace(count, several=True)
"""One or several whole numbers ≥ 1."""
Rerank = Literal["augment", "expand", "none", "reciprocal"]
"""How a ranking is computed again."""


def block(name: str, value: Any) -> None:
    """Refuse what is no size of a block: an integer, ``"auto"`` or None."""
    if not isinstance(value, str):
        _block_size(name, value)
    elif value != "auto":
        raise ValueError(f"{name} must be {_block_size.expected}, got {value!r}")


_block_size = dataclasses.replace(count, expected='>= 1, "auto" or None', or_none=True)


def check_flag(name: str, value: Any) -> bool:
    """Refuse what is not a plain boolean, a traced one included; return it as Python's."""
    # NumPy's is none of Python's, and this file imports no NumPy.
    if not isinstance(value, bool) and type(value).__name__ not in ("bool_", "bool"):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def check_function(name: str, value: Any, *, or_none: bool = True) -> None:
    """Refuse what is neither a function nor, if that is allowed, None."""
    if not callable(value) and not (or_none and value is None):
        raise TypeError(f"{name} must be a function{' or None' * or_none}, got {value!r}")


def one_of(name: str, value: Any, known: Iterable[str]) -> None:
    """Refuse what is none of some names."""
    known = tuple(known)
    if not isinstance(value, str) or value not in known:
        raise ValueError(
            f"{name} must be one of {', '.join(known)}, got {value!r}{did_you_mean(value, known)}"
        )


def did_you_mean(word: Any, known: Iterable[str]) -> str:
    """Return ``"; did you mean X?"``, or nothing where no known word is near."""
    near = difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


def no_setting(owner: str, name: str, known: Iterable[str]) -> str:
    """Return the message that something has no setting of a name, with those that it has."""
    known = list(known)
    return f"{owner} has no setting {name!r}{did_you_mean(name, known)}; it has {', '.join(known) or 'none'}"


def check_fields(values: Any, called: Callable[[str], str] = str) -> None:
    """Check a dataclass's fields, which messages call as ``called`` does; numbers of NumPy and JAX become Python's."""
    hints = _type_hints(values.__class__)
    for field in dataclasses.fields(values):
        hint, value, name = hints[field.name], getattr(values, field.name), called(field.name)
        marks = getattr(hint, "__metadata__", ())
        constraints = [mark for mark in marks if isinstance(mark, Constraint)]
        hint = hint.__origin__ if get_origin(hint) is Annotated else hint
        kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
        if hasattr(value, "dtype") and hasattr(value, "tolist") and value.ndim == 0:
            value = value.tolist()
            object.__setattr__(values, field.name, value)
        if value is None:
            if types.NoneType not in kinds and hint is not Any:
                raise TypeError(f"{name} must not be None")
            continue
        if {str} == {*kinds} - {types.NoneType} and not isinstance(value, str):
            raise TypeError(f"{name} must be a text, got a {type(value).__name__}")
        if bool in kinds:
            check_flag(name, value)
        if get_origin(kinds[0]) is Mapping and not isinstance(value, Mapping):
            raise TypeError(f"{name} must be values by name, got a {type(value).__name__}")
        if constraints and float not in kinds and isinstance(value, float):
            raise TypeError(f"{name} must be a whole number, got {value!r}")
        if words and str not in kinds:  # next to any word they are suggestions
            if isinstance(value, str) or not {int, float} & {*kinds}:
                one_of(name, value, words)
        several = {name: value}
        if isinstance(value, Mapping) and any(get_origin(kind) is Mapping for kind in kinds):
            several = {f"{name} {key}": each for key, each in value.items()}
        for constraint in constraints:
            for place, each in several.items():
                constraint(place, each)


_type_hints = functools.cache(functools.partial(get_type_hints, include_extras=True))


def check_settings(function: Callable[..., Any], settings: Iterable[str]) -> None:
    """Refuse keywords that a function does not take, before it is called."""
    known = _keywords(function)
    for name in settings:
        if known is not None and name not in known:
            raise TypeError(
                no_setting(getattr(function, "__name__", type(function).__name__), name, known)
            )


def takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function takes a keyword; True where there is no signature to look at."""
    known = _keywords(function)
    return known is None or name in known


def default_of(function: Callable[..., Any], name: str) -> Any:
    """Return the default of a function's parameter, for a field or an option that has the same."""
    return inspect.signature(function).parameters[name].default


def accepted_settings(function: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a function, or a partial of one, takes by name and does not have yet."""
    known = inspect.signature(function).parameters
    own = getattr(function, "keywords", {})
    return {name: value for name, value in settings.items() if name in known and name not in own}


def _keywords(function: Callable[..., Any]) -> list[str] | None:
    """Return the keywords that a function takes; None where that is any, or where there is no signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
