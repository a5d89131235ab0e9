"""The optimizer of a recipe: rules, learning rates by role, schedules, clipping."""

import dataclasses
import logging
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import optax

from jdml import adapt, optim
from jdml.ops.checks import (
    count,
    finite,
    fraction_below_1,
    no_setting,
    non_negative,
    one_of,
    positive,
)
from jdml.recipes.config import Config, RecipeError, parse_named
from jdml.recipes.loss import PLAIN, LossConfig, ProxyConfig
from jdml.recipes.network import FinetuneConfig, NetworkConfig

ROLES = ("proxies", "beta", "flow")
"""Roles of parameters that objectives of the library learn; a recipe may have rates of others than its own."""
LOSS, NETWORK, FINETUNE = LossConfig(), NetworkConfig(), FinetuneConfig()
"""The other parts of a recipe that says nothing of them."""

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Config):
    """The rule, and how fast what learns."""

    name: Literal["adam", "adamw", "sgd"] = "adam"
    """adam (weight decay in the gradient), adamw (decoupled), sgd (momentum 0.9)."""
    learning_rate: Annotated[float, positive] = 1e-4
    """Learning rate of the network."""
    weight_decay: Annotated[float, non_negative] = 0.0
    """Weight decay of the network."""
    lr_multipliers: Annotated[Mapping[str, float], finite] = dataclasses.field(
        default_factory=lambda: {"proxies": 100.0}, hash=False
    )
    """Learning-rate factors of a role (proxies, beta, flow), or of parameters by a regular expression."""
    weight_decay_roles: tuple[str, ...] = ()
    """Roles that also get weight decay, such as proxies."""
    schedule: str = "constant"
    """constant, cosine or linear to 0, or step:every=EPOCHS,factor=0.5."""
    lr_warmup_steps: Annotated[int, non_negative] = 0
    """Steps in which the learning rate rises from 0."""
    clip_global_norm: Annotated[float | Mapping[str, float] | None, positive] = dataclasses.field(
        default=None, hash=False
    )
    """Clip the gradient to this global norm; or one norm for each role."""
    clip_value: Annotated[float | None, positive] = None
    """Clip each entry of the gradient to ± this value."""
    b2: Annotated[float, fraction_below_1] = 0.999
    """Decay of Adam's second moment."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.schedule_settings()

    def schedule_settings(self) -> tuple[str, dict[str, Any]]:
        """Return the schedule's name and settings, such as ``('step', {'factor': 0.5, 'every': 10})``."""
        name, settings = parse_named(self.schedule, "schedule")
        one_of("schedule", name, ("constant", "cosine", "linear", "step"))
        known = {"every": count, "factor": non_negative} if name == "step" else {}
        for setting, value in settings.items():
            if setting not in known:
                raise ValueError(no_setting(f"schedule {name}", setting, known))
            known[setting](f"schedule {name}: {setting}", value)
        if name == "step" and "every" not in settings:
            raise ValueError(
                f"schedule step needs a number of epochs, such as step:every=10, got {self.schedule!r}"
            )
        return name, {"factor": 0.5, **settings} if name == "step" else settings

    def build(
        self,
        roles: tuple[str, ...] = (),
        *,
        steps: int,
        steps_per_epoch: int = 1,
        loss: LossConfig = LOSS,
        network: NetworkConfig = NETWORK,
        finetune: FinetuneConfig = FINETUNE,
    ) -> optax.GradientTransformation:
        """Make the optimizer, over ``{"model": …, **objective roles}``.

        Anchoring, coupled weight decay and clipping act on the gradients of all roles together; then each role has its
        rule and learning rate. The model's ``"head"`` learns from the first step on. The rest may be frozen first, and
        its rule gets no gradient until then (:func:`jdml.optim.partition_by_role`).

        Args:
            roles: the objective's parameters by name, such as ``("proxies",)``.
            steps: of the run, at whose end schedules end.
            steps_per_epoch: steps per pass over the training images.
            loss: how its proxies' gradients are clipped, and what its method does to gradients.
            network: whose blocks ``finetune`` names.
            finetune: when the backbone begins to learn, and how fast by depth.

        Returns:
            The transformation.

        Raises:
            ValueError: a warm-up as long as the run, or a rate or decay of an unknown role.

        Example:
            >>> import jax.numpy as jnp
            >>> finetune = FinetuneConfig(backbone_freeze_steps=5)
            >>> optimizer = OptimizerConfig().build(("proxies",), steps=60, finetune=finetune)
            >>> params = {"model": {"conv": jnp.ones(2), "head": jnp.ones(2)}, "proxies": jnp.ones(3)}
            >>> updates, _ = optimizer.update(params, optimizer.init(params), params)
            >>> [bool(updates["model"][part].any()) for part in ("conv", "head")]
            [False, True]
        """
        for role in self.weight_decay_roles:
            one_of("weight_decay_roles", role, dict.fromkeys(("model", *roles, *ROLES)))
        steps = max(1, steps)
        self.check_warmup(steps)
        waits = finetune.backbone_freeze_steps
        waits = finetune.backbone_freeze_epochs * steps_per_epoch if waits is None else waits
        if waits >= steps:
            _log.warning("the backbone is frozen in all %d steps: only head and loss learn", steps)
        own = (loss.method or PLAIN).learning_rates()

        def rule(role: str, first_step: int = 0) -> optax.GradientTransformation:
            rate = own.get(role, self.learning_rate * self.lr_multipliers.get(role, 1.0))
            schedule = self.learning_rate_at(rate, steps, steps_per_epoch, first_step)
            if self.name == "sgd":
                return optax.sgd(schedule, momentum=0.9)
            if self.name == "adam":
                return optax.adam(schedule, b2=self.b2)
            decay = self.weight_decay if role in ("model", *self.weight_decay_roles) else 0.0
            return optax.adamw(schedule, b2=self.b2, weight_decay=decay)

        rules = {"backbone": rule("model", waits), "head": rule("model")}
        rules |= {role: rule(role) for role in roles}
        if "proxies" in rules:
            rules["proxies"] = with_proxy_clipping(loss.proxies, rules["proxies"])
        by_role = optim.partition_by_role(
            rules, optim.backbone_and_head, waiting={"backbone": waits}
        )
        parts = [*self._of_all_roles(loss, roles), by_role]
        if finetune.layer_decay is not None:
            blocks = network.blocks("layer_decay")
            parts.append(adapt.scale_by_depth(finetune.layer_decay, *blocks))
        of_paths = {p: f for p, f in self.lr_multipliers.items() if p not in (*roles, *ROLES)}
        if of_paths:
            parts.append(adapt.scale_by_path(of_paths))
        return optax.chain(*parts) if len(parts) > 1 else by_role

    def learning_rate_at(
        self, rate: float, steps: int, steps_per_epoch: int = 1, first_step: int = 0
    ) -> Any:
        """Return a learning rate with this highest value: a number if it is constant, else a function of the step."""
        name, settings = self.schedule_settings()
        if name == "step":
            every, factor = settings["every"] * steps_per_epoch, settings["factor"]
            # A run that resumes knows its rule by this function's name and what it closes over.
            after = lambda step: rate * factor ** (step // every)  # noqa: E731
        elif name == "constant":
            if not self.lr_warmup_steps:
                return rate
            after = optax.constant_schedule(rate)
        else:
            left = steps - self.lr_warmup_steps
            linear = optax.linear_schedule(rate, 0.0, left)
            after = optax.cosine_decay_schedule(rate, left) if name == "cosine" else linear
        rates = after
        if warmup := self.lr_warmup_steps:
            up = optax.linear_schedule(rate / warmup, rate, max(warmup - 1, 1))
            # What is joined counts from there on; epochs do not.
            joined = (lambda step: after(step + warmup)) if name == "step" else after
            rates = optax.join_schedules([up, joined], [warmup])
        return rates if not first_step else lambda step: rates(step + first_step)

    def check_warmup(self, steps: int) -> None:
        """Refuse a warm-up of the learning rate that is as long as the run."""
        if self.lr_warmup_steps and self.lr_warmup_steps >= steps:
            raise RecipeError(
                f"{{lr_warmup_steps}} must be below {{steps}}, {steps}, got {self.lr_warmup_steps}"
            )

    def _of_all_roles(self, loss: LossConfig, roles: tuple[str, ...]) -> list[Any]:
        """Make what acts on all gradients together, before each role's rule."""
        anchor = (loss.method or PLAIN).transform_gradients()
        first = [] if anchor is None else [anchor]
        if self.name != "adamw" and self.weight_decay:
            names = ("model", *self.weight_decay_roles)
            first.append(
                optax.add_decayed_weights(
                    self.weight_decay, lambda params: {role: role in names for role in params}
                )
            )
        if self.clip_value is not None:
            first.append(optax.clip(self.clip_value))
        norms = self.clip_global_norm
        if isinstance(norms, Mapping):
            clips = {role: optax.identity() for role in ("model", *roles)}
            for pattern, norm in [*norms.items()][::-1]:  # the first that names a role counts
                clip = optax.clip_by_global_norm(norm)
                clips |= {role: clip for role in clips if re.fullmatch(pattern, role)}
            first.append(optax.partition(clips, lambda params: {role: role for role in params}))
        elif norms is not None:
            first.append(optax.clip_by_global_norm(norms))
        return first


def with_proxy_clipping(
    proxies: ProxyConfig, rule: optax.GradientTransformation
) -> optax.GradientTransformation:
    """Put the proxies' rule between what clips their gradients and what keeps them on the sphere."""
    parts = [rule]
    if proxies.clip_norm is not None:
        parts.insert(0, optim.clip_by_vector_norm(proxies.clip_norm))
    if proxies.clip_value is not None:
        parts.insert(0, optax.clip(proxies.clip_value))
    if proxies.on_sphere:
        parts.append(optim.retract_to_sphere())
    return rule if len(parts) == 1 else optax.chain(*parts)
