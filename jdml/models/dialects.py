"""What other libraries call the parameters of our networks."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jdml.models.efficientnet import STAGES
from jdml.registry import NETWORKS, resolve


class Dialect(NamedTuple):
    """A naming of one architecture's parameters.

    Attributes:
        origin: whose names they are.
        name: from a parameter's path in our network, without the collection, to its name in the file.
        transposed: whether arrays lie as PyTorch's do (output channels first), and not as Flax's.
        settings: attributes of our network with which it computes what theirs does.
    """

    origin: str
    name: Callable[[str], str]
    transposed: bool = True
    settings: Mapping[str, Any] = {}


TORCH_LEAVES = {
    "kernel": "weight",
    "scale": "weight",
    "bias": "bias",
    "mean": "running_mean",
    "var": "running_var",
}


def torch_dialect(origin: str, layer_name: Callable[[str], str]) -> Dialect:
    """Make a dialect of PyTorch from the names of layers.

    Args:
        origin: whose names they are.
        layer_name: from a layer's path in our network to its name in the file.
    """

    def name(path: str) -> str:
        layer, _, leaf = path.rpartition("/")
        return f"{layer_name(layer)}.{TORCH_LEAVES[leaf]}" if layer else layer_name(leaf)

    return Dialect(origin, name)


def _torchvision_resnet(layer: str) -> str:
    stem = {"stem_conv": "conv1", "stem_norm": "bn1"}
    if layer in stem:
        return stem[layer]
    stage, block, part = _parts(r"stage(\d+)_block(\d+)_(\w+)", layer)
    if part.startswith("shortcut"):
        part = {"shortcut_conv": "downsample.0", "shortcut_norm": "downsample.1"}[part]
    else:
        part = part[:-1].replace("norm", "bn") + str(int(part[-1]) + 1)
    return f"layer{int(stage) + 1}.{block}.{part}"


def _transformers_resnet(layer: str) -> str:
    kind = "convolution" if "conv" in layer else "normalization"
    if layer.startswith("stem"):
        return f"embedder.embedder.{kind}"
    stage, block, part = _parts(r"stage(\d+)_block(\d+)_(\w+)", layer)
    where = "shortcut" if part.startswith("shortcut") else f"layer.{part[-1]}"
    return f"encoder.stages.{stage}.layers.{block}.{where}.{kind}"


def _bn_inception(layer: str) -> str:
    return layer.removesuffix("/conv").replace("/norm", "_bn").replace("/", "_")


def _efficientnet_lite(layer: str) -> str:
    ends = {"stem/conv": "_conv_stem", "stem/norm": "_bn0"}
    ends |= {"top/conv": "_conv_head", "top/norm": "_bn1"}
    if layer in ends:
        return ends[layer]
    stage, block, part, kind = _parts(r"stage(\d+)_block(\d+)_(\w+)/(\w+)", layer)
    number = sum(stage.blocks for stage in STAGES[: int(stage)]) + int(block)
    norm = ("expand", "depthwise", "project").index(part)
    return f"_blocks.{number}." + (f"_{part}_conv" if kind == "conv" else f"_bn{norm}")


def _timm_efficientnet(layer: str) -> str:
    ends = {"stem/conv": "conv_stem", "stem/norm": "bn1"}
    ends |= {"top/conv": "conv_head", "top/norm": "bn2"}
    if layer in ends:
        return ends[layer]
    stage, block, part, kind = _parts(r"stage(\d+)_block(\d+)_(\w+)/(\w+)", layer)
    names = {"expand": "conv_pw", "depthwise": "conv_dw", "project": "conv_pwl"}
    if STAGES[int(stage)].expansion == 1:
        names = {"depthwise": "conv_dw", "project": "conv_pw"}
    norm = tuple(names).index(part) + 1
    return f"blocks.{stage}.{block}." + (names[part] if kind == "conv" else f"bn{norm}")


def _parts(pattern: str, layer: str) -> tuple[str, ...]:
    match = re.fullmatch(pattern, layer)
    assert match, layer
    return match.groups()


RESNET = (
    torch_dialect("torchvision and timm", _torchvision_resnet),
    torch_dialect("transformers", _transformers_resnet),
)
BN_INCEPTION = (torch_dialect("pretrainedmodels", _bn_inception),)
EFFICIENTNET_LITE0 = (
    torch_dialect("efficientnet_lite_pytorch", _efficientnet_lite),
    torch_dialect("timm", _timm_efficientnet),
)


def dialects(name: str) -> tuple[Dialect, ...]:
    """Return the dialects in which a network's weights are published; none where it has none.

    Args:
        name: the network's name.
    """
    pointer = NETWORKS[name].dialects
    return resolve(pointer) if pointer else ()
