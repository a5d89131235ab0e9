"""From a recipe to its batches."""

import numpy as np

from jdml.data import ClassBatchSampler, EpochSampler, RandomBatchSampler
from jdml.recipes.base import Recipe


def make_sampler(recipe: Recipe, labels: np.ndarray, seed: int = 0) -> EpochSampler:
    """Make what draws the batches of a recipe.

    Args:
        recipe: whose ``batch`` and ``small_classes`` are meant.
        labels: ``[N]``, of the training images.
        seed: of the draw.

    Returns:
        The sampler.

    Raises:
        ValueError: fewer classes than a batch needs.

    Example:
        >>> len(next(make_sampler(Recipe(batch=(2, 3)), np.repeat(np.arange(4), 5))))
        6
    """
    if isinstance(recipe.batch, int):
        return RandomBatchSampler(len(labels), min(recipe.batch, len(labels)), seed=seed)
    classes, samples = recipe.batch
    return ClassBatchSampler(
        labels, classes, samples, seed=seed, small_classes=recipe.small_classes
    )
