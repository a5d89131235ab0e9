"""Potential field losses: embeddings and proxies are charges that attract their class and repel all others."""

from typing import NamedTuple, TypedDict, Unpack

import jax
import jax.numpy as jnp
from jax import Array

from jdml import fields, ops
from jdml.losses.assignment import assign
from jdml.losses.comparison import Normalize, prepare, valid_rows, weights_of
from jdml.ops import ReduceFn, checks, mean
from jdml.ops.meshes import Axis, as_axis
from jdml.ops.numerics import accumulate_in

__all__ = ["contrastive_potential_loss", "field_activity", "potential_field_loss"]

_CONSTRAINTS = dict.fromkeys(("delta", "alpha", "min_distance"), checks.positive)


class Charges(NamedTuple):
    """The points of a field: a batch of embeddings, then all proxies, class by class."""

    points: Array  # [B + C·K, D], normalized
    labels: Array  # [B + C·K], −1 for rows that are not valid
    weights: Array  # [B + C·K], 1 for proxies
    counted: Array  # [B + C·K], whose potential is part of the loss: none if no row is valid
    batch: int  # B
    axis: Axis  # the devices that share the pairs; each has all charges


class ChargeOptions(TypedDict, total=False):
    """The keywords of :func:`charge`, which every potential field loss takes besides its own."""

    normalize: Normalize | None
    where: Array | None
    weights: Array | None
    axis_name: str | tuple[str, ...] | None


def charge(
    embeddings: Array,
    labels: Array,
    proxies: Array | None = None,
    *,
    normalize: Normalize | None = ops.sphere,
    where: Array | None = None,
    weights: Array | None = None,
    axis_name: str | tuple[str, ...] | None = None,
) -> Charges:
    """Check the arguments of a potential field loss and gather its charges.

    Args:
        embeddings: ``[B, D]``.
        labels: ``[B]`` integers in 0…C−1 (without proxies any that are not negative).
        proxies: ``[C, K, D]`` (``[C, D]`` for K = 1), or None for no proxies.
        normalize: function applied to embeddings and proxies: :func:`jdml.sphere`, :func:`jdml.ball` or None.
        where: ``[B]`` bool, the valid rows; the others are no charges. Rows whose label is negative, or not below C,
            are not valid either.
        weights: ``[B]``: the potential at each sample is multiplied by its weight.
        axis_name: inside a ``jax.shard_map``, the mesh axis over which the batch is spread: the rows of all devices
            are charges of one field. The value is the same on every device.
    """
    if proxies is not None:
        a = assign(
            embeddings,
            labels,
            proxies,
            normalize=normalize,
            where=where,
            weights=weights,
            axis_name=axis_name,
        )
        x, p = a.normalized
        x, p = (x, a.axis.gather(p)) if a.by_class else (a.axis.gather(x), p)
        classes, per_class, dim = p.shape
        owners = jnp.repeat(jnp.arange(classes, dtype=a.batch.labels.dtype), per_class)
        return Charges(
            jnp.concatenate([x, p.reshape(-1, dim)]),
            jnp.concatenate([a.batch.labels, owners]),
            jnp.concatenate([a.weights, jnp.ones(len(owners), a.weights.dtype)]),
            jnp.concatenate([a.rows, jnp.broadcast_to(a.rows.any(), owners.shape)]),
            len(x),
            a.axis,
        )
    checks.check_embeddings("embeddings", embeddings)
    axis = as_axis(axis_name)
    size = len(embeddings)
    rows = valid_rows(labels, where, size)
    labels = checks.widen_labels(labels)
    dtype = accumulate_in(embeddings)
    points = prepare("embeddings", embeddings, rows, normalize, dtype)
    of_rows = (jnp.where(rows, labels, -1), weights_of(weights, size, dtype), rows)
    if axis.holds_part("embeddings", embeddings):
        points, of_rows = axis.gather(points), axis.rows(of_rows)
    return Charges(points, *of_rows, len(points), axis)


