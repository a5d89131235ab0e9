"""Time and memory of the losses compared with pytorch-metric-learning's, forward and backward, in one run.

    python benchmarks/losses.py --out benchmarks/results.jsonl

Both take the same arrays; ours and theirs are timed in turn, each warmed up, and the ratio compares their medians. The
floor are the bare matrix products of the forward and the backward pass, by JAX: three, of which a batch against itself
needs two, so that a pair loss may be below it.
Peak memory is what a step adds to the process at its peak. Needs the `parity` extra; without it only jdml is measured.

All sides keep freed memory for their next call, as a process that trains should; `--fresh-memory` measures them as
glibc starts, where the system clears the pages of large arrays at each call: on record as losses_fresh.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import machine
import numpy as np

import jdml
from jdml import registry

BATCH, DIM = machine.small((256, 512), (16, 8))
CLASSES = machine.small((100, 11_318), (5,))
CENTRES = 2
JUDGED = (
    "contrastive",
    "triplet",
    "multi_similarity",
    "proxy_anchor",
    "proxy_nca_pp",
    "arcface",
    "soft_triple",
)
if machine.SMOKE:
    JUDGED = ("contrastive", "proxy_anchor")
EVERYDAY = (
    "info_nce",
    "sup_con",
    "sigmoid_contrastive",
    "contrastive",
    "multi_similarity",
    "triplet",
)
"""Those that are also measured in very large batches."""
if machine.SMOKE:
    EVERYDAY = ("sup_con",)


# How pytorch-metric-learning builds its own from (module, classes, dim).
PEERS: dict[str, Callable[[Any, int, int], Any]] = {
    "contrastive": lambda m, c, d: m.ContrastiveLoss(pos_margin=0, neg_margin=0.5),
    "triplet": lambda m, c, d: m.TripletMarginLoss(margin=0.1, triplets_per_anchor="all"),
    "margin": lambda m, c, d: m.MarginLoss(margin=0.2, beta=1.2, triplets_per_anchor="all"),
    "multi_similarity": lambda m, c, d: m.MultiSimilarityLoss(2, 50, 0.5),
    "lifted_structure": lambda m, c, d: m.LiftedStructureLoss(neg_margin=1, pos_margin=0),
    "circle": lambda m, c, d: m.CircleLoss(m=0.4, gamma=80),
    "fast_ap": lambda m, c, d: m.FastAPLoss(num_bins=10),
    "snr_contrastive": lambda m, c, d: m.SignalToNoiseRatioContrastiveLoss(),
    "info_nce": lambda m, c, d: m.NTXentLoss(temperature=0.07),
    "sup_con": lambda m, c, d: m.SupConLoss(temperature=0.1),
    "nca": lambda m, c, d: m.NCALoss(softmax_scale=1),
    "smooth_ap": lambda m, c, d: m.SmoothAPLoss(temperature=0.01),
    "proxy_nca_pp": lambda m, c, d: m.ProxyNCALoss(c, d, softmax_scale=9),
    "proxy_anchor": lambda m, c, d: m.ProxyAnchorLoss(c, d, margin=0.1, alpha=32),
    "normalized_softmax": lambda m, c, d: m.NormalizedSoftmaxLoss(c, d, temperature=0.05),
    "cosface": lambda m, c, d: m.CosFaceLoss(c, d, margin=0.35, scale=64),
    "arcface": lambda m, c, d: m.ArcFaceLoss(c, d, margin=math.degrees(0.5), scale=64),
    "soft_triple": lambda m, c, d: m.SoftTripleLoss(
        c, d, centers_per_class=CENTRES, la=20, gamma=0.1, margin=0.01
    ),
    "subcenter_arcface": lambda m, c, d: m.SubCenterArcFaceLoss(
        num_classes=c, embedding_size=d, margin=math.degrees(0.5), scale=64, sub_centers=CENTRES
    ),
}
SETTINGS: dict[str, dict[str, Any]] = {"soft_triple": {"tau": None}}


class Loss(NamedTuple):
    """One of our losses, and how PML builds its own; None where it has no such one."""

    settings: dict[str, Any]
    theirs: Callable[[Any, int, int], Any] | None
    per_class: int = 1
    all_pairs: bool = False  # of embeddings and proxies alike


def described(record: registry.Loss) -> Loss:
    """A loss as it is measured."""
    field = not record.needs_proxies
    per_class = CENTRES if record.proxies > 1 and not field else 1
    return Loss(SETTINGS.get(record.name, {}), PEERS.get(record.name), per_class, field)


EVERY = {name: described(record) for name, record in registry.LOSSES.items()}
PAIRS = {name: EVERY[name] for name in registry.pair_losses()}
FIELDS = {name: loss for name, loss in EVERY.items() if loss.all_pairs}
"""Many more proxies: benchmarks/potential_field.py."""
PROXIES = {name: EVERY[name] for name in registry.proxy_losses() if name not in FIELDS}


def cases() -> Iterator[tuple[str, Loss, int | None]]:
    """Which are measured, and with how many classes."""
    parts = ((None, PAIRS), *((number, PROXIES) for number in CLASSES), (CLASSES[0], FIELDS))
    for classes, losses in parts:
        for name, loss in losses.items():
            yield name, loss, classes


def arrays(loss: Loss, classes: int | None) -> tuple[np.ndarray, np.ndarray, Any | None]:
    """Embeddings, labels, and proxies where there are classes."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH, DIM)).astype(np.float32)
    y = np.arange(BATCH) // 4 if classes is None else rng.integers(0, classes, BATCH)
    shape = (classes or 1, *((loss.per_class,) if loss.per_class > 1 else ()), DIM)
    return x, y, None if classes is None else jnp.asarray(rng.normal(size=shape), jnp.float32)


