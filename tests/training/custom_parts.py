"""Custom parts of a run, imported by the tests and by another process."""

import functools

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax

import jdml
from jdml import data, objectives, training
from jdml.recipes import Recipe

IMAGES = np.random.default_rng(0).random((12, 4, 4, 1)).astype(np.float32)
DATA = data.Dataset("twelve", IMAGES, np.arange(12) % 3)
RECIPE = Recipe().replace(
    network={"dim": 3},
    batch={"size": 6},
    optimizer={"lr_multipliers": {"proxies": 10.0, "beta": 2.0}},
)
CONFIG = {"note": {"a": 1, "b": 2, "c": 3}}
TAGS = ("one", "two", "three")


class Net(nn.Module):
    """One layer."""

    dim: int = 3

    @nn.compact
    def __call__(self, images, *, train=False):
        return nn.Dense(self.dim)(images.reshape(len(images), -1))


def halved(images):
    return jnp.asarray(images) / 2


def thirds(images):
    return jnp.asarray(images) / 3


def triplet(embeddings, labels, *, tags, **options):
    return jdml.triplet_loss(embeddings, labels, **options)


def contrastive(embeddings, labels, *, tags, **options):
    return jdml.contrastive_loss(embeddings, labels, **options)


def objective_of(loss, *tags):
    return objectives.pair(functools.partial(loss, tags=frozenset(tags)))


def run(folder, steps, recipe=RECIPE, train=DATA, **changes):
    """Train, or go on with the run of a folder."""
    objective = objective_of(triplet, *TAGS)
    config = training.RunConfig(folder, allow_more_steps=True, config=changes.pop("config", CONFIG))
    parts = {"model": Net(), "objective": objective, "preprocess": halved}
    parts |= {"optimizer": optax.sgd(0.1), "progress": False, "run": config}
    return training.train(recipe.replace(batch={"steps": steps}), train, **{**parts, **changes})
