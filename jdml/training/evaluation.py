"""Evaluations of a run: their embedder, their schedule, and scores of a data set by its labellings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jdml.data import Dataset
from jdml.distributed import Tree
from jdml.losses.comparison import Normalize
from jdml.metrics import evaluate_retrieval
from jdml.models.adapters import Model
from jdml.models.embedding import Preprocess, check_as_trained, embed, standard
from jdml.ops import checks, sphere
from jdml.registry import DATASETS, DataSet
from jdml.training.step import TrainState


class Embedder(NamedTuple):
    """The model with the parameters of a step: call it on images to get embeddings.

    Attributes:
        model: the model.
        state: the train state. Its arrays are the loop's: copy what you need after the call.
        preprocess: as in training.
        input: shape, type and range of the training images; None if unknown.
    """

    model: Model
    state: TrainState
    preprocess: Preprocess = standard
    input: Mapping[str, Any] | None = None

    def __call__(self, images: Tree) -> np.ndarray:
        """Embed images ``[N, H, W, C]`` in evaluation mode as NumPy ``[N, D]``.

        Raises:
            TypeError: integers other than uint8.
            ValueError: photographs in another range than the training images.
        """
        check_as_trained(images, self.input or {}, self.preprocess)
        params, stats = self.state.params["model"], self.state.batch_stats
        return embed(self.model, params, stats, images, preprocess=self.preprocess)


Evaluate = Callable[[Embedder], Mapping[str, float]]


@dataclass(frozen=True)
class Evaluation:
    """The evaluations of a run, and its early stopping.

    Attributes:
        function: called with an :class:`jdml.training.Embedder`; returns metrics by name. None: nothing is evaluated;
            for :func:`jdml.training.train` retrieval in ``validation``.
        every: steps between evaluations; there is one after the last step, too.
        monitor: the metric, larger is better, that chooses the best parameters.
        patience: evaluations without improvement of ``monitor`` after which the run ends.

    Raises:
        TypeError: a function that cannot be called, a number that is no integer.
        ValueError: a number below 1.
    """

    function: Evaluate | None = None
    every: int = 100
    monitor: str | None = None
    patience: int | None = None

    def __post_init__(self) -> None:
        checks.check_function("function", self.function)
        checks.count("every", self.every)
        checks.optional(checks.count)("patience", self.patience)


def recall_ranks(name: str) -> tuple[int, ...]:
    """Look up the ranks k at which papers give R@k on a data set.

    Args:
        name: the data set's name, as for :func:`jdml.data.load`.

    Returns:
        The ranks.
    """
    return DATASETS[name].recall_at if name in DATASETS else DataSet.recall_at


def score(
    embed: Callable[[Any], ArrayLike],
    queries: Dataset,
    gallery: Dataset | None = None,
    *,
    normalize: Normalize | None = sphere,
    recall_at: Sequence[int] = (1, 2, 4, 8),
) -> dict[str, float]:
    """Measure retrieval by all labellings of a data set, with one embedding of each image.

    Args:
        embed: images ``[N, H, W, C]`` to embeddings ``[N, D]``, such as an :class:`jdml.training.Embedder`.
        queries: the images that search.
        gallery: the images that are searched, labelled as the queries are (In-shop's gallery). Default: the
            queries, each among all others.
        normalize: what is done to the embeddings before they are compared; None for nothing.
        recall_at: k of ``"R@k"``.

    Returns:
        ``"VIEW/R@k"`` for each k, ``"VIEW/RP"`` and ``"VIEW/MAP@R"``, as fractions.
    """
    prepare = normalize or (lambda vectors: vectors)
    parts = [part for part in (queries, gallery) if part is not None]
    vectors = [prepare(jnp.asarray(embed(part.images))) for part in parts]
    scores: dict[str, float] = {}
    for view in queries.views:
        columns = [
            x for v, p in zip(vectors, parts, strict=True) for x in (v, jnp.asarray(p.views[view]))
        ]
        measured = evaluate_retrieval(*columns, recall_at=tuple(recall_at))
        scores |= {f"{view}/{name}": float(measured[name]) for name in metric_names(recall_at)}
    return scores


def metric_names(recall_at: Sequence[int]) -> tuple[str, ...]:
    """Name the metrics that :func:`score` gives of each labelling.

    Args:
        recall_at: k of ``"R@k"``.

    Returns:
        Their names.
    """
    return (*(f"R@{k}" for k in recall_at), "RP", "MAP@R")
