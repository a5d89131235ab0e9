"""Records of the library's losses, miners, networks and data sets, one each.

Everything that lists them reads it here: the flat names, the command line and its help, the reports, the documentation
and the tests. Records are plain values that need neither JAX nor NumPy; what they stand for is named by a pointer
``"module:name"`` and imported when it is asked for (:func:`resolve`).
"""

from jdml._optional_imports import resolve
from jdml.registry.datasets import DATASETS, Count, DataSet
from jdml.registry.losses import (
    LOSSES,
    MINERS,
    REGULARIZERS,
    Loss,
    Miner,
    pair_losses,
    proxy_losses,
)
from jdml.registry.networks import NETWORKS, Images, Network, image_statistics, pretrained_networks

__all__ = [
    "DATASETS",
    "LOSSES",
    "MINERS",
    "NETWORKS",
    "REGULARIZERS",
    "Count",
    "DataSet",
    "Images",
    "Loss",
    "Miner",
    "Network",
    "image_statistics",
    "pair_losses",
    "pretrained_networks",
    "proxy_losses",
    "resolve",
]
