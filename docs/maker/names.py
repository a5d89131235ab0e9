"""The library's public names, and the page that documents each."""

import importlib
import inspect
from types import FunctionType, ModuleType
from typing import Any

import jdml

ROOMS = tuple(room for room in jdml._ROOMS if room != "cli")


def public_names(room: str) -> list[str]:
    """List what a room exports: its ``__all__``, or what is written in it."""
    module = importlib.import_module(f"jdml.{room}")
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    return sorted(name for name, value in vars(module).items() if is_own(name, value, module))


def is_own(name: str, value: Any, module: ModuleType) -> bool:
    """Tell whether a name is public and its value written in the module."""
    return name[0] != "_" and getattr(value, "__module__", None) == module.__name__


def symbols() -> list[str]:
    """List every public symbol by its dotted name, as its page declares it."""
    return [f"jdml.{room}.{name}" for room in ROOMS for name in public_names(room)]


def directive(symbol: str) -> str:
    """Choose autodoc's directive for a symbol."""
    value = lookup(symbol)
    if inspect.isclass(value):
        return "autoclass"
    if callable(value) and isinstance(inspect.unwrap(value), FunctionType):
        return "autofunction"
    return "autodata"


def lookup(symbol: str) -> Any:
    """Find the object of a dotted name ``jdml.room.name``."""
    module, _, name = symbol.rpartition(".")
    return getattr(importlib.import_module(module), name)


def summary(symbol: str) -> str:
    """Read the first line of a symbol's docstring."""
    return (inspect.getdoc(lookup(symbol)) or "").partition("\n\n")[0].replace("\n", " ")
