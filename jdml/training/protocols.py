"""The two protocols of retrieval on unseen classes: conventional, and that of *A Metric Learning Reality Check*.

A protocol trains models by a recipe and scores them on classes that none of them has seen. Each training is a run of
:func:`jdml.training.fit` in a folder of its own: a killed protocol goes on where it was.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jdml import metrics
from jdml.data import Dataset, mlrc_folds
from jdml.recipes import Recipe, make_sampler
from jdml.training import by_recipe
from jdml.training.begin import pretrained
from jdml.training.by_recipe import normalized
from jdml.training.fit_result import Embedder, FitResult
from jdml.training.preprocess import Preprocess, to_float
from jdml.training.run_config import Devices, Evaluation, RunConfig
from jdml.training.step import Pretrained

Batches = Callable[[Dataset, Any], Any]
Vectors = tuple[jax.Array, jax.Array | None]
RUN_PATIENCE = 60
FOLDS = 4
THIRDS = 3


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a protocol trains, apart from the data.

    Attributes:
        recipe: how.
        model: the network, whose output layer is called ``"head"``.
        steps: gradient steps of each model at most; None: the recipe's epochs.
        evaluate_every: steps between evaluations on held-out classes, where there are any.
        seed: of parameters, batches and augmentation.
        preprocess: what stands between stored images and the model.
        pretrained: from freshly initialized variables ``{"params", "batch_stats"}`` of the model to pretrained ones.
        batches: from a data set and its sampler to what :func:`jdml.training.fit` takes as sampler: for image files
            the input pipeline, for images in memory the sampler itself.
        recall_at: the k of R@k.
        ndcg_at: the k of nDCG@k.
        config: JSON-able: what a run's folder must agree with to be resumed. A plan holds functions, which cannot be
            compared: name here what they stand for (method, data, weights, …).
        progress: show progress bars.
        mesh: the devices that train, as of :func:`jdml.training.fit`; proxies are partitioned where these divide the
            classes.
        micro_batch: as of :func:`jdml.training.fit`.
    """

    recipe: Recipe
    model: Any
    steps: int | None = None
    evaluate_every: int = 25
    seed: int = 0
    preprocess: Preprocess = to_float
    pretrained: Pretrained | None = None
    batches: Batches = lambda dataset, sampler: sampler
    recall_at: tuple[int, ...] = (1, 2, 4, 8)
    ndcg_at: tuple[int, ...] = (8,)
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    progress: bool = True
    mesh: jax.sharding.Mesh | None = None
    micro_batch: int | None = None


class Retrieval(NamedTuple):
    """What is searched for what.

    Attributes:
        queries: the test images.
        gallery: where their like is searched; None: among the queries themselves.
    """

    queries: Dataset
    gallery: Dataset | None = None


def conventional(
    plan: Plan, train: Dataset, test: Retrieval, out_dir: str | Path | None = None
) -> dict[str, float]:
    """Train one model on all training classes, score it on the test classes.

    Nothing is chosen by the test classes: the last parameters are scored. CCP, which needs a metric to tell when a
    problem ends, holds out a quarter of the training classes and is scored at its best there.

    Args:
        plan: what is trained.
        train: the training classes.
        test: queries and gallery.
        out_dir: folder of the run; None writes nothing.

    Returns:
        ``R@k``, ``RP``, ``MAP@R``, ``nDCG@k``, ``MAP@1000`` and, where the recipe asks for it, ``NMI``.

    Raises:
        ValueError: settings that do not fit the data, naming them.

    Reference:
        Oh Song, Xiang, Jegelka & Savarese, *Deep Metric Learning via Lifted Structured Feature Embedding* (the splits).
    """
    validation = None
    if plan.recipe.has_hook:
        train, validation = next(_parts(train))
    return _one_model(plan, train, validation, test, out_dir)[1]


