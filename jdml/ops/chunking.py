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
    """Choose by where programs run.

    Args:
        cpu: the choice on a CPU.
        accelerator: the choice elsewhere.

    Returns:
        One of both.

    Example:
        >>> by_platform(512, 2048) if jax.default_backend() == "cpu" else 512
        512
    """
    return cpu if jax.default_backend() == "cpu" else accelerator


def block_size(block: Block, rows: int, columns: int, at_once: int = AT_ONCE) -> int | None:
    """How many rows of a matrix to take at a time.

    Args:
        block: as many, None for all, or ``"auto"``.
        rows: how many there are.
        columns: entries per row.
        at_once: entries that ``"auto"`` takes at once on a CPU.

    Returns:
        A number below ``rows``, or None for all at once.

    Example:
        >>> block_size("auto", 256, 256), block_size("auto", 32_768, 32_768), block_size(8, 8, 5)
        (None, 32, None)
    """
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

    Args:
        function: ``(rows [b, …]) -> (one result per row [b, …], results of the block as a whole)``. It is computed
            again for its gradient. Rows that fill up the last block are 0, False, and the largest integer.
        rows: arrays ``[n, …]``.
        block: how many rows at a time; None: all.
        axis: over which devices the rows are spread.

    Returns:
        The results per row ``[S·n, …]``, and those of the blocks ``[S·T, …]``.

    Example:
        >>> squares, sums = over_rows(lambda x: (x * x, x.sum()), jnp.arange(3.0), block=2)
        >>> squares, sums
        (Array([0., 1., 4.], dtype=float32), Array([1., 2.], dtype=float32))
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
