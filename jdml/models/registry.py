"""The networks by name."""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn

from jdml.models.convnets import EpsNet, SmallConvNet
from jdml.models.efficientnet import EfficientNetLite0
from jdml.models.inception import BNInception
from jdml.models.resnets import ResNet, ResNet20V2
from jdml.models.vit import VisionTransformer

NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "eps": EpsNet,
    "small": SmallConvNet,
    "resnet20v2": ResNet20V2,
    "resnet18": partial(ResNet, depth=18),
    "resnet50": partial(ResNet, depth=50),
    "bn_inception": BNInception,
    "efficientnet_lite0": EfficientNetLite0,
    "vit_s16": VisionTransformer,
}


def create(name: str, *, dim: int, **settings: Any) -> nn.Module:
    """Make a network by name.

    For small images `"eps"`, `"small"` and `"resnet20v2"`; for photographs, with pretrained weights to convert
    (`convert_weights`), `"resnet18"`, `"resnet50"`, `"bn_inception"`, `"efficientnet_lite0"` and `"vit_s16"`.

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
    if name not in NETWORKS:
        raise ValueError(f"name must be one of {tuple(NETWORKS)}, got {name!r}")
    return NETWORKS[name](dim=dim, **settings)
