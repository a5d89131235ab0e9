"""Objectives: their type, and those of plain pair and proxy losses."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from jdml.mining import check_miner
from jdml.objectives.sampling import sample_classes
from jdml.ops import checks

Params = dict[str, Any]
"""Parameters that an objective learns, by role: ``{"proxies": …}``."""
Metrics = dict[str, Array]
"""Scalars by name that a step reports next to its loss."""


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


def no_state() -> Any:
    """The state of an objective that remembers nothing."""
    return ()


def same_state(state: Any, embeddings: Array, labels: Array, where: Array | None = None) -> Any:
    """Nothing to remember."""
    return state


class Objective(NamedTuple):
    """A loss with what it learns and what it remembers.

    Attributes:
        init: ``init(key) -> params``, a dictionary by role: ``{}``, ``{"proxies": …}``.
        loss: ``loss(params, embeddings, labels, *, key=None, where=None, state=None) -> (loss, metrics)``, pure.
        init_state: ``init_state() -> state``: what is carried from step to step without gradients.
        update_state: ``update_state(state, embeddings, labels, where=None) -> state``, after each step.

    A loss and an ``update_state`` with a keyword ``ids`` are told by training which samples a batch has: ``[B]``
    integers, their rows in the data set.
    """

    init: Callable[[Array], Params]
    loss: LossFn
    init_state: Callable[[], Any] = no_state
    update_state: Callable[..., Any] = same_state


def pair(
    loss_fn: Callable[..., Array],
    *,
    learned: dict[str, Array | float] | None = None,
    **settings: Any,
) -> Objective:
    """Make the objective of a pair loss.

    Args:
        loss_fn: a pair loss ``(embeddings, labels, **settings)``, or a field loss, whose charges are then the samples
            alone. A loss that takes no ``key`` gets none. One that takes no ``ids`` is not told them, and compares a
            sample with its older copies in a memory.
        learned: hyper-parameters that are learned, with their initial values, such as ``{"beta": jnp.full(C, 1.2)}``
            for :func:`jdml.margin_loss`. They are the objective's parameters.
        **settings: the loss's other keywords.

    Returns:
        The objective.

    Raises:
        TypeError: ``loss_fn`` cannot be called, or has no such keyword.

    Example:
        >>> import jax, jax.numpy as jnp, jdml
        >>> objective = pair(jdml.triplet_loss, margin=0.2, mine=jdml.mining.easy_positive())
        >>> loss, _ = objective.loss(objective.init(jax.random.key(0)), jnp.eye(4), jnp.array([0, 0, 1, 1]))
        >>> loss.round(4)
        Array(0.2, dtype=float32)
    """
    check_loss(loss_fn, {**settings, **(learned or {})})
    start = {name: jnp.asarray(value, jnp.float32) for name, value in (learned or {}).items()}
    draws = checks.takes(loss_fn, "key")
    unknown = {name for name in ("ids", "reference_ids") if not checks.takes(loss_fn, name)}

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
        extra = {name: value for name, value in extra.items() if name not in unknown}
        chosen = {**settings, **{name: params[name] for name in start}, **extra}
        if draws:
            chosen["key"] = key
        value = loss_fn(embeddings, labels, where=where, **chosen)
        return value, {"loss": value}

    return Objective(init, loss)


def proxy(
    loss_fn: Callable[..., Array],
    num_classes: int,
    dim: int,
    proxies_per_class: int = 1,
    *,
    sampled_classes: int | None = None,
    monitor: Callable[..., Metrics] | None = None,
    **settings: Any,
) -> Objective:
    """Make the objective of a proxy loss, with ``{"proxies": [C, K, D]}`` drawn uniformly from the sphere.

    Args:
        loss_fn: a proxy loss ``(embeddings, labels, proxies, **settings)``.
        num_classes: C.
        dim: D.
        proxies_per_class: K.
        sampled_classes: S, for very many classes: each step's loss sees the classes of the batch and as many others,
            drawn by the step's key, as make S. With S ≥ C it is exact. Where the devices of a mesh divide C, each draws
            its own share among its own classes.
        monitor: ``(embeddings, labels, proxies, where=…) -> metrics``, scalars that are logged beside the loss, such as
            :func:`jdml.losses.field_activity`. It is given those of the settings that it takes.
        **settings: the loss's other keywords.

    Returns:
        The objective.

    Raises:
        TypeError: ``loss_fn`` cannot be called or has no such keyword, or a size is not an integer.
        ValueError: a size below 1; in the loss, no key to draw ``sampled_classes`` with, or fewer of them than a batch
            may have.

    Paper settings:
        Proxies learn 100 (ProxyAnchor, SoftTriple, PFML) to 4000 (NIR) times faster than the model: see
        :func:`jdml.optim.partition_by_role`.

    Example:
        >>> import jax, jax.numpy as jnp, jdml
        >>> objective = proxy(jdml.proxy_anchor_loss, num_classes=3, dim=2)
        >>> jax.tree.map(jnp.shape, objective.init(jax.random.key(0)))
        {'proxies': (3, 1, 2)}
    """
    check_loss(loss_fn, settings)
    init = random_proxies(num_classes, dim, proxies_per_class)
    if sampled_classes is not None:
        checks.count("sampled_classes", sampled_classes)
    watched = {} if monitor is None else checks.taken_settings(monitor, settings)

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
        if sampled_classes is not None and sampled_classes < num_classes:
            axis_name = extra.get("axis_name")
            proxies, labels = sample_classes(
                proxies, labels, sampled_classes, key=key, where=where, axis_name=axis_name
            )
            where = labels >= 0 if where is None else where & (labels >= 0)
        value = loss_fn(embeddings, labels, proxies, where=where, **settings, **extra)
        if monitor is None:
            return value, {"loss": value}
        still = jax.lax.stop_gradient((embeddings, labels, proxies))
        return value, {"loss": value, **monitor(*still, where=where, **watched)}

    return Objective(init, loss)


def check_loss(loss_fn: Any, settings: Iterable[str]) -> None:
    """Refuse what is no loss with these settings."""
    if not callable(loss_fn):
        raise TypeError(f"loss_fn must be a loss such as jdml.triplet_loss, got {loss_fn!r}")
    checks.check_settings(loss_fn, settings)
    if isinstance(settings, dict) and "mine" in settings:
        check_miner(settings["mine"])


def random_proxies(num_classes: int, dim: int, proxies_per_class: int) -> Callable[[Array], Params]:
    """Draw proxies on the sphere."""
    sizes = {"num_classes": num_classes, "dim": dim, "proxies_per_class": proxies_per_class}
    for name, size in sizes.items():
        checks.count(name, size)

    def init(key: Array) -> Params:
        drawn = jax.random.normal(key, (num_classes, proxies_per_class, dim), jnp.float32)
        return {"proxies": drawn / jnp.linalg.norm(drawn, axis=-1, keepdims=True)}

    return init
