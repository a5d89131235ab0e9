"""Roots, norms, logarithms of sums and distances: values at the extremes, and gradients everywhere."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdml import ops
from jdml.ops import mean, mean_nonzero, reduce_groups, reduce_terms, total, trimmed_mean
from jdml.ops.numerics import inverse_norms, log_add_exp, softplus
from jdml.ops.pairwise import Narrow
from jdml.ops.reductions import sum_rows
from jdml.ops.soft_rank import _as_ordered_integers, _count_by_place, _count_by_search
from oracles.programs import temporary_bytes

EXTREMES = [0.0, 1e-44, 1e-38, 1e-30, 1e-20, 1e-6, 1.0, 1e6, 1e19, 1e30, 1e36, 3e38]


@pytest.fixture(params=["cpu", "gpu"])
def platform(request, monkeypatch) -> None:
    """Use the formulas for a CPU, and those for other platforms."""
    monkeypatch.setattr(jax, "default_backend", lambda: request.param)


@pytest.mark.parametrize("normalize", [ops.sphere, ops.ball], ids=["sphere", "ball"])
def test_normalization_is_finite_at_every_scale(normalize) -> None:
    @jax.jit
    def both(vectors: jax.Array) -> tuple[jax.Array, ...]:
        value, pull = jax.vjp(normalize, vectors)
        return value, *pull(jnp.arange(9.0).reshape(3, 3))

    for scale in EXTREMES:
        value, gradient = both(
            jnp.float32(scale) * jnp.array([[0.6, 0.8, 0.0], [-1.0, 0.0, 0.0], [0.3, 0.3, 0.3]])
        )
        chex.assert_tree_all_finite((value, gradient))
        norms = np.linalg.norm(np.asarray(value, np.float64), axis=1)
        assert (norms <= 1 + 1e-6).all()
        if normalize is ops.sphere and 1e-20 <= scale <= 1e36:
            np.testing.assert_allclose(norms, 1, atol=1e-6)


@pytest.mark.parametrize("x64", [False, True], ids=["float32", "float64"])
def test_inverse_norms_on_every_platform(x64: bool, monkeypatch) -> None:
    """They equal 1/‖v‖ in extended precision at every scale, and 0 where a vector counts as zero."""
    scales = [*EXTREMES, *([1e-320, 1e-300, 1e-298, 1e-160, 1e160, 1e306, 1e307] if x64 else [])]
    with jax.enable_x64(x64):
        rows = (
            np.array([[0.6, -0.8]]) * np.array([*scales, 1.1e-29, 1.3e-29, 9e36, 1.2e37])[:, None]
        )
        vectors = jnp.asarray([*rows, [np.inf, 1.0], [np.nan, 1.0]], float)
        on_cpu, ordinary = inverse_norms(vectors), inverse_norms(vectors[6:7])
        monkeypatch.setattr(jax.lax, "platform_dependent", lambda *, cpu, default: default())
        elsewhere = inverse_norms.fun.__wrapped__(vectors)
        limits = jnp.finfo(vectors.dtype)
    norms = np.sqrt((np.asarray(vectors, np.longdouble) ** 2).sum(axis=1))
    counts = (norms > 1e9 * np.longdouble(limits.tiny)) & (
        norms < 0.125 / np.longdouble(limits.tiny)
    )
    with np.errstate(divide="ignore"):
        expected = np.where(counts | np.isnan(norms), 1 / norms, 0).astype(vectors.dtype)
    assert 0 < counts.sum() < len(counts) - 4
    for factors in (on_cpu, elsewhere):
        np.testing.assert_allclose(factors[:, 0], expected, rtol=10 * float(limits.eps))
    np.testing.assert_array_equal(ordinary, on_cpu[6:7])


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_gradients_of_normalization_are_tangent_and_scaled(dtype) -> None:
    v, unit = jnp.array([[3.0, 4.0]], dtype), np.array([0.6, 0.8])
    for normalize in (ops.sphere, ops.ball):
        jacobian = jax.jacobian(normalize)(v)[0, :, 0]
        assert normalize(v).dtype == jacobian.dtype == dtype
        close = {"atol": 1e-6 if dtype == jnp.float32 else 2e-3}
        expected = (np.eye(2) - np.outer(unit, unit)) / 5
        np.testing.assert_allclose(jacobian.astype(float), expected, **close)


def test_ball_is_the_identity_inside() -> None:
    v = jnp.array([[0.3, -0.4], [0.0, 0.0]])
    np.testing.assert_array_equal(ops.ball(v), v)
    np.testing.assert_allclose(jax.jacobian(lambda u: ops.ball(u).sum(0))(v)[:, 1], np.eye(2))


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize("axis", [0, 1])
def test_log_sums_match_float64(axis: int) -> None:
    rng, close = np.random.default_rng(0), {"rtol": 1e-6, "atol": 1e-6}
    where = rng.random((5, 6)) < 0.7
    for scale in (0.0, 1.0, 80.0, 1e4):
        values = (scale * rng.normal(size=(5, 6))).astype(np.float32)
        wide = values.astype(np.float64)
        expected = np.logaddexp.reduce(np.where(where, wide, -np.inf), axis=axis)
        masked = ops.log_sum_exp(values, where=where, axis=axis)
        np.testing.assert_allclose(masked, expected, **close)
        unmasked = ops.log_sum_exp(values, axis=axis)
        np.testing.assert_allclose(unmasked, np.logaddexp.reduce(wide, axis=axis), **close)
        with_one = ops.log1p_sum_exp(values, where=where, axis=axis)
        np.testing.assert_allclose(with_one, np.logaddexp(expected, 0), **close)


def test_log1p_sum_keeps_tiny_sums() -> None:
    value = ops.log1p_sum_exp(jnp.array([-30.0]), where=jnp.array([True]))
    np.testing.assert_allclose(value, np.exp(-30.0), rtol=1e-5)


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize("function", [ops.log_sum_exp, ops.log1p_sum_exp])
def test_log_sums_of_no_values_have_gradient_zero(function) -> None:
    def finite_part(values: jax.Array) -> jax.Array:
        results = function(values, where=jnp.array([[True, False], [False, False]]))
        return jnp.where(jnp.isfinite(results), results, 0.0).sum()

    gradient = jax.grad(finite_part)(jnp.array([[1.0, jnp.inf], [jnp.nan, 2.0]]))
    np.testing.assert_allclose(gradient, [[gradient[0, 0], 0], [0, 0]])
    assert jnp.isfinite(gradient).all()


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize("function", [ops.log_sum_exp, ops.log1p_sum_exp])
def test_log_sums_of_infinities(function) -> None:
    values = jnp.array([[jnp.inf, 1.0, 0.0], [jnp.inf, jnp.inf, 0.0], [jnp.nan, jnp.inf, 0.0]])
    where = jnp.array([True, True, False])
    np.testing.assert_array_equal(function(values, where=where), [jnp.inf, jnp.inf, jnp.nan])


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize("where", [None, jnp.array([True, True, False])])
def test_log_sum_of_zeros_has_gradient_zero(where) -> None:
    def sums(values: jax.Array) -> jax.Array:
        return jnp.maximum(ops.log_sum_exp(values, where=where), -1e3)

    last = -jnp.inf if where is None else 2.0
    value, gradient = jax.value_and_grad(sums)(jnp.array([-jnp.inf, -jnp.inf, last]))
    assert value == -1e3
    np.testing.assert_array_equal(gradient, 0)
    assert jnp.isnan(ops.log_sum_exp(jnp.array([jnp.nan, 1.0, 2.0]), where=where))


@pytest.mark.parametrize("by_sums", [True, False])
def test_cosines_equal_products_on_the_sphere(by_sums: bool) -> None:
    """Values and gradients, also for zeros and for vectors whose products overflow."""
    x, y = jax.random.normal(jax.random.key(0), (2, 4, 3))
    x, y = x.at[1].set(0.0), y.at[2].set(0.0).at[3].multiply(1e38).at[1].multiply(1e25)

    def plain(x: jax.Array, y: jax.Array) -> jax.Array:
        return ops.similarities(ops.sphere(x), ops.sphere(y))

    def both(function, *arrays: jax.Array) -> tuple[jax.Array, ...]:
        value, gradients = jax.vjp(function, *arrays)
        return value, *gradients(jnp.arange(16.0).reshape(4, 4) - 3.0)

    found = both(lambda x, y: ops.cosines(x, y, by_sums), x, y)
    for own, expected in zip(found, both(plain, x, y), strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-5)


def test_distances_match_numpy_without_a_difference_per_pair() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(7, 5)), rng.normal(size=(9, 5))
    expected = np.linalg.norm(x[:, None] - y[None], axis=-1)
    np.testing.assert_allclose(
        ops.distances(jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)), expected, rtol=1e-5
    )
    used = temporary_bytes(
        lambda a, b: ops.distances(a, b).sum(), (256, 64), (512, 64), argnums=(0, 1)
    )
    assert used < 6 * 256 * 512 * 4


def test_ordered_integers_keep_the_order_of_floats() -> None:
    values = jnp.array([-jnp.inf, -2.0, -1.0, -1e-30, 0.0, 1e-30, 1.0, 2.0, jnp.inf])
    assert (jnp.diff(_as_ordered_integers(values)) > 0).all()


@pytest.mark.parametrize("counted", [_count_by_search, _count_by_place])
def test_both_algorithms_count_the_same_pairs(counted) -> None:
    """With ties, entries that are neither positive nor negative, and rows without one kind."""
    rng = np.random.default_rng(1)
    values = jnp.asarray(rng.integers(0, 9, (5, 20)), jnp.int32)
    kinds = jnp.asarray(rng.integers(0, 3, (5, 20)))
    positive, negative = (kinds == 0).at[3].set(False), kinds == 1
    for bounds in (values + 2, jnp.asarray(rng.integers(0, 9, (5, 20)), jnp.int32)):
        above = bounds[:, :, None] > values[:, None, :]
        active = above & positive[:, :, None] & negative[:, None, :]
        listed = active.sum(2) + active.sum(1)
        np.testing.assert_array_equal(counted(bounds, values, positive, negative), listed)


def test_distance_zero_has_gradient_zero() -> None:
    x = jnp.array([[0.6, 0.8], [0.6, 0.8]])
    np.testing.assert_array_equal(jax.grad(lambda v: ops.distances(v, v).sum())(x), 0)


@pytest.mark.parametrize("scale", [1e-38, 1.0, 3e38])
def test_16_bit_products_are_exact(scale: float) -> None:
    """Cosines of bfloat16 vectors in one pass and their gradients equal products in float32."""
    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(rng.uniform(-1, 1, (n, 16)), jnp.bfloat16) for n in (5, 6))
    x = (jnp.float32(scale) * x).astype(x.dtype).at[2].set(0)
    weights = jnp.asarray(rng.normal(size=(5, 6)), jnp.float32)

    def cosines(x: jax.Array, y: jax.Array, by_narrow: bool) -> jax.Array:
        a, b = (ops.sphere(v.astype(jnp.float32)) for v in (x, y))
        both = (Narrow.of(x, a), Narrow.of(y, b)) if by_narrow else None
        return ops.similarities(a, b, both)

    wide = np.asarray(x, np.float64) / scale, np.asarray(y, np.float64)
    unit = [v / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-9) for v in wide]
    expected = unit[0] @ unit[1].T if scale > 1e-30 and scale < 1e37 else 0.0
    np.testing.assert_allclose(jax.jit(cosines, static_argnums=2)(x, y, True), expected, atol=2e-7)
    got, plain = (
        jax.jit(jax.grad(lambda *v, way=way: (weights * cosines(*v, way)).sum(), (0, 1)))(x, y)
        for way in (True, False)
    )
    for left, right in zip(got, plain, strict=True):
        assert left.dtype == jnp.bfloat16
        np.testing.assert_allclose(*(np.asarray(v, np.float64) for v in (left, right)), rtol=8e-3)
    own = ops.sphere(x.astype(jnp.float32))
    among = ops.similarities(own, own, (Narrow.of(x, own),) * 2)
    np.testing.assert_allclose(among, unit[0] @ unit[0].T if np.any(expected) else 0.0, atol=2e-7)


# Masked reductions: no term gives 0, masked values do not leak, a NaN term gives NaN.

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
    value, gradient = jax.value_and_grad(REDUCTIONS[name])(VALUES, jnp.zeros(4, bool))
    assert value == 0
    np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_masked_nan_does_not_leak_and_other_nan_propagates(name: str) -> None:
    poisoned = VALUES.at[3].set(jnp.nan)
    value, gradient = jax.value_and_grad(REDUCTIONS[name])(poisoned, MASK)
    np.testing.assert_allclose(value, EXPECTED[name], rtol=1e-6)
    assert jnp.isfinite(gradient).all()
    if name != "trimmed":  # a NaN sorts last, so it is the first to be trimmed
        assert jnp.isnan(REDUCTIONS[name](poisoned, jnp.ones(4, bool)))


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


@pytest.mark.parametrize(
    ("reduce_fn", "counts"), [(total, [0, 0]), (mean, [2, 1]), (mean_nonzero, [1, 1])]
)
def test_row_sums_and_their_counts(reduce_fn, counts) -> None:
    values, where = jnp.array([[3.0, 0.0], [2.0, 5.0]]), jnp.array([[True, True], [True, False]])
    sums, counted = sum_rows(reduce_fn, values, where)
    assert (sums.tolist(), counted.tolist()) == ([3.0, 2.0], counts)


def test_groups_reduce_like_single_terms() -> None:
    terms = [[3.0, 0.0, 2.0], [1.0], []]
    sums = jnp.array([sum(t) for t in terms])
    counts = jnp.array([len(t) for t in terms])
    nonzero = jnp.array([sum(v != 0 for v in t) for t in terms])
    flat = jnp.array([v for t in terms for v in t])
    for reduce_fn in (mean, mean_nonzero, total, jnp.mean, jnp.sum):
        reduced = reduce_groups(reduce_fn, sums, counts > 0, terms=counts, nonzero=nonzero)
        np.testing.assert_allclose(reduced, reduce_fn(flat), rtol=1e-6)


def test_trimmed_fraction_is_checked_and_cached() -> None:
    for fraction in (-0.1, 1.0, 1.5, float("nan")):
        with pytest.raises(ValueError, match=r"^fraction\b"):
            trimmed_mean(fraction)
    assert trimmed_mean(0.25) is trimmed_mean(0.25)


def test_gradients_at_ties_ends_and_infinity() -> None:
    """The gradients of log-sums and of roots are finite."""
    x, y = jnp.array([0.0, 1e30, -1e30, -jnp.inf]), jnp.array([0.0, 0.0, 5.0, 1.0])
    slopes = jax.grad(lambda x, y: log_add_exp(x, y).sum(), (0, 1))(x, y)
    np.testing.assert_allclose(slopes, ([0.5, 1, 0, 0], [0.5, 0, 1, 1]))
    np.testing.assert_allclose(jax.grad(lambda x: softplus(x).sum())(x), [0.5, 1, 0, 0])
    values = jnp.array([-1.0, 0.0, 4.0, jnp.inf])
    np.testing.assert_allclose(jax.grad(lambda v: ops.safe_sqrt(v).sum())(values), [0, 0, 0.25, 0])
    curve = jax.grad(lambda v: jax.grad(ops.safe_sqrt)(v))
    np.testing.assert_allclose([curve(v) for v in (0.0, 4.0)], [0.0, -1 / 32])
