"""From a recipe to its objective."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import jax.numpy as jnp
import numpy as np

from jdml import losses, objectives, ops
from jdml.objectives import Objective
from jdml.recipes.base import Recipe, RecipeError
from jdml.recipes.words import build_miner
from jdml.registry import LOSSES, resolve
from jdml.registry.constraints import nearest, one_of

REDUCTIONS: dict[str, Callable[..., Any]] = {
    "mean": ops.mean,
    "mean_nonzero": ops.mean_nonzero,
    "sum": jnp.sum,
    "total": ops.total,
}
NORMALIZATIONS: dict[str, Callable[..., Any] | None] = {
    "sphere": ops.sphere,
    "ball": ops.ball,
    "none": None,
}
PLAIN_OPTIONS = ("anchor_block", "class_block", "reduce_fn")
"""What a recipe's settings may say, of what every loss takes."""
MONITORED = 4096
"""Proxies at most of which a loss's monitor is logged: it looks at their pairs, and those of more take as long as the
network."""


def make_objective(
    recipe: Recipe, num_classes: int, dim: int | None = None, **own: Any
) -> Objective:
    """Make the objective of a recipe: its loss with what it learns.

    Args:
        recipe: the recipe.
        num_classes: C.
        dim: width of the embeddings; None: the recipe's.
        **own: keywords of the loss that are no plain values: a miner of one's own (``mine``), a reduction.

    Returns:
        The objective.

    Raises:
        ValueError: a setting that the loss does not have, a miner that there is not.

    Example:
        >>> import jax
        >>> objective = make_objective(Recipe(loss="proxy_anchor", dim=2), num_classes=3)
        >>> objective.init(jax.random.key(0))["proxies"].shape
        (3, 1, 2)
    """
    dim, loss_fn = recipe.dim if dim is None else dim, LOSSES[recipe.loss].function
    settings = loss_settings(recipe, loss_fn)
    if LOSSES[recipe.loss].kind == "pair":
        settings["mine"] = build_miner(recipe.miner, dim)
    for name, value in settings.items():
        if isinstance(value, np.ndarray) and value.shape != (num_classes,):
            raise RecipeError(
                f"{{settings}}: {name} must be a number, or one for each of the {num_classes} classes, got {value.size}"
            )
    settings |= own
    arguments = (recipe, loss_fn, num_classes, dim, settings)
    if recipe.method is not None and recipe.method.objective:
        made = resolve(recipe.method.objective)(*arguments)
    elif recipe.has_proxies:
        made = of_proxies(*arguments)
    else:
        made = of_samples(*arguments)
    return made if recipe.weight == 1 else weighted(made, recipe.weight)


def loss_settings(recipe: Recipe, loss_fn: Callable[..., Any]) -> dict[str, Any]:
    """Give a recipe's settings as the loss takes them: names of functions become functions.

    Args:
        recipe: the recipe.
        loss_fn: its loss.

    Returns:
        Keywords of the loss.

    Raises:
        ValueError: a setting that the loss does not have.
    """
    check_settings(loss_fn, recipe.settings)
    settings: dict[str, Any] = dict(recipe.settings)
    for name in LOSSES[recipe.loss].per_class:
        if name in settings:
            settings[name] = _of_classes(settings[name])
    if "reduce_fn" in recipe.settings:
        one_of("reduce_fn", recipe.settings["reduce_fn"], REDUCTIONS)
        settings["reduce_fn"] = REDUCTIONS[recipe.settings["reduce_fn"]]
    return {**settings, "normalize": normalization(recipe)}


def _of_classes(value: Any) -> Any:
    """Numbers of each class as an array; what else it is the loss refuses."""
    numbers = isinstance(value, tuple) and all(type(one) in (int, float) for one in value)
    return np.asarray(value, np.float64) if numbers else value


def normalization(recipe: Recipe) -> Callable[..., Any] | None:
    """Give what a recipe does to embeddings; None where it leaves them."""
    return NORMALIZATIONS[recipe.normalize]


