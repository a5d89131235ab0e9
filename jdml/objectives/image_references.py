"""Images as the references of a loss: they go through the network with the batch."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

from jdml.losses.comparison import Normalize
from jdml.objectives.base import Metrics, Objective, Params, check_takes_references, pair
from jdml.ops import ball, checks


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
