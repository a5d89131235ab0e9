"""The networks, one record each."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jdml._import_path import resolve


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
        module: pointer to its class.
        settings: the attributes that the name stands for.
        small_images: whether it is for small images; the others are for photographs.
        layers: what a network for small images is made of, in words.
        pooling: whether it takes ``pooling=``, how it pools over space.
        batch_norm: whether it has batch norm, and so takes ``freeze_batch_norm=``.
        images: how its usual pretrained weights expect images; None where there are none.
        other_images: how other weights of the same network expect them, by the name of both.
        other_settings: attributes with which the network is made for these other weights, by the same names.
        weight_formats: pointer to what other libraries call its parameters; "" where no weights are converted.
        weights: where published weights are, in words.
        blocks: patterns of the first names of its parameters: what comes before its blocks, and a block; None where it
            has none.
    """

    name: str
    module: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    small_images: bool = False
    layers: str = ""
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
        """Its class."""
        kind: Callable[..., Any] = resolve(self.module)
        return kind


def _records(*networks: Network) -> dict[str, Network]:
    return {network.name: network for network in networks}


SMALL_IMAGES = 64
"""Up to this height and width images are what the network ``eps`` is for."""


OWN = "package.module:factory"
"""How a network of one's own is named: by what makes it."""
OFFERED = ("dim", "image_size", "seed", "dtype", "remat", "pooling", "freeze_batch_norm")
"""Arguments that such a factory gets, if it takes them."""


def for_images(side: int | None) -> str:
    """The network of those who name none: by how large images in memory are; None: image files.

    Example:
        >>> for_images(28), for_images(105), for_images(None)
        ('eps', 'small', 'small')
    """
    return "eps" if side is not None and side <= SMALL_IMAGES else "small"


IMAGENET = Images((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
CLIP = Images((122.7709383, 116.7460125, 104.09373615), (68.5005327, 66.6321579, 70.32316305))
SIGNED = Images((127.5, 127.5, 127.5), (127.5, 127.5, 127.5))


Sizes = tuple[int, int, int]
SIZES: dict[str, tuple[str, Sizes]] = {
    "s": ("small", (384, 12, 6)),
    "b": ("base", (768, 12, 12)),
    "l": ("large", (1024, 24, 16)),
}
"""Usual widths, depths and numbers of heads."""


def _vit(name: str, sizes: Sizes, patch: int, grid: int, **others: Any) -> Network:
    """A vision transformer; of ``others``, ``settings`` go to its own."""
    settings = dict(zip(("width", "depth", "heads"), sizes, strict=True), patch=patch, grid=grid)
    others["settings"] = {**settings, **others.pop("settings", {})}
    before = "patches|positions|class_token|registers|norm_before"
    others["blocks"] = (before, r"block\d+")
    return Network(name, "jdml.models.vit:VisionTransformer", batch_norm=False, **others)


def _or_other(name: str, images: Images, **settings: Any) -> dict[str, Any]:
    """Other weights of a network, which their file does not tell apart."""
    return {"other_images": {name: images}, "other_settings": {name: settings}}


def _vits() -> Iterator[Network]:
    dino = {"s": "dino_deitsmall16_pretrain.pth", "b": "dino_vitbase16_pretrain.pth"}
    for size, (word, sizes) in SIZES.items():
        name = f"vit_{size}16"
        weights = f"model.safetensors of timm/vit_{word}_patch16_224.augreg_in21k on huggingface.co"
        others: dict[str, Any] = {}
        if size in dino:
            weights += f", or DINO's {dino[size]} of dl.fbaipublicfiles.com/dino (then train with "
            weights += f"--normalization {name}_dino)"
            others = _or_other(f"{name}_dino", IMAGENET, resampling="dino")
        weight_formats = "jdml.models.vit_weight_formats:VIT"
        others |= {"images": SIGNED, "weight_formats": weight_formats, "weights": weights}
        yield _vit(name, sizes, 16, 14, **others)


def _dinov2() -> Iterator[Network]:
    for size, (word, sizes) in SIZES.items():
        name = f"dinov2_{size}14"
        yield _vit(
            name,
            sizes,
            14,
            37,
            settings={"layer_scale": True},
            images=IMAGENET,
            weight_formats="jdml.models.vit_weight_formats:DINOV2",
            weights=f"model.safetensors of facebook/dinov2-{word} on huggingface.co, or "
            f"dinov2_vit{size}14_pretrain.pth of dl.fbaipublicfiles.com/dinov2 (then train with "
            f"--normalization {name}_meta)",
            **_or_other(f"{name}_meta", IMAGENET, resampling="dino"),
        )
        yield _vit(
            f"{name}_reg",
            sizes,
            14,
            37,
            settings={"layer_scale": True, "registers": 4},
            images=IMAGENET,
            weight_formats="jdml.models.vit_weight_formats:DINOV2_REGISTERS",
            weights=f"model.safetensors of facebook/dinov2-with-registers-{word} on huggingface.co",
        )


def _clips() -> Iterator[Network]:
    for size, patch, grid, projection in (
        ("b", 32, 7, 512),
        ("b", 16, 14, 512),
        ("l", 14, 16, 768),
    ):
        word, sizes = SIZES[size]
        name = f"clip_{size}{patch}"
        own = {"norm_before": True, "projection": projection, "epsilon": 1e-5}
        yield _vit(
            name,
            sizes,
            patch,
            grid,
            settings={**own, "activation": "quick_gelu"},
            images=CLIP,
            weight_formats="jdml.models.vit_weight_formats:CLIP",
            weights=f"model.safetensors of openai/clip-vit-{word}-patch{patch} on huggingface.co, or "
            f"open_clip_model.safetensors of LAION's (then train with --normalization {name}_laion)",
            **_or_other(f"{name}_laion", CLIP, activation="gelu"),
        )


def _siglips() -> Iterator[Network]:
    own = {"class_token": False, "pooling": "attention", "activation": "gelu_tanh"}
    towers: dict[str, tuple[str, Sizes, int, int, dict[str, Any]]] = {
        "b16": ("base-patch16-224", SIZES["b"][1], 16, 14, own),
        "l16": ("large-patch16-256", SIZES["l"][1], 16, 16, own),
        "so400m14": ("so400m-patch14-224", (1152, 27, 16), 14, 16, {**own, "hidden": 4304}),
    }
    for size, (file, sizes, patch, grid, settings) in towers.items():
        yield _vit(
            f"siglip_{size}",
            sizes,
            patch,
            grid,
            settings=settings,
            images=SIGNED,
            weight_formats="jdml.models.vit_weight_formats:SIGLIP",
            weights=f"model.safetensors of google/siglip2-{file} (or of the first, siglip-{file}) on huggingface.co",
        )


RESIDUAL = ("stem.*", r"stage\d+_block\d+")
"""First names of the parameters of residual networks."""
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
        weight_formats="jdml.models.weight_formats:RESNET",
        weights="resnet18-f37072fd.pth of download.pytorch.org/models, or model.safetensors of timm/resnet18.tv_in1k",
        blocks=RESIDUAL,
    ),
    Network(
        "resnet50",
        "jdml.models.resnets:ResNet",
        {"depth": 50},
        images=IMAGENET,
        weight_formats="jdml.models.weight_formats:RESNET",
        weights="resnet50-0676ba61.pth (the papers' weights) or resnet50-11ad3fa6.pth of download.pytorch.org/models",
        blocks=RESIDUAL,
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
    *_dinov2(),
    *_clips(),
    *_siglips(),
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
    return tuple(name for name, network in NETWORKS.items() if network.weight_formats)


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
