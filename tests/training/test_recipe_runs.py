"""`train` with a recipe equals `fit` with parts made by hand, bit for bit."""

import sys
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jdml
from jdml import data, mining, objectives, optim, training
from jdml.ccp import AlternatingProjections
from jdml.recipes import CCPConfig, Recipe
from jdml.training import Evaluation, RunConfig, train
from jdml.training.train_recipe import make_network

DIM, CLASSES, STEPS, RATE = 4, 5, 4, 1e-2
FROZEN = {"freeze_batch_norm": True}
STILL = {"progress": False}
PLAIN = Recipe().replace(
    network={"dim": DIM},
    batch={"classes": 3, "samples_per_class": 3, "steps": STEPS},
    optimizer={"learning_rate": RATE},
)


class Network(nn.Module):
    """A layer and a head."""

    @nn.compact
    def __call__(self, x, *, train=False):
        x = nn.Dense(6)(x.reshape(len(x), -1))
        return nn.Dense(DIM, name="head")(nn.relu(x))


def blobs():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), 6)
    images = rng.normal(size=(CLASSES, 1, 3, 2, 1))[labels, 0] + rng.normal(size=(30, 3, 2, 1))
    return data.Dataset("blobs", images.astype(np.float32), labels.astype(np.int32))


def roles(transforms):
    """Return the optimizer by role."""
    model = transforms.pop("model")
    rules = {"backbone": model, "head": model, **transforms}
    return optim.partition_by_role(rules, optim.backbone_and_head)


def is_model(params):
    return {role: role == "model" for role in params}


def margin():
    objective = objectives.pair(
        jdml.margin_loss,
        learned={"beta": jnp.full(CLASSES, 1.1)},
        mine=mining.distance_weighted_negative(dim=DIM),
    )
    decay = optax.add_decayed_weights(0.1, is_model)
    optimizer = roles(
        {"model": optax.sgd(RATE, momentum=0.9), "beta": optax.sgd(5 * RATE, momentum=0.9)}
    )
    settings = {"settings": {"beta": 1.1}, "learn_beta": "class", "miner": "distance_weighted"}
    made = PLAIN.replace(
        loss={"name": "margin", **settings},
        optimizer={"name": "sgd", "weight_decay": 0.1, "lr_multipliers": {"beta": 5.0}},
    )
    return made, objective, optax.chain(decay, optimizer), {}


def with_memory():
    objective = objectives.pair(jdml.multi_similarity_loss, mine=mining.multi_similarity_pairs())
    objective = objectives.with_memory(objective, 12, DIM, warmup=1)
    up = optax.linear_schedule(RATE / 2, RATE, 1)
    rate = optax.join_schedules([up, optax.cosine_decay_schedule(RATE, STEPS - 2)], [2])
    rule = {"name": "adamw", "weight_decay": 0.1, "schedule": "cosine", "lr_warmup_steps": 2}
    mined = {"name": "multi_similarity", "miner": "multi_similarity"}
    made = PLAIN.replace(loss={**mined, "memory_size": 12, "memory_start_step": 1}, optimizer=rule)
    return made, objective, roles({"model": optax.adamw(rate, weight_decay=0.1)}), {}


def field():
    objective = objectives.proxy(
        jdml.potential_field_loss, CLASSES, DIM, 2, alpha=1.0, reduce_fn=jnp.sum
    )
    proxies = optax.chain(optax.clip(5.0), optax.adam(50 * RATE))
    numbers = {"alpha": 1.0, "reduce_fn": "sum"}
    own = {"per_class": 2, "init": "samples", "clip_value": 5.0}
    made = PLAIN.replace(
        loss={"name": "potential_field", "settings": numbers, "proxies": own},
        network={"head_init": "principal"},
        batch={"size": 9},
        optimizer={"lr_multipliers": {"proxies": 50.0}},
    )

    def start(state):
        """The proxies begin at samples that the new head embeds."""
        settings = {"model": Network(), "train": blobs(), "seed": 3}
        state = training.init_head_from_pca(state, **settings)
        return training.init_proxies_from_samples(state, **settings)

    more = {"state": start, "sampler": data.RandomBatchSampler(30, 9, seed=3)}
    return made, objective, roles({"model": optax.adam(RATE), "proxies": proxies}), more