@ops.public(
    charge,
    **_CONSTRAINTS,
    repulsion_delta=checks.optional(checks.positive),
    tile=checks.optional(checks.count),
)
def potential_field_loss(
    embeddings: Array,
    labels: Array,
    proxies: Array | None = None,
    *,
    delta: float | Array = fields.DELTA,
    alpha: float | Array = fields.ALPHA,
    repulsion_delta: float | Array | None = None,
    min_distance: float | Array = fields.MIN_DISTANCE,
    proxy_attraction: bool = True,
    tile: int | None = None,
    reduce_fn: ReduceFn | None = mean,
    **options: Unpack[ChargeOptions],
) -> Array:
    """Compute PFML: every sample and every proxy attracts its class and repels all others, less with growing distance.

    Formula:
        ``reduce_i Ψ_{y_i}(z_i)`` over all charges z (embeddings and proxies), with
        ``Ψ_i = Σ_{j≠i, y_j=y_i} ψ_att(‖z_i − z_j‖) + Σ_{y_j≠y_i} ψ_rep(‖z_i − z_j‖)``,
        ``ψ_att(r) = −1/max(r, δ)^α`` and ``ψ_rep(r) = 1/min(r, δ_rep)^α``.

    Args:
        delta: δ, a distance: no attraction within.
        alpha: α, how fast the field decays.
        repulsion_delta: δ_rep, a distance: no repulsion beyond; None for δ.
        min_distance: ε, a distance: no repulsion below it either, so that force and energy stay finite.
        proxy_attraction: whether the proxies of a class attract each other, as in eq. 4 and 6; False leaves these pairs
            out, as the paper's corollary 1 does: samples alone then attract proxies.
        tile: charges along a side of a tile of pairs; None chooses.
        reduce_fn: applied to the potentials at all charges: the mean, so that the scale does not grow with the batch;
            ``jnp.sum`` gives the paper's U. None gives ``[B + C·K]``, the embeddings first.

    Raises:
        NotImplementedError: second derivatives. Forward mode (``jax.jacfwd``) is a TypeError of JAX: take
            ``jax.jacrev``.

    Implementation notes:
        The constant self term −1/δ^α of every charge is left out; without a valid row the loss is 0. Pairs are summed
        in tiles that the gradient computes again (:func:`jdml.ops.pair_sums`): ``O((B + CK)² D)`` time, memory linear
        in the charges. Powers are cut near the largest float.

        Forces fade with distance. In a loop of one's own do as ``jdml train`` does: let proxies begin on samples
        (:func:`jdml.training.init_proxies_from_samples`), and learn 100 times as fast as the network
        (``jdml.optim.partition_by_role``). With a large α also cut the entries of proxies' gradients
        (``optax.clip(5.0)``): two charges of different classes that almost touch repel each other thousands of times as
        strongly as all others do, and one such gradient in Adam's second moment stops a proxy for hundreds of steps.

        Without ``proxy_attraction`` the value at a proxy with siblings within δ has an error of about ``1e-7 K/δ^α``;
        its gradient has not. In float32 unit vectors closer than 0.01 are told apart only to some percent of their
        distance, and copies of one vector may seem 0.001 apart; the direction of a force holds.

    Paper settings:
        K = 15 (CUB, Cars196) or 2 (SOP); δ from .1 to .3, α in 0…6 by cross-validation, 3 to 6 best there; proxies'
        learning rate ×100. Found here (``experiments/pfml_needs``): α = 1, the default, is better than 4, by far where
        classes are many and have few samples. ``jdml benchmark --method pfml`` is the paper's, with α = 4;
        ``--method-setting preset=tuned`` is what was found.

    Reference:
        Bhatnagar & Ahuja, *Potential Field Based Deep Metric Learning*, eq. 1–6.

    Example:
        >>> import jax.numpy as jnp
        >>> x, p = jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 1.0], [0.0, -1.0]])
        >>> potential_field_loss(x, jnp.array([0]), p, delta=0.5, alpha=2.0, reduce_fn=None).round(4)
        Array([3.5, 3.5, 8. ], dtype=float32)
    """
    charges = charge(embeddings, labels, proxies, **options)
    reach = delta if repulsion_delta is None else repulsion_delta
    parameters = (delta, alpha, reach, min_distance)
    among = None if proxy_attraction else _attraction
    return _reduce(charges, fields.decaying, parameters, tile, reduce_fn, among)


@ops.public(charge, **_CONSTRAINTS, tile=checks.optional(checks.count))
def contrastive_potential_loss(
    embeddings: Array,
    labels: Array,
    proxies: Array | None = None,
    *,
    delta: float | Array = fields.DELTA,
    repulsion: fields.Repulsion = fields.REPULSION,
    alpha: float | Array = fields.ALPHA,
    min_distance: float | Array = fields.MIN_DISTANCE,
    tile: int | None = None,
    reduce_fn: ReduceFn | None = mean,
    **options: Unpack[ChargeOptions],
) -> Array:
    """Compute CPML: a potential field whose attraction grows with distance, the contrastive loss's; PFML's foil.

    Formula:
        ``reduce_i Ψ_{y_i}(z_i)`` as in :func:`potential_field_loss`, with ``ψ_att(r) = max(r, δ)²`` and
        ``ψ_rep(r) = (δ − r)₊²``, or another repulsion.

    Args:
        delta: δ, a distance: no attraction within, no repulsion beyond.
        repulsion: ``"contrastive"``, ``"mirrored"`` (``−min(r, δ)²``) or ``"decaying"`` (PFML's ``1/min(r, δ)^α``): see
            :func:`jdml.fields.contrastive_potential`.
        alpha: α, of the decaying repulsion alone.
        min_distance: ε, of the decaying repulsion alone.
        tile: charges along a side of a tile of pairs; None chooses.
        reduce_fn: applied to the potentials at all charges; None gives ``[B + C·K]``, the embeddings first.

    Raises:
        ValueError: another repulsion.
        NotImplementedError: second derivatives. Forward mode (``jax.jacfwd``) is a TypeError of JAX: take
            ``jax.jacrev``.

    Implementation notes:
        The paper does not print ψ_rep: the default is bounded, unlike PFML's. The constant self term δ² is left out.
        Without a valid row the loss is 0.

    Reference:
        Bhatnagar & Ahuja, *Potential Field Based Deep Metric Learning*, section 3.4.

    Example:
        >>> import jax.numpy as jnp
        >>> x, p = jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 1.0], [0.0, -1.0]])
        >>> contrastive_potential_loss(x, jnp.array([0]), p, delta=0.5, reduce_fn=None).round(4)
        Array([2., 2., 0.], dtype=float32)
    """
    charges = charge(embeddings, labels, proxies, **options)
    parameters = (delta, alpha, min_distance)
    return _reduce(charges, fields.contrasting_as(repulsion), parameters, tile, reduce_fn)


