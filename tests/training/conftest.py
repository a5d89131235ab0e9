"""A tiny model, objective, data set and sampler for quick runs of the training loop."""

import dataclasses
import functools
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jdml import data
from jdml.objectives import Objective
from jdml.training import Devices, Evaluation, RunConfig, fit


class Net(nn.Module):
    """A network with batch norm, for statistics, and dropout, for randomness."""

    @nn.compact
    def __call__(self, images, *, train=False):
        x = images.reshape(len(images), -1)
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(5)(x))
        return nn.Dense(2)(nn.Dropout(0.2, deterministic=not train)(nn.relu(x)))


class Two(nn.Module):
    """Two layers and a head, without statistics."""

    @nn.compact
    def __call__(self, images, *, train=False):
        x = images.reshape(len(images), -1)
        for name in ("block0", "block1"):
            x = nn.relu(nn.Dense(5, name=name)(x))
        return nn.Dense(2, name="head")(x)


class Killed(BaseException):
    """Simulates a signal: no code catches it."""


class Batches(data.RandomBatchSampler):
    """Batches of eight of forty rows. The one of a step may raise."""

    def __init__(self, die_at=None):
        super().__init__(40, 8, seed=1)
        self.die_at = die_at

    def __next__(self):
        if self.step + 1 == self.die_at:
            raise Killed
        return super().__next__()


class Rows(Batches):
    """A sampler of the given batches in turn."""

    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def batch_at(self, step):
        return self.batches[step]


class OnDisk:
    """Images without a known size: batches are gathered on the host."""

    def __init__(self, images):
        self.images, self.shape, self.dtype = images, images.shape, images.dtype

    def __len__(self):
        return len(self.images)

    def __getitem__(self, rows):
        return self.images[rows]


def pull(params, embeddings, labels, *, key=None, where=None, state=None):
    """Pull embeddings to their class's proxy and away from a running mean."""
    weights = jnp.ones(len(labels)) if where is None else where.astype(jnp.float32)
    gaps = jnp.square(embeddings - params["proxies"][labels]).sum(1)
    noise = jax.random.normal(key) if key is not None else 0.0
    value = jnp.sum(weights * gaps) / jnp.maximum(weights.sum(), 1.0)
    return value * (1 + 0.01 * noise) + 0.01 * jnp.sum(state), {"gap": gaps.mean()}


OBJECTIVE = Objective(
    init=lambda key: {"proxies": jax.random.normal(key, (4, 2))},
    loss=pull,
    init_state=lambda: jnp.zeros(2),
    update_state=lambda state, embeddings, labels, where=None: 0.9 * state + embeddings.mean(0),
)
KINDS = {"run": RunConfig, "evaluation": Evaluation, "devices": Devices}


def fit_parts(toy, **settings):
    """Train with the toy's parts in place of those that are not given; fields of `RunConfig` and others may be flat."""
    for name, kind in KINDS.items():
        names = {field.name for field in dataclasses.fields(kind)} & settings.keys()
        own = {field: settings.pop(field) for field in names}
        if own:
            settings.setdefault(name, kind(**own))
    parts = {
        "model": toy.model,
        "objective": toy.objective,
        "optimizer": toy.optimizer,
        "train": toy.data,
        "sampler": toy.batches(),
        "progress": False,
    }
    return fit(**(parts | settings))


@pytest.fixture(scope="session")
def toy():
    rng = np.random.default_rng(0)
    labels = np.arange(40, dtype=np.int32) % 4
    images = rng.integers(0, 256, (40, 3, 3, 1), dtype=np.uint8)
    toy = SimpleNamespace(
        model=Net(),
        objective=OBJECTIVE,
        optimizer=optax.adam(1e-2),
        data=SimpleNamespace(images=images, labels=labels),
        batches=Batches,
        Killed=Killed,
        rows=Rows,
        on_disk=OnDisk,
        spread=lambda embed: {"spread": float(embed(images).std())},
    )
    toy.fit = functools.partial(fit_parts, toy)
    return toy


@pytest.fixture(scope="session")
def pictures():
    rng = np.random.default_rng(0)
    labels = np.arange(24) % 3
    images = rng.integers(0, 256, (24, 16, 16, 3), dtype=np.uint8)
    return data.Dataset("pictures", images, labels.astype(np.int32))


@pytest.fixture
def noise_files(tmp_path):
    """Write forty image files of noise."""
    Image = pytest.importorskip("PIL.Image")
    noise = np.random.default_rng(0)
    paths = [tmp_path / f"{i}.png" for i in range(40)]
    for path in paths:
        Image.fromarray(noise.integers(0, 256, (30, 40, 3), np.uint8)).save(path)
    return paths


@pytest.fixture(scope="session")
def two():
    return Two()


@pytest.fixture(scope="session")
def fit_toy(toy):
    """Train the toy for three steps and evaluate at the end; settings override the defaults."""
    usual = {"steps": 3, "function": toy.spread, "every": 3}
    return lambda folder=None, **settings: toy.fit(**{"folder": folder, **usual, **settings})
