"""What every pair loss begins with: normalized vectors, their valid pairs, and the miner's choice among them."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jdml import ops
from jdml.mining import Miner, Pairs, all_pairs, check_miner
from jdml.ops import ReduceFn, checks
from jdml.ops.stable import accumulate_in, widen

Normalize = Callable[[Array], Array]


class Comparison(NamedTuple):
    """Anchors against references.

    Attributes:
        embeddings: ``[B, D]``, normalized; rows that are not valid are 0.
        references: ``[R, D]``, likewise.
        pairs: which pairs take part.
        rows: ``[B]``, the valid anchors.
        weights: ``[B, 1]`` or ``[B, R]``.
        own_batch: whether the references are the batch itself.
    """

    embeddings: Array
    references: Array
    pairs: Pairs
    rows: Array
    weights: Array
    own_batch: bool

    @property
    def similarities(self) -> Array:
        """``[B, R]`` inner products: cosines on the sphere."""
        return ops.similarities(self.embeddings, self.references)

    @property
    def squared_distances(self) -> Array:
        """``[B, R]``."""
        return ops.squared_distances(self.embeddings, self.references)

    @property
    def distances(self) -> Array:
        """``[B, R]``, Euclidean."""
        return ops.distances(self.embeddings, self.references)

    def reduce_pairs(self, reduce_fn: ReduceFn | None, values: Array, where: Array) -> Array:
        """Weight and reduce one value per pair."""
        return ops.reduce_terms(reduce_fn, jnp.where(where, values, 0.0) * self.weights, where)

    def reduce_rows(
        self, reduce_fn: ReduceFn | None, values: Array, where: Array | None = None
    ) -> Array:
        """Weight and reduce one value per anchor."""
        where = self.rows if where is None else self.rows & where
        return ops.reduce_terms(reduce_fn, jnp.where(where, values, 0.0) * self.row_weights, where)

    @property
    def row_weights(self) -> Array:
        """``[B]``; weights per pair make no sense where the terms are anchors."""
        if self.weights.shape[1:] != (1,):
            raise ValueError(
                f"weights must have shape [B] = [{self.rows.size}] where a loss has one term per anchor, "
                f"got {list(self.weights.shape)}"
            )
        return self.weights[:, 0]


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
) -> Comparison:
    """Check the arguments of a pair loss, normalize its vectors, find its pairs and mine them.

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

    Returns:
        The comparison.

    Raises:
        TypeError: arguments of the wrong kind (float labels, integer embeddings, masks that are not boolean).
        ValueError: shapes that do not fit, labels and ``positive`` both given or both missing, a missing ``key``.
    """
    checks.check_embeddings("embeddings", embeddings)
    size = embeddings.shape[0]
    rows = valid_rows(labels, where, size)
    if references is None:
        if not (reference_labels is None and reference_where is None and self_index is None):
            raise ValueError(
                "reference_labels, reference_where and self_index need references, which is missing"
            )
        columns, others = rows, ~jnp.eye(size, dtype=bool)
    else:
        checks.check_embeddings(
            "references", references, dim=embeddings.shape[1], like="embeddings"
        )
        columns = _valid_columns(reference_where, reference_labels, references.shape[0])
        others = _others(self_index, (size, references.shape[0]))
    kept = rows[:, None] & columns[None, :] & others
    pairs = _label_pairs(labels, reference_labels, positive, kept, own=references is None)

    dtype = accumulate_in(embeddings, embeddings if references is None else references)
    x = prepare("embeddings", embeddings, rows, normalize, dtype)
    r = x if references is None else prepare("references", references, columns, normalize, dtype)
    if mine is not None:
        pairs = _mined(mine, key, jax.lax.stop_gradient(ops.distances(x, r)), pairs)
    scale = _as_weights(weights, kept.shape, dtype)
    return Comparison(x, r, pairs, rows, scale, own_batch=references is None)


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


def _label_pairs(
    labels: Array | None,
    reference_labels: Array | None,
    positive: Array | None,
    kept: Array,
    *,
    own: bool,
) -> Pairs:
    """The pairs that labels make, or the mask given in their place, among those that are kept."""
    if positive is not None:
        if labels is not None or reference_labels is not None:
            raise ValueError("positive is given instead of labels and reference_labels, got both")
        checks.check_mask("positive", positive, kept.shape)
        same = jnp.asarray(positive)
    elif labels is None:
        raise ValueError("labels is missing: give labels [B], or positive=[B, R] instead")
    elif reference_labels is None and not own:
        raise ValueError(
            "reference_labels is missing: references need labels [R], or positive=[B, R]"
        )
    else:
        same = all_pairs(labels, labels if reference_labels is None else reference_labels).positive
    return Pairs(same & kept, ~same & kept)


def _others(self_index: Array | None, shape: tuple[int, ...]) -> Array:
    if self_index is None:
        return jnp.ones(shape, bool)
    checks.check_labels("self_index", self_index, shape[0])
    return jnp.arange(shape[1])[None, :] != self_index[:, None]


def prepare(
    name: str, vectors: Array, valid: Array, normalize: Normalize | None, dtype: jnp.dtype
) -> Array:
    """Widen, blank the rows that are not valid (whatever they hold), normalize."""
    vectors = widen(jnp.where(valid[:, None], vectors, 0), dtype)
    checks.require_finite(name, vectors)
    return vectors if normalize is None else normalize(vectors)


def _mined(mine: Miner, key: Array | None, distances: Array, pairs: Pairs) -> Pairs:
    if not callable(mine):
        raise TypeError(f"mine must be a function (key, distances, pairs) -> Pairs, got {mine!r}")
    check_miner(mine)
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
