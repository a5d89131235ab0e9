"""Non-isotropy regularization (NIR) of proxy losses: retrieval, structure, ablations, and when it switches itself off.

After Roth, Vinyals & Akata, *Non-isotropy Regularization for Proxy-based Deep Metric Learning*: Tables 1 and 3–5 and
Figs. 1, 2 and 4, at the size of a laptop. Classes have local structure that their labels do not tell: even and odd
digits, scored on the digits, and Omniglot's alphabets, scored on the letters of alphabets never seen. Finished runs are
kept.
"""

import dataclasses
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from experiments.nir.pictures import MEASURED, draw_isotropy, draw_spectra, draw_switch_off, watch
from experiments.nir.regularized import METHODS, NIR, STRUCTURE, TASKS, VARIANTS, run, step_times
from experiments.options import InFolder, resolved, start
from experiments.shown import beside, cells, tell
from experiments.smoke import SMOKE, small
from jdml.report import markdown_table, mean_std, paired
from jdml.studies.runner import over_seeds, run_study

RETRIEVAL = ("R@1", "NMI", "mAP@1000")
ABLATED = "ProxyAnchor"
ABLATIONS: dict[str, dict[str, Any]] = {
    **{name: {"nir": shape} for name, shape in VARIANTS.items()},
    "ω = 0.001": {"nir": {"weight": 0.001}},
    "ω = 0.1": {"nir": {"weight": 0.1}},
    "no warm-up": {"nir": {"warmup": 0}},
    "gradients clipped": {"clip": 1.0},
    "no force": {"nir": {"temperature": 1e-9}},
    "rate 0 for 50 steps": {"nir": None, "still": 50},
    "f of the mean, as printed": {"nir": {"of_mean": True}},
    "no proxy backprop": {"nir": {"stop_proxy_gradient": True}},
    "wrong pairs": {"nir": {"wrong_class_weight": 1.0}},
    "ω = 0": {"nir": {"weight": 0.0}},
    "D15-W64": {"flow": {"num_blocks": 15, "hidden": 64}},
    "D5-W512": {"flow": {"num_blocks": 5, "hidden": 512}},
    "D3-W1024": {"flow": {"num_blocks": 3, "hidden": 1024}},
    "D8-W128, as printed": {"flow": {"num_blocks": 8, "depth": 3}},
    "condition at start": {"flow": {"conditioning": "start"}},
    "condition at mid": {"flow": {"conditioning": "mid"}},
    "condition at end": {"flow": {"conditioning": "end"}},
    "condition embedded": {"flow": {"conditioning": "embedded"}},
    "generate": {"nir": {"self_regularization": "generate"}},
    "match": {"nir": {"self_regularization": "match"}},
    "generate and match": {"nir": {"self_regularization": "both"}},
}
if SMOKE:
    ABLATIONS = {name: ABLATIONS[name] for name in ("exp", "ω = 0.1")}
"""What differs from the released setting: Table 4 (a) and (b), and Table 5."""
PAPER_RETRIEVAL = {
    "ProxyAnchor": "64.4 · 68.4 · 33.2",
    "ProxyAnchor + NIR": "66.0 · 69.6 · 34.2",
    "ProxyNCA*": "64.2 · 68.6 · 33.1",
    "ProxyNCA* + NIR": "66.1 · 69.8 · 34.3",
    "SoftTriple": "62.3 · 68.2 · 31.6",
    "SoftTriple + NIR": "63.8 · 68.5 · 34.0",
}
PAPER_STRUCTURE = {
    "ProxyAnchor": ".19 · – · .68 · .37 · .078",
    "ProxyAnchor + NIR": ".13 · – · .79 · .44 · .072",
}

Part = Literal["picture", "switch", "methods", "ablations", "time"]


