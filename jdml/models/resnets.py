"""Residual networks: ResNet-18 and ResNet-50 for photographs, ResNet20-v2 for small images."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jdml.models.layers import BatchNorm, EmbeddingHead, as_floating, conv, max_pool

BLOCKS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}


class ResNet(nn.Module):
    """ResNet-18 or ResNet-50 with a pooled embedding head.

    A 7×7 convolution to 64 channels, 3×3 max-pooling, and four stages of 64, 128, 256 and 512 channels, all but the
    first at half the resolution of the one before. A stage is a row of blocks ``relu(x + f(x))``: f is two 3×3
    convolutions in ResNet-18, and 1×1, 3×3 and 1×1 to four times the channels in ResNet-50.

    Attributes:
        dim: width D of the embeddings.
        depth: 18 or 50.
        pooling: how the head pools over space; see ``EmbeddingHead``.
        freeze_batch_norm: whether batch norm always uses its running statistics and never updates them.
        dtype: type to compute in; parameters, statistics and output stay float32.

    Implementation notes:
        As in torchvision: the stride is that of the 3×3 convolution, padding is symmetric, batch norm has ε = 1e-5 and
        momentum 0.9, and the last scale of each block begins at 1. Weights of that layout fit.

    Reference:
        He, Zhang, Ren & Sun, *Deep Residual Learning for Image Recognition*.

    Example:
        >>> net = ResNet(dim=64, depth=18)
        >>> images = jax.ShapeDtypeStruct((2, 224, 224, 3), jnp.float32)
        >>> jax.eval_shape(net.init_with_output, jax.random.key(0), images)[0].shape
        (2, 64)
    """

    dim: int = 512
    depth: int = 50
    pooling: str = EmbeddingHead.pooling
    freeze_batch_norm: bool = False
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
        """Embed images ``[B, H, W, C]``, as :mod:`jdml.models` says."""
        norm = partial(BatchNorm, self.freeze_batch_norm or not train, dtype=self.dtype)

        def conv_norm(x: jax.Array, name: str, *shape: int) -> jax.Array:
            layer = conv(*shape, use_bias=False, dtype=self.dtype, name=name)
            return norm(name=name.replace("conv", "norm"))(layer(x))

        def block(x: jax.Array, name: str, width: int, stride: int) -> jax.Array:
            shapes = [(width, 3, stride), (width, 3, 1)]
            if self.depth == 50:
                shapes = [(width, 1, 1), (width, 3, stride), (4 * width, 1, 1)]
            y = x
            for i, shape in enumerate(shapes):
                y = conv_norm(nn.relu(y) if i else y, f"{name}_conv{i}", *shape)
            if x.shape != y.shape:
                x = conv_norm(x, f"{name}_shortcut_conv", y.shape[-1], 1, stride)
            return nn.relu(x + y)

        x = nn.relu(conv_norm(as_floating(images, self.dtype), "stem_conv", 64, 7, 2))
        x = max_pool(x, 3, 2, ((1, 1), (1, 1)))
        for stage, number in enumerate(BLOCKS[self.depth]):
            for index in range(number):
                stride = 2 if stage > 0 and index == 0 else 1
                x = block(x, f"stage{stage}_block{index}", 64 * 2**stage, stride)
        return EmbeddingHead(self.dim, self.pooling, dtype=self.dtype, name="head")(x)


class ResNet20V2(nn.Module):
    """ResNet20-v2, for images of about 32×32: the network of CCP's MNIST study.

    A 3×3 convolution and three stages of three blocks with 16, 32 and 64 channels, the second and third at half the
    resolution of the one before. A block adds two 3×3 convolutions to its input, each *after* batch norm and ReLU.

    Attributes:
        dim: width D of the embeddings; 2 in the paper, which plots them.
        features: channels of the stages.
        blocks: blocks per stage; depth is 6 · blocks + 2.
        pooling: how the head pools over space; see ``EmbeddingHead``.
        freeze_batch_norm: whether batch norm always uses its running statistics and never updates them.
        dtype: type to compute in; parameters, statistics and output stay float32.

    Implementation notes:
        Where the channels change, a 1×1 convolution carries the block's input over. The paper names the network and
        nothing else of it.

    Reference:
        He, Zhang, Ren & Sun, *Identity Mappings in Deep Residual Networks*.

    Example:
        >>> images = jax.ShapeDtypeStruct((2, 28, 28, 1), jnp.float32)
        >>> jax.eval_shape(ResNet20V2().init_with_output, jax.random.key(0), images)[0].shape
        (2, 2)
    """

    dim: int = 2
    features: Sequence[int] = (16, 32, 64)
    blocks: int = 3
    pooling: str = EmbeddingHead.pooling
    freeze_batch_norm: bool = False
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
        """Embed images ``[B, H, W, C]``, as :mod:`jdml.models` says."""
        norm = partial(BatchNorm, self.freeze_batch_norm or not train, dtype=self.dtype)
        convolution = partial(conv, use_bias=False, dtype=self.dtype)
        x = convolution(self.features[0], 3)(as_floating(images, self.dtype))
        for stage, features in enumerate(self.features):
            for index in range(self.blocks):
                stride = 2 if stage > 0 and index == 0 else 1
                before = nn.relu(norm()(x))
                changed = convolution(features, 3, stride)(before)
                changed = convolution(features, 3)(nn.relu(norm()(changed)))
                fits = x.shape[-1] == features and stride == 1
                x = changed + (x if fits else convolution(features, 1, stride)(before))
        x = nn.relu(norm()(x))
        return EmbeddingHead(self.dim, self.pooling, dtype=self.dtype, name="head")(x)
