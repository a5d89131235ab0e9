"""Pointers into code that is imported only when it is used."""

import importlib
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
