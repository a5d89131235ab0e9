"""Masked reductions: none is 0, nothing leaks, a true NaN shows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdml.ops import mean, mean_nonzero, reduce_groups, reduce_terms, total, trimmed_mean

VALUES = jnp.array([4.0, 0.0, 1.0, -2.0])
MASK = jnp.array([True, True, True, False])
REDUCTIONS = {
    "mean": mean,
    "mean_nonzero": mean_nonzero,
    "total": total,
    "trimmed": trimmed_mean(0.4),
}
EXPECTED = {"mean": 5 / 3, "mean_nonzero": 2.5, "total": 5.0, "trimmed": 0.5}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_value_and_gradient_by_hand(name: str) -> None:
    value, gradient = jax.value_and_grad(REDUCTIONS[name])(VALUES, MASK)
    np.testing.assert_allclose(value, EXPECTED[name], rtol=1e-6)
    shares = {
        "mean": [1 / 3, 1 / 3, 1 / 3, 0],
        "mean_nonzero": [0.5, 0, 0.5, 0],
        "total": [1, 1, 1, 0],
        "trimmed": [0, 0.5, 0.5, 0],
    }
    np.testing.assert_allclose(gradient, shares[name], rtol=1e-6)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_nothing_kept_is_zero_with_zero_gradient(name: str) -> None:
    nothing = jnp.zeros(4, bool)
    value, gradient = jax.value_and_grad(REDUCTIONS[name])(VALUES, nothing)
    assert value == 0
    np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_masked_nan_does_not_leak_and_a_kept_one_shows(name: str) -> None:
    poisoned = VALUES.at[3].set(jnp.nan)
    value, gradient = jax.value_and_grad(REDUCTIONS[name])(poisoned, MASK)
    np.testing.assert_allclose(value, EXPECTED[name], rtol=1e-6)
    assert jnp.isfinite(gradient).all()
    if name != "trimmed":  # a NaN sorts last, so it is the first to be trimmed
        assert jnp.isnan(REDUCTIONS[name](poisoned, jnp.ones(4, bool)))


@pytest.mark.slow
@pytest.mark.parametrize("reduce_fn", [jnp.mean, jnp.sum, jnp.max], ids=["mean", "sum", "max"])
def test_jnp_reductions_of_no_term_are_zero(reduce_fn) -> None:
    def reduced(values: jax.Array) -> jax.Array:
        kept = {} if reduce_fn is not jnp.max else {"initial": 0.0}
        return reduce_terms(
            lambda v, where: reduce_fn(v, where=where, **kept), values, jnp.zeros(4, bool)
        )

    value, gradient = jax.value_and_grad(reduced)(VALUES)
    assert value == 0
    assert jnp.isfinite(gradient).all()


def test_unreduced_terms_are_zero_where_masked() -> None:
    values = reduce_terms(None, VALUES.at[3].set(jnp.nan), MASK)
    np.testing.assert_array_equal(values, [4, 0, 1, 0])


def test_groups_reduce_as_if_terms_stood_alone() -> None:
    terms = [[3.0, 0.0, 2.0], [1.0], []]
    sums = jnp.array([sum(t) for t in terms])
    counts = jnp.array([len(t) for t in terms])
    nonzero = jnp.array([sum(v != 0 for v in t) for t in terms])
    flat = jnp.array([v for t in terms for v in t])
    for reduce_fn in (mean, mean_nonzero, total, jnp.mean, jnp.sum):
        reduced = reduce_groups(reduce_fn, sums, counts > 0, terms=counts, nonzero=nonzero)
        np.testing.assert_allclose(reduced, reduce_fn(flat), rtol=1e-6)


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 1.5, float("nan")])
def test_a_share_that_cannot_be_trimmed(fraction: float) -> None:
    with pytest.raises(ValueError, match="fraction must be"):
        trimmed_mean(fraction)


def test_the_same_trimming_is_the_same_function() -> None:
    assert trimmed_mean(0.25) is trimmed_mean(0.25)
