"""The papers' recipes: a function for each family of methods, from data set and backbone to a recipe."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax.numpy as jnp

from jdml import losses, mining, objectives
from jdml.objectives import Objective
from jdml.ops import ball, mean
from jdml.recipes.base import Problems, Recipe

DATASETS = ("cub", "cars", "sop", "inshop")
"""Data sets that the papers give settings for; all others are treated like `cub`."""
LARGE = ("sop", "inshop")
"""Many classes of few images."""
CLIP_CHARGES = 5.0
"""Largest entry of a charge's gradient: charges that almost touch would poison Adam's second moment."""

Maker = Callable[[str, str], Recipe]
"""From data set and backbone to a recipe."""


def _pair(loss: Callable[..., Any], **settings: Any) -> Callable[..., Objective]:
    return lambda classes, dim, **own: objectives.pair(loss, **{**settings, **own})


def _proxy(
    loss: Callable[..., Any], per_class: int = 1, **settings: Any
) -> Callable[..., Objective]:
    def objective(
        classes: int, dim: int, *, proxies_per_class: int = per_class, **own: Any
    ) -> Objective:
        if proxies_per_class == 0:  # a field of samples alone
            return objectives.pair(loss, **{**settings, **own})
        return objectives.proxy(loss, classes, dim, proxies_per_class, **{**settings, **own})

    return objective


def _margins(dataset: str) -> dict[str, Any]:
    """C2's margins."""
    positive, negative = {
        "cars": (0.2652, 0.5409),
        "sop": (0.2858, 0.5130),
        "inshop": (0.2858, 0.5130),
    }.get(dataset, (0.0, 0.3841))
    return {"positive_margin": positive, "negative_margin": negative}


def _in_protocol(method: str, dataset: str) -> Callable[..., Objective] | None:
    """The objective of a method in CCP's tables of the MLRC protocol, where it is another than usual."""
    if method == "multi_similarity":  # no mining there
        alpha, beta, base = {"cars": (14.35, 75.83, 0.66), "inshop": (8.49, 57.38, 0.41)}.get(
            dataset, (2.0, 40.0, 0.5)
        )
        return _pair(losses.multi_similarity_loss, alpha=alpha, beta=beta, base=base)
    if method == "triplet":  # all couples
        margin = {"cars": 0.1190, "sop": 0.0451, "inshop": 0.0451}.get(dataset, 0.0961)
        return _pair(losses.triplet_loss, margin=margin)
    if method == "soft_triple":
        scale, gamma, tau, margin = {
            "cars": (17.69, 19.18, 0.0669, 0.3588),
            "sop": (100.0, 47.9, 0.2, 0.3145),
        }.get(dataset, (20.0, 0.1, 0.2, 0.01))
        per_class = 2 if dataset in LARGE else 10
        return _proxy(
            losses.soft_triple_loss, per_class, scale=scale, gamma=gamma, tau=tau, margin=margin
        )
    return None


def _anchored(dataset: str, backbone: str) -> Recipe:
    """CCP, with contrastive loss."""
    per_class, pool = (4, 7) if dataset in LARGE else (8, 12)

    def objective(
        classes: int, dim: int, *, proxies_per_class: int = per_class, **own: Any
    ) -> Objective:
        return objectives.as_proxy_objective(
            losses.contrastive_loss,
            classes,
            dim,
            proxies_per_class,
            in_batch_weight=0.1,
            **{**_margins(dataset), **own},
        )

    return Recipe(
        objective,
        batch=(32 if backbone == "bn_inception" else 24, 4),
        rate=1e-4 if dataset in LARGE else 1e-5,
        role_rates={},
        b2=0.99,
        weight_decay=1e-4,
        decayed=("proxies",),
        max_norm=10.0,
        problems=Problems(pool),
        normalize=ball,
    )


def _of_pairs(objective: Callable[..., Objective], dataset: str) -> Recipe:
    """EPS's setting, and that of the pair losses it stands beside."""
    return Recipe(
        objective,
        batch=(20, 8),
        rate=1e-5,
        role_rates={"beta": 50.0},
        weight_decay=4e-4,
        epochs=150,
        pooling="average",
        dim=128,
        nmi=True,
        more_clusters=None if dataset in LARGE else 10,
    )


def _easy(dataset: str, backbone: str) -> Recipe:
    """EPS with multi-similarity loss: the hard negatives of MS, the easiest positive."""
    mine = mining.chain(mining.multi_similarity_pairs(mine_positives=False), mining.easy_positive())
    return _of_pairs(_pair(losses.multi_similarity_loss, beta=40.0, mine=mine), dataset)


