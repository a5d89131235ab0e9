"""The panels of paper Fig. 6, and the ways on from a plateau."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.shown import subplots

PANELS = 5


def draw_panels(source: Path, path: Path) -> None:
    """The start and the first problems: samples as dots, converged proxies as boxes, next proxies as circles."""
    from matplotlib import colormaps

    with np.load(source) as opened:
        saved = dict(opened)
    number = min(int(saved["number"]), PANELS)
    figure, axes = subplots(2, 3, size=(11, 7.2))
    axes = axes.ravel()
    colours = colormaps["tab10"].colors
    for i, axis in enumerate(axes[:number]):
        points, labels, old, new = (saved[f"{k}{i}"] for k in ("points", "labels", "old", "new"))
        for label, colour in enumerate(colours):
            axis.scatter(*points[labels == label].T, s=4, color=colour, alpha=0.35, linewidths=0)
            if i > 0:
                axis.scatter(*old[label].T, s=70, marker="s", color=colour, edgecolors="black")
            axis.scatter(*new[label].T, s=42, marker="o", facecolors="none", edgecolors="black")
            axis.scatter(*new[label].T, s=14, marker="o", color=colour)
        title = "before: the first proxies" if i == 0 else f"problem {i}: converged, and the next"
        axis.set(title=title, aspect="equal", xlim=(-1.1, 1.1), ylim=(-1.1, 1.1))
        axis.set(xticks=[], yticks=[])
    for axis in axes[number:-1]:
        axis.set_axis_off()
    radii = saved["radii"].reshape(-1, 2, 3)
    problems = np.arange(1, len(radii) + 1)
    looks = (("distance", "s", "tab:green"), ("radius", "o", "tab:blue"), ("ratio", "^", "black"))
    for (name, marker, colour), place in zip(looks, (1, 0, 2), strict=True):
        for line, face, part in (("-", colour, "training"), ("--", "none", "validation")):
            values = radii[:, int(part == "validation"), place]
            style = {"color": colour, "markerfacecolor": face, "label": f"{name}, {part}"}
            axes[-1].plot(problems, values, marker + line, markersize=4, **style)
    axes[-1].set(title="classes: distance, covering radius", xlabel="problem", yscale="log")
    axes[-1].legend(
        fontsize=7, loc="upper right", bbox_to_anchor=(1.0, 0.88)
    )  # below the distances
    axes[-1].xaxis.get_major_locator().set_params(integer=True)
    axes[-1].grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def draw_ways(curves: Mapping[str, Sequence[Any]], path: Path) -> None:
    """Validation MAP@R by step since the plateau: a pale line for each seed, a strong one for their mean."""
    figure, ((axis,),) = subplots(size=(6.4, 3.8))
    for place, (way, of_seeds) in enumerate(curves.items()):
        steps, values = np.moveaxis(np.array(of_seeds), -1, 0)
        axis.plot(steps.T, 100 * values.T, color=f"C{place}", alpha=0.2, linewidth=0.7)
        label = f"{way} ({len(of_seeds)} seeds)"
        axis.plot(steps[0], 100 * values.mean(0), color=f"C{place}", label=label, linewidth=2)
    axis.set(
        xlabel="steps since the plateau", ylabel="MAP@R of validation images, %", ylim=(0, 100)
    )
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=110)
