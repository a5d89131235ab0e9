"""What `fit` takes as a network: each kind is trained, carried, evaluated and saved, or refused in a sentence."""

import logging
from types import SimpleNamespace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jdml
from jdml import data, objectives, training
from jdml.training import door, foreign, mode_flags
from jdml.training.costs import _bytes
from jdml.training.factory import _taken
from jdml.training.models import Object, as_model
from jdml.training.wrapped import is_haiku

pytestmark = pytest.mark.slow

FEATURES = np.random.default_rng(0).normal(size=(24, 6)).astype(np.float32)
LABELS = np.arange(24) % 4
SET = data.Dataset("features", FEATURES, LABELS)
PARTS = (objectives.pair(jdml.triplet_loss), optax.adam(1e-2))


def fit(model, out_dir=None, **settings):
    batches = data.RandomBatchSampler(24, 8)
    settings = {"steps": 2, "progress": False, "out_dir": out_dir, **settings}
    return training.fit(model, *PARTS, SET, batches, **settings)


def trained(model, folder):
    """Its run: it learned, and its folder embeds as it does."""
    fresh = training.create_state(model, *PARTS, FEATURES, seed=0)
    result = fit(model, folder)
    state = result.state
    before, after = (jax.tree.leaves(s.params["model"]) for s in (fresh, state))
    assert all((a != b).any() for a, b in zip(before, after, strict=True) if np.ndim(a) > 1)
    assert jax.tree.structure(fresh.batch_stats) == jax.tree.structure(state.batch_stats)
    own = training.embed(model, state.params["model"], state.batch_stats, FEATURES)
    np.testing.assert_array_equal(own, result.embedder(FEATURES))
    loaded = training.load(folder, model=model)
    np.testing.assert_array_equal(loaded.embed(FEATURES), own)
    return state


def linen(flag, inverted=False):
    """A Linen module whose call has a flag of this name."""
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

    @nn.compact
    def __call__(self, x):
        x = nn.BatchNorm(use_running_average=not self.training)(nn.Dense(5)(x))
        return nn.Dense(3)(nn.Dropout(0.2, deterministic=not self.training)(x))


class Merged(nn.Module):
    deterministic: bool | None = None

    @nn.compact
    def __call__(self, x, deterministic=None):
        told = nn.merge_param("deterministic", self.deterministic, deterministic)
        x = nn.BatchNorm(use_running_average=told)(nn.Dense(5)(x))
        return nn.Dense(3)(nn.Dropout(0.2)(x, told))


class HandsOn(nn.Module):
    @nn.compact
    def __call__(self, x, **settings):
        return linen("training")(x, **settings)


FLAGS = {
    **{name: linen(name) for name in ("train", "training", "is_training")},
    **{name: linen(name, True) for name in ("deterministic", "inference", "eval")},
    "use_running_average": linen("use_running_average", True),
    "attribute": Attribute(),
    "attribute of training": Attribute(True),
    "merged": Merged(),
    "handed on": HandsOn(),
    "told layers": nn.Sequential(
        [nn.Dense(5), nn.relu, nn.BatchNorm(), nn.Dropout(0.2), nn.Dense(3)]
    ),
    "layers in training": nn.Sequential([nn.Dense(5), nn.BatchNorm(use_running_average=False)]),
    "attribute within": nn.Sequential([nn.Dense(5), Attribute()]),
    "argument within": nn.Sequential([linen("is_training"), nn.relu]),
}


@pytest.mark.parametrize("kind", FLAGS)
def test_a_flag_of_any_name_is_set(kind, tmp_path):
    state = trained(FLAGS[kind], tmp_path)
    means = [
        x for p, x in jax.tree_util.tree_leaves_with_path(state.batch_stats) if "mean" in str(p)
    ]
    assert all((mean != 0).any() for mean in means)


class Unknown(nn.Module):
    learning: bool = False

    @nn.compact
    def __call__(self, x):
        return nn.BatchNorm(use_running_average=not self.learning)(nn.Dense(5)(x))


