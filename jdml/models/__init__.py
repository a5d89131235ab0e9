"""Networks that turn images into embeddings: Flax Linen modules, made by name or by hand.

Every network is called as ``net.apply(variables, images, train=False)`` with floating-point images
``[B, H, W, C]`` and gives embeddings ``[B, dim]``, float32 and not normalized. In training, batch norm's
running statistics (collection ``"batch_stats"``) are to be passed as mutable.

Networks for photographs start from pretrained weights: ``convert_weights`` turns a file of another library into one
that ``load_weights`` puts into a network's variables, and ``normalizer`` prepares images as the weights expect them.
"""

from jdml.models.adapters import as_model
from jdml.models.convnets import EpsNet, SmallConvNet
from jdml.models.creation import create, normalizer
from jdml.models.efficientnet import EfficientNetLite0
from jdml.models.feature_split import WithHead
from jdml.models.heads import EmbeddingHead
from jdml.models.inception import BNInception
from jdml.models.resnets import ResNet, ResNet20V2
from jdml.models.vit import VisionTransformer
from jdml.models.weights import Conversion, convert_weights, load_weights, weights_settings

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
