"""Vary PFML's parameters and its proxies' start on held-out classes; then train in its paper's regime."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from experiments.pfml_needs.trials import TASKS, run
from experiments.smoke import SMOKE, small
from experiments.study import RecordOptions, Results, cell, read_toml, start
from jdml.report import markdown_table, paired_difference

HERE = Path(__file__).parent
STUDY = read_toml(__file__)
LEVELS, REGIME, CLIPS, TASKS_OF = (STUDY[name] for name in ("levels", "regime", "clips", "tasks"))
if SMOKE:
    both = ("start", "noise")
    LEVELS = {
        part: {name: values if name in both else values[:1] for name, values in factors.items()}
        for part, factors in LEVELS.items()
    }

Part = Literal["points", "factors", "range", "number", "sphere", "batches", "few", "regime"]


@dataclasses.dataclass(frozen=True)
class Settings(RecordOptions):
    """Settings of the study."""

    task: Literal["digits", "alphabets", "letters"] = "digits"
    """digits: even and odd, on scikit-learn's. alphabets, letters: Omniglot by its coarse or its fine labels."""
    seeds: int = small(3, 1)
    """Runs of each setting, with seeds 0, 1, …; another pair of digits, other alphabets are held out by each."""
    parts: tuple[Part, ...] = small(
        ("points", "factors", "range", "number", "sphere"), ("points", "factors", "number")
    )
    """points: proxies alone, among fixed points. factors: start, attraction, α and clip. range: δ and where repulsion
    ends, with wrong labels, too. number: of proxies. sphere: proxies kept on it, at two learning rates. batches: random
    or of few classes (Omniglot). few: where a class has few images, number, α, start and learning rate of proxies on
    held-out letters. regime: the paper's, on the letters of the test alphabets."""


