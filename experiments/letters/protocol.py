"""What is held equal of all methods: the letters of each fold, what is scored, and how a run is named."""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from experiments.letters import levels
from experiments.letters.tables import SCORES
from experiments.recorded_recipes import from_flat, to_flat
from experiments.smoke import NETWORK, SMOKE, small
from experiments.study import read_toml
from jdml import data
from jdml.metrics import evaluate_retrieval
from jdml.recipes import Recipe

STEPS, EVERY, FOLDS = small((2000, 250, 4), (2, 1, 2))
COLUMNS: dict[str, list[int]] = read_toml(__file__)["scored"]
Job = dict[str, Any]


@functools.cache
def letters(data_dir: str | None, split: str) -> data.Dataset:
    """Drawings at 28×28, labelled by letter."""
    return data.load("omniglot", data_dir=data_dir, split=split).relabel("letter")


def load_fold(
    data_dir: str | None, fold: int, changes: Any = None, seed: int = 0
) -> tuple[data.Dataset, data.Dataset, np.ndarray]:
    """Return the letters that train, as ``changes`` leave them, those that choose weights, and the former's rows."""
    whole = letters(data_dir, "train")
    parts = data.mlrc_folds(whole.labels, FOLDS)[fold]
    rows = np.flatnonzero(parts.train)
    rows, labels = levels.rows_of(changes or {}, rows, whole.labels[rows], seed)
    train = dataclasses.replace(whole.select(rows), labels=labels)
    return train, whole.select(parts.validation), rows


def seed_of(seed: int, fold: int) -> int:
    """Return the seed of a model, whatever its method: differences are paired by it."""
    return FOLDS * seed + fold


def is_scored(job: Job) -> bool:
    """Return whether a model is scored on the test letters."""
    return "of" in job or job["column"] in COLUMNS


def load_test(job: Job, data_dir: str | None, frozen: Path) -> data.Dataset:
    """Return the letters that are scored, for a recipe alone that stands in the file of frozen settings."""
    kept = read_frozen(frozen)[str(job.get("of", job["column"]))].get(job["method"])
    if kept is not None and "of" in job:
        kept = levels.at(kept, job["factor"], job["level"]).recipe
    if kept != from_flat(job["recipe"]):
        raise ValueError(
            f"{job['method']}, {job['column']}: the test letters are for settings that are frozen, and {frozen} has "
            "none of this method, or others"
        )
    return letters(data_dir, "test")


def read_frozen(path: Path) -> dict[str, dict[str, Recipe]]:
    """Return the recipes that are scored, by column and method; none before the file is there."""
    kept = json.loads(path.read_text()) if path.exists() else {}

    def read(values: Any) -> Recipe:
        recipe = from_flat(values)
        if not SMOKE or recipe.network.name == NETWORK:
            return recipe
        batch = {"classes": 4, "samples_per_class": 4}
        return recipe.replace(network={"name": NETWORK, "dim": 8}, batch=batch)

    return {
        column: {method: read(values) for method, values in kept.get(column, {}).items()}
        for column in COLUMNS
    }


def every_of(job: Job) -> int:
    """Steps between evaluations."""
    return int(min(job.get("every", EVERY), job["steps"]))


def recipe_of(job: Job) -> Recipe:
    """Return the recipe of a job, with its steps and evaluations."""
    steps, looks = {"steps": job["steps"]}, {"every": every_of(job)}
    return from_flat(job["recipe"]).replace(batch=steps, evaluation=looks)


def score(vectors: Any, test: data.Dataset) -> dict[str, float]:
    """Return retrieval among all test drawings."""
    measured = evaluate_retrieval(vectors, jnp.asarray(test.labels), recall_at=(1,))
    return {name: round(float(measured[name]), 5) for name in SCORES}


def make_job(
    method: str, column: str, seed: int, fold: int | None, recipe: Recipe, **others: Any
) -> Job:
    """Return a model, or four of them together."""
    at = {"method": method, "column": column, "seed": seed, "fold": fold}
    return {**at, "recipe": to_flat(recipe), "steps": STEPS, **others}


def name_of(job: Job) -> str:
    """Its name in the file of results."""
    fold = "together" if job["fold"] is None else f"fold {job['fold']}"
    return f"{job['column']}: {job['method']}, {fold}-{job['seed']}"
