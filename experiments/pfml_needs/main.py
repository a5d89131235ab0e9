"""What PFML needs: its parameters and its proxies' start, tried on held-out classes; then its paper's regime."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from experiments.pfml_needs.trials import TASKS, run
from experiments.smoke import SMOKE, record, small
from experiments.study import RecordOptions, Results, cell, read_toml, start
from jdml.report import markdown_table, paired_difference

HERE = Path(__file__).parent
NOISE = 0.2
DELTAS, NEAREST = (0.2, 0.5, 1.0), (0.005, 0.5, 0.75, 0.9)
STUDY = read_toml(__file__)
FACTORS = STUDY["factors"]
if SMOKE:
    FACTORS = {name: levels[: 1 + (name == "start")] for name, levels in FACTORS.items()}
DIMS = small((16, 128, 512), (8,))
NUMBERS = small((0, 1, 3, 15), (2,))
RATES = (100.0, 10.0)
FEW, REGIME, CLIPS, TASKS_OF = (STUDY[name] for name in ("few", "regime", "clips", "tasks"))

Part = Literal["points", "factors", "range", "number", "sphere", "batches", "few", "regime"]


@dataclasses.dataclass(frozen=True)
class Settings(RecordOptions):
    """What is run."""

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
    steps: int | None = None
    """Training steps; default 300 (digits), 600 (alphabets), 1200 (letters)."""
    out: Path = record(HERE)
    """Where the kept runs are."""


def base(options: Settings, /, **changed: Any) -> dict[str, Any]:
    """Today's preset, which every part but points changes in one way or another."""
    job = {"task": options.task, "batch": TASKS[options.task].batch, "steps": options.steps}
    method = {"method": "PFML", "settings": {"delta": 0.2, "alpha": 1.0}, "proxies": 15}
    guards = {"start": "sphere", "clip": "entry", "sphere": False, "proxy_rate": 100.0}
    return {**job, **method, **guards, "test": False, "noise": 0.0, **changed}


def with_factors(job: dict[str, Any], **levels: Any) -> dict[str, Any]:
    """Return a job at one level of each factor."""
    own = {**job["settings"], "alpha": levels["alpha"]}
    own["proxy_attraction"] = levels["attraction"] == "on"
    return {**job, "settings": own, "start": levels["start"], "clip": levels["clip"]}


