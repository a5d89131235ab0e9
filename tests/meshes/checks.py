"""Checks by name, which a script with eight devices tries one after the other, and what they count: operations."""

import math
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import jax

Check = Callable[[], None]


class Checks(dict[str, Check]):
    """Functions without arguments that raise where something does not hold."""

    def add(self, function: Check) -> Check:
        """Decorate a check, whose name is the function's."""
        self[function.__name__.replace("_", " ")] = function
        return function

    def holding(self, words: Iterable[str]) -> "Checks":
        """Those whose names hold one of some words; all without any."""
        words = tuple(words)
        return Checks({n: c for n, c in self.items() if not words or any(w in n for w in words)})

    def run(self) -> tuple[dict[str, str], dict[str, float]]:
        """Try all: by name the empty string or what does not hold, and the seconds that it took."""
        results, seconds = {}, {}
        for name, function in self.items():
            started = time.perf_counter()
            try:
                function()
                results[name] = ""
            except Exception as error:
                results[name] = f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-4)}"
            seconds[name] = time.perf_counter() - started
            print(f"{seconds[name]:6.1f} s  {name}  {results[name][:3000]}", flush=True)
        return results, seconds


def operations(jaxpr: Any) -> float:
    """The operations of a jaxpr: those of a ``shard_map`` are one device's, a loop's body counts as often as it runs.

    Args:
        jaxpr: of ``jax.jit(f).trace(…)`` or ``jax.make_jaxpr``.

    Returns:
        Multiplications and additions of matrix products, and one for each entry that another operation makes.
    """
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    return sum(_operations(equation) for equation in jaxpr.eqns)


def _operations(equation: Any) -> float:
    parameters = equation.params
    inner = [
        operations(part)
        for part in jax.tree.leaves(parameters, is_leaf=_is_jaxpr)
        if _is_jaxpr(part)
    ]
    name = equation.primitive.name
    if name == "cond":
        return max(inner)
    if inner:
        return sum(inner) * (parameters["length"] if name == "scan" else 1)
    made = sum(math.prod(out.aval.shape) for out in equation.outvars)
    if name != "dot_general":
        return float(made)
    (contracted, _), _ = parameters["dimension_numbers"]
    shape = equation.invars[0].aval.shape
    return 2.0 * made * math.prod(shape[i] for i in contracted)


def _is_jaxpr(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")
