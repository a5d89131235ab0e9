"""EPS on even and odd digits: does a loss that only knows parity keep the digits apart?

Reproduces Levi et al., *Rethinking Preventing Class-Collapsing*, Fig. 2 and Table 1: a small network maps digits to the
plane, trained on the labels even and odd of the digits 0–5, and is scored on the digits themselves, on new images of
0–5 and on the digits 6–9 that it has never seen.

    python -m experiments.eps_mnist.main                                        # scikit-learn's 8×8 digits, a minute
    python -m experiments.eps_mnist.main --data mnist --data-dir DIR --seeds 5  # MNIST's four IDX files in DIR

Finished runs are kept: an interrupted study goes on where it stopped. Everything is written to --out.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

import jdml
from experiments.options import InFolder, start
from experiments.shown import beside, tell
from experiments.smoke import NETWORK, small
from jdml import data, metrics, training
from jdml.recipes import Recipe
from jdml.report import markdown_table, mean_std, scatter_grid
from jdml.training.by_recipe import normalized, train
from jdml.training.records import write_results
from jdml.training.study import over_seeds, run_study

BATCH = 64
LEARNING_RATE = 1e-3
MARGIN = 10.0  # of the triplet loss; a distance in the plane
LAST = 3  # the scores of a run are the mean over its last evaluations, a tenth of the run apart
RANKS = (1, 5, 10)
LOSSES = small(("triplet", "margin", "MS"), ("triplet",))
METHODS = tuple(f"{eps}{loss}" for loss in LOSSES for eps in ("", "EPS + "))
PAPER = {  # R@1, R@5, R@10 on 0–5 and on 6–9: Table 1
    "triplet": ((42.0, 87.5, 96.6), (35.2, 80.9, 93.3)),
    "EPS + triplet": ((65.8, 93.6, 97.4), (42.3, 83.9, 93.6)),
}


@dataclasses.dataclass(frozen=True)
class Settings(InFolder):
    """What is run."""

    data: Literal["digits", "mnist"] = "digits"
    """digits: 1,797 real 8×8 digits that come with scikit-learn. mnist: the full 28×28 set in --data-dir."""
    seeds: int = small(3, 1)
    """Runs per method, with seeds 0, 1, …"""
    steps: int = small(1000, 2)
    """Training steps of each run."""
    held_out: bool = False
    """Score on a sixth of the training images, held out of training: how the margin was chosen."""


class Parts(NamedTuple):
    """Images of 0–5 to train on, labelled by parity; new images of 0–5, and images of 6–9, to score on."""

    train: data.Dataset
    seen: data.Dataset
    unseen: data.Dataset


@functools.cache
def load(name: str, data_dir: str | None, held_out: bool) -> Parts:
    """Split a set of digits for the study."""
    train, test = (data.load(name, data_dir=data_dir, split=split) for split in ("train", "test"))
    unseen = data.load(name, split="all") if name == "digits" else test
    train = train.select(train.views["digit"] <= 5)
    seen = test.select(test.views["digit"] <= 5)
    if held_out:
        chosen = np.random.default_rng(0).permutation(len(train)) < len(train) // 6
        seen, train = train.select(chosen), train.select(~chosen)
    return Parts(train.relabel("parity"), seen, unseen.select(unseen.views["digit"] > 5))


def recipe_of(method: str) -> Recipe:
    """The recipe of a row of the table: with a random positive, or with the easy one, and all negatives."""
    eps = method.startswith("EPS + ")
    positive = "easy_positive" if eps else "random_positive"
    hard = "multi_similarity_negative+easy_positive" if eps else "multi_similarity"
    own: dict[str, Any] = {
        "triplet": {"settings": {"margin": MARGIN}, "miner": positive, "normalize": "none"},
        "margin": {"learn_beta": "shared", "miner": positive, "normalize": "none"},
        "multi_similarity": {"settings": {"beta": 40.0}, "miner": hard},
    }
    loss = method.removeprefix("EPS + ").replace("MS", "multi_similarity")
    return Recipe(
        loss=loss,
        network=small("eps", NETWORK),
        dim=2,
        batch=BATCH,
        rate=LEARNING_RATE,
        **own[loss],
    )


def recalls(embeddings: np.ndarray, digits: np.ndarray, part: str) -> dict[str, float]:
    """Whether one of the k nearest other images shows the same digit."""
    _, neighbours = jdml.nearest(embeddings, embeddings, max(RANKS), exclude_self=True)
    hits = jnp.asarray(digits)[neighbours] == jnp.asarray(digits)[:, None]
    return {f"{part} R@{k}": float(metrics.recall_at_k(hits, k=k).mean()) for k in RANKS}


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train one network and score it on the digits."""
    parts = load(job["data"], job["data_dir"], job["held_out"])
    recipe = recipe_of(job["method"])
    every = max(1, job["steps"] // 10)

    def embed(embedder: training.Embedder, part: data.Dataset) -> np.ndarray:
        return np.asarray(normalized(recipe, embedder(part.images)))

    def evaluate(embedder: training.Embedder) -> dict[str, float]:
        if int(embedder.state.step) <= job["steps"] - LAST * every:
            return {}
        scored = {"seen": parts.seen, "unseen": parts.unseen}
        recalled = [
            recalls(embed(embedder, part), part.views["digit"], name)
            for name, part in scored.items()
        ]
        return recalled[0] | recalled[1]

    result = train(
        recipe,
        parts.train,
        steps=job["steps"],
        seed=job["seed"],
        evaluate=evaluate,
        evaluate_every=every,
        log_every=every,
        progress=False,
    )
    records = [record for record in result.history if "seen R@1" in record]
    names = [f"{part} R@{k}" for part in ("seen", "unseen") for k in RANKS]
    scores: dict[str, Any] = {
        name: float(np.mean([record[name] for record in records])) for name in names
    }
    if job["points"]:
        for name, part in (("seen", parts.seen), ("unseen", parts.unseen)):
            rows = np.random.default_rng(0).permutation(len(part))[:1500]
            points = embed(result.embedder, part.select(rows))
            scores[f"{name} points"] = np.round(points.astype(float), 4).tolist()
            scores[f"{name} digits"] = part.views["digit"][rows].tolist()
    return scores


def make_jobs(settings: Settings) -> dict[str, dict[str, Any]]:
    """Every run of the study by name."""
    base = {
        "data": settings.data,
        "data_dir": settings.folder,
        "steps": settings.steps,
        "held_out": settings.held_out,
    }
    return {
        f"{method}-{seed}": {**base, "method": method, "seed": seed, "points": seed == 0}
        for loss in LOSSES
        for seed in range(settings.seeds)
        for method in (loss, f"EPS + {loss}")
    }


def recall_table(results: dict[str, Any], paper_figures: dict[str, Any]) -> str:
    """Table 1: ours, and in brackets the paper's."""
    rows = []
    for method in METHODS:
        cells = [method]
        for part, figures in zip(
            ("seen", "unseen"), paper_figures.get(method, ((), ())), strict=True
        ):
            for k, paper in zip(RANKS, figures or (None,) * len(RANKS), strict=True):
                ours = mean_std(over_seeds(results, method, f"{part} R@{k}"))
                cells.append(ours if paper is None else f"{ours} ({paper})")
        rows.append(cells)
    titles = [f"{digits} R@{k}" for digits in ("0–5", "6–9") for k in RANKS]
    return markdown_table(["method", *titles], rows)


def gain_table(results: dict[str, Any]) -> str:
    """What EPS adds to R@1, paired by seed."""
    rows = []
    for method in LOSSES:
        gains = []
        for part in ("seen", "unseen"):
            ours = over_seeds(results, f"EPS + {method}", f"{part} R@1")
            gains.append(mean_std(np.subtract(ours, over_seeds(results, method, f"{part} R@1"))))
        rows.append([method, *gains])
    return markdown_table(["loss", "EPS adds on 0–5", "EPS adds on 6–9"], rows)


def draw(results: dict[str, Any], path: Path) -> None:
    """Fig. 2: the plane, coloured by digit; a column per method, seen digits above unseen ones."""
    panels = []
    for part in ("seen", "unseen"):
        for method in METHODS:
            measured = results[f"{method}-0"]["metrics"]
            shown = (np.array(measured[f"{part} {kind}"]) for kind in ("points", "digits"))
            panels.append((method if part == "seen" else "", *shown))
    scatter_grid(
        panels,
        path,
        columns=len(METHODS),
        row_titles=("digits 0–5, new images", "digits 6–9, never seen"),
        title="Trained on the labels even and odd of 0–5; coloured by digit",
    )


def report(results: dict[str, Any], paper: dict[str, Any]) -> str:
    """Both tables as Markdown."""
    gains = "EPS against the same loss without it, paired by seed:\n"
    return "\n".join([recall_table(results, paper), gains, gain_table(results)])


def main(settings: Settings) -> str | None:
    """Run what is missing, print the tables and write tables and figure; or only the tables of what is kept."""
    if settings.table:
        return report(beside(__file__), PAPER)
    out = settings.place("eps")
    load(settings.data, settings.folder, settings.held_out)
    results = run_study(run, make_jobs(settings), out / "runs.jsonl", workers=settings.workers)
    tables = report(results, PAPER if settings.data == "mnist" else {})
    tell(tables, results, out / "tables.md")
    draw(results, out / "scatter.png")
    scores = {name: {**r, "metrics": _numbers(r["metrics"])} for name, r in results.items()}
    write_results(out / "results.jsonl", scores)
    return None


def _numbers(scores: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in scores.items() if isinstance(value, float)}


if __name__ == "__main__":
    start(main, Settings, __doc__)
