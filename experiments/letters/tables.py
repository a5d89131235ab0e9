"""The tables of the letters' study: what chose, what was scored, and which differences count."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from scipy import stats

from experiments.study import read_toml
from jdml.report import PairedDifference, holm_correction, markdown_table, paired_difference

SCORES = ("P@1", "RP", "MAP@R")
UNSCORED = ("pilot", "trial")
LEAST = 0.5
"""Points of MAP@R below which a difference does not count, however sure it is."""
CLAIMS = read_toml(__file__)["claims"]
Results = Mapping[str, Any]
Model = tuple[int, int]
"""Seed and fold."""


def interval(values: Mapping[Any, float], scale: float = 100.0, digits: int = 1) -> str:
    """Return mean and 95 % interval, by Student's t."""
    whole = paired_difference(values, dict.fromkeys(values, 0.0), scale=scale)
    if not whole.seeds:
        return "–"
    mean, low, high = (f"{value:.{digits}f}" for value in whole[:3])
    return mean if whole.seeds == 1 else f"{mean} [{low}, {high}]"


def models_of(results: Results, column: str, metric: str) -> dict[str, dict[Model, float]]:
    """Return a metric by method, seed and fold; fold None are four models together."""
    by_column: dict[str, dict[Model, float]] = {}
    for result in results.values():
        job, metrics = result["job"], result["metrics"]
        if job["column"] == column and metric in metrics:
            by_column.setdefault(job["method"], {})[job["seed"], job["fold"]] = metrics[metric]
    return by_column


def report(results: Results, planned: Mapping[str, Sequence[str]]) -> str:
    """Return all tables; a part of which planned runs are missing says so, and nothing is compared in it."""
    done = {part: sum(name in results for name in names) for part, names in planned.items()}
    whole = {part for part, names in planned.items() if names and done[part] == len(names)}
    counts = ", ".join(
        f"{done[part]} of {len(names)} {part} runs" for part, names in planned.items()
    )
    begin = "All runs" if len(whole) == len(planned) else "PARTIAL"
    sections = [f"{begin}: {counts}.\n", chosen(results)]
    sections += [
        scored(results, column, whole=column in whole)
        for column in planned
        if column not in UNSCORED and models_of(results, column, "MAP@R")
    ]
    if "tuned" in whole:
        sections += [went_with(results), counting(between(results))]
    if {"tuned", "papers"} <= whole:
        papers = single_models(results, "papers")
        gaps = {
            f"{method}: tuned − paper's": paired_difference(models, papers.get(method, {}))
            for method, models in single_models(results, "tuned").items()
        }
        sections.append(counting(gaps))
    if {"tuned", "also"} <= whole:
        sections.append(all_of(differences(tuned_models(results), CLAIMS)))
    return "\n".join(sections)


def chosen(results: Results) -> str:
    """Return MAP@R of the held-out letters of the first fold, with papers' settings and of trials."""
    by_method: dict[str, dict[str, float]] = {}
    for result in results.values():
        column = result["job"]["column"]
        if column == "pilot" or column.startswith("trial"):
            value = result["metrics"].get("validation", 0.0)
            by_method.setdefault(result["job"]["method"], {})[column] = value
    rows = []
    for method, values in sorted(by_method.items(), key=lambda item: -item[1].get("pilot", 0.0)):
        best = (values.pop("pilot", None), max(values.values(), default=None))
        shown = ("–" if value is None else f"{100 * value:.1f}" for value in best)
        rows.append([method, *shown, str(len(values))])
    return markdown_table(["held-out MAP@R", "paper's settings", "best trial", "trials"], rows)


def scored(results: Results, column: str, *, whole: bool) -> str:
    """Return the unseen letters: single models, and four together; if runs are missing, nothing follows from it."""
    metrics = {name: models_of(results, column, name) for name in SCORES}
    single = single_models(results, column)
    rows = []
    for method in metrics["MAP@R"]:
        own = single[method]
        cells = [
            interval({key: v for key, v in metrics[name][method].items() if (key in own) == alone})
            for alone in (True, False)
            for name in SCORES
        ]
        rows.append((-sum(own.values()) / max(1, len(own)), [method, *cells, str(len(own))]))
    titles = [*SCORES, *(f"together {name}" for name in SCORES), "models"]
    named = column if whole else f"{column}, PARTIAL"
    return markdown_table([named, *titles], [cells for _, cells in sorted(rows)])


