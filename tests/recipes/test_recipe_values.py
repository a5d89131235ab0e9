"""A recipe consists of plain values, and refuses wrong ones."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml
from jdml import recipes
from jdml.recipes import (
    RECIPES,
    BatchConfig,
    LossConfig,
    NetworkConfig,
    OptimizerConfig,
    Recipe,
    recipe,
    recommended,
)
from jdml.recipes.config import parse_settings
from jdml.recipes.loss import build_miner


def rates_of(multipliers):
    """Build an optimizer with these multipliers, and begin."""
    optimizer = OptimizerConfig(lr_multipliers=multipliers).build(steps=9)
    return optimizer.init({"model": {"conv": jnp.ones(1), "head": jnp.ones(1)}})


def decay_of(roles):
    return OptimizerConfig(weight_decay_roles=roles).build(steps=9)


@pytest.mark.parametrize(
    ("call", "error", "name"),
    [
        (lambda: recipe("ppml", "cub"), ValueError, "method"),
        (lambda: recipe("pfml", "cub", protocol="old"), ValueError, "protocol"),
        (lambda: recipe("ccp", "cub", pool_size=0), ValueError, "pool_size"),
        (lambda: recipe("ccp", "cub", initial_proxies="last"), ValueError, "initial_proxies"),
        (lambda: recipe("ccp", "cub", preset="mine"), ValueError, "preset"),
        (lambda: recipe("ccp", "cub", single=True, patience=5), ValueError, "method ccp: patience"),
        (lambda: recipe("nir", "cub", flow_learning_rate=0.0), ValueError, "flow_learning"),
        (lambda: recipe("nir", "cub", weight="1"), TypeError, "weight"),
        (lambda: recipe("nir", "cub", single=True), ValueError, "nir has no setting 'single'"),
        (lambda: recipe("xbm", "cub", size="M"), ValueError, "size"),
        (lambda: recommended(pretraining="big"), ValueError, "pretraining"),
        (lambda: recommended(steps=-1), ValueError, "steps"),
        (lambda: recommended(rows=3), ValueError, "rows"),
        (lambda: rates_of({"proxy": 3.0}), ValueError, "lr_multipliers"),
        (lambda: rates_of({"model": 3.0}), ValueError, "lr_multipliers"),
        (lambda: decay_of(("proxy",)), ValueError, "weight_decay_roles"),
        (lambda: parse_settings(["margin=.1", "margin=.9"], "--own"), ValueError, "--own"),
        (lambda: build_miner("semi_hard:margin=.1,margin=.9", dim=8), ValueError, "miner semi_h"),
    ],
)
def test_wrong_arguments_are_refused(call, error, name):
    with pytest.raises(error, match=rf"^{name}"):
        call()


NIR, CCP = {"name": "nir"}, {"name": "ccp"}


@pytest.mark.parametrize(
    ("values", "error", "name"),
    [
        ({"loss": {"name": "tripplet"}}, ValueError, "loss"),
        ({"losses": {}}, ValueError, "Recipe has no setting"),
        ({"loss": {"method": {**NIR, "wait": 1}}}, ValueError, "NIR has no setting"),
        ({"optimizer": {"learning_rate": "fast"}}, TypeError, "learning_rate"),
        ({"network": {"dim": 8.5}}, TypeError, "dim"),
        ({"finetune": {"freeze_batch_norm": "yes"}}, TypeError, "freeze_batch_norm"),
        ({"network": {"head_init": "pca"}}, ValueError, "head_init"),
        ({"batch": {"classes": 0, "samples_per_class": 4}}, ValueError, "classes"),
        ({"batch": {"classes": 4}}, ValueError, "classes"),
        ({"batch": {"size": 4, "classes": 2, "samples_per_class": 2}}, ValueError, "size"),
        ({"batch": {"size": 4, "group_by": "kind"}}, ValueError, "group_by"),
        ({"loss": {"settings": {"mine": len}}}, TypeError, r"settings\['mine'\]"),
        ({"loss": {"name": "arcface", "memory_size": 8}}, ValueError, "memory_size"),
        ({"loss": {"name": "arcface", "proxies": {"per_class": 0}}}, ValueError, "per_class"),
        ({"loss": {"method": NIR}}, ValueError, "method nir"),
        ({"loss": {"name": "arcface", "method": CCP}}, ValueError, "method ccp"),
        ({"loss": {"method": CCP, "memory_size": 8}}, ValueError, "memory_size"),
        ({"loss": {"learn_beta": "class"}}, ValueError, "learn_beta"),
        ({"loss": {"proxies": {"init": "samples"}}}, ValueError, "init"),
        ({"network": {"name": "small"}, "finetune": {"last_blocks": 2}}, ValueError, "last_bl"),
        ({"loss": "triplet"}, TypeError, "LossConfig must be values by name"),
        ({"optimizer": {"b2": {"model": 0.9}}}, TypeError, "b2"),
        ({"optimizer": {"schedule": "cosine:every=2"}}, ValueError, "schedule"),
        ({"optimizer": {"schedule": "step"}}, ValueError, "schedule step needs"),
        ({"finetune": {"freeze": "a", "lora": 2}}, ValueError, "freeze and lora"),
        ({"finetune": {"lora": 2, "layer_decay": 0.5}}, ValueError, "layer_decay"),
        ({"finetune": {"cached_views": 2}}, ValueError, "cached_views"),
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
            rate = 2 * made.optimizer.learning_rate
            other = made.replace(optimizer={"learning_rate": rate})
            changed = {**made.optimizer.to_json(), "learning_rate": rate}
            assert other.to_json() == {**made.to_json(), "optimizer": changed} != made.to_json()
    assert OptimizerConfig(learning_rate=1) == OptimizerConfig(learning_rate=1.0)
    assert hash(OptimizerConfig(learning_rate=1)) == hash(OptimizerConfig(learning_rate=1.0))


def test_size_and_classes_replace_each_other():
    batch = BatchConfig(classes=8, samples_per_class=4)
    assert (batch.rows, str(batch)) == (32, "8x4")
    assert batch.replace(size=5) == BatchConfig(size=5)
    assert BatchConfig(size=5).replace(classes=8, samples_per_class=4) == batch
    assert BatchConfig().rows == 128
    assert BatchConfig(steps=9).replace(epochs=2) == BatchConfig(epochs=2)


def test_numpy_and_jax_scalars_become_python_numbers():
    dim = NetworkConfig(dim=np.int64(32)).dim
    optimizer = OptimizerConfig(learning_rate=np.float64(0.1), weight_decay=jnp.float32(0.5))
    assert optimizer == OptimizerConfig(learning_rate=0.1, weight_decay=0.5)
    assert (dim, type(dim), type(optimizer.weight_decay)) == (32, int, float)


def test_method_is_put_onto_a_recipe():
    def base(loss):
        return Recipe(loss=LossConfig(loss))

    nir = recipes.NIRConfig.onto(base("proxy_anchor"), weight=np.float64(0.5))
    assert type(nir.loss.method.weight) is float
    single = recipes.CCPConfig.onto(base("contrastive"), single=True, patience=None)
    assert single.loss.method.patience > 1000


def test_setting_may_be_one_number_per_class():
    x, labels = np.eye(4, 3, dtype=np.float32), np.array([0, 0, 1, 2])

    def objective(loss, num_classes=3, **settings):
        return LossConfig(loss, settings).build(num_classes, dim=3)

    several = (1, 2.0, 1)
    expected = jdml.margin_loss(x, labels, beta=np.array(several, np.float32))
    made = objective("margin", beta=several)
    np.testing.assert_allclose(made.loss({}, x, labels)[0], expected, rtol=1e-6)
    learned = LossConfig("margin", {"beta": several}, learn_beta="class").build(3)
    assert learned.init(jax.random.key(0))["beta"].tolist() == [1, 2, 1]
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
