"""Convolutional networks: small ones for small images, BN-Inception and EfficientNet-Lite0 for photographs."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jdml.models.convolution import convolve
from jdml.models.layers import BatchNorm, ConvNorm, EmbeddingHead, as_floating, max_pool


class EpsNet(nn.Module):
    """The network of the EPS paper's MNIST study.

    3×3 convolutions to 32 and 64 channels, each with ReLU and batch norm; 2×2 max-pooling; dense 128; dense ``dim``.

    Attributes:
        dim: width D of the embeddings; 2 in the paper, which plots them.
        freeze_batch_norm: whether batch norm always uses its running statistics and never updates them.
        dtype: type to compute in; parameters, statistics and output stay float32.

    Implementation notes:
        Not in the paper: zero padding ("SAME"), a ReLU after the dense layer of 128, batch norm after each of the two
        ReLUs, and batch-norm momentum 0.9.

    Reference:
        Levi, Xiao, Wang, Darrell. Rethinking preventing class-collapsing in metric learning with margin-based losses.
        ICCV 2021, section 5.1.

    Example:
        >>> net = EpsNet()
        >>> images = jnp.zeros((4, 8, 8, 1))
        >>> variables = net.init(jax.random.key(0), images)
        >>> embeddings, updates = net.apply(variables, images, train=True, mutable=["batch_stats"])
        >>> embeddings.shape
        (4, 2)
    """

    dim: int = 2
    freeze_batch_norm: bool = False
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
        """Embed images ``[B, H, W, C]``, as :mod:`jdml.models` says."""
        x = as_floating(images, self.dtype)
        for features in (32, 64):
            x = nn.Conv(features, (3, 3), dtype=self.dtype, conv_general_dilated=convolve)(x)
            x = BatchNorm(self.freeze_batch_norm or not train, dtype=self.dtype)(nn.relu(x))
        x = max_pool_2x2(x)
        x = nn.relu(nn.Dense(128, dtype=self.dtype)(x.reshape(x.shape[0], -1)))
        return nn.Dense(self.dim, dtype=self.dtype, name="embedding")(x).astype(jnp.float32)


class SmallConvNet(nn.Module):
    """Four 3×3 convolutions, each with batch norm, ReLU and 2×2 max-pooling, and a pooled head.

    Attributes:
        dim: width D of the embeddings.
        features: channels of each convolution.
        pooling: how the head pools over space; see ``EmbeddingHead``.
        freeze_batch_norm: whether batch norm always uses its running statistics and never updates them.
        dtype: type to compute in; parameters, statistics and output stay float32.

    Implementation notes:
        Convolutions are zero padded ("SAME") and have no bias. Pooling drops the last row of an odd side and does not
        pool a side of length 1: one set of parameters fits images of any size from 1×1.

    Example:
        >>> net = SmallConvNet(dim=16, pooling="max")
        >>> variables = net.init(jax.random.key(0), jnp.zeros((1, 28, 28, 1)))
        >>> net.apply(variables, jnp.zeros((3, 105, 105, 1))).shape
        (3, 16)
    """

    dim: int = 128
    features: Sequence[int] = (32, 64, 64, 64)
    pooling: str = EmbeddingHead.pooling
    freeze_batch_norm: bool = False
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
        """Embed images ``[B, H, W, C]``, as :mod:`jdml.models` says."""
        conv = partial(nn.Conv, use_bias=False, dtype=self.dtype, conv_general_dilated=convolve)
        x = as_floating(images, self.dtype)
        for features in self.features:
            x = conv(features, (3, 3))(x)
            x = BatchNorm(self.freeze_batch_norm or not train, dtype=self.dtype)(x)
            x = max_pool_2x2(nn.relu(x))
        return EmbeddingHead(self.dim, self.pooling, dtype=self.dtype, name="head")(x)


@jax.custom_vjp
def max_pool_2x2(x: jax.Array) -> jax.Array:
    """2×2 max-pooling with stride 2; a side of length 1 is not pooled, an odd side loses its last row or column."""
    # `layers.max_pool` is as quick, but compiles a seventh longer.
    return _corners(x).max((2, 4))


def _corners(x: jax.Array) -> jax.Array:
    """Reshape to ``[B, ⌊H/2⌋, 2, ⌊W/2⌋, 2, C]``; a side of length 1 is one corner."""
    batch, height, width, channels = x.shape
    down, across = min(height, 2), min(width, 2)
    x = x[:, : height // down * down, : width // across * across]
    return x.reshape(batch, height // down, down, width // across, across, channels)


def _max_pool_2x2_forward(x: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    largest = max_pool_2x2(x)
    return largest, (x, largest)


def _max_pool_2x2_backward(
    residuals: tuple[jax.Array, jax.Array], up: jax.Array
) -> tuple[jax.Array]:
    """Share the gradient equally among the largest corners."""
    x, largest = residuals
    corners, transpose = jax.vjp(_corners, x)
    is_largest = corners == largest[:, :, None, :, None]
    # At least 1: a compiler may recompute x with other rounding, and then no corner is the largest.
    share = up / jnp.maximum(is_largest.sum((2, 4), dtype=up.dtype), 1)
    return transpose(jnp.where(is_largest, share[:, :, None, :, None], 0))


max_pool_2x2.defvjp(_max_pool_2x2_forward, _max_pool_2x2_backward)


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

    Convolutions 7×7, 1×1 and 3×3 to 64, 64 and 192 channels and ten inception blocks, each of a 1×1 convolution, a 3×3,
    two 3×3 in a row and a pooling side by side. The third and the eighth block halve the resolution.

    Attributes:
        dim: width D of the embeddings.
        pooling: how the head pools over space; see ``EmbeddingHead``.
        freeze_batch_norm: whether batch norm always uses its running statistics and never updates them.
        dtype: type to compute in; parameters, statistics and output stay float32.

    Implementation notes:
        As in the Caffe model and its PyTorch port: convolutions have a bias before batch norm (ε = 1e-5), the two first
        max-poolings begin at the first pixel and drop nothing at the end, average pooling counts the padding, and the
        images are BGR in 0…255 minus (104, 117, 128): ``normalizer("bn_inception")``. Maps of odd sides, which the port
        refuses, are padded on both ends.

    Reference:
        Ioffe & Szegedy, *Batch Normalization: Accelerating Deep Network Training by Reducing Internal Covariate Shift*.

    Example:
        >>> images = jax.ShapeDtypeStruct((2, 224, 224, 3), jnp.float32)
        >>> jax.eval_shape(BNInception(dim=64).init_with_output, jax.random.key(0), images)[0].shape
        (2, 64)
    """

    dim: int = 512
    pooling: str = EmbeddingHead.pooling
    freeze_batch_norm: bool = False
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
        """Embed images ``[B, H, W, C]``, as :mod:`jdml.models` says."""
        conv = partial(ConvNorm, use_bias=True, freeze=self.freeze_batch_norm, dtype=self.dtype)
        x = as_floating(images, self.dtype)
        x = _max_pool(conv(64, 7, 2, name="conv1_7x7_s2")(x, train=train))
        x = conv(64, 1, name="conv2_3x3_reduce")(x, train=train)
        x = _max_pool(conv(192, 3, name="conv2_3x3")(x, train=train))
        for name, mix in BLOCKS.items():
            x = Inception(mix, conv, name=name)(x, train=train)
        return EmbeddingHead(self.dim, self.pooling, dtype=self.dtype, name="head")(x)


