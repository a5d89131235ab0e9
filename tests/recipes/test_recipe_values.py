"""A recipe is plain values, and refuses what none can be."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml
from jdml import recipes
from jdml.recipes import RECIPES, Recipe, make_objective, make_optimizer, recipe
from jdml.recipes.optimizer import learning_rate
from jdml.recipes.words import build_miner, parse_settings

pytestmark = pytest.mark.slow


def test_bad_names_and_sizes_are_refused():
    with pytest.raises(ValueError, match="method must be one of ccp, .*, got 'ppml'"):
        recipe("ppml", "cub")
    with pytest.raises(
        ValueError, match="protocol must be one of ablation, conventional, mlrc, got 'old'"
    ):
        recipe("pfml", "cub", protocol="old")
    with pytest.raises(ValueError, match="steps_per_epoch must be at least 1, got 0"):
        make_optimizer(recipe("pfml", "cub"), ("proxies",), 0)
    for wrong in ({"role_rates": {"proxy": 3.0}}, {"decayed": ("proxy",)}):
        with pytest.raises(
            ValueError, match="has 'proxy', expected some of .*scale, proxies, beta"
        ):
            make_optimizer(Recipe(**wrong), ("scale", "proxies"), 1)
    make_optimizer(Recipe(role_rates={"scale": 3.0, "beta": 2.0}), ("scale",), 1)
    with pytest.raises(ValueError, match="role_rates has 'model', whose rate is rate itself"):
        make_optimizer(Recipe(role_rates={"model": 3.0}), (), 1)
    make_optimizer(Recipe(decayed=("model",)), (), 1)


@pytest.mark.parametrize(
    ("name", "called"),
    [("CUB", "cub"), ("CUB_200_2011", "cub"), ("cars196", "cars"), ("In-shop", "inshop")],
)
def test_a_data_set_by_another_name_is_not_taken_for_one_s_own(name, called):
    with pytest.raises(
        ValueError, match=f"dataset must be '{called}' for the papers' .*, got '{name}'"
    ):
        recipe("contrastive", name)
    with pytest.raises(TypeError, match="dataset must be a name, got None"):
        recipe("contrastive", None)
    assert recipe("contrastive", "cubes") == recipe("contrastive", "photographs")


@pytest.mark.parametrize(
    ("method", "name", "value", "error", "message"),
    [
        ("ccp", "pool_size", 0, ValueError, "pool_size must be at least 1, got 0"),
        ("ccp", "restore", "maybe", TypeError, "restore must be True or False, got 'maybe'"),
        ("ccp", "single", 1, TypeError, "single must be True or False, got 1"),
        ("ccp", "first", "last", ValueError, "first must be one of random, .*, got 'last'"),
        ("nir", "warmup", -1, ValueError, "warmup_epochs must not be negative, got -1"),
        ("nir", "flow_lr", 0.0, ValueError, "flow_lr must be positive, got 0.0"),
        ("nir", "weight", "1", TypeError, "weight must be a number, got '1'"),
        ("nir", "temperature", float("inf"), ValueError, "temperature must be finite, got inf"),
    ],
)
def test_settings_out_of_range_are_refused_at_once(method, name, value, error, message):
    with pytest.raises(error, match=message):
        recipe(method, "cub", **{name: value})


@pytest.mark.parametrize("protocol", ["conventional", "mlrc"])
@pytest.mark.parametrize("dataset", [*recipes.DATASETS, "digits"])
@pytest.mark.parametrize("method", RECIPES)
def test_a_recipe_is_plain_values(method, dataset, protocol):
    """Through JSON and back it is the same; each value can be replaced."""
    made = recipe(method, dataset, protocol=protocol)
    again = Recipe.from_json(json.loads(json.dumps(made.to_json(), allow_nan=False)))
    assert again == made
    assert hash(again) == hash(made)
    other = dataclasses.replace(made, rate=2 * made.rate)
    assert other != made
    assert other.to_json() == {**made.to_json(), "rate": 2 * made.rate}


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"loss": "tripplet"}, ValueError, "loss must be one of .*; did you mean triplet"),
        ({"losses": "triplet"}, ValueError, "a recipe has no 'losses'; did you mean loss"),
        ({"method": {"name": "nir", "wait": 1}}, ValueError, "method nir has no 'wait'"),
        ({"method": 3}, TypeError, "method must be values by name, got a int"),
        ({"method": {}}, ValueError, "method's name must be one of nir, ccp, got None"),
        ({"rate": -1.0}, ValueError, "rate must be positive, got -1.0"),
        ({"rate": "fast"}, TypeError, "rate must be a number, got 'fast'"),
        ({"batch": [0, 4]}, ValueError, "batch must be a number of samples, or"),
        ({"batch": [1, 2, 3]}, ValueError, "batch must be a number of samples, or"),
        ({"rate": None}, TypeError, "rate must be given, got None"),
        ({"rule": None}, TypeError, "rule must be given, got None"),
        ({"b2": 1.0}, ValueError, "b2 must be from 0 to below 1, got 1.0"),
        ({"role_rates": {"proxies": -1}}, ValueError, r"role_rates\['proxies'\] must be a number"),
        ({"decayed": "proxies"}, TypeError, "decayed must be names of roles, got the word"),
        ({"batch": "8x4"}, ValueError, "batch must be a number of samples, or .*, got '8x4'"),
        ({"batch": [8]}, ValueError, r"batch must be a number of samples, or .*, got \(8,\)"),
        ({"dim": 8.5}, TypeError, "dim must be a whole number, got 8.5"),
        ({"proxies_per_class": 2.5}, TypeError, "proxies_per_class must be a whole number, got"),
        ({"settings": {"mine": len}}, TypeError, r"settings\['mine'\] must be a plain value"),
        ({"loss": "arcface", "miner": "eps"}, ValueError, "miner is for pair losses"),
        ({"loss": "arcface", "memory": 8}, ValueError, "memory is for pair losses"),
        ({"proxies_per_class": 2}, ValueError, "proxies_per_class is for proxy losses"),
        ({"loss": "arcface", "proxies_per_class": 0}, ValueError, "must be positive .0 for contr"),
        ({"method": {"name": "nir"}}, ValueError, "method nir is for proxy losses"),
        (
            {"loss": "arcface", "method": {"name": "ccp"}},
            ValueError,
            "method ccp is for pair losses",
        ),
        ({"method": {"name": "ccp"}, "memory": 8}, ValueError, "memory is not for method ccp"),
        ({"learn_beta": "class"}, ValueError, "learn_beta is for loss margin, with method plain"),
        ({"start": "samples"}, ValueError, "start samples needs proxies that are learned"),
        ({"steps": 5, "rate_warmup": 5}, ValueError, "rate_warmup must be below steps, 5, got 5"),
        ({"schedule": "cosine", "decay_every": 2}, ValueError, "goes with schedule constant"),
        ({"freeze": 3}, TypeError, "freeze must be a text, got a int"),
        ({"freeze": "a", "lora": 2}, ValueError, "freeze and lora both say what stays"),
        ({"lora_paths": "a"}, ValueError, "lora_paths needs lora, a rank"),
        ({"lora": 2, "layer_decay": 0.5}, ValueError, "blocks that learn, with lora 2 they stay"),
        ({"kept_views": 2}, ValueError, "kept_views needs freeze backbone, got None"),
        ({"network": "small", "last_blocks": 2}, ValueError, "needs a network with blocks .resnet"),
        ({"layer_decay": 1.0}, ValueError, "layer_decay must be between 0 and 1, got 1.0"),
        ({"freeze_batch_norm": "yes"}, TypeError, "freeze_batch_norm must be True or False"),
        ({"freeze": "("}, ValueError, r"freeze must be a regular expression, got '\(': missing"),
        ({"lora": 2, "lora_paths": "["}, ValueError, "lora_paths must be a regular expression"),
        ({"network": 5}, TypeError, "network must be a text, got a int"),
        ({"pooling": 5}, TypeError, "pooling must be a text, got a int"),
        ({"batch_within": 5}, TypeError, "batch_within must be a text, got a int"),
        ({"decayed": 5}, TypeError, "decayed must be names of roles, got 5"),
    ],
)
def test_what_no_recipe_can_be_is_refused(values, error, message):
    with pytest.raises(error, match=message):
        Recipe.from_json(values)


def test_numbers_of_numpy_and_jax_are_numbers():
    numbers = {"dim": np.int64(32), "rate": np.float64(0.1), "weight_decay": jnp.float32(0.5)}
    made = Recipe(**numbers, skip_nonfinite=np.int8(3))
    assert made == Recipe(dim=32, rate=0.1, weight_decay=0.5, skip_nonfinite=3)
    assert {type(value) for value in (made.dim, made.rate, made.weight_decay)} == {int, float}
    assert json.loads(json.dumps(made.to_json()))["dim"] == 32
    nir = recipes.with_method(Recipe(loss="proxy_anchor"), "nir", weight=np.float64(0.5))
    assert type(nir.method.weight) is float
    for method, loss in (("nir", "proxy_anchor"), ("ccp", "contrastive")):
        with pytest.raises(ValueError, match=f"method {method} has no 'wieght'"):
            recipes.with_method(Recipe(loss=loss), method, wieght=1)


def test_a_single_problem_has_no_patience():
    base = Recipe(loss="contrastive")
    for make in (recipes.with_method, lambda *a, **k: recipes.recipe("ccp", "cars", **k)):
        with pytest.raises(
            ValueError, match="method ccp: patience ends a problem, and the single one never"
        ):
            make(base, "ccp", single=True, patience=5)
    assert recipes.with_method(base, "ccp", single=True, patience=None).method.patience > 1000


def test_a_setting_is_said_once():
    for say in (
        lambda: parse_settings(["margin=0.1", "margin=0.9"], "--loss-setting"),
        lambda: build_miner("semi_hard:margin=0.1,margin=0.9", dim=8),
    ):
        with pytest.raises(ValueError, match="says margin twice: 'margin=0.9' is one more"):
            say()


def test_a_number_of_a_miner_may_have_a_plus():
    chained = build_miner("eps+semi_hard:margin=2e+0", dim=8)
    assert chained == build_miner("eps+semi_hard:margin=2.0", dim=8)


def test_rates_go_down_every_so_many_epochs_whatever_the_warm_up():
    made = Recipe(rate=1.0, decay_every=1, rate_warmup=4, rule="sgd")
    rate = learning_rate(made, 1.0, steps=20, steps_per_epoch=5)
    assert [float(rate(step)) for step in (3, 4, 5, 9, 10, 15)] == [1, 1, 0.5, 0.5, 0.25, 0.125]


@pytest.mark.parametrize("several", [(1, 2, 1), (1.0, 2.0, 1.0), (1, 2.0, 1)])
def test_numbers_of_each_class_may_be_whole(several):
    x, labels = np.eye(4, 3, dtype=np.float32), np.array([0, 0, 1, 2])
    made = make_objective(Recipe(loss="margin", settings={"beta": several}), 3)
    expected = jdml.margin_loss(x, labels, beta=np.array(several, np.float32))
    np.testing.assert_allclose(made.loss({}, x, labels)[0], expected, rtol=1e-6)
    proxies = make_objective(
        Recipe(loss="subcenter_arcface", settings={"margin": (0, 0, 1)}, dim=3), 3
    )
    assert np.isfinite(proxies.loss(proxies.init(jax.random.key(0)), x, labels)[0])
    for loss, name, message in (
        ("triplet", "margin", "margin must be a number >= 0, got"),
        ("arcface", "margin", "margin must be a number an angle in radians, 0…π, got"),
        ("margin", "beta", "beta must be a number finite, got"),
    ):
        wrong = ("a", "b", "c") if loss == "margin" else (1, 1.0, 1)
        made = make_objective(Recipe(loss=loss, settings={name: wrong}, dim=3), 3)
        with pytest.raises(TypeError, match=message):
            made.loss(made.init(jax.random.key(0)), x, labels)
    made = make_objective(Recipe(loss="recall_at_k", settings={"k": (1, 2)}), 3)
    np.testing.assert_allclose(
        made.loss({}, x, labels)[0], jdml.recall_at_k_loss(x, labels, k=(1, 2)), rtol=1e-6
    )


def test_boundaries_that_are_learned_begin_at_as_many_as_there_are():
    for learned, beta, expected in (
        ("shared", (1.0, 1.1, 1.2), "a number where learn_beta is shared, got 3 of them"),
        ("class", (1.0, 1.1), "a number, or one for each of the 3 classes, got 2"),
    ):
        made = Recipe(loss="margin", learn_beta=learned, settings={"beta": beta})
        with pytest.raises(ValueError, match=f"beta must be {expected}"):
            make_objective(made, 3)
    made = Recipe(loss="margin", learn_beta="class", settings={"beta": (1, 2, 1)})
    assert make_objective(made, 3).init(jax.random.key(0))["beta"].tolist() == [1, 2, 1]


def test_unknown_settings_of_a_miner_are_told_with_the_nearest():
    for words, message in (
        ("semi_hard:margn=.2", "semi_hard_negative has no setting 'margn'; did you mean margin"),
        ("eps:k=2", "easy_positive has no setting 'k'; it has none"),
    ):
        with pytest.raises(ValueError, match=message):
            build_miner(words, dim=8)


def test_what_was_typed_goes_before_the_protocol():
    made = recipe("nir", "cub", protocol="mlrc", warmup=3, pooling="average+max")
    assert (made.warmup_epochs, made.pooling) == (3, "average+max")


def test_numbers_of_classes_are_as_many_as_there_are_classes():
    made = Recipe(loss="margin", settings={"beta": [1.2, 1.3, 1.1]})
    assert make_objective(made, 3)
    with pytest.raises(
        ValueError, match="settings: beta must be a number, or one for each of the 4"
    ):
        make_objective(made, 4)


def test_equal_recipes_have_equal_hashes():
    assert Recipe(rate=1) == Recipe(rate=1.0)
    assert hash(Recipe(rate=1)) == hash(Recipe(rate=1.0))
