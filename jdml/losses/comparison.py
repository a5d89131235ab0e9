"""The beginning of every pair loss: normalized vectors, their valid pairs, and the miner's choice among them."""

import dataclasses
from collections.abc import Callable
from typing import TypedDict, Unpack

import jax.numpy as jnp
from jax import Array

from jdml import ops
from jdml.losses.anchors import Anchors, Rows, Shifted
from jdml.mining import Miner, check_miner
from jdml.ops import checks
from jdml.ops.chunking import Block, block_size, by_platform
from jdml.ops.meshes import as_axis
from jdml.ops.numerics import accumulate_in, upcast
from jdml.ops.pairwise import Narrow

__all__ = ["compare"]

Normalize = Callable[[Array], Array]


class CompareOptions(TypedDict, total=False):
    """The keywords of :func:`compare`, which every pair loss takes besides its own."""

    references: Array | None
    reference_labels: Array | None
    reference_where: Array | None
    self_index: Array | None
    ids: Array | None
    reference_ids: Array | None
    positive: Array | None
    mine: Miner | None
    key: Array | None
    normalize: Normalize | None
    where: Array | None
    weights: Array | None
    anchor_block: Block
    axis_name: str | tuple[str, ...] | None


def compare(
    embeddings: Array,
    labels: Array | None,
    *,
    references: Array | None = None,
    reference_labels: Array | None = None,
    reference_where: Array | None = None,
    self_index: Array | None = None,
    ids: Array | None = None,
    reference_ids: Array | None = None,
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
        ids: ``[B]`` integers, which sample each anchor is, such as its row in the data set (-1: not known). Pairs of a
            sample with itself, such as an older copy in a memory, are left out, but not those of row i and reference i.
        reference_ids: ``[R]`` integers, likewise of ``references``.
        positive: ``[B, R]`` bool, given instead of labels: True for positive pairs, False for negative ones.
        mine: a miner, which chooses among the pairs (see :mod:`jdml.mining`); an anchor that is left without a
            positive or without a negative contributes nothing.
        key: a random key, for miners that draw.
        normalize: function applied to embeddings and references: :func:`jdml.sphere`, :func:`jdml.ball` or None.
            Distances are computed from the middle of the references: an offset that all vectors share, and embeddings
            that have nearly collapsed, cost no digits.
        where: ``[B]`` bool, the valid rows; the others take no part in anything. Rows with a negative label are not
            valid either.
        weights: ``[B]``, or ``[B, R]`` where a loss has one term per pair: each term is multiplied by its weight
            before the reduction.
        anchor_block: how many anchors are compared at a time, in ``O(R × anchor_block)`` memory, each similarity being
            computed twice; None for all at once, ``"auto"`` for all while they are few. The result is the same. Whole
            matrices whatever the block: terms that are pairs with ``reduce_fn=None``, a trimmed mean or a function of
            one's own; distances for a miner of one's own without an attribute ``by_rows = True``.
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
    columns = rows
    if references is not None:
        checks.check_embeddings(
            "references", references, dim=embeddings.shape[1], like="embeddings"
        )
        columns = mask_of("reference_where", reference_where, len(references))
        if reference_labels is not None:
            checks.check_labels("reference_labels", reference_labels, len(references))
            columns = columns & (reference_labels >= 0)
    elif any(x is not None for x in (reference_labels, reference_where, self_index, reference_ids)):
        raise ValueError(
            "reference_labels, reference_where, self_index and reference_ids need references, which is missing"
        )
    spread = references is None or axis.holds_part("references", references)
    dtype = accumulate_in(embeddings, embeddings if references is None else references)
    x = prepare("embeddings", embeddings, rows, normalize, dtype)
    r = x if references is None else prepare("references", references, columns, normalize, dtype)
    own_narrow = _narrow(embeddings, rows, x, normalize)
    narrow = own_narrow if references is None else _narrow(references, columns, r, normalize)
    if spread:
        r, columns, narrow = axis.gather((r, columns, narrow))
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
    reference_ids = _checked_ids(ids, reference_ids, size, references)
    if spread and reference_ids is not None:
        reference_ids = axis.gather(reference_ids)
    check_miner(mine)
    on_sphere = normalize is ops.sphere
    short = on_sphere or normalize is ops.ball
    per_anchor = Rows(
        embeddings if in_blocks else x,
        axis.index * size + jnp.arange(size, dtype=jnp.int32),
        rows,
        labels,
        self_index,
        ids,
        None if positive is None else jnp.asarray(positive),
        _as_weights(weights, shape, dtype),
        narrow=own_narrow,
    )
    return Anchors(
        per_anchor,
        r,
        reference_labels,
        reference_ids,
        columns,
        references is None,
        mine,
        key,
        block,
        axis,
        Shifted.of(r, columns, on_sphere, narrow) if short else None,
        (lambda x, valid: prepare("embeddings", x, valid, normalize, dtype)) if in_blocks else None,
        on_sphere,
        narrow,
    )


def compare_towers(
    embeddings: Array, labels: Array | None, **options: Unpack[CompareOptions]
) -> Anchors:
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
    options["reference_labels"] = all_one
    anchors = compare(embeddings, one, **options)
    axis, rows = anchors.axis, anchors.rows
    spread = len(anchors.references) > number  # each device holds the partners of its rows
    partner = axis.index * number + jnp.arange(size) if spread else rows.place
    rows = rows._replace(labels=None, partner=partner.astype(jnp.int32))
    return dataclasses.replace(anchors, rows=rows, reference_labels=None)


def valid_rows(labels: Array | None, where: Array | None, size: int) -> Array:
    """``[size]`` bool: the rows that ``where`` keeps and whose label, if there are labels, is not negative."""
    rows = mask_of("where", where, size)
    if labels is None:
        return rows
    checks.check_labels("labels", labels, size)
    checks.require((labels >= 0) | ~rows, "labels[{row}] is {0}, expected 0 or more", labels)
    return rows & (labels >= 0)


def weights_of(weights: Array | None, size: int, dtype: jnp.dtype) -> Array:
    """``[size]``: the rows' weights, 1 where there are none."""
    if weights is None:
        return jnp.ones(size, dtype)
    checks.check_weights("weights", weights, (size,))
    return jnp.asarray(weights, dtype)


def mask_of(name: str, where: Array | None, size: int) -> Array:
    """``[size]`` bool: a mask, True where there is none."""
    if where is None:
        return jnp.ones(size, bool)
    checks.check_mask(name, where, (size,))
    return jnp.asarray(where)


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


def _checked_ids(
    ids: Array | None, reference_ids: Array | None, size: int, references: Array | None
) -> Array | None:
    """The ids of what anchors are compared with, or None where nothing tells which samples are the same."""
    if references is not None and (ids is None) != (reference_ids is None):
        missing = "ids" if ids is None else "reference_ids"
        raise ValueError(f"{missing} is missing: ids [B] are compared with reference_ids [R]")
    if ids is None:
        return None
    checks.check_labels("ids", ids, size)
    if references is None or reference_ids is None:
        return ids
    checks.check_labels("reference_ids", reference_ids, references.shape[0])
    return reference_ids


def prepare(
    name: str, vectors: Array, valid: Array, normalize: Normalize | None, dtype: jnp.dtype
) -> Array:
    """Widen, blank the rows that are not valid (whatever they hold), normalize."""
    vectors = upcast(jnp.where(valid[:, None], vectors, 0), dtype)
    checks.require_finite(name, vectors)
    return vectors if normalize is None else normalize(vectors)


def _narrow(
    vectors: Array, valid: Array, unit: Array, normalize: Normalize | None
) -> Narrow | None:
    """Return the 16-bit vectors that normalized ones are multiples of, where their products take fewer passes."""
    if normalize is not ops.sphere or vectors.dtype != jnp.bfloat16 or by_platform(True, False):
        return None
    return Narrow.of(jnp.where(valid[:, None], vectors, 0), unit)


def _as_weights(weights: Array | None, shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    if weights is None:
        return jnp.ones((shape[0], 1), dtype)
    checks.check_weights("weights", weights, (shape[0],), shape)
    weights = jnp.asarray(weights, dtype)
    return weights[:, None] if weights.ndim == 1 else weights
