"""Every loss of `jdml.losses` in one place; a new loss joins the property matrix by one line.

`Spec(kind, oracle, …)` describes a loss to the property checks and the value tests.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

import jdml
from jdml.registry import LOSSES
from jdml.testing import LossCase
from oracles import common_losses, multi_proxy_losses, pair_losses, proxy_losses


@dataclass(frozen=True)
class Spec:
    """How a loss is tested.

    Args:
        kind: "pair" or "proxy".
        oracle: Its restatement in `tests/oracles`.
        settings: Keywords that both the loss and the oracle take, other than the defaults.
        shape: Of the unreduced values: "B", "BR", "C" or "BCK" (all charges).
        skip: Property checks that do not hold by definition.
        proxies_per_class: K in the property checks; None for proxies `[C, D]`.
    """

    kind: str
    oracle: Callable[..., Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    shape: str = "B"
    skip: tuple[str, ...] = ()
    proxies_per_class: int | None = None


MPA = {"alpha": 8.0, "delta": 0.2, "gamma": 0.3, "tau": 0.4}

# Circle loss holds its own pair weights constant, so its gradient is not its value's slope.
REGISTRY: Mapping[str, Spec] = {
    "contrastive_loss": Spec(
        "pair", pair_losses.contrastive, {"positive_margin": 0.2, "negative_margin": 1.1}, "BR"
    ),
    "similarity_contrastive_loss": Spec(
        "pair", pair_losses.similarity_contrastive, {"negative_margin": 0.1}
    ),
    "triplet_loss": Spec("pair", pair_losses.triplet, {"margin": 0.3}),
    "margin_loss": Spec("pair", pair_losses.margin, {"beta": 1.1, "alpha": 0.3}, "BR"),
    "multi_similarity_loss": Spec(
        "pair", pair_losses.multi_similarity, {"alpha": 3.0, "beta": 20.0, "base": 0.4}
    ),
    "n_pair_loss": Spec("pair", pair_losses.n_pair),
    "lifted_structure_loss": Spec(
        "pair", pair_losses.lifted_structure, {"negative_margin": 0.8, "positive_margin": 0.1}
    ),
    "circle_loss": Spec(
        "pair", pair_losses.circle, {"margin": 0.3, "gamma": 20.0}, skip=("gradients", "references")
    ),
    "fast_ap_loss": Spec("pair", pair_losses.fast_ap, {"num_bins": 7}),
    "snr_contrastive_loss": Spec(
        "pair", pair_losses.snr_contrastive, {"positive_margin": 0.4, "negative_margin": 2.1}, "BR"
    ),
    "info_nce_loss": Spec("pair", common_losses.info_nce, {"temperature": 0.3}),
    "sup_con_loss": Spec("pair", common_losses.sup_con, {"temperature": 0.4}),
    "sigmoid_contrastive_loss": Spec(
        "pair", common_losses.sigmoid_contrastive, {"scale": 4.0, "bias": -1.5}
    ),
    "nca_loss": Spec("pair", common_losses.nca, {"scale": 2.0}),
    "smooth_ap_loss": Spec("pair", common_losses.smooth_ap, {"temperature": 0.2}),
    "recall_at_k_loss": Spec(
        "pair", common_losses.recall_at_k, {"k": (1, 3), "temperature": 0.2, "k_temperature": 0.8}
    ),
    "proxy_nca_loss": Spec("proxy", proxy_losses.proxy_nca, {"scale": 3.0}),
    "proxy_nca_pp_loss": Spec("proxy", proxy_losses.proxy_nca_pp, {"temperature": 0.3}),
    "proxy_nca_margin_loss": Spec(
        "proxy", proxy_losses.proxy_nca_margin, {"alpha": 8.0, "delta": 0.2}
    ),
    "proxy_anchor_loss": Spec(
        "proxy", proxy_losses.proxy_anchor, {"alpha": 8.0, "delta": 0.2}, "C"
    ),
    "soft_triple_loss": Spec(
        "proxy",
        proxy_losses.soft_triple,
        {"scale": 10.0, "gamma": 0.3, "margin": 0.05, "tau": 0.4},
        proxies_per_class=1,
    ),
    "normalized_softmax_loss": Spec("proxy", proxy_losses.normalized_softmax, {"temperature": 0.2}),
    "cosface_loss": Spec("proxy", proxy_losses.cosface, {"scale": 16.0, "margin": 0.2}),
    "arcface_loss": Spec("proxy", proxy_losses.arcface, {"scale": 16.0, "margin": 0.4}),
    "subcenter_arcface_loss": Spec(
        "proxy",
        common_losses.subcenter_arcface,
        {"scale": 16.0, "margin": 0.4},
        proxies_per_class=2,
    ),
    "multi_proxy_anchor_loss": Spec(
        "proxy", multi_proxy_losses.multi_proxy_anchor, MPA, "C", proxies_per_class=2
    ),
    "multi_proxy_anchor_dw_loss": Spec(
        "proxy", multi_proxy_losses.multi_proxy_anchor_dw, MPA, proxies_per_class=2
    ),
    "multi_proxy_anchor_ap_loss": Spec(
        "proxy", multi_proxy_losses.multi_proxy_anchor_ap, MPA, proxies_per_class=2
    ),
    "potential_field_loss": Spec(
        "proxy",
        multi_proxy_losses.potential_field,
        {"delta": 0.9, "alpha": 2.5, "repulsion_delta": 1.3, "min_distance": 0.01},
        "BCK",
        proxies_per_class=2,
    ),
    "contrastive_potential_loss": Spec(
        "proxy",
        multi_proxy_losses.contrastive_potential,
        {"delta": 1.1},
        "BCK",
        proxies_per_class=2,
    ),
}


def loss(name: str) -> Callable[..., Any]:
    """Return the loss of that name in the public package."""
    return getattr(jdml, name)


# `make test` runs one loss of each module, `make test-all` all of them.
FIRST = set({r.module: f"{name}_loss" for name, r in reversed(LOSSES.items())}.values())


def each(names: Iterable[str]) -> list[Any]:
    """Parametrize by losses; all but the first of each module are slow."""
    return [pytest.param(n, marks=[] if n in FIRST else [pytest.mark.slow]) for n in names]


def case(name: str) -> LossCase:
    """Return the batch on which the loss's properties are checked."""
    spec = REGISTRY[name]
    return LossCase(loss(name), spec.kind, proxies_per_class=spec.proxies_per_class)


