"""The beginning of every proxy loss: normalized embeddings and proxies, and which of them belong together."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
from jax import Array

from jdml import ops
from jdml.losses.anchors import reduce_whole
from jdml.losses.comparison import Normalize, prepare, weights_of
from jdml.ops import ReduceFn, checks
from jdml.ops.chunking import CLASSES_AT_ONCE, Block, block_size, by_platform, over_rows
from jdml.ops.meshes import NOWHERE, Axis, as_axis
from jdml.ops.numerics import accumulate_in, inverse_norms, upcast
from jdml.ops.pairwise import centre_of, over_norms

__all__ = ["Assignment", "assign"]

Tree = Any

FEW = 4_096
"""Up to this many classes a sum over cosines moves less, beyond it a pass over the proxies, as compiled for an H100."""


class Assignment(NamedTuple):
    """Embeddings against the proxies of all classes, or of a block of them."""

    embeddings: Array  # [B, D], on a mesh those of this device; rows that are not valid are 0
    labels: Array  # [B], theirs; −1 for rows that are not valid
    proxies: Array  # [C, K, D]
    class_index: Array  # [C], the proxies' classes
    batch: "Batch"  # labels, validity and weights of all rows
    classes: int  # how many there are in all
    on_sphere: bool  # whether products are to be divided by the vectors' norms; else normalized
    class_block: int | None = None  # how many classes are taken at a time, None for all
    axis: Axis = NOWHERE  # the devices that share the work
    by_class: bool = False  # whether they share the classes, not the rows
    in_blocks: bool = False  # whether this is a block, whose last classes may be none

    @property
    def rows(self) -> Array:
        """``[B]``, the valid rows of the whole batch."""
        return self.batch.valid

    @property
    def weights(self) -> Array:
        """``[B]``, the weights of the whole batch."""
        return self.batch.weights

    @property
    def own(self) -> Array:
        """``[B, C]``, True at the class of a valid row."""
        return self.labels[:, None] == self.class_index[None, :]

    @property
    def others(self) -> Array:
        """``[B, C]``, True at the other classes of each row, valid or not."""
        return ~self.own if self.real is None else self.real & ~self.own

    @property
    def real(self) -> Array | None:
        """``[1, C]``, False at what fills up the last block; None where all are classes."""
        return (self.class_index < self.classes)[None, :] if self.in_blocks else None

    @property
    def similarities(self) -> Array:
        """``[B, C]`` cosine to each class: to the nearest of its proxies where it has several."""
        return functools.reduce(_larger, self.proxy_similarities)

    @property
    def normalized(self) -> tuple[Array, Array]:
        """Embeddings ``[B, D]`` and proxies ``[C, K, D]``."""
        if not self.on_sphere:
            return self.embeddings, self.proxies
        return ops.sphere(self.embeddings), ops.sphere(self.proxies)

    @property
    def proxy_similarities(self) -> tuple[Array, ...]:
        """For each of a class's K proxies ``[B, C]``: K arrays, so that no short axis is in the way."""
        classes, per_class, dim = self.proxies.shape
        # A TPU would fill up a last axis of K; the others take one matrix.
        proxies = self.proxies if _on_tpu() else self.proxies.reshape(-1, dim)

        def of_each(products: Array) -> tuple[Array, ...]:
            split = products.reshape(-1, classes, per_class)
            return tuple(split[..., k] for k in range(per_class))

        if not self.on_sphere:
            return of_each(ops.similarities(self.embeddings, proxies))
        if by_platform(False, True):
            by_sums = per_class == 1 and (classes <= FEW or _on_tpu())
            return of_each(ops.cosines(self.embeddings, proxies, by_sums))
        # A CPU keeps what it multiplies: there products are scaled one by one, as what comes after takes them.
        products = of_each(ops.similarities(ops.sphere(self.embeddings), proxies))
        return over_norms(products, self.proxies)

    @property
    def squared_distances(self) -> Array:
        """``[B, C]`` squared Euclidean distance to each class: to the nearest of its proxies.

        Rounding may take it below 0.
        """

        def squares(vectors: Array) -> Array:
            if self.on_sphere:
                return (inverse_norms(vectors) > 0).astype(vectors.dtype)[..., 0]
            return jnp.sum(jnp.square(vectors), axis=-1)

        shifted = self
        if not self.on_sphere:
            centre = centre_of(self.proxies.reshape(-1, self.proxies.shape[-1]))
            shifted = self._replace(
                embeddings=self.embeddings - centre[None], proxies=self.proxies - centre[None, None]
            )
        of_rows, by_proxy = squares(shifted.embeddings), squares(shifted.proxies)
        apart = [
            of_rows[:, None] + by_proxy[None, :, k] - 2.0 * values
            for k, values in enumerate(shifted.proxy_similarities)
        ]
        return -functools.reduce(_larger, [-a for a in apart])

    def of_own(self, values: Array) -> Array:
        """Pick ``[B]``: the entry of ``values [B, C]`` at each row's own class, 0 for rows that have none here."""
        place = self.labels - self.class_index[0]
        here = (self.labels >= 0) & (place >= 0) & (place < values.shape[1])
        return _entries(values, jnp.where(here, place, -1))

    def here(self, of_batch: Array) -> Array:
        """Pick the entries ``[B]`` of those rows that this device compares."""
        if self.by_class or not self.axis.names:
            return of_batch
        return dataclasses.replace(self.axis, whole=False).local_slice(of_batch)

    def over_classes(self, function: Callable[["Assignment"], Tree]) -> Tree:
        """Apply a function with results per row to one block of classes after the other: ``[T, B]``, one per block."""
        return self.over_both(lambda block: (function(block), ()))[0]

    def over_both(self, function: Callable[["Assignment"], tuple[Tree, Tree]]) -> tuple[Tree, Tree]:
        """Do the same for results per row, and per class over the rows it sees, ``[S, C]`` by shares of the rows."""

        def of_block(part: tuple[Array, Array]) -> tuple[Tree, Tree]:
            proxies, index = part
            in_blocks = self.class_block is not None and self.proxies.shape[0] % self.class_block
            block = self._replace(proxies=proxies, class_index=index, in_blocks=bool(in_blocks))
            per_row, per_class = function(block)
            return per_class, per_row

        everywhere, nowhere = (self.axis, NOWHERE) if self.by_class else (NOWHERE, self.axis)
        part = (self.proxies, self.class_index)
        per_class, per_row = over_rows(of_block, part, block=self.class_block, axis=everywhere)
        per_row = jax.tree.map(lambda x: nowhere.rows(x.T).T, per_row)
        return per_row, nowhere.all_gather_stacked(per_class)

    def reduce_rows(
        self, reduce_fn: ReduceFn | None, values: Array, where: Array | None = None
    ) -> Array:
        """Weight and reduce one value per row of the whole batch."""
        where = self.rows if where is None else self.rows & where
        return self.finish(reduce_fn, jnp.where(where, values, 0.0) * self.weights, where)

    def finish(self, reduce_fn: ReduceFn | None, rows: Array, where: Array) -> Array:
        """Reduce terms that are the rows of the whole batch."""
        return reduce_whole(self.axis, reduce_fn, rows, where)

    def finish_classes(self, reduce_fn: ReduceFn | None, terms: Array) -> Array:
        """Reduce terms that are the classes; of a batch without a valid row there is none."""
        where = jnp.broadcast_to(self.rows.any(), terms.shape)
        return self.axis.psum_once(ops.reduce_terms(reduce_fn, terms, where))


