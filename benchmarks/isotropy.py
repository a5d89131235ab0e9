"""Measure what non-isotropy regularization adds to a training step, compared with ResNet-50 and with the loss.

    python benchmarks/isotropy.py --out benchmarks/results.jsonl

The operations are those that XLA counts in the compiled programs: a ResNet-50 step on 90 images of 224² with
ProxyAnchor on 100 classes, and the same objective's value and gradient on 90 embeddings, with the flow less without it.
"""

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import machine
import numpy as np
import optax

import jdml
from jdml import flows, objectives
from jdml.models import ResNet, SmallConvNet
from jdml.training import create_state, make_train_step

BATCH, CLASSES, SIDE = 90, 100, machine.small(224, 8)
PRESETS = machine.small(flows.PRESETS, ("released",))
CHANGES = machine.small({}, {"num_blocks": 1, "hidden": 8, "depth": 2})
"""Settings of a small flow."""


def objective_of(dim: int, preset: str | None) -> objectives.Objective:
    """ProxyAnchor, with the flow of a preset or without one."""
    base = objectives.proxy(jdml.proxy_anchor_loss, CLASSES, dim)
    return (
        base
        if preset is None
        else objectives.with_nir(base, flows.preset(preset, dim, dim, **CHANGES))
    )


def operations(function: Any, *arguments: Any) -> float:
    """As XLA counts them in the compiled program."""
    analysis = function.lower(*arguments).compile().cost_analysis()
    return float(analysis["flops"])


def of_resnet_step(dim: int) -> float:
    """Operations of a whole training step without a flow."""
    model = machine.small(ResNet, SmallConvNet)(dim)
    objective, optimizer = objective_of(dim, None), optax.adam(1e-5)
    step = make_train_step(model, objective, optimizer)
    state = create_state(model, objective, optimizer, jnp.zeros((1, 32, 32, 3)), seed=0)
    images = jax.ShapeDtypeStruct((BATCH, SIDE, SIDE, 3), jnp.float32)
    return operations(step, state, images, jax.ShapeDtypeStruct((BATCH,), jnp.int32))


def measure(dim: int, preset: str, resnet: float, repeats: int) -> dict[str, Any]:
    """One row."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(BATCH, dim)), jnp.float32)
    y = jnp.asarray(rng.integers(0, CLASSES, BATCH), jnp.int32)
    functions, counted = {}, {}
    for name, setting in (("loss", None), ("with flow", preset)):
        objective = objective_of(dim, setting)
        params = objective.init(jax.random.key(0))

        def value(params: Any, x: jax.Array, objective: Any = objective) -> jax.Array:
            return objective.loss(params, x, y)[0]

        step = jax.jit(jax.value_and_grad(value, (0, 1)))
        counted[name] = operations(step, params, x)
        functions[name] = lambda step=step, params=params: jax.block_until_ready(step(params, x))
    seconds = machine.median(machine.timed_in_turn(functions, repeats))
    added = counted["with flow"] - counted["loss"]
    return {
        "dim": dim,
        "preset": preset,
        "flow_operations": added,
        "resnet50_operations": resnet,
        "share": added / resnet,
        "milliseconds": {name: 1e3 * s for name, s in seconds.items()},
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9, help="timed steps of each (default 9)")
    parser.add_argument("--dims", type=int, nargs="*", default=machine.small([128, 512], [8]))
    parser.add_argument("--out", type=Path, help=machine.OUT)
    arguments = machine.arguments(parser)
    rows = []
    titles = ("dim", "preset", "flow GFLOP", "ResNet-50 GFLOP", "share", "loss ms", "flow ms")
    print("{:>4} {:>9} {:>11} {:>16} {:>7} {:>8} {:>8}".format(*titles))
    for dim in arguments.dims:
        resnet = of_resnet_step(dim)
        for preset in PRESETS:
            row = measure(dim, preset, resnet, arguments.repeats)
            rows.append(row)
            took = row["milliseconds"]
            print(
                f"{dim:>4} {preset:>9} {row['flow_operations'] / 1e9:>11.2f} {resnet / 1e9:>16.0f} "
                f"{row['share']:>7.2%} {took['loss']:>8.1f} {took['with flow'] - took['loss']:>8.1f}",
                flush=True,
            )
    machine.write(arguments.out, rows)


if __name__ == "__main__":
    main()
