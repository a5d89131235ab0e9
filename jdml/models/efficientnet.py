"""EfficientNet-Lite0: a small, quick network with strong features, made for phones."""

from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jdml.models.heads import EmbeddingHead
from jdml.models.layers import ConvNorm, as_floating


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

    A 3×3 convolution to 32 channels with stride 2, sixteen inverted bottlenecks in seven stages (1×1 to six times the
    channels, depthwise 3×3 or 5×5, 1×1 back, and the input added where the shape allows), and a 1×1 convolution to
    1,280 channels. ReLU6 everywhere; unlike EfficientNet-B0 there is no squeeze-and-excitation.

    Attributes:
        dim: width D of the embeddings.
        pooling: how the head pools over space; see ``EmbeddingHead``.
        freeze_batch_norm: whether batch norm always uses its running statistics and never updates them; its scale and
            shift go on learning.
        dtype: type to compute in; parameters, statistics and output stay float32.

    Implementation notes:
        As in the TensorFlow model and its ports (timm's ``tf_efficientnet_lite0``): "SAME" padding, batch norm with
        ε = 1e-3 and momentum 0.99, images (x − 127) / 128: ``normalizer("efficientnet_lite0")``. timm's own
        ``efficientnet_lite0`` has the same shapes, but pads symmetrically with ε = 1e-5: not that. No dropout and no
        stochastic depth.

    Reference:
        Tan & Le, *EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks*; the Lite variants are of
        TensorFlow's model garden.

    Example:
        >>> images = jax.ShapeDtypeStruct((2, 224, 224, 3), jnp.float32)
        >>> jax.eval_shape(EfficientNetLite0(dim=64).init_with_output, jax.random.key(0), images)[0].shape
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
