"""Pointers into code that is imported only when it is used."""

import importlib
import re
from typing import Any


def resolve(pointer: str) -> Any:
    """Import what a pointer names.

    Args:
        pointer: ``"module:name"``.

    Returns:
        The module's attribute.

    Raises:
        ValueError: if the pointer is not of this form.
        ImportError: if there is no such module.
        AttributeError: if the module has no such attribute.

    Example:
        >>> resolve("jdml.mining:easy_positive").__name__
        'easy_positive'
    """
    module, colon, name = pointer.partition(":")
    if not (module and colon and name):
        raise ValueError(f'pointer must be "module:name", got {pointer!r}')
    return getattr(importlib.import_module(module), name)


def is_pointer(text: str) -> bool:
    """Whether a text looks like ``"module:name"``.

    Example:
        >>> is_pointer("birds:train"), is_pointer("data.birds:train"), is_pointer("C:/birds"), is_pointer("birds.csv")
        (True, True, False, False)
    """
    return re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", text) is not None
