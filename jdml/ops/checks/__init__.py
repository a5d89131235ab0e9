"""Argument checks: what a caller passed, what was expected, in one sentence.

Shapes, types and plain Python numbers are checked when a function is traced. Values that exist only at run time are
checked by ``require``, which does something only inside :func:`jdml.checked`. The checks of arrays import JAX, and do
so on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from jdml.ops.checks.settings import *

if TYPE_CHECKING:
    from jdml.ops.checks.arrays import *
else:

    def __getattr__(name: str) -> Any:
        """Import the checks of arrays when one of them is first used."""
        arrays = importlib.import_module("jdml.ops.checks.arrays")
        if name.startswith("__") or not hasattr(arrays, name):
            raise AttributeError(f"module 'jdml.ops.checks' has no attribute {name!r}")
        return globals().setdefault(name, getattr(arrays, name))
