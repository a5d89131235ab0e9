"""The field of paper Fig. 2: two classes in the plane, the first one's potential as contours, its force as arrows."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jdml import fields

COLOURS = ("#1f77b4", "#d62728")


def scene() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Charges, their labels, and which of them are proxies: a class of two clusters around another one."""
    rng = np.random.default_rng(2)
    centres = np.array([[-0.75, 0.35], [0.8, -0.35], [0.05, 0.05]])
    owners = np.array([0, 0, 1])
    points = [centre + 0.13 * rng.normal(size=(12, 2)) for centre in centres]
    proxies = centres + 0.04 * rng.normal(size=centres.shape)
    charges = np.concatenate([*points, proxies])
    labels = np.concatenate([np.repeat(owners, 12), owners])
    return charges, labels, np.arange(len(charges)) >= 36


def panel(axes: Any, title: str, **settings: Any) -> None:
    """One field."""
    charges, labels, is_proxy = scene()
    side = np.linspace(-1.4, 1.4, 141)
    grid = np.stack(np.meshgrid(side, side), axis=-1)

    def field(x: jax.Array) -> jax.Array:
        return fields.class_field(x, 0, jnp.asarray(charges), jnp.asarray(labels), **settings)

    flat = jnp.asarray(grid.reshape(-1, 2))
    values = np.asarray(field(flat)).reshape(grid.shape[:2])
    force = -np.asarray(jax.grad(lambda x: field(x).sum())(flat)).reshape(grid.shape)
    low, high = np.percentile(values, (1, 97))
    axes.contourf(side, side, np.clip(values, low, high), levels=24, cmap="RdBu_r")
    size = np.linalg.norm(force, axis=-1, keepdims=True)
    arrows = (force / np.maximum(size, 1e-9) * np.log1p(size / np.median(size)))[4::9, 4::9]
    axes.quiver(side[4::9], side[4::9], arrows[..., 0], arrows[..., 1], color="0.25", width=0.003)
    for label, colour in enumerate(COLOURS):
        for kind, marker, area in ((False, "o", 14), (True, "*", 190)):
            chosen = (labels == label) & (is_proxy == kind)
            axes.scatter(
                *charges[chosen].T,
                s=area,
                marker=marker,
                c=colour,
                edgecolors="white",
                linewidths=0.7,
            )
    axes.set(title=title, xticks=[], yticks=[], aspect="equal")


def draw_fields(path: Path, delta: float = 0.2, alpha: float = 2.0) -> None:
    """PFML beside CPML: the field that the blue class feels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.4, 4.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    # As far as the gap between the clusters: with δ nothing would be seen of the repulsion.
    reach = 2.5 * delta
    title = f"PFML, δ = {delta:g}, δ_rep = {reach:g}, α = {alpha:g}"
    panel(left, title, delta=delta, alpha=alpha, repulsion_delta=reach)
    panel(right, f"CPML, δ = {delta:g}", potential=fields.contrastive_potential, delta=delta)
    figure.suptitle("What a blue sample feels: blue attracts, red repels (stars: proxies)")
    figure.savefig(path, dpi=130)
