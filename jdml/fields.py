"""Potential fields: what one charge does to another at a distance r, and what many do together.

A potential is a scalar function ``potential(r, same, …)`` of one pair of charges: of their distance, and of whether
they are of one class. :func:`superpose` adds it up over all pairs of charges, exactly and in little memory,
:func:`class_field` over the charges that a point feels; a field of one's own is that one function::

    def gravity(r, same, strength):
        return jnp.where(same, -strength / (1.0 + r), 0.0)

    energies = fields.superpose(gravity, charges, labels, (2.0,))
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, get_args

import jax.numpy as jnp
from jax import Array

from jdml import ops
from jdml.ops import checks, safe_sqrt
from jdml.ops.meshes import NOWHERE, Axis, by_rows
from jdml.ops.numerics import SQUARABLE, accumulate_in, bounded, upcast
from jdml.ops.tiled_pairs import lift, pair_sums

__all__ = [
    "ALPHA",
    "MIN_DISTANCE",
    "Potential",
    "Repulsion",
    "class_field",
    "contrastive_potential",
    "decaying",
    "potential",
    "superpose",
]

Potential = Callable[..., Array]
"""``potential(r, same, *parameters) -> value``: a scalar function of one pair of charges."""

Repulsion = Literal["contrastive", "decaying", "mirrored"]
"""CPML's repulsion, which its paper leaves open: see :func:`contrastive_potential`."""

REPULSION: Repulsion = "contrastive"
"""That of CPML, unless another is given."""

DELTA = 0.2
"""δ, unless another is given: the distance within which charges of one class are at rest."""

ALPHA = 1.0
"""α, unless another is given: how fast a field decays (see :func:`jdml.losses.potential_field_loss`)."""

MIN_DISTANCE = 1e-3
"""ε: repulsion grows no further below this distance."""


@ops.public(
    delta=checks.positive,
    alpha=checks.positive,
    repulsion_delta=checks.optional(checks.positive),
    min_distance=checks.positive,
)
def potential(
    r: Array,
    same: Array,
    *,
    delta: float | Array = DELTA,
    alpha: float | Array = ALPHA,
    repulsion_delta: float | Array | None = None,
    min_distance: float | Array = MIN_DISTANCE,
) -> Array:
    """Compute PFML's potential: attraction within a class, repulsion between classes, both weaker with distance.

    Formula:
        ``ψ_att(r) = −1/max(r, δ)^α``, flat inside δ; ``ψ_rep(r) = 1/min(r, δ_rep)^α``, flat outside δ_rep.

    Args:
        r: distances, any shape.
        same: bool, broadcastable to ``r``: whether the two charges are of one class (attraction) or not (repulsion).
        delta: δ, a distance.
        alpha: α, how fast the field decays.
        repulsion_delta: δ_rep, a distance; None for δ.
        min_distance: ε; repulsion is flat below it, so that its value and gradient stay finite.

    Returns:
        The potential, in the shape of ``r`` and ``same`` together.

    Raises:
        TypeError: arguments of the wrong kind.
        ValueError: a parameter that is not positive. (At α = 0 there would be no force at all.)

    Implementation notes:
        Powers beyond 10²³ (10¹⁸⁵ in float64) are cut there, so that α = 80 does not overflow.

    Paper settings:
        δ between .1 and .3, α up to 6, by cross-validation.

    Reference:
        Bhatnagar & Ahuja, *Potential Field Based Deep Metric Learning*, eq. 1 and 2.

    Example:
        >>> import jax.numpy as jnp
        >>> r = jnp.array([0.25, 0.5, 1.0])
        >>> potential(r, True, delta=0.5, alpha=1.0)
        Array([-2., -2., -1.], dtype=float32)
        >>> potential(r, False, repulsion_delta=0.5, alpha=1.0)
        Array([4., 2., 2.], dtype=float32)
    """
    reach = delta if repulsion_delta is None else repulsion_delta
    return decaying(_distances(r), jnp.asarray(same), delta, alpha, reach, min_distance)