class Batch(NamedTuple):
    """The rows of all devices."""

    labels: Array  # [B], −1 for rows that are not valid
    valid: Array  # [B]
    weights: Array  # [B]


def _on_tpu() -> bool:
    return jax.default_backend() == "tpu"


@jax.custom_jvp
def _larger(left: Array, right: Array) -> Array:
    """The larger of each two entries; at ties the left has all of the gradient."""
    return jnp.maximum(left, right)


@_larger.defjvp
def _larger_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    left, right = primals
    return _larger(left, right), jnp.where(right > left, tangents[1], tangents[0])


def _entries(values: Array, places: Array) -> Array:
    """``[B]``: one entry of each row of ``values [B, C]``, 0 where its place is −1."""
    return by_platform(lambda: _gather(values, places), lambda: _masked_sum(values, places))()


def _masked_sum(values: Array, places: Array) -> Array:
    """As a masked sum, which goes along with whatever else passes over the matrix."""
    here = places[:, None] == jnp.arange(values.shape[1])[None, :]
    return jnp.sum(jnp.where(here, values, 0.0), axis=1)


@jax.custom_jvp
def _gather(values: Array, places: Array) -> Array:
    """By index."""
    entries = jnp.take_along_axis(values, jnp.maximum(places, 0)[:, None], axis=1)[:, 0]
    return jnp.where(places >= 0, entries, 0.0)


