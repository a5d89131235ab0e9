"""The panels of paper Fig. 6 and the curves of the sweeps."""

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
    axes[-1].plot(problems, radii[:, 0], "s-", color="black", label="converged proxies")
    axes[-1].plot(problems, radii[:, 1], "o--", color="tab:red", label="next proxies")
    axes[-1].set(title="mean covering radius", xlabel="problem", ylim=(0, None))
    axes[-1].legend()
    axes[-1].grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def draw_sweeps(curves: dict[str, dict[str, dict[float, list[float]]]], path: Path) -> None:
    """Validation MAP@R by each swept setting."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * len(curves), 3.2), layout="constrained")
    grid = figure.subplots(1, len(curves), squeeze=False)[0]
    for axis, (name, methods) in zip(grid, curves.items(), strict=True):
        for method, values in methods.items():
            points = sorted(values)
            means = [100 * np.mean(values[point]) for point in points]
            axis.plot(points, means, "o-", label=method)
        if name == "strength":
            axis.set_xscale("symlog", linthresh=1e-5)
        axis.set(xlabel=name.replace("_", " "), ylabel="validation MAP@R (%)")
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(path, dpi=110)