COLUMN_NAMES = {"learning_rate": "rate", "samples_per_class": "drawings of a letter"}


def went_with(results: Results) -> str:
    """Return Spearman's ρ of the leading methods' settings with MAP@R of the held-out letters, over their trials."""
    rows, rates = [], {}
    for method in models_of(results, "tuned", "MAP@R"):
        trials = [
            run
            for run in results.values()
            if run["job"]["method"] == method and run["job"]["column"].startswith("trial")
        ]
        values = [run["metrics"].get("validation", -1.0) for run in trials]
        tried = [dict(_numbers(run["job"]["recipe"])) for run in trials]
        rho = {
            name: float(stats.spearmanr([own[name] for own in tried], values).statistic)
            for name in (tried[0] if tried else {})
            if len({own.get(name) for own in tried}) > 1
        }
        if "rate" in rho:  # a single trial has none
            rates[method] = rho["rate"]
            most, largest = max(rho.items(), key=lambda one: abs(one[1]))
            rows.append([method, f"{rates[method]:.2f}", most, f"{largest:.2f}"])
    mean = ["mean", interval(rates, 1, 2), "", ""]
    return markdown_table(["trials", "ρ of the rate", "largest of", "ρ"], [*sorted(rows), mean])


def _numbers(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    """Return the numbers of a recipe; of a batch by letter, drawings of each."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{path}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool) and name != "classes":
            yield COLUMN_NAMES.get(name, (path + name).removeprefix("loss.")), value


def between(results: Results) -> dict[str, PairedDifference]:
    """Return how tuned methods differ in MAP@R, model by model."""
    tuned = single_models(results, "tuned")
    ranked = sorted(tuned, key=lambda method: -sum(tuned[method].values()))
    return differences(tuned, itertools.combinations(ranked, 2))


def differences(
    scores: Mapping[str, Mapping[Model, float]], pairs: Iterable[Sequence[str]]
) -> dict[str, PairedDifference]:
    """Return how one method differs from the other in MAP@R, model by model."""
    return {
        f"{one} − {other}": paired_difference(scores.get(one, {}), scores.get(other, {}))
        for one, other in pairs
    }


def single_models(results: Results, column: str) -> dict[str, dict[Model, float]]:
    """MAP@R of single models, by method, seed and fold."""
    return {
        method: {key: value for key, value in models.items() if key[1] is not None}
        for method, models in models_of(results, column, "MAP@R").items()
    }


def tuned_models(results: Results) -> dict[str, dict[Model, float]]:
    """Those of all tuned methods, the leading and the others."""
    return {**single_models(results, "tuned"), **single_models(results, "also")}


def counting(pairs: Mapping[str, PairedDifference]) -> str:
    """Return the differences that are sure after Holm's correction for all of them, and not small."""
    p = holm_correction({name: gap.p for name, gap in pairs.items()}, len(pairs))
    significant = {
        n: gap for n, gap in pairs.items() if p.get(n, 1.0) < 0.05 and abs(gap.mean) >= LEAST
    }
    return all_of(significant, f"MAP@R, points: those that count of {len(pairs)}", p)


def all_of(
    pairs: Mapping[str, PairedDifference],
    title: str = "MAP@R, points",
    p: Mapping[str, float] | None = None,
) -> str:
    """Return all differences; those count that are sure after Holm's correction, and not small."""
    if p is None:
        p = holm_correction({name: gap.p for name, gap in pairs.items()}, len(pairs))
    rows = [[name, str(gap), f"{p[name]:.2g}" if name in p else "–"] for name, gap in pairs.items()]
    return markdown_table([title, "difference", "p after Holm"], rows)
