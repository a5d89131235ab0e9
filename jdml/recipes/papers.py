"""The papers' recipes: a function for each family of methods, from data set and backbone to a recipe."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, get_args

from jdml.ops.checks import no_setting, one_of
from jdml.recipes.ccp import PRESETS as CCP_PRESETS
from jdml.recipes.ccp import ccp_recipe
from jdml.recipes.loss import METHODS
from jdml.recipes.nir import PRESETS as NIR_PRESETS
from jdml.recipes.nir import nir_baseline_recipe, nir_recipe
from jdml.recipes.recipe import (
    DATASETS,
    LARGE,
    PAPER_SETTINGS,
    PRESET,
    Recipe,
    of_dataset,
    pair_settings,
)
from jdml.registry import NETWORKS

DELTA = 0.2
"""PFML's: where the paper's figures centre."""
CLIP_CHARGES = 5.0
"""Largest entry of a charge's gradient: charges that almost touch would poison Adam's second moment."""
Clip = Literal["entry", "none", "vector"]
"""How gradients of PFML's proxies are clipped: entries at ±5, not at all, or vectors at the force of a pair at δ."""
PFML: dict[str, dict[str, Any]] = {
    "paper": {"alpha": 4.0, "clip": "none", "start": "random"},
    "tuned": {"alpha": 1.0, "clip": "entry", "start": "samples"},
}
"""PFML's α, clip and start: the paper's, and as ``experiments/pfml_needs`` found them. The paper prints a range of α,
{0, 6}; 4, where its figures centre, is an inference."""
Protocol = Literal["ablation", "conventional", "mlrc"]
"""How models are trained, chosen and scored, see :mod:`jdml.studies.protocols`."""
Maker = Callable[..., Recipe]
"""From data set and backbone to a recipe; a method's own settings by keyword."""


def _pair_recipe(
    dataset: str,
    loss: str,
    *,
    settings: Mapping[str, Any] = MappingProxyType({}),
    random_rows: int | None = None,
    multipliers: Mapping[str, float] = MappingProxyType({"beta": 50.0}),
    **of_loss: Any,
) -> Recipe:
    """EPS's setting, and that of the pair losses it is compared with."""
    shape = (
        {"classes": 20, "samples_per_class": 8} if random_rows is None else {"size": random_rows}
    )
    return Recipe().replace(
        loss={"name": loss, "settings": settings, **of_loss},
        network={"pooling": "average", "dim": 128},
        finetune={"freeze_batch_norm": True},
        batch={**shape, "epochs": 150},
        optimizer={"learning_rate": 1e-5, "lr_multipliers": multipliers, "weight_decay": 4e-4},
        evaluation={"nmi": True, "nmi_cluster_factor": None if dataset in LARGE else 10},
    )


def _pair(loss: str, **of_loss: Any) -> Maker:
    """A loss in EPS's setting, or as in its tables; settings that it is not given are CCP's."""
    return lambda dataset, backbone: _pair_recipe(
        dataset, loss, **{"settings": pair_settings(loss, dataset), **of_loss}
    )


def _xbm(
    dataset: str,
    backbone: str,
    *,
    loss: Literal["similarity_contrastive", "contrastive"] = "similarity_contrastive",
    size: Literal["S", "L"] = "L",
) -> Recipe:
    """XBM of CCP's tables: C1 or C2, after 1,000 steps also with the last batches."""
    one_of("loss", loss, ("similarity_contrastive", "contrastive"))
    one_of("size", size, PAPER_SETTINGS["memories"])
    rows = 32 * of_dataset(PAPER_SETTINGS["memories"][size], dataset)
    settings = pair_settings(loss, dataset)
    return _pair_recipe(dataset, loss, settings=settings, memory_size=rows, memory_start_step=1000)


def _eps_tables(positive: str) -> dict[str, Maker]:
    """Triplet and margin loss as in EPS's tables, by their names, with a miner of positives.

    Triplets have squared distances and are averaged over all; margins learn β per class, and draw negatives weighted by
    distance.
    """
    squared = {"margin": 0.2, "squared": True, "reduce_fn": "mean"}
    semi_hard = f"{positive}+semi_hard_negative:margin=0.2"
    weighted = f"{positive}+distance_weighted_negative"
    return {
        "triplet": _pair("triplet", settings=squared, miner=semi_hard),
        "margin": _pair("margin", learn_beta="class", miner=weighted),
    }


