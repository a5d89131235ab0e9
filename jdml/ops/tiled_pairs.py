"""Sums over all pairs of many points, tile by tile: exact, and never an array that grows with their number squared."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.custom_derivatives import CustomVJPPrimal

from jdml.ops import checks
from jdml.ops.chunking import by_platform
from jdml.ops.meshes import NOWHERE, Axis, replicated, zeros_alike
from jdml.ops.numerics import accumulate_in, upcast
from jdml.ops.pairwise import centre_of, power_of_two, squared_distances

PairTerm = Callable[..., Array]
"""``term(squared_distance, same, *parameters) -> value``: a scalar function of one pair, the same in both orders."""

TILE = (512, 2048)
"""Points along a side of a tile, about: on a CPU, and on a GPU or TPU. Up to twice as many are one tile."""
ALIGNED = (1, 128)
"""Divisors of that side: a GPU or TPU pads products of other sizes."""


def pair_sums(
    term: PairTerm,
    points: Array,
    groups: Array,
    parameters: tuple[Array | float, ...] = (),
    *,
    tile: int | None = None,
    axis: Axis = NOWHERE,
) -> Array:
    """Sum what all other points do to each point, over tiles of pairs that are computed twice, never stored.

    Formula:
        ``out_i = Σ_{j≠i, g_j≥0} term(‖x_i − x_j‖², g_i = g_j, *parameters)``, and 0 where g_i < 0.

    Args:
        term: static; ``(squared_distance, same, *parameters) -> value`` of one pair, scalars all of them.
        points: ``[N, D]``, finite.
        groups: ``[N]`` integers; points of a negative group, whatever they hold, take no part.
        parameters: scalars handed to the term, differentiable like the points.
        tile: points along a side of a tile; default: all up to 1,024 points, else about 512 (on a GPU or TPU four
            times as many).
        axis: inside a ``shard_map`` in which every device has all points, the devices that share the tiles.

    Returns:
        ``[N]``.

    Raises:
        TypeError: arguments of the wrong kind.
        ValueError: shapes that do not fit, parameters that are not scalars, a tile size below 1.
        NotImplementedError: second derivatives. Forward mode (``jax.jacfwd``) is a TypeError of JAX: take
            ``jax.jacrev``.

    Implementation notes:
        ``jax.vmap`` lifts the term to a tile. The pairs are symmetric: each unordered pair of tiles is visited once and
        serves both its sides, in ``O(N² D)`` time and ``O(t² + N D)`` memory. The first pass notes which tiles hold a
        pair whose term has a slope; the gradient visits these only, recomputes them, and skips the others, constant
        fields. Where a parameter is differentiated too it visits all.

    Example:
        >>> import jax.numpy as jnp
        >>> points, groups = jnp.array([[0.0], [1.0], [3.0]]), jnp.array([0, 0, 1])
        >>> pair_sums(lambda squared, same: jnp.where(same, squared, 0.0), points, groups)
        Array([1., 1., 0.], dtype=float32)
    """
    checks.check_embeddings("points", points)
    checks.check_labels("groups", groups, len(points))
    if not isinstance(parameters, tuple | list):
        raise TypeError(f"parameters must be a tuple of scalars, got {parameters!r}")
    for number, value in enumerate(parameters):
        if jnp.ndim(value) != 0:
            raise ValueError(
                f"parameters[{number}] must be a scalar, got an array of shape {list(jnp.shape(value))}"
            )
    if tile is not None:
        checks.count("tile", tile)
    points, groups = checks.as_array(points), checks.widen_labels(groups, "groups")
    if not jnp.issubdtype(groups.dtype, jnp.signedinteger):
        groups = groups.astype(jnp.int32)
    return _sums(points, groups, tuple(parameters), term=term, tile=tile, axis=axis)


def lift(term: PairTerm) -> PairTerm:
    """Lift a scalar function of one pair to a tile of pairs."""

    def of_tile(r: Array, same: Array, *parameters: Any, **settings: Any) -> Array:
        def of_pair(r: Array, same: Array) -> Array:
            return jnp.asarray(term(r, same, *parameters, **settings), r.dtype).reshape(())

        return jax.vmap(jax.vmap(of_pair))(r, same)

    return of_tile


@replicated
def _sums(
    points: Array,
    groups: Array,
    parameters: tuple[Array | float, ...],
    *,
    term: PairTerm,
    tile: int | None,
    axis: Axis,
) -> Array:
    size = len(points)
    points = jnp.where((groups >= 0)[:, None], upcast(points, accumulate_in(points)), 0)
    if size == 0:
        return jnp.zeros(0, points.dtype)
    side = min(tile, size) if tile is not None else _default_side(size, axis.size)
    values = tuple(
        jnp.asarray(value, points.dtype) + zeros_alike(points, ()) for value in parameters
    )
    missing = -size % side
    padded = jnp.pad(points, ((0, missing), (0, 0)))
    padded_groups = jnp.pad(groups, (0, missing), constant_values=-1)
    return axis.total(_tiled_sums(term, side, axis, padded, padded_groups, values)[:size])


def _default_side(size: int, devices: int) -> int:
    tile, unit = by_platform(*TILE), by_platform(*ALIGNED)
    if devices > 1:  # so many tiles along a side that every device has as many visits
        side = -(-size // (2 * devices * -(-size // (2 * devices * tile))))
    elif size <= 2 * tile:
        return size
    else:
        side = -(-size // -(-size // tile))
    return min(size, -(-side // unit) * unit)


class _Points(NamedTuple):
    """All points, or those of one side of a tile of pairs."""

    vectors: Array
    squares: Array
    groups: Array
    start: Array
    scale: Array

    def cut(self, index: Array, side: int) -> "_Points":
        """The points ``index · side : (index + 1) · side``."""
        start = index * side
        vectors, squares, groups = (
            jax.lax.dynamic_slice_in_dim(x, start, side)
            for x in (self.vectors, self.squares, self.groups)
        )
        return _Points(vectors, squares, groups, start, self.scale)


def _prepare(points: Array, groups: Array) -> _Points:
    scale = power_of_two(points, points)
    vectors = (points - centre_of(points, groups >= 0)[None]) / scale
    return _Points(
        vectors, jnp.sum(vectors * vectors, axis=-1), groups, jnp.zeros((), jnp.int32), scale
    )


def _visits(groups: Array, side: int, axis: Axis) -> tuple[Array, Array]:
    """``[V, 2]``: each unordered pair of tiles once, of which each device has its share; and which of them are any."""
    visits = np.stack(np.triu_indices(len(groups) // side), axis=1)
    number = -(-len(visits) // axis.size)
    padded = np.zeros((number * axis.size, 2), np.int32)
    padded[: len(visits)] = visits
    counted = np.arange(len(padded)) < len(visits)
    shares = padded.reshape(number, axis.size, 2), counted.reshape(number, axis.size)
    return jnp.asarray(shares[0])[:, axis.index], jnp.asarray(shares[1])[:, axis.index]


def _pairs(rows: _Points, columns: _Points) -> tuple[Array, Array, Array]:
    """Squared distances of a tile, which of its pairs are of one group, and which are pairs at all.

    However far apart points are, the square is at most 10⁻¹² of the largest float: sums stay finite.
    """
    squared = squared_distances(rows.vectors, columns.vectors, columns.squares, rows.squares)
    most = 1e-12 * jnp.finfo(squared.dtype).max / rows.scale / rows.scale
    squared = jnp.minimum(squared, most) * rows.scale * rows.scale
    same = rows.groups[:, None] == columns.groups[None, :]
    side = jnp.arange(len(rows.groups))
    self_pairs = (rows.start == columns.start) & (side[:, None] == side[None, :])
    real = (rows.groups >= 0)[:, None] & (columns.groups >= 0)[None, :] & ~self_pairs
    return squared, same, real


def _add(total: Array, start: Array, part: Array) -> Array:
    old = jax.lax.dynamic_slice_in_dim(total, start, len(part))
    return jax.lax.dynamic_update_slice_in_dim(total, old + part, start, 0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _tiled_sums(
    term: PairTerm,
    side: int,
    axis: Axis,
    points: Array,
    groups: Array,
    parameters: tuple[Array, ...],
) -> Array:
    all_points = _prepare(points, groups)

    def step(sums: Array, visit: tuple[Array, Array]) -> tuple[Array, None]:
        visited, counted = visit
        rows, columns = (all_points.cut(index, side) for index in visited)
        squared, same, real = _pairs(rows, columns)
        values = jnp.where(real & counted, lift(term)(squared, same, *parameters), 0.0)
        return _add_both(sums, rows, columns, values), None

    sums, _ = jax.lax.scan(step, zeros_alike(points, groups.shape), _visits(groups, side, axis))
    return sums


def _add_both(sums: Array, rows: _Points, columns: _Points, values: Array) -> Array:
    """Add a tile's values to its rows, and to its columns where these are other points."""
    sums = _add(sums, rows.start, values.sum(1))
    other = rows.start != columns.start
    return _add(sums, columns.start, jnp.where(other, values.sum(0), 0.0))


