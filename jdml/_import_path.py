"""Pointers ``"module:name"`` to code that is imported when it is used."""

import importlib
import re
import sys
from collections.abc import Callable
from traceback import extract_tb
from typing import Any


def resolve(pointer: str) -> Any:
    """Import the attribute that a pointer ``"module:name"`` names.

    Args:
        pointer: the module and the name of an attribute in it.

    Returns:
        The attribute.

    Example:
        >>> resolve("jdml.mining:easy_positive").__name__
        'easy_positive'
    """
    module, _, name = pointer.partition(":")
    return getattr(importlib.import_module(module), name)


def import_user_object(pointer: str) -> Any:
    """Import from a user's module, or one in the working directory; errors are ValueErrors."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    return call_user_object(pointer, lambda: resolve(pointer))


def call_user_object(pointer: str, function: Callable[..., Any], **settings: Any) -> Any:
    """Call a user's function; its errors are ValueErrors that name the line."""
    try:
        return function(**settings)
    except Exception as error:
        last = extract_tb(error.__traceback__)[-1]
        is_own = last.filename == __file__ or isinstance(error, SyntaxError | ImportError)
        where = "" if is_own else f" ({last.filename}:{last.lineno})"
        raise ValueError(f"{pointer} raised {type(error).__name__}: {error}{where}") from error


def is_pointer(text: str) -> bool:
    """Return whether a text has the form ``"module:name"``."""
    return re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", text) is not None
