"""Cross-batch memory (XBM): the embeddings of past batches as references, in a fixed-size ring buffer."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jdml.ops import checks


class CrossBatchMemory(NamedTuple):
    """A ring buffer of embeddings and labels. A pytree of arrays: it can be carried through ``jit`` and saved.

    Attributes:
        embeddings: ``[M, D]``.
        labels: ``[M]`` integers, -1 in empty slots.
        next_slot: scalar integer, where the next row goes.
    """

    embeddings: Array
    labels: Array
    next_slot: Array

    @property
    def valid(self) -> Array:
        """``[M]`` bool: the slots that are filled."""
        return self.labels >= 0


def init(capacity: int, dim: int, dtype: jnp.dtype = jnp.float32) -> CrossBatchMemory:
    """An empty memory.

    Args:
        capacity: M, how many embeddings it holds.
        dim: D.
        dtype: type of the stored embeddings.

    Returns:
        The memory.

    Raises:
        TypeError: capacity or dim is not an integer.
        ValueError: capacity or dim below 1.

    Example:
        >>> init(4, 2).valid
        Array([False, False, False, False], dtype=bool)
    """
    checks.count("capacity", capacity)
    checks.count("dim", dim)
    return CrossBatchMemory(
        embeddings=jnp.zeros((capacity, dim), dtype),
        labels=jnp.full(capacity, -1, jnp.int32),
        next_slot=jnp.zeros((), jnp.int32),
    )


def push(
    state: CrossBatchMemory, embeddings: Array, labels: Array, where: Array | None = None
) -> CrossBatchMemory:
    """Store a batch, over the oldest entries (first in, first out). No gradient flows into the memory.

    Args:
        state: the memory.
        embeddings: ``[B, D]``.
        labels: ``[B]`` integers; rows with a negative label are not stored.
        where: ``[B]`` bool, the rows to store; default all.

    Returns:
        The new memory.

    Raises:
        TypeError: arguments of the wrong kind.
        ValueError: shapes that do not fit, a batch larger than the memory.

    Reference:
        Wang, Zhang, Huang & Scott, *Cross-Batch Memory for Embedding Learning*, algorithm 1.

    Example:
        >>> import jax.numpy as jnp
        >>> state = push(init(3, 1), jnp.array([[1.0], [2.0]]), jnp.array([5, 6]))
        >>> push(state, jnp.array([[3.0], [4.0]]), jnp.array([7, 8])).labels
        Array([8, 6, 7], dtype=int32)
    """
    capacity, dim = state.embeddings.shape
    checks.check_embeddings("embeddings", embeddings, dim=dim, like="the memory")
    checks.check_labels("labels", labels, embeddings.shape[0])
    if embeddings.shape[0] > capacity:
        raise ValueError(
            f"a batch of {embeddings.shape[0]} does not fit into a memory of capacity {capacity}"
        )
    slot = slots(state, labels, where)
    stored_rows = jnp.isfinite(embeddings).all(-1) | (slot < 0)
    checks.require(stored_rows, "embeddings[{row}] is not finite")
    target = jnp.where(slot < 0, capacity, slot)  # out of range: dropped
    stored = jax.lax.stop_gradient(embeddings).astype(state.embeddings.dtype)
    return CrossBatchMemory(
        embeddings=state.embeddings.at[target].set(stored, mode="drop"),
        labels=state.labels.at[target].set(labels.astype(state.labels.dtype), mode="drop"),
        next_slot=(state.next_slot + jnp.sum(slot >= 0, dtype=jnp.int32)) % capacity,
    )


def slots(state: CrossBatchMemory, labels: Array, where: Array | None = None) -> Array:
    """Where :func:`push` would store each row of a batch: the ``self_index`` of its rows among the references.

    Args:
        state: the memory before the batch is pushed.
        labels: ``[B]`` integers.
        where: ``[B]`` bool; default all.

    Returns:
        ``[B]`` integers, -1 for rows that are not stored.

    Raises:
        TypeError: arguments of the wrong kind.
        ValueError: shapes that do not fit.

    Example:
        >>> import jax.numpy as jnp
        >>> slots(init(3, 1), jnp.array([5, -1, 6]))
        Array([ 0, -1,  1], dtype=int32)
    """
    capacity = state.labels.shape[0]
    checks.check_labels("labels", labels, jnp.size(labels))
    kept = labels >= 0
    if where is not None:
        checks.check_mask("where", where, labels.shape)
        kept = kept & where
    turn = jnp.cumsum(kept) - 1
    return jnp.where(kept, (state.next_slot + turn) % capacity, -1).astype(jnp.int32)
