"""The train step, the samples' ids that it hands on, micro-batches, and `embed`."""

from types import SimpleNamespace

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jdml
from jdml import objectives
from jdml.data import Dataset, RandomBatchSampler
from jdml.models import SmallConvNet
from jdml.objectives import pair, with_memory
from jdml.training import (
    Devices,
    RunConfig,
    create_state,
    embed,
    fit,
    make_train_step,
    uint8_to_float,
)


def start(toy, *, objective=None, optimizer=None, images=None):
    parts = toy.model, objective or toy.objective, optimizer or toy.optimizer
    return create_state(*parts, toy.data.images if images is None else images, seed=1)


def test_step_equals_a_gradient_step_by_hand(toy):
    """One SGD step equals the same formula written out. A donated state is deleted."""
    optimizer = optax.sgd(0.1)
    state = start(toy, optimizer=optimizer)
    images, labels = toy.data.images[:8], toy.data.labels[:8]
    after, metrics = make_train_step(toy.model, toy.objective, optimizer)(state, images, labels)
    dropout_key, loss_key = jax.random.split(jax.random.fold_in(state.key, 0))

    def loss(params):
        embeddings, updates = toy.model.apply(
            {"params": params["model"], "batch_stats": state.batch_stats},
            images.astype(np.float32) / 255,
            train=True,
            mutable=["batch_stats"],
            rngs={"dropout": dropout_key},
        )
        value, _ = toy.objective.loss(
            {"proxies": params["proxies"]}, embeddings, labels, key=loss_key, state=jnp.zeros(2)
        )
        return value, (embeddings, updates["batch_stats"])

    (value, (embeddings, stats)), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(
        state.params
    )
    expected = jax.tree.map(lambda p, g: p - 0.1 * g, state.params, grads)
    chex.assert_trees_all_close(after.params, expected, rtol=1e-4, atol=1e-6)
    chex.assert_trees_all_close(after.batch_stats, stats, rtol=1e-5)
    np.testing.assert_allclose(after.objective_state, embeddings.mean(0), rtol=1e-4)
    np.testing.assert_allclose(metrics["loss"], value, rtol=1e-5)
    norm = np.sqrt(sum(np.sum(np.square(g)) for g in jax.tree.leaves(grads)))
    np.testing.assert_allclose(metrics["grad_norm"], norm, rtol=1e-4)
    assert after.step == 1
    assert set(metrics) == {"loss", "grad_norm", "gap"}
    make_train_step(toy.model, toy.objective, optimizer, donate=True)(state, images, labels)
    assert state.params["proxies"].is_deleted()


def test_wrong_arguments_are_refused(toy):
    images, state = toy.data.images, start(toy)
    parts = toy.model, state.params["model"], state.batch_stats
    for call, error, name in (
        (lambda: start(toy, images=np.zeros((3, 3, 8, 8))), ValueError, "sample_images"),
        (lambda: uint8_to_float(jnp.zeros(3, jnp.int32)), TypeError, "images"),
        (lambda: embed(*parts, images[:0]), ValueError, "images"),
        (lambda: embed(*parts, images, batch_size=0), ValueError, "batch_size"),
    ):
        with pytest.raises(error, match=rf"\b{name}\b"):
            call()


def test_batch_size_of_embed_depends_on_the_image_size():
    sizes = []

    def apply(params, images):
        sizes.append(len(images))
        return images[:, 0, :2, 0]

    model = (lambda key, images: {}, apply)
    for side, number in ((28, 600), (224, 40), (2000, 2)):
        embed(model, {}, {}, np.zeros((number, side, side, 1), np.uint8))
    assert sizes == [512, 32, 1]


# The ids of a batch's samples: a memory excludes their older copies

RNG = np.random.default_rng(0)
DATA = SimpleNamespace(
    images=RNG.normal(size=(30, 6)).astype(np.float32), labels=np.arange(30, dtype=np.int32) % 3
)
MODEL = (lambda key, x: {"w": jax.random.normal(key, (6, 2))}, lambda params, x: x @ params["w"])
OBJECTIVE = with_memory(pair(jdml.contrastive_loss, mine=jdml.mining.easy_positive()), 100, 2)


