"""NIR: what it makes of a proxy loss, its paper's setting, and what it is compared with."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from jdml import objectives
from jdml.ops.checks import default_of, non_negative, one_of, positive
from jdml.recipes.loss import LossConfig, Method
from jdml.recipes.recipe import LARGE, PRESET, Recipe
from jdml.registry.losses import CONDITIONING

LOSSES = ("proxy_anchor", "proxy_nca_margin", "soft_triple")
"""Proxy losses of the paper: ProxyAnchor, ProxyNCA* and SoftTriple."""
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"flow": "paper", "of_mean": True, "norm_weight": 1.0},
    "released": {},
}
"""The differences between text and program: the flow's size (the text leaves the depth of its nets open), eq. 10
without the normal density's ½, eq. 11, f of the batch's mean; the program's weight decay is a tenth."""
SKIP_NONFINITE = 10
"""Steps in a row that may be skipped."""
_default = functools.partial(default_of, objectives.with_nir)


@dataclasses.dataclass(frozen=True)
class NIRConfig(Method):
    """Non-isotropy regularization, a flow around every proxy of a proxy loss.

    The fields from ``shape`` to ``self_regularization`` are arguments of :func:`jdml.objectives.with_nir`.
    """

    name = "nir"
    kind = "proxy"
    loss = "proxy_anchor"

    weight: Annotated[float, non_negative] = _default("weight")
    """ω, of the proxy loss."""
    flow: Literal["glow", "paper", "released"] = "released"
    """The flow, as of :func:`jdml.flows.preset`."""
    flow_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    """Other attributes of :class:`jdml.flows.ConditionalFlow`, such as ``conditioning``."""
    flow_learning_rate: Annotated[float, positive] = 5e-4
    """Learning rate of the flow."""
    shape: Literal["exp", "identity", "softplus"] = _default("shape")
    temperature: Annotated[float, positive] = _default("temperature")
    per_dimension: bool = _default("per_dimension")
    norm_weight: Annotated[float, positive] = _default("norm_weight")
    of_mean: bool = _default("of_mean")
    stop_proxy_gradient: bool = _default("stop_proxy_gradient")
    wrong_class_weight: Annotated[float, non_negative] = _default("wrong_class_weight")
    self_regularization: Literal["both", "generate", "match", "none"] = _default(
        "self_regularization"
    )
    start_step: Annotated[int, non_negative] = _default("warmup")
    """Step from which embeddings get a gradient. The paper's warm-up, a frozen backbone, is the recipe's."""

    @classmethod
    def changes(
        cls,
        parts: Mapping[str, Any],
        *,
        conditioning: str = CONDITIONING,
        blocks: int | None = None,
        width: int | None = None,
        **settings: Any,
    ) -> dict[str, Any]:
        """Put a flow around every proxy of a recipe's loss; the backbone is frozen in the first epoch.

        Args:
            parts: of the recipe of a proxy loss, by name.
            conditioning: as of :class:`jdml.flows.ConditionalFlow`.
            blocks: of the flow, in place of its preset's: the D of the paper's Table 4b.
            width: of the flow's nets, likewise: its W.
            **settings: fields of the class; ``flow_learning_rate`` is 50 times the paper's rate of the model.

        Returns:
            The values that change, by part, as ``Recipe.replace`` takes them.

        Raises:
            TypeError: a setting of another kind.
            ValueError: an unknown setting, or a number out of range.

        Example:
            >>> from jdml.recipes import LossConfig
            >>> made = NIRConfig.onto(Recipe(loss=LossConfig("proxy_anchor")), weight=0.02)
            >>> made.loss.method.weight, made.finetune.backbone_freeze_epochs
            (0.02, 1)
        """
        own = {"conditioning": conditioning, "num_blocks": blocks, "hidden": width}
        own = {name: value for name, value in own.items() if value is not None}
        settings["flow_settings"] = {**own, **settings.get("flow_settings", {})}
        return {
            "loss": {"method": cls.from_json(settings)},
            "finetune": {"backbone_freeze_epochs": 1},
            "batch": {"skip_nonfinite": SKIP_NONFINITE},
        }

    def learning_rates(self) -> Mapping[str, float]:
        """Return the flow's learning rate."""
        return {"flow": self.flow_learning_rate}

    def objective(
        self, loss: LossConfig, loss_fn: Any, num_classes: int, dim: int, **settings: Any
    ) -> objectives.Objective:
        """Put a flow around every proxy."""
        from jdml import flows  # imports distrax

        base = loss.of_proxies(loss_fn, num_classes, dim, **settings)
        own = dict(vars(self))
        flow = flows.preset(own.pop("flow"), dim, dim, **own.pop("flow_settings"))
        del own["flow_learning_rate"]
        return objectives.with_nir(base, flow, warmup=own.pop("start_step"), **own)


def nir_recipe(
    dataset: str,
    backbone: str,
    *,
    loss: str = NIRConfig.loss,
    preset: Literal["paper", "released"] = PRESET,
    weight: float | None = None,
    **settings: Any,
) -> Recipe:
    """Make the recipe of NIR over a proxy loss; the settings are those of :meth:`NIRConfig.changes`."""
    if weight is None:  # the paper says "from .001 to .01": as in the released scripts
        weight = 0.0075 if dataset == "cub" else NIRConfig.weight
    base = nir_baseline_recipe(dataset, backbone, loss=loss, preset=preset).replace(
        optimizer={"lr_multipliers": {"proxies": 4000.0}}
    )
    return NIRConfig.onto(base, **{**PRESETS[preset], "weight": weight, **settings})


def nir_baseline_recipe(
    dataset: str,
    backbone: str,
    *,
    loss: str = NIRConfig.loss,
    preset: Literal["paper", "released"] = PRESET,
) -> Recipe:
    """Make the recipe of what NIR is compared with; the released scripts have no warm-up here."""
    one_of("preset", preset, PRESETS)
    one_of("loss", loss, LOSSES)
    several = (2 if dataset in LARGE else 10) if loss == "soft_triple" else 1
    return Recipe().replace(
        loss={"name": loss, "proxies": {"per_class": several}},
        network={"pooling": "average", "dim": 128},
        finetune={"freeze_batch_norm": True},
        batch={"classes": 45, "samples_per_class": 2, "skip_nonfinite": SKIP_NONFINITE},
        optimizer={
            "learning_rate": 1e-5,
            "lr_multipliers": {"proxies": 4000.0 if preset == "paper" else 2000.0},
            "weight_decay": 4e-3 if preset == "paper" else 4e-4,
        },
        evaluation={"nmi": True, "map_divisor": "class"},
    )
