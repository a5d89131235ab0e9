"""Which samples a batch has: from the feed to a memory, which leaves out their older copies."""

from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jdml
from jdml import objectives, training
from jdml.data import ClassBatchSampler, Dataset
from jdml.recipes import Recipe
from jdml.recipes.sampler import make_sampler
from jdml.training import feed, fit, make_indexed_step, make_train_step
from jdml.training.checkpoint import RunFolder

RNG = np.random.default_rng(0)
DATA = SimpleNamespace(
    images=RNG.normal(size=(30, 6)).astype(np.float32), labels=np.arange(30, dtype=np.int32) % 3
)
MODEL = (lambda key, x: {"w": jax.random.normal(key, (6, 2))}, lambda params, x: x @ params["w"])
OBJECTIVE = objectives.with_memory(
    objectives.pair(jdml.contrastive_loss, mine=jdml.mining.easy_positive()), 60, 2
)


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
    start = training.create_state(*parts, DATA.images, seed=0)
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
    result = training.train(recipe, rows, model=MODEL, steps=5, progress=False)
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