class Noisy(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(x) + jax.random.normal(self.make_rng("noise"), (3,))


class Masked(nn.Module):
    @nn.compact
    def __call__(self, x, mask):
        return nn.Dense(3)(x * mask)


class Sown(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Dense(3)(x)
        self.sow("losses", "norm", x.sum())
        return x


class Cached(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Dense(3)(x)
        self.variable("cache", "last", jnp.zeros, x.shape).value = x
        return x


class Widening(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        seen = self.variable("seen", "last", jnp.zeros, 3, jnp.bfloat16)
        seen.value = x[0, :3] if train else seen.value
        return nn.Dense(3)(x)


class Several(nn.Module):
    kind: Any = tuple

    @nn.compact
    def __call__(self, x):
        named = {"embeddings": nn.Dense(3)(x), "features": x}
        return self.kind(named if self.kind is dict else named.values())


class Whole(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(x) * self.param("n", lambda key: jnp.ones((), jnp.int32))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (linen("learning"), "BatchNorm_0, Dropout_0 would be in it, and learning is no flag that"),
        (linen("mode", True), "must be told by a boolean whether it trains .*got its argument mode"),
        (Unknown(), "trained in evaluation mode: BatchNorm_0 would be in it, and learning is no"),
        (Unknown(True), "must be able to evaluate.*switch it by a flag"),
        (Noisy(), "must be able to evaluate.*draws random numbers"),
        (Masked(), "its argument mask has no default"),
        (Sown(), r"keep the shapes of what it carries.*\['losses'\]\['norm'\]\[1\] was not there"),
        (Cached(), r"\['cache'\]\['last'\] was float32\[1, 3\] and is float32\[2, 3\]"),
        (Widening(), r"keep the types .*\['last'\] was bfloat16\[3\] and is float32\[3\] after a step: give"),
        (Whole(), r"parameters must be floating point, got int32 in params\['n'\]"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_told_before_any_file(model, message, tmp_path):
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        fit(model, tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "model", [Several(), Several(dict), (lambda key, x: {}, lambda params, x: (x, x))]
)
def test_a_network_of_several_results_is_told_what_to_do(model):
    message = (
        "got (tuple|dict) of 2 arrays: take the one that is meant .wrap a network that returns"
    )
    with pytest.raises(TypeError, match=f"embeddings must be an array .*{message}"):
        fit(model)


def test_an_objective_may_take_what_a_network_returns():
    def loss(params, embeddings, labels, **more):
        value = jdml.triplet_loss(embeddings["embeddings"], labels)
        return value, {"loss": value}

    own = objectives.pair(jdml.triplet_loss)._replace(loss=loss)
    sampler = data.ClassBatchSampler(LABELS, 2, 2)
    result = training.fit(Several(dict), own, optax.sgd(0.1), SET, sampler, steps=1, log_every=1)
    assert np.isfinite(result.history[-1]["loss"])


def test_frozen_layers_are_told_and_stay(tmp_path, caplog):
    frozen = nn.Sequential([nn.Dense(5), nn.BatchNorm(use_running_average=True)])
    with caplog.at_level(logging.WARNING):
        state = trained(frozen, tmp_path)
    assert "layers_1: in evaluation mode in training, too, as if frozen" in caplog.text
    assert float(jnp.abs(state.batch_stats["layers_1"]["mean"]).max()) == 0


def test_other_collections_are_carried(tmp_path):
    class Net(nn.Module):
        widths: list

        @nn.compact
        def __call__(self, x, training=False):
            seen = self.variable("counts", "seen", jnp.zeros, ())
            if training:
                seen.value += len(x)
            for width in self.widths:
                x = nn.SpectralNorm(nn.Dense(width))(x, update_stats=training)
            self.sow("intermediates", "x", x)
            return self.perturb("x", x + (self.noise(x) if training else 0))

        def noise(self, x):
            return jax.random.normal(self.make_rng("noise"), x.shape)

    state = trained(Net([5, 3]), tmp_path)
    assert state.batch_stats["~counts"]["seen"] == 16


# NNX


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


class Switched(Nnx):
    def __init__(self, seed=0):
        super().__init__(seed)
        self.is_training = False

    def __call__(self, x, testing=True):
        assert testing is not self.is_training
        x = self.norm(self.first(x), use_running_average=testing)
        return self.last(self.drop(x, deterministic=not self.is_training))


def nnx_sequential(seed=0):
    rngs = nnx.Rngs(seed)
    layers = nnx.Linear(6, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs), jax.nn.relu
    return nnx.Sequential(*layers, nnx.Dropout(0.1, rngs=rngs), nnx.Linear(4, 3, rngs=rngs))


@pytest.mark.parametrize("make", [Nnx, Variables, Switched, nnx_sequential])
def test_nnx_variables_of_every_kind(make, tmp_path):
    state = trained(make(), tmp_path)
    stats = jax.tree_util.tree_leaves_with_path(state.batch_stats)
    assert all((x != 0).any() for path, x in stats if "mean" in str(path))
    if make is Variables:
        assert (state.batch_stats["number"], state.batch_stats["kind"] > 1) == (2, True)
        assert float(jnp.abs(state.batch_stats["cache"]).max()) > 0
        again = training.load(tmp_path, model=Variables(seed=7)).embed(FEATURES)
        np.testing.assert_array_equal(again, training.load(tmp_path, model=make()).embed(FEATURES))


def test_parameters_are_those_of_the_module_not_of_one_like_it():
    states = [training.create_state(Nnx(seed), *PARTS, FEATURES, seed=0) for seed in (0, 1)]
    kernels = [state.params["model"]["last"]["kernel"] for state in states]
    assert (kernels[0] != kernels[1]).any()


def test_a_bridge_from_linen_is_told():
    bridge = nnx.bridge.ToNNX(linen("train"), rngs=nnx.Rngs(0)).lazy_init(FEATURES[:1])
    stats = fit(bridge).state.batch_stats
    assert all((leaf != 0).any() for leaf in jax.tree.leaves(stats))


class UnknownNnx(Nnx):
    def __call__(self, x, learning=False):
        x = self.norm(self.first(x), use_running_average=not learning)
        return self.last(self.drop(x, deterministic=not learning))


class WithCache(Nnx):
    def __init__(self):
        super().__init__()
        self.cache = nnx.Cache(jnp.zeros((1, 4)))

    def __call__(self, x):
        self.cache[...] = self.first(x)
        return self.last(self.cache[...])


class WithKey(Nnx):
    def __init__(self):
        super().__init__()
        self.key = nnx.Variable(jax.random.key(0))


class HandsOnNnx(Nnx):
    def __call__(self, x, **settings):
        return self.last(self.first(x, **settings))


class Mode(Nnx):
    def __init__(self):
        super().__init__()
        self.mode = "train"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (UnknownNnx, "trained in evaluation mode: .* learning is no flag that is"),
        (
            WithCache,
            r"takes 1 row and not \d+, as one does that holds a variable of a batch's shape",
        ),
        (WithKey, r"arrays of numbers .* got PRNGKeyArray key<fry> in \['key'\]"),
        (HandsOnNnx, "hands train on to what does not take it: name its flag"),
        (Mode, "must be told by a boolean .* got its attribute mode"),
    ],
)
def test_nnx_modules_that_cannot_be_trained(make, message, tmp_path):
    with pytest.raises((TypeError, ValueError), match=message):
        fit(make(), tmp_path / "run")
    assert not list(tmp_path.iterdir())


# Equinox


def test_equinox_modules(tmp_path):
    import equinox as eqx

    key = jax.random.key(0)

    class WithState(eqx.Module):
        linear: eqx.nn.Linear
        norm: eqx.nn.BatchNorm
        drop: eqx.nn.Dropout
        number: jax.Array

        def __init__(self, axis="rows"):
            self.linear, self.drop = eqx.nn.Linear(6, 3, key=key), eqx.nn.Dropout(0.2)
            self.norm, self.number = eqx.nn.BatchNorm(3, axis, mode="batch"), jnp.arange(3)

        def __call__(self, x, state, *, key):
            x, state = self.norm(self.linear(x), state)
            return self.drop(x, key=key), state

    class OfBatch(eqx.Module):
        linear: eqx.nn.Linear

        def __call__(self, x):
            return jax.vmap(self.linear)(x)

    class Unknown(OfBatch):
        drop: eqx.nn.Dropout

        def __call__(self, x, learning=False, *, key=None):
            return self.drop(self.linear(x), key=key, inference=not learning)

    class Flagged(OfBatch):
        training: bool = False

    class Splits(eqx.Module):
        linear: eqx.nn.Linear
        drop: eqx.nn.Dropout = eqx.nn.Dropout(0.2)

        def __call__(self, x, key=key, inference=None):
            return self.drop(self.linear(x), key=jax.random.split(key)[0], inference=inference)

    trained(eqx.nn.MLP(6, 3, 8, 1, key=key), tmp_path / "mlp")
    trained(Splits(eqx.nn.Linear(6, 3, key=key)), tmp_path / "splits")
    trained(OfBatch(eqx.nn.Linear(6, 3, key=key)), tmp_path / "batch")
    stats = trained(eqx.nn.make_with_state(WithState)(), tmp_path / "state").batch_stats
    assert set(stats) == {"fixed", "state"}
    assert float(jnp.abs(stats["state"]["1"]["0"]).max()) > 0
    linear = eqx.nn.Linear(6, 3, key=key)
    for model, message in (
        (eqx.nn.make_with_state(WithState)()[0], r"give the pair \(model, state\)"),
        (Unknown(linear, eqx.nn.Dropout(0.2)), "learning is no flag"),
        (Flagged(linear, True), "switched by its attribute training, .*: call it inference"),
        (eqx.nn.Linear(7, 3, key=key), r"must turn one image .* or a batch, into embeddings"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            fit(model, tmp_path / "run")
    with pytest.raises(ValueError, match="running statistics of 1 frozen parts .*, norm first"):
        fit(eqx.nn.make_with_state(WithState)(), freeze="norm/.*")
    assert not (tmp_path / "run").exists()


# Functions


def init(key, images):
    return {"kernel": jax.random.normal(key, (images.shape[-1], 3))}


def apply(params, images, is_training, rng):
    return images @ params["kernel"] + (jax.random.normal(rng, (3,)) if is_training else 0)


NET = linen("training")


@pytest.mark.parametrize(
    "model",
    [
        (init, apply),
        (init, lambda params, images: images @ params["kernel"]),
        (NET.init, NET.apply),
        SimpleNamespace(init=init, apply=lambda params, images: images @ params["kernel"]),
    ],
)
def test_pairs_of_functions(model, tmp_path):
    trained(model, tmp_path)


def test_keys_by_name_are_given_in_training_alone():
    """As functions around Flax's modules take them: a dropout of all leaves nothing."""
    drop = nn.Dropout(1.0)

    def apply(params, images, rngs=None):
        x = images @ params["kernel"]
        return x if rngs is None else drop.apply({}, x, deterministic=False, rngs=rngs)

    result = fit((init, apply), steps=1)
    assert np.abs(result.embedder(FEATURES)).max() > 0.1
    assert result.history[-1]["grad_norm"] == 0


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ((1, 2), r"a pair \(init, apply\) of functions.*got a pair of a int and a int"),
        (None, "must be a module .*got None"),
        ((init, lambda params, rng, *a, **k: a), "functions of Haiku: write"),
        ((lambda key, x: ({}, {}), apply), "init must return parameters alone.* a tuple of 2"),
    ],
)
def test_pairs_that_are_none(model, message):
    with pytest.raises(TypeError, match=message):
        fit(model)


# The small questions that are asked of a network, a factory, a data set, before anything is traced.


@pytest.mark.parametrize("value", [None, True, "Train", "eval"])
def test_a_mode_in_its_author_s_words_is_refused(value):
    with pytest.raises(TypeError, match="told by a boolean whether it trains"):
        mode_flags.check_clear("its attribute mode", "mode", value)


@pytest.mark.parametrize("value", [3, "fan_in"])
def test_another_mode_is_its_own_matter(value):
    mode_flags.check_clear("its attribute mode", "mode", value)


def test_what_a_factory_is_called_with():
    settings = {"dim": 2, "dtype": None}
    assert _taken("a:b", lambda dim, *rest, **more: None, settings) == {"dim": 2}
    assert _taken("a:b", lambda dim, depth=3: None, settings) == {"dim": 2}
    with pytest.raises(TypeError, match="its argument depth has no default"):
        _taken("a:b", lambda dim, depth: None, settings)


def test_an_object_is_made_for_evaluation_unless_told():
    own = SimpleNamespace(init=lambda key, images, *, train: train, apply=lambda *_, **__: None)
    assert Object(own).init(None, FEATURES) is False
    assert Object(own).init(None, FEATURES, train=True) is True


def test_a_function_without_a_signature_is_not_haiku_s():
    assert not is_haiku(max)
    assert is_haiku(lambda params, rng, x: x)


def test_bytes_of_all_leaves():
    assert _bytes({"a": jnp.zeros(3), "b": jnp.zeros((2, 2), jnp.int8)}) == 16


def of_library(module, name):
    return type(name, (), {"__module__": module})()


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (of_library("torch.utils.data", "DataLoader"), "drawn its batches already: write"),
        (
            of_library("torch.utils.data", "TensorDataset"),
            r"TensorDataset: .*from_torch\(dataset\)",
        ),
        (of_library("grain", "Source"), r"a Source of Grain: write jdml.data.from_rows\(source\)"),
        ((FEATURES, LABELS), "got a tuple of 2: write jdml.data.Dataset"),
    ],
)
def test_what_is_no_data_set(train, message):
    with pytest.raises(TypeError, match=f"train must be a data set, .*{message}"):
        door.check_parts(*PARTS, train)


def test_another_library_s_object_with_images_is_a_data_set():
    train = of_library("torch.utils.data", "Mine")
    assert foreign.instead_of_train(train) is not None
    train.images, train.labels = FEATURES, LABELS
    door.check_parts(*PARTS, train)


def test_what_is_no_sampler():
    told = foreign.instead_of_sampler
    assert told(of_library("torch.utils.data", "RandomSampler")).startswith("got a PyTorch Random")
    assert told(of_library("torch.utils.data", "Subset")).startswith("got a Subset of PyTorch")
    assert told(of_library("grain", "IndexSampler")).startswith("got a IndexSampler of Grain")
    assert told(of_library("mine", "IndexSampler")) is None


def test_a_class_is_no_network():
    with pytest.raises(TypeError, match="model must be a module, got the class Dense: call it"):
        as_model(nn.Dense)


def test_a_sampler_of_other_rows_is_refused():
    sampler = data.RandomBatchSampler(24, 8)
    assert door.as_sampler(sampler, 24, saved=True) is sampler
    with pytest.raises(ValueError, match="sampler must be over the 20 rows of train, got one over"):
        door.as_sampler(sampler, 20, saved=True)