def grid(**factors: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Return every combination of levels."""
    combined = itertools.product(*factors.values())
    return [dict(zip(factors, levels, strict=True)) for levels in combined]


def settings_of(part: Part, options: Settings) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the levels and the job, without its seed, of each setting of a part."""
    job, noises = functools.partial(base, options), (0.0, NOISE)
    plain = {
        "number": grid(proxies=NUMBERS, noise=noises),
        "sphere": grid(sphere=(False, True), proxy_rate=RATES),
    }
    for levels in plain.get(part, ()):
        yield levels, job(**levels)
    if part == "points":
        own = {"task": "points", "batch": None, "steps": None}
        for levels in grid(dim=DIMS, **FACTORS):
            yield levels, {**with_factors(job(**own), **levels), "dim": levels["dim"]}
    elif part == "factors":
        for levels in grid(**FACTORS):
            yield levels, with_factors(job(), **levels)
    elif part == "range":
        for levels in grid(delta=DELTAS, nearest=NEAREST, noise=noises):
            reach = {"min_distance": levels["nearest"] * levels["delta"]}
            own = {"delta": levels["delta"], "alpha": 1.0, **reach}
            yield levels, job(settings=own, noise=levels["noise"])
    elif part == "batches":
        for name, batch in (("random", 160), ("balanced", (4, 40))):
            yield {"batch": name}, job(batch=batch)
    elif part == "few":
        for levels in grid(**FEW):
            own = {name: value for name, value in levels.items() if name != "alpha"}
            field = {"delta": 0.2, "alpha": levels["alpha"]}
            yield levels, job(settings=field, clip="norm", **own)
    elif part == "regime":
        for (name, values), noise in itertools.product(REGIME.items(), noises):
            method, number, own = values["method"], values["proxies"], values.get("settings", {})
            start = "samples" if method in ("PFML", "CPML") else "sphere"
            clip = CLIPS.get(name.split(",")[0], "none")
            levels = {"method": name.replace(" ", ""), "noise": noise}
            field = {"method": method, "proxies": number, "settings": own}
            yield levels, job(**field, noise=noise, test=True, start=start, clip=clip)


def make_jobs(settings: Settings) -> dict[str, dict[str, Any]]:
    """Every run by name, which tells its task, its part and its levels; one seed of all settings after the other."""
    jobs = {}
    for part, seed in itertools.product(settings.parts, range(settings.seeds)):
        for levels, job in settings_of(part, settings):
            told = " ".join(f"{name}={value}" for name, value in levels.items())
            jobs[f"{settings.task}: {part}: {told}-{seed}"] = {**job, "seed": seed}
    return jobs


Levels = tuple[tuple[str, str], ...]
Runs = Mapping[Levels, Mapping[int, Mapping[str, float]]]
"""The metrics of runs by setting and seed."""
MEASURES = {
    "points": ("covered", "together", "distance", "norm"),
    "regime": ("held out R@1", "held out MAP@R"),
}
COMMON = ("held out R@1", "seen R@1", "held out MAP@R", "together", "covered", "distance", "norm")
PERCENT = ("R@1", "MAP@R")
DIFFERENCES = ("held out R@1", "held out MAP@R", "seen R@1", "covered")
BESIDE = ("held out R@1", "held out MAP@R", "seen R@1")
WORDS = ("sphere", "samples", "on", "off", "none", "entry", "norm", "False", "True", "random")
"""The order of levels that are no numbers: the first of a factor is what the others are compared with."""


def of_task(results: Results, task: str) -> Results:
    """Return the runs of a task, by their names without it."""
    own = f"{task}: "
    return {name.removeprefix(own): run for name, run in results.items() if name.startswith(own)}


def levels_of(name: str) -> tuple[str, Levels, int]:
    """Return the part, the levels and the seed that a run's name tells."""
    setting, _, seed = name.rpartition("-")
    part, _, levels = setting.partition(": ")
    pairs = tuple(tuple(level.split("=", 1)) for level in levels.split(" "))
    return part, pairs, int(seed)  # type: ignore[return-value]


def of_part(results: Results, part: str) -> Runs:
    """Return the metrics of a part's runs, by setting and seed."""
    runs: dict[Levels, dict[int, Mapping[str, float]]] = {}
    for name, result in results.items():
        own, levels, seed = levels_of(name)
        if own == part:
            runs.setdefault(levels, {})[seed] = result["metrics"]
    return {levels: runs[levels] for levels in sorted(runs, key=lambda s: [*map(place, s)])}


def place(level: tuple[str, str]) -> tuple[bool, float, str]:
    """Where a level stands: known words in their order, numbers by size, then other words."""
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


def shown(measure: str, runs: Mapping[int, float]) -> str:
    """Return mean and deviation: retrieval in percent, all else as it is."""
    values = list(runs.values())
    return cell(values) if measure.endswith(PERCENT) else cell(values, 1, 2)


def setting_table(runs: Runs, part: str) -> str:
    """Return a row for each setting that has a run."""
    measures = those_measured(runs, MEASURES.get(part, COMMON))
    rows = []
    for levels, seeds in runs.items():
        cells = [shown(measure, scores(seeds, measure)) for measure in measures]
        rows.append([*(value for _, value in levels), *cells, str(len(seeds))])
    return markdown_table([*dict(next(iter(runs))), *measures, "seeds"], rows)


def those_measured(runs: Runs, measures: Sequence[str]) -> list[str]:
    """Return the measures that some run has."""
    return [m for m in measures if any(scores(seeds, m) for seeds in runs.values())]


def difference_table(runs: Runs) -> str:
    """For each factor the difference of a level to its first, averaged over the other factors, paired by seed."""
    measures, rows = those_measured(runs, DIFFERENCES), []
    for name in dict(next(iter(runs))):
        first, *others = dict.fromkeys(dict(levels)[name] for levels in runs)
        for value in others:
            cells = [differ(runs, name, first, value, measure) for measure in measures]
            rows.append([f"{name}: {value} − {first}", *cells])
    return markdown_table(["factor", *measures], rows)


def differ(runs: Runs, factor: str, first: str, second: str, measure: str) -> str:
    """Mean difference of two levels over seeds, with a 95 % interval; settings that have both, and only those."""
    values: tuple[dict[int, list[float]], ...] = ({}, {})
    for levels, seeds in runs.items():
        if (factor, first) in levels:
            other = runs.get(at_level(levels, {factor: second}), {})
            one, two = scores(seeds, measure), scores(other, measure)
            for seed in [seed for seed in one if seed in two]:
                for kept, of in zip(values, (two, one), strict=True):
                    kept.setdefault(seed, []).append(of[seed])
    means = ({seed: float(np.mean(v)) for seed, v in level.items()} for level in values)
    return interval(measure, *means)


def at_level(levels: Levels, changed: Mapping[str, str]) -> Levels:
    """Return a setting at other levels of some factors."""
    return tuple((name, changed.get(name, value)) for name, value in levels)


def against_table(runs: Runs, preset: Mapping[str, str]) -> str:
    """Return each setting beside the one that has the preset's levels, and is otherwise the same, paired by seed."""
    rows = []
    for levels, seeds in runs.items():
        other = at_level(levels, preset)
        if other != levels and other in runs:
            pairs = [(m, scores(seeds, m), scores(runs[other], m)) for m in BESIDE]
            rows.append([*(value for _, value in levels), *(interval(*pair) for pair in pairs)])
    return markdown_table([*dict(next(iter(runs))), *BESIDE], rows)


def ranking_table(runs: Runs) -> str:
    """Methods from the best to the worst, clean and with wrong labels, each beside the next one."""
    measure, rows = "held out R@1", []
    for noise in dict.fromkeys(levels[-1] for levels in runs):
        of_noise = {levels[0][1]: seeds for levels, seeds in runs.items() if levels[-1] == noise}
        scored = {method: scores(seeds, measure) for method, seeds in of_noise.items()}
        order = sorted(scored, key=lambda method: -float(np.mean(list(scored[method].values()))))
        for method, following in zip(order, [*order[1:], None], strict=True):
            beside = interval(measure, scored[method], scored[following]) if following else ""
            rows.append([noise[1], method, shown(measure, scored[method]), beside])
    return markdown_table(["noise", "method", measure, "beside the next"], rows)


def interval(measure: str, one: Mapping[int, float], other: Mapping[int, float]) -> str:
    """Return the mean of paired differences with its 95 % interval, and how many seeds there are."""
    percent = measure.endswith(PERCENT)
    gain, form = (
        paired_difference(one, other, scale=100 if percent else 1),
        "+.1f" if percent else "+.2f",
    )
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
    results = settings.results(run, make_jobs(settings), settings.out / "results.jsonl")
    return report(of_task(results, settings.task), settings.parts)


if __name__ == "__main__":
    start(main, Settings, __doc__)
