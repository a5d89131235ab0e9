"""Compare a step that sends some rows at a time through the network with one that sends all.

    python benchmarks/micro_batches.py --out benchmarks/results.jsonl

SmallConvNet with frozen batch norm on 28 x 28 images, multi-similarity loss, Adam. The rows go through the network
twice, first for their embeddings and then for the gradient: a third more work where a backward pass costs two forward
ones. Memory is what the compiled program holds besides its arguments and results. The difference between the gradients
(SGD's updates) is given relative to their length.
"""

import argparse
from pathlib import Path
from typing import Any

import jax
import machine
import numpy as np
import optax

import jdml
from jdml.models import SmallConvNet
from jdml.objectives import pair
from jdml.training import create_state, make_train_step

SIZES = machine.small(((512, 64), (2048, 128)), ((16, 4),))
"""Rows, and rows at a time."""


def parts(optimizer: optax.GradientTransformation) -> tuple[Any, ...]:
    """Return the parts of a training."""
    network = SmallConvNet(64, freeze_batch_norm=True)
    if machine.SMOKE:
        network = network.clone(features=(4,))
    return network, pair(jdml.multi_similarity_loss), optimizer


def difference(images: np.ndarray, labels: np.ndarray, few: int) -> float:
    """By how much the two steps' gradients differ, relative to their length."""
    plain = parts(optax.sgd(1.0))
    state = create_state(*plain, images[:1], seed=0)
    moved = [
        jax.tree.map(
            np.subtract,
            jax.device_get(
                make_train_step(*plain, micro_batch=rows)(state, images, labels)[0].params
            ),
            jax.device_get(state.params),
        )
        for rows in (None, few)
    ]
    whole, cut = (np.concatenate([x.ravel() for x in jax.tree.leaves(m)]) for m in moved)
    return float(np.linalg.norm(whole - cut) / np.linalg.norm(whole))


def measure(size: int, few: int, repeats: int, side: int = 28) -> dict[str, Any]:
    """One row."""
    images = np.random.default_rng(0).integers(0, 256, (size, side, side, 1), np.uint8)
    labels = np.arange(size, dtype=np.int32) // 4
    trained = parts(optax.adam(1e-3))
    state = create_state(*trained, images[:1], seed=0)
    steps = {
        name: make_train_step(*trained, micro_batch=rows).lower(state, images, labels).compile()
        for name, rows in (("all at once", None), ("some at a time", few))
    }
    seconds = machine.median(
        machine.timed_in_turn(
            {
                name: lambda step=step: jax.block_until_ready(step(state, images, labels))
                for name, step in steps.items()
            },
            repeats,
        )
    )
    return {
        "rows": size,
        "at_a_time": few,
        "seconds": seconds,
        "ratio": seconds["some at a time"] / seconds["all at once"],
        "bytes": {name: machine.temporaries(step) for name, step in steps.items()},
        "relative_difference": difference(images, labels, few),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="*", type=int, help="pairs of rows and rows at a time")
    parser.add_argument(
        "--side", type=int, default=machine.small(28, 4), help="of an image (default 28)"
    )
    parser.add_argument("--repeats", type=int, default=9, help="timed steps of each (default 9)")
    parser.add_argument("--out", type=Path, help=machine.OUT)
    arguments = machine.arguments(parser)
    chosen_sizes = arguments.sizes
    sizes = (
        SIZES
        if chosen_sizes is None
        else tuple(zip(chosen_sizes[::2], chosen_sizes[1::2], strict=True))
    )
    rows = []
    for size, few in sizes:
        row = measure(size, few, arguments.repeats, arguments.side)
        rows.append(row)
        shown = "  ".join(
            f"{name} {row['seconds'][name]:.3f} s, {machine.mebibytes(row['bytes'][name])} MiB"
            for name in row["seconds"]
        )
        error = row["relative_difference"]
        print(f"{size} rows, {few} at a time: {shown}  {row['ratio']:.2f} x, error {error:.1e}")
    machine.write(arguments.out, rows)


if __name__ == "__main__":
    main()
