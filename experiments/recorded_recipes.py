"""Recipes as the studies' records hold them: by the names that their values had before a recipe had parts."""

from collections.abc import Mapping
from functools import reduce
from typing import Any

from jdml.recipes import Recipe

NAMES = {
    "loss": "loss.name",
    "settings": "loss.settings",
    "miner": "loss.miner",
    "normalize": "loss.normalize",
    "learn_beta": "loss.learn_beta",
    "memory": "loss.memory_size",
    "memory_wait": "loss.memory_start_step",
    "proxies_per_class": "loss.proxies.per_class",
    "start": "loss.proxies.init",
    "max_proxy_entry": "loss.proxies.clip_value",
    "method": "loss.method",
    "network": "network.name",
    "dim": "network.dim",
    "rate": "optimizer.learning_rate",
    "role_rates": "optimizer.lr_multipliers",
    "schedule": "optimizer.schedule",
}
"""The names of all values but the batch, which is a number of rows, or two: classes, and samples of each."""
OF_METHOD = {
    "first": "initial_proxies",
    "flow_lr": "flow_learning_rate",
    "embeddings_wait": "start_step",
}


def batch_of(rows: Any) -> dict[str, int]:
    """Return what a recorded batch is of a recipe's."""
    if isinstance(rows, int):
        return {"size": rows}
    return {"classes": rows[0], "samples_per_class": rows[1]}


def from_flat(values: Mapping[str, Any]) -> Recipe:
    """Read a recipe of a record, of which what is not there has its default."""
    nested: dict[str, Any] = {"batch": batch_of(values["batch"])} if "batch" in values else {}
    for name, value in values.items():
        if name == "method" and value is not None:
            value = {OF_METHOD.get(own, own): number for own, number in value.items()}
        if name != "batch":
            *path, last = NAMES[name].split(".")
            reduce(lambda part, key: part.setdefault(key, {}), path, nested)[last] = value
    return Recipe.from_json(nested)


def to_flat(recipe: Recipe) -> dict[str, Any]:
    """Return what of a recipe is no default, as records have it."""
    own, usual = _flat(recipe), _flat(Recipe())
    flat = {name: value for name, value in own.items() if value != usual[name]}
    if from_flat(flat) != recipe:
        raise ValueError(f"recipe must have no other values than {', '.join(NAMES)}, got {recipe}")
    return flat


def _flat(recipe: Recipe) -> dict[str, Any]:
    values, names = recipe.to_json(), {now: was for was, now in OF_METHOD.items()}
    flat = {name: reduce(dict.__getitem__, path.split("."), values) for name, path in NAMES.items()}
    if flat["method"] is not None:
        flat["method"] = {names.get(name, name): value for name, value in flat["method"].items()}
    classes, each = recipe.batch.classes, recipe.batch.samples_per_class
    return {**flat, "batch": recipe.batch.size if classes is None else [classes, each]}
