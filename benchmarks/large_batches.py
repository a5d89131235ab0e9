"""Memory and time of pair losses as the batch grows, in blocks of anchors, compared with all at once and optax.

    python benchmarks/large_batches.py --out benchmarks/results.jsonl

Value and gradient of B x 128 embeddings. Memory is what the compiled program holds besides its arguments and results,
which needs no run, up to a million rows; times are measured up to `--measure`. The exponent is that of memory by B
over the three largest sizes. At last the memory of every pair loss at 32,768 x 128 and 262,144 x 512, next to four
arrays of the embeddings and 128 MiB.
"""

import argparse
import inspect
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import machine
import numpy as np

import jdml

DIM = machine.small(128, 8)
SIZES = machine.small(
    (1_024, 4_096, 8_192, 16_384, 32_768, 131_072, 1_048_576), (16, 8_192, 16_384)
)
DENSE_LIMIT = machine.small(32_768, 16)
"""Rows up to which all are compared at once, too."""
LIMITS = machine.small(((32_768, 128), (262_144, 512)), ((64, 8),))
"""Sizes at which every pair loss is compiled."""
LOSSES = ("info_nce", "sup_con", "contrastive", "multi_similarity", "triplet", "circle")
if machine.SMOKE:
    LOSSES = LOSSES[:1]


def ours(name: str, block: Any) -> Callable[..., jax.Array]:
    """A loss of ours with a number of anchors at a time."""
    function = getattr(jdml, f"{name}_loss")
    return lambda x, y: function(x, y, anchor_block=block)


def optax_ntxent(x: jax.Array, y: jax.Array) -> jax.Array:
    """The peer for InfoNCE."""
    import optax

    return optax.losses.ntxent(x, y, temperature=0.07)


def step(loss: Callable[..., jax.Array]) -> Any:
    """Value and gradient, to be compiled."""
    return jax.jit(jax.value_and_grad(loss))


def temporaries(loss: Callable[..., jax.Array], size: int, dim: int = DIM) -> int | None:
    """Bytes of a compiled step."""
    x = jax.ShapeDtypeStruct((size, dim), jnp.float32)
    y = jax.ShapeDtypeStruct((size,), jnp.int32)
    return machine.temporaries(step(loss).lower(x, y).compile())


def seconds(loss: Callable[..., jax.Array], size: int, repeats: int) -> float:
    """The fastest of some steps."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(size, DIM)), jnp.float32)
    y = jnp.arange(size) // 2
    compiled = step(loss)
    jax.block_until_ready(compiled(x, y))
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(compiled(x, y))
        taken.append(time.perf_counter() - start)
    return min(taken)


def measure(name: str, size: int, limit: int, dense_limit: int, repeats: int) -> dict[str, Any]:
    """One row: bytes and seconds of each way."""
    ways = {"blocks": ours(name, "auto")}
    if size <= dense_limit:
        ways["at once"] = ours(name, None)
        if name == "info_nce":
            ways["optax"] = optax_ntxent
    row: dict[str, Any] = {"loss": name, "rows": size}
    row["bytes"] = {way: temporaries(loss, size) for way, loss in ways.items()}
    fits = {way for way, used in row["bytes"].items() if (used or 0) < 8 * 2**30}
    row["seconds"] = {
        way: seconds(loss, size, repeats)
        for way, loss in ways.items()
        if size <= limit and way in fits
    }
    return row


def exponent(rows: list[dict[str, Any]]) -> float:
    """Return the largest exponent of bytes by rows, over the three largest sizes of each loss."""
    slopes = []
    for name in {row["loss"] for row in rows}:
        largest = [row for row in rows if row["loss"] == name and row["bytes"]["blocks"]]
        largest = largest[-3:]  # where the embeddings, and not a block, are what is large
        if len(largest) > 1:
            sizes, used = zip(*((r["rows"], r["bytes"]["blocks"]) for r in largest), strict=True)
            slopes.append(np.polyfit(np.log(sizes), np.log(used), 1)[0])
    return float(np.max(slopes)) if slopes else float("nan")


def pair_losses() -> list[str]:
    """Every loss that compares some anchors at a time."""
    names = [name for name in jdml.losses.__all__ if name.endswith("_loss")]
    chosen = [n for n in names if "anchor_block" in inspect.signature(getattr(jdml, n)).parameters]
    return [name.removesuffix("_loss") for name in chosen]


def limits(names: list[str], shapes: tuple[tuple[int, int], ...]) -> list[dict[str, Any]]:
    """Bytes of each loss at each shape, compared with four arrays of the embeddings and 128 MiB."""
    rows = []
    for size, dim in shapes:
        for name in names:
            used, limit = temporaries(ours(name, "auto"), size, dim), 4 * 4 * size * dim + 2**27
            rows.append({"loss": name, "rows": size, "dim": dim, "bytes": used, "limit": limit})
            shown = f"{machine.mebibytes(used)} of {machine.mebibytes(limit)} MiB"
            over = "" if used is None or used <= limit else "   over"
            print(f"{name:24} {size:9,} x {dim}  {shown}{over}", flush=True)
    return rows


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="numbers of rows")
    parser.add_argument("--only", nargs="*", default=LOSSES, help="names of losses")
    parser.add_argument(
        "--measure", type=int, default=DENSE_LIMIT, help="rows up to which it is timed"
    )
    parser.add_argument("--dense-limit", type=int, default=DENSE_LIMIT, help="rows at once")
    parser.add_argument("--repeats", type=int, default=2, help="timed steps (default 2)")
    parser.add_argument("--out", type=Path, help=machine.OUT)
    arguments = machine.arguments(parser)
    print(f"{'loss':18} {'rows':>9}  MiB in blocks / at once / optax, and seconds")
    rows = []
    for name in arguments.only:
        for size in sorted(arguments.sizes):
            row = measure(name, size, arguments.measure, arguments.dense_limit, arguments.repeats)
            rows.append(row)
            shown = " / ".join(machine.mebibytes(used) for used in row["bytes"].values())
            took = " / ".join(f"{s:.2f}" for s in row["seconds"].values())
            print(f"{name:18} {size:9,}  {shown}   {took}", flush=True)
    slope = exponent(rows)
    print(f"memory ~ rows^{slope:.2f}, {DIM}-D, at most over the losses")
    every = (
        limits(machine.small(pair_losses(), LOSSES), LIMITS)
        if tuple(arguments.only) == LOSSES
        else []
    )
    machine.write(arguments.out, rows, exponent_of_bytes=slope, dim=DIM, limits=every)


if __name__ == "__main__":
    main()
