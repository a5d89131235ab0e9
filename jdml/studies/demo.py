"""The demo of class collapse: four methods learn digits from the labels even and odd; which still separate the digits?

Even and odd are classes of three modes each. A loss that pulls every positive pair together merges the modes; easy
positive sampling (EPS) pulls each sample to its nearest positive only, and keeps them apart.
"""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import flax.linen as nn
import jax
import numpy as np

from jdml._optional_imports import progress_bar
from jdml._paths import check_local
from jdml.data import Dataset, load
from jdml.ops.checks import count
from jdml.recipes import LossConfig, Recipe
from jdml.report.compare import compare_runs, summary_sentences
from jdml.report.embedding_stats import unit
from jdml.report.page import html_report
from jdml.report.runs import Run
from jdml.report.tables import markdown_table, mean_std
from jdml.runs.run_files import CONFIG, read_results, write_results
from jdml.training import Evaluation, RunConfig, score, train

TRAINED_DIGITS = (0, 1, 2, 3, 4, 5)
COLUMNS = ("seen R@1", "seen MAP@R", "unseen R@1", "unseen MAP@R")
DIM = 16
MARGIN = 0.2  # chosen on held-out training rows, as the size of a batch
LAST = 3  # the scores of a run are the mean of its last three evaluations


class Network(nn.Module):
    """One hidden layer, which compiles in no time."""

    @nn.compact
    def __call__(self, images: Any, *, train: bool = False) -> Any:
        """Embed images ``[B, H, W, C]`` as ``[B, D]``."""
        return nn.Dense(DIM)(nn.relu(nn.Dense(128)(images.reshape(len(images), -1))))


@dataclass(frozen=True)
class Demo:
    """Train on even/odd labels, and see which methods still separate the digits.

    Four methods learn 16-D embeddings of real 8x8 digits 0 to 5 from the labels even and odd only. They are scored on
    the digits: unseen images of 0 to 5, and the unseen digits 6 to 9. It takes about a minute on two cores and needs no
    files.
    """

    out: Path = Path("runs/demo")
    """Folder for the page (report.html) and the scores (results.jsonl)."""
    steps: Annotated[int, count] = 400
    """Training steps of each method."""
    seeds: Annotated[int, count] = 3
    """Runs of each method; the table shows their mean and standard deviation."""

    def execute(self) -> None:
        """Train the four methods, print the table, write the page and the numbers."""
        check_local("out", self.out)
        page, results = self.out / "report.html", self.out / "results.jsonl"
        others = {name.rpartition("-")[0] for name in read_results(results)} - methods().keys()
        if others or (self.out / CONFIG).exists():
            raise ValueError(f"--out {self.out} holds another run: choose another folder")
        self.out.mkdir(parents=True, exist_ok=True)
        data, scored = load_parts()
        jobs = list(itertools.product(methods().items(), range(self.seeds)))
        runs = []
        with progress_bar(True, total=len(jobs), unit="run") as bar:
            for (name, recipe), seed in jobs:
                bar.set_description(name)
                runs.append(_train(name, recipe, data, scored, self.steps, seed))
                bar.update()
        records = {
            run.name: {"job": {**run.settings, "seed": run.seed}, "metrics": run.metrics}
            for run in runs
        }
        write_results(results, records)
        title = "Even and odd were learned: which methods still tell the digits apart?"
        html_report(runs, page, title=title, metrics=COLUMNS)
        print("R@1 and MAP@R in %, by digit, of models trained on even/odd:")
        print("seen: other images of the digits 0–5; unseen: the digits 6–9\n")
        print(markdown_table(["method", *COLUMNS], table(runs)))
        print(*summary_sentences(compare_runs(runs, metrics=["MAP@R"])), sep="\n")
        print(f"report: {page}")


def methods() -> dict[str, Recipe]:
    """Return the recipes by name: triplet without and with EPS, MS with EPS, ProxyAnchor."""
    rates = {"learning_rate": 1e-3, "lr_multipliers": {"proxies": 100.0}}
    base = Recipe().replace(network={"dim": DIM}, batch={"size": 64}, optimizer=rates)
    margin, negative = {"margin": MARGIN}, f"semi_hard_negative:margin={MARGIN}"
    losses = {
        "triplet": LossConfig("triplet", margin, miner=f"random_positive+{negative}"),
        "triplet + EPS": LossConfig("triplet", margin, miner=f"easy_positive+{negative}"),
        "MS + EPS": LossConfig("multi_similarity", miner="multi_similarity_negative+easy_positive"),
        "ProxyAnchor": LossConfig("proxy_anchor"),
    }
    return {name: replace(base, loss=loss) for name, loss in losses.items()}


def load_parts() -> tuple[Dataset, Dataset]:
    """Load digits to train on, 0–5 by parity, and to score: other images of 0–5, then all of 6–9."""
    train, test, everything = (load("digits", split=split) for split in ("train", "test", "all"))
    known, unseen = test.select(is_trained(test)), everything.select(~is_trained(everything))
    parts = [(part.images, part.labels, part.views) for part in (known, unseen)]
    images, labels, views = jax.tree.map(lambda *both: np.concatenate(both), *parts)
    scored = replace(test, images=images, labels=labels, views=views)
    return train.select(is_trained(train)).relabel("parity"), scored


def is_trained(data: Dataset) -> np.ndarray:
    """Return which images are of digits that are trained."""
    return np.isin(data.labels, TRAINED_DIGITS)


def table(runs: Sequence[Run]) -> list[list[str]]:
    """Return the rows of a table of the result: means ± standard deviations in percent."""
    return [
        [row.runs[0].settings["method"], *(mean_std(row.values[name]) for name in COLUMNS)]
        for row in compare_runs(runs).rows
    ]


def _train(name: str, recipe: Recipe, data: Dataset, scored: Dataset, steps: int, seed: int) -> Run:
    """Train a method once; return the run for the report, the first seed with its last embeddings."""
    known = is_trained(scored)
    parts = {"seen": scored.select(known), "unseen": scored.select(~known)}

    def evaluate(embedder: Any) -> dict[str, float]:
        scores = {name: score(embedder, part, recall_at=(1,)) for name, part in parts.items()}
        names = (column.split() for column in COLUMNS)
        return {f"{part} {metric}": scores[part][f"digit/{metric}"] for part, metric in names}

    start = time.monotonic()
    every = max(1, steps // 20)
    result = train(
        recipe.replace(batch={"steps": steps}),
        data,
        model=Network(),
        seed=seed,
        run=RunConfig(log_every=every),
        evaluation=Evaluation(evaluate, every),
        progress=False,
    )
    last = result.history[-LAST:]
    scores = {column: float(np.mean([record[column] for record in last])) for column in COLUMNS}
    shown: dict[str, Any] = {}
    if seed == 0:
        shown = {"data": scored, "embeddings": unit(result.embedder(scored.images))}
        shown |= {"train": data, "train_embeddings": unit(result.embedder(data.images))}
        shown["proxies"] = result.best_params.get("proxies")
    own, seconds = {"method": name, "steps": steps}, time.monotonic() - start
    return Run(f"{name}-{seed}", own, seed, scores, result.history, seconds=seconds, **shown)
