"""One run of the study: a proxy loss with or without non-isotropy regularization; how its embeddings lie in space."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdml
from experiments.cub_crops import features
from experiments.omniglot.methods import hold_out
from experiments.potential_fields import study  # the same data, batches and base losses
from experiments.potential_fields.study import LOSSES, Parts, Task
from experiments.smoke import FLOW, SMOKE, small
from jdml import metrics, optim, training
from jdml.recipes import BatchConfig, NIRConfig, Recipe
from jdml.training import train_recipe

OF_SPECIES = BatchConfig(classes=8, samples_per_class=10)
TASKS = {**study.TASKS, "crops": Task(300, 128, 1e-3, ("species",) * 2, OF_SPECIES, None)}

METHODS = small(("ProxyAnchor", "ProxyNCA*", "SoftTriple"), ("ProxyAnchor",))
NIR: dict[str, Any] = {"weight": 0.01, "warmup": 50}
"""The regularizer as released: ω, f the exponential of the negative log-likelihood, and steps for which the backbone
waits (all of a network without a layer called head)."""
VARIANTS: dict[str, dict[str, Any]] = {
    "exp": {},
    "softplus": {"shape": "softplus"},
    "exp, t = 0.3": {"temperature": 0.3},
    "exp, t = 3": {"temperature": 3.0},
    "exp, per dimension": {"per_dimension": True},
    "NLL, per dimension": {"shape": "identity", "per_dimension": True},
}
if SMOKE:
    VARIANTS = {"exp": {}}
"""Ways to shape the regularizer."""
STRUCTURE = ("spectral decay", "reversed", "density", "concentration variance", "uniformity")
"""Spectral decay is KL(U ‖ S), reversed KL(S ‖ U): only the latter is blind to directions that a network cannot use."""
SCORED = 4000
"""Embeddings for structural metrics and spectra."""


def load(job: dict[str, Any]) -> Parts:
    """The data of a task: those of the study of potential fields, or the features of birds."""
    if job["data"] != "crops":
        return study.load(job["data"], job["data_dir"], job["held_out"])
    train, test = features.load(job["data_dir"], job["weights"], job["features"])
    if job["held_out"]:
        train, test, _ = hold_out(train, test, classes=4)
    return Parts(train, (("species", test, test.labels),))


def recipe_of(job: dict[str, Any]) -> Recipe:
    """The recipe of a job: its proxy loss, regularized where the job says so."""
    task, own, nir = TASKS[job["data"]], dict(job["nir"] or {}), None
    warmup = own.pop("warmup", 0)
    if job["nir"] is not None:
        flow = {**small({}, FLOW), **job["flow"]}
        nir = NIRConfig(flow_settings=flow, flow_learning_rate=task.rate, **own)
    return study.recipe_of(task, job["method"], LOSSES[job["method"]][1]).replace(
        loss={"method": nir},
        finetune={"backbone_freeze_steps": warmup},
        batch={"skip_nonfinite": 10, "steps": job["steps"]},
    )


def own_optimizer(job: dict[str, Any], recipe: Recipe) -> optax.GradientTransformation | None:
    """Two ablations of the recipe's: clipped gradients; a rate of 0 at first, which is no warm-up. Else None."""
    clip, still = job["clip"], job.get("still")
    roles = ("proxies", "flow")
    rules = train_recipe.make_optimizer(recipe, roles, 1)
    if clip is not None:
        clips = dict.fromkeys(("backbone", "head", *roles), optax.clip_by_global_norm(clip))
        return optax.chain(optim.partition_by_role(clips, optim.backbone_and_head), rules)
    if still is not None:
        moving = optax.scale_by_schedule(lambda step: jnp.where(step < still, 0.0, 1.0))
        return optax.chain(rules, optax.masked(moving, {"model": True, "proxies": False}))
    return None


def make_model(job: dict[str, Any]) -> Any:
    """What is trained on the features of birds; None elsewhere, where it is the recipe's network."""
    return features.Head(TASKS["crops"].dim) if job["data"] == "crops" else None


def structure(embeddings: jax.Array, labels: np.ndarray) -> dict[str, float]:
    """The structural metrics of unit embeddings, and their singular values as shares."""
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
    """What a paper's table shows of unit embeddings."""
    scores = jdml.evaluate_retrieval(x, labels, map_at=(1000,))
    found = {"R@1": scores["R@1"], "MAP@R": scores["MAP@R"], "mAP@1000": scores["MAP@1000"]}
    return {**found, "NMI": metrics.nmi(x, labels, key=jax.random.key(0))}


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train one network; score its retrieval on new images and the structure of both sets."""
    train, scored = load(job)
    _, test, labels = scored[0]
    recipe = recipe_of(job)
    try:
        result = train_recipe.train(
            recipe,
            train,
            model=make_model(job),
            optimizer=own_optimizer(job, recipe),
            seed=job["seed"],
            run=training.RunConfig(log_every=max(1, job["steps"] // 20)),
            progress=False,
        )
    except FloatingPointError as error:  # a density without bound: a finding of its own
        return {"diverged": str(error)}
    x, seen = (jdml.sphere(jnp.asarray(result.embedder(part.images))) for part in (test, train))
    scores: dict[str, Any] = retrieval(x, labels)
    for part, points, classes in (("test", x, labels), ("train", seen, train.labels)):
        scores |= {f"{part} {k}": v for k, v in structure(points, classes).items()}
    scores["skipped"] = sum(int(record["skipped"]) for record in result.history)
    surprise = [record["nll"] for record in result.history if "nll" in record]
    return {**scores, "nll": surprise} if surprise else scores


def step_times(job: dict[str, Any], repeats: int = 20) -> dict[str, float]:
    """Time of a training step of each method, alone and with the flow: medians of steps taken in turn."""
    train = load(job).train
    rows = next(iter(recipe_of(job).batch.build(train.labels, job["seed"])))
    images, labels = jnp.asarray(train.images[rows]), jnp.asarray(train.labels[rows], jnp.int32)
    states, steps = {}, {}
    for method in METHODS:
        for name, nir in ((method, None), (f"{method} + NIR", NIR)):
            recipe = recipe_of({**job, "method": method, "nir": nir})
            model = make_model(job) or train_recipe.make_network(recipe, train)
            of_recipe = train_recipe.parts_of_step(recipe, train.num_classes, 1, job["steps"])
            steps[name] = training.make_train_step(model, *of_recipe)
            states[name] = training.create_state(model, *of_recipe, images[:1], seed=0)
    took: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats + 1):  # the first compiles
        for name, step in steps.items():
            start = time.perf_counter()
            states[name], _ = step(states[name], images, labels)
            jax.block_until_ready(states[name])
            took[name].append(time.perf_counter() - start)
    return {name: float(np.median(times[1:])) for name, times in took.items()}
