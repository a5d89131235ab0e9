"""Pair losses with other references than the batch: proxies, as in CCP, or anchor images."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jdml.losses.assignment import rows_of_classes
from jdml.losses.comparison import Normalize
from jdml.objectives.base import (
    Metrics,
    Objective,
    Params,
    check_loss,
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
        key: Array | None = None,
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
            key=key,
            where=there[num_anchors:],
            **extra,
        )

    return Objective(objective.init, loss)
