"""Proxies that begin on samples."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jdml
from jdml import data, objectives, training

RNG = np.random.default_rng(0)
TRAIN = data.Dataset("some", RNG.random((9, 4, 4, 1)).astype(np.float32), np.arange(9) % 2)
MODEL = jdml.models.SmallConvNet(3, (4,))


def begin(per_class: int, objective: object = None) -> training.TrainState:
    objective = objective or objectives.proxy(jdml.potential_field_loss, 2, 3, per_class)
    return training.create_state(MODEL, objective, optax.adam(1e-3), TRAIN.images, seed=1)


def test_proxies_begin_on_different_samples_of_their_class_as_training_embeds_them() -> None:
    state = begin(4)
    started = training.start_on_samples(state, MODEL, TRAIN, seed=3)
    again = training.start_on_samples(state, MODEL, TRAIN, seed=3)
    np.testing.assert_array_equal(started.params["proxies"], again.params["proxies"])
    proxies = np.asarray(started.params["proxies"])
    np.testing.assert_allclose(np.linalg.norm(proxies, axis=-1), 1, rtol=1e-5)
    assert jax.tree.all(
        jax.tree.map(jnp.array_equal, started.params["model"], state.params["model"])
    )

    rows = training.start._rows(np.random.default_rng(3), TRAIN.labels, 2, 4)
    assert all(len(set(of_class)) == 4 for of_class in rows.tolist())
    assert (TRAIN.labels[rows] == [[0], [1]]).all()
    variables = {"params": state.params["model"], "batch_stats": state.batch_stats}
    expected, _ = MODEL.apply(
        variables, TRAIN.images[rows.ravel()], train=True, mutable=["batch_stats"]
    )
    np.testing.assert_allclose(
        proxies.reshape(8, 3), jdml.sphere(jnp.asarray(expected)), rtol=1e-4, atol=1e-5
    )


def test_a_small_class_has_some_samples_twice_and_an_empty_one_is_told() -> None:
    proxies = training.start_on_samples(begin(7), MODEL, TRAIN, rows_at_a_time=5).params["proxies"]
    assert proxies.shape == (2, 7, 3)
    one = data.Dataset("one", TRAIN.images, np.zeros(9, int))
    with pytest.raises(ValueError, match="class 1 has no sample to begin on"):
        training.start_on_samples(begin(2), MODEL, one)
    with pytest.raises(ValueError, match="rows_at_a_time must be >= 1, got 0"):
        training.start_on_samples(begin(2), MODEL, TRAIN, rows_at_a_time=0)
    plain = begin(1, objectives.pair(jdml.triplet_loss))
    with pytest.raises(
        ValueError, match=r"the objective has no proxies: its parameters are \['model'\]"
    ):
        training.start_on_samples(plain, MODEL, TRAIN)
