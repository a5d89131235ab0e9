"""How each loss and miner of the library is put before the scene."""

from typing import Any

import jax
import jax.numpy as jnp

import jdml
from jdml.registry import LOSSES, MINERS, Loss
from maker.scene import Subject

RULES = [*dict.fromkeys(miner.builder for miner in MINERS.values())]
"""Functions that make miners."""
SETTINGS: dict[
    str, dict[str, Any]
] = {  # where the defaults are for more dimensions than a picture has
    "triplet_loss": {"margin": 1.0},
}


def pair_subject(record: Loss) -> Subject:
    """Show a pair loss with all pairs."""
    name = f"{record.name}_loss"
    settings = SETTINGS.get(name, {})

    def value(points: Any, labels: Any, proxies: Any, key: Any) -> jax.Array:
        return record.function(points, labels, **settings)

    return Subject(name, value)


def proxy_subject(record: Loss) -> Subject:
    """Show a proxy loss; its proxies move, too: one of each class, two where it means several, four of a field."""
    name = f"{record.name}_loss"
    settings = SETTINGS.get(name, {})
    per_class = 1 if record.proxies == 1 else 2 if record.needs_proxies else 4

    def value(points: Any, labels: Any, proxies: Any, key: Any) -> jax.Array:
        shown = proxies if per_class > 1 else proxies[:, 0]
        return record.function(points, labels, shown, **settings)

    return Subject(name, value, proxies=per_class)


def miner_subject(name: str) -> Subject:
    """Show a miner in the triplet loss."""
    record = next(each for each in MINERS.values() if each.builder == name)
    miner = record.build(dim=3)

    def value(points: Any, labels: Any, proxies: Any, key: Any) -> jax.Array:
        return jdml.triplet_loss(points, labels, mine=miner, key=key, **SETTINGS["triplet_loss"])

    return Subject(name, value, miner=miner, note="in the triplet loss, margin 1")


def nir_subject() -> Subject:
    """Show NIR with the simplest of flows: one that moves a proxy to the origin and makes the space five times as wide."""

    def value(points: Any, labels: Any, proxies: Any, key: Any) -> jax.Array:
        latents = 5.0 * (points - jdml.sphere(proxies[:, 0])[labels])
        return jdml.nir_loss(latents, jnp.full(labels.shape, 3 * jnp.log(5.0)), shape="softplus")

    return Subject("nir_loss", value, proxies=1)


def center_subject() -> Subject:
    """Show the regularizer of several proxies per class: here the points are the proxies."""

    def value(points: Any, labels: Any, proxies: Any, key: Any) -> jax.Array:
        points = points[:60] if len(points) == 60 else points[:60].at[0].set(points[60])
        return jdml.center_regularizer(points.reshape(3, 20, 3))

    return Subject("center_regularizer", value)


def levels() -> dict[str, tuple[float, float]]:
    """Compute each loss where all points and proxies coincide, and where each class is one corner of a simplex."""
    labels = jnp.repeat(jnp.arange(4), 4)
    corners = jdml.sphere(jnp.eye(8)[:4] - jnp.eye(8)[:4].mean(0))
    values = {}
    for record in LOSSES.values():
        per_class = 2 if record.needs_proxies and record.proxies > 1 else 1
        of_classes = [jnp.broadcast_to(corners[0], corners.shape), corners]
        proxies = [jnp.repeat(points[:, None], per_class, axis=1) for points in of_classes]
        arguments = [
            (points[labels], labels, *([] if record.kind == "pair" else [centres]))
            for points, centres in zip(of_classes, proxies, strict=True)
        ]
        collapsed, apart = (float(record.function(*each)) for each in arguments)
        values[f"{record.name}_loss"] = collapsed, apart
    return values


def subjects() -> dict[str, Subject]:
    """Collect all losses and miners by name."""
    show = {"pair": pair_subject, "proxy": proxy_subject}
    shown = [show[record.kind](record) for record in LOSSES.values()]
    shown += [nir_subject(), center_subject(), *map(miner_subject, RULES)]
    return {subject.name: subject for subject in shown}
