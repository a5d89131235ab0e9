"""Runs to kill, of every method: each is a function that trains into the folder `run`.

Networks and data are tiny: a run is a dozen steps, with an evaluation, a save or a log line at nearly each of them.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax

import jdml
from jdml import data, objectives
from jdml.recipes import RECIPES, Recipe, recipe
from jdml.training import (
    EMA,
    Devices,
    Evaluation,
    LossScale,
    RunConfig,
    WithLora,
    fit,
    train,
)

RUN = "run"
STEPS = 10
SAVED = RunConfig(RUN, checkpoint_every=2, log_every=1)
LAYERS = ("block0", "block1")


class Tiny(nn.Module):
    """Two layers and a head, with dropout, so that there is randomness."""

    dim: int = 4
    dropout: float = 0.1

    @nn.compact
    def __call__(self, images: Any, *, train: bool = False) -> Any:
        x = images.reshape(len(images), -1)
        for name in LAYERS:
            x = nn.relu(nn.Dense(8, name=name)(x))
        x = nn.Dropout(self.dropout, deterministic=not train)(x)
        return nn.Dense(self.dim, name="head")(x)


def tiny(dim: int) -> Tiny:
    """Make the network of `--model killed_runs:tiny`."""
    return Tiny(dim)


def still(dim: int) -> Tiny:
    """The same without randomness, which what is computed once must be."""
    return Tiny(dim, dropout=0.0)


@functools.cache
def parts() -> tuple[Any, Any]:
    """160 digits that train, and 80 others."""
    digits = data.load("digits")
    return digits.select(np.arange(160)), digits.select(np.arange(160, 240))


def evaluate(embedder: Any) -> dict[str, float]:
    """How often the nearest of the held-out digits is of the same class, and a number that is never the same."""
    held_out = parts()[1]
    x = np.asarray(embedder(held_out.images), np.float64)
    gaps = ((x[:, None] - x[None]) ** 2).sum(-1) + np.diag(np.full(len(x), np.inf))
    right = held_out.labels[gaps.argmin(1)] == held_out.labels
    return {"R@1": float(right.mean()), "spread": float(x.std())}


def of_recipe(name: str) -> None:
    """A recipe of the papers, on digits."""
    made = recipe(name, "digits")
    each = made.loss.proxies.per_class
    loss: dict[str, Any] = {"proxies": {"per_class": each and min(each, 2)}}
    if made.loss.memory_size:
        loss |= {"memory_size": 40, "memory_start_step": 3}
    if name.startswith("nir") and made.loss.method is not None:
        loss["method"] = {"flow_settings": {"num_blocks": 1, "hidden": 4, "depth": 1}}
    if name == "ccp":
        loss["method"] = {"patience": 1, "run_patience": 50, "pool_size": 3}
    small = {"size": 16} if made.batch.classes is None else {"classes": 4, "samples_per_class": 4}
    made = made.replace(
        loss=loss,
        network={"dim": 4, "pooling": None},
        finetune={"freeze_batch_norm": False, "backbone_freeze_epochs": 0},
        batch={**small, "steps": STEPS},
        optimizer={"learning_rate": 1e-3},
    )
    _train(made, "R@1")


def _train(made: Recipe, monitor: str, model: Any = None) -> None:
    model = Tiny() if model is None else model
    evaluation = Evaluation(evaluate, every=3, monitor=monitor)
    train(made, parts()[0], run=SAVED, model=model, evaluation=evaluation, progress=False)


PLAIN = Recipe().replace(
    loss={"name": "contrastive"},
    network={"dim": 4},
    batch={"classes": 4, "samples_per_class": 4, "steps": STEPS},
    optimizer={"learning_rate": 1e-2},
)


def _fit(
    model: Any = None,
    run: RunConfig = SAVED,
    *,
    function: Any = evaluate,
    every: int = 3,
    monitor: str | None = None,
    patience: int | None = None,
    **settings: Any,
) -> None:
    objective = objectives.pair(jdml.contrastive_loss, mine=jdml.mining.random_positive())
    sampler = data.ClassBatchSampler(parts()[0].labels, 4, 4, seed=1)
    arguments = model or Tiny(), objective, optax.adam(1e-2), parts()[0], sampler
    evaluation = Evaluation(function, every, monitor, patience)
    fit(*arguments, steps=STEPS, run=run, evaluation=evaluation, progress=False, **settings)


def command(*words: str) -> None:
    """A command line."""
    import jdml.cli

    code = jdml.cli.main([word for each in words for word in each.split(" ")])
    if code:
        sys.exit(code)


TWO = "--classes-per-batch 2 --samples-per-class 8"
OWN = "--model killed_runs:tiny --dim 4 --steps 8 --quiet --out run --checkpoint-every 2 --log-every 1"
BATCH = "--classes-per-batch 4 --samples-per-class 3"
IMAGES = f"train --data folder --data-dir ../images --image-size 8 {BATCH} --workers 1 {OWN}"


def draw_images(folder: Path, classes: int = 8, each: int = 8) -> None:
    """A folder of classes of small pictures."""
    rng = np.random.default_rng(0)
    for of_class in range(classes):
        colour = rng.integers(60, 190, (1, 1, 3))
        for number in range(each):
            pixels = colour + rng.normal(0, 40, (10, 10, 3))
            _draw(pixels, folder / f"kind{of_class}" / f"{number}.png")


def draw_dots(folder: Path) -> None:
    """64 pictures of eight classes."""
    rng = np.random.default_rng(0)
    centres = rng.uniform(40, 210, (8, 10, 10, 3))
    for number in range(64):
        pixels = centres[number % 8] + rng.normal(0, 30, (10, 10, 3))
        _draw(pixels, folder / f"{number:02}.png")


def _draw(pixels: np.ndarray, file: Path) -> None:
    from PIL import Image

    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(file)


SAMPLED = PLAIN.replace(
    loss={"name": "normalized_softmax", "proxies": {"per_class": 1, "sampled_classes": 6}},
    batch={"size": 4},
    optimizer={"learning_rate": 1e-4},
)
ONE: dict[str, Callable[[], None]] = {
    **{f"recipe {name}": functools.partial(of_recipe, name) for name in RECIPES},
    # Checkpoints are written while training goes on; the best are kept, evaluations are rarer than saves.
    "fit, saves in the background": lambda: _fit(
        run=dataclasses.replace(SAVED, async_checkpoints=True, checkpoint_every=1),
        every=4,
        monitor="spread",
        patience=9,
    ),
    # Evaluations are rarer than saves, log lines than both.
    "fit, saves between evaluations": lambda: _fit(
        run=RunConfig(RUN, checkpoint_every=3, log_every=5), every=4, monitor="R@1"
    ),
    "fit, never scored": lambda: _fit(function=None, every=4),
    "fit, LoRA and EMA": lambda: _fit(
        WithLora(Tiny(), 2, "block.*"), monitor="spread", callbacks=[EMA(0.9)]
    ),
    "fit, frozen, features kept": lambda: _train(
        PLAIN.replace(finetune={"freeze": "backbone"}), "spread", still(4)
    ),
    "fit, micro-batches": lambda: _fit(monitor="spread", devices=Devices(micro_batch=4)),
    "fit, loss scale": lambda: _fit(monitor="spread", callbacks=[LossScale()]),
    "fit, sampled classes": lambda: _train(SAMPLED, "spread"),
    # Stopped early.
    "jdml train, EPS on digits": lambda: command(
        f"train --data digits --labels parity --miner eps+semi_hard {TWO} {OWN}",
        "--validation 0.1 --evaluate-every 3 --patience 9",
    ),
    # Workers decode the images.
    "jdml train, CCP on a folder of images": lambda: command(
        f"{IMAGES} --method ccp --method-setting patience=1 pool_size=3",
        "--proxies-per-class 2 --validation 0.5 --evaluate-every 2",
    ),
    # On several views of each image.
    "jdml train, views of a folder, frozen": lambda: command(
        f"{IMAGES} --freeze backbone --cached-views 2".replace("runs:tiny", "runs:still")
    ),
}
"""Runs of one process, by what they are."""


def swept() -> None:
    """Runs of a sweep, and its results."""
    small = f"--data digits --labels parity --model killed_runs:tiny --dim 4 --steps 4 {TWO}"
    command(f"sweep {small} --set lr=1e-2,1e-3 --seeds 1 --quiet --out run --checkpoint-every 2")


def benchmarked() -> None:
    """A benchmark of a small network, and its metrics."""
    from jdml import models

    models.create = lambda name, *, dim, **_: Tiny(dim)
    small = "--image-size 16 --dim 4 --batch-size 16 --steps 4 --quiet --out run"
    command(f"benchmark --dataset folder --data-dir ../images {small}")


MANY: dict[str, Callable[[], None]] = {"jdml sweep": swept, "jdml benchmark": benchmarked}
"""Commands of several runs, which are tried where the disk is full."""


def two(process: int, address: str) -> None:
    """One of two processes of a run: CCP on image files, proxies partitioned over all devices."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "scale"))
    import one_process

    jax.config.update("jax_num_cpu_devices", 2)
    worker_command = [RUN, f"told{process}.json", address, "2", str(process)]
    sys.argv = ["one_process", "../dots", *worker_command]
    one_process.main()
    jax.distributed.shutdown()  # each waits for the other, as at the end of a program


TRAINED = (
    f"train --data folder --data-dir images --image-size 8 {BATCH} --workers 1 --model killed_runs:tiny --dim 4 "
    "--steps 4 --quiet --out"
)
SEARCH = "search {run} images/kind0/0.png --gallery images --quiet -k 2"
WRITERS: dict[str, tuple[str, str]] = {
    "report": ("report {run} --thumbnails 20 --out {out}", "page.html"),
    "export, parameters": ("export {run} --out {out}", "model.safetensors"),
    "export, a program": ("export {run} --out {out}", "model.stablehlo"),
    "embed, .npz": ("embed {run} images --quiet --out {out}", "embedded.npz"),
    "search, a sheet": (f"{SEARCH} --out {{out}}", "sheet.png"),
    "search, .json": (f"{SEARCH} --json {{out}}", "found.json"),
    "compare, .csv": ("compare {run} --csv {out}", "table.csv"),
}
"""Commands that write a file of a run, and how it is called."""
