"""What a recipe is, and its optimizer."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import optax

from jdml import optim
from jdml.metrics.ranking import Divisor
from jdml.objectives import Objective
from jdml.ops import sphere


class Problems(NamedTuple):
    """CCP's alternating problems: `jdml.training.AlternatingProblems` with these settings.

    Attributes:
        pool_size: b, samples per class among which new proxies are chosen.
        strength: λ, of the anchor.
        patience: evaluations without improvement that end a problem.
        restore: as of the hook, and so are those that follow.
        anchor_first: see `restore`.
        first: see `restore`.
    """

    pool_size: int
    strength: float = 2e-4
    patience: int = 3
    restore: bool = True
    anchor_first: bool = False
    first: Literal["random", "covering", "origin", "kept"] = "random"


@dataclasses.dataclass(frozen=True, eq=False)
class Recipe:
    """How a method is trained.

    Attributes:
        objective: from the number of classes and the dimension to the objective; the loss's own settings and, of
            proxy losses, `proxies_per_class` may be given by keyword in the place of the recipe's.
        batch: random samples, or (classes, samples per class).
        rate: learning rate of the model.
        role_rates: learning rates of the objective's parameters (`"proxies"`, `"flow"`, …), in units of `rate`.
        rule: `"adam"` (weight decay added to the gradient) or `"adamw"` (decoupled).
        b2: the rule's second decay rate.
        weight_decay: of the model, and of the roles in `decayed`.
        decayed: roles with weight decay beside the model.
        max_norm: global norm that gradients are clipped to.
        max_entry: largest entry of any gradient.
        max_proxy_entry: largest entry of the proxies' gradient.
        max_proxy_norm: largest norm of a single proxy's gradient.
        epochs: passes over the training images (conventional protocol).
        warmup_epochs: first epochs in which only the embedding head and the objective learn.
        decay_every: epochs after which all learning rates are multiplied by `decay_factor`, again and again.
        decay_factor: see `decay_every`.
        freeze_batch_norm: whether batch norm keeps its running statistics.
        pooling: of the embedding head.
        dim: width D of the embeddings.
        problems: how proxies are chosen again and again (CCP).
        start: where proxies begin: `"random"`, as the objective draws them, or on `"samples"` of their class.
        normalize: what the loss does to embeddings, and so retrieval too.
        nmi: whether the paper reports NMI.
        more_clusters: of NMI+, clusters in units of the number of classes; None for no NMI+.
        skip_nonfinite: as of :func:`jdml.training.fit`.
        map_divisor: what the paper divides mAP@1000 by, see :func:`jdml.metrics.map_at_k`.
    """

    objective: Callable[..., Objective]
    batch: int | tuple[int, int] = 128
    rate: float = 1e-4
    role_rates: Mapping[str, float] = dataclasses.field(default_factory=lambda: {"proxies": 100.0})
    rule: Literal["adam", "adamw"] = "adam"
    b2: float = 0.999
    weight_decay: float = 0.0
    decayed: tuple[str, ...] = ()
    max_norm: float | None = None
    max_entry: float | None = None
    max_proxy_entry: float | None = None
    max_proxy_norm: float | None = None
    epochs: int = 100
    warmup_epochs: int = 0
    decay_every: int | None = None
    decay_factor: float = 0.5
    freeze_batch_norm: bool = True
    pooling: str = "average+max"
    dim: int = 512
    problems: Problems | None = None
    start: Literal["random", "samples"] = "random"
    normalize: Callable[..., Any] = sphere
    nmi: bool = False
    more_clusters: int | None = None
    skip_nonfinite: int | None = None
    map_divisor: Divisor = "min"


def make_optimizer(
    recipe: Recipe, roles: tuple[str, ...], steps_per_epoch: int
) -> optax.GradientTransformation:
    """Make the optimizer of a recipe, over `{"model": …, **objective roles}`.

    Anchoring, coupled weight decay and clipping act on the gradients of all roles together; then each role has its rule
    and learning rate. The model's `"head"` learns from the first step on, all else of it after the warm-up, until which
    its rule sees no gradient (:func:`jdml.optim.partition_by_role`). Learning rates fall by the steps of the run.

    Args:
        recipe: The recipe.
        roles: The objective's parameters by name, such as `("proxies",)`.
        steps_per_epoch: Steps per pass over the training images.

    Returns:
        The transformation.

    Raises:
        ValueError: If `steps_per_epoch` is below 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from jdml.recipes import recipe
        >>> optimizer = make_optimizer(recipe("pfml", "cub"), ("proxies",), steps_per_epoch=60)
        >>> params = {"model": {"conv": jnp.ones(2), "head": jnp.ones(2)}, "proxies": jnp.ones(3)}
        >>> updates, _ = optimizer.update(params, optimizer.init(params), params)
        >>> [bool(updates["model"][part].any()) for part in ("conv", "head")]
        [False, True]
    """
    if steps_per_epoch < 1:
        raise ValueError(f"steps_per_epoch must be at least 1, got {steps_per_epoch}")

    def only(names: tuple[str, ...]) -> Callable[[Any], Any]:
        return lambda params: {role: role in names for role in params}

    warmup = recipe.warmup_epochs * steps_per_epoch

    def rule(role: str, begins: int = 0) -> optax.GradientTransformation:
        rate = recipe.rate * (1.0 if role == "model" else recipe.role_rates.get(role, 1.0))
        schedule = _schedule(rate, begins, recipe, steps_per_epoch)
        if recipe.rule == "adam":
            return optax.adam(schedule, b2=recipe.b2)
        decay = recipe.weight_decay if role in decayed else 0.0
        return optax.adamw(schedule, b2=recipe.b2, weight_decay=decay)

    decayed = ("model", *recipe.decayed)
    transforms = {role: rule(role) for role in roles}
    clips = [
        clip(most)
        for clip, most in (
            (optax.clip, recipe.max_proxy_entry),
            (optim.clip_by_vector_norm, recipe.max_proxy_norm),
        )
        if most is not None
    ]
    if clips and "proxies" in transforms:
        transforms["proxies"] = optax.chain(*clips, transforms["proxies"])
    first = []
    if recipe.problems is not None:
        first.append(optim.add_anchored_weights(recipe.problems.strength, only(("model",))))
    if recipe.rule == "adam" and recipe.weight_decay:
        first.append(optax.add_decayed_weights(recipe.weight_decay, only(decayed)))
    if recipe.max_entry is not None:
        first.append(optax.clip(recipe.max_entry))
    if recipe.max_norm is not None:
        first.append(optax.clip_by_global_norm(recipe.max_norm))
    by_role = optim.partition_by_role(
        {"backbone": rule("model", warmup), "head": rule("model"), **transforms},
        optim.backbone_and_head,
        waiting={"backbone": warmup},
    )
    return optax.chain(*first, by_role)


def _schedule(rate: float, begins: int, recipe: Recipe, steps_per_epoch: int) -> Any:
    """The learning rate by step of a rule whose first step is the run's step `begins`."""
    if recipe.decay_every is None:
        return rate
    every = recipe.decay_every * steps_per_epoch
    return lambda step: rate * recipe.decay_factor ** ((step + begins) // every)
