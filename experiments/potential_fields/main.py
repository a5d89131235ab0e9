"""Potential fields (PFML) beside proxy losses: retrieval, label noise, proxies' distance from the data, sweeps.

After Bhatnagar & Ahuja, *Potential Field Based Deep Metric Learning*: Fig. 2 (the field), Tables 1–3 and Fig. 3, at the
size of a laptop. Classes here have many local centres, what several proxies per class are for: even and odd digits, and
Omniglot's alphabets, tested on digits and on the letters of alphabets never seen. Finished runs are kept.
"""

import dataclasses
from typing import Any, Literal, get_args

from experiments.options import InFolder, start
from experiments.potential_fields.picture import draw_fields, draw_learned, draw_sweeps
from experiments.potential_fields.study import CLIP, EPOCH, FIELDS, LOSSES, TASKS, base_of, run
from experiments.shown import beside, cells, tell
from experiments.smoke import SMOKE, small
from jdml.registry import LOSSES as REGISTERED
from jdml.report import markdown_table
from jdml.studies.runner import over_seeds, run_study

NOISE = 0.2
CLEAN = ("PFML", "CPML", "MPA", "MPA-DW", "MPA-AP", "SoftTriple", "ProxyAnchor", "ProxyNCA*")
NOISY: tuple[str, ...] = ("PFML", "CPML", "triplet", "MS", "ProxyNCA", "ProxyAnchor", "SoftTriple")
NOISY += ("MPA-DW", "MPA-AP", "ProxyNCA*")
FOILS = ("CPML", "CPML, mirrored", "CPML, decaying")
NEAR = ("PFML", "CPML", "SoftTriple", "ProxyNCA", "ProxyAnchor")
SWEEPS: dict[str, tuple[float, ...]] = {
    "proxies_per_class": (0, 1, 5, 15, 30),
    "delta": (0.1, 0.2, 0.3, 0.5),
    "alpha": (0.5, 1.0, 2.0, 4.0, 6.0),
    "repulsion_delta": (0.2, 0.5, 0.8),
    "clip": (0.5, 5.0, 50.0, 1e30),
}
if SMOKE:
    CLEAN, NOISY, FOILS, NEAR = ("PFML",), ("triplet",), ("CPML, decaying",), ("SoftTriple",)
    SWEEPS = {"alpha": (2.0,)}
OF_NOISY = (55.1, 58.9, 60.1, 60.7, 66.7)
PAPER_NOISE = dict(zip(("triplet", "MS", "ProxyNCA", "ProxyAnchor", "PFML"), OF_NOISY, strict=True))
PAPER_DISTANCE = {
    "SoftTriple": ".24",
    "ProxyNCA": ".36",
    "ProxyAnchor": ".38",
    "CPML": ".26",
    "PFML": ".16",
}
WRONG = "20 % of the training labels wrong"
TABLES: dict[str, tuple[str, str, tuple[str, ...], dict[str, Any]]] = {
    "methods": (
        "Clean labels (last column: the paper's proxy distance on CUB)",
        "",
        CLEAN,
        PAPER_DISTANCE,
    ),
    "noise": (f"{WRONG} (last column: the paper's R@1 on CUB)", ", noise", NOISY, PAPER_NOISE),
    "foils": (f"CPML by its repulsion, {WRONG}", ", noise", FOILS, {}),
}
"""Of a part its title, what is added to the methods' names, the methods, and the paper's numbers."""

Part = Literal["picture", "learned", "methods", "noise", "foils", "epoch", "sweeps"]


@dataclasses.dataclass(frozen=True)
class Settings(InFolder):
    """What is run."""

    data: Literal["digits", "mnist", "omniglot"] = "digits"
    """digits: 1,797 real 8×8 digits that come with scikit-learn. mnist, omniglot: the full sets in --data-dir.
    300, 500 and 1200 steps, unless --steps are given."""
    sweep_seeds: int = 1
    """Runs per point of the sweeps."""
    parts: tuple[Part, ...] = small(("picture", "methods", "noise"), get_args(Part))
    """picture: Fig. 2. learned: the same of what was learned. methods: Tables 1 and 3. noise: Table 2. foils: CPML with
    other repulsions, and wrong labels. epoch: Table 3 over the last epoch, with the proxies' spread. sweeps: Fig. 3."""
    held_out: bool = False
    """Score on a fifth of the training alphabets (a sixth of the training digits), held out: how PFML was tuned."""

    @property
    def measure(self) -> str:
        """What the sweeps show."""
        return f"{TASKS[self.data].views[0]} R@1"


