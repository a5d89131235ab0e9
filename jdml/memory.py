"""Cross-batch memory (XBM): the embeddings of past batches as references, in a fixed-size ring buffer."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from jdml.ops import checks
from jdml.ops.meshes import as_axis, replicated


class CrossBatchMemory(NamedTuple):
    """A ring buffer of embeddings, labels and ids. A pytree of arrays: it can be carried through ``jit`` and saved.

    Attributes:
        embeddings: ``[M, D]``.
        labels: ``[M]`` integers, -1 in empty slots.
        ids: ``[M]`` integers, which sample each embedding is of, -1 where that is not known.
        next_slot: scalar integer, where the next row goes.
    """

    embeddings: Array
    labels: Array
    ids: Array
    next_slot: Array

    @property
    def valid(self) -> Array:
        """``[M]`` bool: the slots that are filled."""
        return self.labels >= 0


def init(capacity: int, dim: int, dtype: DTypeLike = jnp.float32) -> CrossBatchMemory:
    """Make an empty memory.

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
        labels=jnp.full(capacity, -1, int),
        ids=jnp.full(capacity, -1, int),
        next_slot=jnp.zeros((), jnp.int32),
    )


def push(
    state: CrossBatchMemory,
    embeddings: Array,
    labels: Array,
    where: Array | None = None,
    *,
    ids: Array | None = None,
    axis_name: str | tuple[str, ...] | None = None,
) -> CrossBatchMemory:
    """Store a batch, over the oldest entries (first in, first out). No gradient flows into the memory.

    Args:
        state: the memory.
        embeddings: ``[B, D]``.
        labels: ``[B]`` integers; rows with a negative label are not stored.
        where: ``[B]`` bool, the rows to store; default all.
        ids: ``[B]`` integers, which sample each row is, such as its row in the data set; -1, the default: not known. A
            loss that is given ``ids`` and the memory's as ``reference_ids`` leaves out a sample's older copies.
        axis_name: inside a ``jax.shard_map``, the mesh axis over which the batch is spread: the rows of all devices
            are stored, in their order.

    Returns:
        The new memory, the same on every device of a mesh.

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
    if ids is not None:
        checks.check_labels("ids", ids, embeddings.shape[0])
    embeddings, labels = jnp.asarray(checks.as_array(embeddings)), checks.widen_labels(labels)
    ids = jnp.full_like(labels, -1) if ids is None else checks.widen_labels(ids, "ids")
    valid = _valid_rows(labels, where)
    axis = as_axis(axis_name)
    rows = (jax.lax.stop_gradient(embeddings), labels, ids, valid)
    embeddings, labels, ids, valid = axis.rows(rows)
    if embeddings.shape[0] > capacity:
        raise ValueError(
            f"a batch of {embeddings.shape[0]} does not fit into a memory of capacity {capacity}"
        )
    checks.require(jnp.isfinite(embeddings).all(-1) | ~valid, "embeddings[{row}] is not finite")
    return _stored(state, embeddings, labels, ids, valid)


@replicated
def _stored(
    state: CrossBatchMemory, embeddings: Array, labels: Array, ids: Array, valid: Array
) -> CrossBatchMemory:
    capacity = state.labels.shape[0]
    target = jnp.where(valid, _slots(state.next_slot, valid, capacity), capacity)  # beyond: dropped
    stored = embeddings.astype(state.embeddings.dtype)
    return CrossBatchMemory(
        embeddings=state.embeddings.at[target].set(stored, mode="drop"),
        labels=state.labels.at[target].set(labels.astype(state.labels.dtype), mode="drop"),
        ids=state.ids.at[target].set(ids.astype(state.ids.dtype), mode="drop"),
        next_slot=(state.next_slot + jnp.sum(valid, dtype=jnp.int32)) % capacity,
    )


def slots(
    state: CrossBatchMemory,
    labels: Array,
    where: Array | None = None,
    *,
    axis_name: str | tuple[str, ...] | None = None,
) -> Array:
    """Tell where :func:`push` would store each row of a batch: the ``self_index`` of its rows among the references.

    Args:
        state: the memory before the batch is pushed.
        labels: ``[B]`` integers.
        where: ``[B]`` bool; default all.
        axis_name: as of :func:`push`; the labels are this device's, and so are the slots.

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
    checks.check_labels("labels", labels, jnp.size(labels))
    axis = as_axis(axis_name)
    valid = axis.rows(_valid_rows(checks.widen_labels(labels), where))
    return axis.local_slice(_slots_of(state, valid))


@replicated
def _slots_of(state: CrossBatchMemory, valid: Array) -> Array:
    slots = _slots(state.next_slot, valid, state.labels.shape[0])
    return jnp.where(valid, slots, -1).astype(jnp.int32)


def _slots(next_slot: Array, valid: Array, capacity: int) -> Array:
    return (next_slot + jnp.cumsum(valid) - 1) % capacity


def _valid_rows(labels: Array, where: Array | None) -> Array:
    checks.check_mask("where", where, labels.shape)
    return labels >= 0 if where is None else where & (labels >= 0)
