"""Birds: every method on a head over frozen features of 1,200 CUB crops, 20 classes to train and 20 to test."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import jdml
from experiments.omniglot import methods
from experiments.omniglot.methods import METHODS, OfMethods, normalized, on_data
from experiments.smoke import small
from experiments.study import absolute, best_of, read_record, start
from jdml import data, metrics, models
from jdml.recipes import Recipe
from jdml.report import markdown_table
from jdml.training import embed

BACKBONE, CHANNELS, SIDE = small(("efficientnet_lite0", 1280, 224), ("small", 64, 8))
NORMALIZE = models.normalizer("efficientnet_lite0")


def pooled(dataset: data.Dataset, weights: str | None) -> np.ndarray:
    """Return the backbone's pooled channels `[N, 1, 1, 1280]`: its head is the identity."""
    model = models.create(BACKBONE, dim=CHANNELS)
    variables = model.init(jax.random.key(0), jnp.zeros((1, SIDE, SIDE, 3)))
    if weights is not None:
        variables = models.load_weights(weights, variables)
    identity = {"kernel": jnp.eye(CHANNELS), "bias": jnp.zeros(CHANNELS)}
    params = {**variables["params"], "head": {"embedding": identity}}
    of_data = (variables["batch_stats"], dataset.images)
    return embed(model, params, *of_data, preprocess=NORMALIZE)[:, None, None].astype(np.float32)


@functools.cache
def load(
    data_dir: str | None, weights: str | None, features: str
) -> tuple[data.Dataset, data.Dataset]:
    """Return features ``[N, 1, 1, 1280]`` of the training and test classes, from a file for each folder and weights."""
    cache_folder, made = Path(features), []
    digest = hashlib.sha256(str(data_dir).encode())
    digest.update(b"" if weights is None else Path(weights).read_bytes())
    for split in ("train", "test"):
        dataset = data.load(
            "cub", data_dir=data_dir, split=split, transform=data.conventional(SIDE)
        )
        file = cache_folder / f"{split}-{digest.hexdigest()[:12]}.npy"
        if not file.exists():
            cache_folder.mkdir(parents=True, exist_ok=True)
            np.save(file.with_suffix(".part.npy"), pooled(dataset, weights))
            file.with_suffix(".part.npy").rename(file)
        views = {"class": dataset.labels}
        made.append(data.Dataset("cub crops", np.load(file), dataset.labels, views))
    return made[0], made[1]


class Head(nn.Module):
    """A linear embedding of features."""

    dim: int

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
        """Embeds features `[B, 1, 1, C]`."""
        return models.EmbeddingHead(self.dim, name="head")(images)


RATE, BATCH = 1e-3, {"classes": small(8, 2), "samples_per_class": small(10, 4)}
HELD_OUT = small(4, 1)
"""Training classes, of 20, by which the weights are chosen."""
COLUMNS = ("R@1", "R@8", "MAP@R", "NMI")
FAR = (0.1, 0.01)
PLACES = ("other species, 0.1", "gallery, 0.1", "gallery, 0.01")
OPEN_SET = ("R@1", "DIR@FAR=0.1", *(f"{rate}, {at}" for at in PLACES for rate in ("FAR", "DIR")))
FEATURES = "frozen features"


@dataclasses.dataclass(frozen=True)
class Settings(OfMethods):
    """Settings of the study."""

    steps: int = small(300, 2)
    """Training steps of each run."""
    match: tuple[str, ...] = small((), ("^frozen features-", r"^EPS \+ MS-"))
    """Regular expressions: do only the runs in whose names one of them occurs."""
    open_set: bool = False
    """Instead: half of the test species are not in the gallery, drawn by the seed, and a threshold is to say so."""


