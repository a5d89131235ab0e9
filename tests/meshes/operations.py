"""How many operations a traced function does on each device, loops and all."""

import math
from typing import Any

import jax


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