@dataclasses.dataclass(frozen=True)
class Settings(InFolder):
    """What is run."""

    data: Literal["digits", "mnist", "omniglot", "crops"] = "digits"
    """digits: 1,797 real 8×8 digits that come with scikit-learn. mnist, omniglot: the full sets in --data-dir. crops:
    a head over the frozen features of bird photographs (see experiments/cub_crops). 300, 500, 1200 and 300 steps,
    unless --steps are given."""
    weights: Path | None = None
    """For crops: pretrained weights of EfficientNet-Lite0, from jdml weights convert."""
    parts: tuple[Part, ...] = small(("picture", "switch", "methods", "time"), get_args(Part))
    """picture: Figs. 1 and 2. switch: the flow alone. methods: Tables 1 and 3, Fig. 4. ablations: Tables 4 and 5. time:
    of a step."""
    held_out: bool = False
    """Score on a fifth of the training alphabets (a sixth of the training digits), held out: for choosing settings."""


def make_base(settings: Settings) -> dict[str, Any]:
    """What all runs share."""
    own = {name: getattr(settings, name) for name in ("data", "held_out")}
    if settings.data == "crops":
        features = resolved(settings.place("nir") / "features")
        own |= {"weights": resolved(settings.weights), "features": features}
    steps = settings.steps or TASKS[settings.data].steps
    changed = {"method": ABLATED, "nir": None, "flow": {}, "clip": None}
    return {**own, "data_dir": settings.folder, "steps": steps, **changed}


def make_jobs(settings: Settings) -> dict[str, dict[str, Any]]:
    """Every training run of the study by name."""
    named: dict[str, dict[str, Any]] = {}
    for method in METHODS if "methods" in settings.parts else ():
        named[method] = {"method": method}
        named[f"{method} + NIR"] = {"method": method, "nir": NIR}
    for name, changes in ABLATIONS.items() if "ablations" in settings.parts else ():
        own = changes.get("nir", {})
        named[name] = {**changes, "nir": None if own is None else {**NIR, **own}}
    base, seeds = make_base(settings), range(settings.seeds)
    return {f"{k}-{seed}": {**base, **v, "seed": seed} for seed in seeds for k, v in named.items()}


def difference(results: dict[str, Any], method: str, metric: str, scale: float) -> str:
    """What regularization adds, over the same seeds, and the p-value of a paired t-test."""
    alone, regularized = (over_seeds(results, name, metric) for name in (method, f"{method} + NIR"))
    gain = mean_std(np.subtract(regularized, alone), scale=scale, digits=2)
    p = paired(dict(enumerate(regularized)), dict(enumerate(alone))).p
    return gain if len(alone) < 2 else f"{gain} (p = {p:.2g})"


def method_tables(results: dict[str, Any]) -> list[str]:
    """Retrieval, structure, and what regularization adds."""
    names = [f"{method}{kind}" for method in METHODS for kind in ("", " + NIR")]
    retrieval = [
        [name, *cells(results, name, RETRIEVAL), PAPER_RETRIEVAL.get(name, "–")] for name in names
    ]
    sections = ["Retrieval (last column: the paper's three on CUB):\n"]
    sections += [markdown_table(["method", *RETRIEVAL, "paper"], retrieval)]
    for part in ("test", "train"):
        measured = [f"{part} {metric}" for metric in STRUCTURE]
        rows = [
            [name, *cells(results, name, measured, 1, 3), PAPER_STRUCTURE.get(name, "–")]
            for name in names
        ]
        sections += [f"Structure of {part} embeddings (last column: the paper's on CUB):\n"]
        sections += [markdown_table(["method", *STRUCTURE, "paper"], rows)]
    compared = [(m, 100.0) for m in RETRIEVAL] + [(f"test {m}", 1.0) for m in STRUCTURE]
    gains = [[method, *(difference(results, method, *c) for c in compared)] for method in METHODS]
    table = markdown_table(["method", *RETRIEVAL, *STRUCTURE], gains)
    return [*sections, "What NIR adds, over the same seeds:\n", table]


