"""Optimizers that take the loss or evaluate with other parameters, averages of parameters, loss scaling."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from optax import contrib

import jdml
from jdml.training import EMA, LossScale, load

ADAM = optax.adam(1e-2)


def run(toy, optimizer, folder=None, **settings):
    usual = {"steps": 6, "function": toy.spread, "every": 2}
    return toy.fit(optimizer=optimizer, folder=folder, **(usual | settings))


def test_optimizers_that_need_the_loss_get_it(toy):
    def update(grads, state, params=None, *, value, **extra):
        return jax.tree.map(jnp.zeros_like, grads), value

    keeps = optax.GradientTransformationExtraArgs(lambda params: jnp.zeros(()), update)
    result = run(toy, keeps, steps=2, log_every=1)
    assert float(result.state.opt_state) == pytest.approx(result.history[-1]["loss"])
    wrapped = optax.MultiSteps(contrib.momo(1e-2), 2)
    for callbacks in ([], [EMA(0.9)]):
        result = run(toy, wrapped, steps=2, callbacks=callbacks)
        assert np.isfinite(result.history[-1]["loss"])


def check_is_evaluated_and_saved(toy, result, folder):
    """Check that the result's parameters are those that were evaluated and saved."""
    images = toy.data.images
    embedded = result.embedder(images)
    assert result.history[-1]["spread"] == pytest.approx(float(embedded.std()))
    for which in ("best", "last"):
        own = load(folder, which=which, model=toy.model).embed(images)
        np.testing.assert_allclose(own, embedded, rtol=1e-5, atol=1e-6)


def test_schedule_free_evaluates_and_saves_its_averaged_parameters(toy, tmp_path):
    result = run(toy, contrib.schedule_free_adamw(1e-2), tmp_path)
    raw = result.state.params
    expected = contrib.schedule_free_eval_params(result.state.opt_state, raw)
    chex.assert_trees_all_close(result.best_params, expected, rtol=1e-5, atol=1e-6)
    kernels = [tree["model"]["Dense_0"]["kernel"] for tree in (raw, result.best_params)]
    assert np.abs(kernels[0] - kernels[1]).max() > 0
    check_is_evaluated_and_saved(toy, result, tmp_path)


def test_ema_is_the_weighted_mean_over_the_steps(toy, tmp_path):
    """The initial parameters have no weight."""
    decay = 0.9
    params = []

    def evaluate(embed):
        params.append(jax.tree.map(np.asarray, embed.state.params))
        return {}

    run(toy, ADAM, function=evaluate, every=1)
    averaged = run(toy, ADAM, tmp_path, callbacks=[EMA(decay)])
    weights = decay ** np.arange(5, -1, -1)
    expected = jax.tree.map(lambda *steps: np.average(steps, axis=0, weights=weights), *params)
    chex.assert_trees_all_close(averaged.best_params, expected, rtol=1e-4, atol=1e-6)
    chex.assert_trees_all_close(averaged.state.params, params[-1], rtol=1e-5, atol=1e-6)
    check_is_evaluated_and_saved(toy, averaged, tmp_path)


class Half(nn.Module):
    dtype: type = jnp.float16

    @nn.compact
    def __call__(self, images):
        return nn.Dense(2, dtype=self.dtype)(images.reshape(len(images), -1)).astype(jnp.float32)


def of_size(weight):
    return jdml.objectives.pair(lambda x, labels, **_: weight * jnp.mean(x**2))


def half(toy, weight, folder=None, dtype=jnp.float16, **settings):
    usual = {"steps": 1, "log_every": 1, "callbacks": [LossScale()], "folder": folder}
    parts = {
        "model": Half(dtype),
        "objective": of_size(weight),
        "optimizer": optax.sgd(1e-3 / weight),
    }
    return toy.fit(**(parts | usual | settings))


def test_scaled_loss_avoids_float16_underflow(toy):
    norms = [
        half(toy, 1e-9, callbacks=scaled, dtype=dtype).history[-1]["grad_norm"]
        for scaled, dtype in (([], jnp.float16), ([LossScale()], jnp.float16), ([], jnp.float32))
    ]
    assert norms[0] == 0
    assert norms[1] == pytest.approx(norms[2], rel=0.02)


def test_steps_with_overflowing_scaled_gradients_are_skipped(toy, tmp_path):
    whole = half(toy, 1e3, steps=12)
    skipped = [record["skipped"] for record in whole.history]
    assert skipped[0] == 1
    assert skipped[-1] == 0
    assert float(whole.state.opt_state.dynamic.scale) == 2.0 ** (15 - sum(skipped))
    assert np.isfinite(whole.history[-1]["loss"])
    half(toy, 1e3, tmp_path, steps=2)
    again = half(toy, 1e3, tmp_path, steps=12, allow_more_steps=True)
    jax.tree.map(np.testing.assert_array_equal, again.state.opt_state, whole.state.opt_state)
    jax.tree.map(np.testing.assert_array_equal, again.state.params, whole.state.params)
    with pytest.raises(FloatingPointError, match=r"\bloss is inf at step 40"):
        half(toy, jnp.inf, steps=41)