def _proxy_nca(loss: str, factor: float, **settings: Any) -> Maker:
    """ProxyNCA as in EPS's tables: random batches; and ProxyNCA++ in the same setting."""
    proxies, multipliers = {"per_class": 1}, {"proxies": factor}
    return _pair(loss, settings=settings, random_rows=160, multipliers=multipliers, proxies=proxies)


def _multi_proxy(loss: str, per_class: int | None = None) -> Maker:
    """The MPA family, and SoftTriple and ProxyAnchor as in MPA's tables."""

    def make(dataset: str, backbone: str) -> Recipe:
        large = dataset in LARGE
        return Recipe().replace(
            loss={"name": loss, "proxies": {"per_class": per_class or (2 if large else 10)}},
            network={"pooling": "cubic", "dim": 512},
            finetune={"freeze_batch_norm": not large},
            batch={
                "size": 32 if large else 64 if dataset == "cars" else 180,
                "epochs": 100 if large else 60,
            },
            optimizer={
                "name": "adamw",
                "weight_decay": 1e-4,
                "weight_decay_roles": ("proxies",),
                "schedule": "step:every=20",
            },
        )

    return make


def _proxy_anchor(dataset: str, backbone: str) -> Recipe:
    """ProxyAnchor's own setting."""
    large, every = dataset in LARGE, 20 if dataset == "cars" else 10
    rows, frozen, rate, schedule = 120, 5, 1e-4, f"step:every={every // 2}"
    if large:
        rows, frozen, rate, schedule = 180, 1, 6e-4, "step:every=20,factor=0.25"
    elif backbone == "bn_inception":
        rows, frozen, schedule = 180, 1, f"step:every={every}"
    return Recipe().replace(
        loss={"name": "proxy_anchor", "proxies": {"per_class": 1}},
        network={"pooling": "average+max", "dim": 512},
        finetune={"freeze_batch_norm": not large, "backbone_freeze_epochs": frozen},
        batch={"size": rows, "epochs": 60},
        optimizer={
            "name": "adamw",
            "learning_rate": rate,
            "weight_decay": 1e-4,
            "weight_decay_roles": ("proxies",),
            "clip_value": 10.0,
            "schedule": schedule,
        },
    )


def _field(loss: str, dataset: str, backbone: str, **settings: Any) -> Recipe:
    """PFML's setting, and CPML's."""
    large = dataset in LARGE
    return Recipe().replace(
        loss={
            "name": loss,
            "settings": {"delta": DELTA, "reduce_fn": "sum", **settings},
            "proxies": {"per_class": 2 if large else 15},
        },
        network={"pooling": "average+max", "dim": 384 if backbone == "vit_s16" else 512},
        finetune={"freeze_batch_norm": not large, "backbone_freeze_epochs": 0 if large else 1},
        batch={"size": 180 if backbone == "bn_inception" else 100, "epochs": 200},
        optimizer={"weight_decay": 1e-4 if dataset == "cars" else 5e-4},
    )


def _pfml(
    dataset: str,
    backbone: str,
    *,
    preset: Literal["tuned", "paper"] = PRESET,
    clip: Clip | None = None,
    start: Literal["random", "samples"] | None = None,
) -> Recipe:
    """PFML; ``clip`` and ``start`` in place of the preset's."""
    one_of("preset", preset, PFML)
    usual = PFML[preset]
    alpha, clip, start = usual["alpha"], clip or usual["clip"], start or usual["start"]
    one_of("clip", clip, get_args(Clip))
    proxies = {
        "init": start,
        "clip_value": CLIP_CHARGES if clip == "entry" else None,
        "clip_norm": alpha / DELTA ** (alpha + 1) if clip == "vector" else None,
    }
    base = _field("potential_field", dataset, backbone, alpha=alpha)
    return base.replace(loss={"proxies": proxies})


