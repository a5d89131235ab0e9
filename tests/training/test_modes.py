"""Networks that are told their mode in part: what stays in evaluation or training mode is refused or told; resumed."""

import dataclasses
import logging

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jdml
from jdml import data, objectives, training
from jdml.training.fingerprint import fingerprint
from jdml.training.models import as_model

FEATURES = np.random.default_rng(0).standard_normal((16, 6)).astype(np.float32)
LABELS = np.arange(16) % 4
SET = data.Dataset("few", FEATURES, LABELS)


def fit(model, out=None, **settings):
    sampler = data.RandomBatchSampler(16, 8, seed=0)
    settings = {"steps": 2, "progress": False, **settings}
    pair = objectives.pair(jdml.triplet_loss)
    return training.fit(model, pair, optax.adam(1e-2), SET, sampler, out_dir=out, **settings)


# Linen: one layer that is told does not excuse the others.


class Partly(nn.Module):
    frozen: bool = False

    @nn.compact
    def __call__(self, x, train=False, enable_dropout=False, double=False):
        x = nn.Dense(3)(x) * (2 if double else 1)
        x = nn.BatchNorm(use_running_average=self.frozen or not train)(x)
        return nn.Dropout(0.5, deterministic=not enable_dropout)(x)


class ByKey(nn.Module):
    @nn.compact
    def __call__(self, x, train=False, dropout_rng=None):
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(3)(x))
        return nn.Dropout(0.5)(x, deterministic=dropout_rng is None, rng=dropout_rng)


class Frozen(nn.Module):
    @nn.compact
    def __call__(self, x, train=False, double=False):
        x = nn.BatchNorm(use_running_average=True)(nn.Dense(3)(x)) * (2 if double else 1)
        return nn.Dropout(0.5, deterministic=not train)(x)


class AllFrozen(nn.Module):
    @nn.compact
    def __call__(self, x, double=False):
        return nn.BatchNorm(use_running_average=True)(nn.Dense(3)(x)) * (2 if double else 1)


class OnlyDrops(nn.Module):
    @nn.compact
    def __call__(self, x, enable_dropout=False):
        return nn.Dropout(0.5, deterministic=not enable_dropout)(nn.Dense(3)(x))


