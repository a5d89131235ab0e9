"""Counts of a row's entries: how many come before another one, softly with a slope, or within a margin of it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jdml.ops.chunking import by_platform
from jdml.ops.meshes import zeros_alike

Tree = Any
Masks = tuple[Array, ...]
FEW = 32
"""Entries of a row that are counted one after the other sooner than by sorting (256 columns: as fast; 2,048: twice)."""


def active_triplets(
    distances: Array, positive: Array, negative: Array, margin: Array | float
) -> Array:
    """Count, for every entry, the triplets (row, p, n) with ``d_p + m > d_n`` that it is part of; none is listed."""
    if distances.size == 0:
        return jnp.zeros(distances.shape, jnp.int32)

    def in_turn() -> Array:
        def count(here: Array, place: Array, counts: Array) -> Array:
            limit = (_entries(distances, place, -jnp.inf) + margin).astype(distances.dtype)
            active = negative & (distances < limit)
            nearer = active.sum(-1, keepdims=True, dtype=counts.dtype)
            return counts + active + jnp.where(here, nearer, 0)

        return fold_entries(positive, count, zeros_alike(number, distances.shape))

    def by_sorting() -> Array:
        bounds = _as_ordered_integers((distances + margin).astype(distances.dtype))
        return by_platform(_count_by_search, _count_by_place)(
            bounds, _as_ordered_integers(distances), positive, negative
        )

    number = positive.sum(-1, dtype=jnp.int32)
    return jax.lax.cond(number.max(initial=0) <= FEW, in_turn, by_sorting)


@jax.custom_jvp
def soft_triplets(distances: Array, positive: Array, negative: Array) -> Array:
    """``Σ_{p,n} log(1 + e^{d_p − d_n})`` over the pairs (p, n) of each row ``[B]``, one positive of each at a time."""

    def add(here: Array, place: Array, sums: Array) -> Array:
        apart = _entries(distances, place, -jnp.inf) - distances
        return sums + jnp.where(negative, jax.nn.softplus(apart), 0.0).sum(-1)

    return fold_entries(positive, add, zeros_alike(distances, distances.shape[:1]))


@soft_triplets.defjvp
def _soft_triplets_jvp(
    primals: tuple[Array, ...], tangents: tuple[Any, ...]
) -> tuple[Array, Array]:
    distances, positive, negative = primals

    def add(here: Array, place: Array, slopes: Array) -> Array:
        apart = _entries(distances, place, -jnp.inf) - distances
        each = jnp.where(negative, jax.nn.sigmoid(apart), 0.0)
        return slopes - each + jnp.where(here, each.sum(-1, keepdims=True), 0.0)

    slopes = fold_entries(positive, add, zeros_alike(distances, distances.shape))
    return soft_triplets(*primals), jnp.sum(slopes * tangents[0], axis=-1)


def _count_by_search(bounds: Array, values: Array, positive: Array, negative: Array) -> Array:
    """Both kinds sorted, and each searched for the entries of the other: fast where branches are cheap."""
    last = jnp.iinfo(values.dtype).max
    sorted_bounds = jnp.sort(jnp.where(positive, bounds, last), axis=-1)
    sorted_values = jnp.sort(jnp.where(negative, values, last), axis=-1)
    number = positive.sum(-1, keepdims=True, dtype=jnp.int32)
    negatives_before = _places(sorted_values, bounds, side="left")
    positives_after = number - _places(sorted_bounds, values, side="right")
    counts = jnp.where(positive, negatives_before, jnp.where(negative, positives_after, 0))
    return counts.astype(jnp.int32)


def _count_by_place(bounds: Array, values: Array, positive: Array, negative: Array) -> Array:
    """Both kinds sorted together, counted along the row, and put back by another sort: a few passes."""
    size = values.shape[1]
    last = jnp.iinfo(values.dtype).max
    keys = jnp.where(positive, bounds, jnp.where(negative, values, last))
    # Of equals the positive comes first, as their triplet is not active; what is neither comes last.
    kind = jnp.where(positive, 0, jnp.where(negative, 1, 2)).astype(jnp.int32)
    tickets = kind * size + jnp.arange(size, dtype=jnp.int32)[None, :]
    kind, columns = jnp.divmod(jax.lax.sort((keys, tickets), num_keys=2)[1], size)
    positives = jnp.cumsum(kind == 0, axis=-1, dtype=jnp.int32)
    negatives = jnp.arange(1, size + 1, dtype=jnp.int32)[None, :] - positives
    counts = jnp.where(kind == 0, negatives, jnp.where(kind == 1, positives[:, -1:] - positives, 0))
    return jax.lax.sort((columns, counts), num_keys=1)[1]


def fold_entries(
    wanted: Array, function: Callable[[Array, Array, Tree], Tree], start: Tree
) -> Tree:
    """Fold over the wanted entries ``[B, R]`` of each row, one of every row at a time.

    ``function(here [B, R], place, carried) -> carried`` sees where the entries are: nowhere in a row that has no more.
    """
    size = wanted.shape[1]
    columns = jnp.arange(size, dtype=jnp.int32)[None, :]

    def turn(_: Array, state: tuple[Array, Tree]) -> tuple[Array, Tree]:
        last, carried = state
        left = wanted & (columns > last[:, None])
        place = jnp.where(left, columns, size).min(-1, initial=size)
        return place, function(columns == place[:, None], place, carried)

    turns = wanted.sum(-1, dtype=jnp.int32)
    before = zeros_alike(turns, turns.shape) - 1
    return jax.lax.fori_loop(0, turns.max(initial=0), turn, (before, start))[1]


def _entries(values: Array, place: Array, default: float) -> Array:
    """Return the entry in a place of each row ``[B, 1]``, or the default beyond its end."""
    return jnp.take_along_axis(values, place[:, None], axis=1, mode="fill", fill_value=default)


def soft_ranks(
    values: Array, wanted: Array, among: tuple[Array, ...], temperature: float | Array
) -> tuple[Array, ...]:
    """Return ``r_ij = 1 + Σ_{z≠j, among_iz} σ((v_iz − v_ij) / T)`` where ``wanted_ij``, else 0: ranks by falling value.

    ``O(B R P)`` time and ``O(B R)`` memory, in the gradient too, whose derivatives are forwards (``jax.hessian``) only.
    """
    return _ranks(
        values, wanted, among, jnp.asarray(temperature, values.dtype) + zeros_alike(values, ())
    )


def _count_softly(
    values: Array, wanted: Array, among: Masks, temperature: Array
) -> tuple[Array, ...]:
    if values.size == 0:
        return (values,) * len(among)

    def count(here: Array, place: Array, ranks: tuple[Array, ...]) -> tuple[Array, ...]:
        shares = jax.nn.sigmoid(_apart(values, place, temperature))
        sums = [jnp.where(counted & ~here, shares, 0.0).sum(-1, keepdims=True) for counted in among]
        return tuple(jnp.where(here, 1.0 + s, r) for s, r in zip(sums, ranks, strict=True))

    return fold_entries(wanted, count, (zeros_alike(values, values.shape),) * len(among))


def _ranks_forward(values: Array, wanted: Array, among: Masks, temperature: Array) -> Any:
    # Not `_ranks` again: its gradient can be differentiated forwards.
    ranks = _count_softly(values, wanted, among, temperature)
    return ranks, (values, wanted, among, temperature)


def _ranks_backward(saved: Any, cotangents: tuple[Array, ...]) -> Any:
    values, wanted, among, temperature = saved
    if values.size == 0:
        return jnp.zeros_like(values), None, None, jnp.zeros_like(temperature)

    def pull(here: Array, place: Array, gradients: tuple[Array, Array]) -> tuple[Array, Array]:
        by_value, by_temperature = gradients
        exponents = _apart(values, place, temperature)
        shares = jax.nn.sigmoid(exponents)
        received = sum(
            jnp.where(counted & ~here, _entries(cotangent, place, 0.0), 0.0)
            for counted, cotangent in zip(among, cotangents, strict=True)
        )
        slopes = shares * (1.0 - shares) * received / temperature
        by_value = by_value + slopes - jnp.where(here, slopes.sum(-1, keepdims=True), 0.0)
        return by_value, by_temperature - jnp.sum(slopes * exponents)

    start = zeros_alike(values, values.shape), zeros_alike(values, ())
    by_value, by_temperature = fold_entries(wanted, pull, start)
    return by_value, None, None, by_temperature


_ranks = jax.custom_vjp(_count_softly)
_ranks.defvjp(_ranks_forward, _ranks_backward)


def _apart(values: Array, place: Array, temperature: Array) -> Array:
    """How far each value lies above the one in a place of its row."""
    return (values - _entries(values, place, 0.0)) / temperature


def _as_ordered_integers(values: Array) -> Array:
    """Integers in the order of the floats: compilers sort them several times as fast."""
    bits = jax.lax.bitcast_convert_type(values, f"int{8 * values.dtype.itemsize}")
    return jnp.where(bits < 0, bits ^ jnp.iinfo(bits.dtype).max, bits)


def _places(rows: Array, values: Array, *, side: str) -> Array:
    """For each value, how many entries of its sorted row come before it; some rows at a time, for memory's sake."""

    def of_row(both: tuple[Array, Array]) -> Array:
        return jnp.searchsorted(*both, side=side)

    return jax.lax.map(of_row, (rows, values), batch_size=256)
