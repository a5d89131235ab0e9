"""From feature maps to embeddings: pooling over space, and the head that ends every network."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

POOLINGS = ("average", "max", "sum", "gem", "cubic", "average+max")


def average_pool(features: jax.Array) -> jax.Array:
    """Mean over space: ``[B, H, W, C]`` → ``[B, C]``, accumulated in float32."""
    return features.astype(jnp.float32).mean((1, 2))


def max_pool(features: jax.Array) -> jax.Array:
    """Maximum over space: ``[B, H, W, C]`` → ``[B, C]`` in float32."""
    return features.max((1, 2)).astype(jnp.float32)


def sum_pool(features: jax.Array) -> jax.Array:
    """Sum over space: ``[B, H, W, C]`` → ``[B, C]``, accumulated in float32."""
    return features.astype(jnp.float32).sum((1, 2))


def average_max_pool(features: jax.Array) -> jax.Array:
    """Mean plus maximum over space: ``[B, H, W, C]`` → ``[B, C]`` in float32."""
    return average_pool(features) + max_pool(features)


def gem_pool(features: jax.Array, p: jax.Array | float = 3.0, eps: float = 1e-6) -> jax.Array:
    r"""Generalized-mean pooling over space.

    .. math:: g_c = \Big(\frac{1}{HW} \sum_{h,w} \max(x_{hwc}, \epsilon)^p\Big)^{1/p}

    p = 1 is average pooling (of what exceeds eps); p → ∞ is max pooling.

    Implementation notes:
        Each map is divided by its maximum before the powers are taken, which leaves the value as it
        is and keeps powers in 0…1: neither a large p nor large features overflow. Features below
        eps get no gradient, so an all-zero map gives eps with a zero gradient.

    Reference:
        Radenović, Tolias, Chum. Fine-tuning CNN image retrieval with no human annotation. 2018.

    Example:
        >>> x = jnp.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 2, 2, 1)
        >>> print(gem_pool(x, 1.0), gem_pool(x, 3.0))
        [[2.5]] [[2.9240177]]
    """
    x = jnp.maximum(features.astype(jnp.float32), eps)
    largest = jax.lax.stop_gradient(x.max((1, 2), keepdims=True))
    mean = ((x / largest) ** p).mean((1, 2))
    return largest[:, 0, 0] * mean ** (1 / p)


def cubic_pool(features: jax.Array) -> jax.Array:
    """Generalized mean of exponent 3 over space: ``[B, H, W, C]`` → ``[B, C]``; MPA's cubic GeM."""
    return gem_pool(features, 3.0)


_FIXED: dict[str, Callable[[jax.Array], jax.Array]] = {
    "average": average_pool,
    "max": max_pool,
    "sum": sum_pool,
    "cubic": cubic_pool,
    "average+max": average_max_pool,
}


class EmbeddingHead(nn.Module):
    """Pooling over space and one dense layer: feature maps → embeddings.

    Attributes:
        dim: width D of the embeddings.
        pooling: ``"average"``, ``"max"``, ``"sum"``, ``"gem"`` (learned exponent, 3 at the start),
            ``"cubic"`` (the same with 3 for good) or ``"average+max"``.
        use_bias: whether the dense layer adds a bias.
        dtype: type the dense layer computes in; parameters and output stay float32.

    Implementation notes:
        Pooling is accumulated in float32 whatever ``dtype`` is. The exponent of GeM is the scalar
        parameter ``p``. The embeddings are not normalized: the losses do that.

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
        """Pool and project feature maps ``[B, H, W, C]`` to embeddings ``[B, dim]``, float32.

        Raises:
            ValueError: if ``features`` is not of rank 4, or ``dim`` or ``pooling`` is not a valid choice.
        """
        check_dim(self.dim)
        if self.pooling not in POOLINGS:
            raise ValueError(f"pooling must be one of {POOLINGS}, got {self.pooling!r}")
        if features.ndim != 4:
            raise ValueError(f"features must have shape [B, H, W, C], got {list(features.shape)}")
        if self.pooling == "gem":
            power = self.param("p", nn.initializers.constant(3.0), (), jnp.float32)
            pooled = gem_pool(features, power)
        else:
            pooled = _FIXED[self.pooling](features)
        dense = nn.Dense(self.dim, self.use_bias, self.dtype, name="embedding")
        return dense(pooled).astype(jnp.float32)


def check_dim(dim: int) -> None:
    """Refuse an embedding width that is not a positive integer."""
    if not isinstance(dim, int) or dim < 1:
        raise ValueError(f"dim must be a positive integer, got {dim!r}")
