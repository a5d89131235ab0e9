"""EPS on even and odd digits: does a loss that only knows parity keep the digits apart?"""

import dataclasses
import functools
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

import jdml
from experiments.smoke import NETWORK, small
from experiments.study import PAPER, FolderOptions, gains, over_seeds, start, with_seeds
from jdml import data, metrics
from jdml.recipes import LossConfig, Recipe
from jdml.report import markdown_table, mean_std
from jdml.training import Embedder, Evaluation, train_recipe

LAST = 3  # the scores of a run are the mean over its last evaluations, a tenth of the run apart
RANKS = (1, 5, 10)
LOSSES = small(("triplet", "margin", "MS"), ("triplet",))
METHODS = tuple(f"{eps}{loss}" for loss in LOSSES for eps in ("", "EPS + "))
PARTS = ("seen", "unseen")
COLUMNS = [f"{part} R@{k}" for part in PARTS for k in RANKS]


@dataclasses.dataclass(frozen=True)
class Settings(FolderOptions):
    """Settings of the study."""

    data: Literal["digits", "mnist"] = "digits"
    """digits: 1,797 real 8×8 digits that come with scikit-learn. mnist: the full 28×28 set in --data-dir."""
    steps: int = small(1000, 2)
    """Training steps of each run."""


@functools.cache
def load(name: str, data_dir: str | None) -> list[data.Dataset]:
    """Return images of 0–5 to train on by parity; new images of 0–5, and images of 6–9, to score on."""
    train, test = (data.load(name, data_dir=data_dir, split=split) for split in ("train", "test"))
    others = data.load(name, split="all") if name == "digits" else test
    train = train.select(train.views["digit"] <= 5)
    known = test.select(test.views["digit"] <= 5)
    return [train.relabel("parity"), known, others.select(others.views["digit"] > 5)]


def recipe_of(method: str) -> Recipe:
    """Return the recipe of a row of the table: with a random positive, or with the easy one, and all negatives."""
    eps = method.startswith("EPS + ")
    positive = "easy_positive" if eps else "random_positive"
    hard = "multi_similarity_negative+easy_positive" if eps else "multi_similarity"
    losses = {
        "triplet": LossConfig("triplet", {"margin": 10.0}, miner=positive, normalize="none"),
        "margin": LossConfig("margin", learn_beta="shared", miner=positive, normalize="none"),
        "MS": LossConfig("multi_similarity", {"beta": 40.0}, miner=hard),
    }
    return Recipe(loss=losses[method.removeprefix("EPS + ")]).replace(
        network={"name": small("eps", NETWORK), "dim": 2},
        batch={"size": 64},
        optimizer={"learning_rate": 1e-3},
    )


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train one network and score it on the digits."""
    train, *scored = load(job["data"], job["data_dir"])
    recipe = recipe_of(job["method"]).replace(batch={"steps": job["steps"]})
    every = max(1, job["steps"] // 10)

    def evaluate(embedder: Embedder) -> dict[str, float]:
        if int(embedder.state.step) <= job["steps"] - LAST * every:
            return {}
        recalls = {}
        for name, part in zip(PARTS, scored, strict=True):
            x = train_recipe.normalized(recipe, embedder(part.images))
            _, neighbours = jdml.nearest(x, x, max(RANKS), exclude_self=True)
            digits = jnp.asarray(part.views["digit"])
            hits = digits[neighbours] == digits[:, None]
            recalls |= {
                f"{name} R@{k}": float(metrics.recall_at_k(hits, k=k).mean()) for k in RANKS
            }
        return recalls

    own: Any = {"evaluation": Evaluation(evaluate, every), "progress": False}
    result = train_recipe.train(recipe, train, seed=job["seed"], **own)
    last = [record for record in result.history if COLUMNS[0] in record]
    return {m: float(np.mean([record[m] for record in last])) for m in COLUMNS}


def make_jobs(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return every run of the study by name."""
    asked = {name: getattr(settings, name) for name in ("data", "steps")}
    runs = {method: {"method": method} for method in METHODS}
    return with_seeds({**asked, "data_dir": settings.folder}, runs, settings.seeds)


def report(results: dict[str, Any], paper: dict[str, Any]) -> str:
    """Table 1, ours and in brackets the paper's; and what EPS adds to R@1, paired by seed."""
    rows = []
    for method in METHODS:
        ours = [mean_std(over_seeds(results, method, column)) for column in COLUMNS]
        if method in paper:
            ours = [f"{own} ({theirs})" for own, theirs in zip(ours, paper[method], strict=True)]
        rows.append([method, *ours])
    added = [
        [loss, *(mean_std(gains(results, f"EPS + {loss}", loss, f"{part} R@1")) for part in PARTS)]
        for loss in LOSSES
    ]
    titles = [f"{digits} R@{k}" for digits in ("0–5", "6–9") for k in RANKS]
    against = "EPS against the same loss without it, paired by seed:\n"
    second = markdown_table(["loss", "EPS adds on 0–5", "EPS adds on 6–9"], added)
    return "\n".join([markdown_table(["method", *titles], rows), against, second])


def main(settings: Settings) -> str:
    """Run what is missing; return the tables."""
    results = settings.results(__file__, run, make_jobs(settings), part="")
    comparable = settings.table or settings.data == "mnist"
    return report(results, PAPER["eps_mnist"]["digits"] if comparable else {})


if __name__ == "__main__":
    start(main, Settings, __doc__)