def score(recipe: Recipe, x: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return retrieval and clustering of the test classes."""
    retrieval = methods.retrieve(recipe, x, labels)
    unit = jdml.sphere(jnp.asarray(x))
    clustered = metrics.nmi(unit, jnp.asarray(labels), key=jax.random.key(0))
    return {"NMI": float(clustered), **{name: retrieval[name] for name in COLUMNS[:3]}}


def split(x: np.ndarray, labels: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Put half of the photographs of half of the species into the gallery; all others are queries."""
    rng = np.random.default_rng(seed)
    known = np.isin(labels, rng.permutation(np.unique(labels))[: len(np.unique(labels)) // 2])
    there = known & (rng.random(len(labels)) < 0.5)
    queries = {"queries": x[~there], "labels": labels[~there]}
    return {**queries, "gallery": x[there], "gallery_labels": labels[there]}


def score_open_set(
    others: tuple[np.ndarray, np.ndarray], tested: tuple[np.ndarray, np.ndarray], seed: int
) -> dict[str, float]:
    """Score the test species at thresholds chosen on them, on other species, and in the gallery alone."""
    task = split(*tested, seed)
    at_best = metrics.open_set(**task, far=FAR)
    elsewhere = metrics.open_set(**split(*others, seed), far=FAR)
    apart, rows = (np.asarray(a)[:, 0] for a in jdml.nearest(task["queries"], task["gallery"], 1))
    known = np.isin(task["labels"], task["gallery_labels"])
    right = task["gallery_labels"][rows] == task["labels"]
    scores = {"R@1": at_best["R@1"]}
    for far in FAR:
        alone = metrics.rejection_threshold(task["gallery"], task["gallery_labels"], far=far)
        scores[f"DIR@FAR={far}"] = at_best[f"DIR@FAR={far}"]
        chosen = {"other species": elsewhere[f"threshold@FAR={far}"], "gallery": alone}
        for where, threshold in chosen.items():
            scores[f"FAR, {where}, {far}"] = float((apart <= threshold)[~known].mean())
            scores[f"DIR, {where}, {far}"] = float((right & (apart <= threshold))[known].mean())
    return scores


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train one head, and score it at its best validation on the test classes."""
    parts = methods.hold_out(
        *load(job["data_dir"], job["weights"], job["features"]), classes=HELD_OUT
    )

    def scored(recipe: Recipe, embed: Callable[[np.ndarray], np.ndarray]) -> dict[str, float]:
        x = embed(parts.test.images)
        if not job.get("open_set"):
            return score(recipe, x, parts.test.labels)
        others, tested = (
            (normalized(recipe, embed(part.images)), part.labels)
            for part in (parts.validation, parts.test)
        )
        return score_open_set(others, tested, job["seed"])

    if job["method"] == FEATURES:
        return scored(METHODS["triplet"], lambda images: images[:, 0, 0])
    recipe = on_data(METHODS[job["method"]], BATCH, RATE, pool=16)
    own: Any = {"steps": job["steps"], "seed": job["seed"], "model": Head(methods.DIM)}
    result = methods.train(recipe, parts, "class", **own)
    return {**scored(recipe, result.embedder), **best_of(result)}


def make_jobs(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return every run by name: all methods with the first seed, then with the next."""
    base = {"data_dir": settings.folder, "weights": absolute(settings.weights)}
    base |= {"features": absolute(settings.place(__file__) / "features"), "steps": settings.steps}
    base |= {"open_set": True} if settings.open_set else {}
    bare = [(FEATURES, seed) for seed in range(settings.seeds if settings.open_set else 1)]
    title = "open set: " if settings.open_set else ""
    return {
        f"{title}{name}-{seed}": {**base, "method": name, "seed": seed}
        for name, seed in (*bare, *settings.runs)
    }


def table(results: dict[str, Any], columns: Sequence[str]) -> str:
    """Return a row per method, best first."""
    return markdown_table(["method", *columns, "runs"], methods.table_rows(results, columns))


def main(settings: Settings) -> str:
    """Run what is missing; return the tables."""
    results = settings.results(__file__, run, make_jobs(settings))
    if settings.table:
        return f"{table(results, COLUMNS)}\n{table(read_record(__file__, 'open set'), OPEN_SET)}"
    kind = "pretrained" if settings.weights is not None else "RANDOM (no --weights)"
    rows = table(results, OPEN_SET if settings.open_set else COLUMNS)
    return f"{kind} EfficientNet-Lite0 features:\n\n{rows}"


if __name__ == "__main__":
    start(main, Settings, __doc__)
