"""From a recipe to its optimizer: rules and learning rates by role."""

import logging
from collections.abc import Callable
from typing import Any

import optax

from jdml import adapt, optim
from jdml.recipes.base import Recipe, RecipeError, check_blocks
from jdml.registry import resolve

ROLES = ("proxies", "beta", "flow")
"""What objectives of the library learn; a recipe may have rates of those that its own does not."""

_log = logging.getLogger(__name__)


def make_optimizer(
    recipe: Recipe, roles: tuple[str, ...], steps_per_epoch: int, steps: int | None = None
) -> optax.GradientTransformation:
    """Make the optimizer of a recipe, over ``{"model": …, **objective roles}``.

    Anchoring, coupled weight decay and clipping act on the gradients of all roles together; then each role has its rule
    and learning rate. The model's ``"head"`` learns from the first step on, all else of it after the warm-up, until
    which its rule sees no gradient (:func:`jdml.optim.partition_by_role`). Learning rates fall by the steps of the run.

    Args:
        recipe: the recipe.
        roles: the objective's parameters by name, such as ``("proxies",)``.
        steps_per_epoch: steps per pass over the training images.
        steps: of the run; None: the recipe's.

    Returns:
        The transformation.

    Raises:
        ValueError: if ``steps_per_epoch`` is below 1, the rate's warm-up is as long as the run, or there is a rate, or
            decay, of what nobody learns.

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
    _check_roles(recipe, roles)
    whole = recipe.steps if steps is None else steps
    whole = recipe.epochs * steps_per_epoch if whole is None else max(1, whole)
    if recipe.rate_warmup and recipe.rate_warmup >= whole:
        raise RecipeError(
            f"{{rate_warmup}} must be below {{steps}}, {whole}, got {recipe.rate_warmup}"
        )
    waits = recipe.warmup_steps
    waits = recipe.warmup_epochs * steps_per_epoch if waits is None else waits
    if waits >= whole:
        _log.warning(
            "only heads and what a loss learns move in %d steps: the warm-up of all else takes %d",
            whole,
            waits,
        )

    def rule(role: str, begins: int = 0) -> optax.GradientTransformation:
        rate = _rate(recipe, role)
        return _rule(recipe, role, learning_rate(recipe, rate, whole, steps_per_epoch, begins))

    rules = {"backbone": rule("model", waits), "head": rule("model")}
    rules |= {role: _guarded(recipe, rule(role)) if role == "proxies" else rule(role) for role in roles}  # fmt: skip
    by_role = optim.partition_by_role(rules, optim.backbone_and_head, waiting={"backbone": waits})
    parts = [*_of_all_roles(recipe), by_role]
    if recipe.layer_decay is not None:
        parts.append(adapt.scale_by_depth(recipe.layer_decay, *check_blocks(recipe, "layer_decay")))
    return optax.chain(*parts) if len(parts) > 1 else by_role


def learning_rate(
    recipe: Recipe, rate: float, steps: int, steps_per_epoch: int = 1, begins: int = 0
) -> Any:
    """Give a learning rate by step: up in the warm-up, then constant, in steps, or down to 0.

    Args:
        recipe: the recipe.
        rate: its highest value.
        steps: of the run.
        steps_per_epoch: steps per pass over the training images.
        begins: the run's step that is this rule's first.

    Returns:
        A number where it is constant, else a function of the step.
    """
    if recipe.decay_every is not None:
        every = recipe.decay_every * steps_per_epoch
        # A run that goes on knows its rule by this function's name and what it closes over.
        after = lambda step: rate * recipe.decay_factor ** (step // every)  # noqa: E731
    elif recipe.schedule == "constant":
        if not recipe.rate_warmup:
            return rate
        after = optax.constant_schedule(rate)
    else:
        left = steps - recipe.rate_warmup
        after = (
            optax.cosine_decay_schedule(rate, left)
            if recipe.schedule == "cosine"
            else optax.linear_schedule(rate, 0.0, left)
        )
    if recipe.rate_warmup:
        up = optax.linear_schedule(rate / recipe.rate_warmup, rate, max(recipe.rate_warmup - 1, 1))
        # What is joined counts from there on; epochs do not.
        epochs = None if recipe.decay_every is None else _later(after, recipe.rate_warmup)
        after = optax.join_schedules([up, epochs or after], [recipe.rate_warmup])
    return after if not begins else lambda step: after(step + begins)


def _later(schedule: Any, steps: int) -> Any:
    """A schedule as it is so many steps later."""
    return lambda step: schedule(step + steps)


def _check_roles(recipe: Recipe, roles: tuple[str, ...]) -> None:
    """Refuse a rate, or decay, of what nobody learns."""
    known = tuple(dict.fromkeys((*roles, *ROLES)))
    if "model" in recipe.role_rates:
        raise RecipeError("{role_rates} has 'model', whose rate is {rate} itself")
    for field, may in {"role_rates": known, "decayed": ("model", *known)}.items():
        for role in getattr(recipe, field):
            if role not in may:
                raise RecipeError(f"{{{field}}} has {role!r}, expected some of {', '.join(may)}")


def _rate(recipe: Recipe, role: str) -> float:
    """The highest learning rate of a role."""
    own = {} if recipe.method is None else recipe.method.rates()
    if role in own:
        return own[role]
    return recipe.rate * (1.0 if role == "model" else recipe.role_rates.get(role, 1.0))


def _rule(recipe: Recipe, role: str, schedule: Any) -> optax.GradientTransformation:
    """Adam, AdamW or gradient descent with momentum; decay that is coupled comes before all roles."""
    if recipe.rule == "sgd":
        return optax.sgd(schedule, momentum=0.9)
    if recipe.rule == "adam":
        return optax.adam(schedule, b2=recipe.b2)
    decay = recipe.weight_decay if role in ("model", *recipe.decayed) else 0.0
    return optax.adamw(schedule, b2=recipe.b2, weight_decay=decay)


def _guarded(recipe: Recipe, rule: optax.GradientTransformation) -> optax.GradientTransformation:
    """The proxies' rule between what cuts their gradients and what keeps them on the sphere."""
    parts = [rule]
    if recipe.max_proxy_norm is not None:
        parts.insert(0, optim.clip_by_vector_norm(recipe.max_proxy_norm))
    if recipe.max_proxy_entry is not None:
        parts.insert(0, optax.clip(recipe.max_proxy_entry))
    if recipe.proxies_on_sphere:
        parts.append(optim.retract_to_sphere())
    return rule if len(parts) == 1 else optax.chain(*parts)


def _of_all_roles(recipe: Recipe) -> list[optax.GradientTransformation]:
    """What acts on all gradients together, before each role's rule."""

    def only(names: tuple[str, ...]) -> Callable[[Any], Any]:
        return lambda params: {role: role in names for role in params}

    first = []
    if recipe.method is not None and recipe.method.gradients:
        first.append(resolve(recipe.method.gradients)(recipe))
    if recipe.rule != "adamw" and recipe.weight_decay:
        decayed = only(("model", *recipe.decayed))
        first.append(optax.add_decayed_weights(recipe.weight_decay, decayed))
    if recipe.max_entry is not None:
        first.append(optax.clip(recipe.max_entry))
    if recipe.max_norm is not None:
        clip = optax.clip_by_global_norm(recipe.max_norm)
        first.append(_each_role(clip) if recipe.norm_by_role else clip)
    return first


def _each_role(transformation: optax.GradientTransformation) -> optax.GradientTransformation:
    """What has no state, on each role's gradients apart."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        return {role: transformation.update(own, state)[0] for role, own in updates.items()}, state

    return optax.GradientTransformation(transformation.init, update)
