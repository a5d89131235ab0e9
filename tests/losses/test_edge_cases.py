"""Edge cases: integers and floats of any type, empty batches, huge vectors, settings from files."""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from losses.registry import each

import jdml
from jdml import mining, registry
from jdml.losses import terms

X = jnp.asarray(np.random.default_rng(0).normal(size=(6, 4)), jnp.float32)
Y = np.array([0, 0, 1, 1, 2, 2])


PROXIES = jnp.asarray(np.random.default_rng(1).normal(size=(300, 4)), jnp.float32)


def pair(embeddings: Any, labels: Any) -> jax.Array:
    return jdml.margin_loss(embeddings, labels, beta=jnp.linspace(0.5, 1.5, 300))


def proxy(embeddings: Any, labels: Any) -> jax.Array:
    return jdml.normalized_softmax_loss(embeddings, labels, PROXIES)


def towers(embeddings: Any, labels: Any) -> jax.Array:
    return jdml.both_ways(jdml.info_nce_loss)(embeddings, np.asarray(X), labels=labels)


@pytest.mark.parametrize("compute", [pair, proxy, towers])
def test_arrays_of_any_type_and_byte_order(compute: Callable[[Any, Any], jax.Array]) -> None:
    labels, x = np.array([0, 5, 17, 99, 100, 120]), np.asarray(X)
    expected = compute(X, labels)
    for dtype in (np.uint8, np.int8, np.uint16, "<i4", ">i4", ">i8"):
        assert compute(x, labels.astype(dtype)) == expected
    assert compute(x, jnp.asarray(labels, jnp.uint32)) == expected
    for dtype in ("<f4", ">f4", "<f8", ">f8"):
        assert compute(x.astype(dtype), labels) == expected
    for kind in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        small = x.astype(kind)
        rounded = compute(small.astype(np.float32), labels)
        for embeddings in (small, jnp.asarray(small)):
            np.testing.assert_allclose(compute(embeddings, labels), rounded, rtol=1e-2)


def test_labels_out_of_range_are_ignored_where_unchecked() -> None:
    """In traced calls, in JAX arrays and in masked rows; a scalar beta accepts any label."""
    outside, where = np.where(np.arange(6) == 4, 99, Y), np.arange(6) != 4
    expected = jdml.proxy_anchor_loss(X, Y, X[:3], where=where)
    assert jdml.proxy_anchor_loss(X, outside, X[:3], where=where) == expected
    traced = jax.jit(jdml.proxy_anchor_loss)(X, outside, X[:3])
    for value in (traced, jdml.proxy_anchor_loss(X, jnp.asarray(outside), X[:3])):
        np.testing.assert_allclose(value, expected, rtol=1e-6)
    with pytest.raises(ValueError, match=r"^labels\[4\] is 99"):
        jdml.proxy_anchor_loss(X, outside, X[:3], where=where | True)
    jdml.margin_loss(X, Y - 1, beta=jnp.ones(3))
    jdml.margin_loss(X, Y + 1, beta=1.2)
    assert jnp.isfinite(jax.jit(jdml.margin_loss)(X, Y + 1, beta=jnp.ones(3)))


@pytest.mark.parametrize("reduce_fn", [jnp.mean, jnp.sum, jdml.mean, jdml.mean_nonzero, jdml.total])
def test_empty_batches_reduce_to_zero(reduce_fn) -> None:
    assert jdml.multi_similarity_loss(X[:0], Y[:0], reduce_fn=reduce_fn) == 0
    assert jdml.contrastive_loss(X[:0], Y[:0], reduce_fn=reduce_fn) == 0


@pytest.mark.parametrize("name", ["fast_ap", "info_nce", "lifted_structure", "snr_contrastive"])
def test_loss_of_nan_is_nan(name: str) -> None:
    """Comparisons with NaN are false, but a diverged model must not have a loss of 0."""
    assert jnp.isnan(getattr(jdml, f"{name}_loss")(X * jnp.nan, Y))


def test_single_nan_row_makes_the_loss_nan() -> None:
    one = X.at[2].set(jnp.nan)
    assert jnp.isnan(jdml.sup_con_loss(one, Y))
    assert jnp.isnan(jdml.proxy_anchor_loss(one, Y, X[:3]))
    for mine in (mining.multi_similarity_pairs(), mining.trusted_negative()):
        assert jnp.isnan(jdml.contrastive_loss(one, Y, mine=mine))


