"""Pure, jitted losses for deep metric learning.

One signature for all: arrays first, everything else by keyword. Hyper-parameters are traced, so sweeping them
recompiles nothing; ``where`` masks rows, ``weights`` weights them, ``reduce_fn`` reduces (None: not at all). Values
and gradients are finite for every finite input, and results are float32 (float64 for float64 inputs) whatever the
embeddings' type.

Rows, references and classes may lie on any mesh, with ``Auto`` or ``Explicit`` axes; inside a ``jax.shard_map`` of
one's own ``axis_name=`` says over which axis the batch is spread. Large batches are compared in blocks
(``anchor_block``, ``class_block``).

Some losses that other libraries have are not here: histogram and ranked list losses, which later ones of the same kind
(FastAP, SmoothAP; multi-similarity) have overtaken; P2SGrad, a softmax whose gradient is chosen and which is no loss
of its own; the manifold loss, which needs a graph of the whole data set; dynamic soft margin, whose histogram is a
state; VICReg and its kind, which learn without labels or pairs: self-supervision is another library's.
"""

from jdml.losses.anchors import Anchors, Comparison
from jdml.losses.assignment import Assignment, assign
from jdml.losses.comparison import compare
from jdml.losses.composition import both_ways, matryoshka
from jdml.losses.contrast import (
    info_nce_loss,
    nca_loss,
    sigmoid_contrastive_loss,
    sup_con_loss,
)
from jdml.losses.isotropy import nir_loss
from jdml.losses.multi_proxy import (
    multi_proxy_anchor_ap_loss,
    multi_proxy_anchor_dw_loss,
    multi_proxy_anchor_loss,
)
from jdml.losses.pairs import (
    contrastive_loss,
    margin_loss,
    multi_similarity_loss,
    similarity_contrastive_loss,
    triplet_loss,
)
from jdml.losses.potential import (
    contrastive_potential_loss,
    field_activity,
    potential_field_loss,
)
from jdml.losses.proxies import (
    center_regularizer,
    proxy_anchor_loss,
    proxy_nca_loss,
    proxy_nca_margin_loss,
    proxy_nca_pp_loss,
    soft_triple_loss,
)
from jdml.losses.ranking import fast_ap_loss, recall_at_k_loss, smooth_ap_loss
from jdml.losses.softmax import (
    arcface_loss,
    cosface_loss,
    normalized_softmax_loss,
    subcenter_arcface_loss,
)
from jdml.losses.tuples import (
    circle_loss,
    lifted_structure_loss,
    n_pair_loss,
    snr_contrastive_loss,
)

__all__ = [
    "Anchors",
    "Assignment",
    "Comparison",
    "arcface_loss",
    "assign",
    "both_ways",
    "center_regularizer",
    "circle_loss",
    "compare",
    "contrastive_loss",
    "contrastive_potential_loss",
    "cosface_loss",
    "fast_ap_loss",
    "field_activity",
    "info_nce_loss",
    "lifted_structure_loss",
    "margin_loss",
    "matryoshka",
    "multi_proxy_anchor_ap_loss",
    "multi_proxy_anchor_dw_loss",
    "multi_proxy_anchor_loss",
    "multi_similarity_loss",
    "n_pair_loss",
    "nca_loss",
    "nir_loss",
    "normalized_softmax_loss",
    "potential_field_loss",
    "proxy_anchor_loss",
    "proxy_nca_loss",
    "proxy_nca_margin_loss",
    "proxy_nca_pp_loss",
    "recall_at_k_loss",
    "sigmoid_contrastive_loss",
    "similarity_contrastive_loss",
    "smooth_ap_loss",
    "snr_contrastive_loss",
    "soft_triple_loss",
    "subcenter_arcface_loss",
    "sup_con_loss",
    "triplet_loss",
]
