"""NIR: what it makes of a proxy loss, its paper's setting, and what it is compared with."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from jdml import objectives
from jdml.ops.checks import default_of, non_negative, one_of, positive
from jdml.recipes.config import known_fields
from jdml.recipes.loss import LossConfig, Method
from jdml.recipes.optimizer import STEP_FACTOR
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
POOLING = "average"
PROXIES_RATE = 4000.0
"""Learning rate of the proxies, in units of the model's."""
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
    flow_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
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
        warmup: int = 1,
        skip_nonfinite: int | None = SKIP_NONFINITE,
        **settings: Any,
    ) -> dict[str, Any]:
        """Put a flow around every proxy of a recipe's loss.

        Args:
            parts: of the recipe of a proxy loss, by name.
            conditioning: as of :class:`jdml.flows.ConditionalFlow`.
            blocks: of the flow, in place of its preset's: the D of the paper's Table 4b.
            width: of the flow's nets, likewise: its W.
            warmup: epochs in which the backbone is frozen.
            skip_nonfinite: as of :class:`BatchConfig`.
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
        sizes = {"num_blocks": blocks, "hidden": width}
        own = {name: size for name, size in sizes.items() if size is not None}
        of_flow = {"conditioning": conditioning, **own, **settings.pop("flow_settings", {})}
        settings = known_fields("method nir", cls, settings)
        return {
            "loss": {"method": cls(flow_settings=of_flow, **settings)},
            "finetune": {"backbone_freeze_epochs": warmup},
            "batch": {"skip_nonfinite": skip_nonfinite},
        }

    def learning_rates(self) -> Mapping[str, float]:
        """Return the flow's learning rate."""
        return {"flow": self.flow_learning_rate}

    def objective(
        self,
        loss: LossConfig,
        loss_fn: Callable[..., Any],
        num_classes: int,
        dim: int,
        settings: Mapping[str, Any],
    ) -> objectives.Objective:
        """Put a flow around every proxy."""
        from jdml import flows  # imports distrax

        base = loss.of_proxies(loss_fn, num_classes, dim, settings)
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
    pooling: str = POOLING,
    proxies_rate: float = PROXIES_RATE,
    max_norm: float | None = None,
    decay_every: int | None = None,
    decay_factor: float = STEP_FACTOR,
    **settings: Any,
) -> Recipe:
    """Make the recipe of NIR over a proxy loss.

    Settings:
        preset: one of ``PRESETS``: as printed, or as the program is.
        weight: ω, "from .001 to .01"; None: the released scripts', .0075 on CUB and the method's own .01 elsewhere.
        pooling: of the embedding head; ``"average+max"`` is what the paper's table marks with a cross.
        proxies_rate: of the proxies, in units of the model's.
        max_norm: global norm that gradients are clipped to, as in a row of Table 4a, which prints no number.
        decay_every: epochs after which rates are multiplied by ``decay_factor``; None: constant rates, as in Table 1.
            Table 2 has "stepwise scheduling at most twice"; the released scripts of SOP multiply by .2, twice.
        **settings: as of :meth:`NIRConfig.changes`.
    """
    if weight is not None:
        settings["weight"] = weight
    elif dataset == "cub":
        settings["weight"] = 0.0075
    schedule = "constant"
    if decay_every is not None:
        schedule = f"step:every={decay_every},factor={decay_factor}"
    own: dict[str, Any] = {"loss": loss, "preset": preset, "pooling": pooling}
    base = nir_baseline_recipe(dataset, backbone, proxies_rate=proxies_rate, **own).replace(
        optimizer={"clip_global_norm": max_norm, "schedule": schedule}
    )
    return NIRConfig.onto(base, **{**PRESETS[preset], **settings})


def nir_baseline_recipe(
    dataset: str,
    backbone: str,
    *,
    loss: str = NIRConfig.loss,
    preset: Literal["paper", "released"] = PRESET,
    weight: float = LossConfig.weight,
    warmup: int = 0,
    pooling: str = POOLING,
    proxies_rate: float | None = None,
) -> Recipe:
    """Make the recipe of what NIR is compared with.

    Settings:
        preset: ``"paper"``: the printed rates; ``"released"``: those of the scripts of CUB and Cars196.
        weight: of the loss: ω as NIR has it, which Adam notices only with weight decay.
        warmup: epochs in which the backbone is frozen: the released scripts have none here, and one for NIR.
        pooling: of the embedding head.
        proxies_rate: of the proxies, in units of the model's; None: the paper's, half of it in the released program.
    """
    one_of("preset", preset, PRESETS)
    if proxies_rate is None:
        proxies_rate = PROXIES_RATE if preset == "paper" else PROXIES_RATE / 2
    one_of("loss", loss, LOSSES)
    several = (2 if dataset in LARGE else 10) if loss == "soft_triple" else 1
    return Recipe().replace(
        loss={"name": loss, "proxies": {"per_class": several}, "weight": weight},
        network={"pooling": pooling, "dim": 128},
        finetune={"freeze_batch_norm": True, "backbone_freeze_epochs": warmup},
        batch={"classes": 45, "samples_per_class": 2, "skip_nonfinite": SKIP_NONFINITE},
        optimizer={
            "learning_rate": 1e-5,
            "lr_multipliers": {"proxies": proxies_rate},
            "weight_decay": 4e-3 if preset == "paper" else 4e-4,
        },
        evaluation={"nmi": True, "map_divisor": "class"},
    )
