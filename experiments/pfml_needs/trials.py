"""One run of the study: proxies among fixed points, or a network that is scored on held-out classes."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdml
from experiments.omniglot.methods import BASES
from experiments.smoke import NETWORK, small
from experiments.study import batch_of
from jdml import data, metrics
from jdml.recipes import LossConfig, ProxyConfig, Recipe
from jdml.training import FitResult, train_recipe

HELD_OUT_ALPHABETS = small(6, 1)
DIGITS = 390
"""Images that train: as many for each seed."""
CLIP = 5.0
"""The largest entry of a proxy's gradient, in units of the sum U, as in the recipe."""
FIELDS = ("PFML", "CPML")


class Task(NamedTuple):
    """A task's steps, dimension, learning rate of the model, and batch: random rows, or classes and samples of each."""

    steps: int
    dim: int
    rate: float
    batch: int | tuple[int, int]


POINT_STEPS = small(300, 3)
TASKS = {
    "points": Task(POINT_STEPS, 16, 1e-3, 64),
    "digits": Task(small(300, 2), 16, 1e-3, 64),
    "alphabets": Task(600, 128, 5e-4, (4, 40)),
    "letters": Task(1200, 128, 5e-4, 100),
}


class Parts(NamedTuple):
    """The training rows, the scored rows with their labels, and which of these are of held-out classes."""

    train: data.Dataset
    modes: np.ndarray
    scored: data.Dataset
    labels: np.ndarray
    held_out: np.ndarray


