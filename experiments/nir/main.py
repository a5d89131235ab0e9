"""Non-isotropy regularization (NIR) of proxy losses: retrieval, structure, and ablations."""

import dataclasses
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdml
from experiments import study
from experiments.cub_crops import main as features
from experiments.potential_fields import main as fields  # the same data, batches and base losses
from experiments.potential_fields.main import LOSSES, Parts, Task
from experiments.smoke import FLOW, SMOKE, small
from experiments.study import PAPER, FolderOptions, cells, gains, over_seeds, start
from jdml import metrics, optim, training
from jdml.recipes import BatchConfig, NIRConfig, Recipe
from jdml.report import markdown_table, mean_std, paired_difference
from jdml.training import train_recipe

OF_SPECIES = BatchConfig(classes=8, samples_per_class=10)
TASKS = {**fields.TASKS, "crops": Task(300, 128, 1e-3, ("species",) * 2, OF_SPECIES, None)}

METHODS = small(("ProxyAnchor", "ProxyNCA*", "SoftTriple"), ("ProxyAnchor",))
NIR: dict[str, Any] = {"weight": 0.01, "warmup": 50}
"""The regularizer as released: ω, f the exponential of the negative log-likelihood, and steps for which the backbone
waits (all of a network without a layer called head)."""
STUDY = study.read_toml(__file__)
STRUCTURE = ("spectral decay", "reversed", "density", "concentration variance", "uniformity")
"""Spectral decay is KL(U ‖ S), reversed KL(S ‖ U): only the latter is blind to directions that a network cannot use."""
SCORED = 4000
"""Embeddings for structural metrics and spectra."""


def load(job: dict[str, Any]) -> Parts:
    """Return the data of the study of potential fields, or the features of birds."""
    if job["data"] != "crops":
        return fields.load(job["data"], job["data_dir"])
    train, test = features.load(job["data_dir"], job["weights"], job["features"])
    return train, [("species", test, test.labels)]


def recipe_of(job: dict[str, Any]) -> Recipe:
    """Return the recipe of a job: its proxy loss, regularized where the job says so."""
    task, own, nir = TASKS[job["data"]], dict(job["nir"] or {}), None
    warmup = own.pop("warmup", 0)
    if job["nir"] is not None:
        flow = {**small({}, FLOW), **job["flow"]}
        nir = NIRConfig(flow_settings=flow, flow_learning_rate=task.rate, **own)
    return fields.recipe_of(task, job["method"], LOSSES[job["method"]][1]).replace(
        loss={"method": nir},
        finetune={"backbone_freeze_steps": warmup},
        batch={"skip_nonfinite": 10, "steps": job["steps"]},
    )


def own_optimizer(job: dict[str, Any], recipe: Recipe) -> optax.GradientTransformation | None:
    """Return two ablations of the recipe's: clipped gradients; a rate of 0 at first, which is no warm-up. Else None."""
    clip, still, roles = job["clip"], job.get("still"), ("proxies", "flow")
    rules = train_recipe.make_optimizer(recipe, roles, 1)
    if clip is not None:
        clips = dict.fromkeys(("backbone", "head", *roles), optax.clip_by_global_norm(clip))
        return optax.chain(optim.partition_by_role(clips, optim.backbone_and_head), rules)
    if still is not None:
        moving = optax.scale_by_schedule(lambda step: jnp.where(step < still, 0.0, 1.0))
        return optax.chain(rules, optax.masked(moving, {"model": True, "proxies": False}))
    return None


def structure(embeddings: jax.Array, labels: np.ndarray) -> dict[str, float]:
    """Return the structural metrics of unit embeddings, and their singular values as shares."""
    rows = np.random.default_rng(0).permutation(len(labels))[:SCORED]
    x, classes = embeddings[rows], jnp.asarray(labels[rows])
    values = jnp.linalg.svd(x, compute_uv=False)
    return {
        "spectral decay": float(metrics.spectral_decay(x)),
        "reversed": float(metrics.spectral_decay(x, mode=-1)),
        "density": float(metrics.class_density(x, classes)),
        "concentration variance": float(metrics.concentration_variance(x, classes)),
        "uniformity": float(metrics.uniformity(x)),
        "spectrum": [float(share) for share in values / values.sum()],
    }