def _contrastive(dataset: str, backbone: str) -> Recipe:
    """Contrastive loss with CCP's margins."""
    return _of_pairs(_pair(losses.contrastive_loss, **_margins(dataset)), dataset)


def _semi_hard(positive: mining.Miner) -> Maker:
    """Triplet loss as in EPS's tables: squared distances, averaged over all triplets."""
    mine = mining.chain(positive, mining.semi_hard_negative(0.2))
    objective = _pair(losses.triplet_loss, margin=0.2, squared=True, mine=mine, reduce_fn=mean)
    return lambda dataset, backbone: _of_pairs(objective, dataset)


def _bounded(positive: mining.Miner) -> Maker:
    """Margin loss as in EPS's tables: β per class, learned, and distance-weighted negatives."""

    def objective(classes: int, dim: int, *, beta: float = 1.2, **own: Any) -> Objective:
        mine = mining.chain(positive, mining.distance_weighted_negative(dim=dim))
        learned: dict[str, Any] = {"beta": jnp.full(classes, beta)}
        return objectives.pair(losses.margin_loss, learned=learned, **{"mine": mine, **own})

    return lambda dataset, backbone: _of_pairs(objective, dataset)


def _mined(dataset: str, backbone: str) -> Recipe:
    """Multi-similarity loss as in EPS's tables."""
    mine = mining.multi_similarity_pairs()
    return _of_pairs(_pair(losses.multi_similarity_loss, beta=40.0, mine=mine), dataset)


def _proxy_nca(dataset: str, backbone: str) -> Recipe:
    """ProxyNCA as in EPS's tables: vectors of length 3, random batches."""
    found = _of_pairs(_proxy(losses.proxy_nca_loss, scale=9.0), dataset)
    return dataclasses.replace(found, batch=160, role_rates={"proxies": 50.0})


def _multi_proxy(loss: Callable[..., Any], per_class: int | None = None) -> Maker:
    """The MPA family, and SoftTriple and ProxyAnchor beside it in MPA's tables."""

    def of(dataset: str, backbone: str) -> Recipe:
        large = dataset in LARGE
        return Recipe(
            _proxy(loss, per_class or (2 if large else 10)),
            batch=32 if large else 64 if dataset == "cars" else 180,
            rule="adamw",
            weight_decay=1e-4,
            decayed=("proxies",),
            epochs=100 if large else 60,
            decay_every=20,
            freeze_batch_norm=not large,
            pooling="cubic",
        )

    return of


