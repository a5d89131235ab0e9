"""What an objective is, and those of plain pair and proxy losses; images as references."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from jdml.losses.comparison import Normalize
from jdml.mining import check_miner
from jdml.objectives.sampling import sample_classes
from jdml.ops import ball, checks
from jdml.ops.meshes import ROWS

Params = dict[str, Any]
"""What an objective learns, by role: ``{"proxies": …}``."""
Metrics = dict[str, Array]
"""What a step reports beside its loss: scalars by name."""


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
        ValueError: ``learned`` has what belongs to the rows of a batch.

    Example:
        >>> import jax, jax.numpy as jnp, jdml
        >>> objective = pair(jdml.triplet_loss, margin=0.2, mine=jdml.mining.easy_positive())
        >>> loss, _ = objective.loss(objective.init(jax.random.key(0)), jnp.eye(4), jnp.array([0, 0, 1, 1]))
        >>> loss.round(4)
        Array(0.2, dtype=float32)
    """
    _check_loss(loss_fn, {**settings, **(learned or {})})
    if checks.asks_for(loss_fn, "proxies") and "proxies" not in settings:
        raise TypeError(
            f"loss_fn must compare samples, got {_name(loss_fn)}, which compares them with proxies: write "
            f"jdml.objectives.proxy({_name(loss_fn)}, num_classes, dim)"
        )
    for name in sorted(ROWS & set(learned or {})):
        raise ValueError(
            f"learned must hold hyper-parameters of the loss, got {name}, which has one entry for each row of a batch: "
            "give it in a step of your own"
        )
    start = {name: jnp.asarray(value, jnp.float32) for name, value in (learned or {}).items()}
    draws = checks.takes(loss_fn, "key")
    untold = {name for name in ("ids", "reference_ids") if not checks.takes(loss_fn, name)}

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
        told = {name: value for name, value in extra.items() if name not in untold}
        chosen = {**settings, **{name: params[name] for name in start}, **told}
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
    _check_loss(loss_fn, settings)
    if not checks.takes_by_place(loss_fn, 3):
        raise TypeError(
            f"loss_fn must take embeddings, labels and proxies, got {_name(loss_fn)}, which takes no proxies: write "
            f"jdml.objectives.pair({_name(loss_fn)})"
        )
    init = _random_proxies(num_classes, dim, proxies_per_class)
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
    """Read a pair loss as CCP does: proxies as its references, so that every pair loss is a proxy loss.

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
    check_takes_references(loss_fn, settings)
    _check_loss(loss_fn, settings)
    checks.non_negative("in_batch_weight", in_batch_weight)
    alone = isinstance(in_batch_weight, int | float) and in_batch_weight == 0

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
        labels = checks.widen_labels(labels)
        known = (labels >= 0) & (labels < classes)
        hidden = jnp.zeros(len(labels), bool) if where is None else ~where
        message = f"labels[{{row}}] is {{0}}, expected 0…{classes - 1}"
        checks.require(known | hidden, message, labels)
        chosen = {**settings, **extra, "normalize": normalize, "where": known & ~hidden}
        value = loss_fn(
            embeddings,
            labels,
            references=params["proxies"].reshape(classes * per_class, dim),
            reference_labels=jnp.repeat(jnp.arange(classes, dtype=jnp.int32), per_class),
            key=key,
            **chosen,
        )
        if alone:
            return value, {"loss": value}
        other = None if key is None else jax.random.fold_in(key, 1)
        among = loss_fn(embeddings, labels, key=other, **chosen)
        total = value + in_batch_weight * among
        return total, {"loss": total, "proxy_loss": value, "in_batch_loss": among}

    return Objective(_random_proxies(num_classes, dim, proxies_per_class), loss)


# Images as the references of a loss: they go through the network with the batch.


def as_anchor_objective(
    loss_fn: Callable[..., Array],
    num_anchors: int,
    *,
    normalize: Normalize | None = ball,
    **settings: Any,
) -> Objective:
    """Compare the samples of a batch with anchor samples that stand first in it, as CCP does before it has proxies.

    Formula:
        ``L(batch, anchors)``: rows 0 … A − 1 are the references of all others.

    Args:
        loss_fn: a pair loss, which takes ``references``.
        num_anchors: A, as :class:`jdml.data.AnchorBatchSampler` puts them in front of each batch.
        normalize: of samples and anchors alike.
        **settings: the loss's other keywords, such as margins or ``mine``.

    Returns:
        The objective. It learns nothing of its own: gradients reach the network through anchors and samples.

    Raises:
        TypeError: ``loss_fn`` cannot be called or has no such keyword, or ``num_anchors`` is not an integer.
        ValueError: fewer than one anchor; in the loss, a batch of anchors alone.

    Implementation notes:
        The loss of proxies, :func:`as_proxy_objective`, with the anchors' own embeddings in their place: exact, and as
        expensive as a batch that is larger by K samples of every class. A sample that is an anchor, too, makes a pair
        with itself, at distance 0.

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
    check_takes_references(loss_fn, settings)
    compared = pair(loss_fn, **settings, normalize=normalize)

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
        if len(labels) <= num_anchors:
            raise ValueError(
                f"a batch must hold samples beside its {num_anchors} anchors, got {len(labels)} rows in all"
            )
        there = jnp.ones(len(labels), bool) if where is None else where
        return compared.loss(
            params,
            embeddings[num_anchors:],
            labels[num_anchors:],
            references=embeddings[:num_anchors],
            reference_labels=labels[:num_anchors],
            reference_where=there[:num_anchors],
            key=key,
            where=there[num_anchors:],
            **extra,
        )

    return Objective(compared.init, loss)


def check_takes_references(loss_fn: Any, settings: Iterable[str]) -> None:
    """Refuse a loss that cannot be given references, or was given them already."""
    if not callable(loss_fn) or not checks.takes(loss_fn, "references"):
        raise TypeError(f"loss_fn must be a pair loss that takes references, got {loss_fn!r}")
    for name in ("references", "reference_labels", "reference_where", "reference_ids"):
        if name in settings:
            raise TypeError(f"{name} is given by the objective: it cannot be a setting")


def _check_loss(loss_fn: Any, settings: Iterable[str]) -> None:
    if not callable(loss_fn):
        raise TypeError(f"loss_fn must be a loss such as jdml.triplet_loss, got {loss_fn!r}")
    checks.check_settings(loss_fn, settings)
    if isinstance(settings, dict) and "mine" in settings:
        check_miner(settings["mine"])


def _name(loss_fn: Any) -> str:
    return getattr(loss_fn, "__name__", type(loss_fn).__name__)


def _random_proxies(
    num_classes: int, dim: int, proxies_per_class: int
) -> Callable[[Array], Params]:
    """Draw proxies on the sphere."""
    sizes = {"num_classes": num_classes, "dim": dim, "proxies_per_class": proxies_per_class}
    for name, size in sizes.items():
        checks.count(name, size)

    def init(key: Array) -> Params:
        drawn = jax.random.normal(key, (num_classes, proxies_per_class, dim))
        return {"proxies": drawn / jnp.linalg.norm(drawn, axis=-1, keepdims=True)}

    return init
