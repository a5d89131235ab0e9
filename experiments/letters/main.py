"""Every method on Omniglot by letter, tuned alike, under the protocol of *A Metric Learning Reality Check*.

What is run, in which order, and which differences count is written in README.md, before the runs. All of it goes on by
one command, which may be stopped anywhere:

    python -m experiments.letters.main --data-dir DIR                  # all that is missing
    python -m experiments.letters.main --data-dir DIR --minutes 8      # begin nothing after eight minutes
    python -m experiments.letters.main --table                         # the tables of the runs that there are

A run that has ended is a line of results.jsonl and never run twice; one that was stopped goes on in its folder under
--runs. When the trials are done, the settings that they choose are written into frozen.json: commit it, and go on.
"""

import dataclasses
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from experiments.letters import abreast, protocol
from experiments.letters.methods import METHODS, objective_of, trial, tuned
from experiments.letters.protocol import (
    Job,
    load_fold,
    load_test,
    make_job,
    name_of,
    read_frozen,
    score,
    seed_of,
    told,
)
from experiments.letters.tables import CLAIMS, report
from experiments.options import Kept, start
from experiments.shown import curve
from experiments.smoke import NETWORK, SMOKE, record, small
from jdml import data
from jdml.recipes import Recipe
from jdml.training import FitResult, by_recipe
from jdml.training.records import read_results
from jdml.training.run_files import write_json

TRIALS, LEADING, DEEP = small(10, 1), 12, 6
if SMOKE:
    METHODS = {"MS": METHODS["MS"]}
AGAIN = ("ArcFace", "sub-centre ArcFace")
"""Surprises, with their papers' settings: some folds of theirs were ten points behind others, or behind the pilot."""
CLAIMED = tuple(dict.fromkeys(name for pair in CLAIMS for name in pair))
CHOOSING = 0
"""Seed of all that chooses; what is scored has others."""
HERE = Path(__file__).parent
Results = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Settings(Kept):
    """What is run."""

    only: tuple[str, ...] = ()
    """Of the methods these only, by name."""
    out: Path = record(HERE / "results.jsonl")
    """File of the kept runs."""
    frozen: Path = record(HERE / "frozen.json")
    """File of the settings that are scored."""
    runs: Path = record(Path("runs/letters"))
    """Folder of the runs that have not ended, and of models that are not yet scored together."""
    abreast: bool = False
    """Train the folds and seeds of a method in one program: for a GPU, which one of these models leaves idle."""


def fit_one(job: Job, fold: int, data_dir: str | None, runs: Path) -> FitResult:
    """One model of one fold, from where its folder is; the best of its evaluations."""
    train, validation = load_fold(data_dir, fold)
    recipe = Recipe.from_json(job["recipe"])
    every = min(job.get("every", protocol.EVERY), job["steps"])
    return by_recipe.train(
        recipe,
        train,
        validation=validation,
        objective=objective_of(job["method"], recipe, train.num_classes),
        steps=job["steps"],
        seed=seed_of(job["seed"], fold),
        evaluate_every=every,
        log_every=every,
        out_dir=folder_of(job, fold, runs),
        progress=False,
    )


def folder_of(job: Job, fold: int, runs: Path) -> Path:
    """The folder of a model."""
    return runs / name_of({**job, "fold": fold}).replace(":", ",")


def run(job: Job, data_dir: str | None, runs: str, frozen: str) -> dict[str, Any]:
    """Train a model of a fold, and score it where its settings are frozen; or score the four of a seed together."""
    scored = job["column"] in protocol.COLUMNS
    test = load_test(job, data_dir, Path(frozen)) if scored else None
    if job["fold"] is None:
        assert test is not None
        return together(job, test, data_dir, Path(runs))
    try:
        result = fit_one(job, job["fold"], data_dir, Path(runs))
    except FloatingPointError as error:
        return {"diverged": str(error)}
    assert result.best is not None
    if test is None:
        shutil.rmtree(folder_of(job, job["fold"], Path(runs)))
        scores = {}
    else:
        vectors = by_recipe.normalized(
            Recipe.from_json(job["recipe"]), result.embedder(test.images)
        )
        scores = score(vectors, test)
    problems = [int(row["problem"]) for row in result.history if "problem" in row]
    return {
        **scores,
        **({"problems": max(problems)} if problems else {}),
        "validation": round(result.best.value, 5),
        "best step": result.best.step,
        "steps": int(result.history[-1]["step"]),
        "curve": curve(result.history),
    }


def together(job: Job, test: data.Dataset, data_dir: str | None, runs: Path) -> dict[str, float]:
    """The four models' normalized embeddings side by side, normalized again; a model that is gone is trained again."""
    recipe = Recipe.from_json(job["recipe"])
    vectors = [
        by_recipe.normalized(recipe, fit_one(job, fold, data_dir, runs).embedder(test.images))
        for fold in range(protocol.FOLDS)
    ]
    scores = score(by_recipe.normalized(recipe, jnp.concatenate(vectors, axis=1)), test)
    for fold in range(protocol.FOLDS):
        shutil.rmtree(folder_of(job, fold, runs))
    return scores


