"""Birds: every method on a head over frozen features of 1,200 CUB crops, 20 classes to train and 20 to test.

Real photographs at the cost of minutes: a pretrained EfficientNet-Lite0 sees each image once, and what is trained is
the embedding of its 1,280 pooled channels. Not the CUB benchmark (that is `jdml benchmark`), but its kind of question:
do embeddings that were trained on some species find others? --data-dir holds images.txt, image_class_labels.txt,
classes.txt and images/, as CUB_200_2011 does. Without --weights the features are those of random weights, and the table
says so. Finished runs are kept.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jdml
from experiments.cub_crops.features import Head, load
from experiments.omniglot import methods
from experiments.omniglot.methods import METHODS, OfMethods, normalized, on_data
from experiments.options import resolved, start
from experiments.shown import beside
from experiments.smoke import record, small
from jdml import data, metrics
from jdml.recipes import Recipe
from jdml.report import embedding_map, gallery, markdown_table
from jdml.studies.runner import run_study

RATE, BATCH = 1e-3, {"classes": small(8, 2), "samples_per_class": small(10, 4)}
HELD_OUT = small(4, 1)
"""Of the 20 training classes, to choose the weights by."""
COLUMNS = ("R@1", "R@8", "MAP@R", "NMI")
FAR = (0.1, 0.01)
PLACES = ("other species, 0.1", "gallery, 0.1", "gallery, 0.01")
OPEN_SET = ("R@1", "DIR@FAR=0.1", *(f"{rate}, {at}" for at in PLACES for rate in ("FAR", "DIR")))
FEATURES = "frozen features"
SHOWN = "EPS + MS"
"""The method in the pictures."""


@dataclasses.dataclass(frozen=True)
class Settings(OfMethods):
    """What is run."""

    weights: Path | None = None
    """Pretrained weights of EfficientNet-Lite0, from jdml weights convert."""
    steps: int = small(300, 2)
    """Training steps of each run."""
    only: tuple[str, ...] = small((), ("EPS + MS",))
    """Some of the methods, by name."""
    open_set: bool = False
    """Instead: half of the test species are not in the gallery, drawn by the seed, and a threshold is to say so."""
    out: Path = record(Path("runs/cub_crops"))
    """Folder for results, table and figures."""


def score(recipe: Recipe, x: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Retrieval and clustering of the test classes."""
    retrieval = methods.retrieve(recipe, x, labels)
    unit = jdml.sphere(jnp.asarray(x))
    clustered = metrics.nmi(unit, jnp.asarray(labels), key=jax.random.key(0))
    return {"NMI": float(clustered), **{name: retrieval[name] for name in COLUMNS[:3]}}


