"""One run of the table: a network trained by a method, and retrieval where its loss lives."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdml
from experiments.omniglot.methods import Method
from jdml import data, optim, training
from jdml.ccp import AlternatingProjections

ROLES = {"model": 1.0, "beta": 1.0, "proxies": 100.0, "flow": 1.0}
"""Learning rates in units of the model's."""
CHOSEN_RATE = 10.0
"""Of proxies that begin as embeddings."""
CLIP = 5.0
"""Largest entry of any proxy's gradient: charges that almost touch need it, other losses hardly reach it."""
STRENGTH = 2e-4
"""Of the anchor between CCP's problems."""
EVALUATIONS = 8
NEVER = 10**6


class Parts(NamedTuple):
    """Images to train on, to choose the weights by, and to report."""

    train: data.Dataset
    validation: data.Dataset
    test: data.Dataset


def make_optimizer(method: Method, roles: Any, rate: float) -> optax.GradientTransformation:
    """Adam with a learning rate for each role; weights anchored where proxies are chosen."""

    def adam(role: str) -> optax.GradientTransformation:
        if role == "proxies":
            scale = CHOSEN_RATE if method.problems else ROLES[role]
            return optax.chain(optax.clip(CLIP), optax.adam(scale * rate))
        steps = optax.adam(ROLES[role] * rate)
        if role == "model" and method.problems:
            return optax.chain(optim.add_anchored_weights(STRENGTH), steps)
        return steps

    return optim.partition_by_role(
        {role: adam(role) for role in roles}, lambda params: {name: name for name in params}
    )


def make_hook(method: Method, model: Any, train: data.Dataset, pool: int, seed: int) -> Any:
    """CCP's problems, or a single one whose proxies begin in the same way."""
    if method.problems is None:
        return None
    return training.AlternatingProblems(
        model=model,
        train=train,
        pool_size=pool,
        monitor="MAP@R",
        machine=AlternatingProjections(
            patience=2 if method.problems > 1 else NEVER, run_patience=NEVER
        ),
        seed=seed,
    )


def retrieve(method: Method, embeddings: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Retrieval where the loss lives: on the sphere or in the ball."""
    x = np.asarray(method.normalize(jnp.asarray(embeddings)))
    return jdml.evaluate_retrieval(x, labels, recall_at=(1, 8))


def train(
    method: Method,
    model: Any,
    parts: Parts,
    sampler: Any,
    view: str,
    *,
    steps: int,
    rate: float,
    pool: int,
    seed: int,
) -> training.FitResult:
    """The network at its best validation, by MAP@R of a view of the labels."""
    objective = method.make(parts.train.num_classes)
    roles = ("model", *jax.eval_shape(objective.init, jax.random.key(0)))

    def evaluate(embedder: Any) -> dict[str, float]:
        labels = parts.validation.views[view]
        return {"MAP@R": retrieve(method, embedder(parts.validation.images), labels)["MAP@R"]}

    return training.fit(
        model,
        objective,
        make_optimizer(method, roles, rate),
        parts.train,
        sampler,
        steps=steps,
        seed=seed,
        evaluate=evaluate,
        evaluate_every=max(1, steps // EVALUATIONS),
        monitor="MAP@R",
        hook=make_hook(method, model, parts.train, pool, seed),
        log_every=steps,
        progress=False,
    )
