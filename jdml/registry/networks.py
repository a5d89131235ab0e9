"""The networks, one record each."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jdml._optional_imports import resolve


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
        name: the network's name.
        module: pointer to its class.
        settings: the attributes of the class that the name stands for.
        small_images: whether it is for small images; the others are for photographs.
        pooling: whether it takes ``pooling=``, how it pools over space.
        batch_norm: whether it has batch norm, and so takes ``freeze_batch_norm=``.
        images: how its usual pretrained weights expect images; None without such weights.
        other_images: how other weights of the same network expect them, by the name of both.
        other_settings: attributes of the network for these other weights, by the same names.
        weight_formats: pointer to its parameters' names in other libraries; "" if no weights are converted.
        weights: where published weights are, in words.
        blocks: patterns of the first names of its parameters: of those before its blocks, and of a block; None without
            blocks.
    """

    name: str
    module: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    small_images: bool = False
    pooling: bool = True
    batch_norm: bool = True
    images: Images | None = None
    other_images: Mapping[str, Images] = field(default_factory=dict)
    other_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    weight_formats: str = ""
    weights: str = ""
    blocks: tuple[str, str] | None = None

    @property
    def kind(self) -> Callable[..., Any]:
        """The network's class."""
        return resolve(self.module)


SMALL_IMAGES = 64
"""Largest height and width of images for which the network ``eps`` is the default."""
CUSTOM_NETWORK = "package.module:factory"
"""The form of the name of a user's network."""
FACTORY_ARGS = ("dim", "image_size", "seed", "dtype", "remat", "pooling", "freeze_batch_norm")
"""Arguments of such a factory, as far as it takes them."""


def for_images(side: int | None) -> str:
    """Return the default network for images in memory of this height and width; None: image files."""
    return "eps" if side is not None and side <= SMALL_IMAGES else "small"


