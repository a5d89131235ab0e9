"""The protocol: settings that are equal for all methods, names of runs, and the levels of each factor."""

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.letters.tables import SCORES
from experiments.smoke import NETWORK, SMOKE, small
from experiments.study import read_toml
from jdml import data
from jdml.data import Dataset, corrupt_labels
from jdml.metrics import evaluate_retrieval
from jdml.recipes import Recipe

STUDY = read_toml(__file__)
STEPS, EVERY, FOLDS = small((2000, 250, 4), (2, 1, 2))
COLUMNS: dict[str, list[int]] = STUDY["scored"]
Job = dict[str, Any]


@functools.cache
def letters(data_dir: str | None, split: str) -> Dataset:
    """Drawings at 28×28, labelled by letter."""
    return data.load("omniglot", data_dir=data_dir, split=split).relabel("letter")


def load_fold(
    data_dir: str | None, fold: int, changes: Any = None, seed: int = 0
) -> tuple[Dataset, Dataset, np.ndarray]:
    """Return the letters that train, as ``changes`` leave them, those that choose weights, and the former's rows."""
    whole = letters(data_dir, "train")
    parts = data.mlrc_folds(whole.labels, FOLDS)[fold]
    rows = np.flatnonzero(parts.train)
    rows, labels = rows_of(changes or {}, rows, whole.labels[rows], seed)
    train = dataclasses.replace(whole.select(rows), labels=labels)
    return train, whole.select(parts.validation), rows


def seed_of(seed: int, fold: int) -> int:
    """Return the seed of a model, whatever its method: differences are paired by it."""
    return FOLDS * seed + fold


def is_scored(job: Job) -> bool:
    """Return whether a model is scored on the test letters."""
    return "of" in job or job["column"] in COLUMNS


def load_test(job: Job, data_dir: str | None, frozen: Path) -> Dataset:
    """Return the letters that are scored, for a recipe alone that stands in the file of frozen settings."""
    selected = read_frozen(frozen)[str(job.get("of", job["column"]))].get(job["method"])
    if selected is not None and "of" in job:
        selected = at(selected, job["factor"], job["level"]).recipe
    if selected != Recipe.from_json(job["recipe"]):
        raise ValueError(
            f"{job['method']}, {job['column']}: the test letters are for settings that are frozen, and {frozen} has "
            "none of this method, or others"
        )
    return letters(data_dir, "test")


def read_frozen(path: Path) -> dict[str, dict[str, Recipe]]:
    """Return the recipes that are scored, by column and method; none before the file is there."""
    selected = json.loads(path.read_text()) if path.exists() else {}

    def read(values: Any) -> Recipe:
        recipe = Recipe.from_json(values)
        if not SMOKE or recipe.network.name == NETWORK:
            return recipe
        batch = {"classes": 4, "samples_per_class": 4}
        return recipe.replace(network={"name": NETWORK, "dim": 8}, batch=batch)

    return {
        column: {method: read(values) for method, values in selected.get(column, {}).items()}
        for column in COLUMNS
    }


def every_of(job: Job) -> int:
    """Steps between evaluations."""
    return int(min(job.get("every", EVERY), job["steps"]))


def recipe_of(job: Job) -> Recipe:
    """Return the recipe of a job, with its steps and evaluations."""
    steps, looks = {"steps": job["steps"]}, {"every": every_of(job)}
    return Recipe.from_json(job["recipe"]).replace(batch=steps, evaluation=looks)


def score(vectors: Any, test: Dataset) -> dict[str, float]:
    """Return retrieval among all test drawings."""
    measured = evaluate_retrieval(vectors, jnp.asarray(test.labels), recall_at=(1,))
    return {name: round(float(measured[name]), 5) for name in SCORES}


def make_job(
    method: str, column: str, seed: int, fold: int | None, recipe: Recipe, **others: Any
) -> Job:
    """Return a model, or four of them together."""
    at = {"method": method, "column": column, "seed": seed, "fold": fold}
    return {**at, "recipe": recipe.to_json(defaults=False), "steps": STEPS, **others}


def name_of(job: Job) -> str:
    """Its name in the file of results."""
    fold = "together" if job["fold"] is None else f"fold {job['fold']}"
    return f"{job['column']}: {job['method']}, {fold}-{job['seed']}"


# Levels of a tuned method: its recipe, its steps, and the drawings that it trains on.

OF_FACTORS = STUDY["factors"]
FACTORS = {name: values["levels"] for name, values in OF_FACTORS.items()}
USUAL = {name: values["usual"] for name, values in OF_FACTORS.items()}
"""Levels of the models that are scored otherwise."""
if SMOKE:
    FACTORS, USUAL["steps"] = {"wrong": [0.5], "augmented": [True]}, 2
LEAST_STEPS, MOST_LETTERS = small(256, 2), 512
LOOKS = small(8, 2)
"""Evaluations of a run, however long: its steps are a multiple."""
COPIES = small(8, 2)
"""Distorted copies of each drawing, of which a batch draws one."""


