"""CCP on a real task: Omniglot by letter, three losses, each alone, against proxies, as CCP, and with a memory."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import jdml
from experiments.letters import protocol
from experiments.smoke import NETWORK, small
from experiments.study import (
    RecordOptions,
    best_of,
    by_seed,
    cell,
    paired_table,
    present,
    read_toml,
    record_study,
    start,
)
from jdml import data
from jdml.metrics import class_covering
from jdml.ops import ball
from jdml.recipes import CCPConfig, Recipe
from jdml.recipes.ccp import NEVER
from jdml.report import markdown_table
from jdml.training import RunConfig, train_recipe
from jdml.training.alternation import make_callback

STEPS, EVERY, RUN_PATIENCE = small(10_000, 2), small(100, 1), 20
FOLDS, CLASSES = small(4, 2), small(8, 2)
STUDY = read_toml(__file__)
LOSSES, WAYS, AFTERWARDS = STUDY["losses"], STUDY["ways"], STUDY["afterwards"]
TESTS, LATER_TESTS = STUDY["tests"], STUDY["later_tests"]
SCORES = ("P@1", "RP", "MAP@R")


@dataclasses.dataclass(frozen=True)
class Settings(RecordOptions):
    """Settings of the study."""

    seeds: int = small(3, 1)
    """Four models for each way, with seeds 0, 1, …"""
    ways: tuple[str, ...] = small(tuple(WAYS), ("alone", "CCP-L", "XBM"))
    """The ways to train: these, and some that were added later."""


def make_jobs(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return every model by name: all ways of a loss with the first seed, then with the next."""
    return {
        f"{loss}, {way}, fold {fold}-{seed}": dict(
            loss=loss, way=way, fold=fold, seed=seed, steps=STEPS
        )
        for loss in small(LOSSES, ("contrastive",))
        for seed in range(settings.seeds)
        for way in settings.ways
        for fold in range(FOLDS)
    }


def recipe_of(job: dict[str, Any], classes: int) -> Recipe:
    """A loss in the ball, with the batch, a memory or proxies; where there are proxies the model is anchored."""
    way = {**WAYS, **AFTERWARDS}[job["way"]]
    own, problems = {"patience": NEVER, **way.get("problems", {})}, None
    if "problems" in way:
        problems = CCPConfig(pool_size=7, run_patience=RUN_PATIENCE, **own)
    memory = {"memory_size": way.get("memory", 0) * classes, "memory_start_step": 500}
    loss = {"name": job["loss"], "settings": LOSSES[job["loss"]], "normalize": "ball", **memory}
    rates = {"learning_rate": 5e-4, "lr_multipliers": {"proxies": 10.0}}
    return Recipe().replace(
        loss={**loss, "proxies": {"per_class": way.get("proxies")}, "method": problems},
        network={"name": small("small", NETWORK), "dim": 128},
        batch={"classes": CLASSES, "samples_per_class": 4, "steps": job["steps"]},
        optimizer={**rates, "b2": 0.99, "clip_global_norm": {".*": 10.0}},
        evaluation={"every": min(EVERY, job["steps"]), "patience": RUN_PATIENCE},
    )


def run(job: dict[str, Any], data_dir: str | None) -> dict[str, Any]:
    """Train one model of one fold; score its best weights on the unseen letters."""
    everything, test = (protocol.letters(data_dir, split) for split in ("train", "test"))
    fold = data.mlrc_folds(everything.labels, FOLDS)[job["fold"]]
    train, validation = everything.select(fold.train), everything.select(fold.validation)
    own = np.unique(train.labels, return_inverse=True)[1]
    train = dataclasses.replace(train, labels=own)
    recipe, seed = recipe_of(job, train.num_classes), job["seed"]
    model, method = train_recipe.make_network(recipe, train), recipe.loss.method
    problems = make_callback(method, recipe, model, train, train_recipe.MONITOR, seed=seed)
    result = train_recipe.train(
        recipe,
        train,
        validation=validation,
        sampler=recipe.batch.build(train.labels, seed),
        seed=FOLDS * seed + job["fold"],
        run=RunConfig(log_every=min(EVERY, job["steps"])),
        callbacks=[] if problems is None else [problems],
        progress=False,
    )
    x, held_out = (ball(jnp.asarray(result.embedder(part.images))) for part in (test, validation))
    scores = jdml.evaluate_retrieval(x, test.labels, recall_at=(1,))

    def rounded(values: Any, names: tuple[str, ...]) -> dict[str, float]:
        return {name: round(float(values[name]), 5) for name in names if name in values}

    columns = ("step", "MAP@R", "problem", "covering_radius", "covering_ratio")
    return {
        **rounded(scores, SCORES),
        **best_of(result),
        "problems": 1 + max(int(record.get("problem", 0)) for record in result.history),
        "unseen ratio": round(class_covering(held_out, validation.labels).ratio, 5),
        "curve": [rounded(record, columns) for record in result.history],
    }


