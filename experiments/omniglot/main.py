"""One table: every method of the library, and their combinations, on Omniglot at 28×28."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

import jdml
from experiments.omniglot import methods
from experiments.omniglot.methods import METHODS, OfMethods, Parts, table_rows
from experiments.smoke import small
from experiments.study import batch_of, best_of, over_seeds, read_record, read_toml, start
from jdml import data, metrics
from jdml.recipes import Recipe
from jdml.report import markdown_table, paired_difference

RATE, BATCH = 5e-4, batch_of(small((4, 40), (2, 4)))
LETTER_BATCH = batch_of((16, 10))
"""As many drawings: a letter has 20."""
HELD_OUT = small(3, 1)
"""Alphabets."""
LEVELS = {"languages": "alphabet", "letters": "letter"}
SCORES = ("R@1", "R@8", "MAP@R")
STUDY = read_toml(__file__)
COLUMNS, BY_LEVEL, MEMORIES = (STUDY[name] for name in ("columns", "by_level", "memories"))


@dataclasses.dataclass(frozen=True)
class Settings(OfMethods):
    """Settings of the study."""

    steps: int = small(400, 2)
    """Training steps of each run."""
    labels: tuple[Literal["alphabet", "letter"], ...] = ("alphabet",)
    """The labels that are trained on."""


@functools.cache
def load(data_dir: str | None) -> Parts:
    """Omniglot with the last alphabets of the training half held out."""
    train, test = (data.load("omniglot", data_dir=data_dir, split=s) for s in ("train", "test"))
    return methods.hold_out(train, test, HELD_OUT)


def run(job: Mapping[str, Any]) -> dict[str, Any]:
    """Train one network, and score it at its best validation on the unseen alphabets."""
    parts, batch = load(job["data_dir"]), BATCH
    if job.get("labels") == "letter":
        parts, batch = parts._replace(train=parts.train.relabel("letter")), LETTER_BATCH
    recipe = methods.on_data(METHODS[job["method"]], batch, RATE, pool=24)
    result = methods.train(recipe, parts, "letter", steps=job["steps"], seed=job["seed"])
    x = result.embedder(parts.test.images)
    scores = {**best_of(result), **score(recipe, x, parts.test)}
    unit, letters = jdml.sphere(jnp.asarray(x)), jnp.asarray(parts.test.views["letter"])
    scores["letters NMI"] = metrics.nmi(unit, letters, key=jax.random.key(0))
    if recipe.loss.needs_validation:
        scores["problems"] = 1 + int(result.history[-1]["problem"])
    return scores


def score(recipe: Recipe, x: np.ndarray, test: data.Dataset) -> dict[str, float]:
    """Return retrieval by letters and by languages."""
    labels = np.stack([test.views[view] for view in LEVELS.values()], axis=1)
    retrieval = methods.retrieve(recipe, x, labels)
    return {
        f"{title} {name}": float(retrieval[name][level])
        for level, title in enumerate(LEVELS)
        for name in SCORES
    }


def make_jobs(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return every run by name: all methods with the first seed, then with the next."""
    base: dict[str, Any] = {"data_dir": settings.folder, "steps": settings.steps}
    jobs = {}
    for labels in settings.labels:
        suffix, own = (", by letter", {"labels": labels}) if labels == "letter" else ("", {})
        for name, seed in settings.runs:
            jobs[f"{name}{suffix}-{seed}"] = {**base, "method": name, "seed": seed, **own}
    return jobs


def by_level(results: dict[str, Any]) -> str:
    """Return a row per method and what it was trained by, with both levels."""
    rows = table_rows(results, BY_LEVEL)
    for row in rows:
        row[0] += "" if row[0].endswith(", by letter") else ", by alphabet"
    return markdown_table(["method", *BY_LEVEL, "runs"], rows)


def table(results: dict[str, Any]) -> str:
    """Return a row per method, best on letters first."""
    rows = table_rows(results, COLUMNS)
    for row in rows:
        seconds = [r["seconds"] for key, r in results.items() if key.rpartition("-")[0] == row[0]]
        row += [f"{np.median(seconds):.0f}", str(methods.PAPER.get(row[0], "–"))]
    return markdown_table(["method", *COLUMNS, "runs", "seconds", "paper's R@1"], rows)


def of_memories(results: Mapping[str, Any]) -> str:
    """Return whether a memory is behind for a row's older copies: by seed, and compared with the loss alone."""
    runs = {way: dict(enumerate(over_seeds(results, way, "letters R@1"))) for way in MEMORIES}
    rows = []
    for way, title in MEMORIES.items():
        gap = "" if way == "alone" else str(paired_difference(runs[way], runs["alone"]))
        rows.append([title, *(f"{100 * value:.1f}" for value in runs[way].values()), gap])
    titles = ["letters R@1", "seed 0", "seed 1", "seed 2", "minus EPS + MS, paired"]
    return markdown_table(titles, rows)


def main(settings: Settings) -> str:
    """Run what is missing; return the tables."""
    results = settings.results(__file__, run, make_jobs(settings))
    if settings.table:
        levels = by_level(read_record(__file__, "levels"))
        return "\n".join([table(results), of_memories(read_record(__file__, "memory")), levels])
    return by_level(results) if "letter" in settings.labels else table(results)


if __name__ == "__main__":
    start(main, Settings, __doc__)
