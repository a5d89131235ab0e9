"""PFML's step against the dense ways to compute it, for 2,000 to 45,000 charges: time, memory, and how both grow.

    python benchmarks/potential_field.py --out benchmarks/results.jsonl

Ours streams tiles of pairs; dense JAX and dense torch hold the whole matrix of pairs and are left out where that would
not fit into --dense-limit charges. The exponents are those of a fit of time and temporaries to powers of the charges.
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

BATCH, DIM, PER_CLASS = *machine.small((180, 512), (12, 8)), 2
DELTA, ALPHA = 0.2, 4.0
SIZES = machine.small((2_048, 4_096, 8_372, 16_384, 22_816, 45_000), (52, 92))
DENSE_LIMIT = machine.small(8_372, 52)
PAPER_S = 22_816
"""SOP: 11,318 classes × 2 proxies, and a batch of 180."""


def arrays(charges: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A batch, its labels, and as many proxies as make up the number of charges."""
    rng = np.random.default_rng(0)
    classes = (charges - BATCH) // PER_CLASS
    x = rng.normal(size=(BATCH, DIM)).astype(np.float32)
    p = rng.normal(size=(classes, PER_CLASS, DIM)).astype(np.float32)
    return x, rng.integers(0, classes, BATCH), p


def ours(x: Any, y: Any, p: Any) -> jax.Array:
    """The loss of the package."""
    return jdml.potential_field_loss(x, y, p, delta=DELTA, alpha=ALPHA)


def dense_jax(x: Any, y: Any, p: Any) -> jax.Array:
    """The formula written down, differentiated by JAX."""
    points = jnp.concatenate([x, p.reshape(-1, DIM)])
    points = points / jnp.linalg.norm(points, axis=1, keepdims=True)
    owners = jnp.concatenate([y, jnp.repeat(jnp.arange(len(p)), PER_CLASS)])
    squares = jnp.sum(points**2, 1)
    squared = squares[:, None] + squares[None, :] - 2 * points @ points.T
    other = ~jnp.eye(len(points), dtype=bool)
    r = jnp.sqrt(jnp.where(other, jnp.maximum(squared, 1e-6), 1.0))
    same = owners[:, None] == owners[None, :]
    pull, push = -(jnp.maximum(r, DELTA) ** -ALPHA), jnp.minimum(r, DELTA) ** -ALPHA
    return jnp.sum(jnp.where(other, jnp.where(same, pull, push), 0.0)) / len(points)


