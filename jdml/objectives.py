"""Objectives: a loss together with what it learns, as optax pairs ``init`` and ``update``.

A training step needs nothing else to serve every method::

    objective = jdml.objectives.proxy(jdml.proxy_anchor_loss, num_classes=100, dim=128)
    params = objective.init(jax.random.key(0))          # {"proxies": [100, 1, 128]}
    loss, metrics = objective.loss(params, embeddings, labels)

Objectives nest: :func:`with_memory` takes any pair objective and gives one that also compares with past batches.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from jdml import memory
from jdml.ops import checks

Params = dict[str, Any]
Metrics = dict[str, Array]


class LossFn(Protocol):
    """``loss(params, embeddings, labels, *, key=None, where=None, state=None) -> (loss, metrics)``."""

    def __call__(
        self,
        params: Params,
        embeddings: Array,
        labels: Array,
        *,
        key: Array | None = None,
        where: Array | None = None,
        state: Any = None,
        **extra: Any,
    ) -> tuple[Array, Metrics]:
        """The loss of one batch."""
        ...


def _no_state() -> Any:
    return ()


def _same_state(state: Any, embeddings: Array, labels: Array, where: Array | None = None) -> Any:
    return state


class Objective(NamedTuple):
    """A loss with what it learns and what it remembers.

    Attributes:
        init: ``init(key) -> params``, a dictionary by role: ``{}``, ``{"proxies": …}``.
        loss: ``loss(params, embeddings, labels, *, key=None, where=None, state=None) -> (loss, metrics)``, pure.
        init_state: ``init_state() -> state``: what is carried from step to step without gradients.
        update_state: ``update_state(state, embeddings, labels, where=None) -> state``, after each step.
    """

    init: Callable[[Array], Params]
    loss: LossFn
    init_state: Callable[[], Any] = _no_state
    update_state: Callable[..., Any] = _same_state


def pair(
    loss_fn: Callable[..., Array],
    *,
    learned: dict[str, Array | float] | None = None,
    **settings: Any,
) -> Objective:
    """The objective of a pair loss.

    Args:
        loss_fn: a pair loss ``(embeddings, labels, **settings)``.
        learned: hyper-parameters that are learned, with their initial values, such as ``{"beta": jnp.full(C, 1.2)}``
            for :func:`jdml.margin_loss`. They are the objective's parameters.
        **settings: the loss's other keywords.

    Returns:
        The objective.

    Raises:
        TypeError: ``loss_fn`` cannot be called.

    Example:
        >>> import jax, jax.numpy as jnp, jdml
        >>> objective = pair(jdml.triplet_loss, margin=0.2, mine=jdml.mining.easy_positive())
        >>> loss, _ = objective.loss(objective.init(jax.random.key(0)), jnp.eye(4), jnp.array([0, 0, 1, 1]))
        >>> loss.round(4)
        Array(0.2, dtype=float32)
    """
    _check_callable(loss_fn)
    start = {name: jnp.asarray(value, jnp.float32) for name, value in (learned or {}).items()}

    def init(key: Array) -> Params:
        return dict(start)

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
        chosen = {**settings, **{name: params[name] for name in start}, **extra}
        value = loss_fn(embeddings, labels, key=key, where=where, **chosen)
        return value, {"loss": value}

    return Objective(init, loss)


def proxy(
    loss_fn: Callable[..., Array],
    num_classes: int,
    dim: int,
    proxies_per_class: int = 1,
    *,
    monitor: Callable[..., Metrics] | None = None,
    **settings: Any,
) -> Objective:
    """The objective of a proxy loss; its parameters are ``{"proxies": [C, K, D]}``, drawn uniformly from the sphere.

    Args:
        loss_fn: a proxy loss ``(embeddings, labels, proxies, **settings)``.
        num_classes: C.
        dim: D.
        proxies_per_class: K.
        monitor: ``(embeddings, labels, proxies, where=…) -> metrics``, scalars that are logged beside the loss, such as
            :func:`jdml.losses.field_activity`.
        **settings: the loss's other keywords.

    Returns:
        The objective.

    Raises:
        TypeError: ``loss_fn`` cannot be called, or a size is not an integer.
        ValueError: a size below 1.

    Paper settings:
        Proxies learn 100 (ProxyAnchor, SoftTriple, PFML) to 4000 (NIR) times faster than the model: see
        :func:`jdml.optim.partition_by_role`.

    Example:
        >>> import jax, jax.numpy as jnp, jdml
        >>> objective = proxy(jdml.proxy_anchor_loss, num_classes=3, dim=2)
        >>> jax.tree.map(jnp.shape, objective.init(jax.random.key(0)))
        {'proxies': (3, 1, 2)}
    """
    _check_callable(loss_fn)
    sizes = {"num_classes": num_classes, "dim": dim, "proxies_per_class": proxies_per_class}
    for name, size in sizes.items():
        checks.count(name, size)

    def init(key: Array) -> Params:
        drawn = jax.random.normal(key, (num_classes, proxies_per_class, dim))
        return {"proxies": drawn / jnp.linalg.norm(drawn, axis=-1, keepdims=True)}

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
        proxies = params["proxies"]
        value = loss_fn(embeddings, labels, proxies, where=where, **settings, **extra)
        seen = {} if monitor is None else monitor(embeddings, labels, proxies, where=where)
        return value, {"loss": value, **seen}

    return Objective(init, loss)


class MemoryState(NamedTuple):
    """What :func:`with_memory` carries: the memory, and how many steps it has seen."""

    memory: memory.CrossBatchMemory
    steps: Array


def with_memory(
    objective: Objective, capacity: int, dim: int, *, weight: float | Array = 1.0, warmup: int = 0
) -> Objective:
    """Add a cross-batch memory (XBM): the pair loss on the batch, plus the same loss against past batches.

    Formula:
        ``L(batch, batch) + w · L(batch, memory)`` once ``warmup`` steps are over, and ``L(batch, batch)`` before.

    As in the released program the batch enters the memory first; each sample is left out of its own references by
    index.

    Args:
        objective: a pair objective, whose loss takes ``references=``.
        capacity: how many embeddings are remembered, at least a batch.
        dim: D.
        weight: w.
        warmup: steps during which the memory fills without being used.

    Returns:
        An objective with a state; without one (``state=None``) it is the plain objective.

    Raises:
        TypeError: a size is not an integer.
        ValueError: a size below 1, a negative weight or warm-up, an objective that has a state of its own.

    Implementation notes:
        Embeddings are remembered as the model gave them, without gradient, and normalized by the loss.

    Paper settings:
        1,000 steps of warm-up, weight 1; CCP's sizes are 3 or 25 batches on CUB and Cars196, 100 or 400 on In-shop.

    Reference:
        Wang, Zhang, Huang & Scott, *Cross-Batch Memory for Embedding Learning*.

    Example:
        >>> import jax.numpy as jnp, jdml
        >>> objective = with_memory(pair(jdml.contrastive_loss), capacity=4, dim=2)
        >>> x, y = jnp.eye(2), jnp.array([0, 0])
        >>> state = objective.update_state(objective.init_state(), x, y)
        >>> objective.loss({}, x, y, state=state)[0].round(4)
        Array(2.8284, dtype=float32)
    """
    checks.count("capacity", capacity)
    checks.count("dim", dim)
    checks.non_negative("weight", weight)
    checks.non_negative("warmup", warmup)
    if objective.init_state is not _no_state:
        raise ValueError(
            "objective already has a state; put with_memory around the pair objective itself"
        )

    def init_state() -> MemoryState:
        return MemoryState(memory.init(capacity, dim), jnp.zeros((), jnp.int32))

    def loss(
        params: Params,
        embeddings: Array,
        labels: Array,
        *,
        key: Array | None = None,
        where: Array | None = None,
        state: MemoryState | None = None,
        **extra: Any,
    ) -> tuple[Array, Metrics]:
        value, metrics = objective.loss(params, embeddings, labels, key=key, where=where, **extra)
        if state is None:
            return value, metrics
        remembered = memory.push(state.memory, embeddings, labels, where)
        own_slots = memory.slots(state.memory, labels, where)
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
            **extra,
        )
        past = jnp.where(state.steps >= warmup, past, 0.0)
        value = value + weight * past
        return value, {**metrics, "memory_loss": past, "loss": value}

    def update_state(
        state: MemoryState, embeddings: Array, labels: Array, where: Array | None = None
    ) -> MemoryState:
        return MemoryState(memory.push(state.memory, embeddings, labels, where), state.steps + 1)

    return Objective(objective.init, loss, init_state, update_state)


def _check_callable(loss_fn: Any) -> None:
    if not callable(loss_fn):
        raise TypeError(f"loss_fn must be a loss such as jdml.triplet_loss, got {loss_fn!r}")
