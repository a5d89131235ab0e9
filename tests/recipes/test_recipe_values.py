"""A recipe consists of plain values, and refuses wrong ones."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml
from jdml import recipes
from jdml.recipes import RECIPES, Recipe, make_objective, make_optimizer, recipe
from jdml.recipes.words import build_miner, parse_settings


@pytest.mark.parametrize(
    ("call", "error", "name"),
    [
        (lambda: recipe("ppml", "cub"), ValueError, "method"),
        (lambda: recipe("pfml", "cub", protocol="old"), ValueError, "protocol"),
        (lambda: recipe("contrastive", None), TypeError, "dataset"),
        (lambda: recipe("ccp", "cub", pool_size=0), ValueError, "pool_size"),
        (lambda: recipe("ccp", "cub", first="last"), ValueError, "first"),
        (lambda: recipe("ccp", "cub", preset="mine"), ValueError, "preset"),
        (lambda: recipe("ccp", "cub", single=True, patience=5), ValueError, "method ccp: patience"),
        (lambda: recipe("nir", "cub", warmup=-1), ValueError, "warmup_epochs"),
        (lambda: recipe("nir", "cub", flow_lr=0.0), ValueError, "flow_lr"),
        (lambda: recipe("nir", "cub", weight="1"), TypeError, "weight"),
        (lambda: recipe("nir", "cub", single=True), ValueError, "nir has no setting 'single'"),
        (lambda: recipe("pfml", "cub", preset="best"), ValueError, "preset"),
        (lambda: recipe("pfml", "cub", clip="all"), ValueError, "clip"),
        (lambda: recipe("xbm", "cub", size="M"), ValueError, "size"),
        (lambda: recipe("xbm", "cub", loss="triplet"), ValueError, "loss"),
        (lambda: make_optimizer(recipe("pfml", "cub"), ("proxies",), 0), ValueError, "steps_per"),
        (
            lambda: make_optimizer(Recipe(role_rates={"proxy": 3.0}), (), 1),
            ValueError,
            "role_rates",
        ),
        (lambda: make_optimizer(Recipe(decayed=("proxy",)), (), 1), ValueError, "decayed"),
        (lambda: parse_settings(["margin=.1", "margin=.9"], "--own"), ValueError, "--own"),
        (lambda: build_miner("semi_hard:margin=.1,margin=.9", dim=8), ValueError, "miner semi_h"),
        (lambda: build_miner("semi_hard:margn=.2", dim=8), ValueError, "miner semi_hard"),
    ],
)
def test_wrong_arguments_are_refused(call, error, name):
    with pytest.raises(error, match=rf"^{name}"):
        call()


NIR, CCP = {"name": "nir"}, {"name": "ccp"}


@pytest.mark.parametrize(
    ("values", "error", "name"),
    [
        ({"loss": "tripplet"}, ValueError, "loss"),
        ({"losses": "triplet"}, ValueError, "a recipe has no 'losses'"),
        ({"method": {**NIR, "wait": 1}}, ValueError, "method nir has no 'wait'"),
        ({"method": 3}, TypeError, "method"),
        ({"rate": -1.0}, ValueError, "rate"),
        ({"rate": "fast"}, TypeError, "rate"),
        ({"b2": 1.0}, ValueError, "b2"),
        ({"dim": 8.5}, TypeError, "dim"),
        ({"freeze_batch_norm": "yes"}, TypeError, "freeze_batch_norm"),
        ({"head": "pca"}, ValueError, "head"),
        ({"batch": [0, 4]}, ValueError, "batch"),
        ({"settings": {"mine": len}}, TypeError, r"settings\['mine'\]"),
        ({"role_rates": {"proxies": -1}}, ValueError, r"role_rates\['proxies'\]"),
        ({"decayed": "proxies"}, TypeError, "decayed"),
        ({"loss": "arcface", "miner": "eps"}, ValueError, "miner"),
        ({"loss": "arcface", "memory": 8}, ValueError, "memory"),
        ({"loss": "arcface", "proxies_per_class": 0}, ValueError, "proxies_per_class"),
        ({"proxies_per_class": 2}, ValueError, "proxies_per_class"),
        ({"method": NIR}, ValueError, "method nir"),
        ({"loss": "arcface", "method": CCP}, ValueError, "method ccp"),
        ({"method": CCP, "memory": 8}, ValueError, "memory"),
        ({"learn_beta": "class"}, ValueError, "learn_beta"),
        ({"start": "samples"}, ValueError, "start"),
        ({"steps": 5, "rate_warmup": 5}, ValueError, "rate_warmup"),
        ({"schedule": "cosine", "decay_every": 2}, ValueError, "decay_every"),
        ({"freeze": "("}, ValueError, "freeze"),
        ({"freeze": "a", "lora": 2}, ValueError, "freeze and lora"),
        ({"lora": 2, "layer_decay": 0.5}, ValueError, "layer_decay"),
        ({"kept_views": 2}, ValueError, "kept_views"),
        ({"network": "small", "last_blocks": 2}, ValueError, "last_blocks"),
    ],
)
def test_wrong_fields_are_refused(values, error, name):
    with pytest.raises(error, match=rf"^{name}"):
        Recipe.from_json(values)


@pytest.mark.parametrize(
    ("name", "known"), [("CUB", "cub"), ("CUB_200_2011", "cub"), ("cars196", "cars"), ("In-shop", "inshop")]
)  # fmt: skip
def test_other_spelling_of_a_data_set_is_refused(name, known):
    with pytest.raises(ValueError, match=rf"^dataset\b.*'{known}'.*'{name}'"):
        recipe("contrastive", name)
    assert recipe("contrastive", "cubes") == recipe("contrastive", "photographs")


@pytest.mark.parametrize("protocol", ["conventional", "mlrc"])
def test_recipe_round_trips_through_json(protocol):
    """Recipes are equal and hashable by value, and each field can be replaced."""
    for method in RECIPES:
        for dataset in (*recipes.DATASETS, "digits"):
            made = recipe(method, dataset, protocol=protocol)
            again = Recipe.from_json(json.loads(json.dumps(made.to_json(), allow_nan=False)))
            assert again == made
            assert hash(again) == hash(made)
            other = dataclasses.replace(made, rate=2 * made.rate)
            assert other != made
            assert other.to_json() == {**made.to_json(), "rate": 2 * made.rate}
    assert Recipe(rate=1) == Recipe(rate=1.0)
    assert hash(Recipe(rate=1)) == hash(Recipe(rate=1.0))


def test_numpy_and_jax_scalars_become_python_numbers():
    numbers = {"dim": np.int64(32), "rate": np.float64(0.1), "weight_decay": jnp.float32(0.5)}
    made = Recipe(**numbers, skip_nonfinite=np.int8(3))
    assert made == Recipe(dim=32, rate=0.1, weight_decay=0.5, skip_nonfinite=3)
    assert {type(value) for value in (made.dim, made.rate, made.weight_decay)} == {int, float}
    assert json.loads(json.dumps(made.to_json()))["dim"] == 32


def test_with_method_adds_a_method_to_a_recipe():
    nir = recipes.with_method(Recipe(loss="proxy_anchor"), "nir", weight=np.float64(0.5))
    assert type(nir.method.weight) is float
    for method, loss in (("nir", "proxy_anchor"), ("ccp", "contrastive")):
        with pytest.raises(ValueError, match=rf"^method {method} has no 'wieght'"):
            recipes.with_method(Recipe(loss=loss), method, wieght=1)
    base = Recipe(loss="contrastive")
    with pytest.raises(ValueError, match="^method ccp: patience"):
        recipes.with_method(base, "ccp", single=True, patience=5)
    assert recipes.with_method(base, "ccp", single=True, patience=None).method.patience > 1000


def test_setting_may_be_one_number_per_class():
    x, labels = np.eye(4, 3, dtype=np.float32), np.array([0, 0, 1, 2])

    def objective(loss, num_classes=3, **settings):
        return make_objective(Recipe(loss=loss, settings=settings, dim=3), num_classes)

    several = (1, 2.0, 1)
    expected = jdml.margin_loss(x, labels, beta=np.array(several, np.float32))
    made = objective("margin", beta=several)
    np.testing.assert_allclose(made.loss({}, x, labels)[0], expected, rtol=1e-6)
    proxies = objective("subcenter_arcface", margin=(0, 0, 1))
    assert np.isfinite(proxies.loss(proxies.init(jax.random.key(0)), x, labels)[0])
    made = objective("recall_at_k", k=(1, 2))  # a setting that is a tuple anyway
    expected = jdml.recall_at_k_loss(x, labels, k=(1, 2))
    np.testing.assert_allclose(made.loss({}, x, labels)[0], expected, rtol=1e-6)
    with pytest.raises(ValueError, match="^settings: beta"):
        objective("margin", num_classes=4, beta=list(several))
    for loss, name, wrong in (("triplet", "margin", several), ("margin", "beta", ("a", "b", "c"))):
        made = objective(loss, **{name: wrong})
        with pytest.raises(TypeError, match=rf"^{name}\b"):
            made.loss(made.init(jax.random.key(0)), x, labels)


def test_learned_beta_starts_at_the_given_numbers():
    for learned, beta in (("shared", (1.0, 1.1, 1.2)), ("class", (1.0, 1.1))):
        made = Recipe(loss="margin", learn_beta=learned, settings={"beta": beta})
        with pytest.raises(ValueError, match="^settings: beta"):
            make_objective(made, 3)
    made = Recipe(loss="margin", learn_beta="class", settings={"beta": (1, 2, 1)})
    assert make_objective(made, 3).init(jax.random.key(0))["beta"].tolist() == [1, 2, 1]


def test_given_settings_override_the_protocols():
    made = recipe("nir", "cub", protocol="mlrc", warmup=3, pooling="average+max")
    assert (made.warmup_epochs, made.pooling) == (3, "average+max")
