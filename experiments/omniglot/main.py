"""One table: every method of the library, and their combinations, on Omniglot at 28×28.

Trained on alphabets, tested on the letters and the languages of alphabets that were never seen, as in Levi et al.,
*Rethinking Preventing Class-Collapsing*, Table 3 (there at 80×80 with ResNet-50). One small network, one batch make-up
and one budget of steps for all; three of the 30 training alphabets are held out, and the weights that find their
letters best are the ones that are tested.

    python experiments/omniglot/main.py --data-dir DIR --workers 2
    python experiments/omniglot/main.py --data-dir DIR --quick     # one method of each kind, a few steps

DIR holds images_background.zip and images_evaluation.zip. Finished runs are kept, so that an interrupted study goes on
where it stopped; the progress bar tells what is left. Everything is written to --out.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from methods import DIM, METHODS, QUICK, Method

import jdml
from jdml import data, metrics, models, optim, training
from jdml.ccp import AlternatingProjections
from jdml.report import markdown_table, mean_std
from jdml.training.checkpoint import write_json
from jdml.training.study import over_seeds, run_study

RATE = 5e-4
ROLES = {"model": 1.0, "beta": 1.0, "proxies": 100.0, "flow": 1.0}
"""Learning rates in units of the model's."""
CHOSEN_RATE = 10.0
"""Of proxies that begin as embeddings."""
CLIP = 5.0
"""Largest entry of the proxies' gradient, for charges that almost touch."""
STRENGTH = 2e-4
"""Of the anchor between CCP's problems."""
HELD_OUT = 3
"""Alphabets."""
EVALUATIONS = 8
COLUMNS = ("letters R@1", "letters R@8", "letters MAP@R", "letters NMI", "languages R@1")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is run."""

    data_dir: Path
    """Folder with Omniglot's two zips, or the folders in them."""
    seeds: int = 3
    """Runs per method, with seeds 0, 1, …"""
    steps: int = 400
    """Training steps of each run."""
    only: tuple[str, ...] = ()
    """Some of the methods, by name."""
    quick: bool = False
    """One method of each kind, one seed, 24 steps: whether everything runs."""
    out: Path = Path("runs/omniglot")
    """Folder for results and table."""
    workers: int = 1
    """Runs at a time, each in a process of its own."""


class Parts(NamedTuple):
    """Images to train on, to choose the weights by, and to report."""

    train: data.Dataset
    validation: data.Dataset
    test: data.Dataset


@functools.cache
def load(data_dir: str) -> Parts:
    """Omniglot with the last alphabets of the training half held out."""
    train, test = (
        data.load("omniglot", data_dir=data_dir, split=split) for split in ("train", "test")
    )
    held_out = train.labels >= train.num_classes - HELD_OUT
    return Parts(train.select(~held_out), train.select(held_out), test)


def make_optimizer(method: Method, roles: Any) -> optax.GradientTransformation:
    """Adam with a learning rate for each role; weights anchored where proxies are chosen."""

    def adam(role: str) -> optax.GradientTransformation:
        if role == "proxies":
            rate = CHOSEN_RATE if method.problems else ROLES[role]
            return optax.chain(optax.clip(CLIP), optax.adam(rate * RATE))
        steps = optax.adam(ROLES[role] * RATE)
        if role == "model" and method.problems:
            return optax.chain(optim.add_anchored_weights(STRENGTH), steps)
        return steps

    return optim.partition_by_role(
        {role: adam(role) for role in roles}, lambda params: {name: name for name in params}
    )


def make_hook(method: Method, model: Any, train: data.Dataset, seed: int) -> Any:
    """CCP's problems, or a single one whose proxies begin in the same way."""
    if method.problems is None:
        return None
    never = 10**6
    return training.AlternatingProblems(
        model=model,
        train=train,
        pool_size=24,
        monitor="MAP@R",
        machine=AlternatingProjections(
            patience=2 if method.problems > 1 else never, run_patience=never
        ),
        seed=seed,
    )


