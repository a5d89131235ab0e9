"""jdml: deep metric learning in JAX.

Pure, jitted losses, miners and retrieval metrics that fit into any JAX training code, and the training loop, data
sets and experiments that reproduce five papers with them. Light to import: every room is imported on first use, and
JAX with it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jdml import ccp as ccp
    from jdml import cli as cli
    from jdml import data as data
    from jdml import fields, losses, memory, metrics, mining, ops
    from jdml import flows as flows
    from jdml import models as models
    from jdml import objectives as objectives
    from jdml import optim as optim
    from jdml import recipes as recipes
    from jdml import report as report
    from jdml import testing as testing
    from jdml import training as training
    from jdml.losses import (
        arcface_loss,
        both_ways,
        center_regularizer,
        circle_loss,
        contrastive_loss,
        contrastive_potential_loss,
        cosface_loss,
        fast_ap_loss,
        info_nce_loss,
        lifted_structure_loss,
        margin_loss,
        matryoshka,
        multi_proxy_anchor_ap_loss,
        multi_proxy_anchor_dw_loss,
        multi_proxy_anchor_loss,
        multi_similarity_loss,
        n_pair_loss,
        nca_loss,
        nir_loss,
        normalized_softmax_loss,
        potential_field_loss,
        proxy_anchor_loss,
        proxy_nca_loss,
        proxy_nca_margin_loss,
        proxy_nca_pp_loss,
        recall_at_k_loss,
        sigmoid_contrastive_loss,
        similarity_contrastive_loss,
        smooth_ap_loss,
        snr_contrastive_loss,
        soft_triple_loss,
        subcenter_arcface_loss,
        sup_con_loss,
        triplet_loss,
    )
    from jdml.metrics import evaluate_retrieval, nearest
    from jdml.mining import Pairs, all_pairs, chain, easy_positive
    from jdml.ops import ball, checked, mean, mean_nonzero, sphere, total, trimmed_mean

__version__ = "0.1.0"

_ROOMS = (
    "ccp",
    "cli",
    "data",
    "fields",
    "flows",
    "losses",
    "memory",
    "metrics",
    "mining",
    "models",
    "objectives",
    "ops",
    "optim",
    "recipes",
    "report",
    "testing",
    "training",
)
_ROOMS_OF_FLAT_NAMES = ("losses", "metrics", "mining", "ops")

__all__ = [
    "Pairs",
    "all_pairs",
    "arcface_loss",
    "ball",
    "both_ways",
    "center_regularizer",
    "chain",
    "checked",
    "circle_loss",
    "contrastive_loss",
    "contrastive_potential_loss",
    "cosface_loss",
    "easy_positive",
    "evaluate_retrieval",
    "fast_ap_loss",
    "fields",
    "info_nce_loss",
    "lifted_structure_loss",
    "losses",
    "margin_loss",
    "matryoshka",
    "mean",
    "mean_nonzero",
    "memory",
    "metrics",
    "mining",
    "multi_proxy_anchor_ap_loss",
    "multi_proxy_anchor_dw_loss",
    "multi_proxy_anchor_loss",
    "multi_similarity_loss",
    "n_pair_loss",
    "nca_loss",
    "nearest",
    "nir_loss",
    "normalized_softmax_loss",
    "ops",
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
    "sphere",
    "subcenter_arcface_loss",
    "sup_con_loss",
    "total",
    "trimmed_mean",
    "triplet_loss",
]


if not TYPE_CHECKING:  # which knows all names from above, and refuses others

    def __getattr__(name: str) -> Any:
        """Import a room, or the room of a flat name, when it is first used."""
        if name in _ROOMS:
            return importlib.import_module(f"jdml.{name}")
        if name in __all__:
            for room in _ROOMS_OF_FLAT_NAMES:
                names = vars(importlib.import_module(f"jdml.{room}"))
                if name in names:
                    return globals().setdefault(name, names[name])
        raise AttributeError(f"module 'jdml' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