def retrieval(x: jax.Array, labels: np.ndarray) -> dict[str, float]:
    """Return what a paper's table shows of unit embeddings."""
    scores = jdml.evaluate_retrieval(x, labels, map_at=(1000,))
    own = {"R@1": scores["R@1"], "MAP@R": scores["MAP@R"], "mAP@1000": scores["MAP@1000"]}
    return {**own, "NMI": metrics.nmi(x, labels, key=jax.random.key(0))}


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train one network; score its retrieval on new images and the structure of both sets."""
    train, scored = load(job)
    _, test, labels = scored[0]
    recipe = recipe_of(job)
    result = train_recipe.train(
        recipe,
        train,
        model=features.Head(recipe.network.dim) if job["data"] == "crops" else None,
        optimizer=own_optimizer(job, recipe),
        seed=job["seed"],
        run=training.RunConfig(log_every=max(1, job["steps"] // 20)),
        progress=False,
    )
    x, own = (jdml.sphere(jnp.asarray(result.embedder(part.images))) for part in (test, train))
    scores: dict[str, Any] = retrieval(x, labels)
    for part, points, classes in (("test", x, labels), ("train", own, train.labels)):
        scores |= {f"{part} {k}": v for k, v in structure(points, classes).items()}
    scores["skipped"] = sum(int(record["skipped"]) for record in result.history)
    surprise = [record["nll"] for record in result.history if "nll" in record]
    return {**scores, "nll": surprise} if surprise else scores


RETRIEVAL = ("R@1", "NMI", "mAP@1000")
ABLATED, ABLATIONS = "ProxyAnchor", STUDY["ablations"]
"""The ablations: changes to the released settings."""
if SMOKE:
    ABLATIONS = {name: ABLATIONS[name] for name in ("exp", "ω = 0.1")}
RETRIEVED, STRUCTURED = PAPER["nir"]["retrieval"], PAPER["nir"]["structure"]

Part = Literal["methods", "ablations"]


@dataclasses.dataclass(frozen=True)
class Settings(FolderOptions):
    """Settings of the study."""

    data: Literal["digits", "mnist", "omniglot", "crops"] = "digits"
    """digits: 1,797 real 8×8 digits that come with scikit-learn. mnist, omniglot: the full sets in --data-dir. crops:
    a head over the frozen features of bird photographs (see experiments/cub_crops). 300, 500, 1200 and 300 steps,
    unless --steps are given."""
    parts: tuple[Part, ...] = small(("methods",), get_args(Part))
    """methods: Tables 1 and 3, Fig. 4. ablations: Tables 4 and 5."""


def make_jobs(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return every training run of the study by name."""
    base: dict[str, Any] = {"data": settings.data}
    if settings.data == "crops":
        base["weights"] = study.absolute(settings.weights)
        base["features"] = study.absolute(settings.place(__file__) / "features")
    base |= {"data_dir": settings.folder, "method": ABLATED, "nir": None, "flow": {}, "clip": None}
    base["steps"] = settings.steps or TASKS[settings.data].steps
    named: dict[str, dict[str, Any]] = {}
    for method in METHODS if "methods" in settings.parts else ():
        named[method] = {"method": method}
        named[f"{method} + NIR"] = {"method": method, "nir": NIR}
    for name, changes in ABLATIONS.items() if "ablations" in settings.parts else ():
        own = changes.get("nir", {})
        named[name] = {**changes, "nir": None if own is False else {**NIR, **own}}
    return study.with_seeds(base, named, settings.seeds)


def method_tables(results: dict[str, Any]) -> list[str]:
    """Return retrieval, structure, and what regularization adds over the same seeds, with a paired t-test's p."""
    names = [f"{method}{kind}" for method in METHODS for kind in ("", " + NIR")]
    retrieval = [
        [name, *cells(results, name, RETRIEVAL), RETRIEVED.get(name, "–")] for name in names
    ]
    sections = ["Retrieval (last column: the paper's three on CUB):\n"]
    sections += [markdown_table(["method", *RETRIEVAL, "paper"], retrieval)]
    for part in ("test", "train"):
        measured = [f"{part} {metric}" for metric in STRUCTURE]
        rows = [
            [name, *cells(results, name, measured, 1, 3), STRUCTURED.get(name, "–")]
            for name in names
        ]
        sections += [f"Structure of {part} embeddings (last column: the paper's on CUB):\n"]
        sections += [markdown_table(["method", *STRUCTURE, "paper"], rows)]
    added = []
    for method in METHODS:
        added.append([method])
        for metric in (*RETRIEVAL, *(f"test {m}" for m in STRUCTURE)):
            both = [dict(enumerate(over_seeds(results, n, metric))) for n in names if method in n]
            gain = gains(results, f"{method} + NIR", method, metric)
            text = mean_std(gain, scale=100.0 if metric in RETRIEVAL else 1.0, digits=2)
            p = "" if len(gain) < 2 else f" (p = {paired_difference(*both).p:.2g})"
            added[-1].append(text + p)
    sections += ["What NIR adds, over the same seeds:\n"]
    return [*sections, markdown_table(["method", *RETRIEVAL, *STRUCTURE], added)]


def ablation_table(results: dict[str, Any]) -> str:
    """Return one row per change, and its difference to the first over the same seeds."""

    def recall(name: str) -> dict[int, float]:
        runs = {n.rpartition("-"): result["metrics"] for n, result in results.items()}
        return {int(s): m["R@1"] for (n, _, s), m in runs.items() if n == name and "R@1" in m}

    first, rows = next(iter(ABLATIONS)), []
    shape = [f"test {name}" for name in STRUCTURE]
    for name in ABLATIONS:
        diverged = len(over_seeds(results, name, "diverged"))
        scores = cells(results, name, ("R@1", "mAP@1000")) + cells(results, name, shape, 1, 3)
        gap = "–" if name == first else str(paired_difference(recall(name), recall(first)))
        rows.append([name, *scores, str(diverged), gap])
    titles = (f"{ABLATED} + NIR", "R@1", "mAP@1000", *STRUCTURE, "diverged", f"R@1 − {first}")
    return markdown_table(titles, rows)


def main(settings: Settings) -> str:
    """Run what is missing; return the tables."""
    results = settings.results(__file__, run, make_jobs(settings))
    ablated = (
        study.read_record(__file__, f"{settings.data} ablation") if settings.table else results
    )
    sections: list[str] = []
    if "methods" in settings.parts:
        sections += method_tables(results)
    if "ablations" in settings.parts and ablated:
        sections += ["Ablations:\n", ablation_table(ablated)]
    elif "ablations" in settings.parts:
        names = (ABLATED, f"{ABLATED} + NIR", *ABLATIONS)
        runs = {name: len(over_seeds(results, name, "R@1")) for name in names}
        rows = [[name, *cells(results, name, RETRIEVAL), str(n)] for name, n in runs.items() if n]
        titles = [f"{ABLATED} and its controls", *RETRIEVAL, "seeds"]
        sections += ["Controls:\n", markdown_table(titles, rows)]
    return "\n".join(sections)


if __name__ == "__main__":
    start(main, Settings, __doc__)
