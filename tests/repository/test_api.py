"""The public signatures match `api.txt`, so that no change of one goes unnoticed.

python tests/repository/test_api.py   # after an intended change, which the changelog names
"""

import difflib
import importlib
import inspect
import re
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jdml

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

from maker.pages import public_names

FILE = Path(__file__).with_name("api.txt")


def signature_of(function: Any) -> str:
    """Return names, kinds and defaults of parameters, as a caller needs them. mypy checks the types."""
    if typing.get_origin(function):  # a type of functions: Python 3.14 invents a signature
        return "(…)"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "(…)"
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    text = str(signature.replace(parameters=parameters, return_annotation=signature.empty))
    # Functions and classes by name, nothing by its address in memory.
    return re.sub(
        r"<\S+ object at \w+>", "…", re.sub(r"<(?:function|class) '?([\w.]+)[^>]*>", r"\1", text)
    )


def members(kind: type) -> Iterator[str]:
    """Return the methods and properties of a class that this library defines."""
    for name in sorted(dir(kind)):
        owner = next((base for base in kind.__mro__ if name in vars(base)), object)
        if name.startswith("_") or not owner.__module__.startswith("jdml"):
            continue
        member = getattr(kind, name)
        yield f"    .{name}{signature_of(member) if callable(member) else ''}"


def lines() -> Iterator[str]:
    """Return the flat names, then a line for each public name of a package and for its classes' members."""
    yield from (f"jdml.{name}" for name in sorted(jdml.__all__))
    for room in jdml._ROOMS:
        module = importlib.import_module(f"jdml.{room}")
        for name in public_names(room):
            value = getattr(module, name)
            if inspect.ismodule(value):
                continue
            yield f"jdml.{room}.{name}{signature_of(value) if callable(value) else ''}"
            if inspect.isclass(value):
                yield from members(value)


def test_signatures_are_those_on_file() -> None:
    on_file = FILE.read_text().splitlines()
    changed = list(difflib.unified_diff(on_file, list(lines()), "on file", "now", n=0, lineterm=""))
    assert not changed, "\n".join(
        ["python tests/repository/test_api.py, if it is meant:", *changed]
    )


if __name__ == "__main__":
    FILE.write_text("\n".join(lines()) + "\n")
