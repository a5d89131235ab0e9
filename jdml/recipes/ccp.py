"""CCP: what it makes of a pair loss's recipe, and its paper's setting, as printed or as the program was released."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

from jdml.recipes.base import Recipe
from jdml.recipes.shared import LARGE, pair_settings
from jdml.registry import Problems
from jdml.registry.constraints import one_of

NEVER = 10**6
"""Evaluations without improvement that do not end a problem before the run ends."""
LOSSES = ("contrastive", "multi_similarity", "similarity_contrastive", "triplet")
"""Base losses: C2, MS, C1 and triplet."""
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"in_batch_weight": 0.0, "restore": True, "anchor_first": True, "first": "random"},
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
    pool_size: int = 12,
    strength: float = 2e-4,
    patience: int = 3,
    run_patience: int = 60,
    single: bool = False,
    in_batch_weight: float | None = None,
    restore: bool | None = None,
    anchor_first: bool | None = None,
    first: str | None = None,
) -> Recipe:
    """Read a pair loss's recipe as CCP does: samples against proxies in the ball, one problem after another.

    Args:
        base: the recipe of a pair loss.
        preset: one of ``PRESETS``, for the four last settings where they are None.
        pool_size: b.
        strength: λ.
        patience: evaluations without improvement that end a problem.
        run_patience: those that end the run.
        single: whether the first problem never ends: what CCP is compared with.
        in_batch_weight: as of :func:`jdml.objectives.as_proxy_objective`.
        restore: as of :class:`jdml.training.AlternatingProblems`.
        anchor_first: as of :class:`jdml.training.AlternatingProblems`.
        first: as of :class:`jdml.training.AlternatingProblems`.

    Returns:
        The recipe. Proxies learn as the model does.

    Raises:
        TypeError: if a flag is neither True nor False.
        ValueError: if there is no such preset, or the loss is one of proxies.

    Example:
        >>> made = with_problems(Recipe(loss="contrastive"), preset="released")
        >>> made.num_proxies, made.normalize, made.method.restore
        (8, 'ball', False)
    """
    one_of("preset", preset, PRESETS)
    if not isinstance(single, bool):
        raise TypeError(f"single must be True or False, got {single!r}")
    own = {
        "in_batch_weight": in_batch_weight,
        "restore": restore,
        "anchor_first": anchor_first,
        "first": first,
    }
    problems = Problems(
        pool_size=pool_size,
        strength=strength,
        patience=NEVER if single else patience,
        run_patience=run_patience,
        **{**PRESETS[preset], **{name: value for name, value in own.items() if value is not None}},
    )
    rates = {role: rate for role, rate in base.role_rates.items() if role != "proxies"}
    return dataclasses.replace(base, method=problems, normalize="ball", role_rates=rates)


def anchored(
    dataset: str,
    backbone: str,
    *,
    loss: str = "contrastive",
    pool_size: int | None = None,
    **settings: Any,
) -> Recipe:
    """Make CCP's recipe.

    Args:
        dataset: one of ``DATASETS``, or another.
        backbone: ``"bn_inception"``, or another.
        loss: one of ``LOSSES``.
        pool_size: b; None: 12, and 7 where there are many classes.
        **settings: as of :func:`with_problems`.

    Returns:
        The recipe.

    Raises:
        ValueError: if there is no such loss or preset.
    """
    one_of("loss", loss, LOSSES)
    per_class, pool = (4, 7) if dataset in LARGE else (8, 12)
    base = Recipe(
        loss=loss,
        settings=pair_settings(loss, dataset),
        proxies_per_class=None,
        batch=(32 if backbone == "bn_inception" else 24, 4),
        rate=1e-4 if dataset in LARGE else 1e-5,
        b2=0.99,
        weight_decay=1e-4,
        decayed=("proxies",),
        max_norm=10.0,
        freeze_batch_norm=True,
        pooling="average+max",
        dim=512,
    )
    with_pools = with_problems(base, pool_size=pool if pool_size is None else pool_size, **settings)
    return dataclasses.replace(with_pools, proxies_per_class=per_class)


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