def at_levels(job: Mapping[str, Any], levels: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job at one level of each factor."""
    changed, own = dict(job), dict(job["settings"])
    for name, value in levels.items():
        if name in ("alpha", "delta"):
            own[name] = value
        elif name == "attraction":
            own["proxy_attraction"] = value == "on"
        elif name == "nearest":
            own["min_distance"] = value * levels["delta"]
        else:
            changed[name] = {"random": 160, "balanced": (4, 40)}.get(value, value)
    return {**changed, "settings": own}


def jobs_of(part: Part, options: Settings) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the levels and the job, without its seed, of each setting of a part."""
    job = {"task": options.task, "batch": TASKS[options.task].batch, "steps": None}
    job |= {"method": "PFML", "settings": {"delta": 0.2, "alpha": 1.0}, "proxies": 15}
    job |= {"start": "sphere", "clip": "entry", "sphere": False, "proxy_rate": 100.0}
    job |= {"test": False, "noise": 0.0}
    if part == "points":
        job |= {"task": "points", "batch": None, "steps": None}
    elif part == "few":
        job["clip"] = "norm"
    elif part == "regime":
        for (name, values), noise in itertools.product(REGIME.items(), (0.0, 0.2)):
            start = "samples" if values["method"] in ("PFML", "CPML") else "sphere"
            own = {"settings": {}, **values, "test": True, "noise": noise, "start": start}
            own["clip"] = CLIPS.get(name.split(",")[0], "none")
            yield {"method": name.replace(" ", ""), "noise": noise}, {**job, **own}
    factors = LEVELS.get(part, {})
    for values in itertools.product(*factors.values()) if factors else ():
        levels = dict(zip(factors, values, strict=True))
        yield levels, at_levels(job, levels)


def make_jobs(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return every run by its task, part, levels and seed; of each part one seed of all settings after the other."""
    jobs = {}
    for part, seed in itertools.product(settings.parts, range(settings.seeds)):
        for levels, job in jobs_of(part, settings):
            setting = " ".join(f"{name}={value}" for name, value in levels.items())
            jobs[f"{settings.task}: {part}: {setting}-{seed}"] = {**job, "seed": seed}
    return jobs


Levels = tuple[tuple[str, str], ...]
Runs = Mapping[Levels, Mapping[int, Mapping[str, float]]]
"""The metrics of runs by setting and seed."""
MEASURES, DIFFERENCES, WORDS = (STUDY[name] for name in ("measures", "differences", "words"))
COMMON, PRINTED, PERCENT = MEASURES["common"], DIFFERENCES[:3], ("R@1", "MAP@R")


def of_part(results: Results, part: str) -> Runs:
    """Return the metrics of a part's runs, by setting and seed."""
    runs: dict[Any, dict[int, Mapping[str, float]]] = {}
    for name, result in results.items():
        setting, _, seed = name.rpartition("-")
        own, _, levels = setting.partition(": ")
        if own == part:
            key = tuple(tuple(level.split("=", 1)) for level in levels.split(" "))
            runs.setdefault(key, {})[int(seed)] = result["metrics"]
    return {levels: runs[levels] for levels in sorted(runs, key=lambda s: [*map(place, s)])}


def place(level: tuple[str, str]) -> tuple[bool, float, str]:
    """Return a level's sort key: known words in their order, numbers by size, then other words."""
    _, value = level
    if value in WORDS:
        return False, WORDS.index(value), ""
    try:
        return False, float(value), ""
    except ValueError:
        return True, 0.0, value


def scores(seeds: Mapping[int, Mapping[str, float]], measure: str) -> dict[int, float]:
    """Return a measure by seed, of the seeds that have it."""
    return {seed: metrics[measure] for seed, metrics in seeds.items() if measure in metrics}


def cell_of(measure: str, runs: Mapping[int, float]) -> str:
    """Return mean and deviation: retrieval in percent, all else as it is."""
    values = list(runs.values())
    return cell(values) if measure.endswith(PERCENT) else cell(values, 1, 2)


def setting_table(runs: Runs, part: str) -> str:
    """Return a row for each setting that has a run."""
    measures = measured(runs, MEASURES.get(part, COMMON))
    rows = []
    for levels, seeds in runs.items():
        cells = [cell_of(measure, scores(seeds, measure)) for measure in measures]
        rows.append([*(value for _, value in levels), *cells, str(len(seeds))])
    return markdown_table([*dict(next(iter(runs))), *measures, "seeds"], rows)


def measured(runs: Runs, measures: Sequence[str]) -> list[str]:
    """Return the measures that some run has."""
    return [m for m in measures if any(scores(seeds, m) for seeds in runs.values())]


def difference_table(runs: Runs) -> str:
    """Return the difference of each level to its factor's first, averaged over the other factors, paired by seed."""
    measures, rows = measured(runs, DIFFERENCES), []
    for name in dict(next(iter(runs))):
        first, *others = dict.fromkeys(dict(levels)[name] for levels in runs)
        for value in others:
            cells = [differ(runs, name, first, value, measure) for measure in measures]
            rows.append([f"{name}: {value} − {first}", *cells])
    return markdown_table(["factor", *measures], rows)


def differ(runs: Runs, factor: str, first: str, second: str, measure: str) -> str:
    """Return the mean difference of two levels over seeds, with a 95 % interval, of settings that have both."""
    values: dict[int, list[tuple[float, float]]] = {}
    for levels, seeds in runs.items():
        if (factor, first) in levels:
            other = runs.get(at_level(levels, {factor: second}), {})
            one, two = scores(seeds, measure), scores(other, measure)
            for seed in [seed for seed in one if seed in two]:
                values.setdefault(seed, []).append((two[seed], one[seed]))
    means = {seed: np.mean(pairs, axis=0) for seed, pairs in values.items()}
    sides = ({seed: float(mean[side]) for seed, mean in means.items()} for side in (0, 1))
    return interval(measure, *sides)


def at_level(levels: Levels, changed: Mapping[str, str]) -> Levels:
    """Return a setting at other levels of some factors."""
    return tuple((name, changed.get(name, value)) for name, value in levels)


def against_table(runs: Runs, preset: Mapping[str, str]) -> str:
    """Return each setting next to the one that has the preset's levels, and is otherwise the same, paired by seed."""
    rows = []
    for levels, seeds in runs.items():
        other = at_level(levels, preset)
        if other != levels and other in runs:
            pairs = [(m, scores(seeds, m), scores(runs[other], m)) for m in PRINTED]
            rows.append([*(value for _, value in levels), *(interval(*pair) for pair in pairs)])
    return markdown_table([*dict(next(iter(runs))), *PRINTED], rows)


def ranking_table(runs: Runs) -> str:
    """Return the methods from the best to the worst, clean and with wrong labels, each compared with the next one."""
    measure, rows = "held out R@1", []
    for noise in dict.fromkeys(levels[-1] for levels in runs):
        of_noise = {levels[0][1]: seeds for levels, seeds in runs.items() if levels[-1] == noise}
        scored = {method: scores(seeds, measure) for method, seeds in of_noise.items()}
        order = sorted(scored, key=lambda method: -float(np.mean(list(scored[method].values()))))
        for method, following in zip(order, [*order[1:], None], strict=True):
            gap = interval(measure, scored[method], scored[following]) if following else ""
            rows.append([noise[1], method, cell_of(measure, scored[method]), gap])
    return markdown_table(["noise", "method", measure, "minus the next"], rows)


def interval(measure: str, one: Mapping[int, float], other: Mapping[int, float]) -> str:
    """Return the mean of paired differences with its 95 % interval, and how many seeds there are."""
    scale, form = (100, "+.1f") if measure.endswith(PERCENT) else (1, "+.2f")
    gain = paired_difference(one, other, scale=scale)
    if gain.seeds == 0:
        return "–"
    mean, low, high = (format(value, form) for value in gain[:3])
    return f"{mean} (1 seed)" if gain.seeds == 1 else f"{mean} [{low}, {high}] ({gain.seeds})"


def report(results: Results, parts: Sequence[str]) -> str:
    """Return all tables of some parts, as Markdown."""
    sections = []
    for part in parts:
        runs = of_part(results, part)
        if not runs:
            continue
        sections += [f"### {part}\n"]
        if part == "regime":
            sections += ["From best to worst:\n", ranking_table(runs)]
        else:
            sections += ["Paired differences:\n", difference_table(runs)]
        if part in STUDY["presets"]:
            sections += ["Beside the preset:\n", against_table(runs, STUDY["presets"][part])]
        sections += ["Settings:\n", setting_table(runs, part)]
    return "\n".join(sections)


def main(settings: Settings) -> str:
    """Run what is missing; return the tables of what is kept."""
    for part, tasks in TASKS_OF.items():
        if part in settings.parts and settings.task not in tasks:
            raise SystemExit(f"--parts {part} is for --task {' or '.join(tasks)}")
    results = settings.results(run, make_jobs(settings), HERE / "results.jsonl")
    own = f"{settings.task}: "
    named = {name.removeprefix(own): run for name, run in results.items() if name.startswith(own)}
    return report(named, settings.parts)


if __name__ == "__main__":
    start(main, Settings, __doc__)
