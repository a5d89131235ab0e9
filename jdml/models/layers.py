"""Layers that the networks share: batch norm, max-pooling, convolution with batch norm, and the embedding head."""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jdml.models.convolution import convolve, windows
from jdml.ops.checks import one_of


def as_floating(images: jax.Array, dtype: Any) -> jax.Array:
    """Check the images and bring them to the type to compute in."""
    if not jnp.issubdtype(images.dtype, jnp.floating):
        raise TypeError(f"images must be floating-point (uint8 / 255), got {images.dtype}")
    if images.ndim != 4:
        raise ValueError(f"images must have shape [B, H, W, C], got {list(images.shape)}")
    return images.astype(dtype)


class BatchNorm(nn.Module):
    """``flax.linen.BatchNorm`` with half of its memory: the only array of x's size stored for the gradient is x."""

    use_running_average: bool
    momentum: float = 0.9
    epsilon: float = 1e-5
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map ``[..., C]`` to the same shape."""
        channels = (x.shape[-1],)
        scale = self.param("scale", nn.initializers.ones, channels, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, channels, jnp.float32)
        mean = self.variable("batch_stats", "mean", jnp.zeros, channels, jnp.float32)
        variance = self.variable("batch_stats", "var", jnp.ones, channels, jnp.float32)
        if self.use_running_average:
            y = _standardize(self.epsilon, x, scale, bias, mean.value, variance.value)
        else:
            y, batch_mean, batch_variance = _standardize_batch(self.epsilon, x, scale, bias)
            if not self.is_initializing():
                keep = self.momentum
                mean.value = keep * mean.value + (1 - keep) * batch_mean
                variance.value = keep * variance.value + (1 - keep) * batch_variance
        return y.astype(self.dtype)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _standardize(
    epsilon: float,
    x: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
) -> jax.Array:
    return (x - mean) * (scale * jax.lax.rsqrt(variance + epsilon)) + bias


@_standardize.defjvp
def _standardize_jvp(
    epsilon: float, primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
    x, scale, _, mean, variance = primals
    dx, dscale, dbias, dmean, dvariance = tangents
    inverse = jax.lax.rsqrt(variance + epsilon)
    dslope = dscale * inverse - dvariance * scale * inverse**3 / 2
    dy = (dx - dmean) * (scale * inverse) + _recentre(x, mean) * dslope + dbias
    return _standardize(epsilon, *primals), dy


def _recentre(x: jax.Array, mean: jax.Array) -> jax.Array:
    """Return x − μ, behind a barrier: otherwise the compiler would store x − μ next to x for the gradient."""
    return x - jax.lax.optimization_barrier(mean)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _standardize_batch(
    epsilon: float, x: jax.Array, scale: jax.Array, bias: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the standardized batch, its mean and its variance."""
    axes, wide = tuple(range(x.ndim - 1)), x.astype(scale.dtype)
    mean = wide.mean(axes)
    variance = jnp.maximum(0, jnp.square(wide).mean(axes) - jnp.square(mean))
    return _standardize(epsilon, wide, scale, bias, mean, variance), mean, variance


def _standardize_forward(
    epsilon: float, x: jax.Array, scale: jax.Array, bias: jax.Array
) -> tuple[tuple[jax.Array, jax.Array, jax.Array], tuple[jax.Array, ...]]:
    y, mean, variance = _standardize_batch(epsilon, x, scale, bias)
    return (y, mean, variance), (x, scale, mean, variance)