def ranked(results: Results, jobs: list[Job]) -> list[Job]:
    """Jobs by what they found on the held-out letters, the best first; none before all are done."""
    done = {name_of(job): results.get(name_of(job)) for job in jobs}
    values = {n: run["metrics"].get("validation", -1.0) for n, run in done.items() if run}
    return [] if len(values) < len(jobs) else sorted(jobs, key=lambda job: -values[name_of(job)])


def pilots() -> list[Job]:
    """All methods with their papers' settings on the first fold."""
    return [make_job(name, "pilot", CHOOSING, 0, told(made)) for name, made in METHODS.items()]


def trials(results: Results) -> list[Job]:
    """The leading methods' trials on the same fold; none before all pilots."""
    return in_turn([job["method"] for job in ranked(results, pilots())[:LEADING]])


def also(results: Results) -> list[Job]:
    """The trials of the methods that the papers' claims are about, if they do not lead."""
    leading = {job["method"] for job in trials(results)}
    return in_turn([name for name in CLAIMED if name in METHODS and name not in leading])


def in_turn(names: Sequence[str]) -> list[Job]:
    """Of all methods the first trial, then of all the next."""
    return [
        make_job(name, f"trial {number}", CHOOSING, 0, told(tuned(made, trial(made, number))))
        for number in range(TRIALS)
        for name, made in [(name, METHODS[name]) for name in names]
    ]


def best_of(results: Results, jobs: list[Job]) -> dict[str, Any]:
    """Each method's best trial, the best method first; none before all trials are done."""
    best: dict[str, Any] = {}
    for job in ranked(results, jobs):
        best.setdefault(job["method"], job["recipe"])
    return best


def freeze(results: Results, frozen: Mapping[str, Any]) -> dict[str, Any]:
    """What can be scored now, and could not before.

    First each leading method's best trial, the best of them also deep, and all papers' settings; then what is run
    again, and the best trials of the methods that are tuned too.
    """
    if frozen["tuned"]:
        new = {
            "again": {name: frozen["papers"][name] for name in AGAIN if name in frozen["papers"]},
            "also": best_of(results, also(results)),
        }
        return {column: own for column, own in new.items() if own and not frozen[column]}
    best = best_of(results, trials(results))
    if not best:
        return {}
    deep = {
        name: {**best[name], "network": small("resnet20v2", NETWORK)} for name in list(best)[:DEEP]
    }
    return {
        "tuned": best,
        "papers": {name: told(made) for name, made in METHODS.items()},
        "resnet": deep,
    }


def models(frozen: Path) -> list[Job]:
    """All that is scored: seed by seed and method by method four models, the tuned ones first; none before they are."""
    return [
        make_job(method, column, seed, fold, recipe)
        for seed in sorted({seed for seeds in protocol.COLUMNS.values() for seed in seeds})
        for column, recipes in read_frozen(frozen).items()
        if seed in protocol.COLUMNS[column]
        for method, recipe in recipes.items()
        for fold in range(protocol.FOLDS)
    ]


def joined(results: Results, frozen: Path) -> list[Job]:
    """Four models each of which all are there."""
    scored = {name for name, result in results.items() if "MAP@R" in result["metrics"]}
    jobs = models(frozen)
    units = [jobs[first : first + protocol.FOLDS] for first in range(0, len(jobs), protocol.FOLDS)]
    return [{**unit[0], "fold": None} for unit in units if scored.issuperset(map(name_of, unit))]


def stages(settings: Settings) -> Iterator[list[Job]]:
    """What is to be done, one after the other; each asks what was done before."""
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
    """Write down what can be scored now, and could not before; whether there was any."""
    before = read_frozen(settings.frozen)
    new = {} if settings.table else freeze(read_results(settings.out), before)
    if new:
        write_json(settings.frozen, {**{k: v for k, v in before.items() if v}, **new})
        print(f"frozen in {settings.frozen}: commit it, then go on", flush=True)
    return bool(new)


def main(settings: Settings) -> str:
    """Run what is missing, as far as time goes; return the tables."""
    unknown = sorted(set(settings.only) - set(METHODS))
    if unknown:
        raise ValueError(f"--only must name methods among {', '.join(METHODS)}; got {unknown}")
    end = None if settings.minutes is None else time.monotonic() + 60 * settings.minutes
    where = {"runs": str(settings.runs.resolve()), "frozen": str(settings.frozen.resolve())}

    def in_time() -> Settings:
        left = None if end is None else max(0.0, (end - time.monotonic()) / 60)
        return dataclasses.replace(settings, minutes=left)

    for stage in stages(settings):
        jobs = {name_of(job): job for job in stage if job["method"] in (settings.only or METHODS)}
        if settings.abreast and not settings.table:
            together = {name: job for name, job in jobs.items() if abreast.can(job)}
            abreast.run_all(in_time(), together)
            jobs = {name: job for name, job in jobs.items() if name not in together}
        in_time().results(run, jobs, settings.out, **where)
    kept = read_results(settings.out)
    planned = {"pilot": pilots(), "trial": trials(kept) + also(kept)}
    for column in protocol.COLUMNS:
        planned[column] = [job for job in models(settings.frozen) if job["column"] == column]
    return report(kept, {part: [name_of(job) for job in jobs] for part, jobs in planned.items()})


if __name__ == "__main__":
    start(main, Settings, __doc__)
