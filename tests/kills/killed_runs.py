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

    @nn.compact
    def __call__(self, images: Any, *, train: bool = False) -> Any:
        x = images.reshape(len(images), -1)
        for name in LAYERS:
            x = nn.relu(nn.Dense(8, name=name)(x))
        x = nn.Dropout(0.1, deterministic=not train)(x)
        return nn.Dense(self.dim, name="head")(x)


def tiny(dim: int) -> Tiny:
    """What `--model killed_runs:tiny` makes."""
    return Tiny(dim)


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


def _fit(model: Any, **settings: Any) -> None:
    objective = objectives.pair(jdml.contrastive_loss, mine=jdml.mining.random_positive())
    sampler = data.ClassBatchSampler(parts()[0].labels, 4, 4, seed=1)
    optimizer = optax.adam(1e-2)
    given = {**EACH, "evaluate": evaluate, "progress": False, "out_dir": RUN}
    fit(model, objective, optimizer, parts()[0], sampler, **{**given, **settings})


def saved_beside() -> None:
    """Checkpoints are written while training goes on; the best are kept, evaluations are rarer than saves."""
    _fit(
        Tiny(), async_saves=True, monitor="spread", patience=9, evaluate_every=4, checkpoint_every=1
    )


def saved_between() -> None:
    """Evaluations are rarer than saves, log lines than both."""
    _fit(Tiny(), monitor="R@1", evaluate_every=4, checkpoint_every=3, log_every=5)


def never_scored() -> None:
    """Nothing is evaluated."""
    _fit(Tiny(), evaluate=None, evaluate_every=4)


def low_ranks() -> None:
    """LoRA, and an average of the parameters."""
    _fit(WithLora(Tiny(), 2, "block.*"), ema=0.9, monitor="spread")


def frozen() -> None:
    """Features of all but the head are kept in the folder."""
    _train(dataclasses.replace(PLAIN, freeze="backbone"), monitor="spread")


def little_by_little() -> None:
    """Micro-batches."""
    _fit(Tiny(), micro_batch=4, monitor="spread")


def scaled() -> None:
    """A scaled loss."""
    _fit(Tiny(), loss_scale=True, monitor="spread")


def sampled() -> None:
    """A step sees some of the classes."""
    made = Recipe(
        loss="normalized_softmax",
        proxies_per_class=1,
        sampled_classes=6,
        batch=4,
        dim=4,
        steps=STEPS,
    )
    _train(made, monitor="spread")


def command(*words: str) -> None:
    """A command line."""
    import jdml.cli

    code = jdml.cli.main([word for each in words for word in each.split(" ")])
    if code:
        sys.exit(code)


OWN = "--model killed_runs:tiny --dim 4 --steps 8 --quiet --out run --checkpoint-every 2 --log-every 1"


def on_digits() -> None:
    """EPS by the command line, stopped early."""
    command(
        f"train --data digits --labels parity --miner eps+semi_hard --batch 2x8 {OWN}",
        "--validation 0.1 --evaluate-every 3 --patience 9",
    )


IMAGES = f"train --data folder --data-dir ../images --image-size 8 --batch 4x3 --workers 1 {OWN}"


def on_images() -> None:
    """CCP by the command line, on a folder of images, which workers decode."""
    command(
        f"{IMAGES} --method ccp --method-setting patience=1 pool_size=3",
        "--proxies-per-class 2 --validation 0.5 --evaluate-every 2",
    )


def on_views() -> None:
    """A frozen backbone by the command line, on several views of each image of a folder."""
    command(f"{IMAGES} --freeze backbone --kept-views 2")


def draw_images(folder: Path, classes: int = 8, each: int = 8) -> None:
    """A folder of classes of small pictures."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for of_class in range(classes):
        (folder / f"kind{of_class}").mkdir(parents=True)
        colour = rng.integers(60, 190, (1, 1, 3))
        for number in range(each):
            pixels = np.clip(colour + rng.normal(0, 40, (10, 10, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"kind{of_class}" / f"{number}.png")


ONE: dict[str, Callable[[], None]] = {
    **{f"recipe {name}": functools.partial(of_recipe, name) for name in RECIPES},
    "fit, saves in the background": saved_beside,
    "fit, saves between evaluations": saved_between,
    "fit, never scored": never_scored,
    "fit, LoRA and EMA": low_ranks,
    "fit, frozen, features kept": frozen,
    "fit, micro-batches": little_by_little,
    "fit, loss scale": scaled,
    "fit, sampled classes": sampled,
    "jdml train, EPS on digits": on_digits,
    "jdml train, CCP on a folder of images": on_images,
    "jdml train, views of a folder, frozen": on_views,
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
    sys.path.insert(0, str(Path(__file__).parents[1] / "scale"))
    import one_of_several

    jax.config.update("jax_num_cpu_devices", 2)
    told = [RUN, f"told{process}.json", address, "2", str(process)]
    sys.argv = ["one_of_several", "../dots", *told]
    one_of_several.main()
    jax.distributed.shutdown()  # each waits for the other, as at the end of a program


def draw_dots(folder: Path) -> None:
    """64 pictures of eight classes."""
    from PIL import Image

    folder.mkdir()
    rng = np.random.default_rng(0)
    centres = rng.uniform(40, 210, (8, 10, 10, 3))
    for number in range(64):
        pixels = np.clip(centres[number % 8] + rng.normal(0, 30, (10, 10, 3)), 0, 255)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number:02}.png")


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
