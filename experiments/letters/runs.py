"""How models are trained and scored: one by one, or together (:mod:`experiments.letters.abreast`)."""

import dataclasses
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from experiments.letters import abreast, protocol
from experiments.letters.methods import objective_of
from experiments.letters.protocol import Job, load_fold, load_test, name_of, score, seed_of
from experiments.smoke import record
from experiments.study import RecordOptions, best_of, curve
from jdml import data
from jdml.training import FitResult, RunConfig, train_recipe

HERE = Path(__file__).parent


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfModels(RecordOptions):
    """The options of a study whose runs are models of letters."""

    out: Path = record(HERE / "results.jsonl")
    """File of the kept runs."""
    frozen: Path = record(HERE / "frozen.json")
    """File of the settings that are scored."""
    runs: Path = record(Path("runs/letters"))
    """Folder of the runs that have not ended, and of models that are not yet scored together."""
    abreast: bool = False
    """Train the folds and seeds of a method in one program: for a GPU, which one of these models leaves idle."""

    def do(self, jobs: Iterable[Job]) -> None:
        """Train and score what has no result yet, as far as time goes."""
        alone = self.chosen({name_of(job): job for job in jobs})
        places = {"frozen": str(self.frozen.resolve())}
        if self.abreast and not self.table:
            together = {name: job for name, job in alone.items() if abreast.can(job)}
            abreast.run_all(self, together, **places)
            alone = {name: job for name, job in alone.items() if name not in together}
        self.results(run, alone, self.out, runs=str(self.runs.resolve()), **places)


def run(job: Job, data_dir: str | None, runs: str, frozen: str) -> dict[str, Any]:
    """Train a model of a fold, and score it where its settings are frozen; or score the four of a seed together."""
    test = load_test(job, data_dir, Path(frozen)) if protocol.is_scored(job) else None
    if job["fold"] is None:
        assert test is not None
        return together(job, test, data_dir, Path(runs))
    result = fit_one(job, job["fold"], data_dir, Path(runs))
    scores = {} if test is None else score(embedded(job, result, test.images), test)
    if job["column"] not in protocol.COLUMNS:
        shutil.rmtree(folder_of(job, job["fold"], Path(runs)), ignore_errors=True)
    problems = [int(row["problem"]) for row in result.history if "problem" in row]
    return {
        **scores,
        **({"problems": max(problems)} if problems else {}),
        **best_of(result),
        "steps": int(result.history[-1]["step"]),
        "curve": curve(result.history),
    }


def fit_one(job: Job, fold: int, data_dir: str | None, runs: Path) -> FitResult:
    """Return one model of one fold, from where its folder is; the best of its evaluations."""
    recipe, seed, changes = protocol.recipe_of(job), seed_of(job["seed"], fold), job.get("data", {})
    train, validation, rows = load_fold(data_dir, fold, changes, seed)
    folder: Path | None = folder_of(job, fold, runs)
    own: dict[str, Any] = {}
    if changes.get("augmented"):  # whose batches no folder keeps
        folder, own["sampler"] = None, protocol.batches(recipe, train, seed, changes)
        whole = protocol.letters(data_dir, "train")
        each = np.arange(1 + protocol.COPIES)[:, None]
        copies = protocol.with_copies(whole).select((rows + len(whole) * each).ravel())
        train = dataclasses.replace(copies, labels=np.tile(train.labels, len(each)))
    return train_recipe.train(
        recipe,
        train,
        validation=validation,
        objective=objective_of(job["method"], recipe, train.num_classes),
        seed=seed,
        run=RunConfig(folder, log_every=protocol.every_of(job)),
        progress=False,
        **own,
    )


def folder_of(job: Job, fold: int, runs: Path) -> Path:
    """Return the folder of a model."""
    return runs / name_of({**job, "fold": fold}).replace(":", ",")


def embedded(job: Job, result: FitResult, images: np.ndarray) -> Any:
    """Return embeddings as retrieval compares them."""
    return train_recipe.normalized(protocol.recipe_of(job), result.embedder(images))


def together(job: Job, test: data.Dataset, data_dir: str | None, runs: Path) -> dict[str, float]:
    """The four models' normalized embeddings side by side, normalized again; a model that is gone is trained again."""
    vectors = [
        embedded(job, fit_one(job, fold, data_dir, runs), test.images)
        for fold in range(protocol.FOLDS)
    ]
    for fold in range(protocol.FOLDS):
        shutil.rmtree(folder_of(job, fold, runs))
    return score(
        train_recipe.normalized(protocol.recipe_of(job), jnp.concatenate(vectors, 1)), test
    )