def step(name: str, loss: Loss, x: Any, y: Any, p: Any | None) -> Callable[[], Any]:
    """Our compiled step: value and gradients."""
    function = getattr(jdml, f"{name}_loss")

    def value(x: jax.Array, p: jax.Array | None, y: jax.Array) -> jax.Array:
        return function(x, y, *(() if p is None else (p,)), **loss.settings)

    compiled = jax.jit(jax.value_and_grad(value, 0 if p is None else (0, 1)))
    return lambda: jax.block_until_ready(compiled(x, p, y))


def floor(x: Any, p: Any | None, all_pairs: bool) -> Callable[[], Any]:
    """The matrix products alone: similarities, and their gradients by both sides."""
    if p is not None:
        p = p.reshape(-1, DIM)
        x, p = (jnp.concatenate([x, p]),) * 2 if all_pairs else (x, p)

    @jax.jit
    def products(x: jax.Array, q: jax.Array, g: jax.Array) -> Any:
        return x @ q.T, g @ q, g.T @ x

    q = x if p is None else p
    g = jnp.ones((len(x), len(q)))
    return lambda: jax.block_until_ready(products(x, q, g))


def peer(loss: Loss, classes: int, x: np.ndarray, y: np.ndarray) -> Callable[[], Any] | None:
    """PML's step, or None where it is not installed or has no such loss."""
    if loss.theirs is None:
        return None
    try:
        import torch
        from pytorch_metric_learning import losses
    except ImportError:
        return None
    device = machine.torch_device()
    function = loss.theirs(losses, classes, DIM).to(device)
    embeddings = torch.from_numpy(x.copy()).to(device).requires_grad_()
    labels = torch.from_numpy(y).to(device)

    def run() -> None:
        embeddings.grad = None
        for parameter in function.parameters():
            parameter.grad = None
        function(embeddings, labels).backward()

    return machine.awaited(run)


def measure(
    name: str, loss: Loss, classes: int | None, repeats: int, processor_time: bool = False
) -> dict[str, Any]:
    """One row: medians, ratios, memory."""
    x, y, p = arrays(loss, classes)
    functions = {
        "jdml": step(name, loss, jnp.asarray(x), jnp.asarray(y), p),
        "floor": floor(jnp.asarray(x), p, loss.all_pairs),
    }
    # PyTorch's threads wait by spinning, which would count as work.
    theirs = None if processor_time else peer(loss, classes or 1, x, y)
    if theirs is not None:
        functions["pml"] = theirs
    clock = time.process_time if processor_time else time.perf_counter
    seconds = machine.median(machine.timed_in_turn(functions, repeats, clock))
    row: dict[str, Any] = {
        "loss": name,
        "classes": classes,
        **({"processor_time": True} if processor_time else {}),
        "milliseconds": {n: 1e3 * s for n, s in seconds.items()},
    }
    row["over_floor"] = seconds["jdml"] / seconds["floor"]
    row["peak_bytes"] = {n: machine.peak_memory(f) for n, f in functions.items() if n != "floor"}
    if theirs is not None:
        row["times_faster"] = seconds["pml"] / seconds["jdml"]
    return row


