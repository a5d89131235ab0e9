"""Tiled sums over pairs equal the dense sum in float64, for every tile size and under every transformation."""

from collections.abc import Callable
from functools import cache
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdml import ops
from oracles.programs import temporary_bytes

N, D = 37, 3
RNG = np.random.default_rng(0)
POINTS = 0.3 * RNG.normal(size=(N, D))
GROUPS = RNG.integers(-1, 4, N)  # points of group -1 are ignored
COTANGENTS = RNG.normal(size=N)
TILES = [None, 1, 5, 36, 37, 100]


def term(squared: jax.Array, same: jax.Array, reach: Any) -> jax.Array:
    """Return a term that is constant beyond the reach for other groups, and within it for the same group."""
    return jnp.where(same, jnp.maximum(squared, reach), 1.0 / (1.0 + jnp.minimum(squared, reach)))


def dense(points: jax.Array, reach: Any, groups: Any = GROUPS) -> jax.Array:
    differences = points[:, None, :] - points[None, :, :]
    values = term(jnp.sum(differences**2, -1), groups[:, None] == groups[None, :], reach)
    real = (groups >= 0)[:, None] & (groups >= 0)[None, :] & ~np.eye(len(points), dtype=bool)
    return jnp.sum(jnp.where(real, values, 0.0), axis=1)


def streamed(points: jax.Array, reach: Any, tile: int | None, groups: Any = GROUPS) -> jax.Array:
    return ops.pair_sums(term, points, jnp.asarray(groups), (reach,), tile=tile)


