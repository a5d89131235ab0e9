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
from experiments.smoke import NETWORK, small
from jdml import data
from jdml.metrics import evaluate_retrieval
from jdml.recipes import Recipe

STEPS, EVERY, FOLDS = small((2000, 250, 4), (2, 1, 2))
COLUMNS: dict[str, tuple[int, ...]] = {
    "tuned": small((1, 2, 3), (1,)),
    "papers": (1,),
    "resnet": (1,),
    "also": (1, 2, 3),
    "again": (2, 3),
}
"""What is scored on the test letters, and with which seeds."""
Job = dict[str, Any]


@functools.cache
def letters(data_dir: str | None, split: str) -> data.Dataset:
    """Drawings at 28×28, labelled by letter."""
    return data.load("omniglot", data_dir=data_dir, split=split).relabel("letter")


def load_fold(data_dir: str | None, fold: int) -> tuple[data.Dataset, data.Dataset]:
    """Three quarters of the training letters, numbered anew, and the quarter that chooses the weights."""
    whole = letters(data_dir, "train")
    parts = data.mlrc_folds(whole.labels, FOLDS)[fold]
    train, validation = whole.select(parts.train), whole.select(parts.validation)
    own = np.unique(train.labels, return_inverse=True)[1]
    return dataclasses.replace(train, labels=own), validation


def seed_of(seed: int, fold: int) -> int:
    """The seed of a model, whatever its method: differences are paired by it."""
    return FOLDS * seed + fold


def load_test(job: Job, data_dir: str | None, frozen: Path) -> data.Dataset:
    """The letters that are scored, for a recipe alone that stands in the file of frozen settings.

    A job that has ``of`` is one of the column of that name, with a level of a factor.

    Raises:
        ValueError: it does not, or is another there.
    """
    kept = read_frozen(frozen)[str(job.get("of", job["column"]))].get(job["method"])
    if kept is not None and "of" in job:
        kept = levels.at(kept, job["factor"], job["level"]).recipe
    if kept != job["recipe"]:
        raise ValueError(
            f"{job['method']}, {job['column']}: the test letters are for settings that are frozen, and {frozen} has "
            "none of this method, or others"
        )
    return letters(data_dir, "test")


def read_frozen(path: Path) -> dict[str, dict[str, Any]]:
    """The recipes that are scored, by column and method; none before the file is there."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    own = small({}, {"network": NETWORK, "dim": 8, "batch": [4, 4]})

    def toy(recipe: dict[str, Any]) -> dict[str, Any]:
        return recipe if recipe.get("network") == NETWORK else {**recipe, **own}

    return {
        column: {method: toy(recipe) for method, recipe in kept.get(column, {}).items()}
        for column in COLUMNS
    }


def told(recipe: Recipe) -> dict[str, Any]:
    """What of a recipe is no default, as JSON has it."""
    usual = Recipe().to_json()
    own = {name: value for name, value in recipe.to_json().items() if value != usual[name]}
    return dict(json.loads(json.dumps(own)))


def score(vectors: Any, test: data.Dataset) -> dict[str, float]:
    """Retrieval among all test drawings."""
    measured = evaluate_retrieval(vectors, jnp.asarray(test.labels), recall_at=(1,))
    return {name: round(float(measured[name]), 5) for name in SCORES}


def make_job(method: str, column: str, seed: int, fold: int | None, recipe: dict[str, Any]) -> Job:
    """A model, or four of them together."""
    at = {"method": method, "column": column, "seed": seed, "fold": fold}
    return {**at, "recipe": recipe, "steps": STEPS}


def name_of(job: Job) -> str:
    """Its name in the file of results."""
    fold = "together" if job["fold"] is None else f"fold {job['fold']}"
    return f"{job['column']}: {job['method']}, {fold}-{job['seed']}"