def ablation_table(results: dict[str, Any]) -> str:
    """One row per change, and its difference to the first over the same seeds."""

    def recall(name: str) -> dict[int, float]:
        runs = {n.rpartition("-"): result["metrics"] for n, result in results.items()}
        return {int(s): m["R@1"] for (n, _, s), m in runs.items() if n == name and "R@1" in m}

    first = next(iter(ABLATIONS))
    shape = [f"test {name}" for name in STRUCTURE]
    rows = []
    for name in ABLATIONS:
        diverged = len(over_seeds(results, name, "diverged"))
        scores = cells(results, name, ("R@1", "mAP@1000")) + cells(results, name, shape, 1, 3)
        beside = "–" if name == first else str(paired(recall(name), recall(first)))
        rows.append([name, *scores, str(diverged), beside])
    titles = (f"{ABLATED} + NIR", "R@1", "mAP@1000", *STRUCTURE, "diverged", f"R@1 − {first}")
    return markdown_table(titles, rows)


def control_table(results: dict[str, Any]) -> str:
    """The method alone and regularized, and what was run of the changes, over the seeds of each."""
    names = (ABLATED, f"{ABLATED} + NIR", *ABLATIONS)
    runs = {name: len(over_seeds(results, name, "R@1")) for name in names}
    rows = [[name, *cells(results, name, RETRIEVAL), str(n)] for name, n in runs.items() if n]
    return markdown_table([f"{ABLATED} and its controls", *RETRIEVAL, "seeds"], rows)


def switch_table(watched: dict[str, dict[str, list[float]]]) -> str:
    """The first and the last ten steps of each variant."""

    def ends(values: list[float]) -> str:
        return f"{np.mean(values[:10]):.3g} → {np.mean(values[-10:]):.3g}"

    rows = [[variant, *(ends(of[name]) for name in MEASURED)] for variant, of in watched.items()]
    return markdown_table(["f", *MEASURED], rows)


def time_table(base: dict[str, Any]) -> str:
    """Milliseconds per training step."""
    rows, seconds = [], step_times({**base, "seed": 0})
    for method in METHODS:
        alone, both = seconds[method], seconds[f"{method} + NIR"]
        rows.append([method, f"{1e3 * alone:.1f}", f"{1e3 * both:.1f}", f"{both / alone - 1:.0%}"])
    return markdown_table(["a step's milliseconds", "alone", "with NIR", "added"], rows)


def main(settings: Settings) -> str | None:
    """Run what is missing, print the tables, write tables and figures; or only the tables of what is kept."""
    sections: list[str] = []
    if settings.table:
        kept, ablated = (beside(__file__, settings.data + of) for of in ("", " ablation"))
        if "methods" in settings.parts:
            sections += method_tables(kept)
        if "ablations" in settings.parts and ablated:
            sections += ["Ablations:\n", ablation_table(ablated)]
        elif "ablations" in settings.parts:
            sections += ["Controls:\n", control_table(kept)]
        return "\n".join(sections)
    base, out = make_base(settings), settings.place("nir")
    out.mkdir(parents=True, exist_ok=True)
    if "picture" in settings.parts:
        draw_isotropy(out / "isotropy.png", min(base["steps"], 300))
    if "switch" in settings.parts:
        steps = min(base["steps"], 400)
        own = {"dim": TASKS[settings.data].dim, "steps": steps, "width": 0.3, "seed": 0}
        alone = {variant: {"variant": variant, **own} for variant in VARIANTS}
        watched = run_study(watch, alone, out / "switch.jsonl")
        curves = {variant: watched[variant]["metrics"] for variant in VARIANTS}
        draw_switch_off(curves, out / "switch_off.png")
        sections += [f"The flow alone, first → last of {steps} steps:\n", switch_table(curves)]
    results = run_study(run, make_jobs(settings), out / "results.jsonl", workers=settings.workers)
    if "methods" in settings.parts:
        sections += method_tables(results)
        draw_spectra(results, METHODS, out / "spectra.png")
    if "ablations" in settings.parts:
        sections += ["Ablations:\n", ablation_table(results)]
    if "time" in settings.parts:
        sections += ["Time:\n", time_table(base)]
    tell("\n".join(sections), results, out / f"tables_{'_'.join(settings.parts)}.md")
    return None


if __name__ == "__main__":
    start(main, Settings, __doc__)
