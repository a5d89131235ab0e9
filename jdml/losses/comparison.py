"""What every pair loss begins with: normalized vectors, their valid pairs, and the miner's choice among them.

A pair loss is a function of one anchor's row of pairs. :func:`compare` prepares the rows; :class:`Anchors` applies the
function to all of them at once, or to some at a time, or on each device of a mesh to its own.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jdml import ops
from jdml.mining import Miner, Pairs, check_miner, is_by_rows, row_keys
from jdml.ops import ReduceFn, checks
from jdml.ops.blocks import Block, block_size, over_rows
from jdml.ops.meshes import NOWHERE, Axis, as_axis
from jdml.ops.reductions import ratio, reduced_by_rows, sum_rows
from jdml.ops.stable import accumulate_in, widen

Normalize = Callable[[Array], Array]
Tree = Any
PairTerms = tuple[tuple[Array, Array], ...]
"""Kinds of pairs: values ``[B, R]``, and which pairs have one."""


class Comparison(NamedTuple):
    """Some anchors, or all of them, against all references.

    Attributes:
        embeddings: ``[B, D]``, normalized; rows that are not valid are 0.
        references: ``[R, D]``, likewise.
        labels: ``[B]``, or None where the pairs are given by a mask.
        pairs: which pairs take part.
        rows: ``[B]``, the valid anchors.
        weights: ``[B, 1]`` or ``[B, R]``.
        squares: ``[R]``, the references' squared norms, where no vector is longer than 1; else None, as they may
            overflow.
        brought: ``[B]``, what the loss itself brought for each anchor (:meth:`Anchors.bring`), or None.
    """

    embeddings: Array
    references: Array
    labels: Array | None
    pairs: Pairs
    rows: Array
    weights: Array
    squares: Array | None
    brought: Array | None = None

    @property
    def similarities(self) -> Array:
        """``[B, R]`` inner products: cosines on the sphere."""
        return ops.similarities(self.embeddings, self.references)

    @property
    def squared_distances(self) -> Array:
        """``[B, R]``."""
        return ops.squared_distances(self.embeddings, self.references, self.squares)

    @property
    def distances(self) -> Array:
        """``[B, R]``, Euclidean."""
        return _distances(self.embeddings, self.references, self.squares)

    @property
    def row_weights(self) -> Array:
        """``[B]``; weights per pair make no sense where the terms are anchors."""
        if self.weights.shape[1:] != (1,):
            raise ValueError(
                f"weights must have shape [B] = [{self.rows.size}] where a loss has one term per anchor, "
                f"got {list(self.weights.shape)}"
            )
        return self.weights[:, 0]


class _Rows(NamedTuple):
    """What there is one of for each anchor."""

    embeddings: Array | None  # [B, D]
    place: Array  # [B], its place in the batch of all devices
    valid: Array  # [B]
    labels: Array | None  # [B]
    self_index: Array | None  # [B]
    positive: Array | None  # [B, R]
    weights: Array  # [B, 1] or [B, R]
    partner: Array | None = (
        None  # [B], the one positive of each, where neither labels nor a mask tells
    )
    mined: Pairs | None = None  # [B, R], where a miner had to see them all
    brought: Array | None = None  # [B], a number of the loss's own


@dataclasses.dataclass(frozen=True)
class Anchors:
    """All anchors and what they are compared with.

    Attributes:
        rows: what there is one of for each anchor.
        references: ``[R, D]``, normalized.
        reference_labels: ``[R]``, or None where row i's positive is reference i, or a mask tells.
        columns: ``[R]``, the valid references.
        own_batch: whether the references are the batch itself.
        mine: the miner.
        key: its key.
        block: how many anchors are compared at a time, None for all.
        axis: over which devices the anchors are spread.
        squares: ``[R]``, their squared norms, where no vector is longer than 1; else None.
        prepare: what is left to be done to embeddings of valid rows, block by block.
    """

    rows: _Rows
    references: Array
    reference_labels: Array | None
    columns: Array
    own_batch: bool
    mine: Miner | None
    key: Array | None
    block: int | None
    axis: Axis
    squares: Array | None
    prepare: Callable[[Array, Array], Array] | None

    def bring(self, values: Array) -> "Anchors":
        """Let each anchor have a number of the loss's own: ``values [B]``, :attr:`Comparison.brought` of a block."""
        return dataclasses.replace(self, rows=self.rows._replace(brought=values))

    def over_blocks(self, function: Callable[[Comparison], tuple[Tree, Tree]]) -> tuple[Tree, Tree]:
        """Apply a function to one block of anchors after the other, computed again for its gradient.

        Args:
            function: from a block to a pair: one result per anchor, and results of the block as a whole.

        Returns:
            The results of all anchors ``[B, …]``, and those of the blocks, stacked along a new first axis; on a mesh
            the same on every device.
        """
        return self._mapped(function, self.axis)

    def each(self, function: Callable[[Comparison], Tree]) -> Tree:
        """Apply a function that gives one result per anchor: all of them ``[B, …]``."""
        return self.over_blocks(lambda c: (function(c), ()))[0]

    def reduce_rows(self, reduce_fn: ReduceFn | None, terms: Callable[[Comparison], Any]) -> Array:
        """Weight and reduce one term per anchor.

        Args:
            reduce_fn: as for :func:`jdml.ops.reduce_terms`.
            terms: from a block to ``[B]``, or to ``[B]`` and which of the anchors have a term.

        Returns:
            A scalar, or ``[B]``.
        """

        def weighted(c: Comparison) -> tuple[Array, Array]:
            found = terms(c)
            values, some = found if isinstance(found, tuple) else (found, c.rows)
            some = some & c.rows
            return jnp.where(some, values, 0.0) * c.row_weights, some

        return self._reduced(reduce_fn, *self.each(weighted))

    def reduce_groups(
        self,
        reduce_fn: ReduceFn | None,
        terms: Callable[[Comparison], tuple[Array, Array, Array]],
    ) -> Array:
        """Weight and reduce a sum per anchor as if each of its terms stood alone.

        Args:
            reduce_fn: as for :func:`jdml.ops.reduce_groups`.
            terms: from a block to the sums ``[B]``, how many terms they have, and how many are not zero.

        Returns:
            A scalar, or ``[B]``.
        """

        def weighted(c: Comparison) -> tuple[Array, Array, Array]:
            sums, number, nonzero = terms(c)
            nonzero = jnp.where(c.row_weights != 0, nonzero, 0)
            return jnp.where(number > 0, sums, 0.0) * c.row_weights, number, nonzero

        sums, number, nonzero = self.each(weighted)
        if reduce_fn is None:
            return self.axis.own(ops.reduce_terms(None, sums, number > 0))
        return self.axis.once(
            ops.reduce_groups(reduce_fn, sums, number > 0, terms=number, nonzero=nonzero)
        )

    def reduce_pairs(
        self,
        reduce_fn: ReduceFn | None,
        terms: Callable[[Comparison], PairTerms],
    ) -> Array:
        """Weight one term per pair, reduce each kind of pairs, and add these up.

        Args:
            reduce_fn: as for :func:`jdml.ops.reduce_terms`. :func:`jdml.total`, :func:`jdml.mean` and
                :func:`jdml.mean_nonzero` need one number per anchor; any other function sees the whole matrix.
            terms: from a block to kinds of pairs, each values ``[B, R]`` and which pairs have one.

        Returns:
            A scalar, or ``[B, R]``.
        """

        def weighted(c: Comparison) -> list[tuple[Array, Array]]:
            return [(jnp.where(some, v, 0.0) * c.weights, some) for v, some in terms(c)]

        if reduced_by_rows(reduce_fn):
            kinds = self.each(lambda c: [sum_rows(reduce_fn, *kind) for kind in weighted(c)])
            value = sum(ratio(sums.sum(), counts.sum()) for sums, counts in kinds)
            return self.axis.once(jnp.asarray(value))
        if reduce_fn is None and not self.axis.whole:
            (kinds, _) = self._mapped(lambda c: (weighted(c), ()), NOWHERE)
            return jnp.asarray(sum(ops.reduce_terms(None, *kind) for kind in kinds))
        value = sum(ops.reduce_terms(reduce_fn, *kind) for kind in self.each(weighted))
        return self.axis.once(jnp.asarray(value))

    def _reduced(self, reduce_fn: ReduceFn | None, values: Array, where: Array) -> Array:
        reduced = ops.reduce_terms(reduce_fn, values, where)
        return self.axis.own(reduced) if reduce_fn is None else self.axis.once(reduced)

    def _mapped(self, function: Callable[[Comparison], Any], axis: Axis) -> tuple[Tree, Tree]:
        ready = self if self.mine is None or is_by_rows(self.mine) else self._mined_at_once()
        rows = ready.rows
        if self.block is not None and self.own_batch:
            rows = rows._replace(embeddings=None)  # they are among the references
        return over_rows(
            lambda rows: function(ready._compared(rows)), rows, block=self.block, axis=axis
        )

    def _vectors(self, rows: _Rows) -> Array:
        """The normalized vectors of some rows, without a copy of all of them."""
        if rows.embeddings is None:
            size = len(rows.place)
            whole_blocks = len(self.rows.place) % size == 0
            return _slice(self.references, rows.place[0], size, whole_blocks)
        if self.prepare is not None:
            return self.prepare(rows.embeddings, rows.valid)
        return rows.embeddings

    def _compared(self, rows: _Rows) -> Comparison:
        pairs = self._pairs(rows) if rows.mined is None else rows.mined
        vectors = self._vectors(rows)
        if self.mine is not None and rows.mined is None:
            distances = _distances(vectors, self.references, self.squares)
            keys = None if self.key is None else row_keys(self.key, rows.place)
            pairs = _mined(self.mine, keys, jax.lax.stop_gradient(distances), pairs)
        return Comparison(
            vectors,
            self.references,
            rows.labels,
            pairs,
            rows.valid,
            rows.weights,
            self.squares,
            rows.brought,
        )

    def _pairs(self, rows: _Rows) -> Pairs:
        """The pairs that labels, or a mask in their place, make of rows and references."""
        places = jnp.arange(len(self.references))[None, :]
        kept = rows.valid[:, None] & self.columns[None, :]
        itself = rows.place if self.own_batch else rows.self_index
        if itself is not None:
            kept = kept & (places != itself[:, None])
        if rows.positive is not None:
            same = rows.positive
        elif rows.partner is not None:
            same = places == rows.partner[:, None]
        else:
            assert rows.labels is not None
            assert self.reference_labels is not None
            same = rows.labels[:, None] == self.reference_labels[None, :]
        return Pairs(same & kept, ~same & kept)

    def _mined_at_once(self) -> "Anchors":
        """Anchors whose pairs are mined: where a miner must see the distances of the whole batch."""
        rows = self.axis.gather(self.rows) if self.axis.names else self.rows
        pairs = self._pairs(rows)
        distances = _distances(self._vectors(rows), self.references, self.squares)
        distances = jax.lax.stop_gradient(distances)
        assert self.mine is not None
        mined = _mined(self.mine, self.key, distances, pairs)
        local = dataclasses.replace(self.axis, whole=False)
        own = Pairs(local.own(mined.positive), local.own(mined.negative))
        return dataclasses.replace(self, rows=self.rows._replace(mined=own))


