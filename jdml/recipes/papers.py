"""The papers' recipes: a function for each family of methods, from data set and backbone to a recipe."""

import re
from collections.abc import Callable, Mapping
from inspect import signature
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

PFML: dict[str, dict[str, Any]] = {
    "paper": {"alpha": 4.0, "clip_value": None, "init": "random"},
    "tuned": {"alpha": 1.0, "clip_value": 5.0, "init": "samples"},
}
"""PFML's α, and how its proxies are clipped and start: the paper's, and as ``experiments/pfml_needs`` found them, where
charges that almost touch would poison Adam's second moment. The paper prints a range of α, {0, 6}; 4, where its figures
centre, is an inference."""
ADAMW = {"name": "adamw", "weight_decay": 1e-4, "weight_decay_roles": ("proxies",)}
"""ProxyAnchor's and MPA's."""
Protocol = Literal["ablation", "conventional", "mlrc"]
"""How models are trained, chosen and scored, see :mod:`jdml.studies.protocols`."""
Maker = Callable[..., Recipe]
"""From data set and backbone to a recipe; a method's own settings by keyword."""


def _pair(
    loss: str,
    *,
    settings: Mapping[str, Any] | None = None,
    batch: Mapping[str, int] = MappingProxyType({"classes": 20, "samples_per_class": 8}),
    multipliers: Mapping[str, float] = MappingProxyType({"beta": 50.0}),
    **of_loss: Any,
) -> Maker:
    """A loss in EPS's setting, or as in its tables; settings that it is not given are CCP's."""

    def make(dataset: str, backbone: str) -> Recipe:
        own = pair_settings(loss, dataset) if settings is None else settings
        return Recipe().replace(
            loss={"name": loss, "settings": own, **of_loss},
            network={"pooling": "average", "dim": 128},
            finetune={"freeze_batch_norm": True},
            batch={**batch, "epochs": 150},
            optimizer={"learning_rate": 1e-5, "lr_multipliers": multipliers, "weight_decay": 4e-4},
            evaluation={"nmi": True, "nmi_cluster_factor": None if dataset in LARGE else 10},
        )

    return make


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
    return _pair(loss, memory_size=rows, memory_start_step=1000)(dataset, backbone)


def _eps_tables(positive: str) -> dict[str, Maker]:
    """Triplet and margin loss as in EPS's tables, by their names, with a miner of positives."""
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
    batch = {"size": 160}
    return _pair(loss, settings=settings, batch=batch, multipliers=multipliers, proxies=proxies)


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
            optimizer={**ADAMW, "schedule": "step:every=20"},
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
        optimizer={**ADAMW, "learning_rate": rate, "clip_value": 10.0, "schedule": schedule},
    )


def _field(loss: str, dataset: str, backbone: str, **settings: Any) -> Recipe:
    """PFML's setting, and CPML's."""
    large = dataset in LARGE
    return Recipe().replace(
        loss={
            "name": loss,
            "settings": {"delta": 0.2, "reduce_fn": "sum", **settings},  # where its figures centre
            "proxies": {"per_class": 2 if large else 15},
        },
        network={"pooling": "average+max", "dim": 384 if backbone == "vit_s16" else 512},
        finetune={"freeze_batch_norm": not large, "backbone_freeze_epochs": 0 if large else 1},
        batch={"size": 180 if backbone == "bn_inception" else 100, "epochs": 200},
        optimizer={"weight_decay": 1e-4 if dataset == "cars" else 5e-4},
    )


def _pfml(dataset: str, backbone: str, *, preset: Literal["tuned", "paper"] = PRESET) -> Recipe:
    one_of("preset", preset, PFML)
    proxies = dict(PFML[preset])
    base = _field("potential_field", dataset, backbone, alpha=proxies.pop("alpha"))
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
    makers, defaults = list[Any]([RECIPES[method]]), dict[str, Any]()
    if method in METHODS:
        makers.insert(0, METHODS[method].changes)
        defaults |= vars(METHODS[method]())
    for maker in makers:
        parameters = signature(maker).parameters.values()
        defaults |= {
            each.name: each.default for each in parameters if each.default is not each.empty
        }
    presets = {"ccp": CCP_PRESETS, "nir": NIR_PRESETS}.get(method, {})
    return {**defaults, **presets.get(PRESET, {})}


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
    result = RECIPES[method](dataset, backbone or "resnet50", **settings)
    if protocol != "conventional":
        result = _under_mlrc(result, method, dataset)
    record = NETWORKS.get(backbone or "")
    changes: dict[str, Any] = {"network": {"name": backbone}}
    if record is None or not (record.batch_norm and record.pooling):
        changes["network"]["pooling"] = None
    if record is None or not record.batch_norm or record.small_images:
        changes["finetune"] = {"freeze_batch_norm": False}
    return result.replace(**changes)


def _under_mlrc(result: Recipe, method: str, dataset: str) -> Recipe:
    """Return the method's recipe in the setting of the protocol; losses of CCP's tables have theirs."""
    loss: dict[str, Any] = {"normalize": "sphere" if method in ON_SPHERE else "ball"}
    if method in ("multi_similarity", "triplet"):
        loss |= {"settings": pair_settings(method, dataset), "miner": "none"}
    elif method == "soft_triple":
        loss["settings"] = of_dataset(PAPER_SETTINGS["soft_triple"], dataset)
        loss["proxies"] = {"per_class": 1 if dataset in LARGE else 10}
    elif method == "proxy_nca_pp":  # cosines over the printed .1 are squared distances over .2
        loss["settings"] = {"temperature": 0.2}
    batch, frozen = {"size": 32}, 0
    if method in ("proxy_anchor", "proxy_nca_pp", "soft_triple"):
        batch, frozen = {"classes": 32, "samples_per_class": 1}, 1
    elif result.loss.kind == "pair":
        batch = {"classes": 8, "samples_per_class": 4}
    return result.replace(
        loss=loss,
        network={"pooling": "average", "dim": 128},
        finetune={"freeze_batch_norm": True, "backbone_freeze_epochs": frozen},
        batch=batch,
        optimizer={
            "name": "adam",
            "learning_rate": 1e-5,
            "b2": 0.99,
            "weight_decay": 1e-4,
            "schedule": "constant",
            "clip_value": None,
        },
    )