def _standardize_backward(
    epsilon: float, residuals: tuple[jax.Array, ...], ups: tuple[jax.Array, jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, scale, mean, variance = residuals
    up, axes, count = ups[0], tuple(range(x.ndim - 1)), x.size // x.shape[-1]
    inverse = jax.lax.rsqrt(variance + epsilon)
    slope = scale * inverse
    by_bias, by_scale = up.sum(axes), (up * _recentre(x, mean)).sum(axes) * inverse
    tilt = slope * inverse * by_scale / count
    dx = up * slope - x * tilt + (mean * tilt - slope * by_bias / count)
    return dx.astype(x.dtype), by_scale, by_bias


_standardize_batch.defvjp(_standardize_forward, _standardize_backward)


Window = tuple[tuple[int, int], tuple[int, int], tuple[tuple[int, int], ...]]
"""The shape, the strides and the padding of a max-pooling."""


def max_pool(x: jax.Array, size: int, stride: int, padding: Sequence[tuple[int, int]]) -> jax.Array:
    """Max-pooling of ``[B, H, W, C]`` over windows of size × size; several largest share the gradient."""
    return _max_pool(((size, size), (stride, stride), tuple((a, b) for a, b in padding)), x)


# XLA's gradient takes several times as long on a CPU. A TPU uses it: the first of the largest gets it there.
@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _max_pool(window: Window, x: jax.Array) -> jax.Array:
    return jax.lax.platform_dependent(
        x,
        tpu=lambda x: nn.max_pool(x, *window),
        default=lambda x: reduce(jnp.maximum, _pooled_places(window, x)),
    )


def _pooled_places(window: Window, x: jax.Array, fill: float = -jnp.inf) -> list[jax.Array]:
    shape, strides, padding = window
    padded = jnp.pad(x, ((0, 0), *padding, (0, 0)), constant_values=fill)
    return windows(padded, shape, strides)


def _max_pool_forward(window: Window, x: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    largest = _max_pool(window, x)
    return largest, (x, largest)


def _max_pool_backward(
    window: Window, residuals: tuple[jax.Array, ...], up: jax.Array
) -> tuple[jax.Array]:
    return jax.lax.platform_dependent(
        *residuals,
        up,
        tpu=lambda x, _, up: jax.vjp(lambda x: nn.max_pool(x, *window), x)[1](up),
        default=lambda x, largest, up: (_shared(window, x, largest, up),),
    )


def _shared(window: Window, x: jax.Array, largest: jax.Array, up: jax.Array) -> jax.Array:
    """Return the gradient, in equal shares for all the largest places of a window."""
    is_largest = [place == largest for place in _pooled_places(window, x)]
    # At least 1: a compiler may recompute x with other rounding, and then no place is the largest.
    share = up / jnp.maximum(reduce(jnp.add, [here.astype(up.dtype) for here in is_largest]), 1)
    shares = [jnp.where(here, share, 0) for here in is_largest]
    (gradient,) = jax.linear_transpose(partial(_pooled_places, window, fill=0), x)(shares)
    return gradient


_max_pool.defvjp(_max_pool_forward, _max_pool_backward)


def conv(
    features: int, size: int, stride: int = 1, padding: Any = None, **settings: Any
) -> nn.Conv:
    """Return a convolution, padded alike on all sides unless ``padding`` says otherwise, and begun as He's."""
    padding = size // 2 if padding is None else padding
    settings |= {"kernel_init": nn.initializers.he_normal(), "conv_general_dilated": convolve}
    return nn.Conv(features, (size, size), stride, padding, **settings)


class ConvNorm(nn.Module):
    """Convolution, batch norm, activation: ``"conv"`` and ``"norm"`` among the parameters."""

    features: int
    size: int
    stride: int = 1
    padding: Any = None
    groups: int = 1
    use_bias: bool = False
    activation: Callable[[jax.Array], jax.Array] | None = nn.relu
    epsilon: float = BatchNorm.epsilon
    momentum: float = BatchNorm.momentum
    freeze: bool = False
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Map ``[B, H, W, C]`` to ``[B, H′, W′, features]``."""
        x = conv(
            self.features,
            self.size,
            self.stride,
            self.padding,
            feature_group_count=self.groups,
            use_bias=self.use_bias,
            dtype=self.dtype,
            name="conv",
        )(x)
        fixed = self.freeze or not train
        x = BatchNorm(fixed, self.momentum, self.epsilon, self.dtype, name="norm")(x)
        return x if self.activation is None else self.activation(x)


def gem_pool(features: jax.Array, p: jax.Array | float = 3.0, eps: float = 1e-6) -> jax.Array:
    """Return the generalized mean over space, ``(mean max(x, eps)^p)^(1/p)``, of ``[B, H, W, C]``."""
    x = jnp.maximum(features.astype(jnp.float32), eps)
    # Each map is divided by its maximum before the powers are taken: neither a large p nor large features overflow.
    largest = jax.lax.stop_gradient(x.max((1, 2), keepdims=True))
    mean = ((x / largest) ** p).mean((1, 2))
    return largest[:, 0, 0] * mean ** (1 / p)


POOLINGS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "average": lambda x: x.astype(jnp.float32).mean((1, 2)),
    "max": lambda x: x.max((1, 2)).astype(jnp.float32),
    "sum": lambda x: x.astype(jnp.float32).sum((1, 2)),
    "gem": gem_pool,
    "cubic": gem_pool,
    "average+max": lambda x: POOLINGS["average"](x) + POOLINGS["max"](x),
}
"""From feature maps ``[B, H, W, C]`` to ``[B, C]``, accumulated in float32."""


class EmbeddingHead(nn.Module):
    """Pooling over space and one dense layer: feature maps → embeddings.

    Attributes:
        dim: width D of the embeddings.
        pooling: ``"average"``, ``"max"``, ``"sum"``, ``"gem"`` (learned exponent, 3 at the start), ``"cubic"`` (a fixed
            exponent of 3) or ``"average+max"``.
        use_bias: whether the dense layer adds a bias.
        dtype: type the dense layer computes in; parameters and output stay float32.

    Implementation notes:
        Pooling is accumulated in float32 whatever ``dtype`` is. The exponent of GeM is the scalar parameter ``p``. The
        embeddings are not normalized: the losses do that.

    Example:
        >>> head = EmbeddingHead(dim=8, pooling="gem")
        >>> features = jnp.ones((2, 4, 4, 16))
        >>> params = head.init(jax.random.key(0), features)
        >>> head.apply(params, features).shape
        (2, 8)
    """

    dim: int
    pooling: str = "average"
    use_bias: bool = True
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:
        """Pool and project feature maps ``[B, H, W, C]`` to embeddings ``[B, dim]``, float32."""
        one_of("pooling", self.pooling, POOLINGS)
        if features.ndim != 4:
            raise ValueError(f"features must have shape [B, H, W, C], got {list(features.shape)}")
        if self.pooling == "gem":
            power = self.param("p", nn.initializers.constant(3.0), (), jnp.float32)
            pooled = gem_pool(features, power)
        else:
            pooled = POOLINGS[self.pooling](features)
        dense = nn.Dense(self.dim, self.use_bias, self.dtype, name="embedding")
        return dense(pooled).astype(jnp.float32)
