"""The recipe to begin with, `jdml.recipes.recommended`, compared with the first of the methods that nobody tuned."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from experiments.cub_crops import main as birds
from experiments.cub_crops.main import Head, load
from experiments.letters import methods as letters
from experiments.letters import protocol
from experiments.letters.tables import Model, all_of
from experiments.omniglot import main as alphabets
from experiments.omniglot import methods
from experiments.smoke import NETWORK, record, small
from experiments.study import RecordOptions, absolute, best_of, cell, read_toml, start
from jdml.recipes import Recipe, recommended
from jdml.recipes.recipe import Pretraining
from jdml.report import PairedDifference, markdown_table, paired_difference
from jdml.runs.run_files import read_results
from jdml.training import RunConfig, train_recipe

HERE = Path(__file__).parent
RECOMMENDED = "recommended"
Results = Mapping[str, Any]
Scores = dict[str, float]


TASKS = {name: SimpleNamespace(**values) for name, values in read_toml(__file__).items()}
PARTS = ("recommended, a random head", "MPA-DW, a principal head")
"""On birds: the effect of the head's start; added when the rest had been run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(RecordOptions):
    """Settings of the study."""

    birds: Path | None = None
    """Folder of the crops, in CUB's layout."""
    features: Path = record(Path("runs/recommended/features"))
    """Folder of kept features."""


def on_task(labels: Any, pretraining: Pretraining, steps: int, rows: int) -> Recipe:
    """Return the recommended recipe with a task's steps, rows and width."""
    recipe = recommended(labels, pretraining=pretraining, steps=steps, rows=rows)
    return recipe.replace(network={"name": small("small", NETWORK), "dim": methods.DIM})


def run(
    job: Mapping[str, Any],
    data_dir: str | None,
    birds_dir: str | None,
    weights: str | None,
    features: str,
) -> Scores:
    """Train and score a model of a task."""
    name, seed, method = job["task"], job["seed"], job["method"]
    task, recommends = TASKS[name], method in (RECOMMENDED, PARTS[0])
    if name == "letters":  # a model of one fold
        part, validation = protocol.load_fold(data_dir, job["fold"])[:2]
        recipe = letters.METHODS[task.first]
        if recommends:
            recipe = on_task(part.labels, "small", protocol.STEPS, letters.ROWS)
        every = {"every": protocol.EVERY}
        result = train_recipe.train(
            recipe.replace(batch={"steps": protocol.STEPS}, evaluation=every),
            part,
            validation=validation,
            seed=protocol.seed_of(seed, job["fold"]),
            run=RunConfig(log_every=protocol.EVERY),
            progress=False,
        )
        test = protocol.letters(data_dir, "test")
        vectors = train_recipe.normalized(recipe, result.embedder(test.images))
        scores = protocol.score(vectors, test)
    elif name == "alphabets":
        parts, steps = alphabets.load(data_dir), alphabets.Settings.steps
        recipe = methods.on_data(
            methods.METHODS[task.first], alphabets.BATCH, alphabets.RATE, pool=24
        )
        if recommends:
            recipe = on_task(parts.train.labels, "small", steps, recipe.batch.rows)
        result = methods.train(recipe, parts, "letter", steps=steps, seed=seed)
        scores = alphabets.score(recipe, result.embedder(parts.test.images), parts.test)
    else:  # a head on the features of a frozen network
        parts = methods.hold_out(*load(birds_dir, weights, features), classes=birds.HELD_OUT)
        steps = birds.Settings.steps
        recipe = methods.on_data(methods.METHODS[task.first], birds.BATCH, birds.RATE, pool=16)
        if recommends:
            recipe = on_task(parts.train.labels, "frozen", steps, recipe.batch.rows)
        if method in PARTS:
            head = "random" if method == PARTS[0] else "principal"
            recipe = recipe.replace(network={"head_init": head})
        result = methods.train(
            recipe, parts, "class", steps=steps, seed=seed, model=Head(methods.DIM)
        )
        x = np.asarray(train_recipe.normalized(recipe, result.embedder(parts.test.images)))
        measured = methods.retrieve(recipe, x, parts.test.labels)
        scores = {column: float(measured[column]) for column in task.columns}
    return {**scores, **best_of(result)}


def jobs_of(name: str) -> dict[str, dict[str, Any]]:
    """Return all models of a task, those that are compared first."""
    task = TASKS[name]
    models = [(method, seed) for seed in task.seeds for method in (RECOMMENDED, task.first)]
    models += [(RECOMMENDED, seed) for seed in task.table_seeds]
    models += [(method, seed) for method in PARTS for seed in task.seeds if name == "birds"]
    return {
        f"{name}: {method}, fold {fold}-{seed}": dict(
            task=name, method=method, seed=seed, fold=fold
        )
        for method, seed in models
        for fold in range(protocol.FOLDS if name == "letters" else 1)
    }


