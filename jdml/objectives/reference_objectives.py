"""Pair losses with other references than the batch: proxies, as in CCP, anchor images, or a memory of past batches."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from jdml import memory
from jdml.losses.assignment import rows_of_classes
from jdml.losses.comparison import Normalize
from jdml.objectives.base import (
    Metrics,
    Objective,
    Params,
    check_loss,
    no_state,
    pair,
    random_proxies,
)
from jdml.ops import ball, checks


def as_proxy_objective(
    loss_fn: Callable[..., Array],
    num_classes: int,
    dim: int,
    proxies_per_class: int = 1,
    *,
    in_batch_weight: float | Array = 0.0,
    normalize: Normalize | None = ball,
    **settings: Any,
) -> Objective:
    """Make a proxy loss of a pair loss, with proxies as its references, as CCP does.

    Formula:
        ``L(batch, proxies) + w · L(batch, batch)``

    Args:
        loss_fn: a pair loss, which takes ``references``: contrastive, triplet, multi-similarity, margin, circle, …
        num_classes: C.
        dim: D.
        proxies_per_class: K.
        in_batch_weight: w, of the same loss between the samples of the batch.
        normalize: of samples and proxies alike.
        **settings: the loss's other keywords, such as margins or ``mine``.

    Returns:
        The objective, with the parameters ``{"proxies": [C, K, D]}``.

    Raises:
        TypeError: ``loss_fn`` takes no references or has no such keyword, or a size is not an integer.
        ValueError: a size below 1, a negative weight.

    Paper settings:
        w = 0 in the text, .1 in the released program; vectors in the unit ball, which keeps the loss Lipschitz.

    Reference:
        Gürbüz, Can & Alatan, *Deep Metric Learning with Chance Constraints*, eq. 4.11.

    Example:
        >>> import jax, jax.numpy as jnp, jdml
        >>> objective = as_proxy_objective(jdml.contrastive_loss, 2, 2, proxies_per_class=3)
        >>> params = objective.init(jax.random.key(0))
        >>> loss, _ = objective.loss({"proxies": jnp.eye(2)[:, None]}, jnp.eye(2), jnp.array([0, 1]))
        >>> params["proxies"].shape, loss
        ((2, 3, 2), Array(0., dtype=float32))
    """
    check_loss(loss_fn, settings)
    checks.non_negative("in_batch_weight", in_batch_weight)
    without_batch = isinstance(in_batch_weight, int | float) and in_batch_weight == 0

    def loss(
        params: Params,
        embeddings: Array,
        labels: Array,
        *,
        key: Array | None = None,
        where: Array | None = None,
        state: Any = None,
        **extra: Any,
    ) -> tuple[Array, Metrics]:
        classes, per_class, _ = params["proxies"].shape
        checks.check_classes(labels, classes, "proxies", where)
        labels = checks.widen_labels(labels)
        rows = rows_of_classes(labels, where, classes)
        chosen = {**settings, **extra, "normalize": normalize, "where": rows}
        value = loss_fn(
            embeddings,
            labels,
            references=params["proxies"].reshape(classes * per_class, dim),
            reference_labels=jnp.repeat(jnp.arange(classes, dtype=jnp.int32), per_class),
            key=key,
            **chosen,
        )
        if without_batch:
            return value, {"loss": value}
        other = None if key is None else jax.random.fold_in(key, 1)
        among = loss_fn(embeddings, labels, key=other, **chosen)
        total = value + in_batch_weight * among
        return total, {"loss": total, "proxy_loss": value, "in_batch_loss": among}

    return Objective(random_proxies(num_classes, dim, proxies_per_class), loss)


def as_anchor_objective(
    loss_fn: Callable[..., Array],
    num_anchors: int,
    *,
    normalize: Normalize | None = ball,
    **settings: Any,
) -> Objective:
    """Compare the samples of a batch with anchor samples, the first rows of the batch, as CCP does without proxies.

    Formula:
        ``L(batch, anchors)``: rows 0 … A − 1 are the references of all others.

    Args:
        loss_fn: a pair loss, which takes ``references``.
        num_anchors: A, of :class:`jdml.data.AnchorBatchSampler`.
        normalize: of samples and anchors alike.
        **settings: the loss's other keywords, such as margins or ``mine``.

    Returns:
        The objective. It has no parameters: gradients reach the network through anchors and samples.

    Raises:
        TypeError: ``loss_fn`` cannot be called or has no such keyword, or ``num_anchors`` is not an integer.
        ValueError: fewer than one anchor.

    Implementation notes:
        :func:`as_proxy_objective` with the anchors' own embeddings as proxies: exact, and as expensive as a batch with
        K more samples of every class. A sample that is an anchor, too, makes a pair with itself, at distance 0.

    Paper settings:
        K = 4 anchors per class on MNIST: 98.06 MAP@R, where proxies give 97.21.

    Reference:
        Gürbüz, Can & Alatan, *Deep Metric Learning with Chance Constraints*, eq. 4.10.

    Example:
        >>> import jax, jax.numpy as jnp, jdml
        >>> objective = as_anchor_objective(jdml.contrastive_loss, num_anchors=2, negative_margin=1.0)
        >>> x = jnp.array([[0.0, 0.0], [0.9, 0.0], [0.3, 0.0]])
        >>> loss, _ = objective.loss({}, x, jnp.array([0, 1, 0]))
        >>> loss.round(4)  # 0.3 from its own anchor, and 0.4 too near to the other
        Array(0.7, dtype=float32)
    """
    checks.count("num_anchors", num_anchors)
    objective = pair(loss_fn, **settings, normalize=normalize)

    def loss(
        params: Params,
        embeddings: Array,
        labels: Array,
        *,
        where: Array | None = None,
        state: Any = None,
        **extra: Any,
    ) -> tuple[Array, Metrics]:
        there = jnp.ones(len(labels), bool) if where is None else where
        return objective.loss(
            params,
            embeddings[num_anchors:],
            labels[num_anchors:],
            references=embeddings[:num_anchors],
            reference_labels=labels[:num_anchors],
            reference_where=there[:num_anchors],
            where=there[num_anchors:],
            **extra,
        )

    return Objective(objective.init, loss)


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
