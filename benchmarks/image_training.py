"""A training step and an embedding pass of every network, compared with the same network in PyTorch.

    python benchmarks/image_training.py --out benchmarks/results.jsonl

A step is forward and backward with the multi-similarity loss and Adam, on images that are in memory. PyTorch's
networks are those that the tests convert weights from, its loss is pytorch-metric-learning's. All sides take turns in
one process; ours runs once on the CPU as one device and once as two, which share the batch (`jdml train --devices 2`).
All keep the memory that they free, as `jdml` does; --fresh-memory measures as glibc starts. --parts times the forward
pass and the gradient apart.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import machine
import numpy as np
import optax

import jdml
from jdml import models, objectives
from jdml.distributed import Placement
from jdml.training import create_state, embed, make_train_step

try:
    import torch
    from pytorch_metric_learning.losses import MultiSimilarityLoss
except ImportError:
    torch = None


class Case(NamedTuple):
    """A network on images of one size."""

    network: str
    size: int
    batch: int
    channels: int = 3
    dim: int = 512


CASES = (
    Case("eps", 28, 64, 1, 2),
    Case("eps", 64, 64, 1, 2),
    Case("small", 28, 160, 1, 128),
    Case("small", 64, 32, 1, 128),
    Case("resnet20v2", 28, 64, 1, 2),
    Case("resnet18", 224, 8),
    Case("resnet50", 224, 8),
    Case("bn_inception", 224, 8),
    Case("efficientnet_lite0", 224, 8),
    Case("vit_s16", 224, 8),
)
if machine.SMOKE:
    CASES = (Case("eps", 16, 8, 1, 3),)
WIDTHS = {
    "resnet18": 512,
    "resnet50": 2048,
    "bn_inception": 1024,
    "efficientnet_lite0": 1280,
    "vit_s16": 384,
}

PARTS = ("forward", "gradient", "step")
"""Each holds the one before."""

DEVICES = {"jdml": 1, "two devices": 2}
"""Our sides: of how many devices the CPU consists."""

Call = Callable[[], Any]


def batch_of(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Random images `[B, H, W, C]` and four samples of each class."""
    rng = np.random.default_rng(0)
    images = rng.random((case.batch, case.size, case.size, case.channels), np.float32)
    return images, np.arange(case.batch) // 4


def ours(case: Case, devices: int) -> dict[str, Call]:
    """A step, what it begins with, and an embedding pass, of a batch that so many devices share."""
    model = models.create(case.network, dim=case.dim)
    objective, optimizer = objectives.pair(jdml.multi_similarity_loss), optax.adam(1e-4)
    rows, labels = batch_of(case)
    mesh = jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices])
    placement = Placement.on(mesh if devices > 1 else None, None)
    held = [placement.place(create_state(model, objective, optimizer, rows, seed=0))]
    step = make_train_step(model, objective, optimizer, donate=True, placement=placement)
    images, labels = placement.shard_batch((jax.numpy.asarray(rows), labels), case.batch)

    def train() -> None:
        held[0], metrics = step(held[0], images, labels)
        jax.block_until_ready((held[0], metrics))

    def loss(params: Any, batch_stats: Any) -> jax.Array:
        variables = {"params": params, "batch_stats": batch_stats}
        x, _ = model.apply(variables, images, train=True, mutable=["batch_stats"])
        return objective.loss({}, x, labels, key=jax.random.key(0))[0]

    forward, gradient = jax.jit(loss), jax.jit(jax.grad(loss))

    def compute(function: Any) -> Any:
        return jax.block_until_ready(function(held[0].params["model"], held[0].batch_stats))

    def evaluate() -> Any:
        state = held[0]
        return embed(model, state.params["model"], state.batch_stats, rows, batch_size=case.batch)

    parts = {"forward": lambda: compute(forward), "gradient": lambda: compute(gradient)}
    return {**parts, "step": train, "embedding": evaluate}


