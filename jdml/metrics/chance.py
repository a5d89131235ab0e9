"""CCP's measures: pairs that violate their constraint, how few samples stand for a class, how far classes are apart."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jdml import ops
from jdml.metrics.array_conversion import accepts_any_array, labelled_rows
from jdml.metrics.geometry import pair_distance
from jdml.metrics.ranking_score import apply_centering, choose_centering
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


@accepts_any_array()
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
        ValueError: a row that is not finite, no pair, α or β out of range, ``anchors`` without ``anchor_labels``.

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
    others: Any = embeddings if own else anchors
    other_labels: Any = labels if own else anchor_labels
    checks.check_concrete("violation_probability", embeddings, labels, others, other_labels)
    checks.positive("beta", beta)
    checks.positive("alpha", alpha)
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
    frame = choose_centering(references, x)  # products lose the digits that all share
    unit = 2.0 ** int(frame[1])
    x, references = apply_centering(x, frame), apply_centering(references, frame)
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


@ops.public()
def greedy_covering_radii(points: Array, *, where: Array | None = None) -> Array:
    """Compute the covering radii of 1, 2, … n greedily chosen centres among the points themselves.

    Args:
        points: ``[N, D]``.
        where: ``[N]`` bool, the points that count.

    Returns:
        ``[N]``: the radius with k = 1…N centres, the first of which is the first point that counts. It never rises. The
        paper's figure for a class is their mean.

    Implementation notes:
        Radii depend on which point is first: up to twice the least possible ones. They have the unit of the points, so
        compare them with the distance between classes: alone they say nothing of how well classes are covered.

    Example:
        >>> import jax.numpy as jnp
        >>> greedy_covering_radii(jnp.array([[0.0], [1.0], [5.0]]))
        Array([5., 1., 0.], dtype=float32)
    """
    checks.check_embeddings("points", points)
    checks.check_mask("where", where, (len(points),))
    if len(points) == 0:
        return jnp.zeros(0, accumulate_in(points))
    valid = jnp.ones(len(points), bool) if where is None else where
    x = jnp.where(valid[:, None], points, 0).astype(accumulate_in(points))

    def add(nearest: Array, _: None) -> tuple[Array, Array]:
        chosen = jnp.argmax(nearest)
        nearest = jnp.minimum(nearest, ops.safe_norm(x - x[chosen][None])[:, 0])
        return nearest, jnp.max(nearest, initial=0.0)

    _, radii = jax.lax.scan(add, jnp.where(valid, jnp.inf, 0.0).astype(x.dtype), length=len(x))
    return radii


@ops.public()
def mean_distance(points: Array) -> Array:
    """Return the mean distance of two points; all pairs are met, in tiles."""
    size = len(points)
    x = points.astype(accumulate_in(points))
    x = x - jnp.mean(x, axis=0, keepdims=True)  # products lose the digits that all points share
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), initial=0.0))
    unit = jnp.where(largest > 0, largest, 1.0)  # squares of large distances overflow
    sums = ops.pair_sums(pair_distance, x / unit, jnp.zeros(size, jnp.int32))
    return unit * (jnp.sum(sums) / max(size * (size - 1), 1))


class ClassCovering(NamedTuple):
    """How well few samples of a class stand for all of it.

    Attributes:
        radius: the mean of :func:`jdml.ccp.greedy_covering_radii` of a class, mean over classes.
        between: the mean distance between two class means.
        ratio: ``radius / between``, without a unit: what can be compared between networks.
    """

    radius: float
    between: float
    ratio: float


@accepts_any_array()
def class_covering(embeddings: Array, labels: Array) -> ClassCovering:
    """Measure the covering radius of classes as the paper's figure does, and the distance between classes.

    Args:
        embeddings: ``[N, D]``, as given.
        labels: ``[N]`` integers; rows with a negative label take no part.

    Returns:
        A :class:`ClassCovering`, whose ratio is infinite where classes do not differ.

    Raises:
        ValueError: no class at all.

    Implementation notes:
        Runs on the host, class by class; not for ``jit``. A network that shrinks all embeddings shrinks the radius, and
        so does one that puts all classes in one heap: read the ratio.

    Reference:
        Gürbüz, Can & Alatan, *Deep Metric Learning with Chance Constraints*, Fig. 7.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[0.0], [1.0], [4.0], [6.0]])
        >>> class_covering(x, jnp.array([0, 0, 1, 1]))
        ClassCovering(radius=0.75, between=4.5, ratio=0.16666666666666666)
    """
    y, rows_of_classes = labelled_rows("class_covering", embeddings, labels)
    x, there = np.asarray(embeddings, np.float64), np.unique(y[rows_of_classes])
    sizes = [int((y == c).sum()) for c in there]
    radii, means = [], []
    for of_class, size in zip(there, sizes, strict=True):
        rows = np.zeros(max(sizes), np.int32)  # one shape for all, so that one program serves all
        rows[:size] = np.flatnonzero(y == of_class)
        radii_of_class = greedy_covering_radii(
            jnp.asarray(x[rows]), where=jnp.arange(len(rows)) < size
        )
        radii.append(float(radii_of_class.sum()) / size)
        means.append(x[rows[:size]].mean(0))
    radius, between = float(np.mean(radii)), float(mean_distance(jnp.stack(means)))
    return ClassCovering(radius, between, float("inf") if between == 0 else radius / between)