@pytest.mark.slow  # trains on the device and on the host
def test_memory_has_the_rows_of_the_data_set(toy):
    """On the device and on the host: older copies of a row are excluded by it, empty slots are not stored."""
    rows = np.arange(30)
    batches = [rows, rows, np.where(rows % 5 == 1, -1, rows)]
    expected = np.concatenate([of_batch[of_batch >= 0] for of_batch in batches])
    losses = []
    for images in (DATA.images, toy.on_disk(DATA.images)):
        train = SimpleNamespace(images=images, labels=DATA.labels)
        parts = MODEL, OBJECTIVE, optax.sgd(0.0), train, iter(batches)
        result = fit(*parts, steps=3, run=RunConfig(log_every=1), progress=False)
        memory = result.state.objective_state.memory
        np.testing.assert_array_equal(memory.ids[: len(expected)], expected)
        np.testing.assert_array_equal(memory.labels[: len(expected)], DATA.labels[expected])
        assert (memory.ids[len(expected) :] == -1).all()
        losses.append([record["memory_loss"] for record in result.history])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    assert losses[0][1] == pytest.approx(losses[0][0], rel=1e-5)


# Micro-batches: the gradient of the whole batch with the activations of a part of it.

IMAGES = np.random.default_rng(0).integers(0, 256, (24, 4, 4, 1), np.uint8)
LABELS = np.arange(24) % 6


class Net(nn.Module):
    """Embeddings of length 1; a row of zeros would give NaN."""

    dropout: float = 0.0

    @nn.compact
    def __call__(self, images, *, train=False):
        x = nn.tanh(nn.Dense(16)(images.reshape(len(images), -1)))
        x = nn.Dense(8)(nn.Dropout(self.dropout, deterministic=not train)(x))
        return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def gradient(model, objective, **settings):
    """Return the difference of parameters after a step of gradient descent at rate 1, the state and the metrics."""
    parts = model, objective, optax.sgd(1.0)
    state = create_state(*parts, IMAGES, seed=0)
    after, metrics = make_train_step(*parts, **settings)(state, IMAGES, LABELS)
    return jax.tree.map(jnp.subtract, state.params, after.params), after, metrics


NESTED = jdml.matryoshka(jdml.multi_similarity_loss, (4, 8))
OBJECTIVES = {
    "XBM": objectives.with_memory(objectives.pair(NESTED, anchor_block=5), 40, 8),
    "proxies": objectives.proxy(jdml.proxy_anchor_loss, 6, 8),
}


@pytest.mark.slow  # compiles each in both ways
@pytest.mark.parametrize("name", OBJECTIVES)
def test_micro_batches_give_the_gradient_of_the_whole_batch(name):
    """Micro-batches of 7 of 24 rows; the last one is padded with existing rows."""
    plain, state, metrics = gradient(Net(), OBJECTIVES[name])
    actual, other, measured = gradient(Net(), OBJECTIVES[name], micro_batch=7)
    error = optax.tree.norm(jax.tree.map(jnp.subtract, actual, plain)) / optax.tree.norm(plain)
    assert error <= 1e-6
    chex.assert_trees_all_close(other.objective_state, state.objective_state, rtol=1e-5)
    chex.assert_trees_all_close(measured, metrics, rtol=1e-5)


def test_dropout_of_micro_batches_is_repeated_in_the_backward_pass():
    """Equals the micro-batches by hand, each with its own key."""
    model, objective = Net(0.5), OBJECTIVES["proxies"]
    actual, state, _ = gradient(model, objective, micro_batch=8)
    key = jax.random.split(jax.random.fold_in(state.key, 0))[0]

    def loss(params):
        parts = []
        for turn in range(3):
            images = jnp.asarray(IMAGES[turn::3]) / 255.0
            rngs = {"dropout": jax.random.fold_in(key, turn)}
            parts.append(model.apply({"params": params["model"]}, images, train=True, rngs=rngs))
        whole = jnp.stack(parts, 1).reshape(24, 8)
        return objective.loss({"proxies": params["proxies"]}, whole, jnp.asarray(LABELS))[0]

    start = create_state(model, objective, optax.sgd(1.0), IMAGES, seed=0)
    expected = jax.jit(jax.grad(loss))(start.params)
    chex.assert_trees_all_close(actual, expected, rtol=1e-4, atol=1e-6)


def test_micro_batches_refuse_batch_norm_that_is_not_frozen():
    def begin(model, micro_batch):
        parts = OBJECTIVES["proxies"], optax.sgd(1.0), Dataset("noise", IMAGES, LABELS)
        settings = {"steps": 0, "progress": False, "devices": Devices(micro_batch=micro_batch)}
        fit(model, *parts, RandomBatchSampler(24, 8), **settings)

    begin(SmallConvNet(8, (4,), freeze_batch_norm=True), 4)
    for model, size in ((SmallConvNet(8, (4,)), 4), (Net(), 0)):
        with pytest.raises(ValueError, match=r"^micro_batch\b"):
            begin(model, size)