def compare(
    embeddings: Array,
    labels: Array | None,
    *,
    references: Array | None = None,
    reference_labels: Array | None = None,
    reference_where: Array | None = None,
    self_index: Array | None = None,
    positive: Array | None = None,
    mine: Miner | None = None,
    key: Array | None = None,
    normalize: Normalize | None = ops.sphere,
    where: Array | None = None,
    weights: Array | None = None,
    anchor_block: Block = "auto",
    axis_name: str | tuple[str, ...] | None = None,
) -> Anchors:
    """Check the arguments of a pair loss, normalize its vectors, and say which are its pairs.

    Args:
        embeddings: ``[B, D]`` anchors.
        labels: ``[B]`` integers, or None where ``positive`` is given.
        references: ``[R, D]``, what the anchors are compared with; default: the batch itself, each sample excluded
            from its own row by index.
        reference_labels: ``[R]`` integers, the labels of ``references``.
        reference_where: ``[R]`` bool, the valid references; default all.
        self_index: ``[B]`` integers, where among ``references`` an anchor itself stands (-1: nowhere); that pair is
            left out.
        positive: ``[B, R]`` bool, given instead of labels: True for positive pairs, False for negative ones.
        mine: a miner, which chooses among the pairs (see :mod:`jdml.mining`); an anchor that is left without a
            positive or without a negative contributes nothing.
        key: a random key, for miners that draw.
        normalize: function applied to embeddings and references: :func:`jdml.sphere`, :func:`jdml.ball` or None.
        where: ``[B]`` bool, the valid rows; the others take no part in anything. Rows with a negative label are not
            valid either.
        weights: ``[B]``, or ``[B, R]`` where a loss has one term per pair: each term is multiplied by its weight
            before the reduction.
        anchor_block: how many anchors are compared at a time, in ``O(R × anchor_block)`` memory, each similarity being
            computed twice; None for all at once, ``"auto"`` for all while they are few. The result is the same. Where
            the terms are pairs, ``reduce_fn=None``, a trimmed mean and a function of one's own see all of them, and so
            does a miner of one's own its distances (unless it has an attribute ``by_rows = True``): these are whole
            matrices whatever the block.
        axis_name: inside a ``jax.shard_map``, the mesh axis over which the batch is spread: the rows of all devices
            are one batch, compared with the references of all devices (or with those that are the same on every one,
            as a memory's are). The value is the same on every device.

    Returns:
        The anchors.

    Raises:
        TypeError: arguments of the wrong kind (float labels, integer embeddings, masks that are not boolean).
        ValueError: shapes that do not fit, labels and ``positive`` both given or both missing, a missing ``key``.
    """
    checks.check_embeddings("embeddings", embeddings)
    axis = as_axis(axis_name)
    size = embeddings.shape[0]
    rows = valid_rows(labels, where, size)
    if references is None:
        if not (reference_labels is None and reference_where is None and self_index is None):
            raise ValueError(
                "reference_labels, reference_where and self_index need references, which is missing"
            )
        columns, spread = rows, True
    else:
        checks.check_embeddings(
            "references", references, dim=embeddings.shape[1], like="embeddings"
        )
        columns = _valid_columns(reference_where, reference_labels, references.shape[0])
        spread = axis.holds_part("references", references)
    dtype = accumulate_in(embeddings, embeddings if references is None else references)
    x = prepare("embeddings", embeddings, rows, normalize, dtype)
    r = x if references is None else prepare("references", references, columns, normalize, dtype)
    if spread:
        r, columns = axis.gather((r, columns))
    shape = (size, len(r))
    block = block_size(anchor_block, *shape)
    in_blocks = block is not None and references is not None
    _check_pairs(labels, reference_labels, positive, shape, own=references is None)
    if labels is not None:
        reference_labels = labels if references is None else reference_labels
        if spread:
            reference_labels = axis.gather(reference_labels)
    if self_index is not None:
        checks.check_labels("self_index", self_index, size)
    if mine is not None and not callable(mine):
        raise TypeError(f"mine must be a function (key, distances, pairs) -> Pairs, got {mine!r}")
    check_miner(mine)
    per_anchor = _Rows(
        embeddings if in_blocks else x,
        axis.index * size + jnp.arange(size, dtype=jnp.int32),
        rows,
        labels,
        self_index,
        None if positive is None else jnp.asarray(positive),
        _as_weights(weights, shape, dtype),
    )
    return Anchors(
        per_anchor,
        r,
        reference_labels,
        columns,
        references is None,
        mine,
        key,
        block,
        axis,
        jnp.sum(r * r, axis=-1) if normalize in (ops.sphere, ops.ball) else None,
        (lambda x, valid: prepare("embeddings", x, valid, normalize, dtype)) if in_blocks else None,
    )


