"""A registry of checks for a script with eight devices, and a count of operations."""

import functools
import gc
import json
import math
import re
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from losses.registry import REGISTRY, loss

Check = Callable[[], None]


class Checks(dict[str, Check]):
    """Functions without arguments that raise if their check fails."""

    def add(self, function: Check) -> Check:
        """Decorate a check, whose name is the function's."""
        self[function.__name__.replace("_", " ")] = function
        return function

    def main(self) -> None:
        """Run those that the command line names; write by name the error, "" for success."""
        # Traces make millions of objects, nearly none of them garbage: look for it a hundred times less often.
        gc.freeze()
        gc.set_threshold(70_000, 20, 20)
        file, numbers, *words = sys.argv[1:]
        part, parts = map(int, numbers.split("/"))
        results = {}
        for name, function in self.items():
            # The checks of one loss share the one-device result, so they stay in one part.
            elsewhere = sum(map(ord, name.split(", ")[-1])) % parts != part
            if elsewhere or (words and not any(word in name for word in words)):
                continue
            started = time.perf_counter()
            try:
                function()
                results[name] = ""
            except Exception as error:
                results[name] = f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-4)}"
            seconds = time.perf_counter() - started
            print(f"{seconds:6.1f} s  {name}  {results[name][:3000]}", flush=True)
        Path(file).write_text(json.dumps(results, indent=1))


def operations(jaxpr: Any) -> float:
    """Count the operations of a jaxpr: a ``shard_map`` counts for one device, a loop's body for every iteration.

    Args:
        jaxpr: of ``jax.jit(f).trace(…)`` or ``jax.make_jaxpr``.

    Returns:
        Multiplications and additions of matrix products, and one for each output entry of other operations.
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


def collected(text: str) -> set[int]:
    """Return the bytes of each 32-bit array that a compiled program gathers or sums over devices."""
    lines = re.findall(r" = (.*?) (?:all-reduce|all-gather|reduce-scatter)(?:-start)?\(", text)
    sizes = [re.findall(r"[fsu]32\[([\d,]+)\]", line) for line in lines]
    return {4 * math.prod(map(int, sides.split(","))) for line in sizes for sides in line}


# A batch, meshes, and a loss with its checks on them.

B, D, C, K = 16, 5, 12, 2
RNG = np.random.default_rng(0)
X = RNG.normal(size=(B, D)).astype(np.float32)
Y = RNG.integers(0, 5, B).astype(np.int32)
WHERE = np.arange(B) >= 5  # two of eight devices have no valid row
WEIGHTS = RNG.uniform(0.5, 2.0, B).astype(np.float32)
PROXIES = RNG.normal(size=(C, K, D)).astype(np.float32)
EXPLICIT, AUTO = AxisType.Explicit, AxisType.Auto


def mesh(kind: AxisType, *shape: int) -> jax.sharding.Mesh:
    names = ("data", "model")[: len(shape)]
    devices = jax.devices()[: int(np.prod(shape))]
    return jax.make_mesh(shape, names, axis_types=(kind,) * len(shape), devices=devices)


def put(grid: jax.sharding.Mesh, arrays: Any, specs: Any) -> list[jax.Array]:
    return [jax.device_put(a, NamedSharding(grid, s)) for a, s in zip(arrays, specs, strict=True)]


def mapped(step: Any, grid: jax.sharding.Mesh, of: Any, to: Any, **settings: Any) -> Any:
    """Return a step inside the user's shard_map, which passes the axis name."""
    named = functools.partial(step, axis_name="data")
    return jax.jit(jax.shard_map(named, mesh=grid, in_specs=of, out_specs=to, **settings))


def check_on_eight(step: Any, arrays: Any, specs: Any, to: Any) -> None:
    """Check a step on a mesh, and inside the user's shard_map with and without `check_vma`."""
    expected, grid = jax.jit(step)(*arrays), mesh(EXPLICIT, 8)
    placed = put(grid, arrays, specs)
    assert_same(jax.device_get(jax.jit(step)(*placed)), expected)
    for check_vma in (True, False):
        inner = mapped(step, grid, tuple(specs), to, check_vma=check_vma)
        assert_same(jax.device_get(inner(*placed)), expected)


def assert_same(actual: Any, expected: Any, tolerance: float = 1e-5) -> None:
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        a, e = np.asarray(a, np.float64), np.asarray(e, np.float64)
        scale = max(1.0, float(np.abs(e).max(initial=0.0)))
        assert a.shape == e.shape, f"shape {a.shape}, not {e.shape}"
        error = float(np.abs(a - e).max(initial=0.0)) / scale
        assert error <= tolerance, f"differs by {error:.2g}: {a}, not {e}"


class Case:
    """A loss as a function of arrays, with their shardings on a mesh."""

    def __init__(self, name: str, **settings: Any) -> None:
        self.pair = REGISTRY[name].kind == "pair"
        settings = {**REGISTRY[name].settings, **settings}
        self.arrays = [X, Y, WHERE, WEIGHTS] + ([] if self.pair else [PROXIES])

        def value(x: Any, y: Any, where: Any, weights: Any, p: Any = None, **more: Any) -> Any:
            arrays = (x, y) if p is None else (x, y, p)
            return loss(name)(*arrays, where=where, weights=weights, **settings, **more)

        self.value = value
        self.wanted = (0,) if self.pair else (0, 4)
        self.step = jax.jit(jax.value_and_grad(value, self.wanted))

    @functools.cached_property
    def expected(self) -> Any:
        return jax.device_get(self.step(*map(jnp.asarray, self.arrays)))

    def rows(self, proxies: P | None = None) -> list[P]:
        return [P("data")] * 4 + ([] if self.pair else [proxies or P()])

    def on(self, grid: jax.sharding.Mesh, specs: list[P]) -> None:
        assert_same(jax.device_get(self.step(*put(grid, self.arrays, specs))), self.expected)

    def inside(self, size: int, check_vma: bool) -> None:
        """Check the loss inside the user's shard_map: the global value, and the rows of the one-device gradient."""
        grid, specs = mesh(EXPLICIT, size), self.rows()
        outs = (P(), tuple(specs[i] for i in self.wanted))
        step = jax.value_and_grad(self.value, self.wanted)
        sharded = mapped(step, grid, tuple(specs), outs, check_vma=check_vma)
        assert_same(jax.device_get(sharded(*put(grid, self.arrays, specs))), self.expected)

    def in_context(self, size: int) -> None:
        """Check the loss under `jax.set_mesh`, and with only the classes sharded if there are any."""
        grid = mesh(EXPLICIT, size)
        with jax.set_mesh(grid):
            self.on(grid, self.rows() if self.pair else [P()] * 4 + [P("data")])
