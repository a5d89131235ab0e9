"""The public names keep their word: every signature is in `api.txt`, so that a change of one is seen and meant.

python tests/repository/test_api.py   # after a change that is meant; it is named in the changelog
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


def written(function: Any) -> str:
    """Names, kinds and defaults of parameters: what a caller writes. Types are mypy's to compare."""
    if typing.get_origin(function):  # a type of functions: Python 3.14 makes up a signature
        return "(…)"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "(…)"
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    text = str(signature.replace(parameters=parameters, return_annotation=signature.empty))
    # Functions and classes by their names, and nothing by where it lies in memory.
    return re.sub(
        r"<\S+ object at \w+>", "…", re.sub(r"<(?:function|class) '?([\w.]+)[^>]*>", r"\1", text)
    )


def members(kind: type) -> Iterator[str]:
    """Methods and properties of a class that it has from this library."""
    for name in sorted(dir(kind)):
        owner = next((base for base in kind.__mro__ if name in vars(base)), object)
        if name.startswith("_") or not owner.__module__.startswith("jdml"):
            continue
        member = getattr(kind, name)
        yield f"    .{name}{written(member) if callable(member) else ''}"


def lines() -> Iterator[str]:
    """The flat names; then a line for each public name of a room, and what its classes have."""
    yield from (f"jdml.{name}" for name in sorted(jdml.__all__))
    for room in jdml._ROOMS:
        module = importlib.import_module(f"jdml.{room}")
        for name in public_names(room):
            value = getattr(module, name)
            if inspect.ismodule(value):
                continue
            yield f"jdml.{room}.{name}{written(value) if callable(value) else ''}"
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
