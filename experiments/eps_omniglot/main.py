"""EPS on Omniglot: trained on alphabets only, tested on the letters and languages of unseen alphabets.

Reproduces, at 28×28 pixels with a small network, what Levi et al. (*Rethinking Preventing Class-Collapsing*, Tables 3
and 4, Figs. 4 and 5b) show at 80×80 with ResNet-50: easy positive sampling lets an alphabet keep its letters apart. The
paper's size is a matter of options (a GPU's work): --model resnet50 --weights resnet50.safetensors --steps 20000. Two
minutes per run on two cores; finished runs are kept.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jdml
from experiments.eps_omniglot.tables import CURVES, LONGER, PAPER, PRINTED, report
from experiments.letters.levels import with_copies
from experiments.omniglot.methods import DIM, METHODS
from experiments.options import Tabled, resolved, start
from experiments.shown import beside, tell
from experiments.smoke import record, small
from jdml import data, metrics, mining, models
from jdml.recipes import Recipe
from jdml.recipes.parsing import build_miner
from jdml.studies.runner import run_study
from jdml.training import Evaluation, pretrained, standard, train_recipe

LEARNING_RATE = 5e-4
PRETRAINED_RATE = 1e-5

POINTS = small(12, 2)
"""Evaluations of a curve over training."""
Sweep = Literal["positives", "batches", "trimmed", "positives_margin", "trimmed_margin"]
POINTS_OF: dict[str, dict[float, dict[str, Any]]] = {
    **{
        f"positives{suffix}": {
            number: {"method": f"EPS + {method}", "candidates": number}
            for number in small((5, 10, 20), (5,))
        }
        for suffix, method in (("", "triplet"), ("_margin", "margin"))
    },
    "batches": {
        number: {"method": "EPS + triplet", "samples_per_class": number} for number in (8, 16, 80)
    },
    **{
        f"trimmed{suffix}": {
            trim: {"method": method, "trim": trim} for trim in small((0.1, 0.3, 0.5), (0.3,))
        }
        for suffix, method in (("", "triplet"), ("_margin", "margin"))
    },
}
"""What the points of each sweep change."""

Part = Literal["methods", "printed", "longer", "curves", Sweep]


@dataclasses.dataclass(frozen=True)
class Settings(Tabled):
    """What is run."""

    seeds: int = small(3, 1)
    """Runs per method, with seeds 0, 1, …"""
    sweep_seeds: int = 1
    """Runs per point of the curves (positives, trimmed)."""
    steps: int = small(1200, 2)
    """Training steps of each run."""
    parts: tuple[Part, ...] = small(
        ("methods", "positives", "batches", "trimmed"),
        ("methods", "curves", "positives", "trimmed"),
    )
    """methods: Tables 3 and 4. printed: the triplet loss as it is printed, squared and averaged over all. longer: as
    held-out alphabets chose. curves: Fig. 5a. positives: Fig. 5b. batches: another make-up of the batch. trimmed: Fig.
    4. positives_margin, trimmed_margin: the same of the margin loss, as the paper has them."""
    out: Path = record(Path("runs/eps_omniglot"))
    """Folder for results, table and figure."""
    image_size: int | None = None
    """Side of the images, in pixels. Default: 28, and 80 with resnet50."""
    model: Literal["small", "resnet50"] = "small"
    """The network: four convolutions, or the paper's."""
    weights: Path | None = None
    """Pretrained weights of the ResNet-50, from jdml weights convert."""
    rate: float | None = None
    """Learning rate. Default: 5e-4, and with pretrained weights the paper's 1e-5."""


def some_positives(count: int) -> mining.Miner:
    """Of every anchor's positives keep ``count``, drawn uniformly."""

    def mine(key: Array | None, distances: Array, pairs: mining.Pairs) -> mining.Pairs:
        assert key is not None
        draws = jnp.where(pairs.positive, jax.random.uniform(key, distances.shape), jnp.inf)
        last = jnp.sort(draws, axis=1)[:, min(count, draws.shape[1]) - 1]
        return pairs._replace(positive=pairs.positive & (draws <= last[:, None]))

    return mine


def recipe_of(job: dict[str, Any]) -> Recipe:
    """The recipe of a row of the table: with a random positive, or with the easy one."""
    method, large = job["method"], job.get("model") == "resnet50"
    known = METHODS[method.removesuffix(", printed").removesuffix(", mined")]
    loss: dict[str, Any] = {"proxies": {"clip_value": None}}
    if method.endswith(", printed"):
        loss["settings"] = {"margin": 0.2, "squared": True, "reduce_fn": "mean"}
    if method == "triplet, mined, printed":
        loss["miner"] = "soft_hard_pairs"
    samples = job["samples_per_class"]
    classes, rate = job["batch"] // samples, job.get("rate", LEARNING_RATE)
    return known.replace(
        loss=loss,
        network={"name": "resnet50"} if large else {},
        finetune={"freeze_batch_norm": large},
        batch={"classes": classes, "samples_per_class": samples, "steps": job["steps"]},
        optimizer={"learning_rate": rate, "schedule": job.get("schedule", "constant")},
    )


def own_keywords(job: dict[str, Any], recipe: Recipe) -> dict[str, Any]:
    """What no recipe says: a trimmed mean of the loss, and the easy one of some positives in the place of all."""
    own: dict[str, Any] = {}
    if job["trim"]:
        own["reduce_fn"] = jdml.trimmed_mean(job["trim"])
    if "candidates" in job:
        positive, negative = (build_miner(words, DIM) for words in recipe.loss.miner.split("+"))
        few = mining.chain(some_positives(job["candidates"]), positive)
        own["mine"] = mining.chain(few, negative)
    return own


