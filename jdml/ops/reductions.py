"""Masked reductions: of nothing they are 0, and masked entries leak neither values nor gradients."""

import functools
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from jdml.ops import checks

ReduceFn = Callable[..., Array]
"""``reduce_fn(values, where=mask) -> scalar``: :func:`mean`, :func:`mean_nonzero`, :func:`total`, or your own."""


def total(values: Array, where: Array | None = None) -> Array:
    """Sum the kept entries.

    Args:
        values: any shape.
        where: boolean mask of the entries that count, broadcastable to ``values``; default all.

    Returns:
        A scalar; 0 where nothing is kept.

    Example:
        >>> import jax.numpy as jnp
        >>> total(jnp.array([1.0, 2.0, jnp.nan]), where=jnp.array([True, True, False]))
        Array(3., dtype=float32)
    """
    return jnp.sum(values if where is None else jnp.where(where, values, 0.0))


def mean(values: Array, where: Array | None = None) -> Array:
    """Take the mean of the kept entries.

    Args:
        values: any shape.
        where: boolean mask of the entries that count, broadcastable to ``values``; default all.

    Returns:
        A scalar; 0 where nothing is kept.

    Example:
        >>> import jax.numpy as jnp
        >>> mean(jnp.array([1.0, 2.0, jnp.nan]), where=jnp.array([True, True, False]))
        Array(1.5, dtype=float32)
    """
    mask = jnp.broadcast_to(True if where is None else where, values.shape)
    return ratio(total(values, mask), mask.sum())


def mean_nonzero(values: Array, where: Array | None = None) -> Array:
    """Take the mean of the kept entries that are not zero: the average over the *active* terms of a hinge loss.

    Args:
        values: any shape.
        where: boolean mask of the entries that count, broadcastable to ``values``; default all.

    Returns:
        A scalar; 0 where no kept entry differs from zero.

    Example:
        >>> import jax.numpy as jnp
        >>> mean_nonzero(jnp.array([0.0, 1.0, 2.0]))
        Array(1.5, dtype=float32)
    """
    mask = values != 0 if where is None else (values != 0) & where
    return mean(values, mask)


@functools.cache
def trimmed_mean(fraction: float) -> ReduceFn:
    """Make a reduction: the mean of the smallest kept entries, with the largest ones trimmed away.

    Args:
        fraction: t, the share of the entries that is left out, in [0, 1).

    Returns:
        ``reduce_fn(values, where=mask)``: the mean over the ⌈(1 − t) n⌉ smallest of the n kept entries. The same
        fraction gives the same function, so nothing recompiles.

    Raises:
        TypeError: the fraction is not a number.
        ValueError: it is outside [0, 1).

    Reference:
        Shen & Sanghavi, *Learning with Bad Training Data via Iterative Trimmed Loss Minimization*.

    Example:
        >>> import jax.numpy as jnp
        >>> trimmed_mean(0.5)(jnp.array([4.0, 1.0, 2.0, 9.0]))
        Array(1.5, dtype=float32)
    """
    checks.unit_interval("fraction", fraction)
    if fraction == 1:
        raise ValueError("fraction must be below 1, got 1")

    def trimmed(values: Array, where: Array | None = None) -> Array:
        mask = jnp.broadcast_to(True if where is None else where, values.shape)
        number = mask.sum().astype(jnp.float32)
        # A whole t·n must not fall below itself by rounding.
        count = number - jnp.floor(fraction * number * (1.0 + 4.0 * jnp.finfo(jnp.float32).eps))
        ascending = jnp.sort(jnp.where(mask, values, jnp.inf), axis=None)
        return mean(ascending, jnp.arange(values.size) < count)

    return trimmed


def reduce_terms(reduce_fn: ReduceFn | None, values: Array, where: Array) -> Array:
    """Apply ``reduce_fn`` to the terms of a loss; of no term at all every reduction is 0.

    Args:
        reduce_fn: any function ``(values, where=mask) -> scalar``, or None for no reduction.
        values: the terms.
        where: which of them are terms at all, same shape.

    Returns:
        A scalar, or with ``reduce_fn=None`` the values themselves with 0 where there is no term.

    Example:
        >>> import jax.numpy as jnp
        >>> nothing = jnp.array([False, False])
        >>> float(reduce_terms(jnp.mean, jnp.array([1.0, 2.0]), nothing))
        0.0
    """
    values = jnp.where(where, values, 0.0)
    if reduce_fn is None:
        return values
    if values.size == 0:
        return jnp.zeros((), values.dtype)
    return reduce_fn(values, where=where | ~where.any())


def reduce_groups(
    reduce_fn: ReduceFn | None, sums: Array, where: Array, *, terms: Array, nonzero: Array
) -> Array:
    """Reduce sums over groups of terms (triplets of an anchor, say) as if every term stood alone.

    :func:`mean` (or ``jnp.mean``) divides by the number of terms and :func:`mean_nonzero` by the number of those
    that are not zero; any other function sees one value per group.

    Args:
        reduce_fn: as for :func:`reduce_terms`.
        sums: one sum per group.
        where: which groups hold a term.
        terms: how many terms each group holds.
        nonzero: how many of them are not zero.

    Returns:
        A scalar, or with ``reduce_fn=None`` the sums with 0 for empty groups.

    Example:
        >>> import jax.numpy as jnp
        >>> sums, counts = jnp.array([6.0, 0.0]), jnp.array([3, 1])
        >>> reduce_groups(mean, sums, counts > 0, terms=counts, nonzero=jnp.array([2, 0]))
        Array(1.5, dtype=float32)
    """
    counts = {mean: terms, jnp.mean: terms, mean_nonzero: nonzero}
    if reduce_fn not in counts:
        return reduce_terms(reduce_fn, sums, where)
    return ratio(total(sums, where), total(counts[reduce_fn].astype(sums.dtype), where))


def reduced_by_rows(reduce_fn: ReduceFn | None) -> bool:
    """Whether a reduction of a matrix is one of its rows' sums and counts: a sum, a mean, ``mean_nonzero``."""
    return any(reduce_fn is known for known in (total, jnp.sum, mean, jnp.mean, mean_nonzero))


def sum_rows(reduce_fn: ReduceFn | None, values: Array, where: Array) -> tuple[Array, Array]:
    """Return sums and counts ``[B]`` of a matrix's rows, the :func:`ratio` of whose totals is the reduction."""
    sums = jnp.sum(jnp.where(where, values, 0.0), axis=-1)
    if reduce_fn in (total, jnp.sum):
        return sums, jnp.zeros_like(sums)
    counted = where & (values != 0) if reduce_fn is mean_nonzero else where
    return sums, counted.sum(-1).astype(sums.dtype)


def ratio(numerator: Array, count: Array) -> Array:
    """Divide a sum by a count; 0 if that is 0."""
    return numerator / jnp.maximum(count, 1).astype(numerator.dtype)
