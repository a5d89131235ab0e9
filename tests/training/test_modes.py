"""Training and evaluation mode: by which flag, what stays in one mode, and which network a run resumes."""

import dataclasses
import logging

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jdml
from jdml import data, objectives, training

FEATURES = np.random.default_rng(0).standard_normal((16, 6)).astype(np.float32)
SET = data.Dataset("few", FEATURES, np.arange(16) % 4)
OBJECTIVE = objectives.pair(jdml.triplet_loss)
KEY = jax.random.key(0)


def fit(model, out=None, **settings):
    settings = {"steps": 2, "progress": False, "out_dir": out, **settings}
    sampler = data.RandomBatchSampler(16, 8, seed=0)
    return training.fit(model, OBJECTIVE, optax.adam(1e-2), SET, sampler, **settings)


def warned(caplog):
    """The warnings about the mode of a layer."""
    return [record.getMessage() for record in caplog.records if "evaluation" in record.getMessage()]


# The seven names of the contract

TRAINING = ("train", "training", "is_training")
EVALUATION = ("deterministic", "use_running_average", "inference", "eval")


@pytest.mark.parametrize("name", TRAINING + EVALUATION)
def test_a_flag_of_each_name_is_set(name):
    scope = {"modes": []}
    exec(f"def net(params, x, {name}=None):\n  modes.append({name})\n  return x @ params", scope)
    net = jdml.training.models.as_model((lambda key, x: jnp.ones((6, 2)), scope["net"]))
    variables = net.init(KEY, FEATURES)
    net.apply(variables, FEATURES, train=True)
    net.apply(variables, FEATURES, train=False)
    assert scope["modes"] == [name in TRAINING, name in EVALUATION]


# Layers in evaluation mode in training: dropout by a flag that is not known, frozen batch normalization


class Linen(nn.Module):
    frozen: bool = False

    @nn.compact
    def __call__(self, x, train=False, enable_dropout=False):
        x = nn.BatchNorm(use_running_average=self.frozen or not train)(nn.Dense(3)(x))
        return nn.Dropout(0.5, deterministic=not enable_dropout)(x)


class Frozen(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.BatchNorm(use_running_average=True)(nn.Dense(3)(x))


class Nnx(nnx.Module):
    def __init__(self, act=jnp.tanh, rate=0.5, evaluating=False, scale=1.0, more=1):
        rngs = nnx.Rngs(0)
        self.act, self.first = act, nnx.Linear(6, 3, rngs=rngs)
        self.norm = nnx.BatchNorm(3, use_running_average=evaluating, rngs=rngs)
        self.drop, self.config = nnx.Dropout(rate, rngs=rngs), Config(scale, {"more": more})

    def __call__(self, x):
        return self.drop(self.act(self.norm(self.first(x)))) * self.config.scale


@dataclasses.dataclass(slots=True)
class Config:
    scale: float
    more: dict


class NeverDrops(Nnx):
    def __call__(self, x, enable_dropout=False):
        return self.drop(self.norm(self.first(x)), deterministic=not enable_dropout)


class Equinox(eqx.Module):
    linear: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    drop: eqx.nn.Dropout

    def __init__(self, frozen=False):
        self.linear, self.drop = eqx.nn.Linear(6, 3, key=KEY), eqx.nn.Dropout(0.5)
        self.norm = eqx.nn.BatchNorm(3, "batch", mode="batch", inference=frozen)

    def __call__(self, x, state, *, key=None):
        x, state = self.norm(self.linear(x), state)
        return self.drop(x, key=key), state


class NeverDropsEquinox(Equinox):
    def __call__(self, x, state, *, key=None, enable_dropout=False):
        x, state = self.norm(self.linear(x), state)
        return self.drop(x, key=key, inference=not enable_dropout), state


def equinox(kind=Equinox, **settings):
    return eqx.nn.make_with_state(kind)(**settings)


@pytest.mark.parametrize("make", [Linen, NeverDrops, lambda: equinox(NeverDropsEquinox)])
def test_dropout_under_a_flag_that_is_not_known_is_named_with_the_flag(make, caplog):
    with caplog.at_level(logging.WARNING):
        fit(make(), steps=0)
    (line,) = warned(caplog)
    assert line.lower().startswith("dropout")
    assert "enable_dropout" in line


def test_a_network_of_which_no_layer_trains_is_refused():
    with pytest.raises(ValueError, match=r"^model\b.*Dropout_0.*enable_dropout"):
        fit(Linen(frozen=True))


@pytest.mark.parametrize(
    "make", [Frozen, lambda: Nnx(evaluating=True), lambda: equinox(frozen=True)]
)
def test_frozen_batch_norm_is_named_and_stays(make, caplog):
    with caplog.at_level(logging.WARNING):
        before, after = (fit(make(), steps=steps).state.batch_stats for steps in (0, 2))
    assert {"norm" in line.lower() for line in warned(caplog)} == {True}
    jax.tree.map(np.testing.assert_array_equal, before, after)


def in_evaluation_mode(kind):
    if kind == "Equinox":
        module, state = equinox()
        return eqx.nn.inference_mode(module), state
    module = Nnx()
    module.eval()
    return module


@pytest.mark.parametrize("kind", ["NNX", pytest.param("Equinox", marks=pytest.mark.slow)])
def test_a_whole_network_in_evaluation_mode_is_trained(kind, caplog):
    with caplog.at_level(logging.WARNING):
        before, after = (
            jax.tree.leaves(fit(in_evaluation_mode(kind), steps=steps).state.batch_stats)
            for steps in (0, 2)
        )
    assert any((old != new).any() for old, new in zip(before, after, strict=True))
    assert {"norm" in line for line in warned(caplog)} == {True}


# Which network a run resumes


def test_a_run_is_resumed_with_the_same_network_alone(tmp_path):
    """Its activations, rates and plain values count; the mode in which it comes does not."""
    fit(Nnx(), tmp_path)
    for changed in (
        {"act": jnp.sin}, {"rate": 0.1}, {"evaluating": True}, {"scale": 2.0}, {"more": 2},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"\bmodel\b"):
            fit(Nnx(**changed), tmp_path, steps=3, longer=True)
    assert fit(in_evaluation_mode("NNX"), tmp_path, steps=3, longer=True).state.step == 3


@pytest.mark.slow  # another kind of network
def test_a_run_is_resumed_with_the_same_equinox_module_alone(tmp_path):
    tanh, sin = (eqx.nn.MLP(6, 3, 8, 1, activation=act, key=KEY) for act in (jnp.tanh, jnp.sin))
    fit(tanh, tmp_path)
    with pytest.raises(ValueError, match=r"\bmodel\b"):
        fit(sin, tmp_path, steps=3, longer=True)
    assert fit(tanh, tmp_path, steps=3, longer=True).state.step == 3
