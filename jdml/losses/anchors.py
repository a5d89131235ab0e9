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
from jdml.ops.pairwise import Narrow, NarrowPair, centre_of
from jdml.ops.reductions import ratio, reduced_by_rows, sum_rows

__all__ = ["Anchors", "Comparison"]

Tree = Any

PairTerms = tuple[tuple[Array, Array], ...]
"""Kinds of pairs: values ``[B, R]``, and which pairs have one."""


class Comparison(NamedTuple):
    """Some anchors, or all of them, against all references."""

    embeddings: Array  # [B, D], normalized; rows that are not valid are 0
    references: Array  # [R, D], likewise
    labels: Array | None  # [B], None where the pairs are given by a mask
    pairs: Pairs  # which take part
    rows: Array  # [B], the valid anchors
    weights: Array  # [B, 1] or [B, R]
    shifted: Array | None  # [B, D], the anchors as seen from the centre of the targets
    targets: "Shifted | None"  # the references for distances, where no vector is longer than 1
    extra: Array | None = None  # [B], a number of the loss's own for each anchor
    on_sphere: bool = False  # whether all vectors are of norm 1 (or 0)
    narrow: NarrowPair = None  # what embeddings and references are multiples of
    mined: bool = False  # whether a miner has computed distances

    @property
    def similarities(self) -> Array:
        """``[B, R]`` inner products: cosines on the sphere. A miner's distances share their product."""
        if (
            not self.mined
            or self.narrow is not None
            or self.shifted is None
            or self.targets is None
        ):
            return ops.similarities(self.embeddings, self.references, self.narrow)
        vectors, _, centre = self.targets
        along = ops.similarities(self.embeddings, centre[None])
        offsets = ops.similarities(centre[None], vectors)
        return ops.similarities(self.shifted, vectors) + along + offsets

    @property
    def squared_distances(self) -> Array:
        """``[B, R]``."""
        return ops.squared_distances(*self._shifted)

    @property
    def distances(self) -> Array:
        """``[B, R]``, Euclidean."""
        return ops.distances(*self._shifted)

    @property
    def from_centre(self) -> tuple[Array, Array, Array]:
        """Anchors ``[B, D]`` and references ``[R, D]`` as seen from a centre, and that centre ``[D]``."""
        if self.shifted is None or self.targets is None:
            return self.embeddings, self.references, jnp.zeros_like(self.references[0])
        return self.shifted, self.targets.vectors, self.targets.centre

    @property
    def _shifted(self) -> tuple[Any, ...]:
        if self.shifted is None or self.targets is None:
            return self.embeddings, self.references
        vectors, squares, centre = self.targets
        own = self.shifted
        own_squares = squares if own is vectors else _squares(own, centre, self.on_sphere)
        return own, vectors, squares, own_squares, self.narrow

    @property
    def row_weights(self) -> Array:
        """``[B]``; weights per pair make no sense where the terms are anchors."""
        if self.weights.shape[1:] != (1,):
            raise ValueError(
                f"weights must have shape [B] = [{self.rows.size}] where a loss has one term per anchor, "
                f"got {list(self.weights.shape)}"
            )
        return self.weights[:, 0]


class Shifted(NamedTuple):
    """References ``[R, D]`` as seen from a centre ``[D]``, so that distances lose no digits by an offset they share.

    ``squares [R]`` are their squared norms.
    """

    vectors: Array
    squares: Array
    centre: Array

    @classmethod
    def of(
        cls, references: Array, valid: Array, on_sphere: bool, narrow: Narrow | None
    ) -> "Shifted":
        """Shift references, but for those that products take as multiples of narrow vectors."""
        centre = centre_of(references, valid)
        centre = centre if narrow is None else jnp.zeros_like(centre)
        vectors = references - centre[None]
        return cls(vectors, _squares(vectors, centre, on_sphere), centre)


def _squares(vectors: Array, centre: Array, on_sphere: bool) -> Array:
    """Squared norms: constants on the sphere, if that is where the centre is."""
    squares = jnp.sum(vectors * vectors, axis=-1)
    if not on_sphere:
        return squares
    return jnp.where(jnp.any(centre != 0), squares, jax.lax.stop_gradient(squares))


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
    partner: Array | None = None  # [B], the one positive, where neither labels nor a mask tells
    mined: Pairs | None = None  # [B, R], where a miner had to see them all
    extra: Array | None = None  # [B], a number of the loss's own
    narrow: Narrow | None = None  # [B, D], what the embeddings were before they were normalized


