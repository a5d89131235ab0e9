"""Every method with its paper's settings, and what a trial of the tuning changes of them.

Steps, batches and learning rate are the study's; what a paper says of its loss, miner, proxies and memory is kept.
"""

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jdml
from experiments.omniglot import methods as known
from experiments.smoke import small
from jdml.objectives import Objective
from jdml.recipes import Recipe
from jdml.recipes.objective import loss_settings, of_proxies, of_samples
from jdml.recipes.words import build_miner
from jdml.registry import LOSSES

RATE, ROWS, PER_CLASS = 1e-3, small(64, 8), 4
"""Of all methods, if they are not tuned; proxy losses have random rows."""
PROXIES = 2
"""Per letter, where a loss takes several: what papers have for many classes of few images; CCP's are 4."""
MEMORY, POOL, PATIENCE = 2048, 7, 3
SHARED = 8
"""Ranges of a method, at most: a method's own ranges come last and move no other's point."""
PREFIXES = (128, 64, 32, 16)
RANGES = Path(__file__).parent / "ranges.toml"

EVERYDAY = {
    "InfoNCE": known.of("info_nce"),
    "SupCon": known.of("sup_con"),
    "NCA": known.of("nca", scale=10.0),
    "sigmoid contrastive": known.of("sigmoid_contrastive"),
    "Smooth-AP": known.of("smooth_ap"),
    "Recall@k surrogate": known.of("recall_at_k"),
    "sub-centre ArcFace": known.of("subcenter_arcface"),
}
FIELD = known.several("potential_field", alpha=4.0, **known.FIELD)
FOUND = known.several("potential_field", alpha=1.0, **known.FIELD)
FIELDS = {
    "PFML": dataclasses.replace(FIELD, max_proxy_entry=None),
    "PFML, found": dataclasses.replace(FOUND, start="samples"),
}
ALSO_EASY = {
    "EPS + contrastive (similarity)": known.of("similarity_contrastive", known.EASY),
    "EPS + SupCon": known.of("sup_con", known.EASY),
}
ALONE = {**known.BASES, **EVERYDAY, **FIELDS, **known.EPS, **ALSO_EASY}
REMEMBERING = ("contrastive", "triplet", "MS", "EPS + MS")
ALTERNATING = ("contrastive", "MS")
REGULARIZED = ("ProxyAnchor", "ProxyNCA*", "SoftTriple", "MPA-AP", "PFML, found")
NESTED = {f"{name}, matryoshka": name for name in ("MS", "SupCon", "ProxyAnchor")}


def on_letters(recipe: Recipe) -> Recipe:
    """The recipe as all are trained that are not tuned."""
    random = recipe.has_proxies and not recipe.has_hook
    made = known.on_data(recipe, ROWS if random else (ROWS // PER_CLASS, PER_CLASS), RATE, POOL)
    number = 4 if recipe.has_hook else PROXIES if LOSSES[recipe.loss].several else None
    rates = {**made.role_rates, "beta": 50.0}
    return dataclasses.replace(made, proxies_per_class=number, role_rates=rates, schedule="cosine")


METHODS: dict[str, Recipe] = {
    name: on_letters(recipe)
    for name, recipe in {
        **ALONE,
        **{f"{name} + XBM": known.remembering(ALONE[name], MEMORY) for name in REMEMBERING},
        **{f"{name} + CCP": known.against_proxies(ALONE[name], PATIENCE) for name in ALTERNATING},
        **{f"{name} + NIR": known.regularized(ALONE[name]) for name in REGULARIZED},
        **{nested: ALONE[name] for nested, name in NESTED.items()},
    }.items()
}


def tuned(recipe: Recipe, settings: Mapping[str, Any]) -> Recipe:
    """The recipe with the values of a trial: of itself, of its method, all others of its loss."""
    of_method = {} if recipe.method is None else vars(recipe.method)
    fields: dict[str, Any] = {}
    loss, method = dict(recipe.settings), {}
    for name, value in settings.items():
        if name == "per_class":
            fields["batch"] = (ROWS // value, value)
        elif name == "proxies_rate":
            fields["role_rates"] = {**recipe.role_rates, "proxies": value}
        elif name in ("rate", "memory", "proxies_per_class"):
            fields[name] = value
        elif name in of_method:
            method[name] = value
        else:
            loss[name] = value
    if recipe.method is not None:
        fields["method"] = dataclasses.replace(recipe.method, **method)
    made = dataclasses.replace(recipe, settings=loss, **fields)
    return known.on_data(made, made.batch, made.rate, POOL)


def ranges_of(recipe: Recipe) -> dict[str, dict[str, list[Any]]]:
    """What is tuned of a method, by the name of the setting."""
    record, ranges = LOSSES[recipe.loss], tomllib.loads(RANGES.read_text())
    sections = ["all", record.kind]
    sections += ["several"] * record.several + ["memory"] * bool(recipe.memory)
    sections += [] if recipe.method is None else [recipe.method.name]
    own = [ranges[section] for section in sections]
    return {
        name: span for part in (*own, ranges["losses"][recipe.loss]) for name, span in part.items()
    }


def trial(recipe: Recipe, number: int, dims: int | None = None) -> dict[str, Any]:
    """The values of a trial, from 0: points that fill the ranges evenly, the same ones whenever they are asked for.

    With ``dims=SHARED`` a range that two methods share has the same point in both.
    """
    ranges = ranges_of(recipe)
    points = spread(len(ranges) if dims is None else dims, number)[: len(ranges)]
    return {
        name: _value(span, point)
        for (name, span), point in zip(ranges.items(), points, strict=True)
    }


def spread(dims: int, number: int) -> list[float]:
    """A point of a quasi-random sequence in [0, 1)^d: multiples of powers of 1/φ, where φ^(d+1) = φ + 1."""
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
    """What no recipe names: the loss of nested prefixes; None where the recipe says all."""
    if name not in NESTED:
        return None
    loss_fn = LOSSES[recipe.loss].function
    settings = loss_settings(recipe, loss_fn)
    make = of_proxies if recipe.has_proxies else of_samples
    if make is of_samples:
        settings["mine"] = build_miner(recipe.miner, recipe.dim)
    return make(recipe, jdml.matryoshka(loss_fn, PREFIXES), classes, recipe.dim, settings)