@ops.public(delta=checks.positive, alpha=checks.positive, min_distance=checks.positive)
def contrastive_potential(
    r: Array,
    same: Array,
    *,
    delta: float | Array = DELTA,
    repulsion: Repulsion = REPULSION,
    alpha: float | Array = ALPHA,
    min_distance: float | Array = MIN_DISTANCE,
) -> Array:
    """Compute the potential of CPML, PFML's foil: attraction that grows with distance, as in the contrastive loss.

    Formula:
        ``ψ_att(r) = max(r, δ)²``, flat inside δ. ``ψ_rep(r)``, flat outside δ: ``(δ − r)₊²`` (``"contrastive"``),
        ``−min(r, δ)²`` (``"mirrored"``) or ``1/min(r, δ)^α`` (``"decaying"``).

    Args:
        r: distances, any shape.
        same: bool, broadcastable to ``r``: whether the two charges are of one class (attraction) or not (repulsion).
        delta: δ, a distance.
        repulsion: ``"contrastive"``: the contrastive loss's; ``"mirrored"``: the attraction with its sign and its sides
            changed, as PFML's two stand to each other; ``"decaying"``: PFML's own, without bound near 0.
        alpha: α, of the decaying repulsion.
        min_distance: ε, of the decaying repulsion.

    Returns:
        The potential, in the shape of ``r`` and ``same`` together.

    Raises:
        TypeError: arguments of the wrong kind.
        ValueError: a parameter that is not positive, another repulsion.

    Implementation notes:
        The paper prints the attraction only. Its reading as the contrastive loss is the default; the force is strongest
        at contact and bounded. The mirrored one does not push at contact at all.

    Reference:
        Bhatnagar & Ahuja, *Potential Field Based Deep Metric Learning*, section 3.4 and supplement eq. 8.

    Example:
        >>> import jax.numpy as jnp
        >>> contrastive_potential(jnp.array([0.25, 1.0]), True, delta=0.5)
        Array([0.25, 1.  ], dtype=float32)
        >>> for repulsion in ("contrastive", "mirrored", "decaying"):
        ...     print(contrastive_potential(jnp.array([0.25, 1.0]), False, delta=0.5, repulsion=repulsion, alpha=1.0))
        [0.0625 0.    ]
        [-0.0625 -0.25  ]
        [4. 2.]
    """
    r = _distances(r)
    return contrasting_as(repulsion)(r, jnp.asarray(same), delta, alpha, min_distance)


def decaying(
    r: Array,
    same: Array,
    delta: float | Array,
    alpha: float | Array,
    repulsion_delta: float | Array,
    min_distance: float | Array = MIN_DISTANCE,
) -> Array:
    """Compute :func:`potential` of one pair, unchecked and by position, as :func:`superpose` takes it.

    Args:
        r: the distance.
        same: whether the two charges are of one class.
        delta: δ.
        alpha: α.
        repulsion_delta: δ_rep.
        min_distance: ε.

    Returns:
        The potential.

    Example:
        >>> import jax.numpy as jnp
        >>> [float(decaying(jnp.array(0.25), same, 0.5, 1.0, 0.5)) for same in (True, False)]
        [-2.0, 4.0]
    """
    # Where 1/r^α would come near the largest float, both potentials are flat.
    lowest = jnp.exp(-0.6 * jnp.log(jnp.finfo(r.dtype).max) / alpha)
    near, far = jnp.maximum(delta, lowest), jnp.maximum(repulsion_delta, lowest)
    nearest = jnp.minimum(jnp.maximum(min_distance, lowest), far)
    attracted = jnp.where(r < near, near, r)
    repelled = jnp.where(r < nearest, nearest, jnp.where(r > far, far, r))
    reach = jnp.where(same, attracted, repelled)  # one power for both: it is what takes time
    return jnp.where(same, -1.0, 1.0) * jnp.exp(-alpha * jnp.log(reach))


def contrasting(
    r: Array,
    same: Array,
    delta: float | Array,
    alpha: float | Array,
    min_distance: float | Array,
    *,
    repulsion: Repulsion,
) -> Array:
    """Compute :func:`contrastive_potential` of one pair, unchecked and by position, as :func:`superpose` takes it."""
    delta = bounded(jnp.asarray(delta), most=SQUARABLE)
    pull = jnp.where(r < delta, delta, r)
    if repulsion == "decaying":
        other = jnp.zeros_like(same)
        push = decaying(r, other, delta, alpha, delta, min_distance)
        return jnp.where(same, jnp.square(pull), push)
    if repulsion == "mirrored":
        push = jnp.where(r < delta, r, delta)
        return jnp.where(same, jnp.square(pull), -jnp.square(push))
    push = jnp.where(r < delta, delta - r, 0.0)
    return jnp.square(jnp.where(same, pull, push))


_CONTRASTING: dict[str, Potential] = {
    name: functools.partial(contrasting, repulsion=name) for name in get_args(Repulsion)
}


def contrasting_as(repulsion: Repulsion) -> Potential:
    """Choose :func:`contrasting` with one of its repulsions, the same function at every call: nothing recompiles."""
    checks.one_of("repulsion", repulsion, _CONTRASTING)
    return _CONTRASTING[repulsion]