def _slopes(
    term: PairTerm, squared: Array, same: Array, parameters: tuple[Array, ...]
) -> tuple[Array, Array]:
    """The term of each pair and its derivative by the squared distance."""
    ones = jnp.ones_like(squared)
    return jax.jvp(lambda s: lift(term)(s, same, *parameters), (squared,), (ones,))


def _tiled_sums_forward(
    term: PairTerm,
    side: int,
    axis: Axis,
    points: CustomVJPPrimal,
    groups: CustomVJPPrimal,
    parameters: tuple[CustomVJPPrimal, ...],
) -> tuple[Array, Any]:
    all_points, values = _prepare(points.value, groups.value), tuple(p.value for p in parameters)

    def step(sums: Array, visit: tuple[Array, Array]) -> tuple[Array, Array]:
        visited, counted = visit
        rows, columns = (all_points.cut(index, side) for index in visited)
        squared, same, real = _pairs(rows, columns)
        real = real & counted
        terms, slopes = _slopes(term, squared, same, values)
        acts = jnp.any(real & (slopes != 0))
        return _add_both(sums, rows, columns, jnp.where(real, terms, 0.0)), acts

    visits = _visits(all_points.groups, side, axis)
    start = zeros_alike(all_points.vectors, all_points.groups.shape)
    sums, acts = jax.lax.scan(step, start, visits)
    # JAX keeps a traced function and may meet it again with other arguments differentiated: always the same residuals.
    learned = any(parameter.perturbed for parameter in parameters)
    return sums, (all_points, values, jnp.full((), learned), (acts | learned) & visits[1])