@ops.public(charge, **_CONSTRAINTS, repulsion_delta=checks.optional(checks.positive))
def field_activity(
    embeddings: Array,
    labels: Array,
    proxies: Array | None = None,
    *,
    delta: float | Array = fields.DELTA,
    alpha: float | Array = fields.ALPHA,
    repulsion_delta: float | Array | None = None,
    min_distance: float | Array = fields.MIN_DISTANCE,
    **options: Unpack[ChargeOptions],
) -> dict[str, Array]:
    """Measure how much goes on in PFML's field: the shares of the pairs that attract and repel, and the mean force.

    Formula:
        ``attracting``: the share of the pairs of one class with ``r > δ``; ``repelling``: the share of the pairs of two
        classes with ``r < δ_rep``; ``force``: the mean over the charges of ``‖∇_z Ψ(z)‖``.

    Args:
        delta: δ.
        alpha: α.
        repulsion_delta: δ_rep; None for δ.
        min_distance: ε.
        weights: ``[B]``; they make no difference.

    Returns:
        Three scalars by name; 0 where there is no such pair.

    Implementation notes:
        Costs two to three times the loss itself, and has no gradient. As ``monitor`` of :func:`jdml.objectives.proxy`
        it is logged with the loss.

    Example:
        >>> import jax.numpy as jnp
        >>> x, p = jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 1.0], [0.0, -1.0]])
        >>> activity = field_activity(x, jnp.array([0]), p, delta=1.0, repulsion_delta=1.5, alpha=1.0)
        >>> {name: round(float(value), 3) for name, value in activity.items()}
        {'attracting': 1.0, 'force': 0.569, 'repelling': 0.5}
    """
    charges = charge(embeddings, labels, proxies, **options)
    points, groups, counted = charges.points, charges.labels, charges.counted
    points = jax.lax.stop_gradient(points)  # the force is a derivative already
    reach = delta if repulsion_delta is None else repulsion_delta
    active = fields.superpose(_attracts, points, groups, (delta,))
    repelled = fields.superpose(_repels, points, groups, (reach,))
    one = jnp.ones(len(groups), points.dtype)
    same = fields.superpose(_is_same, jnp.zeros((len(groups), 1), points.dtype), groups)
    real = (groups >= 0).sum()
    different = jnp.where(groups >= 0, (real - 1) * one - same, 0.0)

    def energy(at: Array) -> Array:
        felt = fields.superpose(fields.decaying, at, groups, (delta, alpha, reach, min_distance))
        return 0.5 * felt.sum()

    forces = ops.safe_norm(jax.grad(energy)(points))[:, 0]
    activity = {
        "attracting": active.sum() / jnp.maximum(same.sum(), 1),
        "repelling": repelled.sum() / jnp.maximum(different.sum(), 1),
        "force": mean(forces, counted),
    }
    return {name: charges.axis.mean_of_equal(value) for name, value in activity.items()}


def _attraction(r: Array, same: Array, *parameters: Array) -> Array:
    return jnp.where(same, fields.decaying(r, same, *parameters), 0.0)


def _attracts(r: Array, same: Array, delta: Array) -> Array:
    return same & (r > delta)


def _repels(r: Array, same: Array, delta: Array) -> Array:
    return ~same & (r < delta)


def _is_same(r: Array, same: Array) -> Array:
    return same


def _reduce(
    charges: Charges,
    potential: fields.Potential,
    parameters: tuple[Array | float, ...],
    tile: int | None,
    reduce_fn: ReduceFn | None,
    among_proxies: fields.Potential | None = None,
) -> Array:
    """Reduce the potentials at all charges; what ``among_proxies`` says of two proxies does not count."""
    points, labels, axis = charges.points, charges.labels, charges.axis
    felt = fields.superpose(potential, points, labels, parameters, tile=tile, axis=axis)
    first = charges.batch
    if among_proxies is not None and first < len(points):
        between = fields.superpose(
            among_proxies, points[first:], labels[first:], parameters, tile=tile, axis=axis
        )
        felt = felt.at[first:].add(-between)
    reduced = ops.reduce_terms(reduce_fn, felt * charges.weights, charges.counted)
    if reduce_fn is not None:
        return axis.psum_once(reduced)
    return jnp.concatenate([axis.local_slice(reduced[:first]), axis.psum_once(reduced[first:])])
