"""Small networks of other libraries: with statistics, dropout, other variables, and modes of several names."""

from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

KEY = jax.random.key(0)


def linen(flag, inverted=False):
    """Return a Linen module whose call has a flag of this name."""
    scope = {"nn": nn}
    exec(
        f"class Net(nn.Module):\n"
        f"    @nn.compact\n"
        f"    def __call__(self, x, {flag}=False):\n"
        f"        on = {'not ' if inverted else ''}{flag}\n"
        f"        x = nn.BatchNorm(use_running_average=not on)(nn.Dense(5)(x))\n"
        f"        return nn.Dense(3)(nn.Dropout(0.2, deterministic=not on)(x))\n",
        scope,
    )
    return scope["Net"]()


class Attribute(nn.Module):
    training: bool = False
    mode: Any = 3  # not a training mode

    @nn.compact
    def __call__(self, x):
        x = nn.BatchNorm(use_running_average=not self.training)(nn.Dense(5)(x))
        return nn.Dense(3)(nn.Dropout(0.2, deterministic=not self.training)(x))


def sequential():
    """Return layers without a mode, and modules with a flag each."""
    layers = nn.Dense(5), nn.relu, nn.BatchNorm(), nn.Dropout(0.2)
    return nn.Sequential([*layers, Attribute(True), linen("is_training")])


class Collections(nn.Module):
    """Running values in other collections, a sown value, noise from another stream."""

    @nn.compact
    def __call__(self, x, training=False):
        count = self.variable("counts", "rows", jnp.zeros, ())
        if training:
            count.value += len(x)
        x = nn.SpectralNorm(nn.Dense(3))(x, update_stats=training)
        self.sow("intermediates", "x", x)
        return x + jax.random.normal(self.make_rng("noise"), x.shape) if training else x


class Unknown(nn.Module):
    learning: bool = False

    @nn.compact
    def __call__(self, x):
        return nn.BatchNorm(use_running_average=not self.learning)(nn.Dense(5)(x))


class Kind(nnx.Variable):
    pass


class Nnx(nnx.Module):
    def __init__(self, seed=0):
        rngs = nnx.Rngs(seed, noise=seed + 1)
        self.first, self.norm = nnx.Linear(6, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs)
        self.drop, self.last = nnx.Dropout(0.5, rngs=rngs), nnx.Linear(4, 3, rngs=rngs)
        self.rngs = rngs

    def __call__(self, x):
        return self.last(self.drop(self.norm(self.first(x))))


class Variables(Nnx):
    def __init__(self, seed=0):
        super().__init__(seed)
        self.kind, self.cache = Kind(jnp.ones(())), nnx.Cache(jnp.zeros(4))
        self.number, self.array = nnx.Variable(jnp.zeros((), jnp.int32)), jnp.ones(3)

    def __call__(self, x):
        x = self.norm(self.first(x))
        self.kind[...] += jax.random.uniform(self.rngs.noise())
        self.cache[...] = 0.9 * self.cache[...] + x.mean(0)
        self.number[...] += 1
        return self.last(self.drop(x)) * self.array


def nnx_sequential():
    rngs = nnx.Rngs(0)
    layers = nnx.Linear(6, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs), jax.nn.relu
    return nnx.Sequential(*layers, nnx.Dropout(0.1, rngs=rngs), nnx.Linear(4, 3, rngs=rngs))


class WithKey(Nnx):
    def __init__(self):
        super().__init__()
        self.key = nnx.Variable(jax.random.key(0))


class UnknownNnx(Nnx):
    def __call__(self, x, learning=False):
        return self.drop(self.first(x), deterministic=not learning)


class WithState(eqx.Module):
    linear: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    drop: eqx.nn.Dropout
    number: jax.Array

    def __init__(self, axis="rows"):
        self.linear, self.drop = eqx.nn.Linear(6, 3, key=KEY), eqx.nn.Dropout(0.2)
        self.norm, self.number = eqx.nn.BatchNorm(3, axis, mode="batch"), jnp.arange(3)

    def __call__(self, x, state, *, key):
        x, state = self.norm(self.linear(x), state)
        return self.drop(x, key=key), state


class UnknownEquinox(eqx.Module):
    linear: eqx.nn.Linear = eqx.nn.Linear(6, 3, key=KEY)
    drop: eqx.nn.Dropout = eqx.nn.Dropout(0.5)

    def __call__(self, x, *, key, learning=False):
        return self.drop(self.linear(x), key=key, inference=not learning)


class Pictures(eqx.Module):
    """Takes a row [H, W, C]; two of its paths are equal with slashes between, one ends in "value"."""

    parts: dict
    value: jax.Array

    def __call__(self, x):
        return self.parts["a/b"] @ x.mean((0, 1)) * self.value + self.parts["a"]["b"]


class Scaled(Nnx):
    """A network whose batch norm may be in evaluation mode, with a number of its own."""

    def __init__(self, evaluating=False, scale=1.0):
        super().__init__()
        self.norm.use_running_average, self.scale = evaluating, scale

    def __call__(self, x):
        return super().__call__(x) * self.scale


def in_evaluation_mode():
    module = Scaled()
    module.eval()
    return module
