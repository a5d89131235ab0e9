"""One run of the study: a proxy loss with or without non-isotropy regularization; how its embeddings lie in space."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdml
from experiments.cub_crops import features
from experiments.potential_fields import study  # the same data, batches and base losses
from experiments.potential_fields.study import LOSSES, Parts, Task
from jdml import data, flows, metrics, models, objectives, optim, training

TASKS = {**study.TASKS, "crops": Task(300, 128, 1e-3, ("species", "species"))}

METHODS = ("ProxyAnchor", "ProxyNCA*", "SoftTriple")
RATES = {"model": 1.0, "proxies": 100.0, "flow": 1.0}
"""Learning rates in units of the model's."""
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
        chosen = train.labels >= train.num_classes - 4
        test, train = train.select(chosen), train.select(~chosen)
    return Parts(train, (("species", test, test.labels),))


def make_sampler(job: dict[str, Any], labels: np.ndarray) -> Any:
    """8 species × 10 photographs, or the batches of the study of potential fields."""
    if job["data"] == "crops":
        return data.ClassBatchSampler(labels, 8, 10, seed=job["seed"])
    return study.make_sampler(job, labels)


def make_flow(dim: int, settings: dict[str, Any]) -> flows.ConditionalFlow:
    """NIR's flow as released, or with other sizes."""
    return flows.preset("released", dim, dim, **settings)


def make_objective(job: dict[str, Any], num_classes: int) -> objectives.Objective:
    """The proxy objective of a job, regularized where the job says so."""
    loss, settings = LOSSES[job["method"]]
    settings = dict(settings)
    per_class, dim = int(settings.pop("proxies_per_class", 1)), TASKS[job["data"]].dim
    base = objectives.proxy(loss, num_classes, dim, per_class, **settings)
    if job["nir"] is None:
        return base
    own = {name: value for name, value in job["nir"].items() if name != "warmup"}
    return objectives.with_nir(base, make_flow(dim, job["flow"]), **own)


def make_optimizer(job: dict[str, Any]) -> optax.GradientTransformation:
    """Adam, with a learning rate for each of network, proxies and flow."""
    rate, clip = TASKS[job["data"]].rate, job["clip"]
    of_model = RATES["model"]
    scales = {**RATES, "backbone": of_model, "head": of_model}
    del scales["model"]

    def adam(role: str, scale: float) -> optax.GradientTransformation:
        still = (
            job.get("still", 0) if role in ("backbone", "head") else 0
        )  # a rate of 0 is no warm-up
        steps = optax.adam(lambda step: jnp.where(step < still, 0.0, rate * scale))
        return steps if clip is None else optax.chain(optax.clip_by_global_norm(clip), steps)

    return optim.partition_by_role(
        {role: adam(role, scale) for role, scale in scales.items()},
        optim.backbone_and_head,
        waiting={"backbone": (job["nir"] or {}).get("warmup", 0)},
    )


def make_model(job: dict[str, Any]) -> Any:
    """The network of a task."""
    kind = {"omniglot": models.SmallConvNet, "crops": features.Head}.get(job["data"], models.EpsNet)
    return kind(TASKS[job["data"]].dim)


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


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train one network; score its retrieval on new images and the structure of both sets."""
    train, scored = load(job)
    _, test, labels = scored[0]
    try:
        result = training.fit(
            make_model(job),
            make_objective(job, train.num_classes),
            make_optimizer(job),
            train,
            make_sampler(job, train.labels),
            steps=job["steps"],
            seed=job["seed"],
            evaluate_every=job["steps"],
            log_every=max(1, job["steps"] // 20),
            skip_nonfinite=10,
            progress=False,
        )
    except FloatingPointError as error:  # a density without bound: a finding of its own
        return {"diverged": str(error)}
    x, seen = (jdml.sphere(jnp.asarray(result.embedder(part.images))) for part in (test, train))
    found = jdml.evaluate_retrieval(x, labels, map_at=(1000,))
    scores: dict[str, Any] = {
        "R@1": found["R@1"],
        "MAP@R": found["MAP@R"],
        "mAP@1000": found["MAP@1000"],
        "NMI": metrics.nmi(x, labels, key=jax.random.key(0)),
    }
    for part, points, classes in (("test", x, labels), ("train", seen, train.labels)):
        scores |= {f"{part} {k}": v for k, v in structure(points, classes).items()}
    scores["skipped"] = sum(int(record["skipped"]) for record in result.history)
    surprise = [record["nll"] for record in result.history if "nll" in record]
    return {**scores, "nll": surprise} if surprise else scores


def seconds_per_step(job: dict[str, Any], repeats: int = 20) -> dict[str, float]:
    """Time of a training step of each method, alone and with the flow: medians of steps taken in turn."""
    train = load(job).train
    rows = next(iter(make_sampler(job, train.labels)))
    images, labels = jnp.asarray(train.images[rows]), jnp.asarray(train.labels[rows], jnp.int32)
    states, steps = {}, {}
    for method in METHODS:
        for name, nir in ((method, None), (f"{method} + NIR", NIR)):
            of = {**job, "method": method, "nir": nir}
            model, objective = make_model(of), make_objective(of, train.num_classes)
            optimizer = make_optimizer(of)
            steps[name] = training.make_train_step(model, objective, optimizer)
            states[name] = training.create_state(model, objective, optimizer, images[:1], seed=0)
    took: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats + 1):  # the first compiles
        for name, step in steps.items():
            start = time.perf_counter()
            states[name], _ = step(states[name], images, labels)
            jax.block_until_ready(states[name])
            took[name].append(time.perf_counter() - start)
    return {name: float(np.median(times[1:])) for name, times in took.items()}
