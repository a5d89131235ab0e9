"""How each loss and miner of the library is put before the scene."""

from typing import Any

import jax
import jax.numpy as jnp

import jdml
from jdml.cli.names import PAIR_LOSSES, PROXY_LOSSES
from maker.scene import MINERS, Subject

SEVERAL = {  # losses whose classes have several proxies
    "soft_triple_loss": 2,
    "subcenter_arcface_loss": 2,
    "multi_proxy_anchor_loss": 2,
    "multi_proxy_anchor_dw_loss": 2,
    "multi_proxy_anchor_ap_loss": 2,
    "potential_field_loss": 4,
    "contrastive_potential_loss": 4,
}
SETTINGS: dict[
    str, dict[str, Any]
] = {  # where the defaults are for more dimensions than a picture has
    "triplet_loss": {"margin": 1.0},
}


def pair_subject(name: str) -> Subject:
    """Show a pair loss with all pairs."""
    loss, settings = getattr(jdml, name), SETTINGS.get(name, {})

    def value(points: Any, labels: Any, proxies: Any, key: Any) -> jax.Array:
        return loss(points, labels, **settings)

    return Subject(name, value)


def proxy_subject(name: str) -> Subject:
    """Show a proxy loss; its proxies move, too."""
    loss, settings = getattr(jdml, name), SETTINGS.get(name, {})
    per_class = SEVERAL.get(name, 1)

    def value(points: Any, labels: Any, proxies: Any, key: Any) -> jax.Array:
        return loss(points, labels, proxies if per_class > 1 else proxies[:, 0], **settings)

    return Subject(name, value, proxies=per_class)


def miner_subject(name: str) -> Subject:
    """Show a miner in the triplet loss."""
    miner = getattr(jdml.mining, name)(**MINERS[name])

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


def subjects() -> dict[str, Subject]:
    """Collect all losses and miners by name."""
    found = {f"{name}_loss": pair_subject(f"{name}_loss") for name in PAIR_LOSSES}
    found |= {f"{name}_loss": proxy_subject(f"{name}_loss") for name in PROXY_LOSSES}
    found |= {"nir_loss": nir_subject(), "center_regularizer": center_subject()}
    return found | {name: miner_subject(name) for name in MINERS}
