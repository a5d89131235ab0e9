"""Tables and figures of the study, from its results."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.shown import cells, draw_means, subplots
from experiments.smoke import small
from jdml.report import markdown_table, mean_std
from jdml.studies.runner import over_seeds

Results = dict[str, dict[str, Any]]
PAPER = {  # R@1, 2, 4, 8 and NMI on letters; R@1, NMI+ on languages: Table 3, 80×80, ResNet-50
    "triplet": (49.4, 60.0, 69.2, 76.9, 66.2, 71.0, 38.7),
    "margin": (49.4, 61.1, 70.1, 79.2, 68.9, 73.2, 43.5),
    "MS": (57.7, 68.5, 77.3, 83.8, 69.2, 78.8, 46.0),
    "ProxyNCA": (49.1, 60.4, 70.9, 78.9, 69.0, 73.0, 43.3),
    "EPS + triplet": (68.4, 79.3, 86.9, 92.1, 79.6, 85.2, 52.6),
    "EPS + margin": (66.2, 76.7, 84.8, 90.3, 77.9, 83.0, 50.7),
    "EPS + MS": (68.7, 79.1, 86.9, 92.2, 77.3, 86.2, 53.8),
}
PRINTED = ("triplet, printed", "triplet, mined, printed", "EPS + triplet, printed")
"""The triplet loss as paper and framework have it: squared distances, averaged over all; also with mined positives."""
LONGER = "EPS + MS, longer"
"""Four times the steps, a rate that goes from 3e-3 to 0, distorted copies."""
CURVES = small(
    ("triplet", "margin", "MS", "EPS + triplet", "EPS + margin", "EPS + MS"), ("EPS + margin",)
)


class Swept(NamedTuple):
    """How a sweep is reported, and at which values a row of the methods' table is a point of it."""

    heading: str
    column: str
    axis: str
    known: dict[float, str]


CHOICES = "EPS + {} by positives to choose from (1: random positives):"
CHOSEN = "positives that the easy one is chosen from"
TRIMMED = "{} with random positives, the largest terms trimmed:"
SHARE = "trimmed share{} (random positives)"
IN_BATCH = "EPS + triplet by samples per class in a batch of 160:"
PER_ALPHABET = "samples per alphabet in a batch of 160"
T, M = "triplet", "margin"
SWEPT = {
    "positives": Swept(CHOICES.format(T), "positives", CHOSEN, {1: T, 39: "EPS + triplet"}),
    "batches": Swept(IN_BATCH, "samples per class", PER_ALPHABET, {40: "EPS + triplet"}),
    "trimmed": Swept(
        TRIMMED.format("Triplet"), "trimmed share", SHARE.format(" of the triplets"), {0: T}
    ),
    "positives_margin": Swept(
        CHOICES.format(M), "positives", f"margin: {CHOSEN}", {1: M, 39: "EPS + margin"}
    ),
    "trimmed_margin": Swept(
        TRIMMED.format("Margin"), "trimmed share", f"margin: {SHARE.format('')}", {0: M}
    ),
}


def beside_paper(
    results: Results, columns: Sequence[str], paper: dict[str, Any]
) -> list[list[str]]:
    """A row for each method that the paper has: ours and (in brackets) the paper's."""
    return [
        [method, *map("{} ({})".format, cells(results, method, columns), figures)]
        for method, figures in paper.items()
    ]


def methods_table(results: Results, paper: dict[str, Any] = PAPER) -> str:
    """Table 3: the unseen alphabets, ours and (in brackets) the paper's."""
    letters = [f"letter {name}" for name in ("R@1", "R@2", "R@4", "R@8", "NMI")]
    columns = (*letters, "alphabet R@1", "alphabet NMI+")
    titles = ("letters R@1", "R@2", "R@4", "R@8", "NMI", "languages R@1", "NMI+")
    return markdown_table(["method", *titles], beside_paper(results, columns, paper))


def printed_table(results: Results) -> str:
    """The triplet loss as printed, on unseen alphabets and (NMI of languages) on those trained on.

    Beside it the usual one, of the runs that were made again for this table where there are such.
    """
    columns = ("letter R@1", "letter R@8", "letter NMI", "alphabet R@1", "train alphabet NMI")
    there = {name.rpartition("-")[0] for name in results}
    usual = [f"{name}, again" for name in ("triplet", "EPS + triplet")]
    usual = [name if name in there else name.removesuffix(", again") for name in usual]
    rows = [[method, *cells(results, method, columns)] for method in (*usual, *PRINTED)]
    titles = ("letters R@1", "R@8", "NMI", "languages R@1", "trained languages NMI")
    return markdown_table(["method", *titles], rows)


