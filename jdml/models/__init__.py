"""Networks that turn images into embeddings: Flax Linen modules, made by name or by hand.

Every network is called as `net.apply(variables, images, train=False)` with floating-point images
`[B, H, W, C]` and gives embeddings `[B, dim]`, float32 and not normalized. In training, batch norm's
running statistics (collection `"batch_stats"`) are to be passed as mutable.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn

from jdml.models.convnets import EpsNet, SmallConvNet
from jdml.models.heads import EmbeddingHead
from jdml.models.resnets import ResNet, ResNet20V2

__all__ = ["EmbeddingHead", "EpsNet", "ResNet", "ResNet20V2", "SmallConvNet", "create"]

_NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "eps": EpsNet,
    "small": SmallConvNet,
    "resnet20v2": ResNet20V2,
    "resnet18": partial(ResNet, depth=18),
    "resnet50": partial(ResNet, depth=50),
}


def create(name: str, *, dim: int, **settings: Any) -> nn.Module:
    """Makes a network by name: `"eps"`, `"small"`, `"resnet20v2"`, `"resnet18"` or `"resnet50"`.

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
