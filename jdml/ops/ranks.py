"""Soft ranks: how many entries of a row come before another one, with a slope."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jdml.ops.meshes import zeros_alike


def soft_ranks(values: Array, of: Array, among: Array, temperature: float | Array) -> Array:
    """The rank of some entries of each row by falling value, every comparison softened to a sigmoid.

    Formula:
        ``r_ij = 1 + Σ_{z≠j, among_iz} σ((v_iz − v_ij) / T)`` where ``of_ij``, else 0.

    Args:
        values: ``[B, R]``.
        of: ``[B, R]`` bool, the entries whose ranks are wanted.
        among: ``[B, R]`` bool, the entries that are counted.
        temperature: T.

    Returns:
        ``[B, R]``.

    Implementation notes:
        One wanted entry of each row at a time, as many times as the row with the most of them has: ``O(B R P)`` time
        and ``O(B R)`` memory, in the gradient too. It has first derivatives only.

    Example:
        >>> import jax.numpy as jnp
        >>> v, some = jnp.array([[3.0, 1.0, 2.0]]), jnp.array([[False, True, True]])
        >>> soft_ranks(v, some, jnp.ones((1, 3), bool), 0.01)
        Array([[0., 3., 2.]], dtype=float32)
    """
    return _ranks(
        values, of, among, jnp.asarray(temperature, values.dtype) + zeros_alike(values, ())
    )


@jax.custom_vjp
def _ranks(values: Array, of: Array, among: Array, temperature: Array) -> Array:
    if values.size == 0:
        return values

    def count(turn: Array, ranks: Array) -> Array:
        places, wanted = _entry(of, turn)
        exponents, counted = _compared(values, among, places, temperature)
        rank = 1.0 + jnp.sum(jnp.where(counted, jax.nn.sigmoid(exponents), 0.0), axis=-1)
        return ranks + _at(places, wanted, rank, values)

    return jax.lax.fori_loop(0, _turns(of), count, zeros_alike(values, values.shape))


def _ranks_forward(values: Array, of: Array, among: Array, temperature: Array) -> Any:
    return _ranks(values, of, among, temperature), (values, of, among, temperature)


def _ranks_backward(saved: Any, cotangents: Array) -> Any:
    values, of, among, temperature = saved
    if values.size == 0:
        return jnp.zeros_like(values), None, None, jnp.zeros_like(temperature)

    def pull(turn: Array, gradients: tuple[Array, Array]) -> tuple[Array, Array]:
        by_value, by_temperature = gradients
        places, wanted = _entry(of, turn)
        exponents, counted = _compared(values, among, places, temperature)
        shares = jax.nn.sigmoid(exponents)
        received = jnp.take_along_axis(cotangents, places[:, None], axis=1)
        received = jnp.where(wanted[:, None], received, 0.0) / temperature
        slopes = jnp.where(counted, shares * (1.0 - shares), 0.0) * received
        by_value = by_value + slopes + _at(places, wanted, -slopes.sum(-1), values)
        return by_value, by_temperature - jnp.sum(slopes * exponents)

    start = zeros_alike(values, values.shape), zeros_alike(values, ())
    by_value, by_temperature = jax.lax.fori_loop(0, _turns(of), pull, start)
    return by_value, None, None, by_temperature


_ranks.defvjp(_ranks_forward, _ranks_backward)


def _turns(of: Array) -> Array:
    """The most entries that are wanted of a row."""
    return jnp.max(of.sum(-1))


def _entry(of: Array, turn: Array) -> tuple[Array, Array]:
    """Where the next wanted entry of each row stands ``[B]``, and whether there is one."""
    here = of & (jnp.cumsum(of, axis=-1) == turn + 1)
    return jnp.argmax(here, axis=-1), here.any(-1)


def _compared(
    values: Array, among: Array, places: Array, temperature: Array
) -> tuple[Array, Array]:
    own = jnp.take_along_axis(values, places[:, None], axis=1)
    others = jnp.arange(values.shape[1])[None, :] != places[:, None]
    return (values - own) / temperature, among & others


def _at(places: Array, wanted: Array, entries: Array, like: Array) -> Array:
    """A matrix with one entry in each row that is wanted."""
    here = (jnp.arange(like.shape[1])[None, :] == places[:, None]) & wanted[:, None]
    return jnp.where(here, entries[:, None], 0.0)
