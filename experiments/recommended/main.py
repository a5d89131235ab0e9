"""The recipe to begin with, `jdml.recipes.recommended`, beside the first of the methods that nobody tuned."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cub_crops import main as birds
from experiments.cub_crops.features import Head, load
from experiments.letters import methods as letters
from experiments.letters import protocol
from experiments.letters.tables import Model, all_of
from experiments.omniglot import main as alphabets
from experiments.omniglot.methods import (
    DIM,
    METHODS,
    hold_out,
    on_data,
    retrieve,
    train,
)
from experiments.smoke import NETWORK, record, small
from experiments.study import RecordOptions, absolute, cell, start
from jdml.recipes import Recipe, recommended
from jdml.recipes.default_recipe import Pretraining
from jdml.report import PairedDifference, markdown_table, paired_difference
from jdml.runs.results_store import read_results
from jdml.training import FitResult, RunConfig, train_recipe

HERE = Path(__file__).parent
RECOMMENDED = "recommended"
Results = Mapping[str, Any]
Scores = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Task:
    """A task with a table of untuned methods."""

    first: str  # of the untuned methods by its table
    measure: str  # by which it is the first
    field: str  # the study of that table
    beside: tuple[
        int, ...
    ]  # seeds of the first and the recommended recipe, which the first never had
    alone: tuple[int, ...]  # seeds of the table, for the recommended recipe
    folds: tuple[int, ...] = (0,)  # models of a seed


FOLDS = tuple(range(protocol.FOLDS))
TASKS = {
    "letters": Task(small("FastAP", "MS"), "MAP@R", "letters", small((2, 3), (2,)), (1,), FOLDS),
    "alphabets": Task(
        *("EPS + circle", "letters R@1", "omniglot"),
        *small(((3, 4, 5, 6, 8), (0, 1, 2)), ((3,), (0,))),
    ),
    "birds": Task(
        *("MPA-DW", "R@1", "cub_crops"), *small((tuple(range(10, 20)), (0, 1, 2)), ((10,), (0,)))
    ),
}
PARTS = ("recommended, a random head", "MPA-DW, a principal head")
"""On birds: how much of it is where the head begins; added when the rest had been run."""
COLUMNS = {
    "letters": ("P@1", "RP", "MAP@R"),
    "alphabets": ("letters R@1", "letters MAP@R", "languages R@1"),
    "birds": ("R@1", "R@8", "MAP@R"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(RecordOptions):
    """What is run."""

    birds: Path | None = None
    """Folder of the crops, in CUB's layout."""
    weights: Path | None = None
    """Pretrained weights of EfficientNet-Lite0, from jdml weights convert."""
    features: Path = record(Path("runs/recommended/features"))
    """Folder of kept features."""
    only: tuple[str, ...] = tuple(TASKS)
    """Of the tasks these only."""
    out: Path = record(HERE / "results.jsonl")
    """File of the runs."""


def on_task(labels: Any, pretraining: Pretraining, steps: int, rows: int) -> Recipe:
    """Return the recommended recipe with a task's steps, rows and width."""
    recipe = recommended(labels, pretraining=pretraining, steps=steps, rows=rows)
    return recipe.replace(network={"name": small("small", NETWORK), "dim": DIM})


def run_letters(job: Mapping[str, Any], data_dir: str | None, **_: Any) -> Scores:
    """Return a model of one fold, scored on the unseen letters."""
    fold, every = job["fold"], protocol.EVERY
    part, validation = protocol.load_fold(data_dir, fold)[:2]
    recipe = letters.METHODS[TASKS["letters"].first]
    if job["method"] == RECOMMENDED:
        recipe = on_task(part.labels, "small", protocol.STEPS, letters.ROWS)
    result = train_recipe.train(
        recipe.replace(batch={"steps": protocol.STEPS}, evaluation={"every": every}),
        part,
        validation=validation,
        seed=protocol.seed_of(job["seed"], fold),
        run=RunConfig(log_every=every),
        progress=False,
    )
    test = protocol.letters(data_dir, "test")
    vectors = train_recipe.normalized(recipe, result.embedder(test.images))
    return {**protocol.score(vectors, test), **best_of(result)}


