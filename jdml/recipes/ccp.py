"""CCP: what it makes of a pair loss's recipe, and its paper's setting, as printed or as the program was released."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

from jdml.recipes.base import Recipe, known_fields
from jdml.recipes.shared import LARGE, pair_settings
from jdml.registry import Problems
from jdml.registry.constraints import one_of

NEVER = 10**6
"""Evaluations without improvement that do not end a problem before the run ends."""
LOSSES = ("contrastive", "multi_similarity", "similarity_contrastive", "triplet")
"""Base losses: C2, MS, C1 and triplet."""
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "released": {
        "in_batch_weight": 0.1,
        "restore": False,
        "anchor_first": False,
        "first": "origin",
    },
}
"""In what text and program differ."""


def with_problems(
    base: Recipe,
    *,
    preset: Literal["paper", "released"] = "paper",
    single: bool = False,
    **settings: Any,
) -> Recipe:
    """Read a pair loss's recipe as CCP does: samples against proxies in the ball, one problem after another.

    Args:
        base: the recipe of a pair loss.
        preset: one of ``PRESETS``: in what the released program differs from the paper, whose way
            :class:`jdml.registry.Problems` has.
        single: whether the first problem never ends: what CCP is compared with.
        **settings: numbers of :class:`jdml.registry.Problems`; None for the preset's.

    Returns:
        The recipe. Proxies learn as the model does.

    Raises:
        TypeError: if a flag is neither True nor False.
        ValueError: if there is no such preset, or the loss is one of proxies; a ``patience`` of a single problem.

    Example:
        >>> made = with_problems(Recipe(loss="contrastive"), preset="released")
        >>> made.num_proxies, made.normalize, made.method.restore
        (8, 'ball', False)
    """
    one_of("preset", preset, PRESETS)
    if not isinstance(single, bool):
        raise TypeError(f"single must be True or False, got {single!r}")
    settings = known_fields("method ccp", Problems, settings)
    own = {name: value for name, value in settings.items() if value is not None}
    if single:
        if "patience" in own:
            raise ValueError(
                f"method ccp: patience ends a problem, and the single one never does, got {own['patience']}"
            )
        own["patience"] = NEVER
    problems = Problems(**{**PRESETS[preset], **own})
    rates = {role: rate for role, rate in base.role_rates.items() if role != "proxies"}
    return dataclasses.replace(base, method=problems, normalize="ball", role_rates=rates)


def anchored(
    dataset: str,
    backbone: str,
    *,
    loss: str = "contrastive",
    preset: Literal["paper", "released"] = "paper",
    pool_size: int | None = None,
    **settings: Any,
) -> Recipe:
    """Make CCP's recipe.

    Args:
        dataset: one of ``DATASETS``, or another.
        backbone: ``"bn_inception"``, or another.
        loss: one of ``LOSSES``.
        preset: one of ``PRESETS``. The program also learns ten times as fast where there are many classes, and trains a
            ResNet-50 in larger batches with four times the weight decay.
        pool_size: b; None: 7 where there are many classes, else the method's own.
        **settings: as of :func:`with_problems`.

    Returns:
        The recipe.

    Raises:
        ValueError: if there is no such loss or preset.
    """
    one_of("loss", loss, LOSSES)
    large, inception, printed = dataset in LARGE, backbone == "bn_inception", preset == "paper"
    base = Recipe(
        loss=loss,
        settings=pair_settings(loss, dataset),
        batch=(32 if inception else 24 if printed else 28, 4),
        rate=1e-5 if printed or not large else 1e-4,
        b2=0.99 if printed else 0.999,
        weight_decay=1e-4 if printed or inception else 4e-4,
        decayed=("proxies",),
        max_norm=10.0,  # the program's; the text says nothing of it
        freeze_batch_norm=True,
        pooling="average+max",
        dim=512,
    )
    if pool_size is None and large:
        pool_size = 7
    made = with_problems(base, preset=preset, pool_size=pool_size, **settings)
    return dataclasses.replace(made, proxies_per_class=4) if large else made


def make_objective(
    recipe: Recipe, loss_fn: Callable[..., Any], num_classes: int, dim: int, settings: Any
) -> Any:
    """Read a pair loss as one of proxies, see :func:`jdml.recipes.objective.of_proxies`."""
    from jdml import objectives

    problems = recipe.method
    assert isinstance(problems, Problems)
    return objectives.as_proxy_objective(
        loss_fn,
        num_classes,
        dim,
        recipe.num_proxies,
        in_batch_weight=problems.in_batch_weight,
        **settings,
    )


def anchoring(recipe: Recipe) -> Any:
    """Make what anchors the model's weights, and nothing else."""
    from jdml import optim

    problems = recipe.method
    assert isinstance(problems, Problems)
    return optim.add_anchored_weights(
        problems.strength, lambda params: {role: role == "model" for role in params}
    )
