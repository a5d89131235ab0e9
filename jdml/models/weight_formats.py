"""Names and layouts of our networks' parameters in the files of other libraries."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jdml.models.convnets import STAGES
from jdml.registry import NETWORKS, resolve

Shape = tuple[int, ...]


class WeightFormat(NamedTuple):
    """Another library's names and layout of one architecture's parameters."""

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


def torch_format(origin: str, layer_name: Callable[[str], str]) -> WeightFormat:
    """Make a format of PyTorch from the names of layers."""

    def name(path: str) -> str:
        layer, _, leaf = path.rpartition("/")
        return f"{layer_name(layer)}.{TORCH_LEAVES[leaf]}" if layer else layer_name(leaf)

    return WeightFormat(origin, name)


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
    torch_format("torchvision and timm", _torchvision_resnet),
    torch_format("transformers", _transformers_resnet),
)
BN_INCEPTION = (torch_format("pretrainedmodels", _bn_inception),)
EFFICIENTNET_LITE0 = (
    torch_format("efficientnet_lite_pytorch", _efficientnet_lite),
    torch_format("timm", _timm_efficientnet),
)


def weight_formats(name: str) -> tuple[WeightFormat, ...]:
    """Return the formats in which a network's weights are published; none where it has none."""
    pointer = NETWORKS[name].weight_formats
    return resolve(pointer) if pointer else ()


POSITIONS = "params/positions"
TOKENS = (POSITIONS, "params/class_token", "params/registers", "params/pool/query")
"""Tokens ``[1, T, C]``; other libraries leave out axes of one entry."""
FUSED = {
    ".qkv.": ("query", "key", "value"),
    ".in_proj_": ("query", "key", "value"),
    ".kv.": ("key", "value"),
}
"""The parts of fused arrays, by a part of their names."""


def from_stored(
    array: np.ndarray, target: str, shape: Shape, layout: WeightFormat, name: str
) -> np.ndarray | Shape:
    """Lay out a stored array as our parameter; return the shape that it needs where it has another."""
    if target in TOKENS:
        tokens = _tokens(array, target, shape)
        return shape if tokens is None else tokens
    number, place = _part(target, name)
    transposed = layout.transposed and name.endswith("weight")
    expected = stored_shape(target, shape, layout, name)
    if array.shape != expected:
        return expected
    array = np.split(array, number)[place]
    if transposed and target.endswith("/kernel"):
        array = array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T
    return array.reshape(shape)


def stored_shape(target: str, shape: Shape, layout: WeightFormat, name: str) -> Shape:
    """Return the shape of a parameter in a file of a format."""
    if not layout.transposed:
        return shape
    if target.endswith("/kernel") and not name.endswith("weight"):
        return shape
    if target.endswith("/kernel") and len(shape) == 4:
        shape = (shape[3], shape[2], shape[0], shape[1])
    elif target.endswith("/out/kernel"):
        shape = (shape[-1], math.prod(shape[:-1]))
    elif target.endswith("/kernel"):
        shape = (math.prod(shape[1:]), shape[0])
    elif target.endswith("/bias"):
        shape = (math.prod(shape),)
    number, _ = _part(target, name)
    return (number * shape[0], *shape[1:]) if number > 1 else shape


def grid_of(converted: Mapping[str, np.ndarray], shapes: Mapping[str, Shape]) -> dict[str, int]:
    """Return the grid of positions, as a setting of the network, where it is not the default."""
    if POSITIONS not in shapes or converted[POSITIONS].shape == shapes[POSITIONS]:
        return {}
    return {"grid": math.isqrt(converted[POSITIONS].shape[1])}


def _part(target: str, name: str) -> tuple[int, int]:
    """Return how many parameters a stored array holds, and the index of the target."""
    for fused, parts in FUSED.items():
        if fused in name and target.split("/")[-2] in parts:
            return len(parts), parts.index(target.split("/")[-2])
    return 1, 0


def _tokens(array: np.ndarray, target: str, shape: Shape) -> np.ndarray | None:
    """Return tokens ``[1, T, C]``, or positions of any square grid; a class token without a position has zeros."""
    usual, width = shape[1:]
    if array.ndim == 0 or array.shape[-1] != width:
        return None
    tokens = array.reshape(1, -1, width)
    if target != POSITIONS:
        return tokens if tokens.shape[1] == usual else None
    first = usual - math.isqrt(usual) ** 2  # 1 with a class token
    if first and math.isqrt(tokens.shape[1]) ** 2 == tokens.shape[1]:
        tokens = np.concatenate([np.zeros_like(tokens[:, :1]), tokens], 1)
    patches = tokens.shape[1] - first
    return tokens if math.isqrt(patches) ** 2 == patches else None
