"""BN-Inception, the backbone of most of deep metric learning's tables."""

from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jdml.models.heads import EmbeddingHead
from jdml.models.layers import ConvNorm, as_floating, max_pool


class Mix(NamedTuple):
    """Channels of one inception block; ``single`` and ``double`` name the reducing 1×1 convolution first."""

    point: int
    single: tuple[int, int]
    double: tuple[int, int]
    pool: str
    projection: int


# A block without a 1×1 branch and a projection halves the resolution.
BLOCKS = {
    "inception_3a": Mix(64, (64, 64), (64, 96), "average", 32),
    "inception_3b": Mix(64, (64, 96), (64, 96), "average", 64),
    "inception_3c": Mix(0, (128, 160), (64, 96), "halve", 0),
    "inception_4a": Mix(224, (64, 96), (96, 128), "average", 128),
    "inception_4b": Mix(192, (96, 128), (96, 128), "average", 128),
    "inception_4c": Mix(160, (128, 160), (128, 160), "average", 128),
    "inception_4d": Mix(96, (128, 192), (160, 192), "average", 128),
    "inception_4e": Mix(0, (128, 192), (192, 256), "halve", 0),
    "inception_5a": Mix(352, (192, 320), (160, 224), "average", 128),
    "inception_5b": Mix(352, (192, 320), (192, 224), "max", 128),
}


class BNInception(nn.Module):
    """BN-Inception with a pooled embedding head on its 1,024 channels.

    A 7×7 convolution to 64 channels with stride 2, a 1×1 to 64 and a 3×3 to 192, each with batch norm and ReLU, two
    3×3 max-poolings with stride 2, and ten inception blocks: the channels of a 1×1 convolution, of a 3×3, of two 3×3
    in a row and of a pooling, side by side. The third and the eighth block halve the resolution.

    Attributes:
        dim: width D of the embeddings.
        pooling: how the head pools over space; see ``EmbeddingHead``.
        freeze_batch_norm: whether batch norm always uses its running statistics and never updates them, as fine-tuning
            on CUB and Cars196 does; its scale and shift go on learning.
        dtype: type to compute in; parameters, statistics and output stay float32.

    Implementation notes:
        As in the Caffe model and its PyTorch port: convolutions have a bias before batch norm (ε = 1e-5), the two first
        max-poolings begin at the first pixel and drop nothing at the end, average pooling counts the padding, and the
        images are BGR in 0…255 minus (104, 117, 128): ``normalizer("bn_inception")``. The halving blocks of the port
        refuse maps of odd sides, which no multiple of 32 has; here they pad them on both ends.

    Reference:
        Ioffe & Szegedy, *Batch Normalization: Accelerating Deep Network Training by Reducing Internal Covariate Shift*.

    Example:
        >>> images = jax.ShapeDtypeStruct((2, 224, 224, 3), jnp.float32)
        >>> jax.eval_shape(BNInception(dim=64).init_with_output, jax.random.key(0), images)[0].shape
        (2, 64)
    """

    dim: int = 512
    pooling: str = "average"
    freeze_batch_norm: bool = False
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
        """Embed images.

        Args:
            images: floating-point images ``[B, H, W, C]`` of any size.
            train: whether batch norm uses the batch's statistics and updates its running ones
                (collection ``"batch_stats"``, to be passed as mutable).

        Returns:
            Embeddings ``[B, dim]``, float32.

        Raises:
            TypeError: if the images are not floating-point.
            ValueError: if they are not of rank 4, or ``dim`` or ``pooling`` is not a valid choice.
        """
        conv = partial(ConvNorm, use_bias=True, freeze=self.freeze_batch_norm, dtype=self.dtype)
        x = as_floating(images, self.dtype)
        x = _max_pool(conv(64, 7, 2, name="conv1_7x7_s2")(x, train=train))
        x = conv(64, 1, name="conv2_3x3_reduce")(x, train=train)
        x = _max_pool(conv(192, 3, name="conv2_3x3")(x, train=train))
        for name, mix in BLOCKS.items():
            x = Inception(mix, self.freeze_batch_norm, self.dtype, name=name)(x, train=train)
        return EmbeddingHead(self.dim, self.pooling, dtype=self.dtype, name="head")(x)


class Inception(nn.Module):
    """One inception block: four branches, or three with stride 2, side by side."""

    mix: Mix
    freeze: bool
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Map ``[B, H, W, C]`` to the channels of all branches, concatenated."""
        mix, stride = self.mix, 2 if self.mix.pool == "halve" else 1

        def conv(x: jax.Array, features: int, size: int, name: str, stride: int = 1) -> jax.Array:
            layer = ConvNorm(
                features,
                size,
                stride,
                use_bias=True,
                freeze=self.freeze,
                dtype=self.dtype,
                name=name,
            )
            return layer(x, train=train)

        single = conv(x, mix.single[0], 1, "3x3_reduce")
        single = conv(single, mix.single[1], 3, "3x3", stride)
        double = conv(x, mix.double[0], 1, "double_3x3_reduce")
        double = conv(double, mix.double[1], 3, "double_3x3_1")
        double = conv(double, mix.double[1], 3, "double_3x3_2", stride)
        if mix.pool == "average":
            pooled = nn.avg_pool(x, (3, 3), (1, 1), "SAME")
        else:
            padding = jax.lax.padtype_to_pads(x.shape[1:3], (3, 3), (stride, stride), "SAME")
            pooled = max_pool(x, 3, stride, padding)
        if mix.pool == "halve":
            return jnp.concatenate([single, double, pooled], -1)
        point = conv(x, mix.point, 1, "1x1")
        return jnp.concatenate(
            [point, single, double, conv(pooled, mix.projection, 1, "pool_proj")], -1
        )


def _max_pool(x: jax.Array) -> jax.Array:
    """3×3 max-pooling with stride 2 from the first pixel on; the last window may reach over the end."""
    over = [max(3 - side, 1 - side % 2) for side in x.shape[1:3]]
    return max_pool(x, 3, 2, [(0, end) for end in over])
