"""Micro-batches: the gradient of the whole batch with the activations of some rows."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jdml
from jdml import objectives
from jdml.models import SmallConvNet
from jdml.training import create_state, fit, make_train_step
from jdml.training.micro_batch import check_rows_apart, in_turns

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (24, 4, 4, 1), np.uint8)
LABELS = np.arange(24) % 6


class Net(nn.Module):
    dropout: float = 0.0

    @nn.compact
    def __call__(self, images, *, train=False):
        x = nn.tanh(nn.Dense(16)(images.reshape(len(images), -1)))
        return nn.Dense(8)(nn.Dropout(self.dropout, deterministic=not train)(x))


def gradient(model, objective, **settings):
    """Parameters before and after a step of plain gradient descent, whose rate is 1."""
    parts = model, objective, optax.sgd(1.0)
    state = create_state(*parts, IMAGES, seed=0)
    after, metrics = make_train_step(*parts, **settings)(state, IMAGES, LABELS)
    return jax.tree.map(jnp.subtract, state.params, after.params), after, metrics


NESTED = jdml.matryoshka(jdml.multi_similarity_loss, (4, 8))
OBJECTIVES = {
    "XBM": objectives.with_memory(objectives.pair(NESTED, anchor_block=5), 40, 8),
    "proxies": objectives.proxy(jdml.proxy_anchor_loss, 6, 8),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_gradient_is_that_of_the_whole_batch(name):
    plain, state, metrics = gradient(Net(), OBJECTIVES[name])
    for size in (24, 7):  # 7 does not divide the batch
        actual, other, measured = gradient(Net(), OBJECTIVES[name], micro_batch=size)
        error = optax.tree.norm(jax.tree.map(jnp.subtract, actual, plain)) / optax.tree.norm(plain)
        assert error <= 1e-6
        chex.assert_trees_all_close(other.objective_state, state.objective_state, rtol=1e-5)
        chex.assert_trees_all_close(measured, metrics, rtol=1e-5)


def test_dropout_draws_by_the_turn_and_the_same_twice():
    """The same as turn after turn by hand, with the key of each."""
    model, objective = Net(0.5), OBJECTIVES["proxies"]
    actual, state, _ = gradient(model, objective, micro_batch=8)
    key = jax.random.split(jax.random.fold_in(state.key, 0))[0]

    def loss(params):
        parts = [
            model.apply(
                {"params": params["model"]},
                jnp.asarray(IMAGES[turn::3]) / 255.0,
                train=True,
                rngs={"dropout": jax.random.fold_in(key, turn)},
            )
            for turn in range(3)
        ]
        whole = jnp.stack(parts, 1).reshape(24, 8)
        return objective.loss({"proxies": params["proxies"]}, whole, jnp.asarray(LABELS))[0]

    start = create_state(model, objective, optax.sgd(1.0), IMAGES, seed=0)
    chex.assert_trees_all_close(actual, jax.grad(loss)(start.params), rtol=1e-4, atol=1e-6)


def test_rows_keep_their_order():
    rows = {"a": jnp.arange(10.0), "b": jnp.arange(20).reshape(10, 2)}
    doubled = in_turns(lambda part, turn: jax.tree.map(lambda x: 2 * x, part), rows, 4)
    chex.assert_trees_all_equal(doubled, jax.tree.map(lambda x: 2 * x, rows))


def test_batch_norm_must_be_frozen():
    class Normed(nn.Module):
        frozen: bool = False

        @nn.compact
        def __call__(self, images, *, train=False):
            x = nn.Dense(8)(images.reshape(len(images), -1))
            return nn.BatchNorm(use_running_average=self.frozen or not train)(x)

    model, image = Normed(), jnp.zeros((1, 4, 4, 1))
    variables = model.init(jax.random.key(0), image)
    with pytest.raises(ValueError, match="micro_batch=4: .* batch normalization is trained"):
        check_rows_apart(model, variables, image, "micro_batch=4")
    check_rows_apart(Normed(frozen=True), variables, image, "micro_batch=4")
    data = jdml.data.Dataset("noise", IMAGES, LABELS, {"class": LABELS})
    sampler = jdml.data.RandomBatchSampler(24, 8)
    parts = OBJECTIVES["proxies"], optax.sgd(1.0), data, sampler
    with pytest.raises(ValueError, match="micro_batch=4: .* batch normalization is trained"):
        fit(model, *parts, steps=1, micro_batch=4, progress=False)
    with pytest.raises(ValueError, match="micro_batch must be >= 1, got 0"):
        fit(Net(), *parts, steps=1, micro_batch=0, progress=False)


def test_a_large_batch_fits():
    """SmallConvNet at B = 16,384 of 28 × 28 in 2 GiB, what the step is given included."""
    parts = (
        SmallConvNet(64, freeze_batch_norm=True),
        objectives.pair(jdml.contrastive_loss),
        optax.adam(1e-3),
    )
    images = jax.ShapeDtypeStruct((16_384, 28, 28, 1), jnp.uint8)
    labels = jax.ShapeDtypeStruct((16_384,), jnp.int32)
    state = create_state(*parts, np.zeros((1, 28, 28, 1), np.uint8), seed=0)
    step = make_train_step(*parts, micro_batch=512, donate=True)
    used = step.lower(state, images, labels).compile().memory_analysis()
    whole = used.temp_size_in_bytes + used.argument_size_in_bytes + used.output_size_in_bytes
    assert whole - used.alias_size_in_bytes < 2 * 2**30
