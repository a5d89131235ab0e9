"""Networks that turn images into embeddings: Flax Linen modules, made by name or by hand.

Every network is called as `net.apply(variables, images, train=False)` with floating-point images
`[B, H, W, C]` and gives embeddings `[B, dim]`, float32 and not normalized. In training, batch norm's
running statistics (collection `"batch_stats"`) are to be passed as mutable.
"""

from typing import Any

import flax.linen as nn

from jdml.models.convnets import EpsNet, SmallConvNet
from jdml.models.heads import EmbeddingHead

__all__ = ["EmbeddingHead", "EpsNet", "SmallConvNet", "create"]

_NETWORKS: dict[str, type[nn.Module]] = {"eps": EpsNet, "small": SmallConvNet}


def create(name: str, *, dim: int, **settings: Any) -> nn.Module:
    """Makes a network by name: `"eps"` (`EpsNet`) or `"small"` (`SmallConvNet`).

    Args:
        name: The network's name.
        dim: Width D of the embeddings.
        **settings: The network's other attributes, such as `pooling` or `dtype`.

    Returns:
        The Linen module, without parameters yet.

    Raises:
        TypeError: If the network has no such attribute.
        ValueError: If there is no network of that name.

    Example:
        >>> create("small", dim=64, pooling="gem").dim
        64
    """
    if name not in _NETWORKS:
        raise ValueError(f"name must be one of {tuple(_NETWORKS)}, got {name!r}")
    return _NETWORKS[name](dim=dim, **settings)
