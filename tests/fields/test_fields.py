"""Potentials of a pair, superposed at the charges and evaluated at any point."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml
from jdml import fields

RNG = np.random.default_rng(1)
CHARGES = RNG.normal(size=(20, 2)).astype(np.float32)
LABELS = RNG.integers(-1, 3, 20).astype(np.int32)
R = jnp.linspace(0.013, 2.0, 200)  # never δ itself


@pytest.mark.parametrize("alpha", [0.5, 1.0, 4.0, 6.0])
@pytest.mark.parametrize("delta", [0.1, 0.2, 0.5])
def test_potentials_equal_the_papers_formulas(delta: float, alpha: float) -> None:
    r = np.asarray(R, np.float64)
    pull = np.where(r < delta, -1 / delta**alpha, -1 / r**alpha)
    push = np.where(r < delta, 1 / r**alpha, 1 / delta**alpha)
    settings = {"delta": delta, "alpha": alpha, "repulsion_delta": delta}
    np.testing.assert_allclose(fields.potential(R, True, **settings), pull, rtol=1e-4)
    np.testing.assert_allclose(fields.potential(R, False, **settings), push, rtol=1e-4)
    np.testing.assert_allclose(
        fields.contrastive_potential(R, True, delta=delta), np.maximum(r, delta) ** 2, rtol=1e-5
    )
    push = np.maximum(delta - r, 0) ** 2
    np.testing.assert_allclose(
        fields.contrastive_potential(R, False, delta=delta), push, rtol=1e-4, atol=1e-7
    )


def test_forces_act_where_the_paper_says() -> None:
    """Attraction acts only outside δ, repulsion only inside; both fall with distance, CPML's attraction rises."""

    def force(kind, same: bool) -> np.ndarray:
        return np.asarray(jax.vmap(jax.grad(lambda r: kind(r, same, delta=0.2)))(R))

    outside = np.asarray(R) > 0.2
    pull, push = force(fields.potential, True), -force(fields.potential, False)
    assert not pull[~outside].any()
    assert not push[outside].any()
    assert (np.diff(pull[outside]) < 0).all()
    assert (np.diff(push[~outside]) < 0).all()
    assert (np.diff(force(fields.contrastive_potential, True)[outside]) > 0).all()


@pytest.mark.parametrize("alpha", [4.0, 8.0, 20.0, 80.0])
@pytest.mark.parametrize("same", [True, False])
def test_no_distance_or_exponent_overflows(same: bool, alpha: float) -> None:
    r = jnp.array([0.0, 1e-30, 1e-6, 1e-3, 0.1, 1.0, 1e10])
    value, slope = jax.vmap(jax.value_and_grad(lambda r: fields.potential(r, same, alpha=alpha)))(r)
    assert np.isfinite(value).all()
    assert np.isfinite(slope).all()


def test_minimum_distance_changes_nothing_beyond_the_reach() -> None:
    r = jnp.array([0.01, 1.0])
    np.testing.assert_allclose(
        fields.potential(r, False, delta=0.2, alpha=2.0, min_distance=10.0), 25.0, rtol=1e-6
    )


def test_superposed_potentials_are_sums_over_the_other_charges() -> None:
    settings = (0.7, 2.0, 1.1)
    superpose = jax.jit(lambda x: fields.superpose(fields.decaying, x, LABELS, settings, tile=6))
    superposed = np.asarray(superpose(CHARGES))
    for i, label in enumerate(LABELS):
        if label < 0:
            assert superposed[i] == 0
            continue
        others = [j for j in range(20) if j != i and LABELS[j] >= 0]
        r = np.linalg.norm(CHARGES[others] - CHARGES[i], axis=1)
        felt = fields.decaying(r, LABELS[others] == label, *settings)
        np.testing.assert_allclose(superposed[i], np.sum(felt), rtol=1e-3)


