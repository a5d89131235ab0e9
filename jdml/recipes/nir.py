"""NIR: what it makes of a proxy loss's recipe, its paper's setting, and what it is compared with."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

from jdml.recipes.base import Recipe, known_fields
from jdml.recipes.shared import LARGE
from jdml.registry import Regularizer
from jdml.registry.constraints import one_of

LOSSES = ("proxy_anchor", "proxy_nca_margin", "soft_triple")
"""Proxy losses of the paper: ProxyAnchor, ProxyNCA* and SoftTriple."""
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"flow": "paper", "of_mean": True, "norm_weight": 1.0},
    "released": {},
}
"""In what text and program differ: the flow's size (the text leaves the depth of its nets open), eq. 10 without the
normal density's ½, eq. 11, f of the batch's mean; the program's weight decay is a tenth."""


def with_nir(
    base: Recipe,
    *,
    conditioning: str = "dense",
    blocks: int | None = None,
    width: int | None = None,
    warmup: int = 1,
    skip_nonfinite: int | None = 10,
    **settings: Any,
) -> Recipe:
    """Put a flow around every proxy of a recipe's loss.

    Args:
        base: the recipe of a proxy loss.
        conditioning: as of :class:`jdml.flows.ConditionalFlow`.
        blocks: of the flow, in the place of its preset's: the D of the paper's Table 4b.
        width: of the flow's nets, likewise: its W.
        warmup: epochs in which the backbone waits.
        skip_nonfinite: as of :func:`jdml.training.fit`.
        **settings: numbers of :class:`jdml.registry.Regularizer`. Its ``flow_lr`` is 50 times the paper's rate of the
            model, whatever that of this recipe is.

    Returns:
        The recipe.

    Raises:
        TypeError: if a number is none, or there is no such setting.
        ValueError: if the recipe's loss has no proxies, or a number is out of range.

    Example:
        >>> made = with_nir(Recipe(loss="proxy_anchor"), weight=0.02)
        >>> made.method.weight, made.warmup_epochs
        (0.02, 1)
    """
    sizes = {"num_blocks": blocks, "hidden": width}
    own = {name: size for name, size in sizes.items() if size is not None}
    of_flow = {"conditioning": conditioning, **own, **settings.pop("flow_settings", {})}
    settings = known_fields("method nir", Regularizer, settings)
    return dataclasses.replace(
        base,
        method=Regularizer(flow_settings=of_flow, **settings),
        warmup_epochs=warmup,
        skip_nonfinite=skip_nonfinite,
    )


def regularized(
    dataset: str,
    backbone: str,
    *,
    loss: str = "proxy_anchor",
    preset: Literal["paper", "released"] = "paper",
    weight: float | None = None,
    pooling: str = "average",
    proxies_rate: float = 4000.0,
    max_norm: float | None = None,
    decay_every: int | None = None,
    decay_factor: float = 0.5,
    **settings: Any,
) -> Recipe:
    """Make the recipe of NIR over a proxy loss.

    Args:
        dataset: one of ``DATASETS``, or another.
        backbone: the network; all are trained alike.
        loss: one of ``LOSSES``.
        preset: one of ``PRESETS``: as printed, or as the program is.
        weight: ω; None: the released scripts', .0075 on CUB and the method's own .01 elsewhere. The paper prints "from
            .001 to .01".
        pooling: of the embedding head; ``"average+max"`` is what the paper's table marks with a cross.
        proxies_rate: of the proxies, in units of the model's.
        max_norm: global norm that gradients are clipped to; None for no clipping, as the paper's tables but for a row
            of Table 4a, which prints no number, and as the released program.
        decay_every: epochs after which rates are multiplied by ``decay_factor``; None: constant rates, as in Table 1.
            Table 2 has "stepwise scheduling at most twice", by a validation split: no number is printed.
        decay_factor: see ``decay_every``; the released scripts of SOP have .2, twice.
        **settings: as of :func:`with_nir`.

    Returns:
        The recipe.

    Raises:
        ValueError: if there is no such loss or preset.
    """
    one_of("preset", preset, PRESETS)
    if weight is not None:
        settings["weight"] = weight
    elif dataset == "cub":
        settings["weight"] = 0.0075
    base = dataclasses.replace(
        _setting(loss, dataset, preset, proxies_rate, pooling),
        max_norm=max_norm,
        decay_every=decay_every,
        decay_factor=decay_factor,
    )
    return with_nir(base, **{**PRESETS[preset], **settings})


def unregularized(
    dataset: str,
    backbone: str,
    *,
    loss: str = "proxy_anchor",
    preset: Literal["paper", "released"] = "paper",
    weight: float = 1.0,
    warmup: int = 0,
    pooling: str = "average",
    proxies_rate: float | None = None,
) -> Recipe:
    """Make the recipe of what NIR is compared with.

    Args:
        dataset: one of ``DATASETS``, or another.
        backbone: the network; all are trained alike.
        loss: one of ``LOSSES``.
        preset: ``"paper"``: with the rates that the paper prints for all; ``"released"``: as the scripts of CUB and
            Cars196 run it.
        weight: of the loss: ω as NIR has it, which Adam feels beside weight decay alone.
        warmup: epochs in which the backbone waits: the released scripts have none here, and one for NIR; the paper
            gives one for the flow's sake.
        pooling: of the embedding head.
        proxies_rate: of the proxies, in units of the model's; None: 4000, half of it in the released program.

    Returns:
        The recipe.

    Raises:
        ValueError: if there is no such loss or preset.
    """
    one_of("preset", preset, PRESETS)
    if proxies_rate is None:
        proxies_rate = 4000.0 if preset == "paper" else 2000.0
    base = _setting(loss, dataset, preset, proxies_rate, pooling)
    return dataclasses.replace(base, weight=weight, warmup_epochs=warmup)


def _setting(loss: str, dataset: str, preset: str, proxies_rate: float, pooling: str) -> Recipe:
    """What both have in common."""
    one_of("loss", loss, LOSSES)
    several = (2 if dataset in LARGE else 10) if loss == "soft_triple" else 1
    return Recipe(
        loss=loss,
        proxies_per_class=several,
        batch=(45, 2),
        rate=1e-5,
        role_rates={"proxies": proxies_rate},
        weight_decay=4e-3 if preset == "paper" else 4e-4,
        freeze_batch_norm=True,
        pooling=pooling,
        dim=128,
        nmi=True,
        skip_nonfinite=10,
        map_divisor="class",
    )


def make_objective(
    recipe: Recipe, loss_fn: Callable[..., Any], num_classes: int, dim: int, settings: Any
) -> Any:
    """Put a flow around every proxy, see :func:`jdml.recipes.objective.of_proxies`."""
    from jdml import flows, objectives
    from jdml.recipes.objective import of_proxies

    base = of_proxies(recipe, loss_fn, num_classes, dim, settings)
    own = dict(vars(recipe.method))
    flow = flows.preset(own.pop("flow"), dim, dim, **own.pop("flow_settings"))
    del own["flow_lr"]
    return objectives.with_nir(base, flow, warmup=own.pop("embeddings_wait"), **own)
