"""The studies' own sampling, mining and update functions."""

import json
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jdml
from experiments.cub_crops import finetuned
from experiments.eps_omniglot.main import some_positives
from experiments.letters import methods, protocol
from experiments.nir.decide import reset_at
from experiments.pfml_needs import trials
from experiments.smoke import write_images
from jdml.training.train_recipe import parts_of_step


def test_random_positives_are_drawn_uniformly() -> None:
    pairs = jdml.mining.all_pairs(jnp.array([0] * 6 + [1] * 2))
    keys = jax.random.split(jax.random.key(0), 400)
    mine = jax.jit(jax.vmap(lambda key: some_positives(3)(key, jnp.zeros((8, 8)), pairs).positive))
    drawn = mine(keys)
    chex.assert_trees_all_equal(drawn.sum(2)[:, :6], jnp.full((400, 6), 3))
    chex.assert_trees_all_equal(drawn[:, 6:], jnp.broadcast_to(pairs.positive[6:], (400, 2, 8)))
    chex.assert_trees_all_close(drawn.mean(0)[:6], 0.6 * pairs.positive[:6], atol=0.1)


def test_held_out_digits_are_not_trained_on() -> None:
    images = {x.tobytes() for x in jdml.data.load("digits").images}
    for seed in range(3):
        parts = trials.load("digits", None, seed, False)
        held_out = set(parts.labels[parts.held_out].tolist())
        assert held_out == {2 * seed, 2 * seed + 1}
        assert set(parts.modes.tolist()) == set(range(6)) - held_out
        for part in (parts.train, parts.scored):
            assert {x.tobytes() for x in part.images} <= images


def test_validation_and_test_letters_are_not_trained_on(tmp_path: Path) -> None:
    folder, frozen = write_images(tmp_path), tmp_path / "frozen.json"
    chosen = []
    for fold in range(protocol.FOLDS):
        train, validation, _ = protocol.load_fold(str(folder), fold)
        assert set(train.views["letter"]).isdisjoint(validation.views["letter"])
        assert len(train) + len(validation) == 12 * 20
        np.testing.assert_array_equal(np.unique(train.labels), np.arange(9))
        chosen += np.unique(validation.views["letter"]).tolist()
    assert sorted(chosen) == list(range(12))
    job = protocol.make_job("MS", "papers", 1, 0, methods.METHODS["MS"])
    for others in ({}, {"papers": {"MS": {**job["recipe"], "optimizer": {"learning_rate": 0.5}}}}):
        frozen.write_text(json.dumps(others))
        with pytest.raises(ValueError, match=r"^MS, papers\b"):
            protocol.load_test(job, str(folder), frozen)
    frozen.write_text(json.dumps({"papers": {"MS": job["recipe"]}}))
    assert len(protocol.load_test(job, str(folder), frozen)) == 240


def test_drawings_of_each_level() -> None:
    rows, letters = 7 + np.arange(200), np.repeat(np.arange(10) * 3, 20)
    own, labels = protocol.rows_of({"letters": 4}, rows, letters, 1)
    assert np.bincount(labels).tolist() == [20] * 4
    assert len(set(letters[own - 7])) == 4
    own, labels = protocol.rows_of({"drawings": 5}, rows, letters, 1)
    assert np.bincount(labels).tolist() == [5] * 10
    np.testing.assert_array_equal(labels, letters[own - 7] // 3)
    assert set(protocol.rows_of({"drawings": 5}, rows, letters, 2)[0]) != set(own)
    own, labels = protocol.rows_of({"wrong": 0.4}, rows, letters, 1)
    np.testing.assert_array_equal(own, rows)
    assert (labels != letters // 3).sum() == 80


def test_optimizer_state_is_reset_at_a_step() -> None:
    rule, params = reset_at(optax.adam(0.1), 2), {"a": jnp.ones(2)}
    state, steps = rule.init(params), []
    for size in (40.0, 40.0, 1.0):
        updates, state = rule.update({"a": size * jnp.ones(2)}, state, params)
        steps.append(float(updates["a"][0]))
    np.testing.assert_allclose(steps, [-0.1, -0.1, -0.1], rtol=1e-4)


def test_fine_tuned_network_is_frozen_first_and_has_its_own_rate() -> None:
    rule = parts_of_step(finetuned.recipe_of("MS", 1e-5), 8, 1, finetuned.STEPS)[1]
    params = {"model": {"stem": jnp.ones(1), "head": jnp.ones(1)}}
    state, moved = rule.init(params), []
    update = jax.jit(rule.update)
    for _ in range(finetuned.STEPS // 2 + 1):
        updates, state = update(params, state, params)
        moved.append([float(updates["model"][name][0]) for name in ("stem", "head")])
    assert not any(stem for stem, _ in moved[: finetuned.ALONE])
    # Adam's step of a constant gradient is its rate; the cosine is at its middle.
    np.testing.assert_allclose(moved[-1], [-5e-6, -5e-4], rtol=1e-3)