def models_of(
    results: Results, name: str, method: str, measure: str, seeds: list[int] | None = None
) -> dict[Model, float]:
    """Return a measure of a method's models by seed and fold; of those that are compared, by default."""
    return {
        (job["seed"], job["fold"]): results[key]["metrics"][measure]
        for key, job in jobs_of(name).items()
        if job["method"] == method and key in results
        if job["seed"] in (seeds or TASKS[name].seeds)
    }


def gap(results: Results, name: str, one: str, other: str, measure: str) -> PairedDifference:
    """Return by how much a method is better than another, model by model."""
    return paired_difference(*(models_of(results, name, m, measure) for m in (one, other)))


def record_of(name: str) -> Results:
    """Return all runs on record next to a task's table."""
    return read_results(HERE.parent / TASKS[name].study / "results.jsonl")


def untuned(name: str) -> dict[str, dict[Model, float]]:
    """Return the measure of all untuned methods of a task's table, by seed and fold."""
    scores: dict[str, dict[Model, float]] = {}
    for key, run in record_of(name).items():
        job, value = run["job"], run["metrics"].get(TASKS[name].measure)
        if "column" in job:
            in_table = job["column"] == "papers" and job["fold"] is not None
        else:
            other = {"open_set", "labels"} & {*job} or ": " in key
            in_table = not other and job["method"] != birds.FEATURES
        if value is not None and in_table:
            scores.setdefault(job["method"], {})[job["seed"], job.get("fold", 0)] = value
    return scores


def further(results: Results) -> dict[str, PairedDifference]:
    """Return the difference on letters by fold, with seeds averaged, and on birds to features and heads."""
    task, bare, means = TASKS["letters"], record_of("birds")[f"{birds.FEATURES}-0"]["metrics"], []
    for method in (RECOMMENDED, task.first):
        folds: dict[int, list[float]] = {}
        for (_, fold), value in models_of(results, "letters", method, task.measure).items():
            folds.setdefault(fold, []).append(value)
        means.append({fold: float(np.mean(values)) for fold, values in folds.items()})
    gaps = {"letters, by folds": paired_difference(*means)}
    for measure in TASKS["birds"].columns:
        own = models_of(results, "birds", RECOMMENDED, measure)
        name = f"{RECOMMENDED} − {birds.FEATURES}, {measure}"
        gaps[name] = paired_difference(own, dict.fromkeys(own, bare[measure]))
    for pair in ((RECOMMENDED, PARTS[0]), (PARTS[1], TASKS["birds"].first)):
        for measure in ("R@1", "MAP@R"):
            gaps[f"{' − '.join(pair)}, {measure}"] = gap(results, "birds", *pair, measure)
    return gaps


def ahead_of(results: Results, name: str) -> str:
    """Return how many of the untuned methods it is ahead of in all models of the table's seeds."""
    task, others = TASKS[name], untuned(name)
    own = models_of(results, name, RECOMMENDED, task.measure, task.table_seeds)
    ahead = [m for m, values in others.items() if all(own[key] > values[key] for key in own)]
    return (
        f"{name}: ahead of {len(ahead)} of {len(others)} untuned methods in all {len(own)} models"
    )


def report(results: Results) -> str:
    """Return all tables."""
    sections, gaps = [], {}
    for name, task in TASKS.items():
        rows = []
        for method in (RECOMMENDED, task.first):
            each = [[*models_of(results, name, method, c).values()] for c in task.columns]
            rows.append([method, *map(cell, each), str(len(each[0]))])
        sections.append(markdown_table([name, *task.columns, "models"], rows))
        title = f"{name}: {RECOMMENDED} − {task.first}, {task.measure}"
        gaps[title] = gap(results, name, RECOMMENDED, task.first, task.measure)
    sections.append(all_of(gaps, "points"))
    rows = [[name, str(pair)] for name, pair in further(results).items()]
    sections.append(markdown_table(["further, in points", "difference"], rows))
    return "\n".join([*sections, *(ahead_of(results, name) for name in TASKS)])


def main(settings: Settings) -> str:
    """Do the runs that are missing, and give the tables."""
    jobs = {key: job for name in TASKS for key, job in jobs_of(name).items()}
    places = {"birds_dir": absolute(settings.birds), "weights": absolute(settings.weights)}
    places["features"] = absolute(settings.features)
    return report(settings.results(run, jobs, HERE / "results.jsonl", **places))


if __name__ == "__main__":
    start(main, Settings, __doc__)