class Twice(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        norm = nn.BatchNorm()
        return norm(norm(x, use_running_average=not train), use_running_average=True)


WAKES = "; enable_dropout, which is no flag that is known, would wake it"


@pytest.mark.parametrize(
    ("model", "layer"),
    [
        (Partly(), f"Dropout_0: {{told}}{WAKES}"),
        (ByKey(), "Dropout_0: {told}"),
        (Frozen(), "BatchNorm_0: {told}"),
        (AllFrozen(), "BatchNorm_0: {told}"),
    ],
)
def test_a_layer_that_is_idle_in_training_is_told(model, layer, caplog):
    with caplog.at_level(logging.WARNING):
        fit(model)
    assert layer.format(told="in evaluation mode in training, too, as if frozen") in caplog.text
    assert ("would wake it" in caplog.text) == ("wake" in layer)


def test_where_no_layer_acts_the_flag_is_named():
    with pytest.raises(ValueError, match="Dropout_0 would be in it, and enable_dropout is no flag"):
        fit(OnlyDrops())
    with pytest.raises(ValueError, match="where it is meant so, wrap it in a module without it"):
        fit(Partly(frozen=True))


def test_a_layer_that_is_called_twice_acts_if_one_call_does(caplog):
    with caplog.at_level(logging.WARNING):
        fit(Twice())
    assert "evaluation mode" not in caplog.text


# NNX


class Nnx(nnx.Module):
    def __init__(self, act=jnp.tanh, rate=0.5, norm=True, momentum=0.9, evaluating=False):
        rngs = nnx.Rngs(0)
        self.act, self.first = act, nnx.Linear(6, 3, rngs=rngs)
        self.norm = nnx.BatchNorm(3, momentum=momentum, use_running_average=evaluating, rngs=rngs)
        self.norm = self.norm if norm else None
        self.drop = nnx.Dropout(rate, rngs=rngs)

    def __call__(self, x):
        x = self.first(x)
        return self.drop(self.act(x if self.norm is None else self.norm(x)))


class AlwaysDrops(Nnx):
    def __call__(self, x):
        return self.drop(self.first(x), deterministic=False)


class AlwaysMoves(Nnx):
    def __call__(self, x):
        return self.norm(self.first(x), use_running_average=False)


class NeverDrops(Nnx):
    def __call__(self, x, enable_dropout=False):
        return self.drop(self.norm(self.first(x)), deterministic=not enable_dropout)


class SetsItself(Nnx):
    def __call__(self, x, learn=False):
        self.train() if learn else self.eval()
        return super().__call__(x)


class Skips(Nnx):
    """What a boolean leaves out of the network is not woken by it."""

    def __call__(self, x, project=True):
        x = self.norm(self.first(x), use_running_average=True)
        return self.norm(x, use_running_average=True) if project else x


class StuckAndCompiled(Nnx):
    @nnx.jit
    def __call__(self, x):
        return self.norm(self.first(x), use_running_average=False)


class OnlyNnxDrops(Nnx):
    def __call__(self, x, enable_dropout=False):
        return self.drop(self.first(x), deterministic=not enable_dropout)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (AlwaysDrops(), "must be able to evaluate, but without training its dropout acts"),
        (AlwaysMoves(), "must be able to evaluate, but without training its batch norm acts"),
        (SetsItself(), "batch norm and dropout would be in it, and learn is no flag that is known"),
        (StuckAndCompiled(), "without training its batch norm acts as in training"),
        (OnlyNnxDrops(), "evaluation mode: dropout would be in it, and enable_dropout is no flag"),
    ],
)
def test_nnx_layers_that_stay_in_one_mode_are_refused(model, message):
    for _ in range(2):  # a program that is kept from the first time hides no layer
        with pytest.raises(ValueError, match=message):
            fit(model)


def test_an_nnx_layer_that_is_idle_in_training_is_told(caplog):
    with caplog.at_level(logging.WARNING):
        fit(Skips())
    assert "batch norm: in evaluation mode in training, too, as if frozen\n" in caplog.text
    with caplog.at_level(logging.WARNING):
        fit(NeverDrops())
    assert f"dropout: in evaluation mode in training, too, as if frozen{WAKES}" in caplog.text


class Compiled(Nnx):
    @nnx.jit
    def __call__(self, x):
        return super().__call__(x)


class Rematerialized(Nnx):
    def __call__(self, x):
        return nnx.remat(lambda model, x: Nnx.__call__(model, x))(self, x)


class Random(Nnx):
    """Fixed random features, and statistics of its own, which evaluation changes."""

    def __init__(self):
        super().__init__()
        self.mean, self.calls = nnx.BatchStat(jnp.zeros(6)), nnx.Variable(jnp.zeros(()))

    def __call__(self, x):
        self.mean[...] += x.mean(0)
        self.calls[...] += 1
        return super().__call__(x @ jax.random.normal(jax.random.key(7), (6, 6)))


class Unused(Nnx):
    def __call__(self, x, double=False):
        return self.first(x) * (2 if double else 1)


@pytest.mark.parametrize("model", [Compiled(), Rematerialized(), Random(), Unused(), Nnx(rate=0.0)])
def test_nnx_networks_with_nothing_to_tell(model, caplog):
    with caplog.at_level(logging.WARNING):
        fit(model)
    assert "evaluation mode" not in caplog.text


