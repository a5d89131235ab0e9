"""Sampled classes: a proxy objective with the batch's classes and a draw of the others."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml
from jdml import objectives
from jdml.objectives.base import sample_classes

C, D, B = 40, 3, 6
DRAWS = np.random.default_rng(0)
ROWS = jnp.asarray(DRAWS.normal(size=(B, D)), jnp.float32)
CLASSES = jnp.array([7, 39, 0, 7, 12, 3])
PROXIES = jnp.asarray(DRAWS.normal(size=(C, 2, D)), jnp.float32)
draw = jax.jit(sample_classes, static_argnums=2)


def sampled(number):
    return objectives.proxy(jdml.soft_triple_loss, C, D, 2, sampled_classes=number)


def test_sampling_all_classes_is_exact():
    params = {"proxies": PROXIES}
    plain = objectives.proxy(jdml.soft_triple_loss, C, D, 2).loss(params, ROWS, CLASSES)
    for number in (C, C + 5):
        chex.assert_trees_all_equal(sampled(number).loss(params, ROWS, CLASSES), plain)


def test_sampled_classes_include_the_batchs():
    drawn, among = draw(PROXIES, CLASSES, 10, key=jax.random.key(3))
    chex.assert_shape(drawn, (10, 2, D))
    chex.assert_trees_all_equal(drawn[among], PROXIES[CLASSES])


def test_other_classes_are_drawn_uniformly_without_replacement():
    seen = np.zeros(C)
    index = jnp.arange(C, dtype=jnp.float32)[:, None, None]
    keys = jax.random.split(jax.random.key(0), 200)
    draws = jax.jit(jax.vmap(lambda key: sample_classes(index, CLASSES, 10, key=key)[0]))(keys)
    for drawn in np.asarray(draws, np.int64).reshape(200, 10):
        assert len(set(drawn)) == 10
        seen[drawn] += 1
    present = np.unique(np.asarray(CLASSES))
    assert (seen[present] == 200).all()
    others = np.delete(seen, present) / 200  # 5 of 35: 0.143, standard deviation 0.025
    assert 0.04 < others.min() < others.max() < 0.25


def test_masked_rows_add_no_class():
    where = jnp.arange(B) < 2
    more = {"key": jax.random.key(0), "where": where}
    drawn, among = sample_classes(PROXIES, jnp.where(where, CLASSES, 99), 6, **more)
    assert among[2:].tolist() == [-1] * 4
    chex.assert_trees_all_equal(drawn[among[:2]], PROXIES[CLASSES[:2]])
    loss, _ = sampled(6).loss({"proxies": PROXIES}, ROWS, CLASSES, **more)
    alone = jdml.soft_triple_loss(ROWS[:2], among[:2], drawn)
    chex.assert_trees_all_close(loss, alone, rtol=1e-6)


def test_only_sampled_proxies_have_a_gradient():
    key = jax.random.key(1)
    gradient = jax.grad(lambda p: sampled(10).loss({"proxies": p}, ROWS, CLASSES, key=key)[0])(
        PROXIES
    )
    moved = np.flatnonzero(np.abs(np.asarray(gradient)).sum((1, 2)))
    index = jnp.arange(C, dtype=jnp.float32)[:, None, None]
    expected = np.asarray(sample_classes(index, CLASSES, 10, key=key)[0], np.int64).ravel()
    np.testing.assert_array_equal(moved, expected)


def test_sampled_classes_refusals():
    params, key = {"proxies": PROXIES}, jax.random.key(0)
    with pytest.raises(ValueError, match=r"^sampled_classes\b"):
        sampled(5).loss(params, ROWS, CLASSES, key=key)
    with pytest.raises(ValueError, match=r"^key\b"):
        sampled(10).loss(params, ROWS, CLASSES)
    with pytest.raises(ValueError, match=r"^labels\[1\] is 40"):
        jdml.checked(
            lambda p: sampled(10).loss({"proxies": p}, ROWS, CLASSES.at[1].set(40), key=key)[0]
        )(PROXIES)


def test_memory_for_a_million_classes_stays_below_1_gib():
    """1,000,000 classes, 64-D, B = 256, S = 100,000: a gradient's temporaries stay below 1 GiB."""
    objective = objectives.proxy(
        jdml.normalized_softmax_loss, 1_000_000, 64, sampled_classes=100_000
    )

    def value(proxies, x, y):
        return objective.loss({"proxies": proxies}, x, y, key=jax.random.key(0))[0]

    shapes = (
        jax.ShapeDtypeStruct((1_000_000, 1, 64), jnp.float32),
        jax.ShapeDtypeStruct((256, 64), jnp.float32),
        jax.ShapeDtypeStruct((256,), jnp.int32),
    )
    used = jax.jit(jax.grad(value, (0, 1))).lower(*shapes).compile().memory_analysis()
    assert used.temp_size_in_bytes + used.output_size_in_bytes < 2**30


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_draws_under_vmap_equal_single_draws(impl):
    keys = jax.random.split(jax.random.key(0, impl=impl), 3)
    mapped, _ = jax.vmap(lambda key: draw(PROXIES, CLASSES, 10, key=key))(keys)
    for key, drawn in zip(keys, mapped, strict=True):
        chex.assert_trees_all_equal(drawn, draw(PROXIES, CLASSES, 10, key=key)[0])
    assert not jnp.array_equal(mapped[0], mapped[1])
