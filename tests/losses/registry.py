"""Every loss of `jdml.losses` in one place; a new loss joins the property matrix by one line.

`Spec(settings, …)` describes a loss to the property checks and the value tests; its oracle has its name.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import jdml
from jdml.registry import LOSSES
from jdml.testing import LossCase
from oracles import common_losses, multi_proxy_losses, pair_losses, proxy_losses


@dataclass
class Spec:
    """How a loss is tested.

    Args:
        settings: Keywords that both the loss and the oracle take, other than the defaults.
        shape: Of the unreduced values: "B", "BR", "C" or "BCK" (all charges).
        skip: Property checks that do not hold by definition.
        proxies_per_class: K in the property checks; None for proxies `[C, D]`.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    shape: str = "B"
    skip: tuple[str, ...] = ()
    proxies_per_class: int | None = None
    kind: str = ""
    oracle: Callable[..., Any] = field(init=False)


MPA = {"alpha": 8.0, "delta": 0.2, "gamma": 0.3, "tau": 0.4}
SOFT_TRIPLE = {"scale": 10.0, "gamma": 0.3, "margin": 0.05, "tau": 0.4}
FIELD = {"delta": 0.9, "alpha": 2.5, "repulsion_delta": 1.3, "min_distance": 0.01}

# Circle loss holds its own pair weights constant, so its gradient is not its value's slope.
REGISTRY: Mapping[str, Spec] = {
    "contrastive_loss": Spec({"positive_margin": 0.2, "negative_margin": 1.1}, "BR"),
    "similarity_contrastive_loss": Spec({"negative_margin": 0.1}),
    "triplet_loss": Spec({"margin": 0.3}),
    "margin_loss": Spec({"beta": 1.1, "alpha": 0.3}, "BR"),
    "multi_similarity_loss": Spec({"alpha": 3.0, "beta": 20.0, "base": 0.4}),
    "n_pair_loss": Spec(),
    "lifted_structure_loss": Spec({"negative_margin": 0.8, "positive_margin": 0.1}),
    "circle_loss": Spec({"margin": 0.3, "gamma": 20.0}, skip=("gradients", "references")),
    "fast_ap_loss": Spec({"num_bins": 7}),
    "snr_contrastive_loss": Spec({"positive_margin": 0.4, "negative_margin": 2.1}, "BR"),
    "info_nce_loss": Spec({"temperature": 0.3}),
    "sup_con_loss": Spec({"temperature": 0.4}),
    "sigmoid_contrastive_loss": Spec({"scale": 4.0, "bias": -1.5}),
    "nca_loss": Spec({"scale": 2.0}),
    "smooth_ap_loss": Spec({"temperature": 0.2}),
    "recall_at_k_loss": Spec({"k": (1, 3), "temperature": 0.2, "k_temperature": 0.8}),
    "proxy_nca_loss": Spec({"scale": 3.0}),
    "proxy_nca_pp_loss": Spec({"temperature": 0.3}),
    "proxy_nca_margin_loss": Spec({"alpha": 8.0, "delta": 0.2}),
    "proxy_anchor_loss": Spec({"alpha": 8.0, "delta": 0.2}, "C"),
    "soft_triple_loss": Spec(SOFT_TRIPLE, proxies_per_class=1),
    "normalized_softmax_loss": Spec({"temperature": 0.2}),
    "cosface_loss": Spec({"scale": 16.0, "margin": 0.2}),
    "arcface_loss": Spec({"scale": 16.0, "margin": 0.4}),
    "subcenter_arcface_loss": Spec({"scale": 16.0, "margin": 0.4}, proxies_per_class=2),
    "multi_proxy_anchor_loss": Spec(MPA, "C", proxies_per_class=2),
    "multi_proxy_anchor_dw_loss": Spec(MPA, proxies_per_class=2),
    "multi_proxy_anchor_ap_loss": Spec(MPA, proxies_per_class=2),
    "potential_field_loss": Spec(FIELD, "BCK", proxies_per_class=2),
    "contrastive_potential_loss": Spec({"delta": 1.1}, "BCK", proxies_per_class=2),
}
ORACLES = {
    **vars(common_losses),
    **vars(multi_proxy_losses),
    **vars(proxy_losses),
    **vars(pair_losses),
}
for name, spec in REGISTRY.items():
    spec.kind = LOSSES[name.removesuffix("_loss")].kind
    spec.oracle = ORACLES[name.removesuffix("_loss")]


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


# The losses that are compared with pytorch-metric-learning's.
PARITY = Path(__file__).with_name("test_pml_parity.py")
PEERS = set(re.findall(r"jdml\.(\w+_loss)", PARITY.read_text()))
