"""Softmax losses over the cosines between embeddings and one weight vector (or proxy) per class."""

from typing import Unpack

import jax.numpy as jnp
from jax import Array

from jdml import ops
from jdml.losses.assignment import Assignment, AssignOptions, assign
from jdml.losses.terms import cross_entropy
from jdml.ops import ReduceFn, checks, mean, safe_sqrt

__all__ = ["arcface_loss", "cosface_loss", "normalized_softmax_loss", "subcenter_arcface_loss"]

SCALE = 64.0
"""λ of the losses with a margin, unless another is given."""

ANGLE = 0.5
"""ArcFace's margin in radians, unless another is given."""


@ops.public(assign, temperature=checks.positive)
def normalized_softmax_loss(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    temperature: float | Array = 0.05,
    reduce_fn: ReduceFn | None = mean,
    **options: Unpack[AssignOptions],
) -> Array:
    """Compute the normalized softmax: cross entropy of cosines over a temperature.

    Formula:
        ``reduce_i −log softmax_y( s(x_i, p_c) / T )``

    Args:
        temperature: T, a cosine.

    Paper settings:
        T = .05.

    Reference:
        Zhai & Wu, *Classification is a Strong Baseline for Deep Metric Learning*, eq. 3.

    Example:
        >>> import jax.numpy as jnp
        >>> normalized_softmax_loss(jnp.array([[1.0, 0.0]]), jnp.array([0]), jnp.eye(2), temperature=1.0).round(4)
        Array(0.3133, dtype=float32)
    """
    a = assign(embeddings, labels, proxies, **options)
    rows = cross_entropy(a, lambda block: block.similarities, 1.0 / jnp.asarray(temperature))
    return a.reduce_rows(reduce_fn, rows)


@ops.public(assign, scale=checks.positive, margin=checks.non_negative)
def cosface_loss(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    scale: float | Array = SCALE,
    margin: float | Array = 0.35,
    reduce_fn: ReduceFn | None = mean,
    **options: Unpack[AssignOptions],
) -> Array:
    """Compute CosFace: a softmax with a margin on the true class's cosine.

    Formula:
        ``reduce_i −log softmax_y( λ(s(x_i, p_c) − m·1[c = y]) )``

    Args:
        scale: λ, inverse temperature.
        margin: m, a cosine.

    Paper settings:
        λ = 64, m = .35.

    Reference:
        Wang et al., *CosFace: Large Margin Cosine Loss for Deep Face Recognition*, eq. 4.

    Example:
        >>> import jax.numpy as jnp
        >>> cosface_loss(jnp.array([[1.0, 0.0]]), jnp.array([0]), jnp.eye(2), scale=1.0, margin=1.0).round(4)
        Array(0.6931, dtype=float32)
    """
    a = assign(embeddings, labels, proxies, **options)
    rows = cross_entropy(a, lambda block: block.similarities, scale, lambda own: own - margin)
    return a.reduce_rows(reduce_fn, rows)


@ops.public(assign, scale=checks.positive, margin=checks.angle)
def arcface_loss(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    scale: float | Array = SCALE,
    margin: float | Array = ANGLE,
    reduce_fn: ReduceFn | None = mean,
    **options: Unpack[AssignOptions],
) -> Array:
    """Compute ArcFace: a softmax with a margin on the angle to the true class.

    Formula:
        ``reduce_i −log softmax_y( λ cos(θ_c + m·1[c = y]) )``

    Args:
        scale: λ, inverse temperature.
        margin: m, an angle in radians.

    Implementation notes:
        No arc cosine is taken: ``cos(θ + m) = s cos m − √(1 − s²) sin m``, with gradient 0 of the root at s = ±1. Past
        θ = π − m, where the cosine would rise again, ``s − max(m sin m, 1 − cos m)`` goes on falling: the usual
        ``s − m sin m`` up to m = 2.33, beyond which that would jump up.

    Paper settings:
        λ = 64, m = .5 (28.6°).

    Reference:
        Deng, Guo, Xue & Zafeiriou, *ArcFace: Additive Angular Margin Loss for Deep Face Recognition*, eq. 3.

    Example:
        >>> import jax.numpy as jnp
        >>> arcface_loss(jnp.array([[1.0, 0.0]]), jnp.array([0]), jnp.eye(2), scale=1.0, margin=jnp.pi / 2).round(4)
        Array(0.6931, dtype=float32)
    """
    return _angular(assign(embeddings, labels, proxies, **options), scale, margin, reduce_fn)


@ops.public(assign, scale=checks.positive, margin=checks.angle_per_class)
def subcenter_arcface_loss(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    scale: float | Array = SCALE,
    margin: float | Array = ANGLE,
    reduce_fn: ReduceFn | None = mean,
    **options: Unpack[AssignOptions],
) -> Array:
    """Compute sub-centre ArcFace: several centres per class, of which the nearest counts; a margin per class.

    Formula:
        ``reduce_i −log softmax_y( λ cos(θ_c + m_c·1[c = y]) )``, θ_c the angle to the nearest of a class's K centres.

    When to use it: noisy labels, which gather around centres of their own, and classes with several modes; margins per
    class for classes of very different sizes: the rarer, the wider.

    Args:
        proxies: ``[C, K, D]`` centres.
        scale: λ, inverse temperature.
        margin: m, an angle in radians: a scalar, or ``[C]`` with one value per class. It gets gradients.

    Raises:
        ValueError: margins that are not one per class.

    Implementation notes:
        The cosine of :func:`arcface_loss`, which it is with one margin.

    Paper settings:
        λ = 64, m = .5, K = 3. Margins per class: n^{−¼} of their sizes n, moved linearly to .05….5 (landmark
        recognition).

    Reference:
        Deng, Guo, Liu, Gong & Zafeiriou, *Sub-center ArcFace: Boosting Face Recognition by Large-scale Noisy Web
        Faces*; Ha, Liu, Liu & Liao, *Google Landmark Recognition 2020 Competition Third Place Solution*.

    Example:
        >>> import jax.numpy as jnp
        >>> p = jnp.array([[[1.0, 0.0], [-1.0, 0.0]], [[0.0, 1.0], [0.0, -1.0]]])
        >>> margins = jnp.array([jnp.pi / 2, 0.0])
        >>> subcenter_arcface_loss(jnp.array([[-1.0, 0.0]]), jnp.array([0]), p, scale=1.0, margin=margins).round(4)
        Array(0.6931, dtype=float32)
    """
    a = assign(embeddings, labels, proxies, **options)
    margin = jnp.asarray(margin)
    if margin.ndim == 1:
        if margin.shape != (a.classes,):
            raise ValueError(
                f"margin must be a scalar or have shape [C] = [{a.classes}], got {list(margin.shape)}"
            )
        margin = margin[jnp.maximum(a.batch.labels, 0)]
    return _angular(a, scale, margin, reduce_fn)


def _angular(
    a: Assignment, scale: float | Array, margin: float | Array, reduce_fn: ReduceFn | None
) -> Array:
    """Cross entropy with a margin on the angle to the true class: one for all rows, or one each."""

    def rotate(own: Array) -> Array:
        sines = safe_sqrt(1.0 - jnp.square(own))
        cosine, sine = jnp.cos(margin), jnp.sin(margin)
        beyond = own - jnp.maximum(margin * sine, 1.0 - cosine)
        return jnp.where(own >= -cosine, own * cosine - sines * sine, beyond)

    rows = cross_entropy(a, lambda block: block.similarities, scale, rotate)
    return a.reduce_rows(reduce_fn, rows)
