"""Objectives: their type, and those of plain pair and proxy losses."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from jdml.losses.assignment import rows_of_classes
from jdml.mining import check_miner
from jdml.mining.pairs import portable_key
from jdml.ops import checks
from jdml.ops.meshes import NOWHERE, Axis, as_axis, from_parts

Params = dict[str, Any]
"""Parameters that an objective learns, by role: ``{"proxies": …}``."""
Metrics = dict[str, Array]
"""Scalars by name for the log."""


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
        """Return the loss of a batch, and its metrics."""
        ...


def no_state() -> Any:
    """Return the state of an objective without memory."""
    return ()


def same_state(state: Any, embeddings: Array, labels: Array, where: Array | None = None) -> Any:
    """Return the state unchanged."""
    return state


class Objective(NamedTuple):
    """A loss with its parameters and its memory.

    Attributes:
        init: ``init(key) -> params``, a dictionary by role: ``{}``, ``{"proxies": …}``.
        loss: ``loss(params, embeddings, labels, *, key=None, where=None, state=None) -> (loss, metrics)``, pure.
        init_state: ``init_state() -> state``, carried from step to step without gradients.
        update_state: ``update_state(state, embeddings, labels, where=None) -> state``, after each step.

    Training passes the batch's rows in the data set, ``[B]`` integers, to a loss and an ``update_state`` with a keyword
    ``ids``.
    """

    init: Callable[[Array], Params]
    loss: LossFn
    init_state: Callable[[], Any] = no_state
    update_state: Callable[..., Any] = same_state


def pair(
    loss_fn: Callable[..., Array],
    *,
    learned: dict[str, Array | float] | None = None,
    monitor: Callable[..., Metrics] | None = None,
    **settings: Any,
) -> Objective:
    """Make the objective of a pair loss.

    Args:
        loss_fn: a pair loss ``(embeddings, labels, **settings)``, or a field loss, with the samples as charges. It gets
            a ``key`` and ``ids`` if it takes them; without ``ids`` it compares a sample with its older copies in a
            memory.
        learned: the objective's parameters: learned hyper-parameters with their initial values, such as
            ``{"beta": jnp.full(C, 1.2)}`` for :func:`jdml.margin_loss` or ``{"temperature": 0.07}``. Their values (of
            several, the mean) are among the metrics.
        monitor: ``(embeddings, labels, **settings) -> metrics``, scalars for the log, such as
            :func:`jdml.losses.mining_activity`. It gets the settings that it takes.
        **settings: the loss's other keywords.

    Returns:
        The objective.

    Raises:
        TypeError: ``loss_fn`` cannot be called, or has no such keyword.
        ValueError: an initial value that the loss does not allow.

    Implementation notes:
        The parameter of what must be positive, such as a temperature, is its logarithm, so that no step leads through
        0. Recipes do not decay what is learned here.

    Example:
        >>> import jax, jax.numpy as jnp, jdml
        >>> objective = pair(jdml.triplet_loss, margin=0.2, mine=jdml.mining.easy_positive())
        >>> loss, _ = objective.loss(objective.init(jax.random.key(0)), jnp.eye(4), jnp.array([0, 0, 1, 1]))
        >>> loss.round(4)
        Array(0.2, dtype=float32)
    """
    check_loss(loss_fn, {**settings, **(learned or {})})
    start, values = learned_settings(loss_fn, learned or {})
    unknown = {n for n in ("key", "ids", "reference_ids") if not checks.takes(loss_fn, n)}

    def loss(
        params: Params, embeddings: Array, labels: Array, *, state: Any = None, **extra: Any
    ) -> tuple[Array, Metrics]:
        now, metrics = values(params)
        chosen = {**settings, **now, **{n: v for n, v in extra.items() if n not in unknown}}
        value = loss_fn(embeddings, labels, **chosen)
        metrics = {"loss": value, **metrics}
        if monitor is None:
            return value, metrics
        of_monitor = checks.accepted_settings(monitor, chosen)
        return value, metrics | monitor(jax.lax.stop_gradient(embeddings), labels, **of_monitor)

    return Objective(lambda key: dict(start), loss)


def proxy(
    loss_fn: Callable[..., Array],
    num_classes: int,
    dim: int,
    proxies_per_class: int = 1,
    *,
    learned: dict[str, Array | float] | None = None,
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
        learned: hyper-parameters that are learned, with their initial values, as :func:`pair` has them.
        sampled_classes: S, for very many classes: each step's loss has the classes of the batch and others, drawn by
            the step's key, S in all. With S ≥ C it is exact. If the devices of a mesh divide C, each draws its share
            among its own classes.
        monitor: ``(embeddings, labels, proxies, where=…) -> metrics``, scalars for the log, such as
            :func:`jdml.losses.field_activity`. It gets the settings that it takes.
        **settings: the loss's other keywords.

    Returns:
        The objective.

    Raises:
        TypeError: ``loss_fn`` cannot be called or has no such keyword, or a size is not an integer.
        ValueError: a size below 1, an initial value that the loss does not allow; in the loss, no key to draw
            ``sampled_classes`` with, or fewer of them than a batch may have.

    Paper settings:
        Proxies learn 100 (ProxyAnchor, SoftTriple, PFML) to 4000 (NIR) times faster than the model: see
        :func:`jdml.optim.partition_by_role`.

    Example:
        >>> import jax, jax.numpy as jnp, jdml
        >>> objective = proxy(jdml.proxy_anchor_loss, num_classes=3, dim=2)
        >>> jax.tree.map(jnp.shape, objective.init(jax.random.key(0)))
        {'proxies': (3, 1, 2)}
    """
    check_loss(loss_fn, {**settings, **(learned or {})})
    init = random_proxies(num_classes, dim, proxies_per_class)
    start, values = learned_settings(loss_fn, learned or {})
    if sampled_classes is not None:
        checks.count("sampled_classes", sampled_classes)
    monitor_settings = {} if monitor is None else checks.accepted_settings(monitor, settings)

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
        now, metrics = values(params)
        value = loss_fn(embeddings, labels, proxies, where=where, **settings, **now, **extra)
        metrics = {"loss": value, **metrics}
        if monitor is None:
            return value, metrics
        arrays = jax.lax.stop_gradient((embeddings, labels, proxies))
        return value, metrics | monitor(*arrays, where=where, **monitor_settings)

    return Objective(lambda key: {**init(key), **start}, loss)


