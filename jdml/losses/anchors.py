"""Anchors and what they are compared with, all at once, or some at a time, or on each device of a mesh its own.

A pair loss is a function of one anchor's row of pairs, :class:`Comparison`; :class:`Anchors` applies it to all rows.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jdml import ops
from jdml.mining import Miner, Pairs, is_by_rows, row_keys
from jdml.ops import ReduceFn, checks
from jdml.ops.chunking import over_rows
from jdml.ops.meshes import NOWHERE, Axis
from jdml.ops.pairwise import Narrow, Narrowed
from jdml.ops.reductions import ratio, reduced_by_rows, sum_rows

__all__ = ["Anchors", "Comparison"]

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
        on_sphere: whether all vectors are of norm 1 (or 0).
        narrow: what both embeddings and references are multiples of, where there is such.
    """

    embeddings: Array
    references: Array
    labels: Array | None
    pairs: Pairs
    rows: Array
    weights: Array
    squares: Array | None
    brought: Array | None = None
    on_sphere: bool = False
    narrow: Narrowed = None

    @property
    def similarities(self) -> Array:
        """``[B, R]`` inner products: cosines on the sphere."""
        return ops.similarities(self.embeddings, self.references, self.narrow)

    @property
    def squared_distances(self) -> Array:
        """``[B, R]``."""
        return ops.squared_distances(
            self.embeddings, self.references, self.squares, self._own_squares, self.narrow
        )

    @property
    def distances(self) -> Array:
        """``[B, R]``, Euclidean."""
        return ops.distances(
            self.embeddings, self.references, self.squares, self._own_squares, self.narrow
        )

    @property
    def _own_squares(self) -> Array:
        own = jnp.sum(self.embeddings * self.embeddings, axis=-1)
        return jax.lax.stop_gradient(own) if self.on_sphere else own  # a constant there

    @property
    def row_weights(self) -> Array:
        """``[B]``; weights per pair make no sense where the terms are anchors."""
        if self.weights.shape[1:] != (1,):
            raise ValueError(
                f"weights must have shape [B] = [{self.rows.size}] where a loss has one term per anchor, "
                f"got {list(self.weights.shape)}"
            )
        return self.weights[:, 0]


class Rows(NamedTuple):
    """Arrays with an entry for each anchor."""

    embeddings: Array | None  # [B, D]
    place: Array  # [B], its place in the batch of all devices
    valid: Array  # [B]
    labels: Array | None  # [B]
    self_index: Array | None  # [B]
    ids: Array | None  # [B]
    positive: Array | None  # [B, R]
    weights: Array  # [B, 1] or [B, R]
    partner: Array | None = (
        None  # [B], the one positive of each, where neither labels nor a mask tells
    )
    mined: Pairs | None = None  # [B, R], where a miner had to see them all
    brought: Array | None = None  # [B], a number of the loss's own
    narrow: Narrow | None = None  # [B, D], what the embeddings were before they were normalized


