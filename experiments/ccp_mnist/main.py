"""CCP on digits in the plane: proxies that coalesce, and alternating problems that spread them again.

After Gürbüz, Can & Alatan, *Deep Metric Learning with Chance Constraints*, Figs. 2 and 6 (the panels), 4 (alternating
against a single problem, steps per problem), 5 (pools and proxies), 7 (radii and distances, also of images that do not
train), 8 (strength of the anchor) and 9 (classes in a batch): ResNet20-v2, contrastive loss with K = 4 proxies per
class as references, b = 16 samples per class in a pool. Finished runs are kept.
"""

import dataclasses
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from experiments.ccp_mnist.pictures import draw_panels
from experiments.ccp_mnist.study import BASE, METHODS, TASKS, run
from experiments.options import InFolder, start
from experiments.shown import beside, cell, cells, tell
from experiments.smoke import small
from jdml.report import curves, markdown_table, paired
from jdml.studies.runner import over_seeds, run_study


class Sweep(NamedTuple):
    """A grid: a row per value of one setting, a column per value of another."""

    setting: str
    values: tuple[float, ...]
    beside: str
    beside_values: tuple[Any, ...]


SWEEPS = {
    "pool": Sweep(
        "pool_size", small((8, 16, 32), (8,)), "proxies_per_class", small((1, 4, 8), (4,))
    ),
    "strength": Sweep("strength", (0.0, 2e-4, 2e-2), "proxies_per_class", (1, 4, 8)),
    "batch": Sweep("classes_per_batch", (2, 4, 8, 10), "method", ("in batch", "CCP")),
}
OF_PROBLEMS = {
    "steps": ("steps", 1.0, 0),
    "MAP@R": ("validation", 100.0, 1),
    "spread of proxies": ("within", 1.0, 3),
    "of the next": ("next within", 1.0, 3),
    "covering radius of classes": ("class radius", 1.0, 3),
    "distance between classes": ("between classes", 1.0, 3),
    "ratio": ("class ratio", 1.0, 3),
    "of validation": ("unseen ratio", 1.0, 3),
}
"""What is told of each problem: its name in the history, its scale, its digits."""
PAPER = {"in batch": "–", "samples": "98.06", "single": "–", "CCP": "97.21"}


@dataclasses.dataclass(frozen=True)
class Settings(InFolder):
    """What is run."""

    data: Literal["digits", "mnist"] = "digits"
    """digits: 1,797 real 8×8 digits that come with scikit-learn. mnist: the full 28×28 set in --data-dir."""
    sweep_seeds: int = 1
    """Runs per point of the sweeps."""
    parts: tuple[Literal["methods", "pool", "strength", "batch"], ...] = small(
        ("methods",), ("methods", "pool")
    )
    """methods: the batch, anchor samples, a single proxy problem and CCP, with the panels. pool, strength, batch: the
    sweeps."""


def make_jobs(settings: Settings, out: Path) -> dict[str, dict[str, Any]]:
    """Every run of the study by name."""
    steps = settings.steps or TASKS[settings.data].steps
    base = {**BASE, "data": settings.data, "data_dir": settings.folder, "steps": steps}
    jobs = {}
    for seed in range(settings.seeds if "methods" in settings.parts else 0):
        for method in METHODS:
            panels = str(out / "panels.npz") if method == "CCP" and seed == 0 else None
            jobs[f"{method}-{seed}"] = {**base, "method": method, "seed": seed, "panels": panels}
    for part in settings.parts:
        for own in grid(SWEEPS[part]).values() if part in SWEEPS else ():
            for seed in range(settings.sweep_seeds):
                job = {**base, "method": "CCP", **own, "seed": seed}
                jobs.setdefault(f"{name_of(own)}-{seed}", job)
    return jobs


def grid(sweep: Sweep) -> dict[tuple[float, Any], dict[str, Any]]:
    """What is set at each point of a sweep."""
    return {
        (value, other): {sweep.setting: value, sweep.beside: other}
        for value in sweep.values
        for other in sweep.beside_values
    }


