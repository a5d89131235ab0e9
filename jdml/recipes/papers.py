"""The papers' recipes: a function for each family of methods, from data set and backbone to a recipe."""

import dataclasses
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

import jax.numpy as jnp

from jdml import losses, mining, objectives
from jdml.objectives import Objective
from jdml.ops import ball, mean
from jdml.recipes.base import Recipe
from jdml.recipes.ccp import anchored
from jdml.recipes.nir import regularized, unregularized
from jdml.recipes.shared import LARGE, contrastive_margins, in_protocol, pair, proxy

DELTA = 0.2
"""PFML's: where the paper's figures centre."""
CLIP_CHARGES = 5.0
"""Largest entry of a charge's gradient: charges that almost touch would poison Adam's second moment."""
Clip = Literal["entry", "none", "vector"]
"""What cuts the gradients of PFML's proxies: entries at ±5, nothing, or vectors at the force of one pair at δ."""
PFML: dict[str, dict[str, Any]] = {
    "found": {"alpha": 1.0, "clip": "entry", "start": "samples"},
    "paper": {"alpha": 4.0, "clip": "none", "start": "random"},
}
"""PFML's α, clip and start: as `experiments/pfml_needs` found them, and the paper's, whose figures centre at α = 4."""

Maker = Callable[..., Recipe]
"""From data set and backbone to a recipe; a method's own settings by keyword."""


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
    return _of_pairs(pair(losses.multi_similarity_loss, beta=40.0, mine=mine), dataset)


def _contrastive(dataset: str, backbone: str) -> Recipe:
    """Contrastive loss with CCP's margins."""
    return _of_pairs(pair(losses.contrastive_loss, **contrastive_margins(dataset)), dataset)


def _semi_hard(positive: mining.Miner) -> Maker:
    """Triplet loss as in EPS's tables: squared distances, averaged over all triplets."""
    mine = mining.chain(positive, mining.semi_hard_negative(0.2))
    objective = pair(losses.triplet_loss, margin=0.2, squared=True, mine=mine, reduce_fn=mean)
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
    return _of_pairs(pair(losses.multi_similarity_loss, beta=40.0, mine=mine), dataset)


def _proxy_nca(dataset: str, backbone: str) -> Recipe:
    """ProxyNCA as in EPS's tables: vectors of length 3, random batches."""
    found = _of_pairs(proxy(losses.proxy_nca_loss, scale=9.0), dataset)
    return dataclasses.replace(found, batch=160, role_rates={"proxies": 50.0})


