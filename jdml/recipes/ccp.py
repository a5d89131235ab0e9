"""CCP's recipe: any of its losses, as the paper prints the method or as the program was released."""

from typing import Any, Literal

from jdml import losses, objectives
from jdml.objectives import Objective
from jdml.ops import ball, checks
from jdml.recipes.base import Problems, Recipe
from jdml.recipes.shared import LARGE, pair_settings

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
NEVER = 10**6
"""Evaluations without improvement that do not end a problem before the run ends."""


def anchored(
    dataset: str,
    backbone: str,
    *,
    loss: str = "contrastive",
    preset: Literal["paper", "released"] = "paper",
    pool_size: int | None = None,
    strength: float = 2e-4,
    patience: int = 3,
    single: bool = False,
    in_batch_weight: float | None = None,
    restore: bool | None = None,
    anchor_first: bool | None = None,
    first: str | None = None,
) -> Recipe:
    """Make CCP's recipe.

    Args:
        dataset: One of `DATASETS`, or another.
        backbone: `"bn_inception"`, or another.
        loss: One of `LOSSES`.
        preset: One of `PRESETS`, for the four last settings where they are None.
        pool_size: b; None: 12, and 7 where there are many classes.
        strength: λ.
        patience: Evaluations without improvement that end a problem.
        single: Whether the first problem never ends: what CCP is compared with.
        in_batch_weight: As of :func:`jdml.objectives.as_proxy_objective`.
        restore: As of :class:`jdml.training.AlternatingProblems`.
        anchor_first: As of :class:`jdml.training.AlternatingProblems`.
        first: As of :class:`jdml.training.AlternatingProblems`.

    Returns:
        The recipe.

    Raises:
        ValueError: If there is no such loss or preset.
    """
    if loss not in LOSSES:
        raise ValueError(f"loss must be one of {', '.join(LOSSES)}, got {loss!r}")
    if preset not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
    checks.count("patience", patience)
    if pool_size is not None:
        checks.count("pool_size", pool_size)
    for name, flag in (("single", single), ("restore", restore), ("anchor_first", anchor_first)):
        if flag not in (None, True, False):
            raise ValueError(f"{name} must be True or False, got {flag!r}")
    own = {
        "in_batch_weight": in_batch_weight,
        "restore": restore,
        "anchor_first": anchor_first,
        "first": first,
    }
    how = {**PRESETS[preset], **{name: value for name, value in own.items() if value is not None}}
    weight = how.pop("in_batch_weight")
    per_class, pool = (4, 7) if dataset in LARGE else (8, 12)

    def objective(
        classes: int, dim: int, *, proxies_per_class: int = per_class, **own: Any
    ) -> Objective:
        settings = {"in_batch_weight": weight, **pair_settings(loss, dataset), **own}
        loss_fn = getattr(losses, f"{loss}_loss")
        return objectives.as_proxy_objective(loss_fn, classes, dim, proxies_per_class, **settings)

    size = pool if pool_size is None else pool_size
    return Recipe(
        objective,
        batch=(32 if backbone == "bn_inception" else 24, 4),
        rate=1e-4 if dataset in LARGE else 1e-5,
        role_rates={},
        b2=0.99,
        weight_decay=1e-4,
        decayed=("proxies",),
        max_norm=10.0,
        problems=Problems(size, strength, NEVER if single else patience, **how),
        normalize=ball,
    )