MS = {"beta": 40.0}
RECIPES: dict[str, Maker] = {
    "ccp": ccp_recipe,
    # The hard negatives of MS, the easiest positive.
    "eps": _pair("multi_similarity", settings=MS, miner="multi_similarity_negative+easy_positive"),
    **{f"eps_{name}": maker for name, maker in _eps_tables("easy_positive").items()},
    "mpa": _multi_proxy("multi_proxy_anchor"),
    "mpa_dw": _multi_proxy("multi_proxy_anchor_dw"),
    "mpa_ap": _multi_proxy("multi_proxy_anchor_ap"),
    "mpa_proxy_anchor": _multi_proxy("proxy_anchor", 1),
    "nir": nir_recipe,
    "nir_baseline": nir_baseline_recipe,
    "pfml": _pfml,
    "cpml": lambda dataset, backbone: _field("contrastive_potential", dataset, backbone),
    "contrastive": _pair("contrastive"),  # C2 of CCP's tables
    "similarity_contrastive": _pair("similarity_contrastive"),  # C1
    "xbm": _xbm,
    **_eps_tables("random_positive"),
    "multi_similarity": _pair("multi_similarity", settings=MS, miner="multi_similarity"),
    "proxy_anchor": _proxy_anchor,
    "proxy_nca": _proxy_nca("proxy_nca", 50.0, scale=9.0),  # vectors of length 3
    "proxy_nca_pp": _proxy_nca("proxy_nca_pp", 100.0),
    "soft_triple": _multi_proxy("soft_triple"),
}
"""From a method's name to the function that makes its recipe."""
ON_SPHERE = ("nir", "nir_baseline", "pfml", "cpml")
"""Methods that are made for unit vectors, and are on the sphere under MLRC, too."""
_OTHER_NAMES = {
    **dict.fromkeys(("cub200", "cub2002011", "caltechbirds2011"), "cub"),
    **dict.fromkeys(("cars196", "stanfordcars"), "cars"),
    **dict.fromkeys(("onlineproducts", "stanfordonlineproducts"), "sop"),
    **dict.fromkeys(("deepfashion", "deepfashioninshop"), "inshop"),
}
"""Other names of data sets, in letters and digits."""


def settings_of(method: str) -> dict[str, Any]:
    """Return a method's own settings, next to those of its loss, and their defaults; None where data sets differ.

    Args:
        method: one of ``RECIPES``.

    Returns:
        Settings of :func:`recipe` by name.

    Example:
        >>> settings_of("ccp")["preset"], settings_of("nir")["flow"], settings_of("mpa")
        ('paper', 'paper', {})
    """
    defaults: dict[str, Any] = {}
    makers: list[Any] = [RECIPES[method]]
    if method in METHODS:
        kind = METHODS[method]
        makers.insert(0, kind.changes)
        fields = dataclasses.fields(kind)
        defaults = {of.name: of.default for of in fields if of.default is not dataclasses.MISSING}
    for maker in makers:
        for parameter in inspect.signature(maker).parameters.values():
            if parameter.default is not parameter.empty:
                defaults[parameter.name] = parameter.default
    presets = {"ccp": CCP_PRESETS, "nir": NIR_PRESETS}.get(method, {})
    return {**defaults, **presets.get(defaults.get("preset", ""), {})}


