"""What every proxy loss begins with: normalized embeddings and proxies, and which of them belong together."""

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jdml import ops
from jdml.losses.comparison import Normalize, prepare
from jdml.ops import ReduceFn, checks
from jdml.ops.normalization import inverse_norms
from jdml.ops.stable import accumulate_in, widen

ENTRIES = 2**20
"""Similarities that ``class_block="auto"`` holds at a time, about."""


class Assignment(NamedTuple):
    """Embeddings against the proxies of all classes, or of a block of them.

    Attributes:
        embeddings: ``[B, D]``, normalized; rows that are not valid are 0.
        proxies: ``[C, K, D]``, normalized once they are multiplied by their ``factors``.
        factors: ``[C, K]``: products are scaled, not the proxies themselves, which may be many more numbers.
        labels: ``[B]``, −1 for rows that are not valid.
        rows: ``[B]``, the valid rows.
        weights: ``[B]``.
        classes: how many classes there are in all.
        on_sphere: whether all vectors are of norm 1 (or 0).
        first: the class of the first proxy, 0 but in a block.
        class_block: how many classes :meth:`over_classes` takes at a time, None for all.
    """

    embeddings: Array
    proxies: Array
    factors: Array
    labels: Array
    rows: Array
    weights: Array
    classes: int
    on_sphere: bool
    first: Array | int = 0
    class_block: int | None = None

    @property
    def own(self) -> Array:
        """``[B, C]``, True at the class of a valid row."""
        return self.labels[:, None] == self._class_indices[None, :]

    @property
    def others(self) -> Array:
        """``[B, C]``, True at the other classes of each row, valid or not."""
        return ~self.own if self.real is None else self.real & ~self.own

    @property
    def real(self) -> Array | None:
        """``[1, C]``, False at what fills up the last block; None where all are classes."""
        if self.class_block is None or self.classes % self.class_block == 0:
            return None
        return (self._class_indices < self.classes)[None, :]

    @property
    def _class_indices(self) -> Array:
        return self.first + jnp.arange(self.proxies.shape[0], dtype=self.labels.dtype)

    @property
    def similarities(self) -> Array:
        """``[B, C]`` cosine to each class: to the nearest of its proxies where it has several."""
        return functools.reduce(jnp.maximum, self.proxy_similarities)

    @property
    def normalized_proxies(self) -> Array:
        """``[C, K, D]``."""
        return self.proxies * self.factors[..., None]

    @property
    def proxy_similarities(self) -> tuple[Array, ...]:
        """For each of a class's K proxies ``[B, C]``: K arrays, so that no short axis is in the way."""
        return self._products(self.factors)

    def _products(self, factors: Array) -> tuple[Array, ...]:
        classes, per_class, dim = self.proxies.shape
        flat = ops.similarities(self.embeddings, self.proxies.reshape(-1, dim))
        products = flat.reshape(-1, classes, per_class)

        def scaled(k: int) -> Array:
            # A proxy too long for floats counts as zero, whatever its products overflowed to.
            return jnp.where(factors[None, :, k] > 0, products[..., k], 0.0) * factors[None, :, k]

        return tuple(scaled(k) for k in range(per_class))

    @property
    def squared_distances(self) -> Array:
        """``[B, C]`` squared Euclidean distance to each class: to the nearest of its proxies.

        Rounding may take it below 0.
        """
        squares = jnp.sum(jnp.square(self.embeddings), axis=-1)
        if self.on_sphere:
            # Norms are constants there.
            squares = jax.lax.stop_gradient(squares)
            by_proxy = (self.factors > 0).astype(squares.dtype)
        else:
            by_proxy = jnp.sum(jnp.square(self.normalized_proxies), axis=-1)
        apart = [
            squares[:, None] + by_proxy[None, :, k] - twice
            for k, twice in enumerate(self._products(2.0 * self.factors))
        ]
        return functools.reduce(jnp.minimum, apart)

    def of_own(self, values: Array) -> Array:
        """``[B]``: the entry of ``values [B, C]`` at each row's own class, 0 for rows that are not valid."""
        place = self.labels - self.first
        here = self.rows & (place >= 0) & (place < values.shape[1])
        return _entries(values, jnp.where(here, place, -1))

    def over_classes(self, function: Callable[["Assignment"], Any]) -> Any:
        """Apply a function to one block of classes after the other, and recompute each for its gradient.

        Args:
            function: from a block, an assignment of ``class_block`` classes, to arrays.

        Returns:
            The function's results, stacked along a new first axis, one entry per block.
        """
        classes, per_class, dim = self.proxies.shape
        block = self.class_block
        if block is None:
            return jax.tree.map(lambda result: result[None], function(self))
        missing = -classes % block
        proxies = jnp.pad(self.proxies, ((0, missing), (0, 0), (0, 0)))
        factors = jnp.pad(self.factors, ((0, missing), (0, 0)))
        firsts = jnp.arange(0, classes, block, dtype=self.labels.dtype)

        def one(inputs: tuple[Array, Array, Array]) -> Any:
            first, proxies, factors = inputs
            return function(self._replace(first=first, proxies=proxies, factors=factors))

        blocks = proxies.reshape(-1, block, per_class, dim), factors.reshape(-1, block, per_class)
        return jax.lax.map(jax.checkpoint(one, prevent_cse=False), (firsts, *blocks))

    def reduce_rows(
        self, reduce_fn: ReduceFn | None, values: Array, where: Array | None = None
    ) -> Array:
        """Weight and reduce one value per row."""
        where = self.rows if where is None else self.rows & where
        return ops.reduce_terms(reduce_fn, jnp.where(where, values, 0.0) * self.weights, where)