@dataclasses.dataclass(frozen=True)
class Anchors:
    """All anchors and what they are compared with."""

    rows: Rows  # what there is one of for each anchor
    references: Array  # [R, D], normalized
    reference_labels: Array | None  # [R], None where a mask or the places tell
    reference_ids: Array | None  # [R], None where nothing tells which samples are the same
    columns: Array  # [R], the valid references
    own_batch: bool  # whether the references are the batch itself
    mine: Miner | None
    key: Array | None
    block: int | None  # how many anchors are compared at a time, None for all
    axis: Axis  # over which devices the anchors are spread
    targets: Shifted | None  # the references for distances, where no vector is longer than 1
    prepare: Callable[[Array, Array], Array] | None  # for embeddings of valid rows, by blocks
    on_sphere: bool  # whether all vectors are of norm 1 (or 0)
    narrow: Narrow | None = None  # what references of 16 bits are multiples of

    @property
    def at_once(self) -> bool:
        """Whether there is one block, the whole batch against itself."""
        return self.own_batch and self.block is None and not self.axis.names

    def over_blocks(self, function: Callable[[Comparison], tuple[Tree, Tree]]) -> tuple[Tree, Tree]:
        """Apply a function with results per anchor ``[B, …]``, and per block, stacked along a new first axis."""
        return self._map_rows(function, self.axis)

    def each(self, function: Callable[[Comparison], Tree]) -> Tree:
        """Apply a function that gives one result per anchor: all of them ``[B, …]``."""
        return self.over_blocks(lambda c: (function(c), ()))[0]

    def add_own(self, of_references: Array, of_anchors: Array) -> Array:
        """Put the anchors' own numbers ``[B]`` among those of the references ``[R]``, where ``self_index`` tells."""
        if self.rows.self_index is None:
            return of_references
        places, valid = self.axis.rows((self.rows.self_index, self.rows.valid))
        places = jnp.where(valid & (places >= 0), places, len(of_references))  # beyond: dropped
        return of_references.at[places].set(of_anchors, mode="drop")

    def reduce_rows(self, reduce_fn: ReduceFn | None, terms: Callable[[Comparison], Any]) -> Array:
        """Weight and reduce one term per anchor: ``terms`` gives ``[B]``, or also which of the anchors have one."""

        def weighted(c: Comparison) -> tuple[Array, Array]:
            result = terms(c)
            values, some = result if isinstance(result, tuple) else (result, c.rows)
            some = some & c.rows
            return jnp.where(some, values, 0.0) * c.row_weights, some

        return reduce_whole(self.axis, reduce_fn, *self.each(weighted))

    def reduce_groups(
        self,
        reduce_fn: ReduceFn | None,
        terms: Callable[[Comparison], tuple[Array, Array, Array]],
    ) -> Array:
        """Weight and reduce a sum per anchor as if each of its terms stood alone.

        ``terms`` gives the sums ``[B]``, how many terms they have, and how many are not zero.
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

        The library's own reductions need one number per anchor; any other function sees the whole matrix.
        """

        def weighted(c: Comparison) -> list[tuple[Array, Array]]:
            return [(jnp.where(some, v, 0.0) * c.weights, some) for v, some in terms(c)]

        if reduced_by_rows(reduce_fn):
            kinds = self.each(lambda c: [sum_rows(reduce_fn, *kind) for kind in weighted(c)])
            value = sum(ratio(sums.sum(), counts.sum()) for sums, counts in kinds)
            return self.axis.psum_once(jnp.asarray(value))
        if reduce_fn is None and not self.axis.whole:
            (kinds, _) = self._map_rows(lambda c: (weighted(c), ()), NOWHERE)
            return jnp.asarray(sum(ops.reduce_terms(None, *kind) for kind in kinds))
        value = sum(ops.reduce_terms(reduce_fn, *kind) for kind in self.each(weighted))
        return self.axis.psum_once(jnp.asarray(value))

    def _map_rows(self, function: Callable[[Comparison], Any], axis: Axis) -> tuple[Tree, Tree]:
        ready = self if self.mine is None or is_by_rows(self.mine) else self._mined_at_once()
        rows = ready.rows
        if self.block is not None and self.own_batch:
            rows = rows._replace(embeddings=None)  # they are among the references
        return over_rows(
            lambda rows: function(ready._compare(rows)), rows, block=self.block, axis=axis
        )

    def _vectors(self, rows: Rows) -> Array:
        """The normalized vectors of some rows, without a copy of all of them."""
        if rows.embeddings is None:
            return self._among(self.references, rows)
        if self.prepare is not None:
            return self.prepare(rows.embeddings, rows.valid)
        return rows.embeddings

    def _shifted(self, rows: Rows, vectors: Array) -> Array | None:
        """Return the vectors as seen from the references' centre."""
        if self.targets is None:
            return None
        if vectors is self.references:
            return self.targets.vectors
        if rows.embeddings is None:
            return self._among(self.targets.vectors, rows)
        return vectors - self.targets.centre[None]

    def _among(self, references: Array, rows: Rows) -> Array:
        """Return the anchors' own vectors, which are among the references; beyond their end any rows."""
        size, start = len(rows.place), rows.place[0]
        first = jnp.minimum(start, len(references) - size)
        own = jax.lax.dynamic_slice_in_dim(references, first, size)
        return own if len(self.rows.place) % size == 0 else jnp.roll(own, first - start, axis=0)

    def _compare(self, rows: Rows) -> Comparison:
        """Compare some rows with all references, and mine their pairs."""
        c = self._with_all_pairs(rows)
        if rows.mined is not None:
            return c._replace(pairs=rows.mined)
        if self.mine is None:
            return c
        keys = None if self.key is None else row_keys(self.key, rows.place)
        return c._replace(pairs=_mine(self.mine, keys, c.distances, c.pairs))

    def _with_all_pairs(self, rows: Rows) -> Comparison:
        vectors = self._vectors(rows)
        return Comparison(
            vectors,
            self.references,
            rows.labels,
            self._pairs(rows),
            rows.valid,
            rows.weights,
            self._shifted(rows, vectors),
            self.targets,
            rows.extra,
            self.on_sphere,
            None if rows.narrow is None or self.narrow is None else (rows.narrow, self.narrow),
            self.mine is not None,
        )

    def _pairs(self, rows: Rows) -> Pairs:
        """The pairs that labels, or a mask in their place, make of rows and references."""
        places = jnp.arange(len(self.references))[None, :]
        counted = rows.valid[:, None] & self.columns[None, :]
        itself = rows.place if self.own_batch else rows.self_index
        if itself is not None:
            counted = counted & (places != itself[:, None])
        if rows.ids is not None and self.reference_ids is not None:
            ids = rows.ids[:, None]
            again = (ids >= 0) & (ids == self.reference_ids[None, :])
            if rows.partner is not None:  # which is the row's positive, whatever its id
                again = again & (places != rows.partner[:, None])
            counted = counted & ~again
        if rows.positive is not None:
            same = rows.positive
        elif rows.partner is not None:
            same = places == rows.partner[:, None]
        else:
            assert rows.labels is not None
            assert self.reference_labels is not None
            same = rows.labels[:, None] == self.reference_labels[None, :]
        return Pairs(same & counted, ~same & counted)

    def _mined_at_once(self) -> "Anchors":
        """Anchors whose pairs are mined: where a miner must see the distances of the whole batch."""
        rows = self.axis.gather(self.rows) if self.axis.names else self.rows
        c = self._with_all_pairs(rows)
        assert self.mine is not None
        mined = _mine(self.mine, self.key, c.distances, c.pairs)
        local = dataclasses.replace(self.axis, whole=False)
        own = Pairs(local.local_slice(mined.positive), local.local_slice(mined.negative))
        return dataclasses.replace(self, rows=self.rows._replace(mined=own))


def reduce_whole(axis: Axis, reduce_fn: ReduceFn | None, terms: Array, where: Array) -> Array:
    """Reduce the terms of the whole batch; unreduced, a device keeps its own."""
    reduced = ops.reduce_terms(reduce_fn, terms, where)
    return axis.local_slice(reduced) if reduce_fn is None else axis.psum_once(reduced)


def _mine(mine: Miner, key: Array | None, distances: Array, pairs: Pairs) -> Pairs:
    mined = mine(key, jax.lax.stop_gradient(distances), pairs)
    if not isinstance(mined, Pairs):
        raise TypeError(f"mine must return Pairs(positive, negative), got {type(mined).__name__}")
    for name, mask in (("positive", mined.positive), ("negative", mined.negative)):
        checks.check_mask(f"what mine returned as {name}", mask, distances.shape)
    complete = (mined.positive.any(-1) & mined.negative.any(-1))[:, None]
    return Pairs(
        mined.positive & pairs.positive & complete, mined.negative & pairs.negative & complete
    )
