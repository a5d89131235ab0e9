"""Every part of a convolution on a CPU: XLA's own compared with the products that could take its place.

    python benchmarks/convolutions.py --out benchmarks/results.jsonl

The rule in `jdml.models.convolution` was read off this table; docs/convolutions.md tells how. Shapes are those of the
networks here: forward pass, gradient of the images, gradient of the kernel, each in a program of its own.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import machine
import numpy as np

from jdml.models import convolution as rules


class Case(NamedTuple):
    """A convolution of square images by a square kernel, padded by half of it."""

    batch: int
    side: int
    channels: int
    features: int
    size: int
    stride: int = 1
    groups: int = 1

    def __str__(self) -> str:
        kind = "depthwise" if self.groups > 1 else f"{self.channels} → {self.features}"
        stride = f", stride {self.stride}" if self.stride > 1 else ""
        maps = f"{self.batch} × {self.side}² × {self.channels}"
        return f"{self.size}×{self.size}{stride}, {kind}, {maps}"


CASES = (
    Case(64, 28, 1, 32, 3),
    Case(64, 28, 32, 64, 3),
    Case(160, 14, 32, 64, 3),
    Case(64, 28, 16, 16, 3),
    Case(64, 28, 16, 32, 3, 2),
    Case(8, 224, 3, 64, 7, 2),
    Case(8, 56, 64, 64, 3),
    Case(8, 28, 128, 128, 3),
    Case(8, 56, 128, 128, 3, 2),
    Case(8, 7, 512, 512, 3),
    Case(8, 56, 64, 256, 1),
    Case(8, 14, 1024, 256, 1),
    Case(8, 56, 256, 512, 1, 2),
    Case(8, 112, 32, 32, 3, 1, 32),
    Case(8, 112, 96, 96, 3, 2, 96),
    Case(8, 56, 144, 144, 5, 2, 144),
    Case(8, 14, 480, 480, 5, 1, 480),
)
if machine.SMOKE:
    CASES = (Case(2, 5, 2, 3, 3), Case(2, 5, 2, 2, 3, 2, groups=2))
KERNEL_PARTS = {
    "places by chunks": rules._depthwise_part,
    "patches by chunks": rules._patches_part,
    "both shifted, by chunks": rules._shifted_part,
}
Part = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def parts(case: Case, geometry: rules.Geometry) -> dict[str, dict[str, Part]]:
    """By part, every formulation of images, kernel and the incoming gradient."""
    transforms = {"XLA": rules._xla}
    if case.groups > 1:
        transforms["by places"] = rules._by_places
    if case.size == 1:
        transforms["one product"] = rules._pointwise
    parts: dict[str, dict[str, Part]] = {"forward": {}, "images": {}, "kernel": {}}
    for name, transform in transforms.items():
        parts["forward"][name] = lambda x, k, up, t=transform: t(geometry, x, k)
        parts["images"][name] = partial(rules._by_images, transform, geometry)
        parts["kernel"][name] = partial(rules._by_kernel, transform, geometry)
    for name in kernel_parts(case):
        parts["kernel"][name] = partial(rules._by_chunks, KERNEL_PARTS[name], geometry)
    return parts


def kernel_parts(case: Case) -> list[str]:
    """The formulations of the gradient of the kernel that are for such a convolution."""
    if case.groups > 1:
        return ["places by chunks"]
    shifted = case.stride == 1 and case.size > 1
    return ["patches by chunks", *(["both shifted, by chunks"] if shifted else [])]


def chosen(geometry: rules.Geometry, kernel: jax.Array) -> list[str]:
    """Return the rule's choice for each part."""
    names = {rules._xla: "XLA", rules._by_places: "by places", rules._pointwise: "one product"}
    transform = names[rules._rule(geometry, kernel)]
    by_kernel = rules._kernel_rule(geometry, kernel)
    return [transform, transform, next(n for n, part in KERNEL_PARTS.items() if part is by_kernel)]


def measure(case: Case, repeats: int) -> list[dict[str, Any]]:
    """Milliseconds of each formulation of each part."""
    half = case.size // 2
    pad = ((half, half), (half, half))
    geometry = rules.Geometry((case.stride,) * 2, pad, case.groups, None)
    rng = np.random.default_rng(0)
    shapes = (
        (case.batch, case.side, case.side, case.channels),
        (case.size, case.size, case.channels // case.groups, case.features),
    )
    images, kernel = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)
    out = rules._xla(geometry, images, kernel).shape
    arrays = (images, kernel, jnp.asarray(rng.normal(size=out), jnp.float32))
    names = chosen(geometry, kernel)
    rows = []
    for (part, ways), name in zip(parts(case, geometry).items(), names, strict=True):
        compiled = {
            way: jax.jit(function).lower(*arrays).compile() for way, function in ways.items()
        }
        values = {way: np.asarray(function(*arrays)) for way, function in compiled.items()}
        scale = np.abs(values["XLA"]).max()
        differences = [np.abs(value - values["XLA"]).max() / scale for value in values.values()]
        calls = {
            way: lambda function=function: jax.block_until_ready(function(*arrays))
            for way, function in compiled.items()
        }
        seconds = machine.median(machine.timed_in_turn(calls, repeats))
        rows.append(
            {
                "convolution": str(case),
                "part": part,
                "chosen": name,
                "milliseconds": {way: 1e3 * value for way, value in seconds.items()},
                "temporaries": {way: machine.temporaries(c) for way, c in compiled.items()},
                "largest_difference": float(max(differences)),
            }
        )
    return rows


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=6, help="timed calls of each (default 6)")
    parser.add_argument("--out", type=Path, help=machine.OUT)
    arguments = machine.arguments(parser)
    machine.disable_malloc_trim()
    rows = []
    for case in CASES:
        for row in measure(case, arguments.repeats):
            rows.append(row)
            times = "  ".join(f"{way} {ms:.1f}" for way, ms in row["milliseconds"].items())
            print(
                f"{row['convolution']:>50} {row['part']:>8}: {times} ms; chosen: {row['chosen']}",
                flush=True,
            )
    machine.write(arguments.out, rows, machine.of_this_jax())


if __name__ == "__main__":
    main()
