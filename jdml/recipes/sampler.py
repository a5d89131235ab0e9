"""From a recipe to its batches."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from jdml.data import ClassBatchSampler, EpochSampler, RandomBatchSampler
from jdml.recipes.base import Recipe, RecipeError
from jdml.recipes.shared import ROWS, SAMPLES
from jdml.recipes.words import write_batch
from jdml.registry.constraints import nearest


def make_sampler(
    recipe: Recipe,
    labels: np.ndarray,
    seed: int = 0,
    views: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> EpochSampler:
    """Make what draws the batches of a recipe.

    Args:
        recipe: whose ``batch``, ``small_classes``, ``batch_within`` and ``class_power`` are meant.
        labels: ``[N]``, of the training images.
        seed: of the draw.
        views: other labels of the same images, which ``batch_within`` names.

    Returns:
        The sampler.

    Raises:
        ValueError: what only batches of classes have, fewer classes than a batch needs, or a view that there is not.

    Example:
        >>> len(next(make_sampler(Recipe(batch=(2, 3)), np.repeat(np.arange(4), 5))))
        6
    """
    check_batches(recipe, views)
    if isinstance(recipe.batch, int):
        return RandomBatchSampler(len(labels), min(recipe.batch, len(labels)), seed=seed)
    within = None if recipe.batch_within is None else views[recipe.batch_within]
    return ClassBatchSampler(
        labels,
        *recipe.batch,
        seed=seed,
        small_classes=recipe.small_classes,
        within=within,
        power=recipe.class_power,
    )


def check_batches(recipe: Recipe, views: Mapping[str, np.ndarray]) -> None:
    """Refuse what only batches of classes have, and a view that there is not.

    Args:
        recipe: the recipe.
        views: labels of the training images by name.

    Raises:
        ValueError: naming the field.

    Example:
        >>> check_batches(Recipe(batch=64, class_power=0.5), {})
        Traceback (most recent call last):
        ...
        jdml.recipes.base.RecipeError: class_power needs batch as classes x samples, such as 16x4, got 64
    """
    for name in ("batch_within", "class_power"):
        if getattr(recipe, name) is not None and isinstance(recipe.batch, int):
            raise RecipeError(
                f"{{{name}}} needs {{batch}} as classes x samples, such as 16x4, got {recipe.batch}"
            )
    view = recipe.batch_within
    if view is not None and view not in views:
        known = ", ".join(sorted(views)) or "the data set's views, of which it has none"
        raise RecipeError(
            f"{{batch_within}} must be one of {known}, got {view!r}{nearest(view, views)}"
        )


def with_usual_batch(recipe: Recipe, labels: np.ndarray, *, rows: int = ROWS) -> Recipe:
    """Give a recipe the batch that nobody has chosen: classes × samples where samples are compared with each other.

    Args:
        recipe: the recipe.
        labels: ``[N]``, of the training images.
        rows: of a batch, if there are as many.

    Returns:
        The recipe with so many rows at random for a proxy loss; for a pair loss with 4 samples of each class, more of
        fewer classes, and fewer where classes are smaller.

    Example:
        >>> with_usual_batch(Recipe(), np.arange(1000) % 100).batch
        (16, 4)
        >>> with_usual_batch(Recipe(), np.arange(1000) % 2).batch
        (2, 32)
    """
    if recipe.has_proxies:
        return replace(recipe, batch=min(rows, len(labels)))
    sizes = np.unique(labels, return_counts=True)[1]
    wanted, smallest = max(SAMPLES, rows // len(sizes)), int(sizes.min())
    if smallest > 1:
        samples = min(wanted, smallest)
    else:  # classes of one image leave places empty, others do not
        samples = min(wanted, max(2, int(np.median(sizes))))
        recipe = replace(recipe, small_classes="pad")
    return replace(recipe, batch=(min(len(sizes), rows // samples), samples))


def with_batch_that_fits(recipe: Recipe, labels: np.ndarray) -> Recipe:
    """Shrink a batch that is larger than the data: to all rows, or to all classes and the largest's samples.

    Args:
        recipe: the recipe.
        labels: ``[N]``, of the training images.

    Returns:
        The recipe.

    Example:
        >>> with_batch_that_fits(Recipe(batch=(9, 4)), np.arange(30) % 3).batch
        (3, 4)
    """
    if isinstance(recipe.batch, int):
        return replace(recipe, batch=min(recipe.batch, len(labels)))
    sizes = np.unique(labels, return_counts=True)[1]
    classes, samples = recipe.batch
    return replace(recipe, batch=(min(classes, len(sizes)), min(samples, int(sizes.max()))))


def positive_pairs(recipe: Recipe, labels: np.ndarray) -> float:
    """Expect so many pairs of images of one class in a batch.

    Args:
        recipe: whose ``batch`` is meant.
        labels: ``[N]``, of the training images.

    Returns:
        Their number: for random rows on average over all batches, for classes × samples over all groups of a class.

    Example:
        >>> positive_pairs(Recipe(batch=(2, 3)), np.repeat(np.arange(4), 6))
        6.0
        >>> positive_pairs(Recipe(batch=4), np.arange(8) // 2)
        0.8571428571428571
    """
    sizes = np.unique(labels, return_counts=True)[1].astype(float)
    if isinstance(recipe.batch, int):
        rows = min(recipe.batch, len(labels))
        of_one_class = (sizes * (sizes - 1)).sum() / max(1, len(labels) * (len(labels) - 1))
        return float(rows * (rows - 1) / 2 * of_one_class)
    classes, samples = recipe.batch
    held, power = np.minimum(sizes, samples), recipe.class_power
    drawn = np.ceil(sizes / samples) if power is None else sizes**power
    return float(classes * np.average(held * (held - 1) / 2, weights=drawn))


def check_positives(recipe: Recipe, labels: np.ndarray) -> None:
    """Refuse batches in which a pair loss has nothing to compare.

    Args:
        recipe: the recipe. Proxy losses, and batches beside a memory, have something to compare with in any batch.
        labels: ``[N]``, of the training images.

    Raises:
        ValueError: no two images of a class in any batch, or no two of different classes.

    Example:
        >>> check_positives(Recipe(batch=(20, 1)), np.arange(80) % 20)
        Traceback (most recent call last):
        ...
        jdml.recipes.base.RecipeError: batch 20x1 has no two images of one class: triplet, a pair loss, would learn \
nothing; 16x4 has 16 classes with 4 images each
    """
    if recipe.has_proxies or recipe.memory:
        return
    told = f"{{batch}} {write_batch(recipe.batch)} has no two images of"
    pair = f"{recipe.loss}, a pair loss, would learn nothing"
    sizes = np.unique(labels, return_counts=True)[1]
    if sizes.max() < 2:
        raise RecipeError(
            f"{told} one class: each of the {len(sizes)} classes that train has one image, and {pair}; a proxy loss "
            "such as proxy_anchor can"
        )
    usual = with_usual_batch(recipe, labels).batch
    instead = f"{write_batch(usual)} has {usual[0]} classes with {usual[1]} images each"  # type: ignore[index]
    if positive_pairs(recipe, labels) == 0:
        raise RecipeError(f"{told} one class: {pair}; {instead}")
    if isinstance(recipe.batch, tuple) and recipe.batch[0] == 1:
        raise RecipeError(f"{told} different classes: {pair}; {instead}")
