"""Every method with its paper's settings, and what a trial of the tuning changes of them."""

from collections.abc import Mapping
from typing import Any

import jdml
from experiments.omniglot import methods as known
from experiments.smoke import small
from experiments.study import batch_of, read_toml
from jdml import objectives
from jdml.objectives import Objective
from jdml.recipes import Recipe
from jdml.recipes.loss import build_miner
from jdml.registry import LOSSES

RATE, ROWS, PER_CLASS = 1e-3, small(64, 8), 4
"""Settings of all methods that are not tuned; proxy losses have random rows."""
PROXIES = 2
"""Per letter, where a loss takes several: what papers have for many classes of few images; CCP's are 4."""
MEMORY, POOL, PATIENCE = 2048, 7, 3
SHARED = 8
"""Ranges of a method, at most: a method's own ranges come last and move no other's point."""
PREFIXES = (128, 64, 32, 16)
RANGES = read_toml(__file__, "ranges.toml")
LETTERS, EPS = known.read_methods("letters"), known.read_methods("letters_eps")
ALONE = {**known.BASES, **LETTERS, **known.EPS, **EPS}
REMEMBERING = ("contrastive", "triplet", "MS", "EPS + MS")
REGULARIZED = ("ProxyAnchor", "ProxyNCA*", "SoftTriple", "MPA-AP", "PFML, found")
NESTED = {f"{name}, matryoshka": name for name in ("MS", "SupCon", "ProxyAnchor")}


def on_letters(recipe: Recipe) -> Recipe:
    """Return the recipe as all are trained that are not tuned."""
    alternating = recipe.loss.needs_validation
    random = recipe.loss.has_proxies and not alternating
    batch = batch_of(ROWS if random else (ROWS // PER_CLASS, PER_CLASS))
    number = 4 if alternating else PROXIES if LOSSES[recipe.loss.name].proxies > 1 else None
    rates = {**recipe.optimizer.lr_multipliers, "beta": 50.0}
    return known.on_data(recipe, batch, RATE, POOL).replace(
        loss={"proxies": {"per_class": number}},
        optimizer={"lr_multipliers": rates, "schedule": "cosine"},
    )


METHODS: dict[str, Recipe] = {
    name: on_letters(recipe)
    for name, recipe in {
        **ALONE,
        **{f"{name} + XBM": known.remembering(ALONE[name], MEMORY) for name in REMEMBERING},
        **{
            f"{name} + CCP": known.against_proxies(ALONE[name], PATIENCE)
            for name in ("contrastive", "MS")
        },
        **{f"{name} + NIR": known.regularized(ALONE[name]) for name in REGULARIZED},
        **{nested: ALONE[name] for nested, name in NESTED.items()},
    }.items()
}


def tuned(recipe: Recipe, settings: Mapping[str, Any]) -> Recipe:
    """Return the recipe with the values of a trial: of itself, of its method, all others of its loss."""
    for name, value in settings.items():
        change: dict[str, Any]
        if name == "rate":
            change = {"optimizer": {"learning_rate": value}}
        elif name == "proxies_rate":
            rates = {**recipe.optimizer.lr_multipliers, "proxies": value}
            change = {"optimizer": {"lr_multipliers": rates}}
        elif name == "per_class":
            change = {"batch": batch_of((ROWS // value, value))}
        elif name == "proxies_per_class":
            change = {"loss": {"proxies": {"per_class": value}}}
        elif name == "memory":
            change = {"loss": {"memory_size": value}}
        elif name in getattr(recipe.loss.method, "__dict__", ()):
            change = {"loss": {"method": {name: value}}}
        else:
            change = {"loss": {"settings": {**recipe.loss.settings, name: value}}}
        recipe = recipe.replace(**change)
    return known.on_data(recipe, {}, recipe.optimizer.learning_rate, POOL)


def ranges_of(recipe: Recipe) -> dict[str, dict[str, list[Any]]]:
    """Return the ranges of a method's tuned settings, by name."""
    loss = recipe.loss
    sections = ["all", loss.kind, *["several"] * (LOSSES[loss.name].proxies > 1)]
    sections += ["memory"] * bool(loss.memory_size) + ([loss.method.name] if loss.method else [])
    own = [*(RANGES[section] for section in sections), RANGES["losses"][loss.name]]
    return {name: span for part in own for name, span in part.items()}


def trial(recipe: Recipe, number: int, dims: int | None = None) -> dict[str, Any]:
    """Return the values of a trial: points that fill the ranges evenly, with ``dims=SHARED`` alike in two methods."""
    ranges = ranges_of(recipe)
    points = spread(len(ranges) if dims is None else dims, number)[: len(ranges)]
    return {
        name: _value(span, point)
        for (name, span), point in zip(ranges.items(), points, strict=True)
    }


def spread(dims: int, number: int) -> list[float]:
    """Return a point of a quasi-random sequence in [0, 1)^d: multiples of powers of 1/φ, where φ^(d+1) = φ + 1."""
    root = 2.0
    for _ in range(64):
        root = (1 + root) ** (1 / (dims + 1))
    return [(0.5 + (number + 1) * root**-power) % 1 for power in range(1, dims + 1)]


def _value(span: Mapping[str, list[Any]], point: float) -> Any:
    ((kind, ends),) = span.items()
    if kind == "of":
        return ends[int(point * len(ends))]
    low, high = ends
    value = low * (high / low) ** point if kind == "log" else low + (high - low) * point
    return float(f"{value:.3g}")


def objective_of(name: str, recipe: Recipe, classes: int) -> Objective | None:
    """Return the loss of nested prefixes, which no recipe names; None for other methods."""
    if name not in NESTED:
        return None
    loss, dim = recipe.loss, recipe.network.dim
    nested = jdml.matryoshka(LOSSES[loss.name].function, PREFIXES)
    settings = {**loss.settings, "normalize": loss.normalization}
    if loss.has_proxies:
        return loss.of_proxies(nested, classes, dim, **settings)
    return objectives.pair(nested, mine=build_miner(loss.miner, dim), **settings)
