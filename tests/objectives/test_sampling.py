"""Some of very many classes: what a step sees, and what it does not."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml
from jdml import objectives
from jdml.objectives.sampling import sample_classes

C, D, B = 40, 3, 6
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(B, D)), jnp.float32)
Y = jnp.array([7, 39, 0, 7, 12, 3])
PROXIES = jnp.asarray(RNG.normal(size=(C, 2, D)), jnp.float32)
draw = jax.jit(sample_classes, static_argnums=2)


def sampled(number):
    return objectives.proxy(jdml.soft_triple_loss, C, D, 2, sampled_classes=number)


def test_all_classes_are_exact():
    params = {"proxies": PROXIES}
    plain = objectives.proxy(jdml.soft_triple_loss, C, D, 2).loss(params, X, Y)
    for number in (C, C + 5):
        chex.assert_trees_all_equal(sampled(number).loss(params, X, Y), plain)


def test_the_batchs_classes_are_among_those_drawn():
    key = jax.random.key(3)
    drawn, among = draw(PROXIES, Y, 10, key=key)
    chex.assert_shape(drawn, (10, 2, D))
    chex.assert_trees_all_equal(drawn[among], PROXIES[Y])
    again = draw(PROXIES, Y, 10, key=key)
    chex.assert_trees_all_equal((drawn, among), again)
    other = draw(PROXIES, Y, 10, key=jax.random.key(4))[0]
    assert (np.asarray(drawn) != np.asarray(other)).any()


def test_others_are_drawn_uniformly_and_never_twice():
    seen = np.zeros(C)
    index = jnp.arange(C, dtype=jnp.float32)[:, None, None]
    for number in range(200):
        drawn = np.asarray(draw(index, Y, 10, key=jax.random.key(number))[0], np.int64).ravel()
        assert len(set(drawn)) == 10
        seen[drawn] += 1
    present = np.unique(np.asarray(Y))
    assert (seen[present] == 200).all()
    others = np.delete(seen, present) / 200  # 5 of 35: 0.143, with a deviation of 0.025
    assert 0.04 < others.min() < others.max() < 0.25


@pytest.mark.slow
def test_rows_that_do_not_count_bring_no_class():
    where = jnp.arange(B) < 2
    drawn, among = sample_classes(
        PROXIES, jnp.where(where, Y, 99), 6, key=jax.random.key(0), where=where
    )
    assert among[2:].tolist() == [-1] * 4
    chex.assert_trees_all_equal(drawn[among[:2]], PROXIES[Y[:2]])
    loss = sampled(6).loss({"proxies": PROXIES}, X, Y, key=jax.random.key(0), where=where)[0]
    alone = jdml.soft_triple_loss(X[:2], among[:2], drawn)
    chex.assert_trees_all_close(loss, alone, rtol=1e-6)


def test_only_what_is_drawn_has_a_gradient():
    key = jax.random.key(1)
    gradient = jax.grad(lambda p: sampled(10).loss({"proxies": p}, X, Y, key=key)[0])(PROXIES)
    moved = np.flatnonzero(np.abs(np.asarray(gradient)).sum((1, 2)))
    index = jnp.arange(C, dtype=jnp.float32)[:, None, None]
    expected = np.asarray(sample_classes(index, Y, 10, key=key)[0], np.int64).ravel()
    np.testing.assert_array_equal(moved, expected)


def test_refuses():
    with pytest.raises(ValueError, match="sampled_classes must be at least 6, .* got 5"):
        sampled(5).loss({"proxies": PROXIES}, X, Y, key=jax.random.key(0))
    with pytest.raises(ValueError, match="key is missing: sampled_classes=10 is random"):
        sampled(10).loss({"proxies": PROXIES}, X, Y)
    with pytest.raises(ValueError, match="sampled_classes must be >= 1, got 0"):
        sampled(0)
    with pytest.raises(ValueError, match=r"labels\[1\] is 40, expected 0…39"):
        jdml.checked(
            lambda p: sampled(10).loss({"proxies": p}, X, Y.at[1].set(40), key=jax.random.key(0))[0]
        )(PROXIES)


def test_a_step_of_a_million_classes_is_small():
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
def test_draws_under_vmap_are_those_alone(impl):
    keys = jax.random.split(jax.random.key(0, impl=impl), 3)
    mapped, _ = jax.vmap(lambda key: draw(PROXIES, Y, 10, key=key))(keys)
    for key, drawn in zip(keys, mapped, strict=True):
        chex.assert_trees_all_equal(drawn, draw(PROXIES, Y, 10, key=key)[0])
    assert not jnp.array_equal(mapped[0], mapped[1])
