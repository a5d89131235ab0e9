"""Whether batches hold what a loss compares, and the batch to begin with, which does."""

import numpy as np

from jdml.recipes.batch import BatchConfig
from jdml.recipes.config import RecipeError
from jdml.recipes.loss import LossConfig
from jdml.recipes.shared import ROWS, SAMPLES


def usual_batch(
    batch: BatchConfig, loss: LossConfig, labels: np.ndarray, *, rows: int = ROWS
) -> BatchConfig:
    """Return the batch to begin with.

    For a proxy loss it has ``rows`` random rows; for a pair loss 4 samples of each class, more of fewer classes, and
    fewer where classes are smaller.
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