def compare_towers(embeddings: Array, labels: Array | None, **options: Any) -> Anchors:
    """:func:`compare`, where without labels or a mask the positive of row i is reference i."""
    references = options["references"]
    if labels is not None or options["positive"] is not None or references is None:
        return compare(embeddings, labels, **options)
    checks.check_embeddings("embeddings", embeddings)
    checks.check_embeddings("references", references, dim=embeddings.shape[1], like="embeddings")
    if options["reference_labels"] is not None:
        raise ValueError("reference_labels need labels, which is missing")
    size, number = len(embeddings), len(references)
    if number < size:
        raise ValueError(
            f"references must have a row for each of the {size} embeddings where neither labels nor positive tells "
            f"which are positive, got {number}"
        )
    one, all_one = jnp.zeros(size, jnp.int32), jnp.zeros(number, jnp.int32)
    anchors = compare(embeddings, one, **{**options, "reference_labels": all_one})
    axis, rows = anchors.axis, anchors.rows
    spread = len(anchors.references) > number  # each device holds the partners of its rows
    partner = axis.index * number + jnp.arange(size) if spread else rows.place
    rows = rows._replace(labels=None, partner=partner.astype(jnp.int32))
    return dataclasses.replace(anchors, rows=rows, reference_labels=None)


def valid_rows(labels: Array | None, where: Array | None, size: int) -> Array:
    """``[size]`` bool: the rows that ``where`` keeps and whose label, if there are labels, is not negative."""
    rows = jnp.ones(size, bool)
    if where is not None:
        checks.check_mask("where", where, (size,))
        rows = jnp.asarray(where)
    if labels is None:
        return rows
    checks.check_labels("labels", labels, size)
    checks.require((labels >= 0) | ~rows, "labels[{row}] is {0}, expected 0 or more", labels)
    return rows & (labels >= 0)


