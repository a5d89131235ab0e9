"""Networks that `fit` accepts: each kind is trained, saved and loaded, or refused before any file."""

import sys
from types import SimpleNamespace

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from models import networks
from models.networks import Unknown, Variables, linen

import jdml
from jdml import data, objectives, training
from jdml.models.adapters import as_model
from jdml.models.base_adapter import EVALUATION, TRAINING
from jdml.recipes import NetworkConfig, Recipe
from jdml.training.train_recipe import make_network

FEATURES = np.random.default_rng(0).normal(size=(24, 6)).astype(np.float32)
SET = data.Dataset("features", FEATURES, np.arange(24) % 4)
OBJECTIVE = objectives.pair(jdml.triplet_loss)
KEY = jax.random.key(0)


def fit(model, folder=None, steps=2):
    parts = OBJECTIVE, optax.adam(1e-2), SET, data.RandomBatchSampler(24, 8)
    return training.fit(model, *parts, steps=steps, run=folder, progress=False)


def trained(model, folder):
    """Train a network; its kernels and running means change, and the run's folder embeds like the result."""
    fresh = training.create_state(model, OBJECTIVE, optax.adam(1e-2), FEATURES, seed=0)
    result = fit(model, folder)
    state = result.state
    before, after = (jax.tree.leaves(s.params["model"]) for s in (fresh, state))
    assert all((a != b).any() for a, b in zip(before, after, strict=True) if np.ndim(a) > 1)
    assert jax.tree.structure(fresh.batch_stats) == jax.tree.structure(state.batch_stats)
    assert all((mean != 0).any() for mean in means(state.batch_stats))
    loaded = training.load(folder, model=model)
    np.testing.assert_array_equal(loaded.embed(FEATURES), result.embedder(FEATURES))
    return state


def means(stats):
    """Return the running means of batch normalization."""
    leaves = jax.tree_util.tree_leaves_with_path(stats)
    return [x for path, x in leaves if "mean" in str(path)]


@pytest.mark.slow  # another program
def test_other_linen_collections_are_carried(tmp_path):
    state = trained(networks.Collections(), tmp_path)
    assert state.batch_stats["~counts"]["rows"] == 16


def test_all_variables_of_an_nnx_module_are_carried(tmp_path):
    stats = trained(Variables(), tmp_path).batch_stats
    assert (stats["number"], stats["kind"] > 1) == (2, True)
    assert float(jnp.abs(stats["cache"]).max()) > 0
    own = [training.load(tmp_path, model=Variables(seed)).embed(FEATURES) for seed in (0, 7)]
    np.testing.assert_array_equal(*own)


def test_nnx_dropout_uses_the_steps_key():
    model = as_model(networks.Nnx())
    variables = model.init(None, None)
    drawn = [
        model.apply(variables, FEATURES, train=True, rngs={"dropout": jax.random.key(seed)})[0]
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).any()


def test_bridge_from_linen_to_nnx_switches_modes():
    bridge = nnx.bridge.ToNNX(linen("train"), rngs=nnx.Rngs(0)).lazy_init(FEATURES[:1])
    stats = fit(bridge).state.batch_stats
    assert all((leaf != 0).any() for leaf in jax.tree.leaves(stats))


def test_equinox_modules_with_a_state(tmp_path):
    stats = trained(eqx.nn.make_with_state(networks.WithState)(), tmp_path).batch_stats
    assert set(stats) == {"fixed", "state"}
    assert float(jnp.abs(stats["state"]["1"]["0"]).max()) > 0
    with pytest.raises(ValueError, match=r"^pattern\b.*norm"):
        fit(training.Frozen(eqx.nn.make_with_state(networks.WithState)(), "norm/.*"))


PARTS = {"a/b": jnp.ones((2, 3)), "a": {"b": jnp.arange(2.0)}}


@pytest.mark.parametrize(
    ("module", "channels"),
    [(eqx.nn.Conv2d(3, 4, 3, key=KEY), 1), (networks.Pictures(PARTS, jnp.array(2.0)), 3)],
)
def test_equinox_modules_take_images_as_they_are_if_they_can(module, channels):
    """Otherwise, like convolutions, with their channels first."""
    model, images = as_model(module), jax.random.normal(KEY, (2, 8, 7, 3))
    embeddings = model.apply(model.init(KEY, images), images)
    expected = jax.vmap(module)(jnp.moveaxis(images, -1, channels))
    np.testing.assert_array_equal(embeddings, expected)


# Functions


def init(key, images):
    return {"kernels": [jax.random.normal(key, (images.shape[-1], 3))]}


def apply(params, images):
    return images @ params["kernels"][0]


def noisy(params, images, is_training, rng):
    return images @ params["kernels"][0] + (jax.random.normal(rng, (3,)) if is_training else 0)


class Unhashable:
    """An object with Linen's two methods."""

    __hash__ = None

    def __init__(self):
        self.module, self.trains = linen("train"), set()

    def init(self, key, images, *, train):
        self.trains.add(train)
        return self.module.init(key, images, train=train)

    def apply(self, variables, images, **settings):
        return self.module.apply(variables, images, **settings)


@pytest.mark.parametrize(
    "make",
    [
        networks.Attribute,
        pytest.param(networks.sequential, marks=pytest.mark.slow),  # another program
        networks.nnx_sequential,
        lambda: eqx.nn.MLP(6, 3, 8, 1, key=KEY),
        lambda: (init, noisy),
        lambda: SimpleNamespace(init=init, apply=apply),
    ],
)
def test_networks_of_every_kind(make, tmp_path):
    trained(make(), tmp_path)


