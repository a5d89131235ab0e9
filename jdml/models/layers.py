"""What the networks share: checked images, batch norm that can be frozen, convolution + batch norm."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp


def as_floating(images: jax.Array, dtype: Any) -> jax.Array:
    """Checks the images and brings them to the type to compute in."""
    if not jnp.issubdtype(images.dtype, jnp.floating):
        raise TypeError(f"images must be floating-point (uint8 / 255), got {images.dtype}")
    if images.ndim != 4:
        raise ValueError(f"images must have shape [B, H, W, C], got {list(images.shape)}")
    return images.astype(dtype)


def batch_norm(
    train: bool, dtype: Any, *, freeze: bool = False, name: str | None = None, **settings: Any
) -> nn.BatchNorm:
    """Batch norm over the batch and space, by the batch's own statistics in training unless frozen."""
    settings = {"momentum": 0.9, "epsilon": 1e-5, **settings}
    return nn.BatchNorm(use_running_average=freeze or not train, dtype=dtype, name=name, **settings)


class ConvNorm(nn.Module):
    """Convolution, batch norm, activation: `"conv"` and `"norm"` among the parameters.

    Attributes:
        features: Output channels.
        size: Side of the kernel.
        stride: Of the convolution, on both axes.
        padding: As `flax.linen.Conv` takes it; None pads by size // 2 on all sides, as PyTorch's networks do.
        groups: Groups of channels; the number of input channels makes it depthwise.
        use_bias: Whether the convolution adds a bias.
        activation: Applied last; None is no activation.
        epsilon: Of batch norm.
        momentum: Share that the running statistics keep in a step.
        freeze: Whether batch norm always uses its running statistics and never updates them.
        dtype: Type to compute in; parameters and statistics stay float32.

    Example:
        >>> x = jnp.zeros((2, 9, 9, 3))
        >>> ConvNorm(8, 3, stride=2).init_with_output(jax.random.key(0), x, train=False)[0].shape
        (2, 5, 5, 8)
    """

    features: int
    size: int
    stride: int = 1
    padding: Any = None
    groups: int = 1
    use_bias: bool = False
    activation: Callable[[jax.Array], jax.Array] | None = nn.relu
    epsilon: float = 1e-5
    momentum: float = 0.9
    freeze: bool = False
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Maps `[B, H, W, C]` to `[B, H′, W′, features]`."""
        x = nn.Conv(
            self.features,
            (self.size, self.size),
            self.stride,
            padding=self.size // 2 if self.padding is None else self.padding,
            feature_group_count=self.groups,
            use_bias=self.use_bias,
            kernel_init=nn.initializers.he_normal(),
            dtype=self.dtype,
            name="conv",
        )(x)
        x = batch_norm(
            train,
            self.dtype,
            freeze=self.freeze,
            epsilon=self.epsilon,
            momentum=self.momentum,
            name="norm",
        )(x)
        return x if self.activation is None else self.activation(x)
