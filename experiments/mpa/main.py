"""Multi-proxies anchor losses: how many proxies per class, and nDCG@k beside Recall and MAP@R.

After Saeki, Kawahara & Aman, *Multi Proxy Anchor Family Loss for Several Types of Gradients*, Tables 4–8, at the size
of a laptop: even and odd digits, and Omniglot's alphabets tested on the letters of alphabets never seen. Finished runs
are kept.
"""

import dataclasses
from pathlib import Path
from typing import Any, Literal

from experiments.mpa.gradients import draw_gradients
from experiments.options import InFolder, start
from experiments.potential_fields.study import LOSSES, TASKS, base_of, run
from experiments.shown import beside, cells, draw_means, subplots, tell
from experiments.smoke import small
from jdml.report import markdown_table, mean_std
from jdml.studies.runner import over_seeds, run_study

NUMBERS = small((1, 4, 8, 12, 16), (1, 2))
FAMILY = small(("SoftTriple", "MPA", "MPA-DW", "MPA-AP"), ("MPA",))
SHOWN = small(12, 2)  # proxies per class in the nDCG table
QUALITY = ("R@1", "nDCG@2", "nDCG@4", "nDCG@8", "MAP@R")
PAPER = {  # R@1, nDCG@8, MAP@R on CUB
    "SoftTriple": "67.6 · 59.4 · 25.5",
    "ProxyAnchor": "68.6 · 60.9 · 26.7",
    "MPA": "69.2 · 61.3 · 26.6",
    "MPA-DW": "68.9 · 61.1 · 26.3",
    "MPA-AP": "69.1 · 61.3 · 26.6",
}


@dataclasses.dataclass(frozen=True)
class Settings(InFolder):
    """What is run."""

    data: Literal["digits", "mnist", "omniglot"] = "digits"
    """digits: 1,797 real 8×8 digits that come with scikit-learn. mnist, omniglot: the full sets in --data-dir.
    300, 500 and 1200 steps, unless --steps are given."""


def make_jobs(settings: Settings) -> dict[str, dict[str, Any]]:
    """Every run of the study by name."""
    base = base_of(settings.data, settings.folder, settings.steps)
    runs: dict[str, dict[str, Any]] = {"ProxyAnchor": {"method": "ProxyAnchor", "settings": {}}}
    for method in FAMILY:
        for number in NUMBERS:
            own = {**LOSSES[method][1], "proxies_per_class": number}
            runs[f"{method} {number}"] = {"method": method, "settings": own}
    return {
        f"{name}-{seed}": {**base, **own, "seed": seed}
        for seed in range(settings.seeds)
        for name, own in runs.items()
    }


def report(results: dict[str, Any], settings: Settings) -> str:
    """Both tables as Markdown."""
    view = TASKS[settings.data].views[0]
    sweep = [
        [method, *(mean_std(over_seeds(results, f"{method} {k}", f"{view} R@1")) for k in NUMBERS)]
        for method in FAMILY
    ]
    quality = []
    for method, paper in PAPER.items():
        name = method if method == "ProxyAnchor" else f"{method} {SHOWN}"
        scores = cells(results, name, [f"{view} {m}" for m in QUALITY])  # older runs had fewer
        quality.append([method, *scores, paper])
    numbers = markdown_table(["method", *map(str, NUMBERS)], sweep)
    scored = markdown_table(["method", *QUALITY, "paper, CUB, K = 10"], quality)
    return (
        f"{view} R@1 by the number of proxies per class:\n\n{numbers}\n"
        f"{SHOWN} proxies per class (ProxyAnchor: 1):\n\n{scored}"
    )


def draw(results: dict[str, Any], settings: Settings, path: Path) -> None:
    """R@1 over the number of proxies."""
    view = TASKS[settings.data].views[0]
    figure, ((axes,),) = subplots(size=(5.4, 3.4))
    for method in FAMILY:
        runs = [over_seeds(results, f"{method} {number}", f"{view} R@1") for number in NUMBERS]
        draw_means(axes, NUMBERS, runs, label=method)
    axes.set(xlabel="proxies per class", ylabel=f"{view} R@1 (%)", xticks=NUMBERS)
    figure.legend(loc="outside right upper")
    figure.savefig(path, dpi=130)


def main(settings: Settings) -> str | None:
    """Run what is missing, print the tables, write tables and figure; or only the tables of what is kept."""
    if settings.table:
        return report(beside(__file__, settings.data), settings)
    out = settings.place("mpa")
    results = run_study(run, make_jobs(settings), out / "results.jsonl", workers=settings.workers)
    tell(report(results, settings), results, out / "tables.md")
    draw(results, settings, out / "proxies.png")
    draw_gradients(out / "gradients.png")
    return None


if __name__ == "__main__":
    start(main, Settings, __doc__)