def _valid_columns(where: Array | None, labels: Array | None, size: int) -> Array:
    columns = jnp.ones(size, bool)
    if where is not None:
        checks.check_mask("reference_where", where, (size,))
        columns = jnp.asarray(where)
    if labels is None:
        return columns
    checks.check_labels("reference_labels", labels, size)
    return columns & (labels >= 0)


def _check_pairs(
    labels: Array | None,
    reference_labels: Array | None,
    positive: Array | None,
    shape: tuple[int, int],
    *,
    own: bool,
) -> None:
    """Labels or a mask: one of them tells which pairs are positive."""
    if positive is not None:
        if labels is not None or reference_labels is not None:
            raise ValueError("positive is given instead of labels and reference_labels, got both")
        checks.check_mask("positive", positive, shape)
    elif labels is None:
        raise ValueError("labels is missing: give labels [B], or positive=[B, R] instead")
    elif reference_labels is None and not own:
        raise ValueError(
            "reference_labels is missing: references need labels [R], or positive=[B, R]"
        )


def prepare(
    name: str, vectors: Array, valid: Array, normalize: Normalize | None, dtype: jnp.dtype
) -> Array:
    """Widen, blank the rows that are not valid (whatever they hold), normalize."""
    vectors = widen(jnp.where(valid[:, None], vectors, 0), dtype)
    checks.require_finite(name, vectors)
    return vectors if normalize is None else normalize(vectors)