def print_row(row: dict[str, Any]) -> None:
    """For people."""
    took, peak = row["milliseconds"], row["peak_bytes"]
    pml = f"{took['pml']:9.1f}" if "pml" in took else f"{'-':>9}"
    faster = f"{row['times_faster']:7.2f}" if "times_faster" in row else f"{'-':>7}"
    print(
        f"{row['loss']:22} {row['classes'] or '-':>8} {took['jdml']:9.1f} {pml} {faster} {row['over_floor']:8.2f} "
        f"{machine.mebibytes(peak['jdml']):>9} {machine.mebibytes(peak.get('pml')):>9}",
        flush=True,
    )


def main() -> None:
    """Measure, print, write, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9, help="timed steps of each (default 9)")
    parser.add_argument(
        "--only",
        nargs="*",
        default=machine.small(None, JUDGED),
        help="names of losses (default all); rows of others stay on record",
    )
    parser.add_argument("--out", type=Path, help=f"{machine.OUT}; and a plot next to it")
    parser.add_argument(
        "--fresh-memory", action="store_true", help="large arrays anew from the system, each call"
    )
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="count the time of all cores together, of jdml alone, where other programs share the machine",
    )
    arguments = machine.arguments(parser)
    if not arguments.fresh_memory:
        machine.disable_malloc_trim()
    print(
        f"{'256 x 512-D':22} {'classes':>8} {'jdml ms':>9} {'PML ms':>9} {'faster':>7} {'/ floor':>8} "
        f"{'MiB':>9} {'PML MiB':>9}"
    )
    rows = []
    for name, loss, classes in cases():
        if not arguments.only or name in arguments.only:
            rows.append(measure(name, loss, classes, arguments.repeats, arguments.processor_time))
            print_row(rows[-1])
    record = "losses_fresh" if arguments.fresh_memory else "losses"
    if arguments.only and (known := machine.read(arguments.out, record)):
        rows = merged(known, rows)
    judged = [
        row["times_faster"] for row in rows if row["loss"] in JUDGED and "times_faster" in row
    ]
    if judged:
        mean = math.exp(sum(map(math.log, judged)) / len(judged))
        print(
            f"geometric mean over {', '.join(JUDGED)}: {mean:.2f} times as fast as pytorch-metric-learning"
        )
    machine.write(
        arguments.out,
        rows,
        record,
        settings=SETTINGS,
        repeats=arguments.repeats,
        fresh_memory=arguments.fresh_memory,
    )
    if arguments.out is not None:
        draw(rows, machine.picture(arguments.out, record))


def merged(known: dict[str, Any], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows on record with new ones in the place of the same loss's, each with its date; of one machine."""
    here, there = machine.describe(), known["environment"]
    if differ := [name for name in there.keys() - {"date"} if there[name] != here.get(name)]:
        raise SystemExit(
            f"the rows on record are of another machine or version: {', '.join(differ)}"
        )
    new = {(row["loss"], row["classes"]) for row in rows}
    earlier = [row for row in known["rows"] if (row["loss"], row["classes"]) not in new]
    return [{"date": there["date"], **row} for row in earlier] + rows


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """How many times faster, a bar per loss."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with_pml = [row for row in rows if "times_faster" in row]
    names = [row["loss"] + (f", {row['classes']:,}" if row["classes"] else "") for row in with_pml]
    figure, axes = plt.subplots(figsize=(7, 0.3 * len(names) + 1), layout="constrained")
    axes.barh(names, [row["times_faster"] for row in with_pml])
    axes.axvline(1.0, color="black", linewidth=1)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("times as fast as pytorch-metric-learning, forward and backward")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
