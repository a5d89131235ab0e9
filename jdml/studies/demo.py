"""The demo of class collapse: four methods learn digits from the labels even and odd; which still separate the digits?

Even and odd are classes of three modes each. A loss that pulls every positive pair together merges the modes; easy
positive sampling (EPS) pulls each sample to its nearest positive only, and keeps them apart.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from jdml._optional_imports import progress_bar
from jdml._paths import check_local
from jdml.data import load
from jdml.metrics import evaluate_retrieval
from jdml.ops import checks
from jdml.recipes import BatchConfig, LossConfig, NetworkConfig, OptimizerConfig, Recipe
from jdml.report.embedding_stats import project, unit
from jdml.report.figures import scatter_grid
from jdml.report.page import html_report
from jdml.report.runs import Run
from jdml.report.tables import markdown_table, mean_std
from jdml.runs.run_files import read_json, write_json
from jdml.training import Embedder, Evaluation, RunConfig, train

TRAINED_DIGITS = (0, 1, 2, 3, 4, 5)
COLUMNS = ("seen R@1", "seen MAP@R", "unseen R@1", "unseen MAP@R")
BATCH = 64
DIM = 16
HIDDEN = 128
LEARNING_RATE = 1e-3
PROXIES_LR_FACTOR = 100.0
MARGIN = 0.2
LAST = 3  # the scores of a run are the mean of its last three evaluations


class Network(nn.Module):
    """One hidden layer, which compiles in no time."""

    @nn.compact
    def __call__(self, images: Any, *, train: bool = False) -> Any:
        """Embed images ``[B, H, W, C]`` as ``[B, D]``."""
        return nn.Dense(DIM)(nn.relu(nn.Dense(HIDDEN)(images.reshape(len(images), -1))))


class Parts(NamedTuple):
    """The demo's data: even/odd for training; other images of the same digits; digits that are not trained."""

    train: Any
    known: Any
    unseen: Any


class DemoResult(NamedTuple):
    """Scores and embeddings in the plane by method, and the runs for the report."""

    scores: dict[str, dict[str, list[float]]]
    points: dict[str, tuple[np.ndarray, np.ndarray]]
    runs: tuple[Run, ...] = ()


@dataclass(frozen=True)
class Demo:
    """Train on even/odd labels, and see which methods still separate the digits.

    Four methods learn 16-D embeddings of real 8x8 digits 0 to 5 from the labels even and odd only. They are scored on
    the digits: unseen images of 0 to 5, and the unseen digits 6 to 9. It takes about a minute on two cores and needs no
    files.
    """

    out: Path = Path("runs/demo")
    """Folder for the figure (demo.png), the page (report.html), metrics.json and config.json."""
    steps: int = 400
    """Training steps of each method."""
    seeds: int = 3
    """Runs of each method; the table shows their mean and standard deviation."""

    def execute(self) -> None:
        """Train the four methods, print the table, write the figure and the run folder."""
        result = run_demo(self.out, steps=self.steps, seeds=self.seeds)
        print("R@1 and MAP@R by digit, in %, of models trained on even/odd\n")
        print(markdown_table(*table(result)), *summary(result), sep="\n")
        print(f"figure: {self.out / 'demo.png'}")
        print(f"report: {self.out / 'report.html'}")


def methods() -> dict[str, Recipe]:
    """Return the recipes by name: triplet without and with EPS, MS with EPS, ProxyAnchor.

    The margin and the batch of 64 random samples were chosen on a held-out part of the training rows.
    """

    def recipe(loss: str, miner: str = LossConfig.miner, **settings: float) -> Recipe:
        return Recipe(
            loss=LossConfig(loss, settings, miner=miner),
            network=NetworkConfig(dim=DIM),
            batch=BatchConfig(size=BATCH),
            optimizer=OptimizerConfig(
                learning_rate=LEARNING_RATE, lr_multipliers={"proxies": PROXIES_LR_FACTOR}
            ),
        )

    negative = f"semi_hard_negative:margin={MARGIN}"
    return {
        "triplet": recipe("triplet", f"random_positive+{negative}", margin=MARGIN),
        "triplet + EPS": recipe("triplet", f"easy_positive+{negative}", margin=MARGIN),
        "MS + EPS": recipe("multi_similarity", "multi_similarity_negative+easy_positive"),
        "ProxyAnchor": recipe("proxy_anchor"),
    }


def load_parts() -> Parts:
    """Load the embedded digits: training images of 0–5 by parity; test images of 0–5; all of 6–9."""
    train, test, everything = (load("digits", split=split) for split in ("train", "test", "all"))
    return Parts(
        train=train.select(np.isin(train.labels, TRAINED_DIGITS)).relabel("parity"),
        known=test.select(np.isin(test.labels, TRAINED_DIGITS)),
        unseen=everything.select(~np.isin(everything.labels, TRAINED_DIGITS)),
    )


