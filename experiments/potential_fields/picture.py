"""The field of paper Fig. 2: two classes in the plane, a class's potential as contours, its force as arrows.

Of charges that were put there, and of embeddings and proxies that were learned in the plane.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jdml
from experiments.shown import draw_means, subplots
from experiments.smoke import NETWORK, small
from jdml import fields
from jdml.recipes import (
    BatchConfig,
    LossConfig,
    NetworkConfig,
    OptimizerConfig,
    ProxyConfig,
    Recipe,
)
from jdml.studies.runner import over_seeds
from jdml.training import train_recipe

COLOURS = ("#1f77b4", "#d62728")
Scene = tuple[np.ndarray, np.ndarray, np.ndarray]


def scene() -> Scene:
    """Charges, their labels, and which of them are proxies: a class of two clusters around another one."""
    rng = np.random.default_rng(2)
    centres = np.array([[-0.75, 0.35], [0.8, -0.35], [0.05, 0.05]])
    owners = np.array([0, 0, 1])
    points = [centre + 0.13 * rng.normal(size=(12, 2)) for centre in centres]
    proxies = centres + 0.04 * rng.normal(size=centres.shape)
    charges = np.concatenate([*points, proxies])
    labels = np.concatenate([np.repeat(owners, 12), owners])
    return charges, labels, np.arange(len(charges)) >= 36


def learned(steps: int = small(300, 2), shown: int = 60) -> Scene:
    """Even and odd digits and their proxies as PFML lays them into the unit disk, of each class some samples."""
    digits = jdml.data.load("digits")
    train = digits.select(digits.views["digit"] <= 5).relabel("parity")
    loss = LossConfig(
        "potential_field",
        {"alpha": 1.0, "reduce_fn": "sum"},
        normalize="ball",
        proxies=ProxyConfig(5, "samples"),
    )
    recipe = Recipe(
        loss=loss,
        network=NetworkConfig(small("eps", NETWORK), dim=2),
        batch=BatchConfig(64, steps=steps),
        optimizer=OptimizerConfig(learning_rate=1e-3, lr_multipliers={"proxies": 30.0}),
    )
    result = train_recipe.train(recipe, train, progress=False)
    rows = np.concatenate([np.flatnonzero(train.labels == c)[:shown] for c in (0, 1)])
    samples = jdml.ball(jnp.asarray(result.embedder(train.images[rows])))
    proxies = jdml.ball(result.state.params["proxies"].reshape(-1, 2))
    charges = np.concatenate([np.asarray(samples), np.asarray(proxies)])
    labels = np.concatenate([train.labels[rows], np.repeat([0, 1], 5)])
    return charges, labels, np.arange(len(charges)) >= len(rows)


def panel(axes: Any, title: str, shown: Scene, label: int = 0, **settings: Any) -> None:
    """The field of a class."""
    charges, labels, is_proxy = shown
    side = np.linspace(-1.4, 1.4, 141)
    grid = np.stack(np.meshgrid(side, side), axis=-1)

    def field(x: jax.Array) -> jax.Array:
        return fields.class_field(x, label, jnp.asarray(charges), jnp.asarray(labels), **settings)

    flat = jnp.asarray(grid.reshape(-1, 2))
    values = np.asarray(field(flat)).reshape(grid.shape[:2])
    force = -np.asarray(jax.grad(lambda x: field(x).sum())(flat)).reshape(grid.shape)
    low, high = np.percentile(values, (1, 97))
    axes.contourf(side, side, np.clip(values, low, high), levels=24, cmap="RdBu_r")
    size = np.linalg.norm(force, axis=-1, keepdims=True)
    arrows = (force / np.maximum(size, 1e-9) * np.log1p(size / np.median(size)))[4::9, 4::9]
    axes.quiver(side[4::9], side[4::9], arrows[..., 0], arrows[..., 1], color="0.25", width=0.003)
    for of_class, colour in enumerate(COLOURS):
        for kind, marker, area in ((False, "o", 14), (True, "*", 190)):
            chosen = (labels == of_class) & (is_proxy == kind)
            style = {"marker": marker, "c": colour, "edgecolors": "white", "linewidths": 0.7}
            axes.scatter(*charges[chosen].T, s=area, **style)
    axes.set(title=title, xticks=[], yticks=[], aspect="equal")


def draw_fields(path: Path, delta: float = 0.2, alpha: float = 2.0) -> None:
    """PFML beside CPML: the field that the blue class feels."""
    figure, ((left, right),) = subplots(columns=2, size=(9.4, 4.9))
    # As far as the gap between the clusters: with δ nothing would be seen of the repulsion.
    reach = 2.5 * delta
    title = f"PFML, δ = {delta:g}, δ_rep = {reach:g}, α = {alpha:g}"
    panel(left, title, scene(), delta=delta, alpha=alpha, repulsion_delta=reach)
    foil = fields.contrastive_potential
    panel(right, f"CPML, δ = {delta:g}", scene(), potential=foil, delta=delta)
    figure.suptitle("What a blue sample feels: blue attracts, red repels (stars: proxies)")
    figure.savefig(path, dpi=130)


def draw_learned(path: Path) -> None:
    """What each of the two classes feels, of embeddings and proxies that were learned."""
    figure, (row,) = subplots(columns=2, size=(9.4, 4.9))
    digits = learned()
    for label, name in enumerate(("an even digit (blue)", "an odd digit (red)")):
        panel(row[label], f"What {name} feels", digits, label, delta=0.2, alpha=1.0)
    figure.suptitle("Digits 0 to 5 by parity, learned in the plane by PFML (stars: proxies)")
    figure.savefig(path, dpi=130)


def draw_sweeps(
    results: Mapping[str, Any], sweeps: Mapping[str, tuple[float, ...]], measure: str, path: Path
) -> None:
    """Fig. 3: a measure by one parameter at a time, mean and deviation of the seeds."""
    figure, (row,) = subplots(columns=len(sweeps), size=(3.1 * len(sweeps), 3.1), sharey=True)
    for axes, (name, values) in zip(row, sweeps.items(), strict=True):
        runs = [over_seeds(results, f"{name} {value:g}", measure) for value in values]
        draw_means(axes, range(len(values)), runs)
        axes.set_xticks(range(len(values)), [f"{value:g}" for value in values])
        axes.set(xlabel=name.replace("_", " "))
    row[0].set_ylabel(f"{measure} (%)")
    figure.savefig(path, dpi=130)
