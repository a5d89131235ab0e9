"""What every proxy loss begins with: normalized embeddings and proxies, and which of them belong together."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from jdml import ops
from jdml.losses.comparison import Normalize, prepare
from jdml.ops import ReduceFn, checks
from jdml.ops.stable import accumulate_in


class Assignment(NamedTuple):
    """Embeddings against the proxies of all classes.

    Attributes:
        embeddings: ``[B, D]``, normalized; rows that are not valid are 0.
        proxies: ``[C, K, D]``, normalized.
        own: ``[B, C]``, True at the class of a valid row.
        rows: ``[B]``, the valid rows.
        weights: ``[B]``.
    """

    embeddings: Array
    proxies: Array
    own: Array
    rows: Array
    weights: Array

    @property
    def others(self) -> Array:
        """``[B, C]``, True at the other classes of a valid row."""
        return self.rows[:, None] & ~self.own

    @property
    def similarities(self) -> Array:
        """``[B, C]`` cosine to each class: to the nearest of its proxies where it has several."""
        return self.proxy_similarities.max(-1)

    @property
    def proxy_similarities(self) -> Array:
        """``[B, C, K]``."""
        classes, per_class, dim = self.proxies.shape
        flat = ops.similarities(self.embeddings, self.proxies.reshape(-1, dim))
        return flat.reshape(-1, classes, per_class)

    @property
    def squared_distances(self) -> Array:
        """``[B, C]`` squared Euclidean distance to each class: to the nearest of its proxies."""
        classes, per_class, dim = self.proxies.shape
        flat = ops.squared_distances(self.embeddings, self.proxies.reshape(-1, dim))
        return flat.reshape(-1, classes, per_class).min(-1)

    def of_own(self, values: Array) -> Array:
        """``[B]``: the entry of ``values [B, C]`` at each row's own class, 0 for rows that are not valid."""
        return jnp.sum(jnp.where(self.own, values, 0.0), axis=-1)

    def reduce_rows(
        self, reduce_fn: ReduceFn | None, values: Array, where: Array | None = None
    ) -> Array:
        """Weight and reduce one value per row."""
        where = self.rows if where is None else self.rows & where
        return ops.reduce_terms(reduce_fn, jnp.where(where, values, 0.0) * self.weights, where)


def assign(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    normalize: Normalize | None = ops.sphere,
    where: Array | None = None,
    weights: Array | None = None,
) -> Assignment:
    """Check the arguments of a proxy loss and normalize its vectors.

    Args:
        embeddings: ``[B, D]``.
        labels: ``[B]`` integers.
        proxies: ``[C, D]`` or ``[C, K, D]``.
        normalize: function applied to embeddings and proxies: :func:`jdml.sphere`, :func:`jdml.ball` or None.
        where: ``[B]`` bool, the valid rows; the others take no part in anything. Rows whose label is outside 0…C−1
            are not valid either.
        weights: ``[B]``: each sample's terms are multiplied by its weight.

    Returns:
        The assignment.

    Raises:
        TypeError: arguments of the wrong kind (float labels, integer embeddings, a mask that is not boolean).
        ValueError: shapes that do not fit.
    """
    checks.check_embeddings("embeddings", embeddings)
    size, dim = embeddings.shape
    centres = as_centres("proxies", proxies)
    if centres.shape[-1] != dim:
        raise ValueError(
            f"proxies must have the dimension of embeddings, {dim}, got {list(proxies.shape)}"
        )
    checks.check_labels("labels", labels, size)
    labels = checks.widen_labels(labels)
    classes = centres.shape[0]
    known = (labels >= 0) & (labels < classes)
    rows = known
    if where is not None:
        checks.check_mask("where", where, (size,))
        rows, known = known & where, known | ~where
    checks.require(known, f"labels[{{row}}] is {{0}}, expected 0…{classes - 1}", labels)
    dtype = accumulate_in(embeddings, centres)
    x = prepare("embeddings", embeddings, rows, normalize, dtype)
    flat = centres.reshape(-1, dim)
    p = prepare("proxies", flat, jnp.ones(flat.shape[0], bool), normalize, dtype)
    if weights is not None:
        checks.check_weights("weights", weights, (size,))
    scale = jnp.ones(size, dtype) if weights is None else jnp.asarray(weights, dtype)
    own = rows[:, None] & (labels[:, None] == jnp.arange(classes)[None, :])
    return Assignment(x, p.reshape(centres.shape), own, rows, scale)


def as_centres(name: str, proxies: Array) -> Array:
    """``[C, K, D]`` from ``[C, D]`` or ``[C, K, D]``."""
    if not isinstance(proxies, Array):
        raise TypeError(
            f"{name} must be an array of shape [C, D] or [C, K, D], got {type(proxies).__name__}"
        )
    if not jnp.issubdtype(proxies.dtype, jnp.floating):
        raise TypeError(f"{name} must be floating point, got dtype {proxies.dtype}")
    if proxies.ndim not in (2, 3) or 0 in proxies.shape:
        raise ValueError(
            f"{name} must have shape [C, D] or [C, K, D], none of them 0, got {list(proxies.shape)}"
        )
    return proxies if proxies.ndim == 3 else proxies[:, None, :]