def name_of(own: dict[str, Any]) -> str:
    """A run by what differs from the study's own settings, so that grids and methods share theirs."""
    changed = [f"{k} {v:g}" for k, v in own.items() if k != "method" and v != BASE[k]]
    return ", ".join([own.get("method", "CCP"), *changed])


def methods_table(results: dict[str, Any]) -> str:
    """MAP@R of what the best validation chose, and the paper's figure."""
    columns = ("validation", "train", "test")
    rows = []
    for method in METHODS:
        problems = f"{np.mean(over_seeds(results, method, 'problems')):.1f}"
        rows.append([method, *cells(results, method, columns), problems, PAPER[method]])
    return markdown_table(["references", *columns, "problems", "paper"], rows)


def seeds_table(results: dict[str, Any]) -> str:
    """MAP@R on test images seed by seed, and what CCP has more over the same seeds."""
    test = {method: dict(enumerate(over_seeds(results, method, "test"))) for method in METHODS}
    rows = []
    for method, of_seeds in test.items():
        gain = "–" if method == "CCP" else str(paired(test["CCP"], of_seeds))
        rows.append([method, *(f"{100 * value:.1f}" for value in of_seeds.values()), gain])
    titles = (f"seed {seed}" for seed in test["CCP"])
    return markdown_table(["test", *titles, "CCP − it"], rows)


def problems_table(results: dict[str, Any]) -> str:
    """CCP problem by problem, over the seeds."""
    runs = [result["metrics"]["history"] for key, result in results.items() if key[:4] == "CCP-"]
    rows = []
    for number in range(max(map(len, runs))):
        these = [history[number] for history in runs if len(history) > number]
        means = [
            cell([problem[name] for problem in these], scale, digits)
            for name, scale, digits in OF_PROBLEMS.values()
        ]
        rows.append([str(number + 1), str(len(these)), *means])
    return markdown_table(["problem", "runs", *OF_PROBLEMS], rows)


def report(results: dict[str, Any], settings: Settings) -> str:
    """All tables as Markdown."""
    sections = []
    if "methods" in settings.parts:
        sections += ["MAP@R:\n", methods_table(results)]
        sections += ["On test images, by seed:\n", seeds_table(results)]
        sections += ["CCP, problem by problem:\n", problems_table(results)]
    for part in (part for part in settings.parts if part in SWEEPS):
        title = f"{SWEEPS[part].setting} (rows) and {SWEEPS[part].beside} (columns):\n"
        sections.append(f"MAP@R on validation by {title.replace('_', ' ')}")
        sections.append(sweep_table(results, SWEEPS[part]))
    return "\n".join(sections)


def sweep_table(results: dict[str, Any], sweep: Sweep) -> str:
    """A row per value, a column per value of the other setting."""
    rows = [[f"{value:g}"] for value in sweep.values]
    for (value, _), own in grid(sweep).items():
        rows[sweep.values.index(value)] += cells(results, name_of(own), ["validation"])
    return markdown_table([sweep.setting.replace("_", " "), *map(str, sweep.beside_values)], rows)


def main(settings: Settings) -> str | None:
    """Run what is missing, print the tables, write tables and figures; or only the tables of what is kept."""
    if settings.table:
        return report(beside(__file__, settings.data), settings)
    out = settings.place("ccp")
    jobs = make_jobs(settings, out)
    results = run_study(run, jobs, out / "results.jsonl", workers=settings.workers)
    if "methods" in settings.parts:
        draw_panels(out / "panels.npz", out / "panels.png")

        def records(curve: Any) -> list[dict[str, float]]:
            return [{"step": step, "validation MAP@R": value} for step, value in curve]

        logs = {m: [*map(records, over_seeds(results, m, "curve"))] for m in METHODS}
        curves(logs).savefig(out / "curves.png", dpi=110)
    tell(report(results, settings), results, out / f"tables_{'_'.join(settings.parts)}.md")
    return None


if __name__ == "__main__":
    start(main, Settings, __doc__)