def retrieve(method: Method, embeddings: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Retrieval where the loss lives: on the sphere or in the ball."""
    x = np.asarray(method.normalize(jnp.asarray(embeddings)))
    return jdml.evaluate_retrieval(x, labels, recall_at=(1, 8))


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train one network, and score it at its best validation on the unseen alphabets."""
    train, validation, test = load(job["data_dir"])
    method, model = METHODS[job["method"]], models.SmallConvNet(DIM)
    objective = method.make(train.num_classes)
    roles = ("model", *objective.init(jax.random.key(0)))

    def evaluate(embedder: Any) -> dict[str, float]:
        letters = validation.views["letter"]
        return {"MAP@R": retrieve(method, embedder(validation.images), letters)["MAP@R"]}

    try:
        result = training.fit(
            model,
            objective,
            make_optimizer(method, roles),
            train,
            data.ClassBatchSampler(train.labels, 4, 40, seed=job["seed"]),
            steps=job["steps"],
            seed=job["seed"],
            evaluate=evaluate,
            evaluate_every=max(1, job["steps"] // EVALUATIONS),
            monitor="MAP@R",
            hook=make_hook(method, model, train, job["seed"]),
            log_every=job["steps"],
            progress=False,
        )
    except FloatingPointError as error:
        return {"diverged": str(error)}
    assert result.best is not None
    scores: dict[str, Any] = {"validation": result.best.value, "best step": result.best.step}
    x = result.embedder(test.images)
    for title, view in (("letters", "letter"), ("languages", "alphabet")):
        found = retrieve(method, x, test.views[view])
        scores |= {f"{title} {name}": found[name] for name in ("R@1", "R@8", "MAP@R")}
    unit = np.asarray(jdml.sphere(jnp.asarray(x)))
    scores["letters NMI"] = metrics.nmi(unit, test.views["letter"], key=jax.random.key(0))
    if method.problems:
        scores["problems"] = 1 + result.history[-1]["problem"]
    return scores


def make_jobs(settings: Settings) -> dict[str, dict[str, Any]]:
    """Every run by name: all methods with the first seed, then with the next."""
    chosen = settings.only or (QUICK if settings.quick else tuple(METHODS))
    unknown = sorted(set(chosen) - set(METHODS))
    if unknown:
        raise ValueError(f"--only must name methods among {', '.join(METHODS)}; got {unknown}")
    base = {
        "data_dir": str(settings.data_dir.resolve()),
        "steps": 24 if settings.quick else settings.steps,
    }
    return {
        f"{name}-{seed}": {**base, "method": name, "seed": seed}
        for seed in range(1 if settings.quick else settings.seeds)
        for name in chosen
    }


def table(results: dict[str, Any]) -> str:
    """A row per method, best on letters first."""

    def mean(name: str) -> float:
        values = over_seeds(results, name, COLUMNS[0])
        return float(np.mean(values)) if values else -1.0

    ran = dict.fromkeys(key.rpartition("-")[0] for key in results)
    rows = []
    for name in sorted(ran, key=mean, reverse=True):
        found = [over_seeds(results, name, column) for column in COLUMNS]
        cells = [mean_std(values) if values else "diverged" for values in found]
        seconds = [run["seconds"] for key, run in results.items() if key.rpartition("-")[0] == name]
        paper = METHODS[name].paper
        rows.append(
            [
                name,
                *cells,
                str(len(found[0])),
                f"{np.median(seconds):.0f}",
                "–" if paper is None else str(paper),
            ]
        )
    return markdown_table(["method", *COLUMNS, "runs", "seconds", "paper's R@1"], rows)


def main(settings: Settings) -> str:
    """Do the runs that are missing, and write the table."""
    out = settings.out / "quick" if settings.quick else settings.out
    results = run_study(run, make_jobs(settings), out / "runs", workers=settings.workers)
    text = table(results)
    (out / "table.md").write_text(text)
    write_json(out / "results.json", results)
    return text


if __name__ == "__main__":
    print(main(tyro.cli(Settings, description=__doc__)))