def theirs(case: Case) -> dict[str, Call]:
    """The same in PyTorch."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from oracles import torch_networks

    torch.manual_seed(0)
    model = {
        "eps": lambda: torch_networks.TorchEpsNet(case.size, case.dim),
        "small": lambda: torch_networks.TorchSmallConvNet(case.dim),
        "resnet20v2": lambda: torch_networks.TorchResNet20V2(case.dim),
    }.get(case.network)
    if model is not None:
        model = model()
    else:
        features = torch_networks.NETWORKS[case.network]()
        model = torch.nn.Sequential(features, torch.nn.Linear(WIDTHS[case.network], case.dim))
    loss_fn = MultiSimilarityLoss(alpha=2, beta=50, base=0.5)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    images, labels = batch_of(case)
    images = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    labels = torch.from_numpy(labels)

    def forward() -> Any:
        model.train()
        return loss_fn(model(images), labels)

    def gradient() -> None:
        optimizer.zero_grad()
        forward().backward()

    def train() -> None:
        gradient()
        optimizer.step()

    def evaluate() -> None:
        model.eval()
        with torch.no_grad():
            model(images)

    return {"forward": forward, "gradient": gradient, "step": train, "embedding": evaluate}


def measure(case: Case, repeats: int, kinds: tuple[str, ...]) -> dict[str, Any]:
    """Milliseconds and peak memory of all sides."""
    sides = {name: ours(case, devices) for name, devices in DEVICES.items()}
    if torch is not None:
        sides["torch"] = theirs(case)
    row: dict[str, Any] = case._asdict()
    for kind in kinds:
        calls = {name: side[kind] for name, side in sides.items()}
        seconds = machine.timed_in_turn(calls, repeats)
        row[kind] = {
            "milliseconds": {name: 1e3 * value for name, value in machine.median(seconds).items()},
            "peak_bytes": {name: machine.peak_memory(call) for name, call in calls.items()},
        }
    return row


def ratio(row: dict[str, Any], kind: str, figure: str, over: str, under: str) -> float:
    """Return the ratio of a figure of two sides."""
    values = row[kind][figure]
    return values[over] / values[under] if values.get(over) and values.get(under) else float("nan")


HEADING = (
    f"{'':>45} | {'step, ms':>9} {'PyTorch':>8} {'speed':>6} {'memory':>7}"
    f" | {'embed, ms':>9} {'PyTorch':>8} {'speed':>6}"
)


def lines_of(row: dict[str, Any]) -> str:
    """Rows of the printed table, one for each of our sides; speed and memory as multiples of PyTorch's."""
    nan = float("nan")
    lines = []
    for side in DEVICES:
        line = f"{row['network']:>20} {row['size']:>4}² x{row['batch']:>4} {side:>12} |"
        for kind in ("step", "embedding"):
            times = row[kind]["milliseconds"]
            line += f" {times[side]:>9.1f} {times.get('torch', nan):>8.1f}"
            line += f" {ratio(row, kind, 'milliseconds', 'torch', side):>6.2f}"
            if kind == "step":
                line += f" {ratio(row, kind, 'peak_bytes', side, 'torch'):>7.2f} |"
        lines.append(line)
    return "\n".join(lines)


def parts_of(row: dict[str, Any]) -> str:
    """A line for each side: the forward pass, what the gradient takes in addition, and the update."""
    lines = []
    for side in row["step"]["milliseconds"]:
        ends = [row[kind]["milliseconds"][side] for kind in PARTS]
        forward, backward, update = np.diff(ends, prepend=0.0)
        lines.append(
            f"{side:>20}: forward {forward:.0f}, backward {backward:.0f}, update {update:.0f} ms"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", help="networks (default all)")
    parser.add_argument("--repeats", type=int, default=15, help="timed calls of each (default 15)")
    parser.add_argument("--parts", action="store_true", help="forward pass and gradient apart")
    parser.add_argument("--fresh-memory", action="store_true", help="as glibc starts")
    parser.add_argument("--out", type=Path, help=machine.OUT)
    arguments = machine.arguments(parser)
    jax.config.update("jax_num_cpu_devices", max(DEVICES.values()))
    if not arguments.fresh_memory:
        machine.disable_malloc_trim()
    chosen = [case for case in CASES if not arguments.only or case.network in arguments.only]
    rows = []
    print(HEADING)
    for case in chosen:
        kinds = (*PARTS, "embedding") if arguments.parts else ("step", "embedding")
        rows.append(measure(case, arguments.repeats, kinds))
        print(lines_of(rows[-1]), flush=True)
        if arguments.parts:
            print(parts_of(rows[-1]), flush=True)
    memory = "fresh" if arguments.fresh_memory else "kept"
    result = {"repeats": arguments.repeats, "memory": memory}
    machine.write(arguments.out, rows, machine.of_this_jax(), **result)


if __name__ == "__main__":
    main()
