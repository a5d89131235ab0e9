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
from experiments.omniglot.methods import BASES
from experiments.smoke import NETWORK, small
from jdml import data, metrics
from jdml.recipes import BatchConfig, LossConfig, NetworkConfig, OptimizerConfig, Recipe
from jdml.training import Embedder, Evaluation, train_recipe

PROXY_RATE = 100.0  # the proxies' learning rate, in units of the model's
CLIP = 5.0  # largest entry of the proxies' gradient, for charges that almost touch


def settings_of(loss: LossConfig) -> dict[str, Any]:
    """The settings of a loss as jobs have them: with the number of proxies, without how terms are reduced."""
    own = {name: value for name, value in loss.settings.items() if name != "reduce_fn"}
    number = loss.proxies.per_class
    return own if number is None else {**own, "proxies_per_class": number}


LOSSES = {name: (recipe.loss.name, settings_of(recipe.loss)) for name, recipe in BASES.items()}
"""Of each method the loss and its settings, with the number of proxies."""
CPML, SETTINGS = LOSSES["CPML"]
LOSSES["CPML, mirrored"] = (CPML, {**SETTINGS, "repulsion": "mirrored"})
LOSSES["CPML, decaying"] = (CPML, {**SETTINGS, "repulsion": "decaying", "alpha": 1.0})
MEASURES = ("R@1", "nDCG@2", "nDCG@4", "nDCG@8", "MAP@R")
FIELDS = ("PFML", "CPML", "CPML, mirrored", "CPML, decaying")
POINTS = 4
"""How often proxies are measured in the last epoch."""
EPOCH = [f"epoch: {m}" for m in ("assignment", "nearest", "represented", "together", "covered")]


class Task(NamedTuple):
    """What differs between the data sets."""

    steps: int
    dim: int
    rate: float
    views: tuple[str, str]
    batch: BatchConfig = BatchConfig(64)
    network: str | None = small("eps", NETWORK)


DIGITS = ("seen digits", "unseen digits")
OF_ALPHABETS = BatchConfig(classes=4, samples_per_class=40)
TASKS = {
    "digits": Task(small(300, 2), 16, 1e-3, DIGITS),
    "mnist": Task(500, 16, 1e-3, DIGITS),
    "omniglot": Task(
        1200, 128, 5e-4, ("letters", "alphabets"), OF_ALPHABETS, small("small", NETWORK)
    ),
}


class Parts(NamedTuple):
    """Images to train on; images to score on with the labels to score."""

    train: data.Dataset
    scored: tuple[tuple[str, data.Dataset, np.ndarray], ...]


