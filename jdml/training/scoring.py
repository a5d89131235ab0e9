"""Scores of a part of a data set: embed, rank, measure by every labelling."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax.typing import ArrayLike

from jdml.data import Dataset
from jdml.losses.comparison import Normalize
from jdml.metrics import evaluate_retrieval
from jdml.ops import sphere
from jdml.registry import DATASETS, DataSet


def recall_ranks(name: str) -> tuple[int, ...]:
    """Look up the ranks k at which papers give R@k on a data set.

    Args:
        name: the data set's name, as for :func:`jdml.data.load`.

    Returns:
        The ranks.
    """
    return DATASETS[name].recall_at if name in DATASETS else DataSet.recall_at


def ndcg_ranks(name: str) -> tuple[int, ...]:
    """Look up the ranks k at which papers give nDCG@k on a data set."""
    return DATASETS[name].ndcg_at if name in DATASETS else DataSet.ndcg_at


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
    queried = prepare(jnp.asarray(embed(queries.images)))
    searched = None if gallery is None else prepare(jnp.asarray(embed(gallery.images)))
    scores: dict[str, float] = {}
    for view, labels in queries.views.items():
        others = None if gallery is None else jnp.asarray(gallery.views[view])
        measured = evaluate_retrieval(
            queried, jnp.asarray(labels), searched, others, recall_at=tuple(recall_at)
        )
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
