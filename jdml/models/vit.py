"""Vision transformers, one module for all by its settings; positions resampled as where the weights come from."""

from functools import partial
from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jdml.models.convolution import convolve
from jdml.models.layers import POOLINGS, EmbeddingHead, as_floating
from jdml.ops.checks import one_of

CLASS_TOKEN, ATTENTION = "token", "attention"
Activation = Literal["gelu", "gelu_tanh", "quick_gelu"]
"""The exact one; by a tanh (SigLIP's program); x σ(1.702 x) (CLIP's)."""
Resampling = Literal["timm", "transformers", "dino"]
"""timm: bicubic with a = −½, antialiased where the grid is smaller. The others: PyTorch's bicubic, a = −¾, not
antialiased, with its borders repeated; DINO's program scales by (n + 0.1)/grid."""


class VisionTransformer(nn.Module):
    """A vision transformer with an embedding head; ViT-S/16 if nothing else is said.

    Patches of the image are tokens, with a learned class token before them and learned positions. Blocks
    ``x + attention(norm(x))``, ``x + mlp(norm(x))`` and a last layer norm follow; a dense layer embeds what is pooled.

    Attributes:
        dim: width D of the embeddings.
        pooling: ``"token"``, the class token; ``"attention"``, a learned query that attends to all tokens, and an MLP
            (SigLIP's); or how the head pools over the patch tokens, see ``EmbeddingHead``.
        width: width of the tokens.
        depth: number of blocks.
        heads: attention heads per block.
        hidden: width within the MLPs; None is four times ``width``.
        patch: side of a patch in pixels.
        grid: patches along each side of the images that the positions belong to: 14 for 224×224 by 16.
        class_token: whether there is a class token.
        registers: learned tokens without a position, between the class token and the patches.
        projection: width of a linear layer without bias before the head, as CLIP ends; 0 is none.
        activation: of the MLPs.
        epsilon: of the layer norms.
        norm_before: whether a layer norm precedes the blocks, and patches have no bias, as in CLIP.
        layer_scale: whether both parts of a block are multiplied by learned numbers, one a channel, as in DINOv2.
        resampling: of positions, for images of another size: as by ``"timm"``, ``"transformers"`` or ``"dino"``.
        remat: whether blocks are recomputed for the gradient, so that only their inputs are stored.
        dtype: type to compute in; parameters and output stay float32, and so does the softmax.

    Implementation notes:
        As in the programs of their papers there is no dropout. Images whose patches make another grid get the positions
        resampled by the bicubic of the weights' origin; sides that are no multiple of ``patch`` lose the rest. Features
        of patch tokens have both signs, while GeM pooling is meant for non-negative ones.

    Reference:
        Dosovitskiy et al., *An Image is Worth 16x16 Words*; Steiner et al., *How to train your ViT?* (ImageNet-21k);
        Caron et al., *Emerging Properties in Self-Supervised Vision Transformers* (DINO); Oquab et al., *DINOv2*;
        Darcet et al., *Vision Transformers Need Registers*; Radford et al., *Learning Transferable Visual Models From
        Natural Language Supervision* (CLIP); Tschannen et al., *SigLIP 2*.

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
    hidden: int | None = None
    patch: int = 16
    grid: int = 14
    class_token: bool = True
    registers: int = 0
    projection: int = 0
    activation: Activation = "gelu"
    epsilon: float = 1e-6
    norm_before: bool = False
    layer_scale: bool = False
    resampling: Resampling = "timm"
    remat: bool = False
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
        """Embed images ``[B, H, W, C]`` of at least ``patch`` × ``patch``, as :mod:`jdml.models` says."""
        own = (CLASS_TOKEN,) * self.class_token + (ATTENTION,)
        one_of("pooling", self.pooling, (*own, *POOLINGS))
        one_of("activation", self.activation, get_args(Activation))
        x = as_floating(images, self.dtype)
        if min(x.shape[1:3]) < self.patch:
            raise ValueError(f"images must have sides of at least {self.patch}, got {x.shape[1:3]}")
        x, grid = self._tokens(x)
        hidden = self.hidden or 4 * self.width
        parts = (self.heads, hidden, self.activation, self.epsilon, self.dtype)
        block = nn.remat(Block) if self.remat else Block
        for index in range(self.depth):
            x = block(*parts, self.layer_scale, name=f"block{index}")(x)
        x = nn.LayerNorm(self.epsilon, dtype=self.dtype, name="norm")(x)
        pooling, features = self.pooling, x[:, -grid[0] * grid[1] :]
        features = features.reshape(x.shape[0], *grid, self.width)
        if pooling == CLASS_TOKEN:
            pooling, features = "average", x[:, :1, None]
        elif pooling == ATTENTION:
            pooling, features = "average", AttentionPool(*parts, name="pool")(x)[:, :, None]
        if self.projection:
            features = nn.Dense(self.projection, False, self.dtype, name="projection")(features)
        return EmbeddingHead(self.dim, pooling, dtype=self.dtype, name="head")(features)

    def _tokens(self, images: jax.Array) -> tuple[jax.Array, tuple[int, int]]:
        """Return the tokens of the first block, and the numbers of patches down and across."""
        x = nn.Conv(
            self.width,
            (self.patch, self.patch),
            (self.patch, self.patch),
            padding="VALID",
            use_bias=not self.norm_before,
            dtype=self.dtype,
            conv_general_dilated=convolve,
            name="patches",
        )(images)
        batch, grid = x.shape[0], (x.shape[1], x.shape[2])
        x = x.reshape(batch, grid[0] * grid[1], self.width)

        def learned(name: str, number: int, start: Any) -> jax.Array:
            tokens = self.param(name, start, (1, number, self.width), jnp.float32)
            return jnp.broadcast_to(tokens.astype(self.dtype), (batch, number, self.width))

        if self.class_token:
            x = jnp.concatenate([learned("class_token", 1, nn.initializers.zeros), x], 1)
        shape = (1, self.class_token + self.grid**2, self.width)
        positions = self.param("positions", nn.initializers.normal(0.02), shape, jnp.float32)
        x = x + resample(positions, self.grid, grid, self.resampling).astype(self.dtype)
        if self.registers:
            registers = learned("registers", self.registers, nn.initializers.normal(0.02))
            first = int(self.class_token)
            x = jnp.concatenate([x[:, :first], registers, x[:, first:]], 1)
        if self.norm_before:
            x = nn.LayerNorm(self.epsilon, dtype=self.dtype, name="norm_before")(x)
        return x, grid


# Recomputed for the gradient: stored, its derivative would be a fifth of a training step's memory.
@partial(jax.checkpoint, static_argnums=1)
def _activated(x: jax.Array, kind: Activation) -> jax.Array:
    if kind == "quick_gelu":
        return x * nn.sigmoid(1.702 * x)
    return nn.gelu(x, approximate=kind == "gelu_tanh")


def _mlp(x: jax.Array, hidden: int, activation: Activation, dtype: Any) -> jax.Array:
    """Two dense layers ``C → hidden → C`` of the module that calls."""
    y = nn.Dense(hidden, dtype=dtype, name="dense0")(x)
    return nn.Dense(x.shape[-1], dtype=dtype, name="dense1")(_activated(y, activation))


class Block(nn.Module):
    """One transformer block: attention, then an MLP, each on normed tokens and added to its input."""

    heads: int
    hidden: int
    activation: Activation
    epsilon: float
    dtype: Any
    layer_scale: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map tokens ``[B, T, C]`` to tokens of the same shape."""
        y = nn.LayerNorm(self.epsilon, dtype=self.dtype, name="norm0")(x)
        y = nn.MultiHeadDotProductAttention(
            self.heads, dtype=self.dtype, force_fp32_for_softmax=True, name="attention"
        )(y)
        x = x + self._scale("scale0", y)
        y = nn.LayerNorm(self.epsilon, dtype=self.dtype, name="norm1")(x)
        return x + self._scale("scale1", _mlp(y, self.hidden, self.activation, self.dtype))

    def _scale(self, name: str, y: jax.Array) -> jax.Array:
        if not self.layer_scale:
            return y
        scale = self.param(name, nn.initializers.constant(1e-5), y.shape[-1:], jnp.float32)
        return y * scale.astype(self.dtype)


