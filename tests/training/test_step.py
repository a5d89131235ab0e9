"""The train step, which samples it is told it has, and `embed`."""

from types import SimpleNamespace
from typing import NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jdml
from jdml import objectives
from jdml.data import ClassBatchSampler, Dataset
from jdml.models import SmallConvNet
from jdml.objectives import Objective, pair, with_memory
from jdml.recipes import Recipe
from jdml.recipes.sampler import make_sampler
from jdml.training import (
    create_state,
    embed,
    feed,
    fit,
    make_indexed_step,
    make_train_step,
    to_float,
    train,
)
from jdml.training.checkpoint import RunFolder
from jdml.training.micro_batch import check_rows_apart, in_turns


def start(toy, **changes):
    parts = {"model": toy.model, "objective": toy.objective, "optimizer": toy.optimizer} | changes
    return create_state(*parts.values(), toy.data.images, seed=1)


def test_state_holds_every_role(toy):
    state = start(toy)
    assert set(state.params) == {"model", "proxies"}
    assert state.step == 0
    assert set(state.batch_stats) == {"BatchNorm_0"}
    chex.assert_trees_all_equal_structs(state.params, state.opt_state[0].mu)


def test_seed_decides(toy, identical):
    assert identical(start(toy), start(toy))
    other = create_state(toy.model, toy.objective, toy.optimizer, toy.data.images, seed=2)
    assert not identical(start(toy).params, other.params)


def test_step_is_the_gradient_step_by_hand(toy):
    """One SGD step against the same formula written out."""
    optimizer = optax.sgd(0.1)
    state = start(toy, optimizer=optimizer)
    images, labels = toy.data.images[:8], toy.data.labels[:8]
    after, metrics = make_train_step(toy.model, toy.objective, optimizer)(state, images, labels)
    dropout_key, loss_key = jax.random.split(jax.random.fold_in(state.key, 0))

    def loss(params):
        embeddings, updates = toy.model.apply(
            {"params": params["model"], "batch_stats": state.batch_stats},
            images.astype(np.float32) / 255,
            train=True,
            mutable=["batch_stats"],
            rngs={"dropout": dropout_key},
        )
        value, _ = toy.objective.loss(
            {"proxies": params["proxies"]}, embeddings, labels, key=loss_key, state=jnp.zeros(2)
        )
        return value, (embeddings, updates["batch_stats"])

    (value, (embeddings, stats)), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(
        state.params
    )
    expected = jax.tree.map(lambda p, g: p - 0.1 * g, state.params, grads)
    chex.assert_trees_all_close(after.params, expected, rtol=1e-4, atol=1e-6)
    chex.assert_trees_all_close(after.batch_stats, stats, rtol=1e-5)
    np.testing.assert_allclose(after.objective_state, embeddings.mean(0), rtol=1e-4)
    np.testing.assert_allclose(metrics["loss"], value, rtol=1e-5)
    norm = np.sqrt(sum(np.sum(np.square(g)) for g in jax.tree.leaves(grads)))
    np.testing.assert_allclose(metrics["grad_norm"], norm, rtol=1e-4)
    assert after.step == 1
    assert set(metrics) == {"loss", "grad_norm", "gap"}


def test_no_gradient_through_the_memory(toy):
    """`update_state` sees embeddings without gradient, and the step does not differentiate it."""
    objective = with_memory(pair(jdml.contrastive_loss), 32, 2)
    state = start(toy, objective=objective)
    step = make_train_step(toy.model, objective, toy.optimizer)
    for _ in range(2):
        state, metrics = step(state, toy.data.images[:8], toy.data.labels[:8])
    assert int(state.objective_state.memory.valid.sum()) == 16
    assert {"memory_loss", "loss", "grad_norm"} <= set(metrics)
    chex.assert_tree_all_finite(state.params)


def test_one_trace_for_all_batches(toy):
    traced = toy.make_objective()
    counting = traced._replace(loss=chex.assert_max_traces(traced.loss, n=1))
    chex.clear_trace_counter()
    state = start(toy, objective=counting)
    step = make_train_step(toy.model, counting, toy.optimizer)
    for i in range(3):
        state, _ = step(state, toy.data.images[i : i + 8], toy.data.labels[i : i + 8])
    assert state.step == 3