def check_settings(loss_fn: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Refuse settings that are not the loss's own hyper-parameters.

    Args:
        loss_fn: the loss.
        settings: by name.

    Raises:
        ValueError: naming the setting, the loss's own, and the nearest.
    """
    shared = {
        name
        for core in (losses.compare, losses.assign)
        for name in inspect.signature(core).parameters
    } - set(PLAIN_OPTIONS)
    keywords = [
        parameter.name
        for parameter in inspect.signature(loss_fn).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in shared
    ]
    own = [name for name in keywords if name not in PLAIN_OPTIONS]
    for name in settings:
        if name not in keywords:
            raise RecipeError(
                f"{{settings}}: {getattr(loss_fn, '__name__', 'the loss')} has no setting {name!r}; "
                f"it has {', '.join(own) or 'none'}{nearest(name, own)}"
            )


def weighted(objective: Objective, weight: float) -> Objective:
    """Multiply an objective's loss, which Adam feels beside weight decay alone.

    Args:
        objective: the objective.
        weight: the factor.

    Returns:
        The objective.
    """

    @wraps(objective.loss)
    def loss(*args: Any, **settings: Any) -> tuple[Any, Any]:
        value, seen = objective.loss(*args, **settings)
        return weight * value, {**seen, "loss": weight * value}

    return objective._replace(loss=loss)


def in_bfloat16(objective: Objective) -> Objective:
    """Hand float32 embeddings, and references, to a pair loss in bfloat16; what is of another type stays as it is.

    A GPU or TPU then multiplies them as they are, accumulating in float32. The library's networks that compute in
    bfloat16 round their embeddings to it, so that no bit of these is lost.

    Args:
        objective: of a pair loss.

    Returns:
        The objective.
    """
    largest = float(jnp.finfo(jnp.bfloat16).max)

    def narrow(vectors: Any) -> Any:
        if getattr(vectors, "dtype", None) != jnp.float32:
            return vectors
        return jnp.clip(vectors, -largest, largest).astype(jnp.bfloat16)

    @wraps(objective.loss)
    def loss(
        params: Any, embeddings: Any, labels: Any, *, references: Any = None, **settings: Any
    ) -> tuple[Any, Any]:
        if references is not None:
            settings["references"] = narrow(references)
        return objective.loss(params, narrow(embeddings), labels, **settings)

    return objective._replace(loss=loss)


def of_proxies(
    recipe: Recipe, loss_fn: Callable[..., Any], num_classes: int, dim: int, settings: Any
) -> Objective:
    """Make the objective of a loss between samples and learned proxies.

    Args:
        recipe: the recipe.
        loss_fn: its loss.
        num_classes: C.
        dim: width of the embeddings.
        settings: of the loss.

    Returns:
        The objective.
    """
    record, each = LOSSES[recipe.loss], recipe.num_proxies
    seen = num_classes if recipe.sampled_classes is None else recipe.sampled_classes
    watched = record.monitor is not None and seen * each <= MONITORED
    return objectives.proxy(
        loss_fn,
        num_classes,
        dim,
        each,
        sampled_classes=recipe.sampled_classes,
        monitor=getattr(losses, str(record.monitor)) if watched else None,
        **settings,
    )


def of_samples(
    recipe: Recipe, loss_fn: Callable[..., Any], num_classes: int, dim: int, settings: Any
) -> Objective:
    """Make the objective of a loss between samples, see :func:`of_proxies`."""
    learned: dict[str, Any] = {}
    if recipe.learn_beta is not None:
        start = settings.pop("beta", 1.2)
        if recipe.learn_beta == "shared" and np.ndim(start):
            raise RecipeError(
                f"{{settings}}: beta must be a number where {{learn_beta}} is shared, got {np.size(start)} of them"
            )
        learned["beta"] = np.full(num_classes if recipe.learn_beta == "class" else (), start)
    made = objectives.pair(loss_fn, learned=learned, **settings)
    record = LOSSES[recipe.loss]
    multiplies = record.kind == "pair" and loss_fn is record.function
    if recipe.dtype == "bfloat16" and recipe.normalize == "sphere" and multiplies:
        made = in_bfloat16(made)
    if not recipe.memory:
        return made
    return objectives.with_memory(made, recipe.memory, dim, warmup=recipe.memory_wait)