def mlrc(
    plan: Plan, train: Dataset, test: Retrieval, out_dir: str | Path | None = None
) -> dict[str, dict[str, float]]:
    """Train four models, each on three quarters of the training classes and stopped by the fourth.

    Args:
        plan: what is trained.
        train: the training classes.
        test: queries and gallery.
        out_dir: folder of the runs, one subfolder each; None writes nothing.

    Returns:
        ``"separated"``: the mean of the four models' metrics and, as ``step``, of the steps until each had stopped;
        ``"concatenated"``: those of their normalized embeddings side by side, normalized as each is (CCP: into the
        ball); ``"std"``: the four models' sample standard deviation.

    Raises:
        ValueError: a fold in which no class has two images to validate with, or settings that do not fit the data.

    Reference:
        Musgrave, Belongie & Lim, *A Metric Learning Reality Check*.
    """
    scores, vectors = [], []
    for number, (part, validation) in enumerate(list(_parts(train))):
        own = dataclasses.replace(plan, seed=plan.seed + number)
        folder = None if out_dir is None else Path(out_dir) / f"fold{number}"
        embeddings, measured, step = _one_model(own, part, validation, test, folder)
        vectors.append(embeddings)
        scores.append({**measured, "step": step})
    values = {name: [metrics[name] for metrics in scores] for name in scores[0]}
    return {
        "separated": {name: float(np.mean(each)) for name, each in values.items()},
        "concatenated": _score(plan, vectors, test),
        "std": {name: float(np.std(each, ddof=1)) for name, each in values.items()},
    }


def ablation(
    plan: Plan, train: Dataset, test: Retrieval, out_dir: str | Path | None = None
) -> dict[str, float]:
    """Train one model on two thirds of the training classes, stopped by the other third, as CCP's ablations are.

    Args:
        plan: what is trained.
        train: the training classes.
        test: queries and gallery.
        out_dir: folder of the run; None writes nothing.

    Returns:
        The metrics of :func:`conventional`, and ``step``, where the run had stopped.

    Raises:
        ValueError: settings that do not fit the data, naming them.

    Reference:
        Gürbüz, Can & Alatan, *Deep Metric Learning with Chance Constraints*, supplement, section 2.1.
    """
    part, validation = next(_parts(train, THIRDS))
    _, scores, step = _one_model(plan, part, validation, test, out_dir)
    return {**scores, "step": step}


def _one_model(
    plan: Plan,
    train: Dataset,
    validation: Dataset | None,
    test: Retrieval,
    out_dir: str | Path | None,
) -> tuple[Vectors, dict[str, float], float]:
    """Train a model: its embeddings of the test part, their metrics, and the step it had stopped at."""
    result = _train(plan, train, validation, None if out_dir is None else Path(out_dir))
    embeddings = _embed_test(plan, result.embedder, test)
    return embeddings, _score(plan, [embeddings], test), float(result.state.step)


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
    plan: Plan, train: Dataset, validation: Dataset | None, out_dir: Path | None
) -> FitResult:
    """One model."""
    watched = validation is not None
    recipe = plan.recipe
    if plan.steps is not None:
        recipe = dataclasses.replace(recipe, steps=plan.steps)
    return by_recipe.train(
        recipe,
        train,
        validation=validation,
        run=RunConfig(out_dir, config=plan.config),
        seed=plan.seed,
        devices=Devices(plan.mesh, micro_batch=plan.micro_batch),
        model=plan.model,
        sampler=plan.batches(train, make_sampler(recipe, train.labels, plan.seed, train.views)),
        evaluation=Evaluation(every=plan.evaluate_every, patience=RUN_PATIENCE)
        if watched
        else None,
        preprocess=plan.preprocess,
        state=None if plan.pretrained is None else pretrained(plan.pretrained),
        progress=plan.progress,
    )


def _embed_test(plan: Plan, embedder: Embedder, test: Retrieval) -> Vectors:
    """Normalized embeddings of queries and gallery."""
    queries = normalized(plan.recipe, embedder(test.queries.images))
    if test.gallery is None:
        return queries, None
    return queries, normalized(plan.recipe, embedder(test.gallery.images))


def _score(plan: Plan, vectors: Sequence[Vectors], test: Retrieval) -> dict[str, float]:
    """Retrieval with the embeddings of one model, or of several side by side."""

    def joined(parts: Sequence[Any]) -> jax.Array:
        if len(parts) == 1:
            return jnp.asarray(parts[0])
        return normalized(plan.recipe, jnp.concatenate(parts, axis=1))

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
        recall_at=plan.recall_at,
        ndcg_at=plan.ndcg_at,
        map_at=(1000,),
        map_divisor=plan.recipe.map_divisor,
    )
    scores = {name: float(value) for name, value in retrieval.items()}
    if plan.recipe.nmi:
        scores["NMI"] = float(metrics.nmi(queries, labels, key=jax.random.key(0)))
    if plan.recipe.more_clusters is not None:
        number = plan.recipe.more_clusters * len(np.unique(np.asarray(labels)))
        scores["NMI+"] = float(
            metrics.nmi(queries, labels, min(number, len(queries)), key=jax.random.key(0))
        )
    return scores
