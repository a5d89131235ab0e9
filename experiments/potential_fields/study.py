"""What the studies of proxy and field losses share: tasks, recipes, and the run of one job.

Classes have many local centres, what several proxies per class are for: even and odd digits, scored on the digits, and
Omniglot's alphabets, scored on the letters of alphabets that were not trained on.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jdml
from experiments.eps_mnist import main as digits  # the same images, by parity
from experiments.smoke import NETWORK, small
from jdml import data, metrics, training
from jdml.recipes import Recipe, make_sampler
from jdml.recipes.base import Batch
from jdml.training import by_recipe

MULTI = small(15, 2)  # proxies per class, where a loss takes several
PROXY_RATE = 100.0  # the proxies' learning rate, in units of the model's
CLIP = 5.0  # largest entry of the proxies' gradient, for charges that almost touch
PFML = {"delta": 0.2, "alpha": 1.0, "proxies_per_class": MULTI}
CPML = {"delta": 0.2, "proxies_per_class": MULTI}
LOSSES: dict[str, tuple[str, dict[str, Any]]] = {
    "PFML": ("potential_field", PFML),
    "CPML": ("contrastive_potential", CPML),
    "CPML, mirrored": ("contrastive_potential", {**CPML, "repulsion": "mirrored"}),
    "CPML, decaying": ("contrastive_potential", {**CPML, "repulsion": "decaying", "alpha": 1.0}),
    "MPA": ("multi_proxy_anchor", {"proxies_per_class": MULTI}),
    "MPA-DW": ("multi_proxy_anchor_dw", {"proxies_per_class": MULTI}),
    "MPA-AP": ("multi_proxy_anchor_ap", {"proxies_per_class": MULTI}),
    "SoftTriple": ("soft_triple", {"proxies_per_class": MULTI}),
    "ProxyAnchor": ("proxy_anchor", {}),
    "ProxyNCA*": ("proxy_nca_margin", {}),
    "ProxyNCA": ("proxy_nca", {"scale": 9.0}),
    "triplet": ("triplet", {"margin": 0.2}),
    "MS": ("multi_similarity", {"beta": 40.0}),
}
"""Of each method the loss and its settings, with the number of proxies."""
MINERS = {
    "triplet": "random_positive+semi_hard_negative:margin=0.2",
    "MS": "multi_similarity",
}
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
    batch: Batch = 64
    network: str | None = small("eps", NETWORK)


DIGITS = ("seen digits", "unseen digits")
TASKS = {
    "digits": Task(small(300, 2), 16, 1e-3, DIGITS),
    "mnist": Task(500, 16, 1e-3, DIGITS),
    "omniglot": Task(1200, 128, 5e-4, ("letters", "alphabets"), (4, 40), small("small", NETWORK)),
}


class Parts(NamedTuple):
    """Images to train on; images to score on with the labels to score."""

    train: data.Dataset
    scored: tuple[tuple[str, data.Dataset, np.ndarray], ...]


@functools.cache
def load(name: str, data_dir: str | None, held_out: bool) -> Parts:
    """The data of a task: labelled by parity or alphabet, scored on digits or letters."""
    if name == "omniglot":
        train, test = (
            data.load(name, data_dir=data_dir, split=split, image_size=28)
            for split in ("train", "test")
        )
        if held_out:
            alphabets = np.random.default_rng(0).permutation(train.num_classes)[
                : train.num_classes // 5
            ]
            chosen = np.isin(train.labels, alphabets)
            test, train = train.select(chosen), train.select(~chosen)
            train = dataclasses.replace(
                train, labels=np.unique(train.labels, return_inverse=True)[1]
            )
        letters, alphabets = (test.views[view] for view in ("letter", "alphabet"))
        return Parts(train, (("letters", test, letters), ("alphabets", test, alphabets)))
    train, *scored = digits.load(name, data_dir, held_out)
    titled = zip(DIGITS, scored, strict=True)
    return Parts(train, tuple((title, part, part.views["digit"]) for title, part in titled))


def base_of(
    data: str, folder: str | None, steps: int | None, held_out: bool = False
) -> dict[str, Any]:
    """What the jobs of a study have in common, on clean labels."""
    return {
        "data": data,
        "data_dir": folder,
        "steps": steps or TASKS[data].steps,
        "held_out": held_out,
        "noise": 0.0,
        "proxy_rate": PROXY_RATE,
    }


def recipe_of(task: Task, method: str, settings: dict[str, Any], /, **own: Any) -> Recipe:
    """The recipe of a method on a task, with these settings of its loss."""
    settings = dict(settings)
    if method in FIELDS:
        # The paper's U: a force does not depend on how many charges there are.
        settings["reduce_fn"] = "sum"
    return Recipe(
        loss=LOSSES[method][0],
        proxies_per_class=settings.pop("proxies_per_class", None),
        settings=settings,
        miner=MINERS.get(method, "none"),
        network=task.network,
        dim=task.dim,
        batch=task.batch,
        rate=task.rate,
        **own,
    )


def run(job: dict[str, Any]) -> dict[str, float]:
    """Train one network, score its retrieval, and measure how far its proxies are from the training data."""
    parts = load(job["data"], job["data_dir"], job["held_out"])
    train, task = parts.train, TASKS[job["data"]]
    if job["noise"]:
        labels = data.corrupt_labels(train.labels, job["noise"], jax.random.key(job["seed"]))
        train = dataclasses.replace(train, labels=labels)
    recipe = recipe_of(
        task,
        job["method"],
        job["settings"],
        role_rates={"proxies": job["proxy_rate"]},
        max_proxy_entry=job.get("clip"),
    )
    sampler = make_sampler(recipe, train.labels, job["seed"])
    every = max(1, min(sampler.batches_per_epoch, job["steps"]) // POINTS)
    over_epoch: list[dict[str, float]] = []

    def evaluate(embedder: training.Embedder) -> dict[str, float]:
        if int(embedder.state.step) > job["steps"] - sampler.batches_per_epoch:
            proxies = embedder.state.params["proxies"]
            over_epoch.append(measure(proxies, embedder(train.images), train))
        return {}

    epoch = "epoch" in job
    result = by_recipe.train(
        recipe,
        train,
        sampler=sampler,
        steps=job["steps"],
        seed=job["seed"],
        evaluate=evaluate if epoch else None,
        evaluate_every=every if epoch else None,
        log_every=job["steps"],
        progress=False,
    )
    scores: dict[str, float] = {}
    for title, part, labels in parts.scored:
        x = np.asarray(jdml.sphere(jnp.asarray(result.embedder(part.images))))
        retrieval = jdml.evaluate_retrieval(x, labels, ndcg_at=(2, 4, 8))
        scores |= {f"{title} {name}": retrieval[name] for name in MEASURES}
    if epoch:
        scores |= {name: float(np.mean([point[name] for point in over_epoch])) for name in EPOCH}
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
    distances = {
        f"epoch: {kind}": metrics.proxy_distance(proxies, x, train.labels, kind=kind)
        for kind in ("assignment", "nearest", "represented")
    }
    modes = train.views["letter" if "letter" in train.views else "digit"]
    spread = metrics.proxy_spread(proxies, x, train.labels, modes)
    return {
        **distances,
        "epoch: together": spread.together,
        "epoch: covered": float(spread.covered or 0.0),
    }