class Inception(nn.Module):
    """One inception block: four branches, or three with stride 2, side by side."""

    mix: Mix
    conv: Callable[..., ConvNorm]

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Map ``[B, H, W, C]`` to the channels of all branches, concatenated."""
        mix, stride = self.mix, 2 if self.mix.pool == "halve" else 1

        def conv(x: jax.Array, features: int, size: int, name: str, stride: int = 1) -> jax.Array:
            return self.conv(features, size, stride, name=name)(x, train=train)

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


class Stage(NamedTuple):
    """A row of inverted bottlenecks; only the first one has the stride."""

    blocks: int
    size: int
    stride: int
    expansion: int
    features: int


STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0 with a pooled embedding head on its 1,280 channels.

    A 3×3 convolution, sixteen inverted bottlenecks in seven stages (1×1 to six times the channels, depthwise 3×3 or
    5×5, 1×1 back), and a 1×1 convolution to 1,280 channels. ReLU6 everywhere; no squeeze-and-excitation.

    Attributes:
        dim: width D of the embeddings.
        pooling: how the head pools over space; see ``EmbeddingHead``.
        freeze_batch_norm: whether batch norm always uses its running statistics and never updates them.
        dtype: type to compute in; parameters, statistics and output stay float32.

    Implementation notes:
        As in the TensorFlow model and its ports (timm's ``tf_efficientnet_lite0``): "SAME" padding, batch norm with
        ε = 1e-3 and momentum 0.99, images (x − 127) / 128: ``normalizer("efficientnet_lite0")``. timm's own
        ``efficientnet_lite0`` pads symmetrically with ε = 1e-5: not that. No dropout and no stochastic depth.

    Reference:
        Tan & Le, *EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks*; the Lite variants are of
        TensorFlow's model garden.

    Example:
        >>> images = jax.ShapeDtypeStruct((2, 224, 224, 3), jnp.float32)
        >>> jax.eval_shape(EfficientNetLite0(dim=64).init_with_output, jax.random.key(0), images)[0].shape
        (2, 64)
    """

    dim: int = 512
    pooling: str = EmbeddingHead.pooling
    freeze_batch_norm: bool = False
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
        """Embed images ``[B, H, W, C]``, as :mod:`jdml.models` says."""
        conv = partial(
            ConvNorm,
            padding="SAME",
            activation=nn.relu6,
            epsilon=1e-3,
            momentum=0.99,
            freeze=self.freeze_batch_norm,
            dtype=self.dtype,
        )

        def bottleneck(x: jax.Array, stage: Stage, stride: int, name: str) -> jax.Array:
            y, wide = x, x.shape[-1] * stage.expansion
            if stage.expansion > 1:
                y = conv(wide, 1, name=f"{name}_expand")(y, train=train)
            depthwise = conv(wide, stage.size, stride, groups=wide, name=f"{name}_depthwise")
            y = depthwise(y, train=train)
            y = conv(stage.features, 1, activation=None, name=f"{name}_project")(y, train=train)
            return x + y if x.shape == y.shape else y

        x = conv(32, 3, 2, name="stem")(as_floating(images, self.dtype), train=train)
        for number, stage in enumerate(STAGES):
            for index in range(stage.blocks):
                stride = stage.stride if index == 0 else 1
                x = bottleneck(x, stage, stride, f"stage{number}_block{index}")
        x = conv(1280, 1, name="top")(x, train=train)
        return EmbeddingHead(self.dim, self.pooling, dtype=self.dtype, name="head")(x)
