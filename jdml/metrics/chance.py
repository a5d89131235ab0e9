"""How likely it is that two samples lie on the wrong side of a distance, and the bound that a loss minimizes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jdml import ops
from jdml.metrics.array_conversion import accepts_any_array
from jdml.metrics.ranking_score import common_frame, in_frame
from jdml.ops import checks
from jdml.ops.numerics import accumulate_in

ROWS = 1024
"""Anchors that are compared at a time."""


class Violation(NamedTuple):
    """How often pairs violate their constraint.

    Attributes:
        probability: the share of pairs that do.
        bound: Markov's bound of it: the mean contrastive loss with margins β − α and β + α, over α.
        worst: the largest share over anchors, ε of the constraints that hold for every single one.
    """

    probability: float
    bound: float
    worst: float


@accepts_any_array
def violation_probability(
    embeddings: Array,
    labels: Array,
    anchors: Array | None = None,
    anchor_labels: Array | None = None,
    *,
    beta: float,
    alpha: float,
) -> Violation:
    """Measure how often samples of a class are farther apart than β, or samples of two classes nearer.

    Formula:
        ``P(y_ij (d_ij − β) ≥ 0) ≤ E[(y_ij (d_ij − β) + α)₊] / α`` with ``y_ij = 1`` in a class and −1 otherwise.

    Args:
        embeddings: ``[N, D]``, as given.
        labels: ``[N]`` integers; rows with a negative label take no part, nor do such anchors.
        anchors: ``[M, D]``, samples or proxies that the pairs are taken with; None: the embeddings themselves, without
            pairs of one with itself.
        anchor_labels: ``[M]``.
        beta: β > 0, the distance that is asked for.
        alpha: α in (0, β]: the margin of the bound.

    Returns:
        A :class:`Violation`. With all pairs it is the chance constraint, with ``anchors`` its relaxation to some.

    Raises:
        TypeError: arguments of the wrong kind.
        ValueError: shapes that do not fit, a row that is not finite, no pair, α or β out of range, ``anchors`` without
            ``anchor_labels``.

    Implementation notes:
        Runs on the host, in blocks of anchors; not for ``jit``. Pairs of two classes are far more than those of one:
        the probability is that of all pairs.

    Reference:
        Gürbüz, Can & Alatan, *Deep Metric Learning with Chance Constraints*, eq. 4.1 to 4.6.

    Example:
        >>> import jax.numpy as jnp
        >>> x, y = jnp.array([[0.0], [0.7], [1.0]]), jnp.array([0, 0, 1])
        >>> violation = violation_probability(x, y, beta=0.5, alpha=0.5)
        >>> [round(value, 3) for value in violation]  # of three pairs the first and the last do, by 0.2
        [0.667, 0.933, 1.0]
    """
    own = anchors is None
    if own != (anchor_labels is None):
        raise ValueError("anchors and anchor_labels go together: give both or neither")
    others, other_labels = embeddings, labels
    if anchors is not None and anchor_labels is not None:
        others, other_labels = anchors, anchor_labels
    checks.check_concrete("violation_probability", embeddings, labels, others, other_labels)
    for name, value in (("beta", beta), ("alpha", alpha)):
        checks.positive(name, value)
    if alpha > beta:
        raise ValueError(f"alpha must be above 0 and at most beta = {beta}, got {alpha}")
    checks.check_embeddings("embeddings", embeddings)
    checks.check_embeddings("anchors", others, dim=embeddings.shape[1], like="embeddings")
    checks.check_labels("labels", labels, len(embeddings))
    checks.check_labels("anchor_labels", other_labels, len(others))
    y, owners = np.asarray(labels), np.asarray(other_labels)
    checks.check_finite("embeddings", embeddings, y >= 0)
    checks.check_finite("anchors", others, owners >= 0)
    dtype = accumulate_in(embeddings, others)
    x, references = (
        jnp.asarray(np.asarray(some)[rows >= 0]).astype(dtype)
        for some, rows in ((embeddings, y), (others, owners))
    )
    y, owners = y[y >= 0], owners[owners >= 0]
    pairs = len(x) - own
    if len(references) == 0 or pairs < 1:
        raise ValueError(
            f"embeddings and anchors must form a pair, got {len(x)} and {len(references)} that take part"
        )
    classes = np.unique(np.concatenate([y, owners]), return_inverse=True)[1]  # in 32 bits
    owners, y = classes[len(y) :], classes[: len(y)]
    frame = common_frame(references, x)  # products lose the digits that all share
    unit = 2.0 ** int(frame[1])
    x, references = in_frame(x, frame), in_frame(references, frame)
    wrong, excess = [], []
    for start in range(0, len(references), ROWS):
        rows = np.arange(start, min(start + ROWS, len(references)))
        places = rows if own else np.full(len(rows), -1)  # of an anchor among the embeddings
        part = _of_anchors(references[rows], owners[rows], places, x, y, beta / unit, alpha / unit)
        wrong.append(np.asarray(part[0], np.float64))
        excess.append(np.asarray(part[1], np.float64) * unit)
    shares = np.concatenate(wrong) / pairs
    return Violation(
        float(shares.mean()),
        float(np.concatenate(excess).mean() / pairs / alpha),
        float(shares.max()),
    )


@jax.jit
def _of_anchors(
    anchors: Array, owners: Array, places: Array, x: Array, y: Array, beta: Any, alpha: Any
) -> tuple[Array, Array]:
    """Return each anchor's number of violating pairs, and the sum of their hinges."""
    apart = ops.distances(anchors, x)
    signed = jnp.where(owners[:, None] == y[None], apart - beta, beta - apart)
    pairs = places[:, None] != jnp.arange(len(x))[None]
    hinges = jnp.where(pairs, jnp.maximum(signed + alpha, 0.0), 0.0)
    return jnp.sum(pairs & (signed >= 0), axis=1), jnp.sum(hinges, axis=1)
