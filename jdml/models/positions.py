"""Learned positions of a grid of patches, resampled for another grid as the program does that the weights come from."""

from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jdml.registry.constraints import one_of

Resampling = Literal["timm", "transformers", "dino"]
"""timm: bicubic with a = −½, antialiased where the grid is smaller. The others: PyTorch's bicubic, a = −¾, not
antialiased, with its borders repeated; DINO's program scales by (n + 0.1)/grid."""
SHARPNESS = -0.75
DINO_MORE = 0.1


def resample(
    positions: Array, grid: int, shape: tuple[int, int], resampling: Resampling = "timm"
) -> Array:
    """Resample positions bicubically; the first, of the class token, stays.

    Args:
        positions: ``[1, 1 + grid², C]``.
        grid: patches along each side of the images that they belong to.
        shape: rows and columns of the new grid.
        resampling: whose bicubic it is.

    Returns:
        ``[1, 1 + rows · columns, C]``; the positions themselves where the grid is the same.

    Raises:
        ValueError: another resampling.

    Example:
        >>> resample(jnp.ones((1, 10, 2)), 3, (4, 5), "transformers").shape
        (1, 21, 2)
    """
    one_of("resampling", resampling, get_args(Resampling))
    if shape == (grid, grid):
        return positions
    width = positions.shape[-1]
    patches = positions[0, 1:].reshape(grid, grid, width)
    if resampling == "timm":
        patches = jax.image.resize(patches, (*shape, width), "bicubic")
    else:
        more = DINO_MORE if resampling == "dino" else 0.0
        rows, columns = (_cubic(grid, size, more).astype(positions.dtype) for size in shape)
        precision = jax.lax.Precision.HIGHEST
        patches = jnp.einsum("rh,cw,hwd->rcd", rows, columns, patches, precision=precision)
    return jnp.concatenate([positions[:, :1], patches.reshape(1, -1, width)], 1)


def _cubic(size: int, new: int, more: float) -> np.ndarray:
    """The weights ``[new, size]`` of PyTorch's bicubic along one axis, of a scale that is made for ``new + more``."""
    places = (np.arange(new) + 0.5) * size / (new + more) - 0.5
    first = np.floor(places).astype(int)
    weights = np.zeros((new, size))
    for tap in range(-1, 3):
        column = np.clip(first + tap, 0, size - 1)
        np.add.at(weights, (np.arange(new), column), _keys(np.abs(places - first - tap)))
    return weights


def _keys(r: np.ndarray) -> np.ndarray:
    """Keys' cubic kernel at distances r ≤ 2."""
    a = SHARPNESS
    near = ((a + 2) * r - (a + 3)) * r * r + 1
    far = ((a * r - 5 * a) * r + 8 * a) * r - 4 * a
    return np.where(r <= 1, near, far)
