"""Data sets from their originals' files or prepared on first use, batches that suit metric learning, label noise.

Everything here is NumPy: images are arrays in memory, or files that are decoded when they are read; a sampler draws row
indices. The training loop moves them to devices.
"""

from jdml.data.converters import from_huggingface, from_parquet, from_rows, from_torch
from jdml.data.dataset import Dataset
from jdml.data.images import BadImageError, ImageFiles
from jdml.data.integrity import Findings, check
from jdml.data.load import IMAGE_FILES, load
from jdml.data.pipeline import Batch, ImageBatches, without_bad_images
from jdml.data.samplers import (
    AnchorBatchSampler,
    ClassBatchSampler,
    EpochSampler,
    RandomBatchSampler,
)
from jdml.data.splits import (
    Fold,
    corrupt_labels,
    mlrc_folds,
    parity_labels,
    resplit,
    split_by_class_names,
)
from jdml.data.tfds import get
from jdml.data.transforms import Crops, conventional, mlrc

__all__ = [
    "IMAGE_FILES",
    "AnchorBatchSampler",
    "BadImageError",
    "Batch",
    "ClassBatchSampler",
    "Crops",
    "Dataset",
    "EpochSampler",
    "Findings",
    "Fold",
    "ImageBatches",
    "ImageFiles",
    "RandomBatchSampler",
    "check",
    "conventional",
    "corrupt_labels",
    "from_huggingface",
    "from_parquet",
    "from_rows",
    "from_torch",
    "get",
    "load",
    "mlrc",
    "mlrc_folds",
    "parity_labels",
    "resplit",
    "split_by_class_names",
    "without_bad_images",
]