class AttentionPool(nn.Module):
    """One learned query that attends to all tokens, then an MLP, added to its input: SigLIP's pooling."""

    heads: int
    hidden: int
    activation: Activation
    epsilon: float
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map tokens ``[B, T, C]`` to one, ``[B, 1, C]``."""
        batch, _, width = x.shape
        query = self.param("query", nn.initializers.xavier_uniform(), (1, 1, width), jnp.float32)
        query = jnp.broadcast_to(query.astype(self.dtype), (batch, 1, width))
        x = nn.MultiHeadDotProductAttention(
            self.heads, dtype=self.dtype, force_fp32_for_softmax=True, name="attention"
        )(query, x)
        y = nn.LayerNorm(self.epsilon, dtype=self.dtype, name="norm")(x)
        return x + _mlp(y, self.hidden, self.activation, self.dtype)


# Learned positions of a grid of patches, resampled for another grid as the program does that the weights come from.


def resample(
    positions: jax.Array, grid: int, shape: tuple[int, int], resampling: Resampling
) -> jax.Array:
    """Resample positions ``[1, T, C]`` bicubically; that of a class token, the first, is unchanged."""
    one_of("resampling", resampling, get_args(Resampling))
    if shape == (grid, grid):
        return positions
    width = positions.shape[-1]
    first = positions.shape[1] - grid**2
    patches = positions[0, first:].reshape(grid, grid, width)
    if resampling == "timm":
        patches = jax.image.resize(patches, (*shape, width), "bicubic")
    else:
        more = 0.1 if resampling == "dino" else 0.0
        rows, columns = (_cubic(grid, size, more).astype(positions.dtype) for size in shape)
        precision = jax.lax.Precision.HIGHEST
        patches = jnp.einsum("rh,cw,hwd->rcd", rows, columns, patches, precision=precision)
    return jnp.concatenate([positions[:, :first], patches.reshape(1, -1, width)], 1)


def _cubic(size: int, new: int, more: float) -> np.ndarray:
    """Return the weights ``[new, size]`` of PyTorch's bicubic along one axis, of a scale for ``new + more``."""
    places = (np.arange(new) + 0.5) * size / (new + more) - 0.5
    first = np.floor(places).astype(int)
    weights = np.zeros((new, size))
    for tap in range(-1, 3):
        column = np.clip(first + tap, 0, size - 1)
        r, a = np.abs(places - first - tap), -0.75
        near = ((a + 2) * r - (a + 3)) * r * r + 1
        far = ((a * r - 5 * a) * r + 8 * a) * r - 4 * a
        np.add.at(weights, (np.arange(new), column), np.where(r <= 1, near, far))
    return weights