@_gather.defjvp
def _gather_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Any]) -> tuple[Array, Array]:
    # A sum's gradient is one more term of the matrix's, that of an index would be written into a matrix of its own.
    (values, places), (moved, _) = primals, tangents
    return _gather(values, places), _masked_sum(moved, places)


class AssignOptions(TypedDict, total=False):
    """The keywords of :func:`assign`, which every proxy loss takes besides its own."""

    normalize: Normalize | None
    where: Array | None
    weights: Array | None
    class_block: Block
    axis_name: str | tuple[str, ...] | None


def assign(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    normalize: Normalize | None = ops.sphere,
    where: Array | None = None,
    weights: Array | None = None,
    class_block: Block = "auto",
    axis_name: str | tuple[str, ...] | None = None,
) -> Assignment:
    """Check the arguments of a proxy loss and normalize its vectors.

    Args:
        embeddings: ``[B, D]``.
        labels: ``[B]`` integers in 0…C−1.
        proxies: ``[C, D]``, or ``[C, K, D]``: the nearest of a class's proxies stands for it.
        normalize: function applied to embeddings and proxies: :func:`jdml.sphere`, :func:`jdml.ball` or None.
        where: ``[B]`` bool, the valid rows; the others take no part in anything. Rows whose label is outside 0…C−1
            are not valid either.
        weights: ``[B]``: each sample's terms are multiplied by its weight.
        class_block: how many classes are compared at a time, in ``O(B × class_block)`` memory, at the price of
            computing each similarity twice; None for all at once, ``"auto"`` for all while they are few. The result
            is the same.
        axis_name: inside a ``jax.shard_map``, the mesh axis over which the batch is spread: the rows of all devices
            are one batch. The proxies are the same on every device (or, with ``check_vma``, each device's own
            classes), and so is the value.

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
    checks.block("class_block", class_block)
    labels = checks.widen_labels(labels)
    axis = as_axis(axis_name)
    by_class = axis.holds_part("proxies", centres)
    here, per_class, _ = centres.shape
    classes = here * axis.size if by_class else here
    rows = rows_of_classes(labels, where, classes)
    dtype = accumulate_in(embeddings, centres)
    on_sphere = normalize is ops.sphere
    before = None if on_sphere else normalize
    x = prepare("embeddings", embeddings, rows, before, dtype)
    checks.require_finite("proxies", centres)
    p = upcast(centres, dtype)
    p = p if before is None else before(p)
    batch = Batch(jnp.where(rows, labels, -1), rows, weights_of(weights, size, dtype))
    own_labels = batch.labels
    if axis.holds_part("embeddings", embeddings):
        batch = axis.rows(batch)
        if by_class:
            x, own_labels = axis.gather((x, own_labels))
    first = axis.index * here if by_class else 0
    index = first + jnp.arange(here, dtype=labels.dtype)
    return Assignment(
        x,
        own_labels,
        p,
        index.astype(labels.dtype),
        batch,
        classes,
        on_sphere,
        block_size(class_block, here, len(x) * per_class, CLASSES_AT_ONCE),
        axis,
        by_class,
    )


def rows_of_classes(labels: Array, where: Array | None, classes: int) -> Array:
    """``[B]`` bool: the rows that ``where`` keeps and whose label is a class."""
    known = (labels >= 0) & (labels < classes)
    rows = known
    if where is not None:
        checks.check_mask("where", where, labels.shape)
        rows, known = known & where, known | ~where
    checks.require(known, f"labels[{{row}}] is {{0}}, expected 0…{classes - 1}", labels)
    return rows