@dataclasses.dataclass(frozen=True)
class Anchors:
    """All anchors and what they are compared with.

    Attributes:
        rows: what there is one of for each anchor.
        references: ``[R, D]``, normalized.
        reference_labels: ``[R]``, or None where row i's positive is reference i, or a mask tells.
        reference_ids: ``[R]``, or None where nothing tells which samples are the same.
        columns: ``[R]``, the valid references.
        own_batch: whether the references are the batch itself.
        mine: the miner.
        key: its key.
        block: how many anchors are compared at a time, None for all.
        axis: over which devices the anchors are spread.
        squares: ``[R]``, their squared norms, where no vector is longer than 1; else None.
        prepare: what is left to be done to embeddings of valid rows, block by block.
        on_sphere: whether all vectors are of norm 1 (or 0).
        narrow: what the references are multiples of, where anchors and they were of 16 bits.
    """

    rows: Rows
    references: Array
    reference_labels: Array | None
    reference_ids: Array | None
    columns: Array
    own_batch: bool
    mine: Miner | None
    key: Array | None
    block: int | None
    axis: Axis
    squares: Array | None
    prepare: Callable[[Array, Array], Array] | None
    on_sphere: bool
    narrow: Narrow | None = None

    @property
    def at_once(self) -> bool:
        """Whether there is one block, the whole batch against itself."""
        return self.own_batch and self.block is None and not self.axis.names

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

    def put_own(self, of_references: Array, of_anchors: Array) -> Array:
        """Put the anchors' own numbers ``[B]`` among those of the references ``[R]``, where ``self_index`` tells."""
        if self.rows.self_index is None:
            return of_references
        places, valid = self.axis.rows((self.rows.self_index, self.rows.valid))
        places = jnp.where(valid & (places >= 0), places, len(of_references))  # beyond: dropped
        return of_references.at[places].set(of_anchors, mode="drop")

    def reduce_rows(self, reduce_fn: ReduceFn | None, terms: Callable[[Comparison], Any]) -> Array:
        """Weight and reduce one term per anchor.

        Args:
            reduce_fn: as for :func:`jdml.ops.reduce_terms`.
            terms: from a block to ``[B]``, or to ``[B]`` and which of the anchors have a term.

        Returns:
            A scalar, or ``[B]``.
        """

        def weighted(c: Comparison) -> tuple[Array, Array]:
            told = terms(c)
            values, some = told if isinstance(told, tuple) else (told, c.rows)
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
            return self.axis.local_slice(ops.reduce_terms(None, sums, number > 0))
        return self.axis.psum_once(
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
            return self.axis.psum_once(jnp.asarray(value))
        if reduce_fn is None and not self.axis.whole:
            (kinds, _) = self._mapped(lambda c: (weighted(c), ()), NOWHERE)
            return jnp.asarray(sum(ops.reduce_terms(None, *kind) for kind in kinds))
        value = sum(ops.reduce_terms(reduce_fn, *kind) for kind in self.each(weighted))
        return self.axis.psum_once(jnp.asarray(value))

    def _reduced(self, reduce_fn: ReduceFn | None, values: Array, where: Array) -> Array:
        reduced = ops.reduce_terms(reduce_fn, values, where)
        return self.axis.local_slice(reduced) if reduce_fn is None else self.axis.psum_once(reduced)

    def _mapped(self, function: Callable[[Comparison], Any], axis: Axis) -> tuple[Tree, Tree]:
        ready = self if self.mine is None or is_by_rows(self.mine) else self._mined_at_once()
        rows = ready.rows
        if self.block is not None and self.own_batch:
            rows = rows._replace(embeddings=None)  # they are among the references
        return over_rows(
            lambda rows: function(ready._compared(rows)), rows, block=self.block, axis=axis
        )

    def _vectors(self, rows: Rows) -> Array:
        """The normalized vectors of some rows, without a copy of all of them."""
        if rows.embeddings is None:
            size = len(rows.place)
            whole_blocks = len(self.rows.place) % size == 0
            return _slice(self.references, rows.place[0], size, whole_blocks)
        if self.prepare is not None:
            return self.prepare(rows.embeddings, rows.valid)
        return rows.embeddings

    def _compared(self, rows: Rows) -> Comparison:
        pairs = self._pairs(rows) if rows.mined is None else rows.mined
        vectors = self._vectors(rows)
        if self.mine is not None and rows.mined is None:
            narrow = self._narrow(rows)
            distances = ops.distances(vectors, self.references, self.squares, narrow=narrow)
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
            self.on_sphere,
            self._narrow(rows),
        )

    def _narrow(self, rows: Rows) -> Narrowed:
        return None if rows.narrow is None or self.narrow is None else (rows.narrow, self.narrow)

    def _pairs(self, rows: Rows) -> Pairs:
        """The pairs that labels, or a mask in their place, make of rows and references."""
        places = jnp.arange(len(self.references))[None, :]
        kept = rows.valid[:, None] & self.columns[None, :]
        itself = rows.place if self.own_batch else rows.self_index
        if itself is not None:
            kept = kept & (places != itself[:, None])
        if rows.ids is not None and self.reference_ids is not None:
            ids = rows.ids[:, None]
            again = (ids >= 0) & (ids == self.reference_ids[None, :])
            if rows.partner is not None:  # which is the row's positive, whatever its id
                again = again & (places != rows.partner[:, None])
            kept = kept & ~again
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
        distances = ops.distances(
            self._vectors(rows), self.references, self.squares, narrow=self._narrow(rows)
        )
        distances = jax.lax.stop_gradient(distances)
        assert self.mine is not None
        mined = _mined(self.mine, self.key, distances, pairs)
        local = dataclasses.replace(self.axis, whole=False)
        own = Pairs(local.local_slice(mined.positive), local.local_slice(mined.negative))
        return dataclasses.replace(self, rows=self.rows._replace(mined=own))


def _slice(vectors: Array, start: Array, size: int, inside: bool) -> Array:
    """Rows from a place on; unless all are ``inside``, what would lie beyond the end is any rows."""
    first = jnp.minimum(start, len(vectors) - size)
    rows = jax.lax.dynamic_slice_in_dim(vectors, first, size)
    return rows if inside else jnp.roll(rows, first - start, axis=0)


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
