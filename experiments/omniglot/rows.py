"""One run of a table of all methods: a network trained by a recipe, retrieval where its loss lives; and the rows."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import jdml
from experiments.shown import cell
from jdml import data, training
from jdml.recipes import Recipe
from jdml.training import by_recipe
from jdml.training.study import over_seeds

EVALUATIONS = 8


class Parts(NamedTuple):
    """Images to train on, to choose the weights by, and to report."""

    train: data.Dataset
    validation: data.Dataset
    test: data.Dataset


def normalized(recipe: Recipe, embeddings: np.ndarray) -> np.ndarray:
    """Embeddings as retrieval compares them: in the ball where proxies are chosen, else on the sphere."""
    normalize = jdml.sphere if not recipe.has_hook else jdml.ball
    return np.asarray(normalize(jnp.asarray(embeddings)))


def table_rows(results: Mapping[str, Any], columns: Sequence[str]) -> list[list[str]]:
    """A row per method, best in the first column first: its name, its scores, how many runs have them."""
    names = dict.fromkeys(key.rpartition("-")[0] for key in results)
    scores = {name: [over_seeds(results, name, column) for column in columns] for name in names}

    def first(name: str) -> tuple[float, str]:
        return float(np.mean(scores[name][0])) if scores[name][0] else -1.0, name

    return [
        [name, *(cell(runs, none="diverged") for runs in scores[name]), str(len(scores[name][0]))]
        for name in sorted(names, key=first, reverse=True)
    ]


def retrieve(recipe: Recipe, embeddings: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Retrieval where the loss lives."""
    return jdml.evaluate_retrieval(normalized(recipe, embeddings), labels, recall_at=(1, 8))


def train(
    recipe: Recipe, parts: Parts, view: str, *, steps: int, seed: int, model: Any = None
) -> training.FitResult:
    """The network at its best validation, by MAP@R of a view of the labels."""

    def evaluate(embedder: Any) -> dict[str, float]:
        labels = parts.validation.views[view]
        return {"MAP@R": retrieve(recipe, embedder(parts.validation.images), labels)["MAP@R"]}

    return by_recipe.train(
        recipe,
        parts.train,
        model=model,
        steps=steps,
        seed=seed,
        evaluate=evaluate,
        evaluate_every=max(1, steps // EVALUATIONS),
        monitor="MAP@R",
        log_every=steps,
        progress=False,
    )
