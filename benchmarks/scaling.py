"""What a training step costs on 1 to 64 devices: operations, temporaries and collectives of the compiled program.

    python benchmarks/scaling.py --out benchmarks/results.jsonl

Compiles, and does not run, the step of a network with each method for meshes of forced CPU devices: XLA partitions it
as it does for accelerators, whose convolutions it is given. The sizes of its collectives are exact; temporaries are
those of a CPU, where bfloat16 is widened; a loop over blocks of classes counts once. What that means on 8 × H100 and on
a TPU v5e-256 is reckoned from published figures and is not measured: time of the operations at 40 % of the peak, beside
time of the collectives, which a ring sends twice.
"""

import argparse
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "64")

import jax
import jax.numpy as jnp
import machine
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jdml
from jdml import models, objectives
from jdml.flows import ConditionalFlow
from jdml.mining import chain, easy_positive, semi_hard_negative
from jdml.models import convolution
from jdml.training import TrainState, make_train_step
from jdml.training.placement import Placement, class_shards

DIM, CLASSES = 512, 11_264
"""About Stanford Online Products, in a number that 64 divides."""
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
BYTES = {"pred": 1, "u8": 1, "s8": 1, "bf16": 2, "f16": 2, "s64": 8, "f64": 8}
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
USED = 0.4
"""Share of the peak that a well-fed network reaches."""


class Accelerator(NamedTuple):
    """Published figures of one device.

    Attributes:
        devices: how many.
        operations: per second, in bfloat16.
        bandwidth: bytes per second that a device sends to others.
    """

    devices: int
    operations: float
    bandwidth: float


ACCELERATORS = {
    "8 x H100": Accelerator(8, 989e12, 450e9),
    "TPU v5e-256": Accelerator(256, 197e12, 200e9),
}


def methods() -> dict[str, Any]:
    """The objectives."""
    eps = chain(easy_positive(), semi_hard_negative(0.2))
    pair = objectives.pair(jdml.multi_similarity_loss, mine=eps)
    anchor = objectives.proxy(jdml.proxy_anchor_loss, CLASSES, DIM)
    return {
        "EPS": pair,
        "XBM": objectives.with_memory(pair, 8192, DIM),
        "PFML": objectives.proxy(jdml.potential_field_loss, CLASSES, DIM, 2),
        "MPA": objectives.proxy(jdml.multi_proxy_anchor_loss, CLASSES, DIM, 2),
        "NIR": objectives.with_nir(anchor, ConditionalFlow(DIM, DIM, num_blocks=2)),
        "CCP": objectives.as_proxy_objective(jdml.contrastive_loss, CLASSES, DIM, 4),
        "sampled": objectives.proxy(
            jdml.normalized_softmax_loss, 2**20, DIM, sampled_classes=2**17
        ),
    }


def compiled(model: Any, objective: Any, devices: int, rows: int, size: int) -> Any:
    """The step for so many devices with so many rows on each."""
    mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
    place = Placement(mesh, tuple(class_shards(mesh, objective).items()))
    optimizer = optax.adam(1e-4)
    image = jnp.zeros((1, size, size, 3))
    variables = jax.eval_shape(lambda key: model.init(key, image, train=False), jax.random.key(0))
    params = {
        "model": variables["params"],
        **jax.eval_shape(objective.init, jax.random.key(0)),
    }
    state = TrainState(
        step=jax.ShapeDtypeStruct((), jnp.int32),
        params=params,
        batch_stats=variables.get("batch_stats", {}),
        opt_state=jax.eval_shape(optimizer.init, params),
        objective_state=jax.eval_shape(objective.init_state),
        key=jax.eval_shape(lambda: jax.random.key(0)),
    )
    step = make_train_step(model, objective, optimizer, placement=place, donate=True)
    at = NamedSharding(mesh, P("data"))
    images = jax.ShapeDtypeStruct((rows * devices, size, size, 3), jnp.uint8, sharding=at)
    labels = jax.ShapeDtypeStruct((rows * devices,), jnp.int32, sharding=at)
    return step.lower(place.shapes(state), images, labels).compile(compiler_options=QUICK)


def collectives(program: str) -> dict[str, int]:
    """Bytes that come out of each kind of collective of a program, on each device."""
    bytes_moved = dict.fromkeys(KINDS, 0)
    for line in program.splitlines():
        match = re.search(rf" = (.*?) ({'|'.join(KINDS)})(-start)?\(", line)
        if match:
            for kind, shape in re.findall(r"(\w+)\[([\d,]*)\]", match[1]):
                entries = int(np.prod([int(n) for n in shape.split(",") if n]))
                bytes_moved[match[2]] += entries * BYTES.get(kind, 4)
    return {kind: size for kind, size in bytes_moved.items() if size}


def reckoned(row: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Milliseconds of operations and of collectives on accelerators, and the least rows that keep them computing."""
    told = {}
    for name, (_, operations, bandwidth) in ACCELERATORS.items():
        computing = row["operations"] / (USED * operations)
        sending = 2 * sum(row["collectives"].values()) / bandwidth
        told[name] = {
            "computing_ms": round(1e3 * computing, 2),
            "sending_ms": round(1e3 * sending, 2),
            "rows_where_equal": round(row["rows"] * sending / computing, 1),
        }
    return told


def main() -> None:
    """Compile, count, print, write after every program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="resnet50", help="of jdml.models")
    parser.add_argument("--methods", nargs="+", default=list(methods()), help="which")
    parser.add_argument("--devices", nargs="+", type=int, default=[8, 64, 1], help="meshes")
    parser.add_argument("--rows", type=int, default=32, help="of a batch, on each device")
    parser.add_argument("--size", type=int, default=224, help="of images, in pixels")
    parser.add_argument("--out", type=Path, help=machine.OUT)
    chosen = parser.parse_args()
    convolution._convolve = convolution._xla  # as on accelerators; a CPU's own loop over chunks
    model = models.create(chosen.network, dim=DIM, freeze_batch_norm=True, dtype=jnp.bfloat16)
    rows: list[dict[str, Any]] = []
    for devices in chosen.devices:
        for name in chosen.methods:
            start = time.perf_counter()
            program = compiled(model, methods()[name], devices, chosen.rows, chosen.size)
            row: dict[str, Any] = {
                "method": name,
                "devices": devices,
                "rows": chosen.rows,
                "operations": program.cost_analysis()["flops"],
                "temporaries": machine.temporaries(program),
                "collectives": collectives(program.as_text()),
                "compile_seconds": round(time.perf_counter() - start, 1),
            }
            row["reckoned"] = reckoned(row)
            rows.append(row)
            sent = {k: f"{machine.mebibytes(v)} MiB" for k, v in row["collectives"].items()}
            print(
                f"{name:8} {devices:3} devices  {row['operations'] / 1e9:8.1f} Gop "
                f"{machine.mebibytes(row['temporaries'])} MiB  {sent}  {row['reckoned']}",
                flush=True,
            )
            machine.write(chosen.out, rows, network=chosen.network, classes=CLASSES, dim=DIM)


if __name__ == "__main__":
    main()
