"""The NIR loss: its formula, its shapes, and finite values where the exponential would overflow."""

import functools
import math
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml

RNG = np.random.default_rng(0)
B, D = 7, 4
LATENTS, LOG_DETS = RNG.normal(size=(B, D)), RNG.normal(size=B)
WHERE = np.arange(B) != 2
WEIGHTS = RNG.uniform(0.5, 2.0, B)


def oracle(shape: str, temperature: float, per_dimension: bool) -> np.ndarray:
    values = []
    for latent, log_det in zip(LATENTS, LOG_DETS, strict=True):
        surprise = 0.5 * sum(z * z for z in latent) - log_det
        u = temperature * surprise / (D if per_dimension else 1)
        values.append(
            {"exp": math.exp(u), "softplus": math.log1p(math.exp(u)), "identity": u}[shape]
        )
    return np.array(values)


@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("shape", ["exp", "softplus", "identity"])
def test_values_equal_the_oracle(shape: Any, temperature: float, per_dimension: bool) -> None:
    settings = {"shape": shape, "temperature": temperature, "per_dimension": per_dimension}
    expected = oracle(shape, temperature, per_dimension)
    with jax.enable_x64(True):
        arrays = jnp.asarray(LATENTS), jnp.asarray(LOG_DETS)
        rows = jdml.nir_loss(*arrays, reduce_fn=None, **settings)
        np.testing.assert_allclose(rows, expected, rtol=1e-10)
        np.testing.assert_allclose(jdml.nir_loss(*arrays, **settings), expected.mean(), rtol=1e-10)
        masked = jdml.nir_loss(*arrays, where=WHERE, weights=WEIGHTS, **settings)
        np.testing.assert_allclose(masked, (expected * WEIGHTS)[WHERE].mean(), rtol=1e-10)


@pytest.mark.parametrize("shape", ["exp", "softplus", "identity"])
def test_printed_form_is_f_of_the_mean(shape: Any) -> None:
    """Eq. 11 has the mean inside f."""
    f = {"exp": math.exp, "softplus": lambda u: math.log1p(math.exp(u)), "identity": float}[shape]
    surprise = oracle("identity", 0.3, False)
    with jax.enable_x64(True):
        arrays = jnp.asarray(LATENTS), jnp.asarray(LOG_DETS)
        settings = {"shape": shape, "temperature": 0.3, "of_mean": True}
        loss = jdml.nir_loss(*arrays, **settings)
        np.testing.assert_allclose(loss, f(surprise.mean()), rtol=1e-10)
        masked = jdml.nir_loss(*arrays, where=WHERE, **settings)
        np.testing.assert_allclose(masked, f(surprise[WHERE].mean()), rtol=1e-10)
        released = jdml.nir_loss(*arrays, shape=shape, temperature=0.3)
        assert loss <= released + 1e-12  # f is convex
        assert jdml.nir_loss(*arrays, where=jnp.zeros(B, bool), **settings) == 0


@pytest.mark.parametrize("where", [None, WHERE])
def test_equations_10_and_11_as_printed(where: Any) -> None:
    """(1/|B|) Σ ‖ζ‖² − log|det J|, without a factor ½, and f of it."""
    rows = range(B) if where is None else np.flatnonzero(where)
    printed = sum(sum(z * z for z in LATENTS[i]) - LOG_DETS[i] for i in rows) / len(rows)
    with jax.enable_x64(True):
        arrays = jnp.asarray(LATENTS), jnp.asarray(LOG_DETS)
        loss = functools.partial(jdml.nir_loss, *arrays, norm_weight=1.0, where=where)
        np.testing.assert_allclose(loss(shape="identity"), printed, rtol=1e-12)
        np.testing.assert_allclose(loss(of_mean=True), math.exp(printed), rtol=1e-12)


def test_norm_weight_changes_the_exponent() -> None:
    """f of the mean with ½ differs from eq. 11 by half the mean squared norm in the exponent."""
    square = 2 * math.log(19.17 / 7.39)
    latents, log_dets = jnp.full((5, 4), math.sqrt(square / 4)), jnp.full(5, square / 2 - 2.0)
    log_dets += jnp.array([-0.2, -0.1, 0.0, 0.1, 0.2])
    loss = functools.partial(jdml.nir_loss, latents, log_dets, of_mean=True)
    np.testing.assert_allclose([loss(), loss(norm_weight=1.0)], [7.39, 19.17], atol=0.01)


def test_masked_rows_change_nothing() -> None:
    latents = jnp.asarray(np.where(WHERE[:, None], LATENTS, np.nan), jnp.float32)
    log_dets = jnp.asarray(np.where(WHERE, LOG_DETS, np.inf), jnp.float32)
    value, gradients = jax.value_and_grad(
        lambda z, d: jdml.nir_loss(z, d, where=jnp.asarray(WHERE)), (0, 1)
    )(latents, log_dets)
    chex.assert_tree_all_finite((value, gradients))
    assert not gradients[0][2].any()
    nothing = jdml.nir_loss(latents, log_dets, where=jnp.zeros(B, bool))
    assert nothing == 0


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("shape", ["exp", "softplus", "identity"])
def test_latents_of_any_size_are_finite(shape: Any, dtype: Any) -> None:
    @jax.jit
    def step(latents: jax.Array) -> Any:
        whole = jax.value_and_grad(lambda z, d: jdml.nir_loss(z, d, shape=shape), (0, 1))
        return whole(latents, jnp.zeros(3, dtype))

    for scale in (0.0, 1.0, 30.0, 1e4, 1e15, 1e25, 2.5e38):
        latents = jnp.clip(scale * jnp.ones((3, D)), 0, float(jnp.finfo(dtype).max) / 2)
        value, gradients = step(latents.astype(dtype))
        assert value.dtype == jnp.float32
        chex.assert_tree_all_finite(jax.tree.map(np.float32, (value, gradients)))


def test_gradient_points_inward_beyond_the_cap() -> None:
    gradient = jax.grad(lambda z: jdml.nir_loss(z, jnp.zeros(1)))(jnp.full((1, D), 10.0))
    assert (gradient > 1e20).all()


def test_gradient_equals_finite_differences() -> None:
    with jax.enable_x64(True):
        latents, log_dets = jnp.asarray(LATENTS), jnp.asarray(LOG_DETS)
        direction = jnp.asarray(RNG.normal(size=(B, D)))

        def along(step: float) -> jax.Array:
            return jdml.nir_loss(latents + step * direction, log_dets, temperature=0.5)

        slope = jax.jvp(along, (0.0,), (1.0,))[1]
        np.testing.assert_allclose(slope, (along(1e-6) - along(-1e-6)) / 2e-6, rtol=1e-6)