def alternating():
    objective = objectives.as_proxy_objective(
        jdml.contrastive_loss, CLASSES, DIM, 2, in_batch_weight=0.1, negative_margin=0.4
    )
    anchor = optim.add_anchored_weights(2e-4, is_model)
    clip = optax.clip_by_global_norm(1.0)
    optimizer = roles({"model": optax.adam(RATE), "proxies": optax.adam(RATE)})
    problems = training.AlternatingProblems(
        model=Network(),
        train=blobs(),
        pool_size=3,
        monitor="MAP@R",
        machine=AlternatingProjections(patience=1, run_patience=60),
        anchor_first=True,
        seed=3,
        preprocess=training.default_preprocess,
    )
    plain = PLAIN.replace(
        loss={"name": "contrastive", "settings": {"negative_margin": 0.4}},
        optimizer={"clip_global_norm": 1.0},
    )
    made = CCPConfig.onto(plain, pool_size=3, patience=1, in_batch_weight=0.1)
    made = made.replace(loss={"proxies": {"per_class": 2}})
    return made, objective, optax.chain(anchor, clip, optimizer), {"callbacks": [problems]}


LONGER = [pytest.param(alternating, marks=pytest.mark.slow)]  # two runs


@pytest.mark.parametrize("kind", [margin, with_memory, field, *LONGER])
def test_recipe_run_equals_the_run_made_by_hand(kind):
    made, objective, optimizer, more = kind()
    alternates = kind is alternating
    held_out = blobs() if alternates else None
    shared = {"seed": 3, "run": RunConfig(log_every=1), **STILL}
    watched = {"evaluation": Evaluation(every=1)}
    one = train(made, blobs(), validation=held_out, model=Network(), **shared, **watched)
    sampler = more.pop("sampler", data.ClassBatchSampler(blobs().labels, 3, 3, seed=3))

    def evaluate(embedder):
        normalize = jdml.ball if alternates else jdml.sphere
        x = normalize(jnp.asarray(embedder(held_out.images)))
        return jdml.evaluate_retrieval(x, held_out.labels, recall_at=(1,))

    watched = Evaluation(evaluate, 1, "MAP@R") if alternates else None
    parts = Network(), objective, optimizer, blobs(), sampler
    other = training.fit(*parts, steps=STEPS, evaluation=watched, **shared, **more)
    jax.tree.map(np.testing.assert_array_equal, one.state.params, other.state.params)
    assert [record["loss"] for record in one.history] == [r["loss"] for r in other.history]
    if alternates:
        assert one.history[-1].keys() == other.history[-1].keys()
    assert one.best == other.best


def test_given_parts_override_the_recipe():
    objective = objectives.proxy(jdml.arcface_loss, CLASSES, DIM)
    sampler = data.RandomBatchSampler(30, 7, seed=0)
    own = {"objective": objective, "sampler": sampler, "optimizer": optax.set_to_zero()}
    result = train(PLAIN, blobs(), model=Network(), seed=1, **own, **STILL)
    fresh = training.create_state(
        Network(), objective, own["optimizer"], blobs().images[:1], seed=1
    )
    assert set(result.state.params) == {"model", "proxies"}
    jax.tree.map(np.testing.assert_array_equal, result.state.params, fresh.params)


def test_mutated_recipe_settings_take_effect():
    recipe = PLAIN.replace(loss={"settings": {"margin": 0.1}})
    first = train(recipe, blobs(), model=Network(), **STILL).history[-1]["loss"]
    recipe.loss.settings["margin"] = 1.5
    second = train(recipe, blobs(), model=Network(), **STILL).history[-1]["loss"]
    wide = PLAIN.replace(loss={"settings": {"margin": 1.5}})
    assert first < second == train(wide, blobs(), model=Network(), **STILL).history[-1]["loss"]


def network_for(finetune, **changes):
    part = data.Dataset("x", np.zeros((4, 8, 8, 1), np.uint8), np.arange(4) % 2)
    return make_network(PLAIN.replace(network=changes, finetune=finetune), part)


def test_custom_factory_gets_the_image_size(monkeypatch):
    sizes = []

    def net(image_size, dim):
        sizes.append((image_size, dim))
        return Network()

    monkeypatch.setitem(sys.modules, "own_nets", SimpleNamespace(net=net))
    make_network(PLAIN.replace(network={"name": "own_nets:net"}), blobs())
    assert set(sizes) == {(blobs().images.shape[1], DIM)}


@pytest.mark.parametrize(
    ("call", "error", "name"),
    [
        (lambda: train(PLAIN, blobs(), evaluation=Evaluation(monitor="a")), ValueError, "monitor"),
        (lambda: train(CCPConfig.onto(PLAIN), blobs(), model=Network()), ValueError, "validation"),
        (lambda: train(PLAIN, blobs(), steps=3), TypeError, r".*\bsteps"),
        (lambda: network_for({}, remat=True), ValueError, "remat"),
        (lambda: network_for(FROZEN, name="vit_s16"), ValueError, "freeze_batch_norm"),
    ],
)
def test_wrong_parts_are_refused_before_any_work(call, error, name):
    with pytest.raises(error, match=rf"^{name}\b"):
        call()
