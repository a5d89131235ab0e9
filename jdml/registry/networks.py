"""The networks, one record each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jdml.registry.pointers import resolve


class Images(NamedTuple):
    """How pretrained weights expect their images.

    Attributes:
        mean: subtracted, per channel of the network's input, in units of 0…255.
        std: divided by, in the same units.
        bgr: whether the network reads blue, green, red.
    """

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    bgr: bool = False


@dataclass(frozen=True)
class Network:
    """A network that turns images into embeddings.

    Attributes:
        name: what it is called.
        make: pointer to its class.
        settings: the attributes that the name stands for.
        small_images: whether it is for small images; the others are for photographs.
        layers: what a network for small images is made of, in words.
        pooling: whether it takes ``pooling=``, how it pools over space.
        batch_norm: whether it has batch norm, and so takes ``freeze_batch_norm=``.
        images: how its usual pretrained weights expect images; None where there are none.
        other_images: how other weights of the same network expect them, by the name of both.
        other_settings: attributes with which the network is made for these other weights, by the same names.
        dialects: pointer to what other libraries call its parameters; "" where no weights are converted.
        weights: where published weights are, in words.
    """

    name: str
    make: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    small_images: bool = False
    layers: str = ""
    pooling: bool = True
    batch_norm: bool = True
    images: Images | None = None
    other_images: Mapping[str, Images] = field(default_factory=dict)
    other_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    dialects: str = ""
    weights: str = ""

    @property
    def kind(self) -> Callable[..., Any]:
        """Its class."""
        kind: Callable[..., Any] = resolve(self.make)
        return kind


def _records(*networks: Network) -> dict[str, Network]:
    return {network.name: network for network in networks}


SMALL_IMAGES = 64
"""Up to this height and width images are what the network ``eps`` is for."""


def for_images(side: int | None) -> str:
    """The network of those who name none: by how large images in memory are; None: image files.

    Example:
        >>> for_images(28), for_images(105), for_images(None)
        ('eps', 'small', 'small')
    """
    return "eps" if side is not None and side <= SMALL_IMAGES else "small"


IMAGENET = Images((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))

NETWORKS: dict[str, Network] = _records(
    Network(
        "eps",
        "jdml.models.convnets:EpsNet",
        small_images=True,
        layers="two convolutions, made for 2-D pictures of digits",
        pooling=False,
    ),
    Network(
        "small",
        "jdml.models.convnets:SmallConvNet",
        small_images=True,
        layers="four convolutions, for images of any size",
    ),
    Network(
        "resnet20v2",
        "jdml.models.resnets:ResNet20V2",
        small_images=True,
        layers="nine residual blocks",
    ),
    Network(
        "resnet18",
        "jdml.models.resnets:ResNet",
        {"depth": 18},
        images=IMAGENET,
        dialects="jdml.models.dialects:RESNET",
        weights="resnet18-f37072fd.pth of download.pytorch.org/models, or model.safetensors of timm/resnet18.tv_in1k",
    ),
    Network(
        "resnet50",
        "jdml.models.resnets:ResNet",
        {"depth": 50},
        images=IMAGENET,
        dialects="jdml.models.dialects:RESNET",
        weights="resnet50-0676ba61.pth (the papers' weights) or resnet50-11ad3fa6.pth of download.pytorch.org/models",
    ),
    Network(
        "bn_inception",
        "jdml.models.inception:BNInception",
        images=Images((104.0, 117.0, 128.0), (1.0, 1.0, 1.0), bgr=True),
        dialects="jdml.models.dialects:BN_INCEPTION",
        weights="bn_inception-52deb4733.pth of pretrainedmodels (data.lip6.fr/cadene/pretrainedmodels)",
    ),
    Network(
        "efficientnet_lite0",
        "jdml.models.efficientnet:EfficientNetLite0",
        images=Images((127.0, 127.0, 127.0), (128.0, 128.0, 128.0)),
        dialects="jdml.models.dialects:EFFICIENTNET_LITE0",
        weights="model.safetensors of timm/tf_efficientnet_lite0.in1k on huggingface.co",
    ),
    Network(
        "vit_s16",
        "jdml.models.vit:VisionTransformer",
        batch_norm=False,
        images=Images((127.5, 127.5, 127.5), (127.5, 127.5, 127.5)),
        other_images={"vit_s16_dino": IMAGENET},
        other_settings={"vit_s16_dino": {"resampling": "dino"}},
        dialects="jdml.models.dialects:VIT_S16",
        weights="model.safetensors of timm/vit_small_patch16_224.augreg_in21k on huggingface.co, or DINO's "
        "dino_deitsmall16_pretrain.pth of dl.fbaipublicfiles.com/dino (then train with --input-stats vit_s16_dino)",
    ),
)
"""Every network by its name, those for small images first."""


def pretrained_networks() -> tuple[str, ...]:
    """Name the networks that there are pretrained weights for, to be converted.

    Returns:
        Their names.

    Example:
        >>> pretrained_networks()[:2]
        ('resnet18', 'resnet50')
    """
    return tuple(name for name, network in NETWORKS.items() if network.dialects)


def image_statistics() -> dict[str, Images]:
    """Collect how images are normalized, by network and, for other weights, by the name of both.

    Returns:
        The statistics by name.

    Example:
        >>> image_statistics()["vit_s16"].mean
        (127.5, 127.5, 127.5)
    """
    statistics = {}
    for network in NETWORKS.values():
        if network.images is not None:
            statistics[network.name] = network.images
        statistics.update(network.other_images)
    return statistics
