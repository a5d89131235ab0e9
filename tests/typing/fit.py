"""Calls of `fit` as mypy reads them, for `make types`.

A `type: ignore` is the assertion that mypy refuses the call for this reason: with `warn_unused_ignores` mypy fails if
it accepts the call.
"""

# Strict settings of a user's mypy.
# mypy: disallow-any-generics, disallow-subclassing-any, disallow-untyped-calls, disallow-untyped-decorators
# mypy: extra-checks, warn-return-any

from collections.abc import Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from flax import nnx

import jdml
from jdml.data import ClassBatchSampler, Dataset
from jdml.training import EMA, Embedder, Evaluation, RunConfig, Stop, TrainState, every, fit


class Network(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        return x


class Other(nnx.Module):
    def __call__(self, x: jax.Array) -> jax.Array:
        return x


class Features:
    images = {"image": np.zeros((4, 2)), "text": np.zeros((4, 3))}
    labels = np.zeros(4, np.int32)


def rows() -> Iterator[np.ndarray]:
    while True:
        yield np.arange(4)


def evaluate(embedder: Embedder) -> Mapping[str, float]:
    return {"score": float(embedder(np.zeros((4, 2))).sum())}


def show(step: int, state: TrainState, metrics: Mapping[str, float]) -> Stop | None:
    return Stop("soon") if metrics["loss"] < step else None


def make(optimizer: Any, train: Dataset) -> None:
    objective = jdml.objectives.pair(jdml.triplet_loss, margin=0.1)
    batches = ClassBatchSampler(train.labels, 2, 2)
    result = fit(Network(), objective, optimizer, train, batches, steps=3, evaluation=evaluate)
    result.best_params["model"]
    result.best_parameters  # type: ignore[attr-defined]
    config = RunConfig("runs/features", normalize=jdml.sphere)
    fit(Other(), objective, optimizer, Features(), rows(), steps=3, run=config)
    jdml.training.fit(Network(), objective, optimizer, train, batches, step=3)  # type: ignore[call-arg]
    fit(Network(), jdml.triplet_loss, optimizer, train, batches, steps=3)  # type: ignore[arg-type]
    fit("cub", objective, optimizer, train, batches, steps=3)  # type: ignore[arg-type]
    fit(Network(), objective, optimizer, (train.images, train.labels), batches, steps=3)  # type: ignore[arg-type]
    fit(Network(), objective, optimizer, train, 32, steps=3)  # type: ignore[arg-type]
    fit(Network(), objective, optimizer, train, batches, steps=3, devices=8)  # type: ignore[arg-type]
    called = EMA(0.9), every(3, show), show
    fit(Network(), objective, optimizer, train, batches, steps=3, callbacks=called)
    fit(Network(), objective, optimizer, train, batches, steps=3, callbacks=[evaluate])  # type: ignore[list-item]
    Evaluation(evaluate, monitor=evaluate)  # type: ignore[arg-type]
