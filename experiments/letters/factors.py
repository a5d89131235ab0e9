"""Changes of the order of methods by letter: one thing at a time of tuned methods, otherwise as they were scored."""

import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import kendalltau

from experiments.letters import protocol
from experiments.letters.protocol import Job, make_job, name_of, read_frozen
from experiments.letters.runs import HERE, OfModels
from experiments.letters.tables import LEAST, interval, single_models, tuned_models
from experiments.smoke import SMOKE, record, small
from experiments.study import read_toml, start
from jdml.report import PairedDifference, holm_correction, markdown_table, paired_difference
from jdml.runs.run_files import read_results

METHODS = small(
    ("circle", "FastAP", "InfoNCE", "ArcFace", "triplet", "EPS + margin", "MPA-DW"),
    ("circle", "ArcFace"),
)
FIRST, OTHERS = 1, small((2, 3), (2,))
"""The seed that has every level and suggests, and those that confirm."""
Values = dict[Any, float]


class Asked(NamedTuple):
    """A suggestion of the first seed: from the usual level to this one a method gains more than another."""

    factor: str
    level: Any
    more: str
    less: str


ASKED = tuple(Asked(**question) for question in read_toml(__file__)["asked"])
if SMOKE:
    ASKED = (Asked("wrong", 0.5, "ArcFace", "circle"),)


@dataclasses.dataclass(frozen=True)
class Settings(OfModels):
    """Settings of the study."""

    out: Path = record(HERE / "factors.jsonl")
    """File of the kept runs."""
    frozen: Path = HERE / "frozen.json"
    """File of the settings that are scored."""


def jobs_of(frozen: Path) -> list[Job]:
    """Return the models of methods whose settings are frozen: all levels with the first seed, the asked with others."""
    columns, jobs = read_frozen(frozen), []
    for factor, values in protocol.FACTORS.items():
        for level, method, column in itertools.product(values, METHODS, ("tuned", "also")):
            if method not in columns[column]:
                continue
            made = protocol.at(columns[column][method], factor, level)
            asked = ((q.factor, q.level) == (factor, level) and method in q[2:] for q in ASKED)
            own = {"of": column, "factor": factor, "level": level, "data": made.data}
            own |= {"steps": made.steps, "every": max(1, made.steps // protocol.LOOKS)}
            for seed in (FIRST, *OTHERS) if any(asked) else (FIRST,):
                for fold in range(protocol.FOLDS):
                    job = make_job(method, f"{factor} {level}", seed, fold, made.recipe)
                    jobs.append({**job, **own})
    return jobs


def values_of(results: Mapping[str, Any], scored: Mapping[str, Any], factor: str) -> dict[str, Any]:
    """Return MAP@R by method, level and model (seed, fold), the usual level among the others."""
    by_level = {
        level: single_models(results, f"{factor} {level}") for level in protocol.FACTORS[factor]
    }
    by_level[protocol.USUAL[factor]] = tuned_models(scored)
    return {
        method: {level: models.get(method, {}) for level, models in by_level.items()}
        for method in METHODS
    }


def table(values: Mapping[str, Mapping[Any, Values]], factor: str) -> str:
    """Return a row for each method, a column for each level, and Kendall's τ of the order with the usual one."""
    order, usual, agreement = protocol.ordered(factor), protocol.USUAL[factor], []
    rows = [
        [method, *(interval(own.get(level, {})) for level in order)]
        for method, own in values.items()
    ]
    for level in order:
        pairs = [(own[level], own[usual]) for own in values.values() if own[level] and own[usual]]
        means = [[float(np.mean(list(part.values()))) for part in pair] for pair in pairs]
        tau = kendalltau(*zip(*means, strict=True)).statistic if len(pairs) > 1 else None
        agreement.append("–" if tau is None else f"{tau:.2f}")
    rows.append(["τ with the usual order", *agreement])
    return markdown_table([factor, *map(str, order)], rows)


def gains(values: Mapping[str, Mapping[Any, Values]], factor: str) -> str:
    """Return the points by which each method is above its usual level at another, with 95 %, paired by model."""
    usual, rows = protocol.USUAL[factor], []
    for method, own in values.items():
        gaps = [paired_difference(own[level], own[usual]) for level in protocol.FACTORS[factor]]
        texts = (f"{gap.mean:+.1f} [{gap.low:+.1f}, {gap.high:+.1f}]" for gap in gaps)
        shown = (text if gap.seeds > 1 else "–" for text, gap in zip(texts, gaps, strict=True))
        rows.append([method, *shown])
    return markdown_table([f"{factor}, − {usual}", *map(str, protocol.FACTORS[factor])], rows)


def answers(
    values: Mapping[str, Mapping[str, Mapping[Any, Values]]],
) -> dict[str, PairedDifference]:
    """Return by how much more the one method gains than the other with the other seeds, if no model is missing."""
    models = {(seed, fold) for seed in OTHERS for fold in range(protocol.FOLDS)}

    def gains(own: Mapping[Any, Values], level: Any, usual: Any) -> Values:
        both = models & own[level].keys() & own[usual].keys()
        return {model: own[level][model] - own[usual][model] for model in both}

    gaps = {}
    for factor, level, *methods in ASKED:
        more, less = (gains(values[factor][m], level, protocol.USUAL[factor]) for m in methods)
        if set(more) == set(less) == models:
            gaps[asked_as(factor, level, *methods)] = paired_difference(more, less)
    return gaps


def asked_as(factor: str, level: Any, more: str, less: str) -> str:
    """Return a question's name."""
    return f"{factor} {level}: {more} − {less}"


def verdicts(gaps: Mapping[str, PairedDifference]) -> str:
    """Return all questions, confirmed if the difference is at least half a point after Holm for all of them."""
    p = holm_correction({name: gap.p for name, gap in gaps.items()}, len(ASKED))
    rows = []
    for name in (asked_as(*question) for question in ASKED):
        row = [name, "a model diverged", "–", "not known"]
        if name in gaps:
            gap, so = gaps[name], p[name] < 0.05 and gaps[name].mean >= LEAST
            row = [name, str(gap), f"{p[name]:.2g}", "yes" if so else "no"]
        rows.append(row)
    return markdown_table(["asked of seeds 2 and 3", "MAP@R, points", "p after Holm", "so"], rows)


def main(settings: Settings) -> str:
    """Run what is missing, as far as time goes; return the tables."""
    planned = {name_of(job): job for job in jobs_of(settings.frozen)}
    settings.do(planned.values())
    results, scored = read_results(settings.out), read_results(HERE / "results.jsonl")
    there, done = {job["method"] for job in planned.values()}, sum(n in results for n in planned)
    begin = "All" if len(there) == len(METHODS) and done == len(planned) else "PARTIAL"
    counts = f"{done} of {len(planned)} runs, {len(there)} of {len(METHODS)} methods"
    sections = [f"{begin}: {counts}.\n"]
    first = {name: run for name, run in results.items() if run["job"]["seed"] == FIRST}
    for factor in protocol.FACTORS:
        own = values_of(first, scored, factor)
        sections += [table(own, factor), gains(own, factor)]
    values = {factor: values_of(results, scored, factor) for factor in protocol.FACTORS}
    gaps = answers(values)
    if all(name in results for name, job in planned.items() if job["seed"] != FIRST):
        sections.append(verdicts(gaps))
    return "\n".join(sections)


if __name__ == "__main__":
    start(main, Settings, __doc__)