def of_four(results: dict[str, Any], loss: str, way: str, metric: str) -> dict[int, float]:
    """Return the mean of a metric over the four models, by seed, of the seeds that have all four."""
    folds = [by_seed(results, metric, loss=loss, way=way, fold=fold) for fold in range(FOLDS)]
    whole = [seed for seed in folds[0] if all(seed in values for values in folds)]
    return {seed: float(np.mean([values[seed] for values in folds])) for seed in whole}


def of_each(results: dict[str, Any], loss: str, way: str) -> dict[tuple[int, int], float]:
    """MAP@R of the single models, by seed and fold."""
    return {
        (seed, fold): value
        for fold in range(FOLDS)
        for seed, value in by_seed(results, "MAP@R", loss=loss, way=way, fold=fold).items()
    }


def tables(results: dict[str, Any]) -> str:
    """Return means of each way, and the differences that decide."""
    losses = present(LOSSES, results, "loss")
    sections = []
    for loss in losses:
        rows = []
        for way in WAYS:
            scores = [list(of_four(results, loss, way, name).values()) for name in SCORES]
            numbers = [
                cell(list(of_four(results, loss, way, name).values()), 1.0, digits)
                for name, digits in (("problems", 1), ("best step", 0), ("unseen ratio", 3))
            ]
            rows.append([way, *map(cell, scores), *numbers, str(len(scores[0]))])
        titles = [loss, *SCORES, "problems", "best step", "radius / distance", "seeds"]
        sections.append(markdown_table(titles, rows))
    scored = {loss: {way: of_four(results, loss, way, "MAP@R") for way in WAYS} for loss in losses}
    sections.append(paired_table("MAP@R, points", TESTS, scored, planned=len(LOSSES)))
    each = {
        loss: {way: of_each(results, loss, way) for way in (*WAYS, *AFTERWARDS)} for loss in losses
    }
    sections.append(paired_table("MAP@R, points, of single models", LATER_TESTS, each))
    whole = {loss: set.intersection(*map(set, ways.values())) for loss, ways in scored.items()}
    models: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for loss, way in itertools.product(losses, WAYS):
        models[loss, way] = [
            result["metrics"]
            for result in results.values()
            if (result["job"]["loss"], result["job"]["way"]) == (loss, way)
            if result["job"]["seed"] in whole[loss]
        ]
    return "\n".join([*sections, progress({key: of for key, of in models.items() if of})])


AT = (500, 1000, 3000, 5000, 10_000)
"""Steps at which the validation letters are reported; a run that ended before has its last value."""


class Problem(NamedTuple):
    """A problem of a run: its evaluations, the best of them (from 1), MAP@R there, and whether another followed."""

    evaluations: int
    best: int
    value: float
    ended: bool


def problems_of(curve: list[dict[str, float]]) -> list[Problem]:
    """Split a run's evaluations by problem."""
    numbers = np.array([record["problem"] for record in curve])
    values = np.array([record["MAP@R"] for record in curve])
    return [
        Problem(len(own), 1 + int(own.argmax()), float(own.max()), bool(number < numbers.max()))
        for number in np.unique(numbers)
        for own in [values[numbers == number]]
    ]


def progress(models: dict[tuple[str, str], list[dict[str, Any]]]) -> str:
    """Return MAP@R of the validation letters at some steps, and what the first problem takes and later ones bring."""
    steps, problems = [], []
    for key, metrics in models.items():
        curves = [{int(r["step"]): r["MAP@R"] for r in of_model["curve"]} for of_model in metrics]
        at = [[curve[min(step, max(curve))] for curve in curves] for step in AT]
        ended = sum(max(curve) < AT[-1] for curve in curves)
        means = (f"{100 * np.mean(values):.1f}" for values in at)
        steps.append([*key, *means, str(ended), str(len(metrics))])
        if not key[1].startswith("CCP"):
            continue
        runs = [problems_of(of_model["curve"]) for of_model in metrics]
        every = int(metrics[0]["curve"][0]["step"])
        first = [run[0] for run in runs if run[0].ended]
        later = [problem for run in runs for problem in run[1:] if problem.ended]
        pairs = [pair for run in runs for pair in itertools.pairwise(run) if pair[1].ended]
        gains = [after.value - before.value for before, after in pairs]
        evaluations = sum(problem.evaluations for problem in later)
        undone = sum(problem.evaluations - problem.best for problem in later)
        problems.append(
            [
                *key,
                *(
                    cell([every * p.evaluations for p in first], 1.0, 0),
                    cell([p.value for p in first]),
                ),
                *(str(len(later)), str(sum(problem.best == 1 for problem in later))),
                f"{undone} of {evaluations}",
                f"{100 * np.mean(gains):+.2f}" if gains else "–",
            ]
        )
    at_steps = (f"step {step:,}" for step in AT)
    titles = ["loss", "way", "first problem's steps", "its MAP@R", "later, ended"]
    titles += ["best at once", "undone", "gain"]
    table = markdown_table(["loss", "way", *at_steps, "ended before", "models"], steps)
    return f"{table}\n{markdown_table(titles, problems)}"


main = record_study(Path(__file__).with_name("kept.jsonl"), run, make_jobs, tables)


if __name__ == "__main__":
    start(main, Settings, __doc__)