@functools.cache
def load(task: str, data_dir: str | None, seed: int, test: bool) -> Parts:
    """Return the data of a task; with ``test`` the letters of the test alphabets are scored, once all is settled."""
    if task == "digits":
        whole = data.load("digits")
        whole = whole.select(whole.views["digit"] <= 5)
        digits = whole.views["digit"]
        unseen = digits // 2 == seed % 3
        order = np.random.default_rng(seed).permutation(len(whole))
        scored = unseen | (order < len(whole) // 6)
        selected = order[~scored[order]][:DIGITS]
        train, rest = whole.select(selected), whole.select(scored)
        return Parts(
            train.relabel("parity"), digits[selected], rest, digits[scored], unseen[scored]
        )
    train = data.load("omniglot", data_dir=data_dir, image_size=28)
    if test:
        scored = data.load("omniglot", data_dir=data_dir, split="test", image_size=28)
    else:
        alphabets = np.random.default_rng(seed).permutation(train.num_classes)
        out = np.isin(train.labels, alphabets[:HELD_OUT_ALPHABETS])
        train, scored = train.select(~out), train.select(out)
    view = "alphabet" if task == "alphabets" else "letter"
    labels = np.unique(train.views[view], return_inverse=True)[1].astype(np.int32)
    own, letters = dataclasses.replace(train, labels=labels), scored.views["letter"]
    return Parts(own, train.views["letter"], scored, letters, np.ones(len(letters), bool))


def recipe_of(job: dict[str, Any]) -> Recipe:
    """Return the recipe of a job; fields without proxies are those of the samples alone, whose force is U."""
    task, base = TASKS[job["task"]], BASES[job["method"]].loss
    delta, alpha = job["settings"].get("delta", 0.2), job["settings"].get("alpha", 4.0)
    total = {"reduce_fn": "sum"} if job["method"] in FIELDS else {}
    proxies = ProxyConfig(
        per_class=job["proxies"] if base.kind == "proxy" else None,
        init="samples" if job["start"] == "samples" and job["proxies"] else "random",
        clip_value=CLIP if job["clip"] == "entry" else None,
        # The force of one pair at δ, in units of U.
        clip_norm=alpha / delta ** (alpha + 1) if job["clip"] == "norm" else None,
        on_sphere=job["sphere"],
    )
    loss = LossConfig(base.name, {**job["settings"], **total}, miner=base.miner, proxies=proxies)
    network = small("eps" if job["task"] == "digits" else "small", NETWORK)
    rates = {"learning_rate": task.rate, "lr_multipliers": {"proxies": job["proxy_rate"]}}
    return Recipe(loss=loss).replace(
        network={"name": network, "dim": job.get("dim", task.dim)},
        batch={**batch_of(job["batch"] or task.batch), "steps": job["steps"] or task.steps},
        optimizer=rates,
    )


def run(job: dict[str, Any], data_dir: str | None = None) -> dict[str, float]:
    """Train a network, and score it on unseen classes; a run that diverges scores 0. Or do a job of fixed points."""
    if job["task"] == "points":
        return settle(job)
    parts = load(job["task"], data_dir, job["seed"], job["test"])
    train = parts.train
    if job["noise"]:
        noisy = data.corrupt_labels(train.labels, job["noise"], jax.random.key(job["seed"]))
        train = dataclasses.replace(train, labels=noisy)
    try:
        result = train_recipe.train(recipe_of(job), train, seed=job["seed"], progress=False)
    except FloatingPointError:
        return {"diverged": 1.0, "held out R@1": 0.0, "held out MAP@R": 0.0}
    proxies, scores = result.state.params.get("proxies"), score(result, parts)
    if proxies is None:
        return scores
    # By the right labels.
    x = jnp.asarray(result.embedder(parts.train.images))
    delta = job["settings"].get("delta", 0.2)
    return {**scores, **spread_of(proxies, x, parts.train.labels, parts.modes, delta)}


def score(result: FitResult, parts: Parts) -> dict[str, float]:
    """Return retrieval among all that is scored, by held-out classes and by the others."""
    x = np.asarray(jdml.sphere(jnp.asarray(result.embedder(parts.scored.images))))
    per_query = jdml.evaluate_retrieval(x, parts.labels, per_query=True)
    scores = {}
    for title, rows in (("held out", parts.held_out), ("seen", ~parts.held_out)):
        if rows.any():
            for name in ("R@1", "MAP@R"):
                scores[f"{title} {name}"] = float(np.nanmean(np.asarray(per_query[name])[rows]))
    return scores


def spread_of(
    proxies: jax.Array, x: jax.Array, labels: np.ndarray, modes: np.ndarray, delta: float
) -> dict[str, float]:
    """Return how proxies lie among the points and the modes of their classes."""
    spread = metrics.proxy_spread(proxies, x, labels, modes, delta=delta)
    return {
        "together": spread.together,
        "covered": float(spread.covered or 0.0),
        "distance": metrics.proxy_distance(proxies, x, labels),
        "norm": float(np.linalg.norm(np.asarray(proxies), axis=-1).mean()),
    }


CLASSES, MODES, SAMPLES, WIDTH = 4, 5, 40, 0.05
"""Fixed points: classes of tight modes, so many samples in each, at this distance from the mode's middle."""


def settle(job: dict[str, Any]) -> dict[str, float]:
    """Let proxies alone move, in the field of fixed points with five modes a class; measure what they cover."""
    dim, number, recipe = job["dim"], job["proxies"], recipe_of(job)
    rng = np.random.default_rng(job["seed"])
    middles = rng.normal(size=(CLASSES, MODES, 1, dim))
    middles /= np.linalg.norm(middles, axis=-1, keepdims=True)
    away = rng.normal(size=(CLASSES, MODES, SAMPLES, dim))
    away *= WIDTH / np.linalg.norm(away, axis=-1, keepdims=True)
    x = jdml.sphere(jnp.asarray((middles + away).reshape(-1, dim), jnp.float32))
    labels = np.repeat(np.arange(CLASSES), MODES * SAMPLES)
    modes = np.tile(np.repeat(np.arange(MODES), SAMPLES), CLASSES)
    key = jax.random.key(job["seed"])
    objective = recipe.loss.build(CLASSES, recipe.network.dim, dtype=recipe.network.dtype)
    optimizer = train_recipe.make_optimizer(recipe, ("proxies",), 1)
    proxies = objective.init(key)["proxies"]
    if job["start"] == "samples":
        rows = [rng.choice(np.flatnonzero(labels == c), number, False) for c in range(CLASSES)]
        proxies = x[np.array(rows)]

    def loss(params: Any, points: jax.Array, owners: jax.Array) -> jax.Array:
        return objective.loss(params, points, owners)[0]

    @jax.jit
    def settled(proxies: jax.Array, key: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        def step(carried: Any, key: jax.Array) -> tuple[Any, None]:
            params, state = carried
            rows = jax.random.choice(key, len(x), (recipe.batch.rows,), replace=False)
            slope = jax.grad(loss)(params, x[rows], y[rows])
            updates, state = optimizer.update(slope, state, params)
            return (optax.apply_updates(params, updates), state), None

        params = {"model": {}, "proxies": proxies}
        begin = (params, optimizer.init(params))
        return jax.lax.scan(step, begin, jax.random.split(key, POINT_STEPS))[0][0]["proxies"]

    at_rest = settled(jnp.asarray(proxies), jax.random.fold_in(key, 1), x, jnp.asarray(labels))
    return spread_of(at_rest, x, labels, modes, job["settings"]["delta"])
