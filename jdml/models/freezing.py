"""Parameters that stay: apart from those that learn, with their running statistics."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jdml import adapt
from jdml.distributed import Tree
from jdml.models.adapters import Model, embed_in_training


def split_frozen(params: Mapping[str, Tree], freeze: str | None) -> tuple[Tree, Tree]:
    """Split parameters by role in those that learn and those of the model that stay, hidden from each other."""
    stay = {role: adapt.matching(part, None) for role, part in params.items()}
    return adapt.split(params, {**stay, "model": adapt.matching(params["model"], freeze)})


def with_frozen(batch_stats: Tree, before: Tree, freeze: str | None) -> Tree:
    """Running statistics after a step, those of frozen parts as before."""
    stay = adapt.matching(before, freeze)
    return jax.tree.map(lambda new, old, stays: old if stays else new, batch_stats, before, stay)


def check_freeze(
    freeze: str, model: Model, params: Mapping[str, Tree], batch_stats: Tree, inputs: Tree
) -> None:
    """Refuse to freeze all that learns, or what goes on to change with each batch."""
    adapt.check_pattern("pattern", freeze, params["model"])
    if not jax.tree.leaves(split_frozen(params, freeze)[0]):
        raise ValueError(
            f"pattern must leave something to learn, {freeze!r} freezes all parameters"
        )
    stay = jax.tree.leaves(adapt.matching(batch_stats, freeze))
    stays = dict(zip(adapt.paths(batch_stats), stay, strict=True))
    moving = moving_statistics(model, params["model"], batch_stats, inputs)
    changed: list[Any] = [path for path in moving if stays[path]]
    if moving and not changed:
        means = {f"{part}/mean": part for part in getattr(model, "norms", ())}
        marks = adapt.matching(means, freeze)
        changed = [part for mean, part in means.items() if marks[mean]]
    if changed:
        raise ValueError(
            f"pattern: the running statistics of {len(changed)} frozen parts change in training, {changed[0]} first, "
            "and with them what they compute: freeze batch norm in the model (freeze_batch_norm=True)"
        )


def moving_statistics(model: Model, params: Tree, batch_stats: Tree, inputs: Tree) -> list[str]:
    """Name the running statistics that a batch changes in training."""

    def statistics(stats: Tree, params: Tree, rows: Tree) -> Tree:
        return embed_in_training(model, params, stats, rows, jax.random.key(0))[1]

    traced = jax.make_jaxpr(statistics)(batch_stats, params, inputs).jaxpr
    leaves = jax.tree.leaves(batch_stats)
    before = traced.invars[: len(leaves)]
    rows = zip(adapt.paths(batch_stats), leaves, before, traced.outvars, strict=True)
    return [
        path
        for path, leaf, was, after in rows
        if after is not was and jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