def gains_table(results: Results) -> str:
    """What EPS adds to letters R@1, paired by seed."""
    rows = []
    for method in small(("triplet", "margin", "MS"), ("triplet",)):
        without = over_seeds(results, method, "letter R@1")
        gains = np.subtract(over_seeds(results, f"EPS + {method}", "letter R@1"), without)
        paper = PAPER[f"EPS + {method}"][0] - PAPER[method][0]
        rows.append([method, mean_std(without), mean_std(gains), f"{paper:.1f}"])
    return markdown_table(["loss", "letters R@1", "EPS adds", "paper"], rows)


def trained_table(results: Results) -> str:
    """Table 4: the alphabets that were trained on."""
    columns = ("train alphabet R@1", "train alphabet NMI", "train letter R@1", "train letter NMI")
    paper = {"triplet": (99.9, 93.6, 70.3, 78.4), "EPS + triplet": (94.5, 67.3, 77.5, 87.1)}
    titles = ("languages R@1", "languages NMI", "letters R@1", "letters NMI")
    return markdown_table(["method", *titles], beside_paper(results, columns, paper))


def sweep(results: Results, part: str) -> dict[float, list[float]]:
    """Letters R@1 by the swept value, of a part that is in ``SWEPT``."""
    values: dict[float, list[float]] = {}
    for key, result in results.items():
        name, _, value = key.rpartition("-")[0].partition(" ")
        if name == part:
            values.setdefault(float(value), []).append(result["metrics"]["letter R@1"])
    return values


def report(results: Results, parts: tuple[str, ...], out: Path) -> str:
    """All tables as Markdown, and the figure."""
    sections, curves = [], {}
    if "methods" in parts:
        sections += ["Unseen alphabets, in brackets the paper:", methods_table(results)]
        sections += ["EPS against the same loss without it, paired by seed:", gains_table(results)]
        sections += ["The alphabets trained on:", trained_table(results)]
    if "printed" in parts:
        sections += ["Triplets as printed, beside those above:", printed_table(results)]
    if "longer" in parts:
        paper = {LONGER: PAPER["EPS + MS"]}
        sections += ["As held-out alphabets chose:", methods_table(results, paper)]
    if "curves" in parts:
        draw_training(results, out / "training.png")
    for part, swept in SWEPT.items():
        if part in parts:
            values = sweep(results, part)
            if "methods" in parts:
                for value, method in swept.known.items():
                    values[value] = over_seeds(results, method, "letter R@1")
            curves[swept.axis] = values
            rows = [[f"{v:g}", mean_std(values[v]), str(len(values[v]))] for v in sorted(values)]
            table = markdown_table([swept.column, "letters R@1", "runs"], rows)
            sections += [swept.heading, table]
    if curves:
        draw_curves(curves, out / "curves.png")
    return "\n".join(sections)


def draw_curves(curves: dict[str, dict[float, list[float]]], path: Path) -> None:
    """Letters R@1 against the swept value, mean and standard deviation."""
    figure, (row,) = subplots(columns=len(curves), size=(4.5 * len(curves), 3.4))
    for axes, (title, values) in zip(row, curves.items(), strict=True):
        points = sorted(values)
        draw_means(axes, points, [values[point] for point in points])
        axes.set(xlabel=title, ylabel="letters R@1 (%)", ylim=(0, None))
    figure.savefig(path, dpi=150)


def draw_training(results: Results, path: Path) -> None:
    """Letters R@1 over the steps of training, mean of the seeds and their range (Fig. 5a)."""
    figure, ((axes,),) = subplots(size=(6, 3.8))
    for number, method in enumerate(CURVES):
        runs = np.array(over_seeds(results, f"curve {method}", "curve"))
        if not len(runs):
            continue
        steps, values = runs[0, :, 0], 100 * runs[..., 1]
        style = {"color": f"C{number % 3}", "linestyle": "-" if "EPS" in method else "--"}
        axes.plot(steps, values.mean(0), label=method, **style)
        axes.fill_between(steps, values.min(0), values.max(0), color=style["color"], alpha=0.15)
    axes.set(xlabel="steps", ylabel="letters R@1 (%)", ylim=(0, None))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper")
    figure.savefig(path, dpi=150)
