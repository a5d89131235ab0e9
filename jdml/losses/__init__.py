"""Pure, jitted losses for deep metric learning.

One signature for all: arrays first, everything else by keyword. Hyper-parameters are traced, so sweeping them
recompiles nothing; ``where`` masks rows, ``weights`` weights them, ``reduce_fn`` reduces (None: not at all). Values
and gradients are finite for every finite input, and results are float32 (float64 for float64 inputs) whatever the
embeddings' type.

Rows, references and classes may lie on any mesh, with ``Auto`` or ``Explicit`` axes; inside a ``jax.shard_map`` of
one's own ``axis_name=`` says over which axis the batch is spread. Large batches are compared in blocks
(``anchor_block``, ``class_block``).

Not here are histogram and ranked list losses, which FastAP, SmoothAP and multi-similarity have overtaken; P2SGrad,
which is no loss but a gradient; the manifold loss, which needs a graph of the data set; dynamic soft margin, whose
histogram is a state; VICReg and its kind, which learn without labels or pairs.
"""

from typing import TYPE_CHECKING

from jdml.losses.anchors import *
from jdml.losses.assignment import *
from jdml.losses.comparison import *
from jdml.losses.composition import *
from jdml.losses.contrastive import *
from jdml.losses.multi_proxy import *
from jdml.losses.nir import *
from jdml.losses.pairs import *
from jdml.losses.potential import *
from jdml.losses.proxies import *
from jdml.losses.ranking import *
from jdml.losses.softmax import *
from jdml.losses.tuples import *

if not TYPE_CHECKING:  # which takes the names that the stars bring
    __all__ = sorted(
        name
        for name, value in globals().items()
        if str(getattr(value, "__module__", "")).startswith("jdml.losses.")
    )