def weighted(sums: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return lambda points, reach: jnp.sum(jnp.asarray(COTANGENTS) * sums(points, reach))


@cache
def wanted() -> Any:
    """Return the weighted sum, its gradients and the sums, computed densely."""
    value_and_grads = jax.value_and_grad(weighted(dense), (0, 1))
    with jax.enable_x64(True):
        return jax.jit(lambda *at: (value_and_grads(*at), dense(*at)))(jnp.asarray(POINTS), 0.2)


@pytest.mark.parametrize("tile", TILES)
def test_sums_and_gradients_equal_the_dense_ones(tile: int | None) -> None:
    with jax.enable_x64(True):
        points = jnp.asarray(POINTS)
        sums = weighted(lambda p, r: streamed(p, r, tile))
        value_and_grads, by_points = jax.value_and_grad(sums, (0, 1)), jax.grad(sums)
        found, alone, one_by_one = jax.jit(
            lambda *at: (value_and_grads(*at), by_points(*at), streamed(*at, tile))
        )(points, 0.2)
        expected, dense_ones = wanted()
        for each in (found, value_and_grads(points, 0.2)) if tile in (None, 5) else (found,):
            chex.assert_trees_all_close(each, expected, rtol=1e-10)
        np.testing.assert_allclose(alone, expected[1][0], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(one_by_one, dense_ones, rtol=1e-10)


@pytest.mark.parametrize("size", [0, 1, 2])
def test_few_points(size: int) -> None:
    groups = jnp.zeros(size, jnp.int32)

    @jax.jit
    def pulled(points: jax.Array) -> tuple[jax.Array, jax.Array]:
        sums, pullback = jax.vjp(lambda p: ops.pair_sums(term, p, groups, (0.2,), tile=4), points)
        return sums, pullback(sums)[0]

    sums, gradient = pulled(jnp.ones((size, D)))
    np.testing.assert_allclose(sums, np.full(size, 0.2 * (size - 1)), rtol=1e-6)
    assert not np.asarray(gradient).any()


def test_ignored_points_change_no_sum_and_get_no_gradient() -> None:
    kept = GROUPS >= 0
    points = jnp.asarray(POINTS, jnp.float32)
    sums = np.asarray(jax.jit(lambda p: streamed(p, 0.2, 8))(points))
    alone = jax.jit(lambda p: streamed(p, 0.2, 8, GROUPS[kept]))(points[kept])
    np.testing.assert_allclose(sums[kept], alone, rtol=1e-5)
    assert not sums[~kept].any()
    gradient = jax.jit(jax.grad(lambda p: streamed(p, 0.2, 8).sum()))(points)
    assert not np.asarray(gradient)[~kept].any()


@pytest.mark.parametrize("tile", [8, None])
def test_vmap_checkpoint_and_map(tile: int | None) -> None:
    with jax.enable_x64(True):
        stack = jnp.asarray(np.stack([POINTS, 2 * POINTS]))
        gradient = jax.grad(lambda p: jnp.square(streamed(p, 0.2, tile)).sum())
        single = np.stack([jax.jit(gradient)(points) for points in stack])
        np.testing.assert_allclose(jax.jit(jax.vmap(gradient))(stack), single, rtol=1e-10)
        rematerialized = jax.checkpoint(lambda p: jnp.square(streamed(p, 0.2, tile)).sum())
        by_points = jax.jit(jax.grad(rematerialized))(stack[0])
        np.testing.assert_allclose(by_points, single[0], rtol=1e-10)
        looped = jax.lax.map(gradient, stack)
        np.testing.assert_allclose(looped, single, rtol=1e-10)


def test_cached_trace_is_differentiated_by_other_arguments() -> None:
    x, groups = jnp.asarray(POINTS), jnp.asarray(GROUPS)

    def value(x: jax.Array, delta: jax.Array | float) -> jax.Array:
        return ops.pair_sums(term, x, groups, (delta,), tile=4).sum()

    remembered = jax.checkpoint(value)

    @jax.jit
    def gradients(x: jax.Array) -> tuple[jax.Array, ...]:
        by_points, by_delta = jax.grad(remembered)(x, 0.5), jax.grad(remembered, 1)(x, 0.5)
        again = jax.lax.map(lambda delta: jax.grad(remembered, 1)(x, delta), jnp.array([0.5]))
        return by_points, by_delta, jax.grad(remembered)(x, 0.5), again[0]

    by_points, by_delta, points_again, delta_again = gradients(x)
    chex.assert_trees_all_close(points_again, by_points)
    chex.assert_trees_all_close(delta_again, by_delta, rtol=1e-5)
    expected = jax.jit(jax.grad(value, (0, 1)))(x, 0.5)
    chex.assert_trees_all_close(expected, (by_points, by_delta), rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("points", jnp.zeros(3), ValueError),
        ("groups", jnp.zeros(2, int), ValueError),
        ("groups", jnp.zeros(3), TypeError),
        ("parameters", 0.5, TypeError),
        ("parameters", (jnp.ones(2),), ValueError),
        ("tile", 0, ValueError),
        ("tile", 2.5, TypeError),
    ],
)
def test_wrong_arguments_are_refused(name: str, value: Any, error: type[Exception]) -> None:
    fitting = {"points": jnp.zeros((3, 2)), "groups": jnp.zeros(3, int), "parameters": (0.5,)}
    with pytest.raises(error, match=rf"^{name}\b"):
        ops.pair_sums(term, **{**fitting, name: value})


def test_sums_run_inside_shard_map() -> None:
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    points, groups = jnp.asarray(POINTS, jnp.float32), jnp.asarray(GROUPS)

    def gradient(points: jax.Array, groups: jax.Array) -> jax.Array:
        return jax.grad(lambda p: ops.pair_sums(term, p, groups, (0.2,), tile=8).sum())(points)

    spec = jax.P("data")
    mapped = jax.shard_map(gradient, mesh=mesh, in_specs=(spec, spec), out_specs=spec)
    found, wanted = (jax.jit(f)(points, groups) for f in (mapped, gradient))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("again", [jax.jacrev, jax.jacfwd])
def test_second_derivative_is_refused(again: Callable[..., Any]) -> None:
    gradient = jax.jit(jax.grad(lambda p: streamed(p, 0.2, 8).sum()))
    with pytest.raises(NotImplementedError, match="derivatives"):
        again(gradient)(jnp.asarray(POINTS))


def test_tiles_without_force_are_skipped_by_the_gradient() -> None:
    """Three distant groups, one tile each: without a force between groups only each group's own tile is visited."""
    groups = jnp.repeat(jnp.arange(3), 4)
    points = jnp.asarray(RNG.normal(size=(12, 2)), jnp.float32)
    seen = []

    def flat_between_groups(squared: jax.Array, same: jax.Array) -> jax.Array:
        jax.debug.callback(lambda: seen.append("flat"))
        return jnp.where(same, squared, 1.0)

    def sloping(squared: jax.Array, same: jax.Array) -> jax.Array:
        jax.debug.callback(lambda: seen.append("sloping"))
        return squared

    def gradient(term: Callable) -> jax.Array:
        slope = jax.grad(lambda p: ops.pair_sums(term, p, groups, tile=4).sum())(points)
        jax.effects_barrier()
        return slope

    alone = [4.0 * (4 * part - part.sum(0)) for part in np.split(np.asarray(points), 3)]
    np.testing.assert_allclose(
        gradient(flat_between_groups), np.concatenate(alone), rtol=1e-4, atol=1e-4
    )
    gradient(sloping)
    # Both terms are evaluated on all six tiles for the sum, then for the gradient on three tiles and on all six.
    assert seen.count("sloping") - seen.count("flat") == 3


def test_memory_is_linear_in_the_points() -> None:
    def sums(points: jax.Array, groups: jax.Array) -> jax.Array:
        return ops.pair_sums(term, points, groups, (0.2,), tile=256).sum()

    small, large = (temporary_bytes(sums, (size, 16), size) for size in (4096, 16_384))
    assert large < 16 * 2**20
    assert large - small < 8 * 4 * 16 * (16_384 - 4096)