def recipe(
    method: str,
    dataset: str,
    *,
    protocol: Protocol = "conventional",
    backbone: str | None = None,
    **settings: Any,
) -> Recipe:
    """Look up how a method is trained on a data set under a protocol.

    Args:
        method: one of ``RECIPES``: the five of this library (``"ccp"``, ``"eps"``, ``"mpa"``, ``"nir"``, ``"pfml"``)
            and those they are compared with.
        dataset: one of ``DATASETS``; any other name, of data of one's own, gets the settings of ``"cub"``.
        protocol: ``"mlrc"``, and ``"ablation"`` alike, gives every method the same batches of 8 × 4 (32 classes of one
            image for the proxy losses of CCP's tables, 32 random images for others), 128 dimensions, average pooling,
            Adam with rate 1e-5, and vectors in the ball but for ``ON_SPHERE``.
        backbone: the network. Papers train ``"bn_inception"`` in other batches than ``"resnet50"``, which all others
            are treated like. None: ``"resnet50"`` for ``DATASETS`` and folders, for others what fits their images.
        **settings: a method's own, see :func:`settings_of`. ``jdml/recipes/ccp.py`` and ``jdml/recipes/nir.py``
            describe those of CCP and NIR.

    Returns:
        The recipe.

    Raises:
        ValueError: an unknown method, protocol or setting, or another name of one of ``DATASETS``.

    Implementation notes:
        The settings are the papers', as printed; ``[unspecified]`` in ``jdml/recipes/paper_results.toml`` says what was
        filled in. SoftTriple and ``"mpa_proxy_anchor"``, ProxyAnchor as MPA ran it, have MPA's settings; C1, XBM and
        ProxyNCA++, of which CCP has MLRC rows alone, have EPS's otherwise. Other presets: ``"tuned"`` of PFML (see
        ``experiments/pfml_needs``), ``"released"`` of CCP and NIR. CCP's hierarchical proxy loss (HPL-PA) is not here.

    Example:
        >>> recipe("mpa", "sop").batch.size, recipe("pfml", "cars", protocol="mlrc").network.dim
        (32, 128)
    """
    one_of("method", method, RECIPES)
    one_of("protocol", protocol, get_args(Protocol))
    plain = re.sub("[^a-z0-9]", "", dataset.lower())
    if dataset not in DATASETS and (name := _OTHER_NAMES.get(plain, plain)) in DATASETS:
        raise ValueError(
            f"dataset must be {name!r} for the papers' settings of it, got {dataset!r}"
        )
    known = settings_of(method)
    for name in settings:
        if name not in known:
            raise ValueError(no_setting(method, name, sorted(known)))
    if backbone is None and dataset in (*DATASETS, "folder"):
        backbone = "resnet50"
    if backbone is not None:
        one_of("backbone", backbone, NETWORKS)
    conventional = RECIPES[method](dataset, backbone or "resnet50", **settings)
    result = conventional
    if protocol != "conventional":
        result = _under_mlrc(conventional, method, dataset)
    result = result.replace(**_head(backbone))
    # These settings override the protocol and the network.
    if "pooling" in settings:
        result = result.replace(network={"pooling": conventional.network.pooling})
    if "warmup" in settings:
        epochs = conventional.finetune.backbone_freeze_epochs
        result = result.replace(finetune={"backbone_freeze_epochs": epochs})
    if settings.get("decay_every") is not None:
        result = result.replace(optimizer={"schedule": conventional.optimizer.schedule})
    return result


def _under_mlrc(result: Recipe, method: str, dataset: str) -> Recipe:
    """Return the method's recipe in the setting of the protocol; losses of CCP's tables have theirs."""
    result = result.replace(
        loss={"normalize": "sphere" if method in ON_SPHERE else "ball"},
        network={"pooling": "average", "dim": 128},
        finetune={"freeze_batch_norm": True, "backbone_freeze_epochs": 0},
        batch={"classes": 8, "samples_per_class": 4}
        if result.loss.kind == "pair"
        else {"size": 32},
        optimizer={
            "name": "adam",
            "learning_rate": 1e-5,
            "b2": 0.99,
            "weight_decay": 1e-4,
            "schedule": "constant",
            "clip_value": None,
        },
    )
    if method in ("multi_similarity", "triplet"):
        return result.replace(loss={"settings": pair_settings(method, dataset), "miner": "none"})
    if method not in ("proxy_anchor", "proxy_nca_pp", "soft_triple"):
        return result
    loss: dict[str, Any] = {}
    if method == "soft_triple":
        loss["settings"] = of_dataset(PAPER_SETTINGS["soft_triple"], dataset)
        loss["proxies"] = {"per_class": 1 if dataset in LARGE else 10}
    if method == "proxy_nca_pp":  # cosines over the printed .1 are squared distances over .2
        loss["settings"] = {"temperature": 0.2}
    return result.replace(
        loss=loss,
        batch={"classes": 32, "samples_per_class": 1},
        finetune={"backbone_freeze_epochs": 1},
    )


def _head(backbone: str | None) -> dict[str, Any]:
    """Return the changes for a network without a choice of pooling or without batch norm, or for small images."""
    record = None if backbone is None else NETWORKS[backbone]
    network: dict[str, Any] = {"name": backbone}
    if record is not None and record.batch_norm and not record.small_images:
        return {"network": network}
    if record is None or not (record.batch_norm and record.pooling):
        network["pooling"] = None
    return {"network": network, "finetune": {"freeze_batch_norm": False}}
