"""What changes the order of methods by letter, as pictures: one for each factor."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.letters.levels import FACTORS, USUAL, ordered
from experiments.letters.tables import Model, mean_of
from experiments.shown import subplots
from jdml.report import Paired, paired

ByLevel = Mapping[Any, Mapping[Model, float]]
"""MAP@R of a method by level and model (seed, fold)."""
TITLES = {
    "letters": "training letters of a fold",
    "drawings": "drawings of a training letter",
    "wrong": "share of wrong labels",
    "augmented": "drawings of a batch",
    "dim": "dimensions",
    "steps": "steps",
    "batch": "drawings in a batch",
}
SHOWN: dict[str, Callable[[Any], str]] = {
    "wrong": "{:.0%}".format,
    "augmented": lambda yes: "turned and moved" if yes else "as they are",
}
MARKERS = "osD^vPX"
DODGE = 0.09
"""Methods stand side by side, so far apart in levels."""


def draw(factor: str, values: Mapping[str, ByLevel], seeds: tuple[int, ...], path: Path) -> None:
    """MAP@R over the levels of a factor, and how far that is from the usual one.

    Args:
        factor: its name.
        values: of each method, of all seeds.
        seeds: those that have every level; what others have is drawn hollow, where they have it.
        path: where the picture goes.
    """
    figure, (panels,) = subplots(1, 2, size=(13, 4.6))
    usual, others = USUAL[factor], FACTORS[factor]
    levels = ordered(factor)
    for number, (method, own) in enumerate(values.items()):
        style: dict[str, Any] = {"color": f"C{number}", "marker": MARKERS[number], "capsize": 2}
        aside = DODGE * (number - (len(values) - 1) / 2)
        mine, asked = parted(own, seeds)
        means = [(place, mean_of(mine[at])) for place, at in enumerate(levels) if mine.get(at)]
        _errors(panels[0], means, **style, label=method)
        for models, shift, fill in ((mine, 0.0, style["color"]), (asked, DODGE / 2, "white")):
            gains = [
                (place + aside + shift, paired(models[level], models[usual]))
                for place, level in enumerate(others)
                if models.get(level) and models.get(usual)
            ]
            _errors(panels[1], gains, **style, linestyle="", markerfacecolor=fill)
    shown = SHOWN.get(factor, str)
    for axes, ticks in zip(panels, (levels, others), strict=True):
        names = [f"{shown(at)}\n(usual)" if at == usual else shown(at) for at in ticks]
        axes.set_xticks(range(len(ticks)), names)
        axes.set_xlim(-0.5, len(ticks) - 0.5)
        axes.set_xlabel(TITLES[factor])
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("MAP@R, unseen letters (%)")
    panels[1].set_ylabel("points above the usual level")
    panels[1].axhline(0, color="black", linewidth=0.8)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right", frameon=False)
    told = ", ".join(map(str, seeds))
    figure.suptitle(f"models of seed {told}, hollow: of the others; means and 95 %", size=9)
    figure.savefig(path, dpi=80)


def parted(own: ByLevel, seeds: tuple[int, ...]) -> list[dict[Any, dict[Model, float]]]:
    """The models of these seeds by level, and those of all others."""
    return [
        {
            level: {model: value for model, value in models.items() if (model[0] in seeds) is these}
            for level, models in own.items()
        }
        for these in (True, False)
    ]


def _errors(axes: Any, points: Sequence[tuple[float, Paired]], **style: Any) -> None:
    """Means with intervals; of one model there is none."""
    if not points:
        return
    places, found = zip(*points, strict=True)
    sides = [
        (gap.mean - gap.low, gap.high - gap.mean) if gap.seeds > 1 else (0.0, 0.0) for gap in found
    ]
    axes.errorbar(places, [gap.mean for gap in found], np.transpose(sides), **style)
