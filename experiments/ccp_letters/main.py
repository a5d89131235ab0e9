"""CCP on a real task: Omniglot by letter, three losses, each alone, against proxies, as CCP, and with a memory.

964 letters of 20 drawings train, in the four class-disjoint folds of *A Metric Learning Reality Check*: three quarters
train, the fourth stops the run and ends problems; the 659 letters of other alphabets are scored. The ways, and which
differences decide, are written in README.md and below, before the runs, each of which is kept and never run twice.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import jdml
from experiments.ccp_letters import progress
from experiments.options import Kept, start
from experiments.shown import cell, those_run
from experiments.smoke import NETWORK, record, small
from jdml import data
from jdml.metrics import class_covering
from jdml.ops import ball
from jdml.recipes import CCPConfig, Recipe
from jdml.recipes.ccp import NEVER
from jdml.report import markdown_table, paired_table
from jdml.studies.runner import by_seed
from jdml.training import RunConfig, train_recipe
from jdml.training.alternation import make_callback

STEPS, EVERY, RUN_PATIENCE, PATIENCE = small(10_000, 2), small(100, 1), 20, 3
FOLDS, CLASSES = small(4, 2), small(8, 2)
LOSSES: dict[str, dict[str, Any]] = {
    "contrastive": {"positive_margin": 0.0, "negative_margin": 0.3841},
    "multi_similarity": {"alpha": 2.0, "beta": 40.0, "base": 0.5},
    "triplet": {"margin": 0.0961},
}
"""C2, MS and triplet as CCP's tables have them for CUB, without mining."""
WAYS: dict[str, dict[str, Any]] = {
    "alone": {},
    "one problem": {"proxies": 4, "patience": NEVER},
    "CCP-S": {"proxies": 1, "patience": PATIENCE},
    "CCP-L": {"proxies": 4, "patience": PATIENCE},
    "XBM": {"memory": 4},
}
"""Proxies per class, or remembered samples in units of classes: CCP-L and XBM have as many references."""
AFTERWARDS: dict[str, dict[str, Any]] = {
    "one problem, no anchor": {"proxies": 4, "patience": NEVER, "strength": 0.0},
    "CCP-L, first problem free": {"proxies": 4, "patience": PATIENCE, "anchor_first": False},
}
"""Ways that were added when the others had been seen: how much of it is the anchor at the weights of the start?"""
TESTS = {
    "CCP beside its own loss": ("CCP-L", "alone"),
    "CCP beside a single problem": ("CCP-L", "one problem"),
    "CCP beside a memory": ("CCP-L", "XBM"),
    "proxies beside samples": ("one problem", "alone"),
    "one proxy instead of four": ("CCP-S", "CCP-L"),
}
"""Differences of MAP@R (mean of the four models) over the same seeds; the first one decides, for each loss."""
LATER_TESTS = {
    "a memory beside the loss": ("XBM", "alone"),
    "the anchor of one problem": ("one problem, no anchor", "one problem"),
    "proxies beside samples": ("one problem, no anchor", "alone"),
    "the anchor of the first problem": ("CCP-L, first problem free", "CCP-L"),
    "CCP beside its own loss": ("CCP-L, first problem free", "alone"),
}
"""Differences that were looked at afterwards, over the models that both ways have."""
SCORES = ("P@1", "RP", "MAP@R")
KEPT = record(Path(__file__).parent / "kept.jsonl")


@dataclasses.dataclass(frozen=True)
class Settings(Kept):
    """What is run."""

    seeds: int = small(3, 1)
    """Four models for each way, with seeds 0, 1, …"""
    losses: tuple[str, ...] = small(tuple(LOSSES), ("contrastive",))
    """Of the losses these only."""
    steps: int = STEPS
    """Of a model at most."""
    ways: tuple[str, ...] = small(tuple(WAYS), ("alone", "CCP-L", "XBM"))
    """Of these and of those that were added afterwards these only."""
    out: Path = KEPT
    """File of the kept runs."""


@functools.cache
def load(data_dir: str | None) -> tuple[data.Dataset, data.Dataset]:
    """Letters that train, and those that are scored."""
    train, test = (
        data.load("omniglot", data_dir=data_dir, split=split, image_size=28).relabel("letter")
        for split in ("train", "test")
    )
    return train, test


def make_jobs(settings: Settings) -> dict[str, dict[str, Any]]:
    """Every model by name: all ways of a loss with the first seed, then with the next."""
    return {
        f"{loss}, {way}, fold {fold}-{seed}": dict(
            loss=loss, way=way, fold=fold, seed=seed, steps=settings.steps
        )
        for loss in settings.losses
        for seed in range(settings.seeds)
        for way in settings.ways
        for fold in range(FOLDS)
    }


def recipe_of(job: dict[str, Any], classes: int) -> Recipe:
    """A loss in the ball, beside the batch, a memory or proxies; where there are proxies the model is anchored."""
    way = {**WAYS, **AFTERWARDS}[job["way"]]
    own = {name: way[name] for name in ("patience", "strength", "anchor_first") if name in way}
    problems = CCPConfig(pool_size=7, run_patience=RUN_PATIENCE, **own) if own else None
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
    everything, test = load(data_dir)
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
    assert result.best is not None
    x, held_out = (ball(jnp.asarray(result.embedder(part.images))) for part in (test, validation))
    scores = jdml.evaluate_retrieval(x, test.labels, recall_at=(1,))

    def rounded(values: Any, names: tuple[str, ...]) -> dict[str, float]:
        return {name: round(float(values[name]), 5) for name in names if name in values}

    kept = ("step", "MAP@R", "problem", "covering_radius", "covering_ratio")
    return {
        **rounded(scores, SCORES),
        "validation": round(result.best.value, 5),
        "best step": result.best.step,
        "problems": 1 + max(int(record.get("problem", 0)) for record in result.history),
        "unseen ratio": round(class_covering(held_out, validation.labels).ratio, 5),
        "curve": [rounded(record, kept) for record in result.history],
    }


def of_four(results: dict[str, Any], loss: str, way: str, metric: str) -> dict[int, float]:
    """The mean of a metric over the four models, by seed, of the seeds that have all four."""
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
    """Means of each way, and the differences that decide."""
    losses = those_run(LOSSES, results, "loss")
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
    return "\n".join([*sections, progress_tables(results, whole)])


def progress_tables(results: dict[str, Any], seeds: dict[str, set[int]]) -> str:
    """How the models of some seeds of each loss came along."""
    models: dict[tuple[str, str], list[dict[str, Any]]]
    models = {(loss, way): [] for loss in seeds for way in WAYS}
    for result in results.values():
        job = result["job"]
        if job["way"] in WAYS and job["seed"] in seeds[job["loss"]]:
            models[job["loss"], job["way"]].append(result["metrics"])
    return progress.tables(models, tuple(way for way in WAYS if way.startswith("CCP")))


def main(settings: Settings) -> str:
    """Run what is missing, as far as time goes; return the tables."""
    return tables(settings.results(run, make_jobs(settings), settings.out))


if __name__ == "__main__":
    start(main, Settings, __doc__)
