"""Continue a converged proxy problem in four ways from the same plateau."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from experiments.ccp_mnist import main as digits
from experiments.smoke import record, small
from experiments.study import RecordOptions, by_seed, cell, curve, read_toml, start
from jdml import training
from jdml.metrics import class_covering
from jdml.ops import ball
from jdml.recipes import CCPConfig, Recipe
from jdml.recipes.ccp import NEVER
from jdml.report import markdown_table, mean_std, paired_difference
from jdml.training import train_recipe

PLATEAU = small(
    {"most": 10_000, "every": 50, "patience": 20}, {"most": 2, "every": 1, "patience": 5}
)
STEPS = small(2000, 6)
STUDY = read_toml(__file__)
WAYS, TESTS = STUDY["ways"], STUDY["tests"]
MEASURED = {"test": 100.0, "ratio": 1.0, "unseen ratio": 1.0, "spread": 1.0}
"""MAP@R of the test images; covering radius over the distance between classes; spread of converged proxies."""
HERE = Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Settings(RecordOptions):
    """Settings of the study."""

    data: str = small("mnist", "digits")
    """digits: scikit-learn's, without files: whether everything runs."""
    seeds: int = small(10, 1)
    """Plateaus, with seeds 0, 1, …"""
    cache: Path = record(HERE / "runs")
    """Folder of the plateaus' weights."""


def make_jobs(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return every run by name: the plateau and the ways on from it, seed by seed."""
    return {
        f"{way}-{seed}": dict(data=settings.data, way=way, steps=STEPS, seed=seed, **PLATEAU)
        for seed in range(settings.seeds)
        for way in ("plateau", *WAYS)
    }


def recipe_of(way: str, steps: int = STEPS) -> Recipe:
    """Constant rates; the model's weights anchored, the proxies' not, which are those of the plateau at first."""
    own = {"run_patience": NEVER, "initial_proxies": "unchanged", **WAYS[way]}
    if not own.pop("problems", True):
        own["patience"] = NEVER
    loss = {"method": CCPConfig(**own), "proxies": {"per_class": 4}}
    return digits.RECIPE.replace(loss=loss, batch={"steps": steps})


def measured(recipe: Recipe, parts: digits.Parts, result: training.FitResult) -> dict[str, Any]:
    """Measure the last weights, and the way to them."""
    last = training.Embedder(train_recipe.make_network(recipe, parts.train), result.state)
    known_digits, unseen_digits = (
        class_covering(ball(jnp.asarray(last(part.images))), part.labels)
        for part in (digits.first(parts.train, digits.SHOWN), parts.validation)
    )
    evaluated = curve(result.history, "validation")
    assert result.best is not None
    numbers = {
        "test": digits.map_at_r(last(parts.test.images), parts.test.labels),
        "validation": evaluated[-1][1],
        "best validation": result.best.value,
        **known_digits._asdict(),
        "unseen ratio": unseen_digits.ratio,
        "spread": digits.within(np.asarray(ball(result.state.params["proxies"]))),
    }
    return {**{name: round(float(v), 5) for name, v in numbers.items()}, "curve": evaluated}


def run(job: dict[str, Any], data_dir: str | None, cache: str) -> dict[str, Any]:
    """Train to the plateau, or on from it."""
    parts, seed = digits.load(job["data"], data_dir), job["seed"]
    go = functools.partial(digits.train, parts=parts, every=job["every"], seed=seed)
    folder = Path(cache) / f"{job['data']}-plateau-{seed}"
    recipe = recipe_of("go on", job["most"])
    plateau = go(recipe, patience=job["patience"], run=folder)
    if job["way"] == "plateau":
        return measured(recipe, parts, plateau)
    recipe = recipe_of(job["way"], job["steps"])
    recorder = digits.make_recorder(recipe, parts, seed)
    assert recorder is not None
    result = go(recipe, state=plateau.state, callbacks=[recorder])
    rounded = [{k: round(float(v), 5) for k, v in problem.items()} for problem in recorder.history]
    scores = measured(recipe, parts, result)
    return {**scores, "problems": 1 + len(rounded), "history": rounded}


def tables(results: dict[str, Any]) -> str:
    """Print each way's scores, the decisive differences, and each way's difference from the plateau."""
    rows = []
    for way in ("plateau", *WAYS):
        values = {m: list(by_seed(results, m, way=way).values()) for m in MEASURED}
        cells = [cell(runs, MEASURED[m], 1 if MEASURED[m] > 1 else 3) for m, runs in values.items()]
        seeds = len(values["test"])
        problems = list(by_seed(results, "problems", way=way).values()) or [1] * seeds
        mean = f"{np.mean(problems):.1f}" if seeds else "–"
        rows.append([way, *cells, mean, str(seeds)])
    titles = ["", "test MAP@R", "radius / distance", "of validation", "spread", "problems", "seeds"]
    sections = [markdown_table(titles, rows), ""]
    pairs = {**TESTS, **{f"{way}, since the plateau": (way, "plateau") for way in WAYS}}
    rows = []
    for name, pair in pairs.items():
        ways = ([by_seed(results, m, way=way) for way in pair] for m in MEASURED)
        gaps = (
            paired_difference(*of, scale=scale)
            for of, scale in zip(ways, MEASURED.values(), strict=True)
        )
        rows.append([f"{name}: {' − '.join(pair)}", *map(str, gaps)])
    sections += [markdown_table(["difference", *titles[1:5]], rows), "", by_problem(results)]
    return "\n".join(sections)


def by_problem(results: dict[str, Any]) -> str:
    """Validation MAP@R at the best evaluation of problems, of the way's runs in which they ended."""
    rows = []
    for way in WAYS:
        runs = list(by_seed(results, "history", way=way).values())
        if any(runs):
            first = [run[1] for run in runs if len(run) > 1]
            best = list(by_seed(results, "best validation", way=way).values())
            reached = sum(problem["validation"] > 0.5 for problem in first)
            old = mean_std([run[0]["validation"] for run in runs if run])
            new = cell([problem["validation"] for problem in first])
            steps = cell([problem["steps"] for problem in first], 1, 0)
            rows.append([way, old, new, f"{reached} of {len(first)}", steps, mean_std(best)])
    titles = ["the old proxies", "the first new ones", "above 50", "their steps", "all"]
    return markdown_table(["validation MAP@R with", *titles], rows)


def main(settings: Settings) -> str:
    """Run what is missing, as far as time goes; return the tables."""
    cache = str(settings.cache)
    return tables(settings.results(run, make_jobs(settings), HERE / "results.jsonl", cache=cache))


if __name__ == "__main__":
    start(main, Settings, __doc__)