def test_unhashable_object_is_initialized_in_evaluation_mode(tmp_path):
    model = Unhashable()
    trained(model, tmp_path)
    assert model.trains == {False}


def test_rngs_are_passed_in_training_only():
    """Functions around Flax modules take `rngs`."""
    passed = []
    model = as_model((init, lambda params, images, rngs=None: passed.append(rngs)))
    for rngs in ({"dropout": KEY}, None):
        model.apply({"params": {}}, FEATURES, train=rngs is not None, rngs=rngs)
    assert passed == [{"dropout": KEY}, None]


def test_bound_methods_stand_for_their_module():
    module = linen("training")
    assert as_model((module.init, module.apply)) == as_model(module)


# Refusals, each before any file


UNKNOWN = [lambda: linen("learning"), Unknown, networks.UnknownNnx, networks.UnknownEquinox]
REFUSED = [
    *((make, ValueError, "train_flag") for make in UNKNOWN),
    (lambda: linen("mode", True), ValueError, "train_flag"),
    (lambda: Unknown(True), ValueError, "train_flag"),
    (networks.WithKey, TypeError, "key"),
    (lambda: nn.Dense, TypeError, "Dense"),
    (lambda: None, TypeError, "None"),
]


@pytest.mark.parametrize(("make", "error", "words"), REFUSED)
def test_wrong_networks_are_refused(make, error, words, tmp_path):
    with pytest.raises(error, match=rf"^model\b.*{words}") as caught:
        fit(make(), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("make", UNKNOWN)
def test_a_flag_of_another_name_is_set(make):
    model = as_model(make(), train_flag="learning")
    variables = model.init(KEY, FEATURES)
    settings = {"mutable": ["batch_stats"], "rngs": {"dropout": KEY}}
    trained, evaluated = (
        model.apply(variables, FEATURES, train=train, **settings)[0] for train in (True, False)
    )
    assert (trained != evaluated).any()
    with pytest.raises(ValueError, match=r"^train_flag\b"):
        as_model(make(), train_flag="other")


def test_network_that_is_the_same_in_training_is_accepted_where_its_user_says_so():
    fit(as_model(Unknown(), train_flag=False))
    fit(training.WithLora(as_model(Unknown(), train_flag=False), 2, "Dense.*", also="Dense"))


def test_backbone_and_head_are_checked_separately():
    """A user's word about one of them does not cover the other."""
    same, wrong = as_model(Unknown(), train_flag=False), linen("learning")
    for parts in ((same, wrong), (wrong, same)):
        with pytest.raises(ValueError, match=r"^model\b.*train_flag"):
            fit(jdml.models.WithHead(*parts))
    fit(jdml.models.WithHead(same, linen("train")))


def test_several_outputs_need_an_objective_that_takes_them():
    """tests/use/test_fit.py trains with one."""
    with pytest.raises(TypeError, match=r"^embeddings\b"):
        fit((init, lambda params, images: {"embeddings": apply(params, images)}))


def test_factory_gets_the_recipes_arguments(monkeypatch):
    """A factory that requires other arguments is refused."""
    calls = []

    def net(dim, *layers, **more):
        calls.append((dim, layers, more))
        return networks.Attribute()

    own = SimpleNamespace(net=net, deep=lambda dim, depth: None)
    monkeypatch.setitem(sys.modules, "own_nets", own)
    make_network(Recipe(network=NetworkConfig("own_nets:net", dim=3)), SET)
    assert calls == [(3, (), {})]
    with pytest.raises(ValueError, match=r"\bown_nets:deep\b.*\bdepth\b"):
        make_network(Recipe(network=NetworkConfig("own_nets:deep")), SET)


# The seven flag names of the API, and layers in evaluation mode


@pytest.mark.parametrize("name", [*TRAINING, *EVALUATION])
def test_every_known_flag_is_set(name):
    scope = {"modes": []}
    exec(f"def net(params, x, {name}=None):\n  modes.append({name})\n  return x @ params", scope)
    net = as_model((lambda key, x: jnp.ones((6, 2)), scope["net"]))
    variables = net.init(KEY, FEATURES)
    net.apply(variables, FEATURES, train=True)
    net.apply(variables, FEATURES, train=False)
    assert scope["modes"] == [name in TRAINING, name in EVALUATION]


@pytest.mark.parametrize(
    ("make", "moves"), [(lambda: networks.Scaled(True), False), (networks.in_evaluation_mode, True)]
)
def test_batch_norm_in_evaluation_mode_is_frozen_unless_all_layers_are(make, moves, caplog):
    """It is warned of where it is frozen."""
    before, after = (means(fit(make(), steps=steps).state.batch_stats)[0] for steps in (0, 2))
    assert (before != after).any() == moves
    assert any("norm" in line and "evaluation" in line for line in caplog.messages) != moves


def test_resume_refuses_another_network(tmp_path):
    """A module's own numbers are compared; the training mode is not."""
    more = training.RunConfig(tmp_path, allow_more_steps=True)
    fit(networks.Scaled(), tmp_path)
    with pytest.raises(ValueError, match=r"\bmodel\b"):
        fit(networks.Scaled(scale=2.0), more, steps=3)
    assert fit(networks.in_evaluation_mode(), more, steps=3).state.step == 3