def ordered(factor: str) -> list[Any]:
    """Return the levels of a factor, the usual one among them."""
    return sorted({*FACTORS[factor], USUAL[factor]})


class Level(NamedTuple):
    """A job's parts at a level."""

    recipe: Recipe
    steps: int
    data: dict[str, Any]


def at(recipe: Recipe, factor: str, level: Any) -> Level:
    """Return a recipe with one thing changed; a larger batch sees as many drawings in all, at a rate by its root."""
    made, steps, each = recipe, USUAL["steps"], recipe.batch.samples_per_class
    if factor == "batch":
        batch = {"size": level} if each is None else _by_letter(level, each)
        rate = float(f"{recipe.optimizer.learning_rate * math.sqrt(level / USUAL['batch']):.3g}")
        made = recipe.replace(batch=batch, optimizer={"learning_rate": rate})
        steps = max(LEAST_STEPS, steps * USUAL["batch"] // level // LOOKS * LOOKS)
    elif factor == "dim":
        made = recipe.replace(network={"dim": level})
    elif factor == "steps":
        steps = level
    elif factor == "drawings" and each is not None:
        made = recipe.replace(batch=_by_letter(USUAL["batch"], min(level, each)))
    return Level(made, steps, {factor: level} if factor in CHANGES else {})


def _by_letter(rows: int, drawings: int) -> dict[str, int]:
    letters = min(MOST_LETTERS, rows // drawings)
    return {"classes": letters, "samples_per_class": rows // letters}


def rows_of(
    changes: Mapping[str, Any], rows: np.ndarray, labels: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the drawings that a model trains on, and their labels 0, 1, …, of those that there are."""
    for name, level in changes.items():
        rows, labels = CHANGES[name](rows, labels, level, seed)
    return rows, np.unique(labels, return_inverse=True)[1]


def _some_letters(rows: Any, labels: Any, number: int, seed: int) -> Any:
    there = np.unique(labels)
    random = np.random.default_rng(seed)
    selected = np.isin(labels, random.choice(there, min(number, len(there)), replace=False))
    return rows[selected], labels[selected]


def _some_drawings(rows: Any, labels: Any, number: int, seed: int) -> Any:
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    ordered = shuffled[np.argsort(labels[shuffled], kind="stable")]
    _, first, counts = np.unique(labels[ordered], return_index=True, return_counts=True)
    place = np.arange(len(labels)) - np.repeat(first, counts)
    selected = np.sort(ordered[place < number])
    return rows[selected], labels[selected]


CHANGES: dict[str, Callable[..., Any]] = {
    "letters": _some_letters,
    "drawings": _some_drawings,
    "wrong": lambda rows, labels, share, seed: (rows, corrupt_labels(labels, share, seed)),
    "augmented": lambda rows, labels, level, seed: (rows, labels),
}
"""Levels that change the data: its rows and labels; distorted drawings are the same drawings."""


def with_copies(drawings: Dataset) -> Dataset:
    """Drawings, then their copies, each turned by up to 15°, 15 % larger or smaller, 2 pixels aside."""
    keys = jax.random.split(jax.random.key(0), COPIES)
    copies = (np.asarray(_distorted(drawings.images, key)) for key in keys)
    images = np.concatenate([drawings.images, *copies])
    return Dataset(drawings.name, images, np.tile(drawings.labels, 1 + COPIES))


def batches(
    recipe: Recipe, train: Dataset, seed: int, changes: Mapping[str, Any]
) -> Iterator[np.ndarray]:
    """Return the recipe's batches; of augmented drawings each as it is or one of its copies."""
    random = np.random.default_rng(seed)
    for rows in recipe.batch.build(train.labels, seed, train.views):
        copies = random.integers(0, 1 + COPIES, rows.shape) if changes.get("augmented") else 0
        yield rows + len(train) * copies


@jax.jit
def _distorted(images: jax.Array, key: jax.Array) -> jax.Array:
    side = images.shape[1]
    low, high = jnp.array([-15, 0.85, -2, -2]), jnp.array([15, 1.15, 2, 2])
    drawn = jax.random.uniform(key, (len(images), 4), minval=low, maxval=high)
    grid = jnp.stack(jnp.meshgrid(*2 * [jnp.arange(side) - (side - 1) / 2], indexing="ij"))

    def one(image: jax.Array, how: jax.Array) -> jax.Array:
        angle, scale, *shift = how
        cosine, sine = jnp.cos(jnp.deg2rad(angle)) / scale, jnp.sin(jnp.deg2rad(angle)) / scale
        turn = jnp.array([[cosine, -sine], [sine, cosine]])
        places = jnp.tensordot(turn, grid, 1) + (side - 1) / 2 + jnp.stack(shift)[:, None, None]
        read = functools.partial(jax.scipy.ndimage.map_coordinates, order=1, mode="nearest")
        return read(image[..., 0].astype(jnp.float32), list(places))[..., None]

    return jnp.round(jax.vmap(one)(images, drawn)).astype(jnp.uint8)
