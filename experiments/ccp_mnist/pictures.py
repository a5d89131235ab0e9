"""The panels of paper Fig. 6, and MAP@R by step (Fig. 4a)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

PANELS = 5


def draw_panels(source: Path, path: Path) -> None:
    """The start and the first problems: samples as dots, converged proxies as boxes, next proxies as circles."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    saved = np.load(source)
    number = min(int(saved["number"]), PANELS)
    figure = Figure(figsize=(11, 7.2), layout="constrained")
    axes = figure.subplots(2, 3).ravel()
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
    radii = saved["radii"]
    problems = np.arange(1, len(radii) + 1)
    axes[-1].plot(problems, radii, "o-", color="black")
    axes[-1].set(title="mean covering radius of classes", xlabel="problem", ylim=(0, None))
    axes[-1].xaxis.get_major_locator().set_params(integer=True)
    axes[-1].grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def draw_curves(curves: Mapping[str, Sequence[Sequence[tuple[int, float]]]], path: Path) -> None:
    """Validation MAP@R by step, a line for each run, a colour for each method."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axis = figure.subplots()
    for number, (method, runs) in enumerate(curves.items()):
        for seed, run in enumerate(runs):
            steps, values = zip(*run, strict=True)
            label = method if seed == 0 else None
            axis.plot(steps, 100 * np.array(values), color=f"C{number}", lw=1, label=label)
    axis.set(xlabel="step", ylabel="validation MAP@R (%)", ylim=(0, 100))
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right")
    figure.savefig(path, dpi=110)