IMAGENET = Images((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
CLIP = Images((122.7709383, 116.7460125, 104.09373615), (68.5005327, 66.6321579, 70.32316305))
SIGNED = Images((127.5, 127.5, 127.5), (127.5, 127.5, 127.5))
SIZES = {
    "s": ("small", 384, 12, 6),
    "b": ("base", 768, 12, 12),
    "l": ("large", 1024, 24, 16),
    "so400m": ("so400m", 1152, 27, 16),
}
"""Words, widths, depths and numbers of heads of the usual sizes."""


def _vit(
    name: str,
    size: str,
    patch: int,
    grid: int,
    images: Images,
    weights: str,
    other: tuple[str, Images, Mapping[str, Any], str] | None = None,
    **settings: Any,
) -> Network:
    """Return a vision transformer; ``other`` weights have another ending, statistics, settings and place."""
    word, width, depth, heads = SIZES[size]
    weights = f"model.safetensors of {weights.format(word, patch)} on huggingface.co"
    other_images, other_settings = {}, {}
    if other is not None:
        ending, statistics, others, place = other
        weights += f", or {place} (then train with --normalization {name}{ending})"
        other_images, other_settings = {name + ending: statistics}, {name + ending: others}
    shape = {"width": width, "depth": depth, "heads": heads, "patch": patch, "grid": grid}
    family = name.partition("_")[0] + "_registers" * name.endswith("_reg")
    return Network(
        name,
        "jdml.models.vit:VisionTransformer",
        {**shape, **settings},
        batch_norm=False,
        images=images,
        other_images=other_images,
        other_settings=other_settings,
        weight_formats=f"jdml.models.weight_formats:{family.upper()}",
        weights=weights,
        blocks=("patches|positions|class_token|registers|norm_before", r"block\d+"),
    )


def _vits() -> Iterator[Network]:
    """Yield the vision transformers, family by family."""
    dino: dict[str, Any] = {"resampling": "dino"}
    files = {"s": "dino_deitsmall16_pretrain.pth", "b": "dino_vitbase16_pretrain.pth", "l": ""}
    for size, file in files.items():
        other = ("_dino", IMAGENET, dino, f"DINO's {file} of dl.fbaipublicfiles.com/dino")
        weights = "timm/vit_{}_patch{}_224.augreg_in21k"
        yield _vit(f"vit_{size}16", size, 16, 14, SIGNED, weights, other if file else None)
    for size in files:
        place = f"dinov2_vit{size}14_pretrain.pth of dl.fbaipublicfiles.com/dinov2"
        meta = ("_meta", IMAGENET, dino, place)
        shape = (size, 14, 37, IMAGENET)
        name, weights = f"dinov2_{size}14", "facebook/dinov2-{}"
        yield _vit(name, *shape, weights, meta, layer_scale=True)
        weights = "facebook/dinov2-with-registers-{}"
        yield _vit(f"{name}_reg", *shape, weights, layer_scale=True, registers=4)
    laion = ("_laion", CLIP, {"activation": "gelu"}, "open_clip_model.safetensors of LAION's")
    clip: dict[str, Any] = {"norm_before": True, "epsilon": 1e-5, "activation": "quick_gelu"}
    towers = (("b", 32, 7, 512), ("b", 16, 14, 512), ("l", 14, 16, 768))
    for size, patch, grid, projection in towers:
        name, settings = f"clip_{size}{patch}", {**clip, "projection": projection}
        weights = "openai/clip-vit-{}-patch{}"
        yield _vit(name, size, patch, grid, CLIP, weights, laion, **settings)
    siglip = dict[str, Any](class_token=False, pooling="attention", activation="gelu_tanh")
    sizes = (("b", 16, 14, 224, None), ("l", 16, 16, 256, None), ("so400m", 14, 16, 224, 4304))
    for size, patch, grid, side, hidden in sizes:
        tower = f"{{0}}-patch{{1}}-{side}"
        weights = f"google/siglip2-{tower} (or SigLIP 1's siglip-{tower})"
        name, settings = f"siglip_{size}{patch}", siglip | ({"hidden": hidden} if hidden else {})
        yield _vit(name, size, patch, grid, SIGNED, weights, **settings)


RESNETS = {
    18: "resnet18-f37072fd.pth of download.pytorch.org/models, or model.safetensors of timm/resnet18.tv_in1k",
    50: "resnet50-0676ba61.pth (the papers' weights) or resnet50-11ad3fa6.pth of download.pytorch.org/models",
}
"""Published weights of ResNets by depth."""
RESIDUAL = ("stem.*", r"stage\d+_block\d+")
"""First names of the parameters of residual networks."""
_NETWORKS = (
    Network("eps", "jdml.models.convnets:EpsNet", small_images=True, pooling=False),
    Network("small", "jdml.models.convnets:SmallConvNet", small_images=True),
    Network("resnet20v2", "jdml.models.resnets:ResNet20V2", small_images=True),
    *(
        Network(
            f"resnet{depth}",
            "jdml.models.resnets:ResNet",
            {"depth": depth},
            images=IMAGENET,
            weight_formats="jdml.models.weight_formats:RESNET",
            weights=weights,
            blocks=RESIDUAL,
        )
        for depth, weights in RESNETS.items()
    ),
    Network(
        "bn_inception",
        "jdml.models.convnets:BNInception",
        images=Images((104.0, 117.0, 128.0), (1.0, 1.0, 1.0), bgr=True),
        weight_formats="jdml.models.weight_formats:BN_INCEPTION",
        weights="bn_inception-52deb4733.pth of pretrainedmodels (data.lip6.fr/cadene/pretrainedmodels)",
        blocks=("conv.*", r"inception_\w\w"),
    ),
    Network(
        "efficientnet_lite0",
        "jdml.models.convnets:EfficientNetLite0",
        images=Images((127.0, 127.0, 127.0), (128.0, 128.0, 128.0)),
        weight_formats="jdml.models.weight_formats:EFFICIENTNET_LITE0",
        weights="model.safetensors of timm/tf_efficientnet_lite0.in1k on huggingface.co",
        blocks=RESIDUAL,
    ),
    *_vits(),
)
NETWORKS: dict[str, Network] = {network.name: network for network in _NETWORKS}
"""Every network by its name, those for small images first."""


def pretrained_networks() -> tuple[str, ...]:
    """Return the networks that have pretrained weights to convert.

    Returns:
        Their names.

    Example:
        >>> pretrained_networks()[:2]
        ('resnet18', 'resnet50')
    """
    return tuple(name for name, network in NETWORKS.items() if network.weight_formats)


def image_statistics() -> dict[str, Images]:
    """Return how images are normalized, by network and, for other weights, by the name of both.

    Returns:
        The statistics by name.

    Example:
        >>> image_statistics()["vit_s16"].mean
        (127.5, 127.5, 127.5)
    """
    statistics = {each.name: each.images for each in NETWORKS.values() if each.images is not None}
    for network in NETWORKS.values():
        statistics |= network.other_images
    return statistics
