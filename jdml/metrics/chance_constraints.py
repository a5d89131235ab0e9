"""How well few samples of a class stand for all of it, beside how far classes are from each other."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jdml import ops
from jdml.metrics.array_conversion import accepts_any_array
from jdml.ops import checks
from jdml.ops.numerics import accumulate_in


@ops.public()
def greedy_covering_radii(points: Array, *, where: Array | None = None) -> Array:
    """Compute the covering radii of 1, 2, … n greedily chosen centres among the points themselves.

    Args:
        points: ``[N, D]``.
        where: ``[N]`` bool, the points that count.

    Returns:
        ``[N]``: the radius with k = 1…N centres, the first of which is the first point that counts. It never rises. The
        paper's figure for a class is their mean.

    Raises:
        TypeError: arguments of the wrong kind.
        ValueError: shapes that do not fit.

    Implementation notes:
        Radii depend on which point is first: up to twice the least possible ones. They have the unit of the points, so
        compare them with the distance between classes: alone they say nothing of how well classes are covered.

    Example:
        >>> import jax.numpy as jnp
        >>> greedy_covering_radii(jnp.array([[0.0], [1.0], [5.0]]))
        Array([5., 1., 0.], dtype=float32)
    """
    checks.check_embeddings("points", points)
    if where is not None:
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
    """Measure how far points are from each other: the mean distance of two of them.

    Implementation notes:
        All pairs, in tiles: ``O(N² D)`` time, ``O(N D)`` memory.

    Example:
        >>> import jax.numpy as jnp
        >>> mean_distance(jnp.array([[0.0], [1.0], [5.0]])).round(4)
        Array(3.3333, dtype=float32)
    """
    checks.check_embeddings("points", points)
    size = len(points)
    x = points.astype(accumulate_in(points))
    x = x - jnp.mean(x, axis=0, keepdims=True)  # products lose the digits that all points share
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), initial=0.0))
    unit = jnp.where(largest > 0, largest, 1.0)  # squares of large distances overflow
    sums = ops.pair_sums(_root, x / unit, jnp.zeros(size, jnp.int32))
    return unit * (jnp.sum(sums) / max(size * (size - 1), 1))


def _root(squared: Array, same: Array) -> Array:
    return ops.safe_sqrt(squared)


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


@accepts_any_array
def class_covering(embeddings: Array, labels: Array) -> ClassCovering:
    """Measure the covering radius of classes as the paper's figure does, and the distance between classes.

    Args:
        embeddings: ``[N, D]``, as given.
        labels: ``[N]`` integers; rows with a negative label take no part.

    Returns:
        A :class:`ClassCovering`, whose ratio is infinite where classes do not differ.

    Raises:
        TypeError: arguments of the wrong kind.
        ValueError: shapes that do not fit, no class at all.

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
    checks.check_concrete("class_covering", embeddings, labels)
    checks.check_embeddings("embeddings", embeddings)
    checks.check_labels("labels", labels, len(embeddings))
    y, x = np.asarray(labels), np.asarray(embeddings, np.float64)
    there = np.unique(y[y >= 0])
    if not len(there):
        raise ValueError("labels must hold at least one class, got none")
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
