"""Images per second of training on photographs: the step alone, the pipeline alone, both together.

    python benchmarks/training_from_files.py --batch 16 --out benchmarks/results.jsonl

The pipeline decodes and augments generated JPEGs of 500 × 375 (conventional crops to 224²) while the device trains a
network with ProxyAnchor and Adam; what is left of the time is waiting for input.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import machine
import numpy as np
import optax
from input_pipeline import generate

import jdml
from jdml import models, objectives
from jdml.data import Dataset, ImageBatches, ImageFiles, RandomBatchSampler, conventional
from jdml.training import create_state, make_train_step

FILES, CLASSES = machine.small(64, 4), 100
BACKBONE, BATCH, SIZE, STEPS = machine.small(("resnet50", 16, 224, 5), ("small", 2, 16, 1))


def seconds(function: Any, steps: int) -> float:
    """Time a number of calls."""
    start = time.perf_counter()
    for _ in range(steps):
        function()
    return time.perf_counter() - start


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", default=BACKBONE, help="a network (default resnet50)")
    parser.add_argument("--batch", type=int, default=BATCH, help="images a step (default 16)")
    parser.add_argument("--size", type=int, default=SIZE, help="side of the crops (default 224)")
    parser.add_argument("--steps", type=int, default=STEPS, help="timed steps of each (default 5)")
    parser.add_argument("--dtype", default="float32", help="what the network computes in")
    parser.add_argument("--out", type=Path, help=machine.OUT)
    arguments = machine.arguments(parser)
    model = models.create(
        arguments.backbone, dim=512, freeze_batch_norm=True, dtype=jnp.dtype(arguments.dtype).type
    )
    objective = objectives.proxy(jdml.proxy_anchor_loss, CLASSES, 512)
    optimizer, preprocess = (
        optax.adam(1e-4),
        models.normalizer(machine.small(arguments.backbone, "resnet50")),
    )
    step = make_train_step(model, objective, optimizer, preprocess=preprocess, donate=True)
    with tempfile.TemporaryDirectory() as name:
        files = generate(Path(name), FILES)
        images = ImageFiles(files, conventional(arguments.size))
        train = Dataset("generated", images, np.arange(FILES) % CLASSES)
        batches = ImageBatches(train, RandomBatchSampler(FILES, arguments.batch))
        batch = next(batches)
        state = create_state(
            model, objective, optimizer, batch.images[:1], seed=0, preprocess=preprocess
        )
        held, waited = [state], [0.0]

        def train_on(batch: Any) -> None:
            held[0], _ = step(held[0], *batch)
            jax.block_until_ready(held[0])

        def both() -> None:
            start = time.perf_counter()
            batch = next(batches)
            waited[0] += time.perf_counter() - start
            train_on(batch)

        train_on(batch)  # compiles
        alone = seconds(lambda: train_on(batch), arguments.steps)
        piped = seconds(lambda: next(batches), arguments.steps)
        together = seconds(both, arguments.steps)
        batches.close()
    count = arguments.batch * arguments.steps
    row = {
        "backbone": arguments.backbone,
        "dtype": arguments.dtype,
        "batch": arguments.batch,
        "step_images_per_second": count / alone,
        "pipeline_images_per_second": count / piped,
        "training_images_per_second": count / together,
        "waiting_share": waited[0] / together,
    }
    for key, value in row.items():
        print(f"{key:>28} {value:.3g}" if isinstance(value, float) else f"{key:>28} {value}")
    machine.write(arguments.out, [row])


if __name__ == "__main__":
    main()
