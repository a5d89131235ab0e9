"""CCP: what it makes of a pair loss, and its paper's settings, as printed or as the program was released."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from jdml import objectives, optim
from jdml.ccp import AlternatingProjections
from jdml.ops.checks import at_least, default_of, non_negative, one_of
from jdml.recipes.loss import LossConfig, Method
from jdml.recipes.recipe import LARGE, PRESET, Recipe, pair_settings

MACHINE = AlternatingProjections()
"""The paper's, by which problems end."""
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
        "initial_proxies": "origin",
    },
}
"""The differences between text and program."""


@dataclasses.dataclass(frozen=True)
class CCPConfig(Method):
    """A pair loss between samples and proxies, which are chosen anew for one problem after another."""

    name = "ccp"
    kind = "pair"
    loss = "contrastive"
    proxies = 8
    chooses_proxies = True
    needs_validation = True

    pool_size: Annotated[int, at_least(1)] = 12
    """b, samples per class among which new proxies are chosen."""
    strength: Annotated[float, non_negative] = 2e-4
    """λ, of the anchor."""
    patience: Annotated[int, at_least(1)] = MACHINE.patience
    """Evaluations without improvement that end a problem."""
    run_patience: Annotated[int, at_least(1)] = MACHINE.run_patience
    """Evaluations without improvement that end the run."""
    tolerance: Annotated[float, non_negative] = MACHINE.tolerance
    """The smallest improvement that counts."""
    restore: bool = True
    """As of :class:`jdml.training.AlternatingProblems`, as are the next two fields."""
    anchor_first: bool = True
    initial_proxies: Literal["random", "covering", "origin", "unchanged"] = "random"
    in_batch_weight: Annotated[float, non_negative] = default_of(
        objectives.as_proxy_objective, "in_batch_weight"
    )
    """Weight of the same loss between the samples of the batch."""

    @classmethod
    def changes(
        cls,
        parts: Mapping[str, Any],
        *,
        preset: Literal["paper", "released"] = PRESET,
        single: bool = False,
        **settings: Any,
    ) -> dict[str, Any]:
        """Compare samples with proxies in the ball, one problem after another; proxies learn as fast as the model.

        Args:
            parts: of the recipe of a pair loss, by name.
            preset: one of ``PRESETS``; the class has the paper's settings.
            single: whether the first problem never ends: what CCP is compared with.
            **settings: fields of the class; None for the preset's.

        Returns:
            The values that change, by part, as ``Recipe.replace`` takes them.

        Raises:
            ValueError: an unknown preset or setting, or a ``patience`` of a single problem.

        Example:
            >>> from jdml.recipes import LossConfig
            >>> made = CCPConfig.onto(Recipe(loss=LossConfig("contrastive")), preset="released")
            >>> made.loss.num_proxies, made.loss.normalize, made.loss.method.restore
            (8, 'ball', False)
        """
        one_of("preset", preset, PRESETS)
        own = {name: value for name, value in settings.items() if value is not None}
        if single and "patience" in own:
            raise ValueError(
                f"method ccp: patience ends a problem, and the single one never does, got {own['patience']}"
            )
        own |= {"patience": NEVER} if single else {}
        problems = cls.from_json({**PRESETS[preset], **own})
        multipliers = parts["optimizer"].lr_multipliers.items()
        others = {role: factor for role, factor in multipliers if role != "proxies"}
        return {
            "loss": {"method": problems, "normalize": "ball"},
            "optimizer": {"lr_multipliers": others},
        }

    def objective(
        self, loss: LossConfig, loss_fn: Any, num_classes: int, dim: int, **settings: Any
    ) -> objectives.Objective:
        """Read the pair loss as one of proxies."""
        settings["in_batch_weight"] = self.in_batch_weight
        return objectives.as_proxy_objective(
            loss_fn, num_classes, dim, loss.num_proxies, **settings
        )

    def transform_gradients(self) -> Any:
        """Anchor the model's weights, and nothing else."""
        return optim.add_anchored_weights(
            self.strength, lambda params: {role: role == "model" for role in params}
        )


def ccp_recipe(
    dataset: str,
    backbone: str,
    *,
    loss: str = "contrastive",
    preset: Literal["paper", "released"] = PRESET,
    pool_size: int | None = None,
    **settings: Any,
) -> Recipe:
    """Make CCP's recipe; the settings are those of :meth:`CCPConfig.changes`."""
    one_of("loss", loss, LOSSES)
    large, inception, printed = dataset in LARGE, backbone == "bn_inception", preset == "paper"
    base = Recipe().replace(
        loss={"name": loss, "settings": pair_settings(loss, dataset)},
        network={"pooling": "average+max", "dim": 512},
        finetune={"freeze_batch_norm": True},
        batch={"classes": 32 if inception else 24 if printed else 28, "samples_per_class": 4},
        optimizer={
            "learning_rate": 1e-5 if printed or not large else 1e-4,
            "b2": 0.99 if printed else 0.999,
            "weight_decay": 1e-4 if printed or inception else 4e-4,
            "weight_decay_roles": ("proxies",),
            "clip_global_norm": 10.0,  # the program's; the text says nothing of it
        },
    )
    if pool_size is None and large:
        pool_size = 7
    result = CCPConfig.onto(base, preset=preset, pool_size=pool_size, **settings)
    return result.replace(loss={"proxies": {"per_class": 4}}) if large else result