def run_alphabets(job: Mapping[str, Any], data_dir: str | None, **_: Any) -> Scores:
    """Return a network trained by alphabet, scored on the letters of others."""
    parts, steps = alphabets.load(data_dir), alphabets.Settings.steps
    recipe = on_data(METHODS[TASKS["alphabets"].first], alphabets.BATCH, alphabets.RATE, pool=24)
    if job["method"] == RECOMMENDED:
        recipe = on_task(parts.train.labels, "small", steps, recipe.batch.rows)
    result = train(recipe, parts, "letter", steps=steps, seed=job["seed"])
    scores = alphabets.score(recipe, result.embedder(parts.test.images), parts.test)
    return {**scores, **best_of(result)}


def run_birds(
    job: Mapping[str, Any], birds_dir: str | None, weights: str | None, features: str, **_: Any
) -> Scores:
    """Return a head on the features of the frozen network, scored on the test species."""
    parts = hold_out(*load(birds_dir, weights, features), classes=birds.HELD_OUT)
    steps = birds.Settings.steps
    recipe = on_data(METHODS[TASKS["birds"].first], birds.BATCH, birds.RATE, pool=16)
    if job["method"] in (RECOMMENDED, PARTS[0]):
        recipe = on_task(parts.train.labels, "frozen", steps, recipe.batch.rows)
    if job["method"] in PARTS:
        head = "random" if job["method"] == PARTS[0] else "principal"
        recipe = recipe.replace(network={"head_init": head})
    result = train(recipe, parts, "class", steps=steps, seed=job["seed"], model=Head(DIM))
    x = np.asarray(train_recipe.normalized(recipe, result.embedder(parts.test.images)))
    found = retrieve(recipe, x, parts.test.labels)
    return {**{name: float(found[name]) for name in COLUMNS["birds"]}, **best_of(result)}


def best_of(result: FitResult) -> Scores:
    """Return which of the evaluations gave the weights."""
    assert result.best is not None
    return {"validation": result.best.value, "best step": result.best.step}


def run(job: Mapping[str, Any], **places: Any) -> Scores:
    """Train and score a model of a task."""
    runs: Any = {"letters": run_letters, "alphabets": run_alphabets, "birds": run_birds}
    return runs[job["task"]](job, **places)


def jobs_of(name: str) -> dict[str, dict[str, Any]]:
    """Return all models of a task: those that stand beside each other first."""
    task = TASKS[name]
    made = [(method, seed) for seed in task.beside for method in (RECOMMENDED, task.first)]
    made += [(RECOMMENDED, seed) for seed in task.alone]
    made += [(method, seed) for method in PARTS for seed in task.beside if name == "birds"]
    return {
        f"{name}: {method}, fold {fold}-{seed}": dict(
            task=name, method=method, seed=seed, fold=fold
        )
        for method, seed in made
        for fold in task.folds
    }


def models_of(
    results: Results, name: str, method: str, measure: str, seeds: tuple[int, ...] | None = None
) -> dict[Model, float]:
    """Return a measure of a method's models by seed and fold; those that stand beside each other."""
    return {
        (job["seed"], job["fold"]): results[key]["metrics"][measure]
        for key, job in jobs_of(name).items()
        if job["method"] == method and key in results
        if job["seed"] in (seeds or TASKS[name].beside)
    }


def gap(results: Results, name: str, one: str, other: str, measure: str) -> PairedDifference:
    """By how much a method is better than another, model by model."""
    return paired_difference(
        *(models_of(results, name, method, measure) for method in (one, other))
    )


def kept_of(name: str) -> Results:
    """Return all runs that are kept beside a task's table."""
    return read_results(HERE.parent / TASKS[name].field / "results.jsonl")


def in_table(key: str, job: Mapping[str, Any]) -> bool:
    """Return whether a kept run is one of the table of untuned methods, not of another part of its study."""
    if "column" in job:
        return job["column"] == "papers" and job["fold"] is not None
    other = {"open_set", "labels"} & {*job} or ": " in key
    return not other and job["method"] != birds.FEATURES