# The names in pytorch-metric-learning of the losses that test_pml_parity.py compares.
PEERS: Mapping[str, str] = {
    "arcface_loss": "ArcFaceLoss",
    "circle_loss": "CircleLoss",
    "contrastive_loss": "ContrastiveLoss",
    "cosface_loss": "CosFaceLoss",
    "fast_ap_loss": "FastAPLoss",
    "info_nce_loss": "NTXentLoss",
    "lifted_structure_loss": "LiftedStructureLoss",
    "margin_loss": "MarginLoss",
    "multi_similarity_loss": "MultiSimilarityLoss",
    "n_pair_loss": "NPairsLoss",
    "nca_loss": "NCALoss",
    "normalized_softmax_loss": "NormalizedSoftmaxLoss",
    "proxy_anchor_loss": "ProxyAnchorLoss",
    "proxy_nca_pp_loss": "ProxyNCALoss",
    "smooth_ap_loss": "SmoothAPLoss",
    "snr_contrastive_loss": "SignalToNoiseRatioContrastiveLoss",
    "soft_triple_loss": "SoftTripleLoss",
    "subcenter_arcface_loss": "SubCenterArcFaceLoss",
    "sup_con_loss": "SupConLoss",
    "triplet_loss": "TripletMarginLoss",
}
