"""Queries that were found as themselves."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jdml.ops.meshes import Axis, by_parts, mesh_of


def warn(queries: Array, gallery: Any, found: np.ndarray, judged: np.ndarray) -> None:
    """Warn where queries equal the row that was found first, bit by bit: both may be one item.

    Args:
        queries: ``[Q, D]`` float32.
        gallery: ``[N, D]`` float32, on a mesh or not; or on disk.
        found: ``[Q]``, the row of the gallery that is nearest.
        judged: ``[Q]`` bool, the queries that count.
    """
    twins = judged & _equal(queries, gallery, found)
    if twins.any():
        row = twins.argmax()
        warnings.warn(
            f"{twins.sum()} of {judged.sum()} queries equal what they find first (queries[{row}] and "
            f"gallery[{found[row]}] are the same vector): if they are the same item, say so by self_index [Q], the "
            "gallery's row that each query is (-1: none), and it is left out; self_index of -1 says that they are not",
            UserWarning,
            stacklevel=4,
        )


def _equal(queries: Array, gallery: Any, found: np.ndarray) -> np.ndarray:
    """Whether each query ``[Q]`` is the row that it found."""
    if isinstance(gallery, np.memmap):
        with np.errstate(over="ignore"):
            rows = np.asarray(gallery[found], np.float32)
        return (np.asarray(queries) == rows).all(axis=1)
    if mesh_of((queries, gallery)) is not None:
        queries = jnp.asarray(np.asarray(queries))
    return np.asarray(_are_rows(gallery, queries, jnp.asarray(found)))


@jax.jit
def _are_rows(gallery: Array, queries: Array, found: Array) -> Array:
    def are_rows(axis: Axis, gallery: Array, others: tuple[Array, Array]) -> Array:
        queries, found = others
        here = found - axis.index * len(gallery)
        is_here = (here >= 0) & (here < len(gallery))
        equal = (queries == gallery[jnp.where(is_here, here, 0)]).all(axis=1)
        return axis.total((is_here & equal).astype(jnp.int32)) > 0

    equal: Array = by_parts(are_rows, gallery, (queries, found))
    return equal
