"""What is killed: runs of every method, each a function that trains into the folder `run` of where it is.

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
from jdml.training import WithLora, fit, train

RUN = "run"
STEPS = 10
EACH = {"steps": STEPS, "evaluate_every": 3, "checkpoint_every": 2, "log_every": 1}
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
    """What `--model killed_runs:tiny` makes."""
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
    paired = isinstance(made.batch, tuple)
    changes: dict[str, Any] = {
        "batch": (4, 4) if paired else 16,
        "dim": 4,
        "rate": 1e-3,
        "steps": STEPS,
        "freeze_batch_norm": False,
        "pooling": None,
        "warmup_epochs": 0,
        "proxies_per_class": made.proxies_per_class and min(made.proxies_per_class, 2),
    }
    if made.memory:
        changes |= {"memory": 40, "memory_wait": 3}
    if name.startswith("nir") and made.method is not None:
        small = {"num_blocks": 1, "hidden": 4, "depth": 1}
        changes["method"] = dataclasses.replace(made.method, flow_settings=small)
    if name == "ccp":
        changes["method"] = dataclasses.replace(
            made.method, patience=1, run_patience=50, pool_size=3
        )
    _train(dataclasses.replace(made, **changes), monitor="R@1")


def _train(made: Recipe, **settings: Any) -> None:
    given = {"validation": parts()[1], "evaluate": evaluate, "model": Tiny(), "progress": False}
    train(made, parts()[0], out_dir=RUN, **{**EACH, "steps": None, **given, **settings})


PLAIN = Recipe(loss="contrastive", batch=(4, 4), dim=4, rate=1e-2, steps=STEPS)


def _fit(model: Any = None, **settings: Any) -> None:
    objective = objectives.pair(jdml.contrastive_loss, mine=jdml.mining.random_positive())
    sampler = data.ClassBatchSampler(parts()[0].labels, 4, 4, seed=1)
    optimizer = optax.adam(1e-2)
    given = {**EACH, "evaluate": evaluate, "progress": False, "out_dir": RUN}
    fit(model or Tiny(), objective, optimizer, parts()[0], sampler, **{**given, **settings})


def command(*words: str) -> None:
    """A command line."""
    import jdml.cli

    code = jdml.cli.main([word for each in words for word in each.split(" ")])
    if code:
        sys.exit(code)


OWN = "--model killed_runs:tiny --dim 4 --steps 8 --quiet --out run --checkpoint-every 2 --log-every 1"


IMAGES = f"train --data folder --data-dir ../images --image-size 8 --batch 4x3 --workers 1 {OWN}"


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


SAMPLED = {"loss": "normalized_softmax", "proxies_per_class": 1, "sampled_classes": 6, "batch": 4}
ONE: dict[str, Callable[[], None]] = {
    **{f"recipe {name}": functools.partial(of_recipe, name) for name in RECIPES},
    # Checkpoints are written while training goes on; the best are kept, evaluations are rarer than saves.
    "fit, saves in the background": lambda: _fit(
        async_saves=True, monitor="spread", patience=9, evaluate_every=4, checkpoint_every=1
    ),
    # Evaluations are rarer than saves, log lines than both.
    "fit, saves between evaluations": lambda: _fit(
        monitor="R@1", evaluate_every=4, checkpoint_every=3, log_every=5
    ),
    "fit, never scored": lambda: _fit(evaluate=None, evaluate_every=4),
    "fit, LoRA and EMA": lambda: _fit(WithLora(Tiny(), 2, "block.*"), ema=0.9, monitor="spread"),
    "fit, frozen, features kept": lambda: _train(
        dataclasses.replace(PLAIN, freeze="backbone"), model=still(4), monitor="spread"
    ),
    "fit, micro-batches": lambda: _fit(micro_batch=4, monitor="spread"),
    "fit, loss scale": lambda: _fit(loss_scale=True, monitor="spread"),
    "fit, sampled classes": lambda: _train(Recipe(**SAMPLED, dim=4, steps=STEPS), monitor="spread"),
    # Stopped early.
    "jdml train, EPS on digits": lambda: command(
        f"train --data digits --labels parity --miner eps+semi_hard --batch 2x8 {OWN}",
        "--validation 0.1 --evaluate-every 3 --patience 9",
    ),
    # Workers decode the images.
    "jdml train, CCP on a folder of images": lambda: command(
        f"{IMAGES} --method ccp --method-setting patience=1 pool_size=3",
        "--proxies-per-class 2 --validation 0.5 --evaluate-every 2",
    ),
    # On several views of each image.
    "jdml train, views of a folder, frozen": lambda: command(
        f"{IMAGES} --freeze backbone --kept-views 2".replace("runs:tiny", "runs:still")
    ),
}
"""Runs of one process, by what they are."""


def swept() -> None:
    """Runs of a sweep, and its results."""
    small = "--data digits --labels parity --model killed_runs:tiny --dim 4 --steps 4 --batch 2x8"
    command(f"sweep {small} --set lr=1e-2,1e-3 --seeds 1 --quiet --out run --checkpoint-every 2")


def benchmarked() -> None:
    """A benchmark of a small network, and its metrics."""
    from jdml import models

    models.create = lambda name, *, dim, **_: Tiny(dim)
    small = "--image-size 16 --dim 4 --batch 16 --steps 4 --quiet --out run"
    command(f"benchmark --dataset folder --data-dir ../images {small}")


MANY: dict[str, Callable[[], None]] = {"jdml sweep": swept, "jdml benchmark": benchmarked}
"""Commands of several runs, which are tried where the disk is full."""


def two(process: int, address: str) -> None:
    """One of two processes of a run: CCP on image files, proxies partitioned over all devices."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "scale"))
    import one_process

    jax.config.update("jax_num_cpu_devices", 2)
    told = [RUN, f"told{process}.json", address, "2", str(process)]
    sys.argv = ["one_process", "../dots", *told]
    one_process.main()
    jax.distributed.shutdown()  # each waits for the other, as at the end of a program


TRAINED = (
    "train --data folder --data-dir images --image-size 8 --batch 4x3 --workers 1 --model killed_runs:tiny --dim 4 "
    "--steps 4 --quiet --out"
)
SEARCH = "search {run} images/kind0/0.png --gallery images --quiet -k 2"
WRITERS: dict[str, tuple[str, str]] = {
    "report": ("report {run} --thumbnails 20 --out {out}", "page.html"),
    "export, parameters": ("export {run} --out {out}", "model.safetensors"),
    "export, a program": ("export {run} --out {out}", "model.stablehlo"),
    "embed, .npz": ("embed {run} images --quiet --out {out}", "embedded.npz"),
    "embed, .npy": ("embed {run} images --quiet --out {out}", "embedded.npy"),
    "embed, .parquet": ("embed {run} images --quiet --out {out}", "embedded.parquet"),
    "search, a sheet": (f"{SEARCH} --out {{out}}", "sheet.png"),
    "search, .json": (f"{SEARCH} --json {{out}}", "found.json"),
    "compare, .csv": ("compare {run} --csv {out}", "table.csv"),
}
"""Commands that write a file of a run, and how it is called."""
