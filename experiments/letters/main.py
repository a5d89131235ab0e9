"""Every method on Omniglot by letter, tuned alike, under the protocol of *A Metric Learning Reality Check*."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments.letters import protocol
from experiments.letters.methods import METHODS, trial, tuned
from experiments.letters.protocol import Job, make_job, name_of, read_frozen
from experiments.letters.runs import OfModels
from experiments.letters.tables import CLAIMS, report
from experiments.smoke import NETWORK, SMOKE, small
from experiments.study import start
from jdml.recipes import Recipe
from jdml.runs.run_files import read_results, write_json

TRIALS, LEADING, DEEP = small(10, 1), 12, 6
if SMOKE:
    METHODS = {"MS": METHODS["MS"]}
AGAIN = ("ArcFace", "sub-centre ArcFace")
"""Surprises, with their papers' settings: some folds of theirs were ten points behind others, or behind the pilot."""
CLAIMED = tuple(dict.fromkeys(name for pair in CLAIMS for name in pair))
CHOOSING = 0
"""Seed of all that chooses; what is scored has others."""
Results = Mapping[str, Any]
Frozen = dict[str, dict[str, Recipe]]


Settings = OfModels


def ranked(results: Results, jobs: list[Job]) -> list[Job]:
    """Return jobs by MAP@R of the held-out letters, the best first; none before all are done."""
    done = {name_of(job): results.get(name_of(job)) for job in jobs}
    values = {n: run["metrics"].get("validation", -1.0) for n, run in done.items() if run}
    return [] if len(values) < len(jobs) else sorted(jobs, key=lambda job: -values[name_of(job)])


def pilots() -> list[Job]:
    """Return all methods with their papers' settings on the first fold."""
    return [make_job(name, "pilot", CHOOSING, 0, recipe) for name, recipe in METHODS.items()]


def trials(results: Results) -> list[Job]:
    """Return the leading methods' trials on the same fold; none before all pilots."""
    leading = [job["method"] for job in ranked(results, pilots())[:LEADING]]
    return in_turn({name: METHODS[name] for name in leading})


def also(results: Results) -> list[Job]:
    """Return the trials of the methods that the papers' claims are about, if they do not lead."""
    leading = {job["method"] for job in trials(results)}
    names = [name for name in CLAIMED if name in METHODS and name not in leading]
    return in_turn({name: METHODS[name] for name in names})


def in_turn(methods: Mapping[str, Recipe], dims: int | None = None) -> list[Job]:
    """Return the first trial of all methods, then the next of all."""
    return [
        make_job(name, f"trial {number}", CHOOSING, 0, tuned(made, trial(made, number, dims)))
        for number in range(TRIALS)
        for name, made in methods.items()
    ]


def best_of(results: Results, jobs: list[Job]) -> dict[str, Recipe]:
    """Return each method's best trial, the best method first; none before all trials are done."""
    best: dict[str, Recipe] = {}
    for job in ranked(results, jobs):
        best.setdefault(job["method"], Recipe.from_json(job["recipe"]))
    return best


def models(frozen: Path) -> list[Job]:
    """Return all that is scored: seed by seed and method by method four models, the tuned ones first."""
    return [
        make_job(method, column, seed, fold, recipe)
        for seed in sorted({seed for seeds in protocol.COLUMNS.values() for seed in seeds})
        for column, recipes in read_frozen(frozen).items()
        if seed in protocol.COLUMNS[column]
        for method, recipe in recipes.items()
        for fold in range(protocol.FOLDS)
    ]


def joined(results: Results, frozen: Path) -> list[Job]:
    """Return four models together wherever all of them are on record."""
    scored = {name for name, result in results.items() if "MAP@R" in result["metrics"]}
    jobs = models(frozen)
    units = [jobs[first : first + protocol.FOLDS] for first in range(0, len(jobs), protocol.FOLDS)]
    return [{**unit[0], "fold": None} for unit in units if scored.issuperset(map(name_of, unit))]


def stages(settings: Settings) -> Iterator[list[Job]]:
    """Yield the jobs of one stage after the other; each depends on the results before."""
    yield pilots()
    yield trials(read_results(settings.out))
    if not froze(settings) or settings.smoke:
        yield joined(read_results(settings.out), settings.frozen)
        yield models(settings.frozen)
        yield joined(read_results(settings.out), settings.frozen)
        if read_frozen(settings.frozen)["tuned"]:
            yield also(read_results(settings.out))
            froze(settings)


def froze(settings: Settings) -> bool:
    """Write down what can be scored now and could not before: best trials, papers' settings; return whether any."""
    frozen, results = read_frozen(settings.frozen), read_results(settings.out)
    if frozen["tuned"]:
        again = {name: frozen["papers"][name] for name in AGAIN if name in frozen["papers"]}
        new = {"again": again, "also": best_of(results, also(results))}
        new = {column: own for column, own in new.items() if own and not frozen[column]}
    else:
        best = best_of(results, trials(results))
        deep = {"name": small("resnet20v2", NETWORK)}
        resnet = {name: recipe.replace(network=deep) for name, recipe in [*best.items()][:DEEP]}
        new = {"tuned": best, "papers": METHODS, "resnet": resnet} if best else {}
    if new:
        write_frozen(settings.frozen, {**frozen, **new})
        print(f"frozen in {settings.frozen}: commit it, then resume", flush=True)
    return bool(new)


def write_frozen(path: Path, frozen: Frozen) -> None:
    """Write the settings that may be scored."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {
        column: {name: recipe.to_json(defaults=False) for name, recipe in recipes.items()}
        for column, recipes in frozen.items()
        if recipes
    }
    write_json(path, values)


def main(settings: Settings) -> str:
    """Run what is missing, as far as time goes; return the tables."""
    for stage in () if settings.table else stages(settings):
        settings.do(stage)
    recorded = read_results(settings.out)
    planned = {"pilot": pilots(), "trial": trials(recorded) + also(recorded)}
    for column in protocol.COLUMNS:
        planned[column] = [job for job in models(settings.frozen) if job["column"] == column]
    return report(
        recorded, {part: [name_of(job) for job in jobs] for part, jobs in planned.items()}
    )


if __name__ == "__main__":
    start(main, Settings, __doc__)