def _slice(vectors: Array, start: Array, size: int, inside: bool) -> Array:
    """Rows from a place on; unless all are ``inside``, what would lie beyond the end is any rows."""
    first = jnp.minimum(start, len(vectors) - size)
    rows = jax.lax.dynamic_slice_in_dim(vectors, first, size)
    return rows if inside else jnp.roll(rows, first - start, axis=0)


def _distances(x: Array, y: Array, y_squares: Array | None) -> Array:
    if y_squares is None:
        return ops.distances(x, y)
    return ops.safe_sqrt(ops.squared_distances(x, y, y_squares))


def _mined(mine: Miner, key: Array | None, distances: Array, pairs: Pairs) -> Pairs:
    mined = mine(key, distances, pairs)
    if not isinstance(mined, Pairs):
        raise TypeError(f"mine must return Pairs(positive, negative), got {type(mined).__name__}")
    for name, mask in (("positive", mined.positive), ("negative", mined.negative)):
        checks.check_mask(f"what mine returned as {name}", mask, distances.shape)
    complete = (mined.positive.any(-1) & mined.negative.any(-1))[:, None]
    return Pairs(
        mined.positive & pairs.positive & complete, mined.negative & pairs.negative & complete
    )


def _as_weights(weights: Array | None, shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    if weights is None:
        return jnp.ones((shape[0], 1), dtype)
    checks.check_weights("weights", weights, (shape[0],), shape)
    weights = jnp.asarray(weights, dtype)
    return weights[:, None] if weights.ndim == 1 else weights
