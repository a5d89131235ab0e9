"""The protocols of retrieval on unseen classes: conventional, that of *A Metric Learning Reality Check*, ablation."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from jdml import metrics
from jdml.data import Dataset, mlrc_folds
from jdml.ops.checks import default_of, one_of
from jdml.recipes import Recipe
from jdml.recipes.papers import Protocol
from jdml.training import train_recipe
from jdml.training.run_config import FitResult, RunConfig, as_config
from jdml.training.train_recipe import normalized

Train = Callable[..., FitResult]
"""As :func:`jdml.training.train`: ``(recipe, data, *, validation, run, seed)``."""
RUN_PATIENCE = 60
"""Evaluations without improvement that end a run, if its recipe has no patience."""
FOLDS = 4


class Retrieval(NamedTuple):
    """The images that search, those that are searched (None: the other queries), the k of R@k and of nDCG@k."""

    queries: Dataset
    gallery: Dataset | None = None
    recall_at: tuple[int, ...] = default_of(metrics.evaluate_retrieval, "recall_at")
    ndcg_at: tuple[int, ...] = (8,)

    @property
    def parts(self) -> list[Dataset]:
        """The queries and, if there is one, the gallery."""
        return [self.queries] if self.gallery is None else [self.queries, self.gallery]


def run_protocol(
    protocol: Protocol,
    recipe: Recipe,
    data: Dataset,
    test: Retrieval,
    run: str | Path | RunConfig | None = None,
    *,
    train: Train = train_recipe.train,
    seed: int = 0,
) -> dict[str, dict[str, float]]:
    """Train models by a recipe on classes ``data``, score them on unseen classes, and return metrics by row.

    ``"conventional"``: one model on all training classes, scored with its last parameters; CCP, which needs a metric to
    end a problem, holds out a quarter of the classes and is scored at its best there. ``"mlrc"``, of Musgrave, Belongie
    & Lim, *A Metric Learning Reality Check*: four models, each on three quarters of the training classes and stopped by
    the fourth; ``"concatenated"`` is of their normalized embeddings side by side, normalized as each is. ``"ablation"``
    of CCP's supplement, section 2.1: one model on two thirds of the training classes, stopped by the other third.
    """
    one_of("protocol", protocol, get_args(Protocol))
    run, scores, vectors = as_config(RunConfig, run), [], []
    parts: list[tuple[Dataset, Dataset | None]] = [(data, None)]
    evaluation: dict[str, int | None] = {"every": None, "patience": None}
    if protocol != "conventional" or recipe.loss.needs_validation:
        folds = _parts(data, 3 if protocol == "ablation" else FOLDS)
        parts = [*itertools.islice(folds, FOLDS if protocol == "mlrc" else 1)]
        evaluation = {"patience": recipe.evaluation.patience or RUN_PATIENCE}
    recipe = recipe.replace(evaluation=evaluation)
    for number, (part, validation) in enumerate(parts):
        own = run
        if protocol == "mlrc" and run.folder is not None:
            own = dataclasses.replace(run, folder=Path(run.folder) / f"fold{number}")
        result = train(recipe, part, validation=validation, run=own, seed=seed + number)
        vectors.append([normalized(recipe, result.embedder(part.images)) for part in test.parts])
        step = {} if protocol == "conventional" else {"step": float(result.state.step)}
        scores.append({**_score(recipe, vectors[-1:], test), **step})
    if protocol != "mlrc":
        return {"ours": scores[0]}
    values = {name: [metrics[name] for metrics in scores] for name in scores[0]}
    return {
        "separated": {name: float(np.mean(each)) for name, each in values.items()},
        "concatenated": _score(recipe, vectors, test),
        "std": {name: float(np.std(each, ddof=1)) for name, each in values.items()},
    }


def _parts(train: Dataset, folds: int) -> Iterator[tuple[Dataset, Dataset]]:
    """Training and validation part of each fold; labels of the former are 0, 1, … without gaps."""
    for number, fold in enumerate(mlrc_folds(train.labels, folds)):
        part, validation = train.select(fold.train), train.select(fold.validation)
        if np.unique(validation.labels, return_counts=True)[1].max() < 2:
            raise ValueError(
                f"fold {number}: validation must have a class with at least 2 images, each has 1"
            )
        own = np.unique(part.labels, return_inverse=True)[1]
        yield dataclasses.replace(part, labels=own), validation


def _score(
    recipe: Recipe, vectors: Sequence[Sequence[jax.Array]], test: Retrieval
) -> dict[str, float]:
    """Score retrieval with the embeddings of one model, or of several side by side."""
    joined = [
        of_part[0] if len(of_part) == 1 else normalized(recipe, jnp.concatenate(of_part, axis=1))
        for of_part in zip(*vectors, strict=True)
    ]
    labels = [jnp.asarray(part.labels) for part in test.parts]
    retrieval = metrics.evaluate_retrieval(
        *itertools.chain(*zip(joined, labels, strict=True)),
        recall_at=test.recall_at,
        ndcg_at=test.ndcg_at,
        map_at=(1000,),
        map_divisor=recipe.evaluation.map_divisor,
    )
    scores = {name: float(value) for name, value in retrieval.items()}
    if recipe.evaluation.nmi:
        scores["NMI"] = metrics.nmi(joined[0], labels[0])
    if recipe.evaluation.nmi_cluster_factor is not None:
        clusters = recipe.evaluation.nmi_cluster_factor * len(np.unique(labels[0]))
        scores["NMI+"] = metrics.nmi(joined[0], labels[0], min(clusters, len(joined[0])))
    return scores