def make_jobs(settings: Settings) -> dict[str, dict[str, Any]]:
    """Every run of the study by name."""
    base = base_of(settings.data, settings.folder, settings.steps, settings.held_out)

    def job(method: str, seed: int, suffix: str = "", **changed: float) -> dict[str, Any]:
        own = {"clip": changed.pop("clip", CLIP)} if method in FIELDS else {}
        own |= {"method": method, "settings": {**LOSSES[method][1], **changed}, "seed": seed}
        own |= {"noise": NOISE if suffix == ", noise" else 0.0}
        return {**base, **own, **({"epoch": True} if suffix == ", epoch" else {})}

    methods = {part: (suffix, names) for part, (_, suffix, names, _) in TABLES.items()}
    methods["epoch"] = (", epoch", NEAR)
    jobs = {
        f"{method}{suffix}-{seed}": job(method, seed, suffix)
        for seed in range(settings.seeds)
        for part, (suffix, names) in methods.items()
        for method in (names if part in settings.parts else ())
    }
    for seed in range(settings.sweep_seeds if "sweeps" in settings.parts else 0):
        for name, values in SWEEPS.items():
            for value in values:
                jobs[f"{name} {value:g}-{seed}"] = job("PFML", seed, **{name: value})
    return jobs


def table(
    results: dict[str, Any],
    settings: Settings,
    suffix: str,
    methods: tuple[str, ...],
    paper: dict[str, Any],
) -> str:
    """One row per method that was run: retrieval, the proxies' distances, and the paper's number if there is any."""
    first, second = TASKS[settings.data].views
    columns = (f"{first} R@1", f"{first} MAP@R", f"{second} R@1")
    of_proxies = ("proxy distance, assignment", "proxy distance, nearest", "proxies together")
    rows = []
    for method in methods:
        if over_seeds(results, method + suffix, columns[0]):
            scores = cells(results, method + suffix, columns)
            scores += cells(results, method + suffix, of_proxies, 1, 2)
            rows.append([method, *scores, *([str(paper.get(method, "–"))] if paper else [])])
    return markdown_table(["method", *columns, *of_proxies, *(["paper"] if paper else [])], rows)


def epoch_table(results: dict[str, Any]) -> str:
    """Where proxies are over an epoch, by each reading of the paper's words, and how they are spread."""
    rows = []
    for method in NEAR:
        shown = cells(results, f"{method}, epoch", EPOCH, 1, 2)
        if not REGISTERED[LOSSES[method][0]].several:
            shown[EPOCH.index("epoch: together")] = "–"
        rows.append([method, *shown, PAPER_DISTANCE.get(method, "–")])
    titles = (name.removeprefix("epoch: ") for name in EPOCH)
    return markdown_table(["method", *titles, "paper"], rows)


def report(results: dict[str, Any], settings: Settings) -> str:
    """All tables as Markdown."""
    sections = []
    for part, (title, *rows) in TABLES.items():
        if part in settings.parts:
            sections += [f"{title}:\n", table(results, settings, *rows)]
    if "epoch" in settings.parts:
        sections += ["Proxies over the last epoch (last column: the paper's, on CUB):\n"]
        sections += [epoch_table(results)]
    if "sweeps" in settings.parts:
        sections += ["PFML by its parameters, one at a time:\n"]
        for name, values in SWEEPS.items():
            rows = [
                [f"{v:g}", *cells(results, f"{name} {v:g}", [settings.measure])] for v in values
            ]
            sections.append(markdown_table([name.replace("_", " "), settings.measure], rows))
    return "\n".join(sections)


def main(settings: Settings) -> str | None:
    """Run what is missing, print the tables, write tables and figures; or only the tables of what is kept."""
    if settings.table:
        return report(beside(__file__, settings.data), settings)
    out = settings.place("potential_fields")
    out.mkdir(parents=True, exist_ok=True)
    if "picture" in settings.parts:
        draw_fields(out / "fields.png")
    if "learned" in settings.parts:
        draw_learned(out / "learned.png")
    results = run_study(run, make_jobs(settings), out / "results.jsonl", workers=settings.workers)
    if "sweeps" in settings.parts:
        draw_sweeps(results, SWEEPS, settings.measure, out / "sweeps.png")
    tell(report(results, settings), results, out / f"tables_{'_'.join(settings.parts)}.md")
    return None


if __name__ == "__main__":
    start(main, Settings, __doc__)
