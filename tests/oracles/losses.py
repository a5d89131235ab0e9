"""The oracle of every loss under one roof: `getattr(losses, "triplet")`."""

from oracles.multi_proxy_losses import (
    contrastive_potential,
    multi_proxy_anchor,
    multi_proxy_anchor_ap,
    multi_proxy_anchor_dw,
    potential_field,
)
from oracles.pair_losses import (
    circle,
    contrastive,
    fast_ap,
    lifted_structure,
    margin,
    multi_similarity,
    n_pair,
    similarity_contrastive,
    snr_contrastive,
    triplet,
)
from oracles.proxy_losses import (
    arcface,
    center_regularizer,
    cosface,
    normalized_softmax,
    proxy_anchor,
    proxy_nca,
    proxy_nca_margin,
    proxy_nca_pp,
    soft_triple,
)

__all__ = [
    "arcface",
    "center_regularizer",
    "circle",
    "contrastive",
    "contrastive_potential",
    "cosface",
    "fast_ap",
    "lifted_structure",
    "margin",
    "multi_proxy_anchor",
    "multi_proxy_anchor_ap",
    "multi_proxy_anchor_dw",
    "multi_similarity",
    "n_pair",
    "normalized_softmax",
    "potential_field",
    "proxy_anchor",
    "proxy_nca",
    "proxy_nca_margin",
    "proxy_nca_pp",
    "similarity_contrastive",
    "snr_contrastive",
    "soft_triple",
    "triplet",
]
