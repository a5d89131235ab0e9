"""Objectives: the loss they carry, what they learn and remember, and how they nest."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml
from jdml import memory, objectives

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(6, 4)), jnp.float32)
Y = jnp.array([0, 0, 1, 1, 2, 2])
KEY = jax.random.key(0)


def test_pair_is_the_loss_with_its_settings() -> None:
    objective = objectives.pair(jdml.triplet_loss, margin=0.3, normalize=None)
    assert objective.init(KEY) == {}
    loss, metrics = objective.loss({}, X, Y, where=Y < 2)
    assert loss == jdml.triplet_loss(X, Y, margin=0.3, normalize=None, where=Y < 2)
    assert metrics["loss"] == loss


@pytest.mark.parametrize("loss_fn", [jdml.potential_field_loss, jdml.contrastive_potential_loss])
def test_pair_takes_a_field_of_samples_alone(loss_fn) -> None:
    """No proxies, and no key to draw with: the field losses take none."""
    objective = objectives.pair(loss_fn, delta=0.5)
    loss, _ = objective.loss(objective.init(KEY), X, Y, key=KEY, where=Y < 2)
    assert loss == loss_fn(X, Y, delta=0.5, where=Y < 2)


def test_pair_hands_the_key_to_random_miners() -> None:
    objective = objectives.pair(jdml.triplet_loss, mine=jdml.mining.random_positive())
    assert jnp.isfinite(objective.loss({}, X, Y, key=KEY)[0])
    with pytest.raises(ValueError, match="key is missing"):
        objective.loss({}, X, Y)


def test_learned_hyper_parameters_get_gradients() -> None:
    objective = objectives.pair(jdml.margin_loss, learned={"beta": jnp.full(3, 1.2)})
    params = objective.init(KEY)
    gradient = jax.grad(lambda p: objective.loss(p, X, Y)[0])(params)
    assert gradient["beta"].shape == (3,)
    assert (gradient["beta"] != 0).any()


def test_what_belongs_to_rows_is_no_hyper_parameter() -> None:
    with pytest.raises(ValueError, match="learned must hold hyper-parameters.* got sample_beta"):
        objectives.pair(jdml.margin_loss, learned={"sample_beta": jnp.zeros(4)})


@pytest.mark.parametrize("per_class", [1, 3])
def test_proxies_start_on_the_sphere_and_are_learned(per_class: int) -> None:
    objective = objectives.proxy(jdml.soft_triple_loss, 3, 4, per_class)
    params = objective.init(KEY)
    chex.assert_shape(params["proxies"], (3, per_class, 4))
    np.testing.assert_allclose(jnp.linalg.norm(params["proxies"], axis=-1), 1, rtol=1e-6)
    gradient = jax.grad(lambda p: objective.loss(p, X, Y)[0])(params)
    chex.assert_tree_all_finite(gradient)
    assert (gradient["proxies"] != 0).any()


def test_memory_compares_with_past_batches_and_not_with_oneself() -> None:
    objective = objectives.with_memory(
        objectives.pair(jdml.contrastive_loss, negative_margin=1.5), 12, 4, weight=0.5
    )
    state = objective.init_state()
    before = -X
    state = objective.update_state(state, before, Y)
    loss, metrics = objective.loss({}, X, Y, state=state)
    settings = {"negative_margin": 1.5}
    both = jnp.concatenate([before, X])
    past = jdml.contrastive_loss(
        X,
        Y,
        references=both,
        reference_labels=jnp.concatenate([Y, Y]),
        self_index=jnp.arange(6, 12),
        **settings,
    )
    np.testing.assert_allclose(
        loss, jdml.contrastive_loss(X, Y, **settings) + 0.5 * past, rtol=1e-5
    )
    np.testing.assert_allclose(metrics["memory_loss"], past, rtol=1e-5)


def test_memory_leaves_out_older_copies_of_a_sample() -> None:
    """As if the pairs were not there; who has no id is left out by index alone."""
    objective = objectives.with_memory(
        objectives.pair(jdml.contrastive_loss, positive_margin=-1.0, negative_margin=2.5), 12, 4
    )
    ids = jnp.array([3, 1, 4, 8, 5, -1])
    state = objective.update_state(objective.init_state(), X[::-1], Y[::-1], ids=ids[::-1])
    _, metrics = objective.loss({}, X, Y, state=state, ids=ids)
    old, new = np.asarray(ids[::-1]), np.asarray(ids)
    same = (new[:, None] == np.concatenate([old, new])[None, :]) & (new >= 0)[:, None]
    same[5, 11] = True
    labels = np.concatenate([Y[::-1], Y])
    terms = jdml.contrastive_loss(
        X,
        Y,
        references=jnp.concatenate([X[::-1], X]),
        reference_labels=labels,
        positive_margin=-1.0,
        negative_margin=2.5,
        reduce_fn=None,
    )
    positive = (np.asarray(Y)[:, None] == labels) & ~same
    negative = (np.asarray(Y)[:, None] != labels) & ~same
    expected = terms[positive].mean() + terms[negative].mean()  # all have a positive hinge
    np.testing.assert_allclose(metrics["memory_loss"], expected, rtol=1e-5)


def test_memory_warms_up() -> None:
    plain = objectives.pair(jdml.contrastive_loss)
    objective = objectives.with_memory(plain, 12, 4, warmup=2)
    state, losses = objective.init_state(), []
    for _ in range(3):
        losses.append(objective.loss({}, X, Y, state=state)[0])
        state = objective.update_state(state, X, Y)
    alone = plain.loss({}, X, Y)[0]
    assert losses[0] == losses[1] == alone
    assert losses[2] > alone


def test_memory_is_one_trace_and_takes_masks() -> None:
    objective = objectives.with_memory(objectives.pair(jdml.multi_similarity_loss), 12, 4)

    @jax.jit
    @chex.assert_max_traces(n=1)
    def step(state, x, where):
        loss, _ = objective.loss({}, x, Y, where=where, state=state)
        return objective.update_state(state, x, Y, where), loss

    state = objective.init_state()
    for i in range(4):
        state, loss = step(state, X + i, Y != i)
        assert jnp.isfinite(loss)
    assert isinstance(state.memory, memory.CrossBatchMemory)
    assert state.steps == 4


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: objectives.pair("triplet"), TypeError, "loss_fn must be a loss"),
        (
            lambda: objectives.proxy(jdml.proxy_anchor_loss, 0, 4),
            ValueError,
            "num_classes must be >= 1",
        ),
        (
            lambda: objectives.proxy(jdml.proxy_anchor_loss, 3, 4, 0),
            ValueError,
            "proxies_per_class must be >= 1",
        ),
        (
            lambda: objectives.with_memory(objectives.pair(jdml.triplet_loss), 0, 4),
            ValueError,
            "capacity",
        ),
        (
            lambda: objectives.with_memory(objectives.pair(jdml.triplet_loss), 8, 4, weight=-1),
            ValueError,
            "weight",
        ),
        (
            lambda: objectives.with_memory(
                objectives.with_memory(objectives.pair(jdml.triplet_loss), 8, 4), 8, 4
            ),
            ValueError,
            "already has a state",
        ),
    ],
)
def test_bad_settings(build, error, message) -> None:
    with pytest.raises(error, match=message):
        build()


@pytest.mark.slow
def test_a_monitor_adds_its_metrics_to_the_loss() -> None:
    monitor = functools.partial(jdml.losses.field_activity, delta=0.5, alpha=1.0)
    objective = objectives.proxy(
        jdml.potential_field_loss, 3, 4, 2, monitor=monitor, delta=0.5, alpha=1.0
    )
    params = objective.init(jax.random.key(0))
    x, y = jax.random.normal(jax.random.key(1), (6, 4)), jnp.arange(6) % 3
    value, metrics = jax.jit(objective.loss)(params, x, y, where=jnp.arange(6) < 5)
    assert set(metrics) == {"loss", "attracting", "repelling", "force"}
    plain = jdml.potential_field_loss(x[:5], y[:5], params["proxies"], delta=0.5, alpha=1.0)
    np.testing.assert_allclose(value, plain, rtol=1e-5)
    assert 0 < metrics["attracting"] <= 1
    settings = {"delta": 0.5, "alpha": 1.0, "normalize": None}
    told = objectives.proxy(  # what it takes of the settings need not be said twice
        jdml.potential_field_loss,
        3,
        4,
        2,
        monitor=jdml.losses.field_activity,
        reduce_fn=jnp.sum,
        **settings,
    )
    _, actual = told.loss(params, x, y)
    expected = jdml.losses.field_activity(x, y, params["proxies"], **settings)
    chex.assert_trees_all_close({name: actual[name] for name in expected}, expected)

    def loss(objective, params):
        return objective.loss(params, x, y)

    grads, seen = jax.jit(jax.grad(functools.partial(loss, objective), has_aux=True))(params)
    assert seen["force"] > 0
    unseen = objectives.proxy(jdml.potential_field_loss, 3, 4, 2, delta=0.5, alpha=1.0)
    plainly, _ = jax.grad(functools.partial(loss, unseen), has_aux=True)(params)
    chex.assert_trees_all_close(grads, plainly, rtol=1e-5)