def superpose(
    potential: Potential,
    charges: Array,
    labels: Array,
    parameters: tuple[Array | float, ...] = (),
    *,
    tile: int | None = None,
    axis: Axis = NOWHERE,
) -> Array:
    """Compute the potential at each charge: the sum over all other charges.

    Formula:
        ``Ψ_i = Σ_{j≠i} potential(‖z_i − z_j‖, y_i = y_j, *parameters)``

    Args:
        potential: static; ``(r, same, *parameters) -> value`` of one pair, scalars all of them; ``jax.vmap`` lifts it.
        charges: ``[N, D]``.
        labels: ``[N]`` integers; charges of a negative label, whatever they hold, neither act nor are acted upon.
        parameters: scalars handed to the potential: what is learned comes in here, not from around the function.
        tile: see :func:`jdml.ops.pair_sums`, which does the work.
        axis: likewise.

    Returns:
        ``[N]``.

    Raises:
        TypeError: arguments of the wrong kind.
        ValueError: shapes that do not fit, a potential that is no scalar, a tile size below 1.
        NotImplementedError: second derivatives. Forward mode (``jax.jacfwd``) is a TypeError of JAX: take
            ``jax.jacrev``.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> charges, labels = jnp.array([[0.0], [1.0], [2.0]]), jnp.array([0, 0, 1])
        >>> superpose(decaying, charges, labels, (0.5, 1.0, 4.0))
        Array([-0.5,  0. ,  1.5], dtype=float32)

        A field of one's own, and its force on each charge:

        >>> def gravity(r, same, strength):
        ...     return jnp.where(same, -strength / (1.0 + r), 0.0)
        >>> superpose(gravity, charges, labels, (2.0,))
        Array([-1., -1.,  0.], dtype=float32)
        >>> jax.grad(lambda x: -superpose(gravity, x, labels, (2.0,)).sum() / 2)(charges)[:, 0]
        Array([ 0.5, -0.5,  0. ], dtype=float32)
    """
    checks.check_function("potential", potential, or_none=False)
    checks.check_embeddings("charges", charges)
    checks.check_labels("labels", labels, len(charges))
    charges, labels = checks.as_array(charges), checks.widen_labels(labels)
    checks.require_finite("charges", charges, labels >= 0)
    return pair_sums(_by_distance(potential), charges, labels, parameters, tile=tile, axis=axis)


def class_field(
    points: Array,
    label: int | Array,
    charges: Array,
    labels: Array,
    *,
    potential: Callable[..., Array] = potential,
    **settings: Any,
) -> Array:
    """Compute the field Ψ_j of a class at any points: its own charges attract, all others repel.

    Formula:
        ``Ψ_j(x) = Σ_{y=j} ψ_att(‖x − z‖) + Σ_{y≠j} ψ_rep(‖x − z‖)``. The force on a charge of class j is its negative
        gradient.

    Args:
        points: ``[Q, D]``.
        label: j.
        charges: ``[N, D]``: embeddings and proxies.
        labels: ``[N]``; charges of a negative label take no part.
        potential: ``(r, same, **settings) -> value`` of one pair: :func:`potential`, :func:`contrastive_potential` or
            one's own; ``jax.vmap`` lifts it.
        **settings: the potential's keywords (δ, α).

    Returns:
        ``[Q]``.

    Raises:
        TypeError: arguments of the wrong kind.
        ValueError: shapes that do not fit, a potential that is no scalar.

    Example:
        >>> import jax.numpy as jnp
        >>> charges, labels = jnp.array([[0.0], [3.0]]), jnp.array([0, 1])
        >>> class_field(jnp.array([[1.0], [2.0]]), 0, charges, labels, delta=0.5, alpha=1.0, repulsion_delta=4.0)
        Array([-0.5,  0.5], dtype=float32)
    """
    checks.check_embeddings("points", points)
    checks.check_embeddings("charges", charges, dim=points.shape[1], like="points")
    checks.check_labels("labels", labels, len(charges))
    checks.check_function("potential", potential, or_none=False)
    if not checks.is_integer(label) or jnp.ndim(label) != 0:
        raise TypeError(f"label must be one integer, got {label!r}")
    checks.require_finite("points", points)
    checks.require_finite("charges", charges, labels >= 0)
    dtype = accumulate_in(points, charges)

    def at(points: Array, others: Any) -> Array:
        label, charges, labels, settings = others
        charges = jnp.where((labels >= 0)[:, None], charges, 0)
        r = ops.distances(upcast(points, dtype), upcast(charges, dtype))
        same = jnp.broadcast_to(labels[None, :] == label, r.shape)
        felt = lift(potential)(r, same, **settings)
        return jnp.sum(jnp.where(labels[None, :] >= 0, felt, 0.0), axis=1)

    return by_rows(at, points, (label, charges, labels, settings))


def _distances(r: Array) -> Array:
    r = jnp.asarray(r)
    if not jnp.issubdtype(r.dtype, jnp.floating):
        raise TypeError(f"r must be floating point, got dtype {r.dtype}")
    return upcast(r, accumulate_in(r))


@functools.cache
def _by_distance(potential: Potential) -> Callable[..., Array]:
    """The potential as a function of the squared distance; one function per potential, so that nothing recompiles."""

    def of_squared(squared: Array, same: Array, *parameters: Array) -> Array:
        return potential(safe_sqrt(squared), same, *parameters)

    of_squared.__name__ = getattr(potential, "__name__", repr(potential))
    return of_squared
