"""Pointers ``"module:name"`` into code that is imported only when it is used."""

import importlib
import re
import sys
from collections.abc import Callable
from traceback import extract_tb
from typing import Any


def resolve(pointer: str) -> Any:
    """Import what a pointer names.

    Args:
        pointer: ``"module:name"``.

    Returns:
        The module's attribute.

    Raises:
        ValueError: the pointer is not of this form.
        ImportError: there is no such module.
        AttributeError: the module has no such attribute.

    Example:
        >>> resolve("jdml.mining:easy_positive").__name__
        'easy_positive'
    """
    module, colon, name = pointer.partition(":")
    if not (module and colon and name):
        raise ValueError(f'pointer must be "module:name", got {pointer!r}')
    return getattr(importlib.import_module(module), name)


def import_user_object(pointer: str) -> Any:
    """Return what a pointer into a user's module names, or one in the working directory; failures are ValueErrors."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return resolve(pointer)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{pointer} cannot be imported: {error}") from error
    except Exception as error:  # whatever a user's own code raises
        raise _raised(pointer, error) from error


def call_user_object(pointer: str, function: Callable[..., Any], **settings: Any) -> Any:
    """Call what :func:`import_user_object` returned; whatever it raises is a ValueError that names the place."""
    try:
        return function(**settings)
    except Exception as error:  # whatever a user's own code raises
        raise _raised(pointer, error) from error


def _raised(pointer: str, error: Exception) -> ValueError:
    """Return the error of what a user's module raised, and where."""
    last = extract_tb(error.__traceback__)[-1]
    own = last.filename == __file__ or isinstance(error, SyntaxError)
    where = "" if own else f" ({last.filename}:{last.lineno})"
    return ValueError(f"{pointer} raised {type(error).__name__}: {error}{where}")


def is_pointer(text: str) -> bool:
    """Whether a text looks like ``"module:name"``."""
    return re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", text) is not None