def test_frozen_batch_norm_of_nnx_stays_and_a_whole_module_in_evaluation_mode_is_trained(caplog):
    with caplog.at_level(logging.WARNING):
        stays = fit(Nnx(evaluating=True)).state.batch_stats
    assert "norm: in evaluation mode in training, too, as if frozen" in caplog.text
    np.testing.assert_array_equal(stays["norm"]["mean"], np.zeros(3))
    caplog.clear()
    whole = Nnx()
    whole.eval()
    moved = fit(whole).state.batch_stats
    assert (moved["norm"]["mean"] != 0).all()
    assert "norm: came in evaluation mode, as all of the network, and is trained" in caplog.text


class Block(nnx.Module):
    def __init__(self, rngs):
        self.linear, self.drop = nnx.Linear(6, 6, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.drop(self.linear(x))


class Stacked(nnx.Module):
    def __init__(self):
        self.blocks = nnx.vmap(Block, in_axes=0)(nnx.Rngs(0).split(3))

    def __call__(self, x):
        axes = {"in_axes": (0, nnx.Carry), "out_axes": nnx.Carry}
        return nnx.scan(lambda block, x: block(x), **axes)(self.blocks, x)


def test_stacked_blocks_draw_each_their_own_numbers(tmp_path):
    result = fit(Stacked(), tmp_path)
    np.testing.assert_array_equal(
        training.load(tmp_path, model=Stacked()).embed(FEATURES), result.embedder(FEATURES)
    )
    model = as_model(Stacked())
    variables = model.init(None, None)
    drawn = [
        model.apply(variables, FEATURES, train=True, rngs={"dropout": jax.random.key(seed)})
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).any()


@pytest.mark.parametrize("changed", [{"act": jnp.sin}, {"rate": 0.1}, {"momentum": 0.5}])
def test_a_run_of_another_nnx_network_is_not_gone_on_with(changed, tmp_path):
    fit(Nnx(), tmp_path)
    fit(Nnx(), tmp_path, steps=3, longer=True)
    with pytest.raises(ValueError, match="the model is another"):
        fit(Nnx(**changed), tmp_path, steps=4, longer=True)


@dataclasses.dataclass(slots=True)
class Config:
    scale: float
    more: dict


class Configured(Nnx):
    def __init__(self, scale, more=1):
        super().__init__()
        self.config, self.table = Config(scale, {"more": more}), {"scale": scale}

    def __call__(self, x):
        return super().__call__(x) * self.config.scale


def test_what_a_module_holds_beside_arrays_tells_it_apart():
    from jdml.training.begin import _of_model

    def of(model):
        return fingerprint(_of_model(as_model(model)))

    assert of(Configured(1.0)) == of(Configured(1.0))
    assert len({of(Configured(1.0)), of(Configured(2.0)), of(Configured(1.0, more=2))}) == 3


def test_a_mode_is_no_other_network_but_a_frozen_layer_is():
    from jdml.training.begin import _of_model

    def of(model):
        return fingerprint(_of_model(as_model(model)))

    evaluating = Nnx()
    evaluating.eval()
    assert of(evaluating) == of(Nnx())
    assert of(Nnx(evaluating=True)) != of(Nnx())


# Equinox


@pytest.mark.filterwarnings("ignore:.*mode.*", "ignore:.*deterministic.*")
def test_equinox_layers_that_stay_in_one_mode(tmp_path, caplog):
    import equinox as eqx

    key = jax.random.key(0)

    class Net(eqx.Module):
        linear: eqx.nn.Linear
        norm: eqx.nn.BatchNorm
        drop: eqx.nn.Dropout

        def __init__(self, frozen=False, rate=0.5):
            self.linear = eqx.nn.Linear(6, 3, key=key)
            self.norm = eqx.nn.BatchNorm(3, "batch", mode="batch", inference=frozen)
            self.drop = eqx.nn.Dropout(rate)

        def __call__(self, x, state, *, key=None):
            x, state = self.norm(self.linear(x), state)
            return self.drop(x, key=key), state

    class AlwaysDrops(Net):
        def __call__(self, x, state, *, key=None):
            x, state = self.norm(self.linear(x), state)
            return self.drop(x, key=jax.random.key(1), inference=False), state

    class NeverDrops(Net):
        def __call__(self, x, state, *, key=None, enable_dropout=False):
            x, state = self.norm(self.linear(x), state)
            return self.drop(x, key=key, inference=not enable_dropout), state

    class Older(Net):
        def __call__(self, x, state, *, key=None):
            x, state = self.norm(self.linear(x), state)
            return self.drop(x, key=jax.random.key(1), deterministic=False), state

    class Table(eqx.Module):
        places: np.ndarray

    class Placed(eqx.Module):
        linear: eqx.nn.Linear
        table: Table

        def __call__(self, x):
            return self.linear(x) + self.table.places

    class Compiled(Net):
        calls: eqx.nn.StateIndex

        def __init__(self):
            super().__init__()
            self.calls = eqx.nn.StateIndex(jnp.zeros(()))

        @eqx.filter_jit
        def __call__(self, x, state, *, key=None):
            state = state.set(self.calls, state.get(self.calls) + 1)
            return Net.__call__(self, x, state, key=key)

    def made(kind, **settings):
        return eqx.nn.make_with_state(kind)(**settings)

    with pytest.raises(ValueError, match="without training its dropout acts as in training"):
        fit(made(AlwaysDrops))
    with caplog.at_level(logging.WARNING):
        fit(made(Compiled))
        assert "evaluation mode" not in caplog.text
        fit(made(NeverDrops))
        assert f"dropout: in evaluation mode in training, too, as if frozen{WAKES}" in caplog.text
        stays = fit(made(Net, frozen=True)).state.batch_stats
    assert "norm: in evaluation mode in training, too, as if frozen" in caplog.text
    fresh = as_model(made(Net)).init(None, None)["batch_stats"]
    for old, new in zip(jax.tree.leaves(fresh), jax.tree.leaves(stays), strict=True):
        np.testing.assert_array_equal(old, new)
    with pytest.raises(ValueError, match="without training its dropout acts as in training"):
        fit(made(Older))
    fit(Placed(eqx.nn.Linear(6, 3, key=key), Table(np.ones(3, np.float32))), tmp_path / "placed")
    module, state = made(Net)
    moved = fit((eqx.nn.inference_mode(module), state)).state.batch_stats
    assert any(
        (old != new).any()
        for old, new in zip(jax.tree.leaves(fresh), jax.tree.leaves(moved), strict=True)
    )
    fit(made(Net), tmp_path / "rate")
    with pytest.raises(ValueError, match="the model is another"):
        fit(made(Net, rate=0.1), tmp_path / "rate", steps=3, longer=True)
    mlps = [eqx.nn.MLP(6, 3, 8, 1, activation=act, key=key) for act in (jnp.tanh, jnp.sin)]
    fit(mlps[0], tmp_path / "act")
    with pytest.raises(ValueError, match="the model is another"):
        fit(mlps[1], tmp_path / "act", steps=3, longer=True)
    with pytest.raises(TypeError, match=r"got two modules, as equinox.partition returns: give"):
        fit(eqx.partition(mlps[0], eqx.is_array))


# Functions


def test_a_key_by_another_name_is_refused_and_stax_is_told():
    def init(key, images):
        return {"kernel": jax.random.normal(key, (6, 3))}

    def apply(params, images, dropout_rng=None):
        return images @ params["kernel"]

    with pytest.raises(TypeError, match="takes dropout_rng, which looks like a random key"):
        fit((init, apply))
    fit((init, lambda params, images, seed=0, use_rng=False: apply(params, images)))

    from jax.example_libraries import stax

    net_init, net = stax.serial(stax.Dense(8), stax.Relu, stax.Dense(3))
    with pytest.raises(TypeError, match=r"functions of stax: write \(lambda key, images: list"):
        fit((net_init, net))
    result = fit((lambda key, images: list(net_init(key, images.shape)[1]), net))
    assert result.embedder(FEATURES).shape == (16, 3)
