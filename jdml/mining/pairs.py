"""Pairs of a batch, and what narrows them down."""

from typing import NamedTuple, Protocol

import jax.numpy as jnp
from jax import Array

from jdml.ops import checks, meshes


class Pairs(NamedTuple):
    """The pairs between ``B`` anchors and ``R`` references that take part in a loss.

    Attributes:
        positive: ``[B, R]`` bool, pairs of one class.
        negative: ``[B, R]`` bool, pairs of different classes.
    """

    positive: Array
    negative: Array


class Miner(Protocol):
    """Anything that narrows pairs down, given a random key (or None) and the distances."""

    def __call__(self, key: Array | None, distances: Array, pairs: Pairs) -> Pairs:
        """Keep some of ``pairs``."""
        ...


def all_pairs(
    labels: Array,
    reference_labels: Array | None = None,
    *,
    where: Array | None = None,
    reference_where: Array | None = None,
) -> Pairs:
    """Make all pairs between anchors and references: positive where the labels agree, negative elsewhere.

    Args:
        labels: ``[B]`` integers; a negative label marks a row that is not valid.
        reference_labels: ``[R]`` integers; default: the batch itself, each row excluded from its own pairs by index.
        where: ``[B]`` bool, the valid rows; default all.
        reference_where: ``[R]`` bool, the valid references; default all (of the batch itself: ``where``).

    Returns:
        Masks ``[B, R]``.

    Raises:
        TypeError: labels that are not integers, masks that are not boolean.
        ValueError: shapes that do not fit.

    Example:
        >>> import jax.numpy as jnp
        >>> all_pairs(jnp.array([0, 0, 1])).positive.astype(int)
        Array([[0, 1, 0],
               [1, 0, 0],
               [0, 0, 0]], dtype=int32)
    """
    checks.check_labels("labels", labels, jnp.size(labels))
    rows: Array = _valid("where", where, labels)
    own = reference_labels is None
    if reference_labels is None:
        reference_labels, columns = labels, rows
    else:
        checks.check_labels("reference_labels", reference_labels, jnp.size(reference_labels))
        columns = jnp.asarray(reference_labels) >= 0
    if reference_where is not None:
        checks.check_mask("reference_where", reference_where, jnp.shape(reference_labels))
        columns = columns & reference_where

    def of_rows(anchors: tuple[Array, Array, Array], others: tuple[Array, Array]) -> Pairs:
        labels, valid, index = anchors
        reference_labels, columns = others
        both = valid[:, None] & columns[None, :]
        if own:
            both = both & (jnp.arange(columns.size)[None, :] != index[:, None])
        same = labels[:, None] == reference_labels[None, :]
        return Pairs(same & both, ~same & both)

    anchors = (jnp.asarray(labels), rows, jnp.arange(jnp.size(labels)))
    return meshes.by_rows(of_rows, anchors, (jnp.asarray(reference_labels), columns))


def _valid(name: str, where: Array | None, labels: Array) -> Array:
    if where is None:
        return labels >= 0
    checks.check_mask(name, where, labels.shape)
    return where & (labels >= 0)