@pytest.mark.parametrize(
    "loss",
    [
        *(jdml.contrastive_loss, jdml.triplet_loss, jdml.margin_loss),
        *(jdml.potential_field_loss, jdml.contrastive_potential_loss),
    ],
)
def test_huge_vectors_without_normalization_are_finite(loss: Callable[..., jax.Array]) -> None:
    step = jax.jit(jax.value_and_grad(lambda x: loss(x, Y, normalize=None)))
    for scale in (1e15, 1e20, 1e30):
        chex.assert_tree_all_finite(step(scale * X))


def test_anchor_of_weight_zero_has_no_active_terms() -> None:
    weights = jnp.array([1.0, 1.0, 0.0, 1.0, 1.0, 0.0])
    rows = jdml.triplet_loss(X, Y, margin=1.0, reduce_fn=None)
    d = np.linalg.norm(np.asarray(jdml.sphere(X))[:, None] - jdml.sphere(X)[None], axis=-1)
    positive, negative = Y[:, None] == Y, Y[:, None] != Y
    np.fill_diagonal(positive, False)
    triplets = positive[:, :, None] & negative[:, None, :]
    active = ((d[:, :, None] - d[:, None, :] + 1 > 0) & triplets).sum((1, 2))
    expected = np.sum(weights * rows) / np.sum(active * (np.asarray(weights) > 0))
    actual = jdml.triplet_loss(X, Y, margin=1.0, weights=weights)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_numpy_scalars_are_accepted_as_settings() -> None:
    assert jdml.triplet_loss(X, Y, squared=np.bool_(True)) == jdml.triplet_loss(X, Y, squared=True)
    expected = jdml.multi_similarity_loss(X, Y, alpha=2.0)
    assert jdml.multi_similarity_loss(X, Y, alpha=np.uint8(2)) == expected


def test_trimmed_mean_removes_whole_counts() -> None:
    for count, share, left in ((100, 0.4, 60), (100, 0.7, 30), (50, 0.7, 15), (3, 0.4, 2)):
        value = jdml.trimmed_mean(share)(jnp.arange(count, dtype=jnp.float32))
        np.testing.assert_allclose(value, np.arange(left).mean(), rtol=1e-6)


PROXY_LOSSES = [name for name in registry.proxy_losses() if registry.LOSSES[name].needs_proxies]


@pytest.mark.parametrize("name", each(f"{name}_loss" for name in PROXY_LOSSES))
def test_proxy_whose_norm_overflows_counts_as_zero(name: str) -> None:
    x = jax.random.normal(jax.random.key(0), (6, 8))
    y = jnp.array([0, 1, 2, 0, 1, 2])
    proxies = jax.random.normal(jax.random.key(1), (3, 8))

    def value(x: jax.Array, p: jax.Array) -> jax.Array:
        return getattr(jdml, name)(x, y, p)

    value_and_grad = jax.jit(jax.value_and_grad(value, (0, 1)))
    long, zero = (value_and_grad(x, proxies.at[1].set(entry)) for entry in (3e38, 0.0))
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(long))
    np.testing.assert_allclose(long[0], zero[0], rtol=1e-6)
    np.testing.assert_allclose(long[1][0], zero[1][0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("apart", [0.0, 1.0, 15.0, -8.0, -20.0])
def test_soft_average_of_two_has_exact_gradients(apart: float) -> None:
    """Also for the centre with a tiny weight, in either order, and the second derivative at ties."""
    gamma = 0.1
    values = (jnp.zeros((1, 1)), jnp.full((1, 1), apart * gamma))

    def average(values: tuple[jax.Array, jax.Array], gamma: float | jax.Array) -> jax.Array:
        return terms._soft_averages(values, jnp.asarray(gamma)).sum()

    (first, second), by_gamma = jax.jit(jax.grad(average, (0, 1)))(values, gamma)
    v = np.array([0.0, float(values[1][0, 0])])
    g = float(np.float32(gamma))
    w = np.exp((v - v.max()) / g)
    w /= w.sum()
    centred = (v - w @ v) / g
    np.testing.assert_allclose(first, w[0] * (1 + centred[0]), rtol=2e-5, atol=1e-12)
    np.testing.assert_allclose(second, w[1] * (1 + centred[1]), rtol=2e-5, atol=1e-12)
    np.testing.assert_allclose(by_gamma, -(w @ centred**2), rtol=2e-5, atol=1e-12)
    more = jax.grad(lambda v: jax.grad(average)(v, gamma)[0].sum())(values)
    third = (*values, jnp.full((1, 1), -1e3))  # the general rule
    expected = jax.grad(lambda v: jax.grad(average)(v, gamma)[0].sum())(third)
    np.testing.assert_allclose(more[0], expected[0], rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(more[1], expected[1], rtol=1e-3, atol=1e-6)