def dense_torch(x: np.ndarray, y: np.ndarray, p: np.ndarray) -> Callable[[], Any] | None:
    """The same in torch; None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    device = machine.torch_device()
    batch, proxies = (torch.from_numpy(v).to(device).requires_grad_() for v in (x, p))
    of_proxies = torch.arange(len(p)).repeat_interleave(PER_CLASS)
    owners = torch.cat([torch.from_numpy(y), of_proxies]).to(device)

    def run() -> Any:
        batch.grad = proxies.grad = None
        points = torch.nn.functional.normalize(torch.cat([batch, proxies.reshape(-1, DIM)]))
        squares = (points**2).sum(1)
        squared = squares[:, None] + squares[None, :] - 2 * points @ points.T
        other = ~torch.eye(len(points), dtype=torch.bool, device=device)
        r = torch.where(other, squared.clamp(min=1e-6), 1.0).sqrt()
        same = owners[:, None] == owners[None, :]
        felt = torch.where(same, -(r.clamp(min=DELTA) ** -ALPHA), r.clamp(max=DELTA) ** -ALPHA)
        value = torch.where(other, felt, 0.0).sum() / len(points)
        value.backward()
        return value.detach(), (batch.grad, proxies.grad)

    return machine.awaited(run)


def measure(charges: int, repeats: int, dense_limit: int) -> dict[str, Any]:
    """One row."""
    x, y, p = arrays(charges)
    on_device = jnp.asarray(x), jnp.asarray(y), jnp.asarray(p)
    losses = {"jdml": ours} | ({"dense JAX": dense_jax} if charges <= dense_limit else {})
    functions: dict[str, Callable[[], Any]] = {}
    memory: dict[str, int | None] = {}
    for name, loss in losses.items():
        step = jax.jit(jax.value_and_grad(loss, (0, 2))).lower(*on_device).compile()
        functions[name] = lambda step=step: jax.block_until_ready(step(*on_device))
        memory[name] = machine.temporaries(step)
    torch_step = dense_torch(x, y, p) if charges <= dense_limit else None
    if torch_step is not None:
        functions["dense torch"] = torch_step
        memory["dense torch"] = machine.peak_memory(torch_step)
    seconds = machine.median(machine.timed_in_turn(functions, repeats))
    return {"charges": len(x) + p.shape[0] * p.shape[1], "seconds": seconds, "bytes": memory}


def exponent(rows: list[dict[str, Any]], field: str) -> float:
    """The power of the number of charges that fits ours best."""
    sizes = np.log([row["charges"] for row in rows])
    return float(np.polyfit(sizes, np.log([row[field]["jdml"] for row in rows]), 1)[0])


def print_row(row: dict[str, Any]) -> None:
    """For people."""
    cells = [f"{row['charges']:>8,}"]
    for name in ("jdml", "dense JAX", "dense torch"):
        known = name in row["seconds"]
        cells.append(f"{row['seconds'][name]:8.2f} s" if known else f"{'-':>10}")
        cells.append(f"{machine.mebibytes(row['bytes'].get(name)):>6} MiB")
    for name in ("dense JAX", "dense torch"):
        known = name in row["seconds"]
        cells.append(
            f"{row['seconds'][name] / row['seconds']['jdml']:6.1f}x" if known else f"{'-':>7}"
        )
    print("  ".join(cells), flush=True)


def main() -> None:
    """Measure, print, write, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="timed steps of each (default 3)")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="numbers of charges")
    parser.add_argument(
        "--dense-limit",
        type=int,
        default=DENSE_LIMIT,
        help="charges up to which the dense forms run",
    )
    parser.add_argument("--out", type=Path, help=f"{machine.OUT}; and a plot next to it")
    arguments = machine.arguments(parser)
    print(
        f"forward and backward, batch {BATCH}, {DIM}-D; dense JAX / jdml and dense torch / jdml last"
    )
    print(
        " charges        jdml, temporaries   dense JAX, temporaries  dense torch, peak       ratios"
    )
    rows = []
    for charges in arguments.sizes:
        rows.append(measure(charges, arguments.repeats, arguments.dense_limit))
        print_row(rows[-1])
    measured = {}
    if len(rows) > 1:
        large = rows[len(rows) // 2 :] if len(rows) > 3 else rows  # where pairs are what takes time
        measured = {
            "exponent_of_seconds": exponent(large, "seconds"),
            "exponent_of_bytes": exponent(rows, "bytes"),
        }
        time, memory = measured.values()
        print(f"time ~ charges^{time:.2f} (the larger half), memory ~ charges^{memory:.2f}")
    machine.write(arguments.out, rows, **measured)
    if arguments.out is not None:
        draw(rows, machine.picture(arguments.out))


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Time and memory over the charges, on logarithmic axes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    for axes, field, unit, label in (
        (left, "seconds", 1, "seconds per step"),
        (right, "bytes", 2**20, "MiB"),
    ):
        for name in ("jdml", "dense JAX", "dense torch"):
            known = [row for row in rows if row[field].get(name)]
            axes.loglog(
                [r["charges"] for r in known],
                [r[field][name] / unit for r in known],
                "o-",
                label=name,
            )
        axes.xaxis.set_minor_formatter("")
        axes.set_xlabel("charges (batch + proxies)")
        axes.set_ylabel(label)
        axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