@functools.cache
def load(name: str, data_dir: str | None, held_out: bool) -> Parts:
    """The data of a task: labelled by parity or alphabet, scored on digits or letters."""
    if name != "omniglot":
        train, *scored = digits.load(name, data_dir, held_out)
        titled = zip(DIGITS, scored, strict=True)
        return Parts(train, tuple((title, part, part.views["digit"]) for title, part in titled))
    whole = functools.partial(data.load, name, data_dir=data_dir, image_size=28)
    train, test = (whole(split=split) for split in ("train", "test"))
    if held_out:
        alphabets = np.random.default_rng(0).permutation(train.num_classes)
        chosen = np.isin(train.labels, alphabets[: train.num_classes // 5])
        test, train = train.select(chosen), train.select(~chosen)
        own = np.unique(train.labels, return_inverse=True)[1]
        train = dataclasses.replace(train, labels=own)
    of_views = ((title, test, test.views[title[:-1]]) for title in TASKS[name].views)
    return Parts(train, tuple(of_views))


def base_of(
    data: str, folder: str | None, steps: int | None, held_out: bool = False
) -> dict[str, Any]:
    """What the jobs of a study have in common, on clean labels."""
    places = {"data": data, "data_dir": folder, "held_out": held_out}
    return {
        **places,
        "steps": steps or TASKS[data].steps,
        "noise": 0.0,
        "proxy_rate": PROXY_RATE,
    }


def recipe_of(task: Task, method: str, settings: dict[str, Any]) -> Recipe:
    """The recipe of a method on a task, with these settings of its loss and this number of proxies."""
    # The paper's U: a force does not depend on how many charges there are.
    settings = {**settings, **({"reduce_fn": "sum"} if method in FIELDS else {})}
    number = settings.pop("proxies_per_class", None)
    miner = BASES[method].loss.miner if method in BASES else "none"
    loss = LossConfig(LOSSES[method][0], settings, miner=miner)
    return Recipe(
        loss=loss.replace(proxies={"per_class": number}),
        network=NetworkConfig(task.network, task.dim),
        batch=task.batch,
        optimizer=OptimizerConfig(learning_rate=task.rate),
    )


def recipe_of_job(job: dict[str, Any]) -> Recipe:
    """The recipe of a job, with the rate of its proxies and the largest entry of their gradient."""
    return recipe_of(TASKS[job["data"]], job["method"], job["settings"]).replace(
        loss={"proxies": {"clip_value": job.get("clip")}},
        batch={"steps": job["steps"]},
        optimizer={"lr_multipliers": {"proxies": job["proxy_rate"]}},
    )


def run(job: dict[str, Any]) -> dict[str, float]:
    """Train one network, score its retrieval, and measure how far its proxies are from the training data."""
    train, scored = load(job["data"], job["data_dir"], job["held_out"])
    if job["noise"]:
        labels = data.corrupt_labels(train.labels, job["noise"], jax.random.key(job["seed"]))
        train = dataclasses.replace(train, labels=labels)
    recipe, steps = recipe_of_job(job), job["steps"]
    sampler = recipe.batch.build(train.labels, job["seed"])
    over_epoch: list[dict[str, float]] = []

    def evaluate(embedder: Embedder) -> dict[str, float]:
        if int(embedder.state.step) > steps - sampler.batches_per_epoch:
            proxies = embedder.state.params["proxies"]
            over_epoch.append(measure(proxies, embedder(train.images), train))
        return {}

    every = max(1, min(sampler.batches_per_epoch, steps) // POINTS)
    result = train_recipe.train(
        recipe,
        train,
        sampler=sampler,
        seed=job["seed"],
        evaluation=Evaluation(evaluate, every) if "epoch" in job else None,
        progress=False,
    )
    scores: dict[str, float] = {}
    for title, part, labels in scored:
        x = np.asarray(jdml.sphere(jnp.asarray(result.embedder(part.images))))
        retrieval = jdml.evaluate_retrieval(x, labels, ndcg_at=(2, 4, 8))
        scores |= {f"{title} {name}": retrieval[name] for name in MEASURES}
    if "epoch" in job:
        scores |= {name: float(np.mean([point[name] for point in over_epoch])) for name in EPOCH}
    proxies = result.state.params.get("proxies")
    if proxies is not None:
        if proxies.shape[1] > 1:
            scores["proxies together"] = metrics.proxy_spread(proxies).together
        x = jnp.asarray(result.embedder(train.images))
        for kind in ("assignment", "nearest"):
            found = metrics.proxy_distance(proxies, x, train.labels, kind=kind)
            scores[f"proxy distance, {kind}"] = found
    return scores


def measure(proxies: jax.Array, embeddings: np.ndarray, train: data.Dataset) -> dict[str, float]:
    """The proxies' distance from the training data by every reading, and their spread over the modes of classes."""
    x = jnp.asarray(embeddings)
    modes = train.views["letter" if "letter" in train.views else "digit"]
    spread = metrics.proxy_spread(proxies, x, train.labels, modes)
    kinds = ("assignment", "nearest", "represented")
    distances = [metrics.proxy_distance(proxies, x, train.labels, kind=kind) for kind in kinds]
    found = (*distances, spread.together, float(spread.covered or 0.0))
    return dict(zip(EPOCH, found, strict=True))