def learned_settings(
    loss_fn: Any, learned: Mapping[str, Any]
) -> tuple[Params, Callable[[Params], tuple[Params, Metrics]]]:
    """Return the parameters of learned hyper-parameters, and what gives their values and metrics from these."""
    constraints = getattr(getattr(loss_fn, "func", loss_fn), "constraints", {})
    start = {name: jnp.asarray(value, jnp.float32) for name, value in learned.items()}
    numbers = constraints.keys() & start.keys()
    for name in numbers:
        constraints[name](f"learned[{name!r}]", start[name])
    by_logarithm = {name for name in numbers if constraints[name].test is checks.positive.test}

    def values(params: Params) -> tuple[Params, Metrics]:
        now = {n: jnp.exp(params[n]) if n in by_logarithm else params[n] for n in start}
        return now, {n: jax.lax.stop_gradient(now[n]).mean() for n in numbers}

    return {n: jnp.log(v) if n in by_logarithm else v for n, v in start.items()}, values


def check_loss(loss_fn: Any, settings: Iterable[str]) -> None:
    """Refuse a loss that does not take these settings."""
    checks.check_function("loss_fn", loss_fn, or_none=False)
    checks.check_settings(loss_fn, list(settings))
    if isinstance(settings, dict) and "mine" in settings:
        check_miner(settings["mine"])


def random_proxies(num_classes: int, dim: int, proxies_per_class: int) -> Callable[[Array], Params]:
    """Draw proxies on the sphere."""
    checks.count("num_classes", num_classes)
    checks.count("dim", dim)
    checks.count("proxies_per_class", proxies_per_class)

    def init(key: Array) -> Params:
        drawn = jax.random.normal(key, (num_classes, proxies_per_class, dim), jnp.float32)
        return {"proxies": drawn / jnp.linalg.norm(drawn, axis=-1, keepdims=True)}

    return init


def sample_classes(
    proxies: Array,
    labels: Array,
    number: int,
    *,
    key: Array | None,
    where: Array | None = None,
    axis_name: str | tuple[str, ...] | None = None,
) -> tuple[Array, Array]:
    """Return ``[S, K, D]``, the proxies of a batch's classes and of random others, and the labels ``[B]`` among them.

    S is rounded up to a multiple of the devices, each of which draws among its own classes if they divide C; masked
    rows have label −1. As An et al., *Partial FC*, do.
    """
    axis = as_axis(axis_name)
    proxies = jnp.asarray(proxies)
    by_class = axis.holds_part("proxies", proxies)
    classes = len(proxies) * (axis.size if by_class else 1)
    checks.check_classes(labels, classes, "proxies", where)
    labels = checks.widen_labels(labels)
    rows = rows_of_classes(labels, where, classes)
    drawn_key = portable_key(checks.check_key("key", key, needed_by=f"sampled_classes={number}"))
    labels = jnp.where(rows, labels, -1).astype(jnp.int32)

    def draw(axis: Axis, proxies: Array, others: tuple[Array, Array]) -> tuple[Array, Array]:
        return _draw(axis, proxies, *others, number=number)

    if not axis.names:
        return from_parts(draw, proxies, (labels, drawn_key))
    all_labels = axis.rows(labels)
    drawn, among = draw(axis if by_class else NOWHERE, proxies, (all_labels, drawn_key))
    return drawn, axis.local_slice(among)


def _draw(
    axis: Axis, proxies: Array, labels: Array, key: Array, *, number: int
) -> tuple[Array, Array]:
    """Draw this device's share: its classes of the batch, and others of its own."""
    here, rows = len(proxies), len(labels)
    each = min(-(-number // axis.size), here)
    if each < min(rows, here):
        raise ValueError(
            f"sampled_classes must be at least {rows * axis.size}: the classes of a batch of {rows} rows may all be on "
            f"one of {axis.size} devices, got {number}"
        )
    place = labels - axis.index * here
    mine = (labels >= 0) & (place >= 0) & (place < here)
    place = jnp.where(mine, place, here)
    present = jnp.zeros(here + 1, bool).at[place].set(True)[:here]
    scores = jax.random.uniform(jax.random.fold_in(key, axis.index), (here,))
    chosen = jnp.sort(jax.lax.top_k(jnp.where(present, 2.0, scores), each)[1])
    among = jnp.where(mine, jnp.searchsorted(chosen, place) + axis.index * each + 1, 0)
    return proxies[chosen], axis.total(among.astype(jnp.int32)) - 1
