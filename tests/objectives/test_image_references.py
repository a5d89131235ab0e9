"""Eq. 4.10: the references of a batch are images that go through the network with it."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jdml
from jdml import data, objectives, training
from jdml.ops import ball

pytestmark = pytest.mark.slow

MARGINS = {"positive_margin": 0.0, "negative_margin": 0.5}
OBJECTIVE = objectives.as_anchor_objective(jdml.contrastive_loss, 4, **MARGINS)
X = jax.random.normal(jax.random.key(0), (10, 2))
Y = jnp.array([0, 0, 1, 1, 0, 1, 0, 1, 1, 0])


def test_the_loss_is_that_of_proxies_at_the_anchors_own_embeddings() -> None:
    """And its gradient is theirs, too: what a proxy would feel, its anchor feels."""
    by_proxies = objectives.as_proxy_objective(jdml.contrastive_loss, 2, 2, 2, **MARGINS)

    def of_proxies(proxies, x):
        return by_proxies.loss({"proxies": proxies.reshape(2, 2, 2)}, x, Y[4:])[0]

    expected, (of_anchors, of_batch) = jax.value_and_grad(of_proxies, (0, 1))(X[:4], X[4:])
    actual, gradient = jax.value_and_grad(lambda x: OBJECTIVE.loss({}, x, Y)[0])(X)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient[:4], of_anchors, atol=1e-6)
    np.testing.assert_allclose(gradient[4:], of_batch, atol=1e-6)
    in_batch = jdml.contrastive_loss(X, Y, normalize=ball, **MARGINS)
    assert abs(actual - in_batch) > 1e-3  # plain contrastive loss is a third thing


def test_places_that_no_sample_fills_count_for_nothing() -> None:
    where = jnp.arange(10) % 4 != 1
    hidden = jnp.where(where[:, None], X, jnp.nan)
    masked = OBJECTIVE.loss({}, hidden, Y, where=where)[0]
    left = where.tolist()
    fewer = objectives.as_anchor_objective(jdml.contrastive_loss, sum(left[:4]), **MARGINS)
    np.testing.assert_allclose(masked, fewer.loss({}, X[where], Y[where])[0], rtol=1e-5)


def test_it_trains_with_its_sampler() -> None:
    digits = data.load("digits")
    sampler = data.AnchorBatchSampler(
        data.ClassBatchSampler(digits.labels, 4, 4), digits.labels, 2, renew_every=10
    )
    objective = objectives.as_anchor_objective(jdml.contrastive_loss, sampler.num_anchors)
    with jax.numpy_rank_promotion("allow"):  # a network's layers broadcast over channels
        result = training.fit(
            jdml.models.create("eps", dim=2), objective, optax.adam(1e-3), digits, sampler,
            steps=2, progress=False,
        )  # fmt: skip
    assert set(result.state.params) == {"model"}
    chex.assert_tree_all_finite(result.state.params)


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="num_anchors must be >= 1, got 0"):
        objectives.as_anchor_objective(jdml.contrastive_loss, 0)
    with pytest.raises(TypeError, match="negative"):
        objectives.as_anchor_objective(jdml.contrastive_loss, 4, negativ_margin=0.5)
    with pytest.raises(ValueError, match="samples beside its 4 anchors, got 4 rows in all"):
        OBJECTIVE.loss({}, X[:4], Y[:4])


def test_losses_and_settings_that_cannot_be() -> None:
    def of_anchors(loss, **settings):
        objectives.as_anchor_objective(loss, 2, **settings)

    def of_proxies(loss, **settings):
        objectives.as_proxy_objective(loss, 2, 2, **settings)

    message = "loss_fn must be a pair loss that takes references"
    for make in (of_anchors, of_proxies):
        for loss in (jdml.potential_field_loss, jdml.proxy_anchor_loss):
            with pytest.raises(TypeError, match=message):
                make(loss)
        with pytest.raises(TypeError, match="references is given by the objective"):
            make(jdml.triplet_loss, references=jnp.ones((2, 2)))
