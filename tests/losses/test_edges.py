"""Edges that users reach: half precision, small integer types, empty batches, huge vectors, settings from files."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml
from jdml import mining, registry
from jdml.losses import terms

pytestmark = pytest.mark.slow

X = jnp.asarray(np.random.default_rng(0).normal(size=(6, 4)), jnp.float32)
Y = np.array([0, 0, 1, 1, 2, 2])


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("normalize", [jdml.sphere, jdml.ball], ids=["sphere", "ball"])
def test_normalization_in_half_precision(normalize, dtype) -> None:
    vectors = jnp.array([[3.0, 4.0], [0.0, 0.0]], dtype)
    slope = jax.grad(lambda v: normalize(v)[:, 0].sum())
    value, gradient = jax.jit(lambda v: (normalize(v), slope(v)))(vectors)
    assert value.dtype == gradient.dtype == dtype
    np.testing.assert_allclose(value[0].astype(float), [0.6, 0.8], rtol=1e-2)
    np.testing.assert_allclose(gradient[0].astype(float), [0.128, -0.096], rtol=2e-2)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16])
def test_labels_of_small_types_reach_every_class(dtype: type) -> None:
    proxies = jnp.asarray(np.random.default_rng(1).normal(size=(300, 4)), jnp.float32)
    labels = np.array([0, 5, 17, 99, 100, 120])
    expected = jdml.normalized_softmax_loss(X, labels, proxies)
    assert jdml.normalized_softmax_loss(X, labels.astype(dtype), proxies) == expected
    beta = jnp.linspace(0.5, 1.5, 300)
    expected = jdml.margin_loss(X, Y, beta=beta)
    assert jdml.margin_loss(X, Y.astype(dtype), beta=beta) == expected


def test_labels_that_would_be_cut_down_are_refused() -> None:
    with pytest.raises(ValueError, match=r"labels\[1\] is 4294967296, expected an int32"):
        jdml.contrastive_loss(X, np.array([0, 2**32, 1, 1, 2, 2]))


@pytest.mark.parametrize("reduce_fn", [jnp.mean, jnp.sum, jdml.mean, jdml.mean_nonzero, jdml.total])
def test_empty_batches_reduce_to_zero(reduce_fn) -> None:
    assert jdml.multi_similarity_loss(X[:0], Y[:0], reduce_fn=reduce_fn) == 0
    assert jdml.contrastive_loss(X[:0], Y[:0], reduce_fn=reduce_fn) == 0


@pytest.mark.parametrize("name", ["fast_ap", "info_nce", "lifted_structure", "snr_contrastive"])
def test_a_loss_of_nan_is_nan(name: str) -> None:
    """A model that has diverged is not one that has learned all: comparisons with NaN are false, on either side."""
    assert jnp.isnan(getattr(jdml, f"{name}_loss")(X * jnp.nan, Y))


def test_one_nan_is_not_left_out() -> None:
    one = X.at[2].set(jnp.nan)
    assert jnp.isnan(jdml.sup_con_loss(one, Y))
    assert jnp.isnan(jdml.proxy_anchor_loss(one, Y, X[:3]))
    for mine in (mining.multi_similarity_pairs(), mining.trusted_negative()):
        assert jnp.isnan(jdml.contrastive_loss(one, Y, mine=mine))


@pytest.mark.parametrize("scale", [1e15, 1e20, 1e30])
def test_huge_vectors_compared_as_they_are(scale: float) -> None:
    for loss in (jdml.contrastive_loss, jdml.triplet_loss, jdml.margin_loss):
        value, gradient = jax.value_and_grad(lambda x, loss=loss: loss(x, Y, normalize=None))(
            scale * X
        )
        assert jnp.isfinite(value)
        assert jnp.isfinite(gradient).all()


def test_weight_zero_takes_an_anchor_out_of_the_active_terms() -> None:
    weights = jnp.array([1.0, 1.0, 0.0, 1.0, 1.0, 0.0])
    rows = jdml.triplet_loss(X, Y, margin=1.0, reduce_fn=None)
    active = [
        sum(
            d(a, p) - d(a, n) + 1 > 0
            for p in range(6)
            if p != a and Y[p] == Y[a]
            for n in range(6)
            if Y[n] != Y[a]
        )
        for a in range(6)
    ]
    expected = np.sum(weights * rows) / np.sum(np.array(active) * (weights > 0))
    np.testing.assert_allclose(
        jdml.triplet_loss(X, Y, margin=1.0, weights=weights), expected, rtol=1e-5
    )


def d(i: int, j: int) -> float:
    unit = np.asarray(X) / np.linalg.norm(X, axis=1, keepdims=True)
    return float(np.linalg.norm(unit[i] - unit[j]))


def test_settings_as_files_hold_them() -> None:
    assert jdml.triplet_loss(X, Y, squared=np.bool_(True)) == jdml.triplet_loss(X, Y, squared=True)
    with pytest.raises(TypeError, match="squared must be True or False, got 1"):
        jdml.triplet_loss(X, Y, squared=1)
    expected = jdml.multi_similarity_loss(X, Y, alpha=2.0)
    assert jdml.multi_similarity_loss(X, Y, alpha=np.uint8(2)) == expected
    with pytest.raises(TypeError, match="margin must be a number"):
        jdml.triplet_loss(X, Y, margin=jnp.array(True))
    with pytest.raises(ValueError, match="margin must be an angle in radians"):
        jdml.arcface_loss(X, Y, X[:3], margin=28.6)


def test_a_miner_must_return_pairs() -> None:
    with pytest.raises(TypeError, match="mine must return Pairs"):
        jdml.triplet_loss(X, Y, mine=lambda key, distances, pairs: tuple(pairs))


@pytest.mark.parametrize(
    ("count", "share", "kept"), [(100, 0.4, 60), (100, 0.7, 30), (50, 0.7, 15), (3, 0.4, 2)]
)
def test_trimming_keeps_whole_counts(count: int, share: float, kept: int) -> None:
    values = jnp.arange(count, dtype=jnp.float32)
    np.testing.assert_allclose(jdml.trimmed_mean(share)(values), np.arange(kept).mean(), rtol=1e-6)


def test_triplet_margin_of_a_wider_type() -> None:
    with jax.enable_x64(True):
        x = jax.random.normal(jax.random.key(0), (12, 4), jnp.float32)
        y = jnp.arange(12) % 3
        wide, narrow = (jdml.triplet_loss(x, y, margin=m) for m in (np.array(0.3), 0.3))
        np.testing.assert_allclose(wide, narrow, rtol=1e-6)


PROXY_LOSSES = [name for name in registry.proxy_losses() if registry.LOSSES[name].needs_proxies]


@pytest.mark.parametrize("name", PROXY_LOSSES)
def test_a_proxy_too_long_for_floats_counts_as_zero(name: str) -> None:
    x = jax.random.normal(jax.random.key(0), (6, 8))
    y = jnp.array([0, 1, 2, 0, 1, 2])
    proxies = jax.random.normal(jax.random.key(1), (3, 8))

    def value(x: jax.Array, p: jax.Array) -> jax.Array:
        return getattr(jdml, f"{name}_loss")(x, y, p)

    value_and_grad = jax.jit(jax.value_and_grad(value, (0, 1)))
    long, zero = (value_and_grad(x, proxies.at[1].set(entry)) for entry in (3e38, 0.0))
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(long))
    np.testing.assert_allclose(long[0], zero[0], rtol=1e-6)
    np.testing.assert_allclose(long[1][0], zero[1][0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("centres", [2, 3])
@pytest.mark.parametrize("gamma", [1e-6, 0.1, 1e6])
def test_soft_similarity_of_two_centres_and_of_more(centres: int, gamma: float) -> None:
    rng = np.random.default_rng(0)
    x, p = rng.normal(size=(6, 4)), rng.normal(size=(3, centres, 4))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    p /= np.linalg.norm(p, axis=-1, keepdims=True)
    similar = np.einsum("bd,ckd->bck", x, p)
    weights = np.exp((similar - similar.max(-1, keepdims=True)) / gamma)
    averages = (weights * similar).sum(-1) / weights.sum(-1)
    own = averages[np.arange(6), Y]
    expected = np.log(np.exp(averages).sum(-1)) - own
    rows = jdml.soft_triple_loss(
        jnp.asarray(x, jnp.float32),
        Y,
        jnp.asarray(p, jnp.float32),
        scale=1.0,
        gamma=gamma,
        margin=0.0,
        tau=None,
        reduce_fn=None,
    )
    np.testing.assert_allclose(rows, expected, rtol=2e-5)


@pytest.mark.parametrize("apart", [0.0, 1.0, 8.0, 15.0, 20.0, -8.0, -15.0, -20.0])
def test_soft_averages_of_two_have_exact_gradients(apart: float) -> None:
    """Also of the centre whose weight is tiny, in either order, and twice at ties."""
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