def field_of(name: str) -> dict[str, dict[Model, float]]:
    """Return the measure of all untuned methods by seed and fold, from the runs of their table."""
    found: dict[str, dict[Model, float]] = {}
    for key, kept in kept_of(name).items():
        job, value = kept["job"], kept["metrics"].get(TASKS[name].measure)
        if value is not None and in_table(key, job):
            found.setdefault(job["method"], {})[job["seed"], job.get("fold", 0)] = value
    return found


def differences(results: Results) -> dict[str, PairedDifference]:
    """Return the recommended recipe less the first of the untuned methods, by the seeds that the first never had."""
    return {
        f"{name}: {RECOMMENDED} − {task.first}, {task.measure}": gap(
            results, name, RECOMMENDED, task.first, task.measure
        )
        for name, task in TASKS.items()
    }


def by_folds(results: Results) -> PairedDifference:
    """Return the difference on letters with the folds, which share letters, as units: seeds are averaged."""
    task, means = TASKS["letters"], []
    for method in (RECOMMENDED, task.first):
        folds: dict[int, list[float]] = {}
        for (_, fold), value in models_of(results, "letters", method, task.measure).items():
            folds.setdefault(fold, []).append(value)
        means.append({fold: float(np.mean(values)) for fold, values in folds.items()})
    return paired_difference(*means)


def on_birds(results: Results) -> dict[str, PairedDifference]:
    """Beside the frozen features, and what the head's start is worth: by the seeds of the comparison."""
    told, frozen = {}, kept_of("birds")[f"{birds.FEATURES}-0"]["metrics"]
    for measure in COLUMNS["birds"]:
        own = models_of(results, "birds", RECOMMENDED, measure)
        bare = dict.fromkeys(own, frozen[measure])
        told[f"{RECOMMENDED} − {birds.FEATURES}, {measure}"] = paired_difference(own, bare)
    for pair in ((RECOMMENDED, PARTS[0]), (PARTS[1], TASKS["birds"].first)):
        for measure in ("R@1", "MAP@R"):
            told[f"{' − '.join(pair)}, {measure}"] = gap(results, "birds", *pair, measure)
    return told


def ahead_of(results: Results, name: str) -> str:
    """Return how many of the untuned methods it is ahead of in all models of the table's seeds."""
    task, field = TASKS[name], field_of(name)
    own = models_of(results, name, RECOMMENDED, task.measure, task.alone)
    if missing := len(task.alone) * len(task.folds) - len(own):
        return f"{name}: {missing} models with the table's seeds are missing"
    ahead = [m for m, values in field.items() if all(own[key] > values[key] for key in own)]
    return f"{name}: ahead of {len(ahead)} of {len(field)} untuned methods in all {len(own)} models"


def report(results: Results) -> str:
    """Return all tables."""
    sections = []
    for name, task in TASKS.items():
        rows = []
        for method in (RECOMMENDED, task.first):
            each = [[*models_of(results, name, method, c).values()] for c in COLUMNS[name]]
            rows.append([method, *map(cell, each), str(len(each[0]))])
        sections.append(markdown_table([name, *COLUMNS[name], "models"], rows))
    sections.append(all_of(differences(results), "points"))
    more = {"letters, by folds": by_folds(results), **on_birds(results)}
    rows = [[name, str(pair)] for name, pair in more.items()]
    sections.append(markdown_table(["beside that, points", "difference"], rows))
    sections += [ahead_of(results, name) for name in TASKS]
    return "\n".join(sections)


def main(settings: Settings) -> str:
    """Do the runs that are missing, and give the tables."""
    jobs = {key: job for name in settings.only for key, job in jobs_of(name).items()}
    places = {"birds_dir": absolute(settings.birds), "weights": absolute(settings.weights)}
    places["features"] = absolute(settings.features)
    return report(settings.results(run, jobs, settings.out, **places))


if __name__ == "__main__":
    start(main, Settings, __doc__)