def run_demo(
    out_dir: str | Path, *, steps: int = Demo.steps, seeds: int = Demo.seeds, progress: bool = True
) -> DemoResult:
    """Train the four methods, and write the figure, the report and the numbers into a folder."""
    checks.count("steps", steps)
    checks.count("seeds", seeds)
    check_local("out_dir", out_dir)
    folder, network = Path(out_dir), f"{HIDDEN} hidden units, {DIM}-D"
    config = {"data": "digits 0–5 by parity", "model": network, "steps": steps, "seeds": seeds}
    file = folder / "config.json"
    if file.exists() and read_json(file, dict).keys() != config.keys():
        raise ValueError(f"out_dir {folder} holds another run: choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(file, config)
    parts, recipes = load_parts(), methods()
    runs: list[Run] = []
    result = DemoResult({}, {})
    with progress_bar(progress, total=len(recipes) * seeds, unit="run") as bar:
        for name, recipe in recipes.items():
            bar.set_description(name)
            result.scores[name] = {column: [] for column in COLUMNS}
            for seed in range(seeds):
                run, points = _train(name, recipe, parts, steps, seed)
                runs.append(run)
                result.points.setdefault(name, points)
                for column in COLUMNS:
                    result.scores[name][column].append(run.metrics[column])
                bar.update()
    result = result._replace(runs=tuple(runs))
    write_json(folder / "metrics.json", result.scores)
    draw(result, parts, folder / "demo.png")
    title = "Even and odd were learned: which methods still tell the digits apart?"
    html_report(result.runs, folder / "report.html", title=title, metrics=COLUMNS)
    return result


def table(result: DemoResult) -> tuple[list[str], list[list[str]]]:
    """Return the result as a table's columns and rows: means ± standard deviations in percent."""
    columns = ["method"] + [
        name.replace("unseen", "6–9").replace("seen", "0–5") for name in COLUMNS
    ]
    rows = [
        [method, *(mean_std(scores[name]) for name in COLUMNS)]
        for method, scores in result.scores.items()
    ]
    return columns, rows


def draw(result: DemoResult, parts: Parts, path: Path) -> Path:
    """Draw the figure: a column per method; above the digits 0–5, below 6–9."""
    panels = [
        (name if row == 0 else "", points[row], part.labels)
        for row, part in enumerate((parts.known, parts.unseen))
        for name, points in result.points.items()
    ]
    return scatter_grid(
        panels,
        path,
        columns=len(result.points),
        row_titles=("digits 0–5, unseen images", "digits 6–9, never seen"),
        title="Trained on the labels even and odd; coloured by digit (two principal components)",
    )


def summary(result: DemoResult) -> list[str]:
    """Compare the triplet loss without and with EPS in words, and say whether seeds agree."""
    without, with_eps = (result.scores[name] for name in ("triplet", "triplet + EPS"))
    lines = []
    for part, digits in (("seen", "0–5, on unseen images"), ("unseen", "6–9, never seen")):
        name = f"{part} MAP@R"
        clear = min(with_eps[name]) > max(without[name])
        note = "in every run" if clear else "not in every run: more --seeds or --steps may decide"
        before, after = (mean_std(scores[name]) for scores in (without, with_eps))
        lines.append(f"easy positives, digits {digits}: MAP@R {before} -> {after} ({note})")
    return lines


def _train(
    name: str, recipe: Recipe, parts: Parts, steps: int, seed: int
) -> tuple[Run, tuple[np.ndarray, np.ndarray]]:
    """Train a method once; return the run for the report, and its last embeddings in the plane."""
    tests = {"seen": parts.known, "unseen": parts.unseen}

    def evaluate(embedder: Embedder) -> dict[str, float]:
        scores: dict[str, float] = {}
        for part, data in tests.items():
            x = jnp.asarray(unit(embedder(data.images)))
            retrieval = evaluate_retrieval(x, data.labels, recall_at=(1,))
            scores |= {f"{part} {metric}": float(retrieval[metric]) for metric in ("R@1", "MAP@R")}
        return scores

    start = time.monotonic()
    every = max(1, steps // 20)
    result = train(
        recipe.replace(batch={"steps": steps}),
        parts.train,
        model=Network(),
        seed=seed,
        run=RunConfig(log_every=every),
        evaluation=Evaluation(evaluate, every),
        progress=False,
    )
    last = result.history[-LAST:]
    scores = {column: float(np.mean([record[column] for record in last])) for column in COLUMNS}
    known, unseen = (unit(result.embedder(data.images)) for data in tests.values())
    run = Run(
        f"{name}-{seed}",
        {"method": name, "steps": steps},
        seed,
        scores,
        result.history,
        seconds=time.monotonic() - start,
    )
    if seed == 0:
        proxies = result.best_params.get("proxies")
        run = replace(
            run,
            embeddings=np.concatenate([known, unseen]),
            data=_join(parts.known, parts.unseen),
            proxies=None if proxies is None else np.asarray(proxies),
            train=parts.train,
            train_embeddings=unit(result.embedder(parts.train.images)),
        )
    return run, (project(known)[0], project(unseen)[0])


def _join(first: Any, second: Any) -> Any:
    """Join two data sets of the same views."""
    images = np.concatenate([first.images, second.images])
    labels = np.concatenate([first.labels, second.labels])
    views = {view: np.concatenate([first.views[view], second.views[view]]) for view in first.views}
    return replace(first, images=images, labels=labels, views=views)
