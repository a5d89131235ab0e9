"""How embeddings lie in space."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jdml import ops
from jdml.metrics.array_conversion import accepts_any_array
from jdml.metrics.ranking_score import apply_centering, frame_of, sample
from jdml.ops import checks, mean, safe_sqrt
from jdml.ops.numerics import accumulate_in, max_abs_scale


@accepts_any_array(embeddings="labels")
@ops.public(mode=checks.nonzero_integer)
def spectral_decay(embeddings: Array, *, mode: int = 1) -> Array:
    """Measure how unevenly embeddings fill their dimensions: how far singular values are from uniform ones.

    Formula:
        ``ρ = KL(U ‖ S)`` with S the singular values of ``[N, D]`` (not centred) over their sum, U uniform; 0 where all
        are equal.

    Args:
        embeddings: ``[N, D]``, as given.
        mode: m = 1, 2, … leaves out the m − 1 largest singular values; m = −1, −2, … does so too and gives
            ``KL(S ‖ U)``.

    Returns:
        A scalar ≥ 0, in nats.

    Raises:
        ValueError: a mode that leaves nothing.

    Implementation notes:
        There are min(N, D) singular values. Those below the type's rounding error of the largest count as that error,
        so that a collapsed embedding has a large decay and not an infinite one.

    Reference:
        Roth et al., *Revisiting Training Strategies and Generalization Performance in Deep Metric Learning*; Roth,
        Vinyals & Akata, *Non-isotropy Regularization for Proxy-based Deep Metric Learning*, Table 3.

    Example:
        >>> import jax.numpy as jnp
        >>> spectral_decay(jnp.eye(3)).round(4), spectral_decay(jnp.diag(jnp.array([3.0, 1.0])), mode=1).round(4)
        (Array(0., dtype=float32), Array(0.1438, dtype=float32))
    """
    checks.check_embeddings("embeddings", embeddings)
    number = min(embeddings.shape)
    if not 0 <= abs(mode) - 1 < number:
        raise ValueError(f"mode must leave some of the {number} singular values, got {mode}")
    x = embeddings.astype(accumulate_in(embeddings))
    values = jnp.linalg.svd(x / _unit(x), compute_uv=False)
    lowest = jnp.finfo(x.dtype).eps * values[0] + jnp.finfo(x.dtype).tiny
    largest = jnp.maximum(values, lowest)[abs(mode) - 1 :]
    share = largest / jnp.sum(largest)
    logarithms = jnp.log(share * len(largest))
    return -jnp.mean(logarithms) if mode > 0 else jnp.sum(share * logarithms)


@accepts_any_array(embeddings="labels")
@ops.public(t=checks.positive)
def uniformity(embeddings: Array, t: float | Array = 2.0) -> Array:
    """Measure G_t: how close embeddings are to each other on average, by a Gaussian kernel; smaller is more uniform.

    Formula:
        ``G_t = mean_{i<j} exp(−t ‖x_i − x_j‖²)``

    Args:
        embeddings: ``[N, D]``, as given (on the sphere in the papers).
        t: sharpness.

    Returns:
        A scalar in 0…1; 0 for fewer than two embeddings.

    Implementation notes:
        All pairs, in tiles: ``O(N² D)`` time, ``O(N D)`` memory. Differentiable.

    Paper settings:
        t = 2, without the logarithm of its reference.

    Reference:
        Wang & Isola, *Understanding Contrastive Representation Learning through Alignment and Uniformity on the
        Hypersphere*; NIR, Table 3.

    Example:
        >>> import jax.numpy as jnp
        >>> uniformity(jnp.array([[1.0, 0.0], [0.0, 1.0]])).round(4)
        Array(0.0183, dtype=float32)
    """
    checks.check_embeddings("embeddings", embeddings)
    size = len(embeddings)
    x = embeddings.astype(accumulate_in(embeddings))
    frame = _frame(x)
    unit = _unit_of(frame)
    # Not infinite, for 0 · ∞ of equal embeddings.
    sharpness = jnp.minimum(t * unit * unit, jnp.finfo(x.dtype).max)
    x = apply_centering(x, frame)
    groups = jnp.zeros(size, jnp.int32)
    sums = ops.pair_sums(lambda squared, _, t: jnp.exp(-t * squared), x, groups, (sharpness,))
    return jnp.sum(sums) / max(size * (size - 1), 1)


@accepts_any_array(embeddings="labels")
@ops.public()
def class_density(
    embeddings: Array, labels: Array, *, distance: Literal["euclidean", "cosine"] = "euclidean"
) -> Array:
    """Measure π: how wide classes are, in units of how far they are from each other.

    Formula:
        mean over classes of the mean distance between two embeddings of the class, over the mean distance between two
        class centres (means).

    Args:
        embeddings: ``[N, D]``, as given.
        labels: ``[N]`` integers; rows with a negative label take no part.
        distance: ``"euclidean"``, or ``"cosine"``: ``1 − cos``, as the released program has it (½ from a zero vector).

    Returns:
        A scalar; 0 with fewer than two classes.

    Raises:
        ValueError: another distance.

    Implementation notes:
        All pairs, in tiles: ``O(N² D)`` time, ``O(N D)`` memory; each class around its own mean, so that what points
        share costs no digits. Classes of one embedding have a centre and no width, and are left out of the first mean.

    Reference:
        Roth et al., *Revisiting Training Strategies and Generalization Performance in Deep Metric Learning*; NIR,
        Table 3.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[0.0], [1.0], [4.0], [5.0]])
        >>> class_density(x, jnp.array([0, 0, 1, 1]))
        Array(0.25, dtype=float32)
    """
    checks.one_of("distance", distance, ("euclidean", "cosine"))
    classes, apart = _classes(embeddings, labels), pair_distance
    if distance == "cosine":
        classes, apart = classes.directions(), lambda squared, same: 0.5 * squared

    def within_classes(squared: Array, same: Array) -> Array:
        return jnp.where(same, apart(squared, same), 0.0)

    pair_counts = jnp.maximum(classes.counts * (classes.counts - 1), 1)[classes.own]
    means = _means(classes.points, classes.own, classes.counts)
    # Around its own mean a class keeps the digits that its points share.
    sums = ops.pair_sums(within_classes, classes.points - means[classes.own], classes.groups)
    wide = classes.counts > 1
    within = jnp.sum(jnp.where(classes.groups >= 0, sums / pair_counts, 0.0)) / jnp.maximum(
        wide.sum(), 1
    )
    between = _between(classes, apart)
    return jnp.where(between == 0, 0.0, within / jnp.where(between == 0, 1.0, between))


@accepts_any_array(embeddings="labels")
@ops.public()
def concentration_variance(embeddings: Array, labels: Array) -> Array:
    """Measure σ²_κ: how much classes differ in how tightly they lie around their centres.

    Formula:
        the variance over classes of (mean distance of a class's embeddings to their mean) / (mean distance between two
        class means).

    Args:
        embeddings: ``[N, D]``, as given.
        labels: ``[N]`` integers; rows with a negative label take no part.

    Returns:
        A scalar ≥ 0; 0 with fewer than two classes.

    Implementation notes:
        The population variance. The scale of the paper's figures (.32 to .44) cannot be had from its text.

    Reference:
        Roth, Vinyals & Akata, *Non-isotropy Regularization for Proxy-based Deep Metric Learning*, Table 3.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[0.0], [2.0], [5.0], [5.0]])
        >>> concentration_variance(x, jnp.array([0, 0, 1, 1])).round(4)
        Array(0.0156, dtype=float32)
    """
    classes = _classes(embeddings, labels)
    away = ops.safe_norm(classes.points - classes.centres[classes.own])[:, 0]
    real = classes.groups >= 0
    summed = (
        jnp.zeros(len(classes.counts), away.dtype).at[classes.own].add(jnp.where(real, away, 0.0))
    )
    between = _between(classes, pair_distance)
    ratios = summed / jnp.maximum(classes.counts, 1) / jnp.where(between == 0, 1.0, between)
    there = classes.counts > 0
    spread = mean(jnp.square(ratios - mean(ratios, there)), there)
    return jnp.where(between == 0, 0.0, spread)


@accepts_any_array(points="where", centers="centers_where")
@ops.public()
def covering_radius(
    points: Array, centers: Array, *, where: Array | None = None, centers_where: Array | None = None
) -> Array:
    """Measure how far the worst point is from its nearest centre.

    Formula:
        ``max_i min_j ‖x_i − c_j‖``

    Args:
        points: ``[N, D]``, as given.
        centers: ``[M, D]``, as given.
        where: ``[N]`` bool, the points that count.
        centers_where: ``[M]`` bool, the centres that count.

    Returns:
        A scalar; 0 where no point counts, infinity where no centre does.

    Implementation notes:
        One product tells which centre is the nearest, a difference how far that is. Of two centres that are as near to
        a thousandth of what most points are apart, the other may be taken.

    Reference:
        Gürbüz, Can & Alatan, *Deep Metric Learning with Chance Constraints*.

    Example:
        >>> import jax.numpy as jnp
        >>> covering_radius(jnp.array([[0.0], [1.0], [5.0]]), jnp.array([[0.0], [4.0]]))
        Array(1., dtype=float32)
    """
    checks.check_embeddings("points", points)
    checks.check_embeddings("centers", centers, dim=points.shape[1], like="points")
    checks.check_mask("where", where, (len(points),))
    checks.check_mask("centers_where", centers_where, (len(centers),))
    dtype = accumulate_in(points, centers)
    if where is not None:
        points = jnp.where(where[:, None], points, 0)
    if centers_where is not None:
        centers = jnp.where(centers_where[:, None], centers, 0)
    points, centers = points.astype(dtype), centers.astype(dtype)
    if len(centers) == 0:
        nearest = jnp.full(len(points), jnp.inf, dtype)
        return jnp.max(nearest if where is None else jnp.where(where, nearest, 0.0), initial=0.0)
    valid = None
    if where is not None or centers_where is not None:
        masks = ((where, len(points)), (centers_where, len(centers)))
        several = [jnp.ones(size, bool) if mask is None else mask for mask, size in masks]
        valid = jnp.concatenate(several)
    frame = _frame(jnp.concatenate([points, centers]), valid)
    x, c = apply_centering(points, frame), apply_centering(centers, frame)
    apart = ops.distances(x, c)
    if centers_where is not None:
        apart = jnp.where(centers_where[None, :], apart, jnp.inf)
    least, last = jnp.min(apart, axis=1), len(centers) - 1
    places = jnp.arange(len(centers))[None, :]
    first = jnp.min(jnp.where(apart == least[:, None], places, last), axis=1)  # argmin is slow
    # From a difference, which has digits that the product lost; no centre, or no number, stays so.
    nearest = jnp.where(least < jnp.inf, ops.safe_norm(x - c[first])[:, 0], least)
    nearest = nearest if where is None else jnp.where(where, nearest, 0.0)
    return _unit_of(frame) * jnp.max(nearest, initial=0.0)


def _frame(points: Array, counts: Array | None = None) -> tuple[Array, Array]:
    """The :func:`jdml.metrics.ranking_score.frame_of` of points, or of those that count ``[N]``; it has no gradient."""
    x = jax.lax.stop_gradient(points)
    some = sample(x)
    if counts is not None and len(some):
        turns = jnp.arange(len(some)) * counts.sum() // len(some)
        some = x[jnp.argsort(~counts)[turns]]
    low, high = jnp.min(x, axis=0, initial=jnp.inf), jnp.max(x, axis=0, initial=-jnp.inf)
    return frame_of(low, high, some)


def _unit_of(frame: tuple[Array, Array]) -> Array:
    return jnp.ldexp(jnp.ones((), frame[0].dtype), frame[1])


class _Classes(NamedTuple):
    """Embeddings by class."""

    points: Array
    groups: Array
    own: Array
    counts: Array
    centres: Array
    origin: Array

    def directions(self) -> "_Classes":
        """The directions of points and of centres from 0, in place of these; in units of 1."""
        points, centres = (
            _shifted(ops.sphere(some + self.origin), there)
            for some, there in ((self.points, self.groups >= 0), (self.centres, self.counts > 0))
        )
        return self._replace(
            points=points[0] * _unit_of(points[1]), centres=centres[0] * _unit_of(centres[1])
        )


def _classes(embeddings: Array, labels: Array) -> _Classes:
    checks.check_embeddings("embeddings", embeddings)
    size = len(embeddings)
    checks.check_labels("labels", labels, size)
    labels = checks.widen_labels(labels)
    valid = labels >= 0
    x = jnp.where(valid[:, None], embeddings, 0).astype(accumulate_in(embeddings))
    x, frame = _shifted(x, valid)
    _, own = jnp.unique(labels, size=size, return_inverse=True)
    own = own.reshape(-1)
    counts = jnp.zeros(size, jnp.int32).at[own].add(valid.astype(jnp.int32))
    return _Classes(x, jnp.where(valid, own, -1), own, counts, _means(x, own, counts), frame[0])


def _shifted(points: Array, there: Array) -> tuple[Array, tuple[Array, Array]]:
    """Points from a frame of those that are there; 0 for the others."""
    frame = _frame(points, there)
    return jnp.where(there[:, None], apply_centering(points, frame), 0.0), frame


def _means(points: Array, own: Array, counts: Array) -> Array:
    """The mean of each class ``[N, D]``."""
    sums = jnp.zeros_like(points).at[own].add(points)
    return sums / jnp.maximum(counts, 1)[:, None].astype(points.dtype)


def _unit(vectors: Array) -> Array:
    """A power of two in whose units entries are of size 1 or so: squares of the largest overflow, of tiny underflow."""
    exponent = jnp.frexp(max_abs_scale(vectors.reshape(-1))[0])[1] - 1
    return jnp.ldexp(jnp.ones((), vectors.dtype), jnp.clip(exponent, -126, 126))


def _between(classes: _Classes, term: Callable[..., Array]) -> Array:
    """Mean distance between two class centres; 0 where there is one class at most."""
    there = classes.counts > 0
    places = jnp.where(there, jnp.arange(len(there)), -1)
    number = there.sum()
    return jnp.sum(ops.pair_sums(term, classes.centres, places)) / jnp.maximum(
        number * (number - 1), 1
    )


def pair_distance(squared: Array, same: Array) -> Array:
    """A term of ``ops.pair_sums``: how far apart two rows are."""
    return safe_sqrt(squared)
