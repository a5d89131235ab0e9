"""Fine-tuning: frozen parts, learning rates by depth, LoRA; saved, resumed, loaded."""

import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct

import jdml
from jdml import adapt, models
from jdml.recipes import FinetuneConfig, LossConfig, NetworkConfig, Recipe
from jdml.registry import NETWORKS
from jdml.training import EMA, Frozen, WithLora, default_preprocess, load, pretrained, train
from jdml.training.train_recipe import make_network, make_optimizer, with_finetuning


def test_patterns_match_whole_parts_of_paths():
    params = {"block1": {"kernel": 1, "bias": 1}, "block10": {"kernel": 1}, "blocks": [1, 1]}

    def named(pattern):
        marks = jax.tree.leaves(adapt.matching(params, pattern))
        return [path for path, mark in zip(adapt.named_leaves(params), marks, strict=True) if mark]

    assert named("block1") == ["block1/bias", "block1/kernel"]
    assert named(".*/kernel") == ["block1/kernel", "block10/kernel"]
    assert named("blocks/0|block10") == ["block10/kernel", "blocks/0"]
    assert named("(?!block1(?:/|$)).*") == ["block10/kernel", "blocks/0", "blocks/1"]
    assert named(None) == named("block") == []


def test_paths_of_a_module_with_a_field_called_value():
    @struct.dataclass
    class Attention:
        value: int
        query: int

    @struct.dataclass
    class Network:
        part: Attention

    assert list(adapt.named_leaves(Network(Attention(1, 2)))) == ["part/value", "part/query"]


def moved(start, end):
    """Return for each array whether it changed."""
    return jax.tree.map(lambda a, b: bool((a != b).any()), start, end)


LORA = functools.partial(adapt.lora_factors, jax.random.key(0))


def lora(two, **settings):
    return WithLora(two, **{"rank": 1, "paths": "block0", **settings})


@pytest.mark.parametrize(
    ("call", "error", "name"),
    [
        (lambda _: adapt.check_pattern("freeze", "x", {"a": 1}), ValueError, "freeze"),
        (lambda _: LORA({"v": jnp.ones(3)}, 2, "v"), ValueError, "pattern"),
        (lambda _: LORA({"w": [jnp.ones((2, 2))]}, 2, ".*"), TypeError, "params"),
        (lambda two: lora(two, rank=0), ValueError, "rank"),
        (lambda two: lora(Frozen(two, "head")), ValueError, "model"),
        (lambda two: Frozen(Frozen(two, "head"), "block0"), ValueError, "model"),
        (lambda two: Frozen(two, "("), ValueError, "pattern"),
        (lambda two: Frozen(two, "head", cached_views=0), ValueError, "cached_views"),
        (lambda two: lora(two, alpha=-1.0), ValueError, "alpha"),
        (lambda two: lora(two, paths=1), TypeError, "pattern"),
    ],
)  # fmt: skip
def test_wrong_patterns_and_ranks_are_refused(two, call, error, name):
    with pytest.raises(error, match=rf"^{name}\b"):
        call(two)


# Another program.
@pytest.mark.parametrize("way", ["frozen", pytest.param("lora", marks=pytest.mark.slow)])
def test_adapted_run_is_resumed_and_loaded(toy, tmp_path, way, fit_toy, two, caplog):
    """Frozen parameters stay bitwise equal, and have no optimizer state."""
    pattern = {"frozen": "block0|block1/bias", "lora": "block0/kernel|block1"}[way]
    lora = WithLora(two, 1, "block1", also="block0/bias|head")
    model = lora if way == "lora" else Frozen(two, pattern)
    settings = {"callbacks": [EMA(0.9)], "checkpoint_every": 1, "model": model}
    caplog.set_level("INFO", "jdml.training")
    begun = fit_toy(tmp_path / "run", **{**settings, "steps": 2})
    whole = fit_toy(tmp_path / "whole", **settings)
    again = fit_toy(tmp_path / "run", allow_more_steps=True, **settings)
    chex.assert_trees_all_equal(again.state, whole.state)
    stays = adapt.matching(again.state.params["model"], pattern)
    learns = {"model": jax.tree.map(lambda stay: not stay, stays), "proxies": True}
    assert moved(begun.state.params, again.state.params) == learns
    shapes = {leaf.shape for leaf in jax.tree.leaves(again.state.opt_state)}
    assert (9, 5) not in shapes  # block0's kernel
    counts = {"frozen": ("37", "92"), "lora": ("27", "102")}[way]
    told = next(line for line in caplog.messages if "memory " in line)
    assert re.findall(r"(\d+) of (\d+) parameters", told) == [counts]
    params = again.best_params["model"]
    params = lora.merged(params) if way == "lora" else params
    for which in ("best", "last"):
        read = load(tmp_path / "run", which=which, model=two)
        chex.assert_trees_all_close(read.params, params, rtol=1e-6, atol=1e-7)
    embedded = two.apply({"params": params}, toy.data.images / np.float32(255))
    np.testing.assert_allclose(again.embedder(toy.data.images), embedded, atol=1e-6)
    more = Frozen(two if way == "frozen" else lora, "block0|block1/bias|block0/kernel")
    with pytest.raises(ValueError, match=r"\bfreeze\b.*block0/kernel"):
        fit_toy(tmp_path / "run", **{**settings, "model": more})


def test_program_computes_no_gradient_of_frozen_layers(toy, two):
    """The two first layers have only their forward products."""

    def products(model):
        parts, images = (model, toy.objective, optax.sgd(1.0)), toy.data.images[:8]
        step, state = (
            jdml.training.make_train_step(*parts),
            jdml.training.create_state(*parts, images, seed=0),
        )
        return str(step.trace(state, images, toy.data.labels[:8]).jaxpr).count("dot_general")

    assert (products(two), products(Frozen(two, "block.*"))) == (3 + 3 + 2, 3 + 1)


