"""Pictures of a loss, where 60 points start, what one feels, where they end: drawn on all cores, and kept."""

import os
import re
import shutil
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import matplotlib as mpl
import numpy as np

import jdml
from maker import stamps
from maker.scene import PROBES, Motion, move, start
from maker.subjects import subjects

COLOURS = ("#3f83f8", "#f08c2e", "#2fa36b")
INK = "#8a8f98"
STYLE = {
    "font.size": 9,
    "font.family": "sans-serif",
    "svg.fonttype": "none",
    "svg.hashsalt": "jdml",
    "text.color": INK,
}


def draw(motion: Motion, file: Path) -> None:
    """Draw start, force and end side by side, and next to it the end alone as a thumbnail."""
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.5, 2.75), layout="constrained")
        axes = figure.subplots(1, 3)
        _ready(axes[0], "start" if motion.pairs is None else "start, and the pairs kept")
        _pairs(axes[0], motion)
        _points(axes[0], motion, 0)
        _ready(axes[1], "the force on a blue point")
        _force(axes[1], motion)
        _points(axes[1], motion, 0, faint=True)
        _ready(axes[2], "end")
        _trails(axes[2], motion)
        _points(axes[2], motion, -1)
        _save(figure, file)
        figure = Figure(figsize=(1.9, 1.9))
        axis = figure.add_axes((0, 0, 1, 1))
        _ready(axis, "")
        _trails(axis, motion)
        _points(axis, motion, -1, size=16)
        _save(figure, file.with_name(f"{file.stem}-end{file.suffix}"))


def draw_collapse(without: Motion, with_it: Motion, file: Path) -> None:
    """Draw the site's first picture: a class of two modes at the start, collapsed, and with easy positives."""
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.5, 2.75), layout="constrained")
        axes = figure.subplots(1, 3)
        for axis, motion, time, title in zip(
            axes,
            (without, without, with_it),
            (0, -1, -1),
            (
                "blue has two modes",
                "triplet loss: they collapse",
                "with easy_positive(): they stay",
            ),
            strict=True,
        ):
            _ready(axis, title)
            if time:
                _trails(axis, motion)
            _points(axis, motion, time)
        _save(figure, file)


def _save(figure: "mpl.figure.Figure", file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, transparent=True, metadata={"Date": None})
    if file.suffix == ".svg":  # a hundredth of a point is enough
        file.write_text(re.sub(r"(\d\.\d\d)\d+", r"\1", file.read_text()))


def _ready(axis: "mpl.axes.Axes", title: str) -> None:
    axis.set(xlim=(-2.08, 2.08), ylim=(-2.08, 2.08), aspect="equal")
    axis.axis("off")
    axis.add_patch(mpl.patches.Circle((0, 0), 2, fill=False, color=INK, linewidth=0.8))
    if title:
        axis.set_title(title, color=INK, fontsize=9)


def _points(
    axis: "mpl.axes.Axes", motion: Motion, time: int, *, faint: bool = False, size: float = 14
) -> None:
    _, labels, modes = start()
    alpha = 0.3 if faint else 0.9
    for mode, marker in enumerate("o^oo"):  # the two modes of blue are told apart by their shape
        members = modes == mode
        axis.scatter(
            *motion.path[time, members].T,
            s=size,
            marker=marker,
            color=COLOURS[labels[members][0]],
            alpha=alpha,
            linewidths=0,
            zorder=3,
        )
    proxies = motion.proxies[time].reshape(3, -1, 2)
    for colour, of_class in zip(COLOURS, proxies, strict=True):
        axis.scatter(
            *of_class.T,
            s=70,
            marker="*",
            color=colour,
            edgecolors=INK,
            linewidths=0.8,
            zorder=4,
            alpha=0.5 if faint else 1,
        )


def _trails(axis: "mpl.axes.Axes", motion: Motion) -> None:
    _, labels, _ = start()
    for path, label in zip(np.moveaxis(motion.path, 1, 0), labels, strict=True):
        # A way around the far side leaves the map at one end and enters it at the other.
        jumps = np.linalg.norm(np.diff(path, axis=0), axis=1) > 1.5
        path = np.where(np.append(jumps, False)[:, None], np.nan, path)
        axis.plot(*path.T, color=COLOURS[label], linewidth=0.5, alpha=0.35, zorder=2)


def _force(axis: "mpl.axes.Axes", motion: Motion) -> None:
    sizes = np.linalg.norm(motion.force, axis=1)
    scale = max(float(np.quantile(sizes, 0.9)), 1e-9)
    # An arrow is shorter by a quarter for each factor of ten, and a dot where the force is 1/10,000.
    lengths = 0.25 * np.clip(1 + np.log10(np.maximum(sizes, 1e-12) / scale) / 4, 0, 1)
    felt = (lengths > 0.02) & (sizes > 1e-9)
    arrows = motion.force[felt] * (lengths[felt] / sizes[felt])[:, None]
    places = np.asarray(PROBES)
    axis.scatter(*places[~felt].T, s=1.5, color=INK, linewidths=0, zorder=2)
    axis.quiver(
        *(places[felt] - arrows / 2).T,
        *arrows.T,
        angles="xy",
        scale_units="xy",
        scale=1,
        width=0.007,
        headwidth=3.6,
        headlength=4,
        headaxislength=3.6,
        color=COLOURS[0],
        alpha=0.85,
        zorder=3,
    )


def _pairs(axis: "mpl.axes.Axes", motion: Motion) -> None:
    if motion.pairs is None:
        return
    points = motion.path[0]
    for anchor in (3, 27):  # two say more than all 60
        for mask, style in ((motion.pairs.positive, "-"), (motion.pairs.negative, ":")):
            for other in np.flatnonzero(mask[anchor]):
                axis.plot(
                    *points[[anchor, other]].T, style, color=INK, linewidth=0.8, alpha=0.8, zorder=2
                )


COLLAPSE = "collapse"
REPORT = ("neighbours", "confusions")
"""Pictures of `jdml.report`, of digits by their pixels."""


def pictures(folder: Path) -> list[Path]:
    """Compute those pictures of the folder that are not there, or out of date."""
    stamp, now = folder / "stamp", stamps.of_pictures()
    if not stamp.is_file() or stamp.read_text() != now:
        shutil.rmtree(folder, ignore_errors=True)
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
            list(pool.map(partial(picture, folder), [*subjects(), COLLAPSE, *REPORT]))
        stamp.write_text(now)
    return sorted(folder.glob("*.svg"))


def picture(folder: Path, name: str) -> None:
    """Compute one picture."""
    shown, file = subjects(), folder / f"{name}.svg"
    if name == COLLAPSE:
        draw_collapse(move(shown["triplet_loss"]), move(shown["easy_positive"]), file)
    elif name in REPORT:
        digits = jdml.data.load("digits", split="test")
        pixels = jdml.sphere(digits.images.reshape(len(digits), -1).astype("float32") - 127)
        figure = (
            jdml.report.gallery(digits.images, pixels, digits.labels, queries=4, order="worst")
            if name == "neighbours"
            else jdml.report.confusions(pixels, digits.labels, k=8)
        )
        figure.savefig(file, bbox_inches="tight")
    else:
        draw(move(shown[name]), file)
