"""Small convolutional networks for small images, quick enough to train on a CPU."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jdml.models.convolution import convolve
from jdml.models.heads import EmbeddingHead, check_dim
from jdml.models.layers import as_floating, batch_norm


class EpsNet(nn.Module):
    """The network of the EPS paper's MNIST study.

    3×3 convolution to 32 channels, 3×3 convolution to 64, each followed by ReLU and batch norm;
    2×2 max-pooling; dense 128; dense ``dim``.

    Attributes:
        dim: width D of the embeddings; 2 in the paper, which plots them.
        freeze_batch_norm: whether batch norm always uses its running statistics and never updates them.
        dtype: type to compute in; parameters, statistics and output stay float32.

    Implementation notes:
        The paper leaves open, and here is: zero padding ("SAME"), a ReLU after the dense layer of
        128, batch norm after each of the two ReLUs, and batch-norm momentum 0.9. The embeddings are
        not normalized.

    Reference:
        Levi, Xiao, Wang, Darrell. Rethinking preventing class-collapsing in metric learning with
        margin-based losses. ICCV 2021, section 5.1.

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
        """Embed images.

        Args:
            images: floating-point images ``[B, H, W, C]`` of any size (which
                the first call fixes).
            train: whether batch norm uses the batch's statistics and updates its running ones
                (collection ``"batch_stats"``, to be passed as mutable).

        Returns:
            Embeddings ``[B, dim]``, float32.

        Raises:
            TypeError: if the images are not floating-point.
            ValueError: if they are not of rank 4, or ``dim`` is not positive.
        """
        check_dim(self.dim)
        x = as_floating(images, self.dtype)
        for features in (32, 64):
            x = conv3x3(features, use_bias=True, dtype=self.dtype)(x)
            x = batch_norm(train, self.dtype, freeze=self.freeze_batch_norm)(nn.relu(x))
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
        Convolutions are zero padded ("SAME") and have no bias, which batch norm would take out
        again. A side of odd length loses its last row in pooling, and a side of length 1 is not
        pooled further: images of any size from 1×1 fit, and one set of parameters fits all.

    Example:
        >>> net = SmallConvNet(dim=16, pooling="max")
        >>> variables = net.init(jax.random.key(0), jnp.zeros((1, 28, 28, 1)))
        >>> net.apply(variables, jnp.zeros((3, 105, 105, 1))).shape
        (3, 16)
    """

    dim: int = 128
    features: Sequence[int] = (32, 64, 64, 64)
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
        x = as_floating(images, self.dtype)
        for features in self.features:
            x = conv3x3(features, use_bias=False, dtype=self.dtype)(x)
            x = batch_norm(train, self.dtype, freeze=self.freeze_batch_norm)(x)
            x = max_pool_2x2(nn.relu(x))
        return EmbeddingHead(self.dim, self.pooling, dtype=self.dtype, name="head")(x)


@jax.custom_vjp
def max_pool_2x2(x: jax.Array) -> jax.Array:
    """2×2 max-pooling with stride 2: ``[B, H, W, C]`` → ``[B, ⌊H/2⌋, ⌊W/2⌋, C]``.

    A side of length 1 stays as it is; the last row or column of an odd side is dropped.

    Implementation notes:
        By reshape and max, not by ``nn.max_pool``, whose gradient (select-and-scatter) is slow on
        CPUs: it cost a whole training step of these networks a third of its speed. The value is the
        same; where several of the four are largest, they share the gradient. Forward-mode
        derivatives raise JAX's TypeError.

    Example:
        >>> print(max_pool_2x2(jnp.arange(16.0).reshape(1, 4, 4, 1))[0, :, :, 0])
        [[ 5.  7.]
         [13. 15.]]
    """
    return _corners(x).max((2, 4))


def _corners(x: jax.Array) -> jax.Array:
    """``[B, ⌊H/2⌋, 2, ⌊W/2⌋, 2, C]``; a side of length 1 is one corner."""
    batch, height, width, channels = x.shape
    down, across = min(height, 2), min(width, 2)
    x = x[:, : height // down * down, : width // across * across]
    return x.reshape(batch, height // down, down, width // across, across, channels)


def _max_pool_forward(x: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    largest = max_pool_2x2(x)
    return largest, (x, largest)


def _max_pool_backward(kept: tuple[jax.Array, jax.Array], up: jax.Array) -> tuple[jax.Array]:
    x, largest = kept
    corners, transpose = jax.vjp(_corners, x)
    is_largest = corners == largest[:, :, None, :, None]
    # At least 1: a compiler may compute x anew with other rounding, and then no corner is the largest.
    count = jnp.maximum(is_largest.sum((2, 4), dtype=up.dtype), 1)
    return transpose(jnp.where(is_largest, (up / count)[:, :, None, :, None], 0))


max_pool_2x2.defvjp(_max_pool_forward, _max_pool_backward)


def conv3x3(features: int, *, use_bias: bool, dtype: Any) -> nn.Conv:
    """A zero-padded 3×3 convolution."""
    return nn.Conv(features, (3, 3), use_bias=use_bias, dtype=dtype, conv_general_dilated=convolve)
