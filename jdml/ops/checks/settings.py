"""Checks of keywords, flags and functions."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def check_settings(function: Callable[..., Any], settings: Any) -> None:
    """Refuse keywords that a function does not take, before it is called.

    Args:
        function: a loss.
        settings: names, or a mapping by name.

    Raises:
        TypeError: naming the keyword, the nearest one, and all there are.
    """
    known = _keywords(function)
    if known is None:
        return
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            label = getattr(function, "__name__", type(function).__name__)
            raise TypeError(f"{label} has no setting {name!r}; {hint}it has {', '.join(known)}")


def takes(function: Callable[..., Any], name: str) -> bool:
    """Tell whether a function takes a keyword.

    Args:
        function: a loss.
        name: the keyword.

    Returns:
        Whether its signature has it, or any keyword; True where there is no signature to look at.
    """
    known = _keywords(function)
    return known is None or name in known


def takes_by_place(function: Callable[..., Any], number: int) -> bool:
    """Tell whether a function takes so many arguments by their places.

    Args:
        function: a loss.
        number: how many.

    Returns:
        Whether it does; True where there is no signature to look at.
    """
    known = _signature(function)
    try:
        if known is not None:
            known.bind_partial(*range(number))
    except TypeError:
        return False
    return True


def asks_for(function: Callable[..., Any], name: str) -> bool:
    """Tell whether a function cannot be called without an argument.

    Args:
        function: a loss.
        name: of the argument.

    Returns:
        Whether its signature has it, without a default.
    """
    known = _signature(function)
    asked = None if known is None else known.parameters.get(name)
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return asked is not None and asked.kind not in several and asked.default is asked.empty


def taken_settings(function: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Pick the settings that a function takes by name, and has not been given yet.

    Args:
        function: what is to be called, or a :class:`functools.partial` of it.
        settings: by name.

    Returns:
        Those of its keywords.
    """
    known = inspect.signature(function).parameters
    given = getattr(function, "keywords", {})
    return {name: value for name, value in settings.items() if name in known and name not in given}


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """None of what is not a Python function."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _keywords(function: Callable[..., Any]) -> list[str] | None:
    """The keywords that a function takes; None where that is any, or where there is no signature to look at."""
    known = _signature(function)
    if known is None:
        return None
    parameters = known.parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]


def check_flag(name: str, value: Any) -> bool:
    """Refuse what is not a plain boolean.

    Args:
        name: the argument's name.
        value: what was passed.

    Returns:
        The flag as a Python boolean.

    Raises:
        TypeError: it is something else, a traced boolean included.
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def check_function(name: str, value: Any) -> None:
    """Refuse what is neither a function nor None.

    Args:
        name: the argument's name.
        value: what was passed.

    Raises:
        TypeError: it cannot be called.
    """
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a function or None, got {value!r}")
