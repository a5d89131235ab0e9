"""Networks that turn images into embeddings: Flax Linen modules, made by name or by hand.

Every network is called as ``net.apply(variables, images, train=False)`` with floating-point images ``[B, H, W, C]`` of
any size, and gives embeddings ``[B, dim]``, float32 and not normalized. With ``train=True`` batch norm uses the batch's
statistics and updates its running ones (collection ``"batch_stats"``, to be passed as mutable). Images of another type
(``TypeError``) or rank, and attributes that are no valid choice (``ValueError``), are refused.

Networks for photographs start from pretrained weights: ``convert_weights`` turns a file of another library into one
that ``load_weights`` puts into a network's variables, and ``normalizer`` prepares images as the weights expect them.
"""

from jdml.models.adapters import WithHead, as_model
from jdml.models.convnets import BNInception, EfficientNetLite0, EpsNet, SmallConvNet
from jdml.models.layers import EmbeddingHead
from jdml.models.resnets import ResNet, ResNet20V2
from jdml.models.vit import VisionTransformer
from jdml.models.weights import (
    Conversion,
    convert_weights,
    create,
    load_weights,
    normalizer,
    weights_settings,
)

__all__ = [
    "BNInception",
    "Conversion",
    "EfficientNetLite0",
    "EmbeddingHead",
    "EpsNet",
    "ResNet",
    "ResNet20V2",
    "SmallConvNet",
    "VisionTransformer",
    "WithHead",
    "as_model",
    "convert_weights",
    "create",
    "load_weights",
    "normalizer",
    "weights_settings",
]
