"""Measure what CCP adds to a training step: pairs with proxies, and the anchor of the weights.

    python benchmarks/alternation.py --out benchmarks/results.jsonl

A step of ResNet20-v2 on 32 digits of 28², contrastive loss: against the batch (plain), against 10 × 4 proxies, and
against proxies with anchored weights; and the time between two problems, with 16 samples per class in the pools.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import machine
import numpy as np
import optax

import jdml
from jdml import objectives, optim
from jdml.ccp import AlternatingProjections
from jdml.data import Dataset
from jdml.models import ResNet20V2, SmallConvNet
from jdml.ops import ball
from jdml.training import AlternatingProblems, TrainState, create_state, make_train_step

BATCH, CLASSES, PROXIES, POOL, SIDE = 32, 10, 4, 16, machine.small(28, 8)
MARGINS = {"positive_margin": 0.0, "negative_margin": 0.5}
STRENGTH = 2e-4


def optimizer_of(roles: tuple[str, ...], anchored: bool) -> optax.GradientTransformation:
    """Adam, with the model's weights anchored or not."""
    adam = optax.adam(1e-3)
    own = optax.chain(optim.add_anchored_weights(STRENGTH), adam) if anchored else adam
    return optim.partition_by_role(
        {role: own if role == "model" else optax.adam(1e-2) for role in roles},
        lambda params: {name: name for name in params},
    )


def bytes_of(tree: Any) -> int:
    """Memory of all arrays."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=45, help="timed steps of each (default 45)")
    parser.add_argument("--out", type=Path, help=machine.OUT)
    arguments = machine.arguments(parser)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (CLASSES * POOL, SIDE, SIDE, 1), np.uint8)
    labels = np.repeat(np.arange(CLASSES), POOL)
    model = machine.small(ResNet20V2(2), SmallConvNet(2, features=(4,)))
    pairs = objectives.pair(jdml.contrastive_loss, normalize=ball, **MARGINS)
    proxies = objectives.as_proxy_objective(
        jdml.contrastive_loss, CLASSES, 2, PROXIES, in_batch_weight=0.1, **MARGINS
    )
    states: dict[str, TrainState] = {}
    functions: dict[str, Callable[[], Any]] = {}
    rows = []
    for name, objective, anchored in (
        ("plain", pairs, False),
        ("proxies", proxies, False),
        ("proxies, anchored", proxies, True),
    ):
        optimizer = optimizer_of(
            ("model",) if objective is pairs else ("model", "proxies"), anchored
        )
        states[name] = create_state(model, objective, optimizer, images[:1], seed=0)
        step = make_train_step(model, objective, optimizer)
        x, y = jnp.asarray(images[:BATCH]), jnp.asarray(labels[:BATCH], jnp.int32)

        def call(name: str = name, step: Any = step, x: Any = x, y: Any = y) -> None:
            states[name], _ = step(states[name], x, y)
            jax.block_until_ready(states[name])

        functions[name] = call
        rows.append({"step": name, "optimizer_bytes": bytes_of(states[name].opt_state)})
    model_bytes = bytes_of(states["plain"].params["model"])
    seconds = machine.median(machine.timed_in_turn(functions, arguments.repeats))
    print(f"{'step':>18} {'ms':>7} {'of plain':>9} {'optimizer state, in models':>27}")
    for row in rows:
        row |= {"seconds": seconds[row["step"]], "ratio": seconds[row["step"]] / seconds["plain"]}
        row["optimizer_models"] = row["optimizer_bytes"] / model_bytes
        print(
            f"{row['step']:>18} {1e3 * row['seconds']:>7.2f} {row['ratio']:>9.3f} {row['optimizer_models']:>27.2f}"
        )
    problems = AlternatingProblems(
        model=model,
        train=Dataset("random", images, labels),
        pool_size=POOL,
        monitor="score",
        machine=AlternatingProjections(patience=1, run_patience=10**6),
    )
    carried, state = problems.start(states["proxies, anchored"])
    took = []
    for step, score in enumerate((1.0, 0.0) * 4):
        start = time.perf_counter()
        result = problems.update(carried, step, state, {"score": score})
        jax.block_until_ready(result.state)
        took.append(time.perf_counter() - start)
        carried, state = result.carried, result.state
    between = float(np.median(took[3::2]))  # the first change of problems compiles
    print(f"between two problems: {1e3 * between:.0f} ms")
    machine.write(arguments.out, [*rows, {"step": "between problems", "seconds": between}])


if __name__ == "__main__":
    main()
