"""Cross-batch memory around a pair objective."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from jdml import memory
from jdml.objectives.base import Metrics, Objective, Params, no_state
from jdml.ops import checks


class MemoryState(NamedTuple):
    """State of :func:`with_memory`: the memory, and the number of steps."""

    memory: memory.CrossBatchMemory
    steps: Array


def with_memory(
    objective: Objective,
    capacity: int,
    dim: int,
    *,
    weight: float | Array = 1.0,
    warmup: int = 0,
    dtype: DTypeLike = jnp.float32,
) -> Objective:
    """Add a cross-batch memory (XBM): the pair loss on the batch, plus the same loss against past batches.

    Formula:
        ``L(batch, batch) + w · L(batch, memory)`` once ``warmup`` steps are over, and ``L(batch, batch)`` before.

    As in the released program the batch enters the memory first; each sample is excluded from its own references by
    index, and so are its older copies if ``loss`` and ``update_state`` get the samples' ``ids``
    (:func:`jdml.training.fit` passes the rows of the data set).

    Args:
        objective: a pair objective, whose loss takes ``references=``.
        capacity: number of embeddings in the memory, at least a batch.
        dim: D.
        weight: w.
        warmup: steps in which the memory is filled and not used.
        dtype: of the embeddings in the memory; float64 under x64, bfloat16 for half the memory.

    Returns:
        An objective with a state; without one (``state=None``) it is the plain objective.

    Raises:
        TypeError: a size is not an integer.
        ValueError: a size below 1, a negative weight or warm-up, an objective that has a state of its own.

    Implementation notes:
        Embeddings are stored as the model computed them, without gradient, and normalized by the loss. Inside
        ``jax.shard_map`` pass ``axis_name`` to ``loss`` and ``update_state``: the memory is the same on every device.

    Paper settings:
        1,000 steps of warm-up, weight 1; CCP's sizes are 3 or 25 batches on CUB and Cars196, 100 or 400 on In-shop.

    Reference:
        Wang, Zhang, Huang & Scott, *Cross-Batch Memory for Embedding Learning*.

    Example:
        >>> import jax.numpy as jnp, jdml
        >>> objective = with_memory(jdml.objectives.pair(jdml.contrastive_loss), capacity=4, dim=2)
        >>> x, y = jnp.eye(2), jnp.array([0, 0])
        >>> state = objective.update_state(objective.init_state(), x, y)
        >>> objective.loss({}, x, y, state=state)[0].round(4)
        Array(2.8284, dtype=float32)
    """
    checks.count("capacity", capacity)
    checks.count("dim", dim)
    checks.non_negative("weight", weight)
    checks.non_negative("warmup", warmup)
    if objective.init_state is not no_state:
        raise ValueError("objective must have no state: put with_memory around the pair objective")
    takes_ids = checks.takes(objective.loss, "reference_ids")

    def init_state() -> MemoryState:
        return MemoryState(memory.init(capacity, dim, dtype), jnp.zeros((), jnp.int32))

    def loss(
        params: Params,
        embeddings: Array,
        labels: Array,
        *,
        key: Array | None = None,
        where: Array | None = None,
        state: MemoryState | None = None,
        ids: Array | None = None,
        **extra: Any,
    ) -> tuple[Array, Metrics]:
        value, metrics = objective.loss(params, embeddings, labels, key=key, where=where, **extra)
        if state is None:
            return value, metrics
        axis_name = extra.get("axis_name")
        remembered = memory.push(
            state.memory, embeddings, labels, where, ids=ids, axis_name=axis_name
        )
        own_slots = memory.slots(state.memory, labels, where, axis_name=axis_name)
        has_ids = takes_ids and ids is not None
        copies = {"ids": ids, "reference_ids": remembered.ids} if has_ids else {}
        other_key = None if key is None else jax.random.fold_in(key, 1)
        past, _ = objective.loss(
            params,
            embeddings,
            labels,
            key=other_key,
            where=where,
            references=remembered.embeddings,
            reference_labels=remembered.labels,
            self_index=own_slots,
            **copies,
            **extra,
        )
        past = jnp.where(state.steps >= warmup, past, 0.0)
        value = value + weight * past
        return value, {**metrics, "memory_loss": past, "loss": value}

    def update_state(
        state: MemoryState,
        embeddings: Array,
        labels: Array,
        where: Array | None = None,
        *,
        ids: Array | None = None,
        axis_name: str | tuple[str, ...] | None = None,
    ) -> MemoryState:
        pushed = memory.push(state.memory, embeddings, labels, where, ids=ids, axis_name=axis_name)
        return MemoryState(pushed, state.steps + 1)

    return Objective(objective.init, loss, init_state, update_state)
