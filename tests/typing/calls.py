"""Calls of losses and of `fit` as mypy reads them, for `make types`.

A `type: ignore` is the assertion that mypy refuses the call for this reason: with `warn_unused_ignores` mypy fails if
it accepts the call.
"""

# Strict settings of a user's mypy.
# mypy: disallow-any-generics, disallow-subclassing-any, disallow-untyped-calls, disallow-untyped-decorators
# mypy: extra-checks, warn-return-any

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jdml
from jdml.data import ClassBatchSampler, Dataset
from jdml.mining import easy_positive, semi_hard_negative
from jdml.training import EMA, Embedder, Evaluation, RunConfig, Stop, TrainState, every, fit

x, p = jnp.eye(4), jnp.eye(2, 4)
y = jnp.array([0, 0, 1, 1])
m = y == 0

jdml.triplet_loss(x, y, margin=0.1, where=m)
jdml.triplet_loss(x, y, mergin=0.1)  # type: ignore[call-arg]
jdml.triplet_loss(x, y, wher=m)  # type: ignore[call-arg]
jdml.triplet_loss(x, y, mine=3)  # type: ignore[arg-type]
jdml.triplet_loss(x, y, mine=easy_positive(), normalize=jdml.ball, anchor_block=64)
jdml.triplet_loss(
    x, y, mine=jdml.chain(easy_positive(), semi_hard_negative(0.1)), reduce_fn=jnp.sum
)
jdml.triplet_loss(x, y, anchor_block="large")  # type: ignore[arg-type]
jdml.losses.triplet_loss(x, y, references=x, reference_labels=y, margin=jnp.float32(0.1))
jdml.losses.triplet_loss(x, y, reference=x)  # type: ignore[call-arg]
jdml.losses.triplet_loss(x, y, x)  # type: ignore[call-arg]
jdml.info_nce_loss(x, references=x, axis_name="data")
jdml.margin_loss(x, y, beta="1.2")  # type: ignore[arg-type]
jdml.proxy_anchor_loss(x, y, p, class_block="auto", weights=jnp.ones(4))
jdml.proxy_anchor_loss(x, y, p, anchor_block="auto")  # type: ignore[call-arg]
jdml.proxy_anchor_loss(x, y)  # type: ignore[call-arg]
jdml.potential_field_loss(x, y, where=m)
jdml.potential_field_loss(x, y, class_block=3)  # type: ignore[call-arg]
jdml.nir_loss(x, y, shape="exponential")  # type: ignore[arg-type]
jdml.checked(jdml.sup_con_loss)(x, y, temperature=0.1, where=m)
jdml.checked(jdml.sup_con_loss)(x, y, temprature=0.1)  # type: ignore[call-arg]
jdml.matryoshka(jdml.arcface_loss, dims=(2, 4))(x, y, p, margin=0.3, where=m)
jdml.matryoshka(jdml.arcface_loss, dims=(2, 4))(x, y, p, mine=None)  # type: ignore[call-arg]
partial(jdml.circle_loss, gamma=64.0, key=None)(x, y)
partial(jdml.circle_loss, gama=64.0)  # type: ignore[call-arg]
jdml.nearest(x, x, k=1, exclude_self=True)
jdml.nearest(x, x, k=1, without_self=True)  # type: ignore[call-arg]
jdml.tripet_loss(x, y)  # type: ignore[attr-defined]
jdml.losses.tripet_loss(x, y)  # type: ignore[attr-defined]
jdml.trainig  # type: ignore[attr-defined]


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
