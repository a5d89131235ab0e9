"""Properties that every miner must have."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jdml.mining import Pairs
from jdml.testing.case import Compilations, import_chex

Miner = Any


def check_miner(
    miner: Miner, *, batch: int = 10, references: int = 14, dim: int = 6, seed: int = 0
) -> None:
    """Check a miner: it only takes pairs away, and is safe under jit.

    Tried on random pairs in which some rows have no positive, no negative, or neither: the output
    is a ``Pairs`` of boolean masks of the input's shape and a subset of the input pairs; jit, eager
    and vmap agree; the same key gives the same pairs; distances of things that are no pairs, NaN
    included, do not matter; ties are no trouble; other values cause no second trace.

    Args:
        miner: ``f(key, distances [B, R], pairs) -> Pairs``.
        batch: B.
        references: R.
        dim: dimension of the random unit vectors whose distances are given.
        seed: seed of the vectors, the pairs and the key.

    Raises:
        AssertionError: a property does not hold; the message says which.

    Example:
        >>> import jdml
        >>> check_miner(jdml.mining.easy_positive())
    """
    chex = import_chex()
    chex.clear_trace_counter()
    key = jax.random.key(seed)
    distances, pairs = _random_pairs(batch, references, dim, seed)
    once = jax.jit(chex.assert_max_traces(lambda *arguments: miner(*arguments), n=1))
    mined = once(key, distances, pairs)
    _assert_subset(mined, pairs)
    _assert_same(once(key, distances, pairs), mined, "the same key again")
    with jax.disable_jit():
        _assert_same(miner(key, distances, pairs), mined, "jit and eager")

    neither = ~(pairs.positive | pairs.negative)
    for garbage in (jnp.nan, jnp.inf, -1.0):
        spoiled = jnp.where(neither, garbage, distances)
        _assert_same(once(key, spoiled, pairs), mined, f"distances of no pair set to {garbage}")
    for name, ties in (("zero", jnp.zeros_like(distances)), ("equal", jnp.ones_like(distances))):
        _assert_subset(once(key, ties, pairs), pairs, f" ({name} distances)")
    nothing = Pairs(jnp.zeros_like(pairs.positive), jnp.zeros_like(pairs.negative))
    _assert_subset(once(key, distances, nothing), nothing, " (no pairs)")

    stacked, keys = jnp.stack([distances, 2.0 - distances]), jax.random.split(key, 2)
    vmapped = jax.jit(jax.vmap(miner, in_axes=(0, 0, None)))(keys, stacked, pairs)
    for i in range(2):
        one = Pairs(vmapped.positive[i], vmapped.negative[i])
        _assert_same(one, once(keys[i], stacked[i], pairs), "jax.vmap and a loop")

    miner(key, distances, pairs)
    counter = Compilations()
    other, spread = keys[0], jnp.multiply(distances, 1.5)
    with counter:
        miner(other, spread, pairs)
    assert not counter.names, f"other values compiled again: {', '.join(counter.names)}"


def _random_pairs(batch: int, references: int, dim: int, seed: int) -> tuple[jax.Array, Pairs]:
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(batch + references, dim))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    anchors, others = points[:batch], points[batch:]
    distances = np.sqrt(np.sum((anchors[:, None] - others) ** 2, axis=-1))
    kind = rng.integers(0, 3, size=distances.shape)  # positive, negative, or no pair
    positive, negative = kind == 0, kind == 1
    positive[0] = negative[1] = positive[2] = negative[2] = False
    return jnp.asarray(distances, jnp.float32), Pairs(jnp.asarray(positive), jnp.asarray(negative))


def _assert_subset(mined: Pairs, pairs: Pairs, case: str = "") -> None:
    for name in ("positive", "negative"):
        got, allowed = np.asarray(getattr(mined, name)), np.asarray(getattr(pairs, name))
        assert got.dtype == bool, f"{name} must be a boolean mask, got {got.dtype}{case}"
        assert got.shape == allowed.shape, (
            f"{name} must have shape {allowed.shape}, got {got.shape}"
        )
        assert not (got & ~allowed).any(), f"{name} holds pairs that were not given{case}"


def _assert_same(actual: Pairs, expected: Pairs, what: str) -> None:
    for name in ("positive", "negative"):
        same = np.array_equal(getattr(actual, name), getattr(expected, name))
        assert same, f"{what}: another {name} mask"