def test_class_field_at_a_charge_is_its_potential_plus_its_own_term() -> None:
    settings = {"delta": 0.7, "alpha": 2.0, "repulsion_delta": 1.1}

    def energy(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        felt = fields.class_field(x, 1, CHARGES, LABELS, **settings)
        return felt.sum(), felt

    @jax.jit
    def both(x: jax.Array) -> Any:
        others = fields.superpose(fields.decaying, x, LABELS, tuple(settings.values()))
        return jax.grad(energy, has_aux=True)(x), others

    (slope, felt), others = both(CHARGES)
    np.testing.assert_allclose(felt[LABELS == 1], others[LABELS == 1] - 1 / 0.7**2.0, rtol=1e-4)
    assert np.isfinite(slope).all()


def springs(r, same, stiffness, reach):
    """A custom potential: springs within a class, screened repulsion between classes."""
    assert r.shape == same.shape == ()
    return jax.lax.cond(
        same, lambda: stiffness * jnp.square(r - reach), lambda: jnp.exp(-r / reach)
    )


def springs_oracle(
    x: np.ndarray, labels: np.ndarray, weights: np.ndarray, stiffness: float, reach: float
) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """Return Ψ at the charges, and the gradients of ``Σ w_i Ψ_i`` by charges and parameters, in float64."""
    steps = x[:, None] - x[None]
    r = np.sqrt(np.square(steps).sum(-1))
    same = labels[:, None] == labels[None]
    pairs = (labels >= 0)[:, None] & (labels >= 0)[None] & ~np.eye(len(x), dtype=bool)

    def summed(within: np.ndarray, between: np.ndarray) -> np.ndarray:
        return np.where(pairs, np.where(same, within, between), 0.0)

    far = np.exp(-r / reach)
    felt = summed(stiffness * (r - reach) ** 2, far).sum(1)
    slopes = summed(2 * stiffness * (r - reach), -far / reach) * (weights[:, None] + weights[None])
    by_charges = (np.where(pairs, slopes / np.where(pairs, r, 1), 0)[..., None] * steps).sum(1)
    by_stiffness = summed((r - reach) ** 2, 0 * r)
    by_reach = summed(-2 * stiffness * (r - reach), far * r / reach**2)
    return felt, by_charges, [(weights[:, None] * d).sum() for d in (by_stiffness, by_reach)]


@pytest.mark.parametrize(
    ("dtype", "tile", "rtol"),
    [("float64", None, 1e-9), ("float64", 6, 1e-9), ("float32", 6, 1e-4)]
    + [("float16", 20, 1e-3), ("bfloat16", 6, 1e-2)],
)
def test_custom_potential_equals_oracle_for_every_tile(
    dtype: str, tile: int | None, rtol: float
) -> None:
    """The potentials and all gradients agree; the gradient by charges has the charges' precision."""
    with jax.enable_x64(dtype == "float64"):
        charges = jnp.asarray(CHARGES, dtype)
        weights = RNG.normal(size=len(charges))

        def whole(charges: jax.Array, parameters: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
            felt = fields.superpose(springs, charges, LABELS, parameters, tile=tile)
            return jnp.sum(jnp.asarray(weights, felt.dtype) * felt), felt

        step = jax.jit(jax.grad(whole, (0, 1), has_aux=True))
        (by_charges, by_parameters), felt = step(charges, (2.0, 0.5))
        expected = springs_oracle(np.asarray(charges, np.float64), LABELS, weights, 2.0, 0.5)
        np.testing.assert_allclose(felt, expected[0], rtol=min(rtol, 1e-4))
        scale = np.abs(expected[1]).max()
        np.testing.assert_allclose(
            np.asarray(by_charges, np.float64), expected[1], rtol=rtol, atol=rtol * scale
        )
        np.testing.assert_allclose(by_parameters, expected[2], rtol=min(rtol, 1e-4))


def test_class_field_of_custom_potential_at_any_point() -> None:
    points = RNG.normal(size=(7, 2)).astype(np.float32)
    settings = {"potential": springs, "stiffness": 2.0, "reach": 0.5}
    felt = jax.jit(lambda x: fields.class_field(x, 1, CHARGES, LABELS, **settings))(points)
    r = np.linalg.norm(points[:, None] - CHARGES[None], axis=-1)
    terms = np.where(LABELS == 1, 2 * (r - 0.5) ** 2, np.exp(-r / 0.5))
    np.testing.assert_allclose(felt, (terms * (LABELS >= 0)).sum(1), rtol=1e-4)


def test_boolean_potential_is_summed_as_numbers() -> None:
    def near(r, same):
        return same & (r < 0.5)

    labels = np.array([0, 0, 0, 1], np.int32)

    @jax.jit
    def both(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        felt, pullback = jax.vjp(lambda x: fields.superpose(near, x, labels), x)
        return felt, pullback(jnp.ones_like(felt))[0]

    felt, gradient = both(np.array([[0.0], [0.25], [0.5], [0.75]], np.float32))
    np.testing.assert_array_equal(felt, [1, 2, 1, 0])
    np.testing.assert_array_equal(gradient, 0)


POINTS, HALVES, TWO = jnp.ones((1, 2)), jnp.ones((2, 2)), jnp.array([0, 1])
WHOLE = jnp.ones((2, 1), int)
REFUSED: list[tuple[Any, type[Exception], str]] = [
    (lambda: fields.potential(R, True, alpha=0.0), ValueError, "alpha"),
    (lambda: fields.potential(R, True, alpha=-1.0), ValueError, "alpha"),
    (lambda: fields.potential(R, True, delta=0.0), ValueError, "delta"),
    (lambda: fields.potential(R, True, repulsion_delta=-0.1), ValueError, "repulsion_delta"),
    (lambda: fields.potential(R, True, min_distance=0.0), ValueError, "min_distance"),
    (lambda: fields.potential(jnp.array([1, 2]), False), TypeError, "r"),
    (lambda: fields.class_field(POINTS, 0.0, HALVES, TWO), TypeError, "label"),
    (lambda: fields.class_field(POINTS, TWO, HALVES, TWO), TypeError, "label"),
    (lambda: fields.class_field(POINTS, 0, HALVES, TWO[:1]), ValueError, "labels"),
    (lambda: fields.superpose(fields.decaying, WHOLE, TWO, (0.2, 4.0, 0.2)), TypeError, "charges"),
    (lambda: fields.superpose(3, CHARGES, LABELS), TypeError, "potential"),
    (lambda: fields.class_field(CHARGES, 0, CHARGES, LABELS, potential=3), TypeError, "potential"),
]


@pytest.mark.parametrize(("call", "error", "name"), REFUSED)
def test_refusals(call: Any, error: type[Exception], name: str) -> None:
    with pytest.raises(error, match=rf"^{name}\b"):
        call()


def test_checked_names_the_value_that_is_not_finite() -> None:
    charges, labels = jnp.array([[0.0, 1.0], [jnp.nan, 0.0]]), jnp.array([0, 1])

    def all_at(charges: jax.Array) -> jax.Array:
        return fields.superpose(fields.decaying, charges, labels, (0.2, 1.0, 0.2))

    with pytest.raises(ValueError, match=r"^charges\[1\]"):
        jdml.checked(jax.jit(all_at))(charges)
    with pytest.raises(ValueError, match=r"^charges\[1\]"):
        jdml.checked(jax.jit(lambda c: fields.class_field(c[:1], 0, c, labels)))(charges)
    with pytest.raises(ValueError, match=r"^proxies\[0\]"):
        jdml.checked(jdml.center_regularizer)(charges[None])


def test_ignored_charges_may_be_nan() -> None:
    charges = np.array([[0.0, 1.0], [np.nan, np.inf], [0.5, 0.0]], np.float32)
    labels = np.array([0, -1, 1], np.int32)

    def whole(charges: jax.Array, labels: jax.Array) -> jax.Array:
        return fields.superpose(fields.decaying, charges, labels, (0.2, 1.0, 2.0)).sum()

    step = jax.jit(jax.value_and_grad(whole))
    value, gradient = step(charges, labels)
    expected = step(charges[::2], labels[::2])
    chex.assert_trees_all_close((value, gradient[::2]), expected, rtol=1e-6)
    np.testing.assert_array_equal(gradient[1], 0)


def test_ignored_charges_add_nothing_to_a_class_field() -> None:
    points, charges = (np.array(at, np.float32)[:, None] for at in ([1, 2], [0, 3, 1e30]))
    settings = {"delta": 0.5, "alpha": 1.0, "repulsion_delta": 4.0}
    felt = jax.jit(lambda x, y: fields.class_field(points, 0, x, y, **settings))
    labels = np.array([0, 1, -1], np.int32)
    np.testing.assert_array_equal(felt(charges, labels), felt(charges[:2], labels[:2]))


def test_half_precision_is_upcast_and_labels_of_any_integer_type_are_read() -> None:
    charges = CHARGES.astype(jnp.float16)
    wide = charges.astype(jnp.float32)
    labels = np.maximum(LABELS, 0)
    expected = fields.superpose(fields.decaying, wide, labels, (0.2, 4.0, 0.2), tile=6)
    for narrow in (labels, labels.astype(np.uint8), labels.astype(np.uint32)):
        actual = fields.superpose(fields.decaying, charges, narrow, (0.2, 4.0, 0.2), tile=6)
        np.testing.assert_allclose(actual, expected, rtol=1e-6)
    assert fields.potential(jnp.array([0.05], jnp.float16), False).dtype == jnp.float32