@functools.cache
def load(data_dir: str | None, split: str, image_size: int) -> data.Dataset:
    """Omniglot's 30 training or 20 test alphabets, labelled by alphabet."""
    return data.load("omniglot", data_dir=data_dir, split=split, image_size=image_size)


def as_photographs(images: Array) -> Array:
    """Grey images as a ResNet-50 with pretrained weights expects them."""
    return models.normalizer("resnet50")(jnp.repeat(images, 3, axis=-1))


def score(embeddings: np.ndarray, dataset: data.Dataset, clusters: int) -> dict[str, float]:
    """Retrieval of letters and languages, and how well k-means finds them."""
    x = np.asarray(jdml.sphere(jnp.asarray(embeddings)))
    scores = {}
    for view in ("letter", "alphabet"):
        retrieval = jdml.evaluate_retrieval(x, dataset.views[view])
        names = ("R@1", "R@2", "R@4", "R@8", "MAP@R")
        scores |= {f"{view} {name}": retrieval[name] for name in names}
    letters, languages = dataset.views["letter"], dataset.views["alphabet"]
    nmi = functools.partial(metrics.nmi, x, key=jax.random.key(0))
    of_languages = {"alphabet NMI": nmi(languages), "alphabet NMI+": nmi(languages, clusters)}
    return {**scores, "letter NMI": nmi(letters), **of_languages}


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train one network and score it on the unseen alphabets (on those it was trained on; on the way)."""
    train, test = (load(job["data_dir"], split, job["image_size"]) for split in ("train", "test"))
    recipe, weights = recipe_of(job), job.get("weights")
    every = job["steps"] // job.get("points", 1)
    curve: list[float] = []

    def evaluate(embedder: Any) -> dict[str, float]:
        x = np.asarray(jdml.sphere(jnp.asarray(embedder(test.images))))
        recall = jdml.evaluate_retrieval(x, test.views["letter"], recall_at=(1,))["R@1"]
        curve.append(float(recall))
        return {"R@1": curve[-1]}

    own = own_keywords(job, recipe)
    result = train_recipe.train(
        recipe,
        with_copies(train) if job.get("distorted") else train,
        seed=job["seed"],
        objective=train_recipe.make_objective(recipe, train.num_classes, **own),
        state=pretrained(functools.partial(models.load_weights, weights)) if weights else None,
        evaluation=Evaluation(evaluate, every) if "points" in job else None,
        progress=False,
        preprocess=as_photographs if recipe.network.name == "resnet50" else standard,
    )
    if "points" in job:
        return {"curve": [[every * (i + 1), value] for i, value in enumerate(curve)]}
    scores = score(result.embedder(test.images), test, 30 * test.num_classes)
    if job["score_train"]:
        trained = score(result.embedder(train.images), train, 30 * train.num_classes)
        scores |= {f"train {name}": value for name, value in trained.items()}
    return scores


def make_jobs(settings: Settings) -> dict[str, dict[str, Any]]:
    """Every run of the study by name, the tables' first."""
    base = {"batch": small(160, 12), "samples_per_class": small(40, 4), "trim": 0.0}
    base |= {"data_dir": settings.folder, "steps": settings.steps, "score_train": False}
    base["image_size"] = settings.image_size or (28 if settings.model == "small" else 80)
    if settings.model != "small":
        weights = resolved(settings.weights)
        rate = settings.rate or (LEARNING_RATE if weights is None else PRETRAINED_RATE)
        base |= {"model": settings.model, "weights": weights, "rate": rate}
    elif settings.rate is not None:
        base["rate"] = settings.rate
    named: dict[str, dict[str, Any]] = {}
    trained = ("triplet", "EPS + triplet")
    for name in small(PAPER, trained) if "methods" in settings.parts else ():
        named[name] = {"method": name, "score_train": name in trained}
    if "printed" in settings.parts:
        named |= {name: {"method": name, "score_train": True} for name in PRINTED}
    if "longer" in settings.parts:
        changed = {"steps": 4 * settings.steps, "rate": 3e-3, "schedule": "cosine"}
        named |= {LONGER: {"method": "EPS + MS", "distorted": True, **changed}}
    if "curves" in settings.parts:
        named |= {f"curve {name}": {"method": name, "points": POINTS} for name in CURVES}
    points = {
        f"{part} {value:g}": changes
        for part in settings.parts
        for value, changes in POINTS_OF.get(part, {}).items()
    }
    return {
        f"{name}-{seed}": {**base, **own, "seed": seed}
        for runs, seeds in ((named, settings.seeds), (points, settings.sweep_seeds))
        for seed in range(seeds)
        for name, own in runs.items()
    }


def main(settings: Settings) -> None:
    """Run what is missing, print the tables and write table and figure."""
    if settings.weights is not None and settings.model == "small":
        raise SystemExit("--weights are those of a ResNet-50: add --model resnet50")
    out, parts = settings.out, settings.parts
    if settings.table:
        results, parts = beside(__file__), get_args(Part)
        out.mkdir(parents=True, exist_ok=True)
    else:
        jobs = make_jobs(settings)
        results = run_study(run, jobs, out / "results.jsonl", workers=settings.workers)
    tell(report(results, parts, out), results, out / "tables.md")


if __name__ == "__main__":
    start(main, Settings, __doc__)