def _multi_proxy(loss: Callable[..., Any], per_class: int | None = None) -> Maker:
    """The MPA family, and SoftTriple and ProxyAnchor beside it in MPA's tables."""

    def of(dataset: str, backbone: str) -> Recipe:
        large = dataset in LARGE
        return Recipe(
            proxy(loss, per_class or (2 if large else 10)),
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
        "objective": proxy(losses.proxy_anchor_loss),
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


def _field(
    loss: Callable[..., Any],
    dataset: str,
    backbone: str,
    watch: Callable[..., Any] | None = None,
    **settings: Any,
) -> Recipe:
    """PFML, and CPML beside it; what goes on in a field is logged where its pairs are few beside the network's work."""
    large = dataset in LARGE
    watched = None if large else watch
    return Recipe(
        proxy(loss, 2 if large else 15, watched, delta=DELTA, reduce_fn=jnp.sum, **settings),
        batch=180 if backbone == "bn_inception" else 100,
        weight_decay=1e-4 if dataset == "cars" else 5e-4,
        max_proxy_entry=CLIP_CHARGES,
        epochs=200,
        warmup_epochs=0 if large else 1,
        freeze_batch_norm=not large,
        dim=384 if backbone == "vit_s16" else 512,
    )


def _potential(
    dataset: str,
    backbone: str,
    *,
    preset: Literal["found", "paper"] = "found",
    clip: Clip | None = None,
    start: Literal["random", "samples"] | None = None,
) -> Recipe:
    """PFML; ``clip`` and ``start`` in the place of the preset's."""
    if not isinstance(preset, str) or preset not in PFML:
        raise ValueError(f"preset must be one of {', '.join(PFML)}, got {preset!r}")
    own = {name: value for name, value in (("clip", clip), ("start", start)) if value is not None}
    alpha, clip, start = ({**PFML[preset], **own}[name] for name in ("alpha", "clip", "start"))
    if clip not in get_args(Clip):
        raise ValueError(f"clip must be one of {', '.join(get_args(Clip))}, got {clip!r}")
    if start not in ("random", "samples"):
        raise ValueError(f"start must be one of random, samples, got {start!r}")
    found = _field(
        losses.potential_field_loss, dataset, backbone, losses.field_activity, alpha=alpha
    )
    return dataclasses.replace(
        found,
        max_proxy_entry=CLIP_CHARGES if clip == "entry" else None,
        max_proxy_norm=alpha / DELTA ** (alpha + 1) if clip == "vector" else None,
        start=start,
    )


def _contrasting(dataset: str, backbone: str) -> Recipe:
    """CPML beside it, whose forces are bounded."""
    return _field(losses.contrastive_potential_loss, dataset, backbone)


RECIPES: dict[str, Maker] = {
    "ccp": anchored,
    "eps": _easy,
    "eps_margin": _bounded(mining.easy_positive()),
    "eps_triplet": _semi_hard(mining.easy_positive()),
    "mpa": _multi_proxy(losses.multi_proxy_anchor_loss),
    "mpa_dw": _multi_proxy(losses.multi_proxy_anchor_dw_loss),
    "mpa_ap": _multi_proxy(losses.multi_proxy_anchor_ap_loss),
    "mpa_proxy_anchor": _multi_proxy(losses.proxy_anchor_loss, 1),
    "nir": regularized,
    "nir_baseline": unregularized,
    "pfml": _potential,
    "cpml": _contrasting,
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


ON_SPHERE = ("nir", "nir_baseline", "pfml", "cpml")
"""Methods that are made for unit vectors, and stay on the sphere under MLRC too."""


def settings_of(method: str) -> dict[str, Any]:
    """Tell a method's own settings, beside those of its loss, and their defaults; None where data sets differ.

    Args:
        method: One of `RECIPES`.

    Returns:
        Settings of :func:`recipe` by name.

    Example:
        >>> settings_of("ccp")["preset"], settings_of("nir")["warmup"], settings_of("mpa")
        ('paper', 1, {})
    """
    parameters = inspect.signature(RECIPES[method]).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def recipe(
    method: str,
    dataset: str,
    *,
    protocol: Literal["conventional", "mlrc"] = "conventional",
    backbone: str = "resnet50",
    **settings: Any,
) -> Recipe:
    """Look up how a method is trained on a data set under a protocol.

    Args:
        method: One of `RECIPES`: the five of this library (`"ccp"`, `"eps"`, `"mpa"`, `"nir"`, `"pfml"`) and those they
            are compared with.
        dataset: One of `DATASETS`; any other name gets the settings of `"cub"`.
        protocol: `"mlrc"` gives every method the same batches of 8 × 4 (32 random images for proxy losses), 128
            dimensions, average pooling, Adam with rate 1e-5, and vectors in the ball but for `ON_SPHERE`.
        backbone: Papers train `"bn_inception"` in other batches than `"resnet50"`, which all others are treated like.
        **settings: A method's own, see :func:`settings_of`: what they mean is said in `jdml/recipes/ccp.py` and
            `jdml/recipes/nir.py`, and PFML's ``preset``, ``clip`` and ``start`` below.

    Returns:
        The recipe.

    Raises:
        ValueError: If there is no such method, protocol or setting.

    Implementation notes:
        What papers leave open was filled in: EPS's batches of 160 are 20 classes × 8 and its MS has β = 40, its
        baselines draw random positives, MPA's α is ProxyAnchor's 32 and its weight decay too, SoftTriple stands in
        MPA's setting, and so does ``"mpa_proxy_anchor"``, ProxyAnchor as MPA ran it, the gradient of PFML's proxies is
        clipped entry by entry (see `experiments/potential_fields`; ``clip="none"`` is the paper's, ``"vector"`` keeps
        directions), CCP is the paper's (`preset="released"` is the
        program's) and has no plateau schedule. Under MLRC proxy losses get 32 random images, where the protocol's
        program draws 32 classes and one image of each.

    Example:
        >>> recipe("mpa", "sop").batch, recipe("pfml", "cars", protocol="mlrc").dim
        (32, 128)
    """
    if not isinstance(method, str) or method not in RECIPES:
        raise ValueError(f"method must be one of {', '.join(RECIPES)}, got {method!r}")
    if protocol not in ("conventional", "mlrc"):
        raise ValueError(f"protocol must be conventional or mlrc, got {protocol!r}")
    known = settings_of(method)
    for name in settings:
        if name not in known:
            has = ", ".join(sorted(known)) or "none"
            raise ValueError(f"{method} has no setting {name!r}; it has {has}")
    found = RECIPES[method](dataset, backbone, **settings)
    if protocol == "conventional":
        return found
    objective = in_protocol(method, dataset) or found.objective
    space: dict[str, Any] = {"objective": objective}
    if method not in ON_SPHERE:
        space = {"objective": partial(objective, normalize=ball), "normalize": ball}
    return dataclasses.replace(
        found,
        **space,
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
