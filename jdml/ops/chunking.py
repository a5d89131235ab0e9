"""Some rows at a time: what a function of rows costs in memory, without what it would cost for all of them."""

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from jdml.ops.meshes import NOWHERE, Axis

T = TypeVar("T")
Tree = Any
Block = int | Literal["auto"] | None

AT_ONCE = 2**21
"""Entries of a matrix of pairs that ``"auto"`` takes at once on a CPU."""
CLASSES_AT_ONCE = 2**23
"""The same of embeddings and proxies, of which losses keep fewer copies."""
AT_A_TIME = 2**20
"""Entries of a matrix that it takes at a time on a CPU where there are more, about."""
WIDER = 4
"""Times as many on a GPU or TPU, whose cores small blocks would not fill."""

ROWS = 512
"""Rows that it takes at a time there at least: each block reads all columns' vectors, and sums up their gradients."""


def by_platform(cpu: T, accelerator: T) -> T:
    """Return the first choice on a CPU, the second elsewhere."""
    return cpu if jax.default_backend() == "cpu" else accelerator


def block_size(block: Block, rows: int, columns: int, at_once: int = AT_ONCE) -> int | None:
    """Return how many rows of a matrix ``[rows, columns]`` to take at a time, below ``rows``; None for all at once."""
    if block == "auto":
        wider = by_platform(1, WIDER)
        few = max(rows, 1) * columns <= wider * at_once
        least = by_platform(8, ROWS)
        block = None if few else max(least, wider * AT_A_TIME // columns // 8 * 8)
    return None if block is None or block >= rows else block


def over_rows(
    function: Callable[[Tree], tuple[Tree, Tree]],
    rows: Tree,
    *,
    block: int | None = None,
    axis: Axis = NOWHERE,
) -> tuple[Tree, Tree]:
    """Map a function over blocks of this device's rows, and bring the results of all devices together.

    ``function(rows [b, …])`` returns a result per row ``[b, …]`` and one of the block as a whole. It is computed again
    for its gradient. Rows that fill up the last block are 0, False, and the largest integer.
    """
    size = len(jax.tree.leaves(rows)[0])
    if block is None or block >= size:
        per_row, per_block = function(rows)
        per_block = jax.tree.map(lambda x: x[None], per_block)
    else:
        blocks = jax.tree.map(lambda x: _cut(x, block), rows)
        per_row, per_block = jax.lax.map(jax.checkpoint(function, prevent_cse=False), blocks)
        per_row = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:size], per_row)
    return axis.rows(per_row), axis.rows(per_block)


def _cut(rows: Array, block: int) -> Array:
    missing = -len(rows) % block
    if missing:
        whole = jnp.issubdtype(rows.dtype, jnp.integer)
        fill = jnp.iinfo(rows.dtype).max if whole else jnp.zeros((), rows.dtype)
        padding = [(0, missing)] + [(0, 0)] * (rows.ndim - 1)
        rows = jnp.pad(rows, padding, constant_values=fill)
    return rows.reshape(-1, block, *rows.shape[1:])