def opened(x: np.ndarray, labels: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Half of the species half in the gallery; all other photographs are queries."""
    rng = np.random.default_rng(seed)
    known = np.isin(labels, rng.permutation(np.unique(labels))[: len(np.unique(labels)) // 2])
    there = known & (rng.random(len(labels)) < 0.5)
    queries = {"queries": x[~there], "labels": labels[~there]}
    return {**queries, "gallery": x[there], "gallery_labels": labels[there]}


def score_open_set(
    others: tuple[np.ndarray, np.ndarray], tested: tuple[np.ndarray, np.ndarray], seed: int
) -> dict[str, float]:
    """What thresholds do to the test species that were chosen on themselves, on other species, in the gallery alone."""
    task = opened(*tested, seed)
    at_best = metrics.open_set(**task, far=FAR)
    elsewhere = metrics.open_set(**opened(*others, seed), far=FAR)
    apart, rows = (np.asarray(a)[:, 0] for a in jdml.nearest(task["queries"], task["gallery"], 1))
    known = np.isin(task["labels"], task["gallery_labels"])
    right = task["gallery_labels"][rows] == task["labels"]
    told = {"R@1": at_best["R@1"]}
    for far in FAR:
        alone = metrics.rejection_threshold(task["gallery"], task["gallery_labels"], far=far)
        told[f"DIR@FAR={far}"] = at_best[f"DIR@FAR={far}"]
        chosen = {"other species": elsewhere[f"threshold@FAR={far}"], "gallery": alone}
        for where, threshold in chosen.items():
            told[f"FAR, {where}, {far}"] = float((apart <= threshold)[~known].mean())
            told[f"DIR, {where}, {far}"] = float((right & (apart <= threshold))[known].mean())
    return told


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
    steps, seed = job["steps"], job["seed"]
    try:
        result = methods.train(
            recipe, parts, "class", steps=steps, seed=seed, model=Head(methods.DIM)
        )
    except FloatingPointError as error:
        return {"diverged": str(error)}
    assert result.best is not None
    if job["keep"] is not None:
        np.save(job["keep"], normalized(recipe, result.embedder(parts.test.images)))
    return {**scored(recipe, result.embedder), "validation": result.best.value}


def make_jobs(settings: Settings, out: Path) -> dict[str, dict[str, Any]]:
    """Every run by name: all methods with the first seed, then with the next."""
    base = {
        "data_dir": settings.folder,
        "weights": resolved(settings.weights),
        "features": resolved(out / "features"),
        "steps": settings.steps,
    }
    if settings.open_set:
        runs = [*((FEATURES, seed) for seed in range(settings.seeds)), *settings.runs]
        more = {**base, "keep": None, "open_set": True}
        return {f"open set: {name}-{n}": {**more, "method": name, "seed": n} for name, n in runs}
    jobs = {f"{FEATURES}-0": {**base, "method": FEATURES, "seed": 0, "keep": None}}
    for name, seed in settings.runs:
        keep = resolved(out / f"{name}.npy") if seed == 0 else None
        jobs[f"{name}-{seed}"] = {**base, "method": name, "seed": seed, "keep": keep}
    return jobs


def table(results: dict[str, Any], columns: Sequence[str]) -> str:
    """A row per method, best first."""
    return markdown_table(["method", *columns, "runs"], methods.table_rows(results, columns))


def main(settings: Settings) -> str:
    """Do the runs that are missing, and write table and pictures."""
    if settings.table:
        parts = {"": COLUMNS, "open set": OPEN_SET}
        return "\n".join(table(beside(__file__, part), shown) for part, shown in parts.items())
    out = settings.out
    jobs = make_jobs(settings, out)
    first = next(iter(jobs.values()))
    _, test = load(first["data_dir"], first["weights"], first["features"])
    results = run_study(run, jobs, out / "results.jsonl", workers=settings.workers)
    kind = "pretrained" if settings.weights is not None else "RANDOM (no --weights)"
    columns = OPEN_SET if settings.open_set else COLUMNS
    text = f"{kind} EfficientNet-Lite0 features:\n\n{table(results, columns)}"
    (out / "table.md").write_text(text)
    if settings.open_set:
        return text
    kept = {job["method"]: job["keep"] for job in jobs.values() if job["keep"]}
    kept = {method: path for method, path in kept.items() if Path(path).exists()}  # not diverged
    shown = SHOWN if SHOWN in kept else next(iter(kept), FEATURES)
    vectors = np.load(kept[shown]) if kept else test.images[:, 0, 0]
    crop = data.conventional(112)
    photos = data.load("cub", data_dir=settings.data_dir, split="test", transform=crop)
    unit = np.asarray(jdml.sphere(jnp.asarray(vectors)))
    names = photos.class_names.get(next(iter(photos.views)))
    style = {"queries": 6, "order": "spread", "class_names": names, "title": shown}
    gallery(photos.images, unit, photos.labels, **style).savefig(out / "gallery.png", dpi=110)
    title = f"{test.num_classes} species that were not trained on ({shown}, t-SNE)"
    drawn = embedding_map(unit, test.labels, method="tsne", class_names=names, title=title)
    drawn.savefig(out / "map.png", dpi=110)
    return text


if __name__ == "__main__":
    start(main, Settings, __doc__)