def _tiled_sums_backward(
    term: PairTerm, side: int, axis: Axis, saved: Any, cotangents: Array
) -> tuple[Array, None, tuple[Array, ...]]:
    gradient, slopes = _gradients(term, side, axis, *saved, cotangents)
    return gradient, None, slopes


_tiled_sums.defvjp(_tiled_sums_forward, _tiled_sums_backward, symbolic_zeros=True)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _gradients(
    term: PairTerm,
    side: int,
    axis: Axis,
    all_points: _Points,
    parameters: tuple[Array, ...],
    learned: Array,
    acts: Array,
    cotangents: Array,
) -> tuple[Array, tuple[Array, ...]]:
    """Gradients of the points from the tiles that act, and of the parameters where they are ``learned``, else 0."""

    def pull(rows: _Points, columns: _Points, totals: tuple[Array, ...]) -> Any:
        squared, same, real = _pairs(rows, columns)
        g_rows, g_columns = (
            jax.lax.dynamic_slice_in_dim(cotangents, part.start, side) for part in (rows, columns)
        )
        # A pair is a term of both its points' sums; on the diagonal each is met twice, once from either side.
        other = rows.start != columns.start
        received = g_rows[:, None] + g_columns[None, :]

        def to_parameters(totals: tuple[Array, ...]) -> tuple[Array, ...]:
            share = jnp.where(real, received, 0.0) * jnp.where(other, 1.0, 0.5)
            _, pullback = jax.vjp(lambda *p: lift(term)(squared, same, *p), *parameters)
            return tuple(t + part for t, part in zip(totals, pullback(share), strict=True))

        totals = jax.lax.cond(learned, to_parameters, lambda totals: totals, totals)
        _, slopes = _slopes(term, squared, same, parameters)
        force = jnp.where(real, slopes * received, 0.0)  # the 2 of the square comes last
        on_rows = force.sum(1)[:, None] * rows.vectors - _product(force, columns.vectors)

        def of_columns() -> Array:
            return force.sum(0)[:, None] * columns.vectors - _product(force.T, rows.vectors)

        return on_rows, jax.lax.cond(other, of_columns, lambda: jnp.zeros_like(on_rows)), totals

    # Only the tiles that act, one after the other: a branch would copy what it is handed on a GPU, and that is all.
    visits = _visits(all_points.groups, side, axis)[0][jnp.argsort(~acts, stable=True)]

    def step(turn: Array, carried: Any) -> Any:
        gradient, totals = carried
        rows, columns = (all_points.cut(index, side) for index in visits[turn])
        on_rows, on_columns, totals = pull(rows, columns, totals)
        gradient = _add(_add(gradient, rows.start, on_rows), columns.start, on_columns)
        return gradient, totals

    vectors = all_points.vectors
    start = zeros_alike(vectors, vectors.shape), tuple(zeros_alike(vectors, ()) for _ in parameters)
    gradient, totals = jax.lax.fori_loop(0, acts.sum(), step, start)
    return gradient * (2.0 * all_points.scale), totals


@_gradients.defjvp
def _no_second_derivatives(
    term: PairTerm, side: int, axis: Axis, primals: Any, tangents: Any
) -> Any:
    raise NotImplementedError(
        "a streamed sum over pairs (potential_field_loss, contrastive_potential_loss, pair_sums) has first derivatives "
        "only: its gradient cannot be differentiated again"
    )


def _product(x: Array, y: Array) -> Array:
    return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)