def _proxy_anchor(dataset: str, backbone: str) -> Recipe:
    """ProxyAnchor's own setting."""
    common: dict[str, Any] = {
        "objective": _proxy(losses.proxy_anchor_loss),
        "rule": "adamw",
        "weight_decay": 1e-4,
        "decayed": ("proxies",),
        "max_entry": 10.0,
        "epochs": 60,
        "batch": 180,
        "warmup_epochs": 1,
    }
    if dataset in LARGE:
        return Recipe(
            **{**common, "rate": 6e-4, "decay_every": 20, "decay_factor": 0.25},
            freeze_batch_norm=False,
        )
    every = 20 if dataset == "cars" else 10
    if backbone == "bn_inception":
        return Recipe(**common, decay_every=every)
    return Recipe(**{**common, "batch": 120, "warmup_epochs": 5, "decay_every": every // 2})


def _regularized(dataset: str, backbone: str) -> Recipe:
    """NIR over ProxyAnchor."""

    def objective(classes: int, dim: int, *, proxies_per_class: int = 1, **own: Any) -> Objective:
        from jdml import flows

        base = objectives.proxy(losses.proxy_anchor_loss, classes, dim, proxies_per_class, **own)
        weight = 0.0075 if dataset == "cub" else 0.01
        return objectives.with_nir(base, flows.preset("released", dim, dim), weight=weight)

    return Recipe(
        objective,
        batch=(45, 2),
        rate=1e-5,
        role_rates={"proxies": 4000.0, "flow": 50.0},
        weight_decay=4e-3,
        warmup_epochs=1,
        pooling="average",
        dim=128,
        nmi=True,
        map_divisor="class",
    )


def _field(loss: Callable[..., Any], **settings: Any) -> Maker:
    """PFML, and CPML beside it."""

    def of(dataset: str, backbone: str) -> Recipe:
        large = dataset in LARGE
        return Recipe(
            _proxy(loss, 2 if large else 15, delta=0.2, reduce_fn=jnp.sum, **settings),
            batch=180 if backbone == "bn_inception" else 100,
            weight_decay=1e-4 if dataset == "cars" else 5e-4,
            max_proxy_entry=CLIP_CHARGES,
            epochs=200,
            warmup_epochs=0 if large else 1,
            freeze_batch_norm=not large,
            dim=384 if backbone == "vit_s16" else 512,
        )

    return of


RECIPES: dict[str, Maker] = {
    "ccp": _anchored,
    "eps": _easy,
    "eps_margin": _bounded(mining.easy_positive()),
    "eps_triplet": _semi_hard(mining.easy_positive()),
    "mpa": _multi_proxy(losses.multi_proxy_anchor_loss),
    "mpa_dw": _multi_proxy(losses.multi_proxy_anchor_dw_loss),
    "mpa_ap": _multi_proxy(losses.multi_proxy_anchor_ap_loss),
    "mpa_proxy_anchor": _multi_proxy(losses.proxy_anchor_loss, 1),
    "nir": _regularized,
    "pfml": _field(losses.potential_field_loss, alpha=4.0),
    "cpml": _field(losses.contrastive_potential_loss),
    "contrastive": _contrastive,
    "margin": _bounded(mining.random_positive()),
    "triplet": _semi_hard(mining.random_positive()),
    "multi_similarity": _mined,
    "proxy_anchor": _proxy_anchor,
    "proxy_nca": _proxy_nca,
    "soft_triple": _multi_proxy(losses.soft_triple_loss),
}
"""From a method's name to what makes its recipe."""
OF_PAIRS = (
    "ccp",
    "eps",
    "eps_margin",
    "eps_triplet",
    "contrastive",
    "margin",
    "triplet",
    "multi_similarity",
)
"""Methods whose loss compares samples with each other."""


def recipe(
    method: str,
    dataset: str,
    *,
    protocol: Literal["conventional", "mlrc"] = "conventional",
    backbone: str = "resnet50",
) -> Recipe:
    """Look up how a method is trained on a data set under a protocol.

    Args:
        method: One of `RECIPES`: the five of this library (`"ccp"`, `"eps"`, `"mpa"`, `"nir"`, `"pfml"`) and those they
            are compared with.
        dataset: One of `DATASETS`; any other name gets the settings of `"cub"`.
        protocol: `"mlrc"` gives every method the same batches of 8 × 4 (32 random images for proxy losses), 128
            dimensions, average pooling and Adam with rate 1e-5.
        backbone: Papers train `"bn_inception"` in other batches than `"resnet50"`, which all others are treated like.

    Returns:
        The recipe.

    Raises:
        ValueError: If there is no such method or protocol.

    Implementation notes:
        What papers leave open was filled in: EPS's batches of 160 are 20 classes × 8 and its MS has β = 40, its
        baselines draw random positives, MPA's α is ProxyAnchor's 32 and its weight decay too, SoftTriple stands in
        MPA's setting, and so does ``"mpa_proxy_anchor"``, ProxyAnchor as MPA ran it, the gradient of PFML's proxies is
        clipped entry by entry (see `experiments/potential_fields`), CCP has the released program's in-batch weight 0.1
        (see `experiments/ccp_mnist`) and no plateau schedule. Under MLRC proxy losses get 32 random images, where the
        protocol's program draws 32 classes and one image of each.

    Example:
        >>> recipe("mpa", "sop").batch, recipe("pfml", "cars", protocol="mlrc").dim
        (32, 128)
    """
    if method not in RECIPES:
        raise ValueError(f"method must be one of {', '.join(RECIPES)}, got {method!r}")
    if protocol not in ("conventional", "mlrc"):
        raise ValueError(f"protocol must be conventional or mlrc, got {protocol!r}")
    found = RECIPES[method](dataset, backbone)
    if protocol == "conventional":
        return found
    return dataclasses.replace(
        found,
        objective=_in_protocol(method, dataset) or found.objective,
        batch=(8, 4) if method in OF_PAIRS else 32,
        rate=1e-5,
        rule="adam",
        b2=0.99,
        weight_decay=1e-4,
        decay_every=None,
        max_entry=None,
        warmup_epochs=0,
        freeze_batch_norm=True,
        pooling="average",
        dim=128,
    )
