"""Data sets read from their originals' files, batches that suit metric learning, and label noise.

Everything here is NumPy: images and labels are arrays in memory, a sampler yields row indices. What
goes onto a device, and when, is for the training loop to say.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jdml.data.dataset import Dataset
from jdml.data.digits import load_digits
from jdml.data.folds import Fold, mlrc_folds
from jdml.data.labels import corrupt_labels, parity_labels
from jdml.data.mnist import load_mnist
from jdml.data.omniglot import load_omniglot
from jdml.data.samplers import ClassBatchSampler, EpochSampler, RandomBatchSampler

__all__ = [
    "ClassBatchSampler",
    "Dataset",
    "EpochSampler",
    "Fold",
    "RandomBatchSampler",
    "corrupt_labels",
    "load",
    "mlrc_folds",
    "parity_labels",
]

_LOADERS: dict[str, Callable[..., Dataset]] = {
    "digits": load_digits,
    "mnist": load_mnist,
    "omniglot": load_omniglot,
}


def load(
    name: str, *, data_dir: str | Path | None = None, split: str = "train", **options: Any
) -> Dataset:
    """Reads a data set into memory.

    ========== ============================================= ==================================
    name       what `data_dir` holds                         views (the first is the labels)
    ========== ============================================= ==================================
    digits     nothing: the images are part of scikit-learn  digit, parity
    mnist      the four IDX files, or tfds' prepared copy    digit, parity
    omniglot   the two zips, or the folders in them          alphabet, letter
    ========== ============================================= ==================================

    Args:
        name: One of these names.
        data_dir: The folder of the data set's own files. Nothing is ever downloaded.
        split: `"train"`, `"test"` or `"all"`.
        **options: The data set's own: `image_size` (pixels, 28 by default) for omniglot.

    Returns:
        The data set, with uint8 images `[N, H, W, C]`.

    Raises:
        FileNotFoundError: If files are missing; the message says which are expected where.
        TypeError: If the data set has no such option.
        ValueError: If there is no data set of that name or no such split, or a file is damaged.

    Example:
        >>> data = load("digits", split="test")
        >>> data.images.shape, data.relabel("parity").num_classes
        ((599, 8, 8, 1), 2)
    """
    if name not in _LOADERS:
        raise ValueError(f"name must be one of {tuple(_LOADERS)}, got {name!r}")
    return _LOADERS[name](data_dir, split, **options)
