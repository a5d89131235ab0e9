"""What the studies of proxy and field losses share: tasks, objectives, and the run of one job.

Classes have many local centres, what several proxies per class are for: even and odd digits, scored on the digits, and
Omniglot's alphabets, scored on the letters of alphabets that were not trained on.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdml
from jdml import data, metrics, models, objectives, optim, training

MULTI = 15  # proxies per class, where a loss takes several
PROXY_RATE = 100.0  # the proxies' learning rate, in units of the model's
CLIP = 5.0  # largest entry of the proxies' gradient, for charges that almost touch
PFML = {"delta": 0.2, "alpha": 1.0, "proxies_per_class": MULTI}
CPML = {"delta": 0.2, "proxies_per_class": MULTI}
LOSSES: dict[str, tuple[Any, dict[str, Any]]] = {
    "PFML": (jdml.potential_field_loss, PFML),
    "CPML": (jdml.contrastive_potential_loss, CPML),
    "CPML, mirrored": (jdml.contrastive_potential_loss, {**CPML, "repulsion": "mirrored"}),
    "CPML, decaying": (
        jdml.contrastive_potential_loss,
        {**CPML, "repulsion": "decaying", "alpha": 1.0},
    ),
    "MPA": (jdml.multi_proxy_anchor_loss, {"proxies_per_class": MULTI}),
    "MPA-DW": (jdml.multi_proxy_anchor_dw_loss, {"proxies_per_class": MULTI}),
    "MPA-AP": (jdml.multi_proxy_anchor_ap_loss, {"proxies_per_class": MULTI}),
    "SoftTriple": (jdml.soft_triple_loss, {"proxies_per_class": MULTI}),
    "ProxyAnchor": (jdml.proxy_anchor_loss, {}),
    "ProxyNCA*": (jdml.proxy_nca_margin_loss, {}),
    "ProxyNCA": (jdml.proxy_nca_loss, {"scale": 9.0}),
    "triplet": (jdml.triplet_loss, {"margin": 0.2}),
    "MS": (jdml.multi_similarity_loss, {"beta": 40.0}),
}
WITHOUT_PROXIES = ("triplet", "MS")
MEASURES = ("R@1", "nDCG@2", "nDCG@4", "nDCG@8", "MAP@R")
FIELDS = ("PFML", "CPML", "CPML, mirrored", "CPML, decaying")
POINTS = 4
"""How often proxies are measured in the last epoch."""
EPOCH = (
    "epoch: assignment",
    "epoch: nearest",
    "epoch: represented",
    "epoch: together",
    "epoch: covered",
)


class Task(NamedTuple):
    """What differs between the data sets."""

    steps: int
    dim: int
    rate: float
    views: tuple[str, str]


TASKS = {
    "digits": Task(300, 16, 1e-3, ("seen digits", "unseen digits")),
    "mnist": Task(500, 16, 1e-3, ("seen digits", "unseen digits")),
    "omniglot": Task(1200, 128, 5e-4, ("letters", "alphabets")),
}


class Parts(NamedTuple):
    """Images to train on; images to score on with the labels to score."""

    train: data.Dataset
    scored: tuple[tuple[str, data.Dataset, np.ndarray], ...]


@functools.cache
def load(name: str, data_dir: str | None, held_out: bool) -> Parts:
    """The data of a task: labelled by parity or alphabet, scored on digits or letters."""
    rng = np.random.default_rng(0)
    if name == "omniglot":
        train, test = (
            data.load(name, data_dir=data_dir, split=split, image_size=28)
            for split in ("train", "test")
        )
        if held_out:
            alphabets = rng.permutation(train.num_classes)[: train.num_classes // 5]
            chosen = np.isin(train.labels, alphabets)
            test, train = train.select(chosen), train.select(~chosen)
            train = dataclasses.replace(
                train, labels=np.unique(train.labels, return_inverse=True)[1]
            )
        letters, alphabets = (test.views[view] for view in ("letter", "alphabet"))
        return Parts(train, (("letters", test, letters), ("alphabets", test, alphabets)))
    train, test = (data.load(name, data_dir=data_dir, split=split) for split in ("train", "test"))
    unseen = data.load(name, split="all") if name == "digits" else test
    train = train.select(train.views["digit"] <= 5)
    seen = test.select(test.views["digit"] <= 5)
    unseen = unseen.select(unseen.views["digit"] > 5)
    if held_out:
        chosen = rng.permutation(len(train)) < len(train) // 6
        seen, train = train.select(chosen), train.select(~chosen)
    scored = (("seen digits", seen), ("unseen digits", unseen))
    return Parts(
        train.relabel("parity"),
        tuple((title, part, part.views["digit"]) for title, part in scored),
    )


def make_objective(job: dict[str, Any], num_classes: int) -> objectives.Objective:
    """The objective of a job."""
    loss, _ = LOSSES[job["method"]]
    settings = dict(job["settings"])
    if job["method"] in WITHOUT_PROXIES:
        mine = (
            jdml.mining.chain(
                jdml.mining.random_positive(), jdml.mining.semi_hard_negative(settings["margin"])
            )
            if job["method"] == "triplet"
            else jdml.mining.multi_similarity_pairs()
        )
        return objectives.pair(loss, mine=mine, **settings)
    per_class = int(settings.pop("proxies_per_class", 1))
    if job["method"] in FIELDS:
        # The paper's U: a force does not depend on how many charges there are.
        settings["reduce_fn"] = jnp.sum
    if per_class == 0:
        return objectives.pair(loss, **settings)
    return objectives.proxy(loss, num_classes, TASKS[job["data"]].dim, per_class, **settings)


def make_optimizer(job: dict[str, Any]) -> optax.GradientTransformation:
    """Adam, the proxies with a learning rate of their own, and clipped gradients where they are charges."""
    rate = TASKS[job["data"]].rate
    proxies = optax.adam(rate * job["proxy_rate"])
    if "clip" in job:
        proxies = optax.chain(optax.clip(job["clip"]), proxies)
    transforms = {"model": optax.adam(rate), "proxies": proxies}
    return optim.partition_by_role(transforms, lambda params: {name: name for name in params})


def make_sampler(job: dict[str, Any], labels: np.ndarray) -> Any:
    """4 alphabets × 40 drawings, or 64 random digits."""
    if job["data"] == "omniglot":
        return data.ClassBatchSampler(labels, 4, 40, seed=job["seed"])
    return data.RandomBatchSampler(len(labels), 64, seed=job["seed"])


def run(job: dict[str, Any]) -> dict[str, float]:
    """Train one network, score its retrieval, and measure how far its proxies are from the training data."""
    parts = load(job["data"], job["data_dir"], job["held_out"])
    train, task = parts.train, TASKS[job["data"]]
    if job["noise"]:
        labels = data.corrupt_labels(train.labels, job["noise"], jax.random.key(job["seed"]))
        train = dataclasses.replace(train, labels=labels)
    sampler = make_sampler(job, train.labels)
    every = max(1, min(sampler.batches_per_epoch, job["steps"]) // POINTS)
    over_epoch: list[dict[str, float]] = []

    def evaluate(embedder: training.Embedder) -> dict[str, float]:
        if int(embedder.state.step) > job["steps"] - sampler.batches_per_epoch:
            proxies = embedder.state.params["proxies"]
            over_epoch.append(measure(proxies, embedder(train.images), train))
        return {}

    epoch = "epoch" in job
    result = training.fit(
        models.SmallConvNet(task.dim) if job["data"] == "omniglot" else models.EpsNet(task.dim),
        make_objective(job, train.num_classes),
        make_optimizer(job),
        train,
        sampler,
        steps=job["steps"],
        seed=job["seed"],
        evaluate=evaluate if epoch else None,
        evaluate_every=every if epoch else job["steps"],
        log_every=job["steps"],
        progress=False,
    )
    scores: dict[str, float] = {}
    for title, part, labels in parts.scored:
        x = np.asarray(jdml.sphere(jnp.asarray(result.embedder(part.images))))
        found = jdml.evaluate_retrieval(x, labels, ndcg_at=(2, 4, 8))
        scores |= {f"{title} {name}": found[name] for name in MEASURES}
    if epoch:
        scores |= {name: float(np.mean([found[name] for found in over_epoch])) for name in EPOCH}
    proxies = result.state.params.get("proxies")
    if proxies is not None:
        x = result.embedder(train.images)
        if proxies.shape[1] > 1:
            scores["proxies together"] = metrics.proxy_spread(proxies).together
        for kind in ("assignment", "nearest"):
            scores[f"proxy distance, {kind}"] = metrics.proxy_distance(
                proxies, jnp.asarray(x), train.labels, kind=kind
            )
    return scores


def measure(proxies: jax.Array, embeddings: np.ndarray, train: data.Dataset) -> dict[str, float]:
    """The proxies' distance from the training data by every reading, and their spread over the modes of classes."""
    x = jnp.asarray(embeddings)
    found = {
        f"epoch: {kind}": metrics.proxy_distance(proxies, x, train.labels, kind=kind)
        for kind in ("assignment", "nearest", "represented")
    }
    modes = train.views["letter" if "letter" in train.views else "digit"]
    spread = metrics.proxy_spread(proxies, x, train.labels, modes)
    return {
        **found,
        "epoch: together": spread.together,
        "epoch: covered": float(spread.covered or 0.0),
    }