def test_indexed_step_is_the_same_step(toy, identical):
    indices = np.array([3, 1, 4, 15, 9, 2, 6, 5], np.int32)
    images, labels = jnp.asarray(toy.data.images), jnp.asarray(toy.data.labels)
    parts = toy.model, toy.objective, toy.optimizer
    plain = make_train_step(*parts)(start(toy), toy.data.images[indices], toy.data.labels[indices])
    indexed = make_indexed_step(*parts)(start(toy), images, labels, indices)
    chex.assert_trees_all_close(plain[0].params, indexed[0].params, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(plain[1]["loss"], indexed[1]["loss"], rtol=1e-5)


def test_where_reaches_the_objective(toy):
    step = make_train_step(toy.model, toy.objective, toy.optimizer)
    images, labels = toy.data.images[:8], toy.data.labels[:8]
    where = np.arange(8) < 5
    other_labels = np.where(where, labels, (labels + 1) % 4)
    _, metrics = step(start(toy), images, labels, where)
    _, masked = step(start(toy), images, other_labels, where)
    _, all_rows = step(start(toy), images, other_labels)
    assert metrics["loss"] == masked["loss"]
    assert metrics["loss"] != all_rows["loss"]


def test_donated_state_is_gone(toy):
    state = start(toy)
    step = make_train_step(toy.model, toy.objective, toy.optimizer, donate=True)
    step(state, toy.data.images[:8], toy.data.labels[:8])
    assert state.params["proxies"].is_deleted()


def test_model_without_statistics(toy):
    import flax.linen as nn

    class Linear(nn.Module):
        @nn.compact
        def __call__(self, images, *, train=False):
            return nn.Dense(2)(images.reshape(len(images), -1))

    state = start(toy, model=Linear())
    assert state.batch_stats == {}
    step = make_train_step(Linear(), toy.objective, toy.optimizer)
    state, _ = step(state, toy.data.images[:8], toy.data.labels[:8])
    assert state.batch_stats == {}


def test_objective_may_not_claim_the_model(toy):
    greedy = Objective(lambda key: {"model": jnp.zeros(1)}, toy.objective.loss)
    with pytest.raises(ValueError, match='must not name a parameter "model"'):
        start(toy, objective=greedy)


def test_sample_images_are_checked(toy):
    images = np.zeros((3, 3, 8, 8), np.float32)
    with pytest.raises(ValueError, match=r"\[N, H, W, C\], got \[3, 3, 8, 8\], which looks like"):
        create_state(toy.model, toy.objective, toy.optimizer, images, seed=0)


def test_to_float_refuses_integers():
    with pytest.raises(TypeError, match="uint8 or floating point, got int32"):
        to_float(jnp.zeros(3, jnp.int32))


@pytest.mark.parametrize("size", [1, 5, 16, 17, 40])
def test_embed_is_apply_whatever_the_batches(toy, size):
    state = start(toy)
    images = toy.data.images[:size]
    got = embed(toy.model, state.params["model"], state.batch_stats, images, batch_size=16)
    variables = {"params": state.params["model"], "batch_stats": state.batch_stats}
    expected = toy.model.apply(variables, images.astype(np.float32) / 255)
    assert isinstance(got, np.ndarray)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_embed_compiles_once(toy):
    chex.clear_trace_counter()
    preprocess = chex.assert_max_traces(to_float, n=1)
    state = start(toy)
    for size in (16, 40, 33, 16):
        images = toy.data.images[:size]
        embed(
            toy.model,
            state.params["model"],
            state.batch_stats,
            images,
            batch_size=16,
            preprocess=preprocess,
        )


def test_embed_refuses_nothing(toy):
    state = start(toy)
    with pytest.raises(ValueError, match="at least one image"):
        embed(toy.model, state.params["model"], state.batch_stats, toy.data.images[:0])
    with pytest.raises(ValueError, match="batch_size must be >= 1, got 0"):
        embed(toy.model, state.params["model"], {}, toy.data.images, batch_size=0)


def test_images_in_a_list_or_of_another_order_of_bytes(toy):
    state = start(toy)
    parts = toy.model, state.params["model"], state.batch_stats
    images = toy.data.images.astype(np.float32)
    expected = embed(*parts, images)
    np.testing.assert_array_equal(embed(*parts, list(images)), expected)
    np.testing.assert_array_equal(embed(*parts, images.astype(">f4")), expected)
    assert Dataset("swapped", images.astype(">f4"), toy.data.labels).images.dtype.isnative
    with pytest.raises(ValueError, match="images must have one shape each"):
        embed(*parts, [images[0], images[0][1:]])
    with pytest.raises(TypeError, match="batch_size must be a Python integer >= 1, got 2.5"):
        embed(*parts, images, batch_size=2.5)


def test_large_images_are_embedded_few_at_a_time(monkeypatch):
    from jdml.training import step

    sizes = []

    def watched(model, preprocess, placement, variables, images):
        sizes.append(len(images))
        return np.zeros((len(images), 2), np.float32)

    monkeypatch.setattr(step, "_embed_batch", watched)
    for side, number in ((28, 1000), (224, 40), (2000, 2)):
        step.embed(None, {}, {}, np.zeros((number, side, side, 1), np.uint8))
    assert sorted(set(sizes)) == [1, 32, 512]


# Which samples a batch has: from the feed to a memory, which leaves out their older copies

RNG = np.random.default_rng(0)
DATA = SimpleNamespace(
    images=RNG.normal(size=(30, 6)).astype(np.float32), labels=np.arange(30, dtype=np.int32) % 3
)
MODEL = (lambda key, x: {"w": jax.random.normal(key, (6, 2))}, lambda params, x: x @ params["w"])
OBJECTIVE = with_memory(pair(jdml.contrastive_loss, mine=jdml.mining.easy_positive()), 60, 2)


class Rows:
    """Given batches in turn."""

    def __init__(self, batches):
        self.batches, self.at = batches, 0

    def __next__(self):
        self.at += 1
        return self.batches[self.at - 1]

    def get_state(self):
        return {"at": self.at}

    def set_state(self, state):
        self.at = state["at"]


def batches(number=6):
    sampler = ClassBatchSampler(DATA.labels, 3, 4, seed=1)
    return [next(sampler) for _ in range(number)]


def run(given, **settings):
    settings = {"steps": len(given), "progress": False, **settings}
    return fit(MODEL, OBJECTIVE, optax.sgd(0.1), DATA, Rows(given), **settings).state


@pytest.mark.parametrize("bytes_on_device", [1 << 30, 0])
def test_the_memory_knows_the_rows_of_the_data_set(monkeypatch, bytes_on_device):
    """On the device and on the host; what no sample fills is not there."""
    monkeypatch.setattr(feed, "DEVICE_BYTES", bytes_on_device)
    given = batches(4)
    given[1] = np.where(np.arange(12) % 5 == 1, -1, given[1])
    memory = run(given).objective_state.memory
    expected = np.concatenate([rows[rows >= 0] for rows in given])
    np.testing.assert_array_equal(memory.ids[: len(expected)], expected)
    np.testing.assert_array_equal(memory.labels[: len(expected)], DATA.labels[expected])
    assert (memory.ids[len(expected) :] == -1).all()


def test_a_step_leaves_out_older_copies():
    """All rows twice: with ids the memory's part is that of the batch alone."""
    parts = (MODEL, OBJECTIVE, optax.sgd(0.0))
    rows = np.arange(30, dtype=np.int32)
    step, indexed = make_train_step(*parts), make_indexed_step(*parts)
    start = create_state(*parts, DATA.images, seed=0)
    losses = {}
    for name, more in {"told": {"ids": rows}, "not told": {}}.items():
        state, _ = step(start, DATA.images, DATA.labels, **more)
        _, losses[name] = step(state, DATA.images, DATA.labels, **more)
    images, labels = jnp.asarray(DATA.images), jnp.asarray(DATA.labels)
    state, alone = indexed(start, images, labels, rows)
    _, losses["indexed"] = indexed(state, images, labels, rows)
    for name in ("told", "indexed"):
        np.testing.assert_allclose(losses[name]["memory_loss"], alone["memory_loss"], rtol=1e-5)
    assert losses["not told"]["memory_loss"] < 0.9 * alone["memory_loss"]


def test_a_recipe_with_a_memory_is_told():
    """Through an objective that multiplies the loss, too."""
    recipe = Recipe(loss="contrastive", dim=2, memory=60, batch=(3, 4), weight=0.5)
    rows = Dataset("rows", DATA.images, DATA.labels)
    result = train(recipe, rows, model=MODEL, steps=5, progress=False)
    sampler = make_sampler(recipe, DATA.labels)
    ids = np.concatenate([next(sampler) for _ in range(5)])
    np.testing.assert_array_equal(result.state.objective_state.memory.ids, ids)


def test_a_run_with_a_memory_goes_on_bit_for_bit(tmp_path, identical):
    given = batches()
    unbroken = run(given)
    with pytest.raises(IndexError):
        run(given[:4], steps=6, out_dir=tmp_path, checkpoint_every=2)
    resumed = run(given, out_dir=tmp_path, checkpoint_every=2)
    assert identical(resumed, unbroken)
    assert set(np.asarray(resumed.objective_state.memory.ids)) == set(range(30))


class Older(NamedTuple):
    """A memory as it was before samples had ids."""

    embeddings: jax.Array
    labels: jax.Array
    next_slot: jax.Array


def test_a_memory_of_old_is_told_in_a_sentence(tmp_path):
    """Where the objective is another for it, and where a user's own is the same."""
    told = r"checkpoint .*has a cross-batch memory without the samples' ids.*begin another run"
    now = jdml.memory.init(4, 2)
    folder = RunFolder(tmp_path, {"fingerprint": {"objective": "before"}})
    folder.save(2, {"memory": Older(now.embeddings, now.labels, now.next_slot)}, {})
    with pytest.raises(ValueError, match=told):
        folder.restore({"memory": now})
    folder.close()
    with pytest.raises(ValueError, match=told):
        RunFolder(tmp_path, {"fingerprint": {"objective": "since then"}})


# Micro-batches: the gradient of the whole batch with the activations of some rows.

DRAWS = np.random.default_rng(0)
IMAGES = DRAWS.integers(0, 256, (24, 4, 4, 1), np.uint8)
LABELS = np.arange(24) % 6


class Net(nn.Module):
    dropout: float = 0.0

    @nn.compact
    def __call__(self, images, *, train=False):
        x = nn.tanh(nn.Dense(16)(images.reshape(len(images), -1)))
        return nn.Dense(8)(nn.Dropout(self.dropout, deterministic=not train)(x))


def gradient(model, objective, **settings):
    """Parameters before and after a step of plain gradient descent, whose rate is 1."""
    parts = model, objective, optax.sgd(1.0)
    state = create_state(*parts, IMAGES, seed=0)
    after, metrics = make_train_step(*parts, **settings)(state, IMAGES, LABELS)
    return jax.tree.map(jnp.subtract, state.params, after.params), after, metrics


NESTED = jdml.matryoshka(jdml.multi_similarity_loss, (4, 8))
OBJECTIVES = {
    "XBM": objectives.with_memory(objectives.pair(NESTED, anchor_block=5), 40, 8),
    "proxies": objectives.proxy(jdml.proxy_anchor_loss, 6, 8),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_gradient_is_that_of_the_whole_batch(name):
    plain, state, metrics = gradient(Net(), OBJECTIVES[name])
    for size in (24, 7):  # 7 does not divide the batch
        actual, other, measured = gradient(Net(), OBJECTIVES[name], micro_batch=size)
        error = optax.tree.norm(jax.tree.map(jnp.subtract, actual, plain)) / optax.tree.norm(plain)
        assert error <= 1e-6
        chex.assert_trees_all_close(other.objective_state, state.objective_state, rtol=1e-5)
        chex.assert_trees_all_close(measured, metrics, rtol=1e-5)


@pytest.mark.slow
def test_dropout_draws_by_the_turn_and_the_same_twice():
    """The same as turn after turn by hand, with the key of each."""
    model, objective = Net(0.5), OBJECTIVES["proxies"]
    actual, state, _ = gradient(model, objective, micro_batch=8)
    key = jax.random.split(jax.random.fold_in(state.key, 0))[0]

    def loss(params):
        parts = [
            model.apply(
                {"params": params["model"]},
                jnp.asarray(IMAGES[turn::3]) / 255.0,
                train=True,
                rngs={"dropout": jax.random.fold_in(key, turn)},
            )
            for turn in range(3)
        ]
        whole = jnp.stack(parts, 1).reshape(24, 8)
        return objective.loss({"proxies": params["proxies"]}, whole, jnp.asarray(LABELS))[0]

    start = create_state(model, objective, optax.sgd(1.0), IMAGES, seed=0)
    expected = jax.jit(jax.grad(loss))(start.params)
    chex.assert_trees_all_close(actual, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_rows_keep_their_order():
    rows = {"a": jnp.arange(10.0), "b": jnp.arange(20).reshape(10, 2)}
    doubled = in_turns(lambda part, turn: jax.tree.map(lambda x: 2 * x, part), rows, 4)
    chex.assert_trees_all_equal(doubled, jax.tree.map(lambda x: 2 * x, rows))


def test_the_last_turn_is_filled_with_rows_that_there_are():
    """At 0, with which it was filled, the length of a row has no slope, and 0 · ∞ is no number."""
    rows = jnp.arange(1.0, 15.0).reshape(7, 2)

    def lengths(weights, size):
        return jnp.sum(in_turns(lambda x, _: jnp.linalg.norm(x @ weights, axis=-1), rows, size))

    expected = jax.grad(lengths)(jnp.eye(2), 7)
    for size in (2, 3, 4):
        chex.assert_trees_all_close(jax.grad(lengths)(jnp.eye(2), size), expected, rtol=1e-6)


@pytest.mark.slow
def test_batch_norm_must_be_frozen():
    class Normed(nn.Module):
        frozen: bool = False

        @nn.compact
        def __call__(self, images, *, train=False):
            x = nn.Dense(8)(images.reshape(len(images), -1))
            return nn.BatchNorm(use_running_average=self.frozen or not train)(x)

    model, image = Normed(), jnp.zeros((1, 4, 4, 1))
    variables = model.init(jax.random.key(0), image)
    with pytest.raises(ValueError, match="micro_batch=4: .* batch normalization is trained"):
        check_rows_apart(model, variables, image, "micro_batch=4")
    check_rows_apart(Normed(frozen=True), variables, image, "micro_batch=4")
    data = jdml.data.Dataset("noise", IMAGES, LABELS, {"class": LABELS})
    sampler = jdml.data.RandomBatchSampler(24, 8)
    parts = OBJECTIVES["proxies"], optax.sgd(1.0), data, sampler
    with pytest.raises(ValueError, match="micro_batch=4: .* batch normalization is trained"):
        fit(model, *parts, steps=1, micro_batch=4, progress=False)
    with pytest.raises(ValueError, match="micro_batch must be >= 1, got 0"):
        fit(Net(), *parts, steps=1, micro_batch=0, progress=False)


@pytest.mark.slow
def test_a_large_batch_fits():
    """SmallConvNet at B = 16,384 of 28 × 28 in 2 GiB, what the step is given included."""
    parts = (
        SmallConvNet(64, freeze_batch_norm=True),
        objectives.pair(jdml.contrastive_loss),
        optax.adam(1e-3),
    )
    images = jax.ShapeDtypeStruct((16_384, 28, 28, 1), jnp.uint8)
    labels = jax.ShapeDtypeStruct((16_384,), jnp.int32)
    state = create_state(*parts, np.zeros((1, 28, 28, 1), np.uint8), seed=0)
    step = make_train_step(*parts, micro_batch=512, donate=True)
    used = step.lower(state, images, labels).compile().memory_analysis()
    whole = used.temp_size_in_bytes + used.argument_size_in_bytes + used.output_size_in_bytes
    assert whole - used.alias_size_in_bytes < 2 * 2**30