def params_of(name):
    settings = {"freeze_batch_norm": True} if NETWORKS[name].batch_norm else {}
    images = jax.ShapeDtypeStruct((1, 64, 64, 3), jnp.float32)
    model = models.create(name, dim=8, **settings)
    return jax.eval_shape(model.init, jax.random.key(0), images)["params"]


PARTS = {
    "vit_s16": (12, "class_token patches positions", "head norm"),
    "resnet50": (16, "stem_conv stem_norm", "head"),
    "bn_inception": (10, "conv1_7x7_s2 conv2_3x3 conv2_3x3_reduce", "head"),
}


@pytest.mark.parametrize("name", PARTS)
def test_depth_of_every_part_of_a_network(name):
    blocks, before, after = PARTS[name]
    depth = adapt.depths(params_of(name), *NETWORKS[name].blocks)
    assert set(depth.values()) == set(range(blocks + 2))
    assert sorted(n for n in depth if depth[n] == 0) == before.split()
    assert sorted(n for n in depth if depth[n] == blocks + 1) == after.split()


def test_learning_rates_by_depth():
    """BEiT's rates: the head 1, the last block d, …, patches d^(L + 1)."""
    plan = PLAN.replace(
        finetune={"layer_decay": 0.5}, optimizer={"name": "sgd", "learning_rate": 1.0}
    )
    names = ["patches", "block0", "block1", "block10", "norm", "head"]
    params = {"model": {name: jnp.zeros(1) for name in names}, "proxies": jnp.zeros(1)}
    optimizer = make_optimizer(plan, ("proxies",), 1)
    ones = jax.tree.map(jnp.ones_like, params)
    updates, _ = optimizer.update(ones, optimizer.init(params), params)
    factors = [-float(updates["model"][name][0]) for name in names]
    assert factors == [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 1]
    assert float(updates["proxies"][0]) == -100


TINY = {"width": 8, "depth": 2, "heads": 2, "patch": 8, "grid": 2}
PLAN = Recipe(LossConfig("proxy_anchor"), NetworkConfig("vit_s16", dim=4)).replace(
    batch={"size": 8, "steps": 2}, optimizer={"learning_rate": 1e-2}
)


def test_training_only_the_last_blocks_with_batch_norm(pictures):
    lite = Recipe(
        network=NetworkConfig("efficientnet_lite0"), finetune=FinetuneConfig(last_blocks=1)
    )
    network = make_network(lite, pictures)
    assert network.freeze_batch_norm
    pattern = with_finetuning(lite, network, pictures, default_preprocess).pattern
    params = params_of("efficientnet_lite0")
    learns, _ = adapt.split(params, adapt.matching(params, pattern))
    first = {path.split("/")[0] for path in adapt.named_leaves(learns)}
    assert {name.rpartition("_")[0] or name for name in first} == {"stage6_block0", "top", "head"}
    few = lite.replace(finetune={"last_blocks": 99})
    with pytest.raises(ValueError, match=r"^last_blocks\b"):
        with_finetuning(few, network, pictures, default_preprocess)
    small = Recipe(network=NetworkConfig("small"), finetune=FinetuneConfig(lora=2))
    with pytest.raises(ValueError, match=r"\blora\b.*small.*lora_paths"):
        with_finetuning(small, network, pictures, default_preprocess)


@pytest.mark.slow  # several programs of a transformer
def test_lora_starts_at_the_pretrained_network(pictures):
    """Kernels of attention and MLP get factors."""
    plan = PLAN.replace(finetune={"lora": 2, "lora_alpha": 4.0})
    model = models.create("vit_s16", dim=4).clone(**TINY)
    start = train(plan.replace(batch={"steps": 0}), pictures, model=model, progress=False)
    params, network = start.state.params["model"], start.embedder.model
    own = {name: part for name, part in params.items() if name != "lora"}
    images = pictures.images[:4] / np.float32(255)
    alone = jax.jit(network.base.apply)({"params": own}, images)
    chex.assert_trees_all_equal(jax.jit(network.apply)({"params": params}, images), alone)
    factors = params["lora"]
    assert sorted(factors) == ["block0", "block1"]
    assert sorted(factors["block0"]) == ["attention", "dense0", "dense1"]
    assert sorted(factors["block0"]["attention"]) == ["key", "out", "query", "value"]
    shapes = jax.tree.map(np.shape, factors["block0"]["attention"]["out"]["kernel"])
    assert shapes == {"a": (8, 2), "b": (2, 8)}


def test_lora_with_pretrained_weights_and_what_follows(fit_toy, two):
    """The weights' file has no factors."""
    model = WithLora(two, 1, "block1", also="block0/bias|head")

    def ones(variables):
        return {"params": jax.tree.map(jnp.ones_like, variables["params"])}

    def then(state):
        assert state.params["model"]["head"]["kernel"].sum() == 10
        return state._replace(params={**state.params, "proxies": jnp.zeros((4, 2))})

    before, after = (
        fit_toy(model=model, steps=n, state=pretrained(ones, then)).state.params for n in (0, 2)
    )
    assert before["proxies"].sum() == 0
    start, end = before["model"], after["model"]
    assert float(start["block0"]["kernel"].sum()) == 45
    learns = moved(start, end)
    assert learns["block0"] == {"kernel": False, "bias": True}
    assert learns["block1"] == {"kernel": False, "bias": False}
    assert learns["lora"] == {"block1": {"kernel": {"a": True, "b": True}}}