@jax.custom_jvp
def _entries(values: Array, places: Array) -> Array:
    """``[B]``: one entry of each row of ``values [B, C]``, 0 where its place is −1."""
    taken = jnp.take_along_axis(values, jnp.maximum(places, 0)[:, None], axis=1)[:, 0]
    return jnp.where(places >= 0, taken, 0.0)


@_entries.defjvp
def _entries_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Any]) -> tuple[Array, Array]:
    # The same entries as a masked sum: its gradient is one more term of the matrix's, where that of an index would be
    # written into a matrix of its own.
    (values, places), (moved, _) = primals, tangents
    here = places[:, None] == jnp.arange(values.shape[1])[None, :]
    return _entries(values, places), jnp.sum(jnp.where(here, moved, 0.0), axis=1)


def assign(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    normalize: Normalize | None = ops.sphere,
    where: Array | None = None,
    weights: Array | None = None,
    class_block: int | Literal["auto"] | None = None,
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
        class_block: how many classes are compared at a time, in ``O(B × class_block)`` memory, at the price of
            computing each similarity twice; ``"auto"`` chooses, None takes all classes at once. The result is the
            same.

    Returns:
        The assignment.

    Raises:
        TypeError: arguments of the wrong kind (float labels, integer embeddings, a mask that is not boolean).
        ValueError: shapes that do not fit, a block below 1.
    """
    checks.check_embeddings("embeddings", embeddings)
    size, dim = embeddings.shape
    centres = checks.as_centres("proxies", proxies)
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
    checks.require_finite("proxies", centres)
    p = widen(jnp.asarray(centres).reshape(-1, dim), dtype)
    on_sphere = normalize is ops.sphere
    if not on_sphere and normalize is not None:
        p = normalize(p)
    factors = inverse_norms(p)[:, 0] if on_sphere else jnp.ones(len(p), dtype)
    if weights is not None:
        checks.check_weights("weights", weights, (size,))
    scale = jnp.ones(size, dtype) if weights is None else jnp.asarray(weights, dtype)
    checks.block("class_block", class_block)
    if class_block == "auto":
        class_block = max(128, ENTRIES // (max(size, 1) * centres.shape[1]) // 128 * 128)
    if class_block is not None and class_block >= classes:
        class_block = None
    return Assignment(
        x,
        p.reshape(centres.shape),
        factors.reshape(centres.shape[:2]),
        jnp.where(rows, labels, -1),
        rows,
        scale,
        classes,
        on_sphere,
        class_block=class_block,
    )
