"""The two protocols of retrieval on unseen classes: conventional, and that of *A Metric Learning Reality Check*.

A protocol trains models by a recipe and scores them on classes that none of them has seen. Each training is a run of
:func:`jdml.training.fit` in a folder of its own: a killed protocol goes on where it was.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jdml import metrics
from jdml.data import Dataset, mlrc_folds
from jdml.recipes import Recipe
from jdml.training import train_recipe
from jdml.training.run_config import FitResult, RunConfig
from jdml.training.train_recipe import normalized

Train = Callable[..., FitResult]
"""As :func:`jdml.training.train`: ``(recipe, data, *, validation, run, seed)``."""
Vectors = tuple[jax.Array, jax.Array | None]
RUN_PATIENCE = 60
"""Evaluations without improvement that end a run, where its recipe says nothing."""
FOLDS = 4
THIRDS = 3
RECALL_AT, NDCG_AT = (1, 2, 4, 8), (8,)


class Retrieval(NamedTuple):
    """What is searched for what.

    Attributes:
        queries: the test images.
        gallery: where their like is searched; None: among the queries themselves.
    """

    queries: Dataset
    gallery: Dataset | None = None


def conventional(
    recipe: Recipe,
    data: Dataset,
    test: Retrieval,
    run: str | Path | RunConfig | None = None,
    *,
    train: Train = train_recipe.train,
    seed: int = 0,
    recall_at: tuple[int, ...] = RECALL_AT,
    ndcg_at: tuple[int, ...] = NDCG_AT,
) -> dict[str, float]:
    """Train one model on all training classes, score it on the test classes.

    Nothing is chosen by the test classes: the last parameters are scored. CCP, which needs a metric to tell when a
    problem ends, holds out a quarter of the training classes and is scored at its best there.

    Args:
        recipe: how it is trained; ``evaluation.every`` is of evaluations on held-out classes, where there are any.
        data: the training classes.
        test: queries and gallery.
        run: folder of the run, or a :class:`jdml.training.RunConfig`; None writes nothing.
        train: what trains a model, such as ``partial(jdml.training.train, model=…, devices=…)``.
        seed: of parameters, batches and augmentation.
        recall_at: the k of R@k.
        ndcg_at: the k of nDCG@k.

    Returns:
        ``R@k``, ``RP``, ``MAP@R``, ``nDCG@k``, ``MAP@1000`` and, where the recipe asks for it, ``NMI``.

    Raises:
        ValueError: settings that do not fit the data, naming them.

    Reference:
        Oh Song, Xiang, Jegelka & Savarese, *Deep Metric Learning via Lifted Structured Feature Embedding* (the splits).
    """
    validation = None
    if recipe.loss.needs_validation:
        data, validation = next(_parts(data))
    result = _train(train, recipe, data, validation, run, seed)
    return _score(recipe, [_embed(recipe, result, test)], test, recall_at, ndcg_at)


def mlrc(
    recipe: Recipe,
    data: Dataset,
    test: Retrieval,
    run: str | Path | RunConfig | None = None,
    *,
    train: Train = train_recipe.train,
    seed: int = 0,
    recall_at: tuple[int, ...] = RECALL_AT,
    ndcg_at: tuple[int, ...] = NDCG_AT,
) -> dict[str, dict[str, float]]:
    """Train four models, each on three quarters of the training classes and stopped by the fourth.

    Args:
        recipe: how it is trained; ``evaluation.every`` is of evaluations on held-out classes, where there are any.
        data: the training classes.
        test: queries and gallery.
        run: folder of the runs, one subfolder each, or a :class:`jdml.training.RunConfig`; None writes nothing.
        train: what trains a model, such as ``partial(jdml.training.train, model=…, devices=…)``.
        seed: of parameters, batches and augmentation.
        recall_at: the k of R@k.
        ndcg_at: the k of nDCG@k.

    Returns:
        ``"separated"``: the mean of the four models' metrics and, as ``step``, of the steps until each had stopped;
        ``"concatenated"``: those of their normalized embeddings side by side, normalized as each is (CCP: into the
        ball); ``"std"``: the four models' sample standard deviation.

    Raises:
        ValueError: a fold in which no class has two images to validate with, or settings that do not fit the data.

    Reference:
        Musgrave, Belongie & Lim, *A Metric Learning Reality Check*.
    """
    run, scores, vectors = RunConfig.of(run), [], []
    for number, (part, validation) in enumerate(list(_parts(data))):
        folder = None if run.folder is None else Path(run.folder) / f"fold{number}"
        own = dataclasses.replace(run, folder=folder)
        result = _train(train, recipe, part, validation, own, seed + number)
        vectors.append(_embed(recipe, result, test))
        measured = _score(recipe, vectors[-1:], test, recall_at, ndcg_at)
        scores.append({**measured, "step": float(result.state.step)})
    values = {name: [metrics[name] for metrics in scores] for name in scores[0]}
    return {
        "separated": {name: float(np.mean(each)) for name, each in values.items()},
        "concatenated": _score(recipe, vectors, test, recall_at, ndcg_at),
        "std": {name: float(np.std(each, ddof=1)) for name, each in values.items()},
    }


def ablation(
    recipe: Recipe,
    data: Dataset,
    test: Retrieval,
    run: str | Path | RunConfig | None = None,
    *,
    train: Train = train_recipe.train,
    seed: int = 0,
    recall_at: tuple[int, ...] = RECALL_AT,
    ndcg_at: tuple[int, ...] = NDCG_AT,
) -> dict[str, float]:
    """Train one model on two thirds of the training classes, stopped by the other third, as CCP's ablations are.

    Args:
        recipe: how it is trained; ``evaluation.every`` is of evaluations on held-out classes, where there are any.
        data: the training classes.
        test: queries and gallery.
        run: folder of the run, or a :class:`jdml.training.RunConfig`; None writes nothing.
        train: what trains a model, such as ``partial(jdml.training.train, model=…, devices=…)``.
        seed: of parameters, batches and augmentation.
        recall_at: the k of R@k.
        ndcg_at: the k of nDCG@k.

    Returns:
        The metrics of :func:`conventional`, and ``step``, where the run had stopped.

    Raises:
        ValueError: settings that do not fit the data, naming them.

    Reference:
        Gürbüz, Can & Alatan, *Deep Metric Learning with Chance Constraints*, supplement, section 2.1.
    """
    part, validation = next(_parts(data, THIRDS))
    result = _train(train, recipe, part, validation, run, seed)
    scores = _score(recipe, [_embed(recipe, result, test)], test, recall_at, ndcg_at)
    return {**scores, "step": float(result.state.step)}


def _parts(train: Dataset, folds: int = FOLDS) -> Iterator[tuple[Dataset, Dataset]]:
    """Training and validation part of each fold; labels of the former are 0, 1, … without gaps."""
    classes = len(np.unique(train.labels))
    if classes < folds:
        raise ValueError(
            f"the mlrc protocol and ccp hold out a quarter of the training classes at a time, ablations a third: at "
            f"least {folds} classes must train, got {classes}"
        )
    for number, fold in enumerate(mlrc_folds(train.labels, folds)):
        part, validation = train.select(fold.train), train.select(fold.validation)
        if np.unique(validation.labels, return_counts=True)[1].max() < 2:
            raise ValueError(
                f"fold {number}: validation needs a class with at least 2 images, but each of its "
                f"{len(validation)} has one"
            )
        own = np.unique(part.labels, return_inverse=True)[1]
        yield dataclasses.replace(part, labels=own), validation


def _train(
    train: Train,
    recipe: Recipe,
    data: Dataset,
    validation: Dataset | None,
    run: str | Path | RunConfig | None,
    seed: int,
) -> FitResult:
    """Train one model, stopped by held-out classes where there are any."""
    evaluation: dict[str, int | None] = {"every": None, "patience": None}
    if validation is not None:
        evaluation = {"patience": recipe.evaluation.patience or RUN_PATIENCE}
    recipe = recipe.replace(evaluation=evaluation)
    return train(recipe, data, validation=validation, run=run, seed=seed)


def _embed(recipe: Recipe, result: FitResult, test: Retrieval) -> Vectors:
    """Return normalized embeddings of queries and gallery."""
    queries = normalized(recipe, result.embedder(test.queries.images))
    if test.gallery is None:
        return queries, None
    return queries, normalized(recipe, result.embedder(test.gallery.images))


def _score(
    recipe: Recipe,
    vectors: Sequence[Vectors],
    test: Retrieval,
    recall_at: tuple[int, ...],
    ndcg_at: tuple[int, ...],
) -> dict[str, float]:
    """Score retrieval with the embeddings of one model, or of several side by side."""

    def joined(parts: Sequence[Any]) -> jax.Array:
        if len(parts) == 1:
            return jnp.asarray(parts[0])
        return normalized(recipe, jnp.concatenate(parts, axis=1))

    queries, labels = joined([vector for vector, _ in vectors]), jnp.asarray(test.queries.labels)
    gallery = gallery_labels = None
    if test.gallery is not None:
        gallery = joined([vector for _, vector in vectors])
        gallery_labels = jnp.asarray(test.gallery.labels)
    retrieval = metrics.evaluate_retrieval(
        queries,
        labels,
        gallery,
        gallery_labels,
        recall_at=recall_at,
        ndcg_at=ndcg_at,
        map_at=(1000,),
        map_divisor=recipe.evaluation.map_divisor,
    )
    scores = {name: float(value) for name, value in retrieval.items()}
    if recipe.evaluation.nmi:
        scores["NMI"] = float(metrics.nmi(queries, labels, key=jax.random.key(0)))
    if recipe.evaluation.nmi_cluster_factor is not None:
        number = recipe.evaluation.nmi_cluster_factor * len(np.unique(np.asarray(labels)))
        scores["NMI+"] = float(
            metrics.nmi(queries, labels, min(number, len(queries)), key=jax.random.key(0))
        )
    return scores
