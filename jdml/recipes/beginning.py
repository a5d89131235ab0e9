"""The recipe to begin with on photographs of one's own, for which nobody has tuned."""

from dataclasses import replace
from typing import Literal

import numpy as np

from jdml.recipes.base import Recipe
from jdml.recipes.sampler import ROWS, with_usual_batch
from jdml.registry.constraints import one_of

LOSS, STEPS = "circle", 1000
SHARE_OF_WARMUP = 20
"""One step in so many is one in which the rates still go up."""
LARGE, MOST = 100, 40
"""A class of so many images may hold several modes; so many of them in a batch are enough."""
Network = Literal["small", "untrained", "pretrained", "frozen"]
RATES: dict[Network, float] = {
    "small": 3e-3,
    "untrained": 1e-3,
    "pretrained": 1e-4,
    "frozen": 3e-4,
}
"""Of the network, by what it knows when it begins; frozen: where nothing but the head, or low-rank changes, learns."""


def recommended(
    labels: np.ndarray | None = None,
    *,
    network: Network = "untrained",
    steps: int = STEPS,
    rows: int = ROWS,
) -> Recipe:
    """Give the recipe to begin with: circle loss, a cosine, and batches and positives by the size of the classes.

    ``jdml train`` takes it for photographs where neither a loss nor a method is named. What it is measured on, and what
    it is not, stands in ``experiments/recommended``.

    Args:
        labels: ``[N]``, of the training images; None leaves batch and miner open (:func:`for_classes`).
        network: ``"small"``, for small images, which begins untrained; ``"untrained"``, another that does;
            ``"pretrained"``, all of which learns, slowly, and whose head begins on principal directions; ``"frozen"``,
            a pretrained one of which only the head, or changes of low rank, learn.
        steps: of training; in a twentieth of them the rates go up.
        rows: of a batch.

    Returns:
        The recipe. Anything of it may be replaced.

    Raises:
        ValueError: another word for the network.

    Example:
        >>> recipe = recommended(np.repeat(np.arange(50), 60), network="pretrained")
        >>> recipe.loss, recipe.batch, recipe.miner, recipe.rate, recipe.head
        ('circle', (16, 4), 'none', 0.0001, 'principal')
        >>> recommended(np.repeat(np.arange(9), 500)).miner
        'easy_positive'
    """
    one_of("network", network, RATES)
    recipe = Recipe(
        loss=LOSS,
        settings={"margin": 0.1, "gamma": 100.0},
        head="principal" if network in ("pretrained", "frozen") else "random",
        batch=rows,
        small_classes="refuse",
        steps=steps,
        rate=RATES[network],
        rate_warmup=steps // SHARE_OF_WARMUP,
        schedule="cosine",
    )
    return recipe if labels is None else for_classes(recipe, labels, rows=rows)


def for_classes(recipe: Recipe, labels: np.ndarray, *, rows: int = ROWS) -> Recipe:
    """Choose the batch, and which positives a pair loss pulls, by the size of the classes.

    Classes of a hundred images or more may hold several modes, which a loss that pulls every positive pair merges: they
    have a quarter of the batch each, at most 40 images, and each image is pulled to the nearest of its class.

    Args:
        recipe: of a pair loss.
        labels: ``[N]``, of the training images.
        rows: of a batch.

    Returns:
        The recipe with a batch and a miner.
    """
    sizes = np.unique(labels, return_counts=True)[1]
    if np.median(sizes) < LARGE:
        return with_usual_batch(recipe, labels, rows=rows)
    samples = min(MOST, rows // 4)
    return with_usual_batch(
        replace(recipe, miner="easy_positive"), labels, rows=rows, samples=samples
    )
