"""The vision transformer ViT-S/16; its positions, resampled as the program does that the weights come from."""

from functools import partial
from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jdml.models.convolution import convolve
from jdml.models.heads import POOLINGS, EmbeddingHead
from jdml.models.layers import as_floating
from jdml.registry.constraints import one_of

CLASS_TOKEN = "token"
Resampling = Literal["timm", "transformers", "dino"]
"""timm: bicubic with a = −½, antialiased where the grid is smaller. The others: PyTorch's bicubic, a = −¾, not
antialiased, with its borders repeated; DINO's program scales by (n + 0.1)/grid."""
SHARPNESS = -0.75
DINO_MORE = 0.1


class VisionTransformer(nn.Module):
    """ViT-S/16 with an embedding head on its 384 channels.

    The image is cut into patches of 16×16 pixels, each one a token of 384 numbers; a learned class token goes before
    them, and learned positions are added to all. Twelve blocks ``x + attention(norm(x))``, ``x + mlp(norm(x))`` and a
    last layer norm follow. The embedding is a dense layer of the class token, or of the pooled patch tokens.

    Attributes:
        dim: width D of the embeddings.
        pooling: ``"token"``, the class token, or how the head pools over the patch tokens; see ``EmbeddingHead``.
        width: width of the tokens.
        depth: number of blocks.
        heads: attention heads per block.
        patch: side of a patch in pixels.
        grid: patches along each side of the images that the positions belong to: 14 for 224×224.
        resampling: how positions are resampled for images of another size: as by ``"timm"`` (whose file it is),
            ``"transformers"`` or ``"dino"``; see ``jdml.models.vit.resample``.
        dtype: type to compute in; parameters and output stay float32, and so does the softmax.

    Implementation notes:
        As in the ViT paper's program, timm and DINO: the MLP is four times as wide with the exact GELU, layer norm has
        ε = 1e-6, and there is no dropout. Images whose patches make another grid get the positions resampled
        bicubically, so that one set of parameters fits all sizes, with the bicubic of the weights' origin (their
        features differ by some percent otherwise); sides that are no multiple of ``patch`` lose the rest. Features of
        patch tokens have both signs, while GeM pooling is meant for non-negative ones.

    Reference:
        Dosovitskiy et al., *An Image is Worth 16x16 Words*; Steiner et al., *How to train your ViT?* (ImageNet-21k);
        Caron et al., *Emerging Properties in Self-Supervised Vision Transformers* (DINO).

    Example:
        >>> images = jax.ShapeDtypeStruct((2, 224, 224, 3), jnp.float32)
        >>> jax.eval_shape(VisionTransformer(dim=64).init_with_output, jax.random.key(0), images)[0].shape
        (2, 64)
    """

    dim: int = 512
    pooling: str = CLASS_TOKEN
    width: int = 384
    depth: int = 12
    heads: int = 6
    patch: int = 16
    grid: int = 14
    resampling: Resampling = "timm"
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
        """Embed images.

        Args:
            images: floating-point images ``[B, H, W, C]`` of any size from ``patch`` × ``patch``.
            train: taken as every network does; there is nothing that training changes.

        Returns:
            Embeddings ``[B, dim]``, float32.

        Raises:
            TypeError: if the images are not floating-point.
            ValueError: if they are not of rank 4 or smaller than a patch, or ``dim`` or ``pooling`` is not a valid
                choice.
        """
        if self.pooling not in (CLASS_TOKEN, *POOLINGS):
            known = (CLASS_TOKEN, *POOLINGS)
            raise ValueError(f"pooling must be one of {known}, got {self.pooling!r}")
        x = as_floating(images, self.dtype)
        if min(x.shape[1:3]) < self.patch:
            raise ValueError(
                f"images must be at least {self.patch}×{self.patch}, got {x.shape[1]}×{x.shape[2]}"
            )
        size = (self.patch, self.patch)
        x = nn.Conv(
            self.width,
            size,
            size,
            padding="VALID",
            dtype=self.dtype,
            conv_general_dilated=convolve,
            name="patches",
        )(x)
        batch, height, width, _ = x.shape
        token = self.param("class_token", nn.initializers.zeros, (1, 1, self.width))
        token = jnp.broadcast_to(token.astype(self.dtype), (batch, 1, self.width))
        x = jnp.concatenate([token, x.reshape(batch, height * width, self.width)], 1)
        x = x + self._positions(height, width).astype(self.dtype)
        for index in range(self.depth):
            x = Block(self.heads, self.dtype, name=f"block{index}")(x)
        x = nn.LayerNorm(1e-6, dtype=self.dtype, name="norm")(x)
        pooling, features = self.pooling, x[:, 1:].reshape(batch, height, width, self.width)
        if pooling == CLASS_TOKEN:
            pooling, features = "average", x[:, :1, None]
        return EmbeddingHead(self.dim, pooling, dtype=self.dtype, name="head")(features)

    def _positions(self, height: int, width: int) -> jax.Array:
        """The positions ``[1, 1 + height · width, C]``, resampled where the grid is another."""
        shape = (1, 1 + self.grid**2, self.width)
        positions = self.param("positions", nn.initializers.normal(0.02), shape)
        return resample(positions, self.grid, (height, width), self.resampling)


_gelu = jax.checkpoint(partial(nn.gelu, approximate=False))
"""Its derivative is computed anew: kept, it would be a fifth of what a training step holds."""


class Block(nn.Module):
    """One transformer block: attention, then an MLP, each on normed tokens and added to its input.

    Attributes:
        heads: attention heads.
        dtype: type to compute in; the softmax stays float32.
    """

    heads: int
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map tokens ``[B, T, C]`` to tokens of the same shape."""
        y = nn.LayerNorm(1e-6, dtype=self.dtype, name="norm0")(x)
        x = x + nn.MultiHeadDotProductAttention(
            self.heads, dtype=self.dtype, force_fp32_for_softmax=True, name="attention"
        )(y)
        y = nn.LayerNorm(1e-6, dtype=self.dtype, name="norm1")(x)
        y = nn.Dense(4 * x.shape[-1], dtype=self.dtype, name="dense0")(y)
        y = nn.Dense(x.shape[-1], dtype=self.dtype, name="dense1")(_gelu(y))
        return x + y


# Learned positions of a grid of patches, resampled for another grid as the program does that the weights come from.


def resample(
    positions: jax.Array, grid: int, shape: tuple[int, int], resampling: Resampling = "timm"
) -> jax.Array:
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
