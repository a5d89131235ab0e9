"""Whether batches hold what a loss compares, and the batch to begin with, which does."""

import numpy as np

from jdml.recipes.batch import BatchConfig
from jdml.recipes.config import RecipeError
from jdml.recipes.loss import LossConfig
from jdml.recipes.shared import ROWS, SAMPLES


def usual_batch(
    batch: BatchConfig, loss: LossConfig, labels: np.ndarray, *, rows: int = ROWS
) -> BatchConfig:
    """Return the batch to begin with: classes × samples where samples are compared with each other.

    Args:
        batch: whose other values are kept.
        loss: the loss.
        labels: ``[N]``, of the training images.
        rows: of a batch, if there are as many.

    Returns:
        For a proxy loss ``rows`` random rows; for a pair loss 4 samples of each class, more of fewer classes, and
        fewer where classes are smaller.

    Example:
        >>> str(usual_batch(BatchConfig(), LossConfig(), np.arange(1000) % 100))
        '16x4'
        >>> str(usual_batch(BatchConfig(), LossConfig(), np.arange(1000) % 2))
        '2x32'
    """
    if loss.has_proxies:
        return batch.replace(size=min(rows, len(labels)))
    sizes = np.unique(labels, return_counts=True)[1]
    wanted, smallest = max(SAMPLES, rows // len(sizes)), int(sizes.min())
    if smallest > 1:
        samples = min(wanted, smallest)
    else:  # classes of one image leave places empty, others do not
        samples = min(wanted, max(2, int(np.median(sizes))))
        batch = batch.replace(on_small_class="pad")
    return batch.replace(classes=min(len(sizes), rows // samples), samples_per_class=samples)


def check_positives(batch: BatchConfig, loss: LossConfig, labels: np.ndarray) -> None:
    """Refuse batches in which a pair loss has nothing to compare.

    Proxy losses, and batches with a memory, have something to compare with in any batch.

    Args:
        batch: the batch.
        loss: the loss.
        labels: ``[N]``, of the training images.

    Raises:
        ValueError: no two images of a class in any batch, or no two of different classes.

    Example:
        >>> check_positives(BatchConfig(classes=20, samples_per_class=1), LossConfig(), np.arange(80) % 20)
        Traceback (most recent call last):
        ...
        jdml.recipes.config.RecipeError: batch 20x1 has no two images of one class: triplet, a pair loss, would learn \
nothing; 16x4 has 16 classes with 4 images each
    """
    if loss.has_proxies or loss.memory_size:
        return
    nothing = f"{{batch}} {batch} has no two images of"
    pair = f"{loss.name}, a pair loss, would learn nothing"
    sizes = np.unique(labels, return_counts=True)[1]
    if sizes.max() < 2:
        raise RecipeError(
            f"{nothing} one class: each of the {len(sizes)} classes that train has one image, and {pair}; "
            "a proxy loss such as proxy_anchor can"
        )
    usual = usual_batch(batch, loss, labels)
    instead = f"{usual} has {usual.classes} classes with {usual.samples_per_class} images each"
    if batch.expected_positive_pairs(labels) == 0:
        raise RecipeError(f"{nothing} one class: {pair}; {instead}")
    if batch.classes == 1:
        raise RecipeError(f"{nothing} different classes: {pair}; {instead}")
