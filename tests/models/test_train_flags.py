"""Training and evaluation mode: flags, layers that stay in evaluation mode, and resuming."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from training.as_values import as_values

import jdml
from jdml import data, objectives, training

FEATURES = np.random.default_rng(0).standard_normal((16, 6)).astype(np.float32)
SET = data.Dataset("few", FEATURES, np.arange(16) % 4)
OBJECTIVE = objectives.pair(jdml.triplet_loss)
KEY = jax.random.key(0)


def fit(model, out=None, **settings):
    settings = {"steps": 2, "progress": False, "folder": out, **settings}
    sampler = data.RandomBatchSampler(16, 8, seed=0)
    return training.fit(model, OBJECTIVE, optax.adam(1e-2), SET, sampler, **as_values(settings))


def warned(caplog):
    """Return the warnings about a layer's mode."""
    return [record.getMessage() for record in caplog.records if "evaluation" in record.getMessage()]


# The seven flag names of the API

TRAINING = ("train", "training", "is_training")
EVALUATION = ("deterministic", "use_running_average", "inference", "eval")


@pytest.mark.parametrize("name", TRAINING + EVALUATION)
def test_every_known_flag_is_set(name):
    scope = {"modes": []}
    exec(f"def net(params, x, {name}=None):\n  modes.append({name})\n  return x @ params", scope)
    net = jdml.models.adapters.as_model((lambda key, x: jnp.ones((6, 2)), scope["net"]))
    variables = net.init(KEY, FEATURES)
    net.apply(variables, FEATURES, train=True)
    net.apply(variables, FEATURES, train=False)
    assert scope["modes"] == [name in TRAINING, name in EVALUATION]


# Batch normalization in evaluation mode during training


class Nnx(nnx.Module):
    def __init__(self, act=jnp.tanh, rate=0.5, evaluating=False, scale=1.0):
        rngs = nnx.Rngs(0)
        self.act, self.first = act, nnx.Linear(6, 3, rngs=rngs)
        self.norm = nnx.BatchNorm(3, use_running_average=evaluating, rngs=rngs)
        self.drop, self.scale = nnx.Dropout(rate, rngs=rngs), scale

    def __call__(self, x):
        return self.drop(self.act(self.norm(self.first(x)))) * self.scale


def test_batch_norm_in_evaluation_mode_is_warned_of_and_frozen(caplog):
    with caplog.at_level(logging.WARNING):
        before, after = (
            fit(Nnx(evaluating=True), steps=steps).state.batch_stats for steps in (0, 2)
        )
    assert {"norm" in line.lower() for line in warned(caplog)} == {True}
    jax.tree.map(np.testing.assert_array_equal, before, after)


def in_evaluation_mode():
    module = Nnx()
    module.eval()
    return module


def test_network_entirely_in_evaluation_mode_is_trained():
    before, after = (
        jax.tree.leaves(fit(in_evaluation_mode(), steps=steps).state.batch_stats)
        for steps in (0, 2)
    )
    assert any((old != new).any() for old, new in zip(before, after, strict=True))


# Resuming


def test_resume_refuses_another_network(tmp_path):
    """A module's own numbers are compared; the training mode is not."""
    fit(Nnx(), tmp_path)
    with pytest.raises(ValueError, match=r"\bmodel\b"):
        fit(Nnx(scale=2.0), tmp_path, steps=3, allow_more_steps=True)
    assert fit(in_evaluation_mode(), tmp_path, steps=3, allow_more_steps=True).state.step == 3
