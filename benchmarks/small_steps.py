"""Divide the time of a small step: matrix products, normalization with its gradient, and the loss.

    python benchmarks/small_steps.py --out benchmarks/results.jsonl

256 x 512 embeddings, and 100 proxies where a loss has some. The products are those of benchmarks/losses.py; the
normalized ones are what any loss on the sphere computes before its first own operation: value and gradients of the sum
of squared cosines. All are timed in turn.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import machine
import numpy as np

import jdml

BATCH, DIM, CLASSES = machine.small((256, 512, 100), (8, 8, 4))
PAIRS = ("contrastive", "multi_similarity", "snr_contrastive", "fast_ap", "triplet")
PROXIES = ("proxy_anchor", "proxy_nca_pp", "arcface")
if machine.SMOKE:
    PAIRS, PROXIES = PAIRS[:1], PROXIES[:1]


def compiled(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    """A compiled call that waits for its result."""
    run = jax.jit(function)
    return lambda: jax.block_until_ready(run(*arguments))


def measure(name: str, repeats: int) -> dict[str, Any]:
    """One row: milliseconds of the parts and of the whole."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(BATCH, DIM)), jnp.float32)
    y = jnp.arange(BATCH) // 4
    loss = getattr(jdml, f"{name}_loss")
    arrays = (x,)
    if name in PROXIES:
        arrays = (x, jnp.asarray(rng.normal(size=(CLASSES, DIM)), jnp.float32))
    g = jnp.ones((BATCH, len(arrays[-1])))

    def cosines(x: jax.Array, *p: jax.Array) -> jax.Array:
        q = jdml.sphere(p[0] if p else x)
        return jnp.sum(jnp.square(jdml.ops.similarities(jdml.sphere(x), q)))

    def lengths(*arrays: jax.Array) -> jax.Array:
        return sum(jnp.sum(jdml.sphere(array) * array) for array in arrays)

    places = tuple(range(len(arrays)))
    functions = {
        "products": compiled(lambda x, q, g: (x @ q.T, g @ q, g.T @ x), x, arrays[-1], g),
        "normalization": compiled(jax.value_and_grad(lengths, places), *arrays),
        "normalized products": compiled(jax.value_and_grad(cosines, places), *arrays),
        "loss": compiled(jax.value_and_grad(lambda x, *p: loss(x, y, *p), places), *arrays),
    }
    seconds = machine.median(machine.timed_in_turn(functions, repeats))
    return {"loss": name, "milliseconds": {part: 1e3 * s for part, s in seconds.items()}}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=31, help="timed steps of each (default 31)")
    parser.add_argument("--only", nargs="*", default=PAIRS + PROXIES, help="names of losses")
    parser.add_argument("--out", type=Path, help=machine.OUT)
    arguments = machine.arguments(parser)
    machine.disable_malloc_trim()
    print(
        f"{'256 x 512-D, ms':18} products  normalization  normalized products  the loss  / products"
    )
    rows = []
    for name in arguments.only:
        rows.append(measure(name, arguments.repeats))
        ms = rows[-1]["milliseconds"]
        print(
            f"{name:18} {ms['products']:8.2f} {ms['normalization']:14.2f} {ms['normalized products']:20.2f} "
            f"{ms['loss']:9.2f} {ms['loss'] / ms['products']:11.2f}",
            flush=True,
        )
    machine.write(arguments.out, rows, batch=BATCH, dim=DIM, classes=CLASSES)


if __name__ == "__main__":
    main()
