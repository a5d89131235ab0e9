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
        return f"{layer_name(layer)}.{TORCH_LEAVES[leaf]}"

    return WeightFormat(origin, name)


def _torchvision_resnet(layer: str) -> str:
    stem = {"stem_conv": "conv1", "stem_norm": "bn1"}
    if layer in stem:
        return stem[layer]
    stage, block, part = re.findall(r"stage(\d+)_block(\d+)_(\w+)", layer)[0]
    if part.startswith("shortcut"):
        part = {"shortcut_conv": "downsample.0", "shortcut_norm": "downsample.1"}[part]
    else:
        part = part[:-1].replace("norm", "bn") + str(int(part[-1]) + 1)
    return f"layer{int(stage) + 1}.{block}.{part}"


def _bn_inception(layer: str) -> str:
    return layer.removesuffix("/conv").replace("/norm", "_bn").replace("/", "_")


BLOCK = r"stage(\d+)_block(\d+)_(\w+)/(\w+)"


def _efficientnet_lite(layer: str) -> str:
    ends = {"stem/conv": "_conv_stem", "stem/norm": "_bn0"}
    ends |= {"top/conv": "_conv_head", "top/norm": "_bn1"}
    if layer in ends:
        return ends[layer]
    stage, block, part, kind = re.findall(BLOCK, layer)[0]
    number = sum(stage.blocks for stage in STAGES[: int(stage)]) + int(block)
    norm = ("expand", "depthwise", "project").index(part)
    return f"_blocks.{number}." + (f"_{part}_conv" if kind == "conv" else f"_bn{norm}")


def _timm_efficientnet(layer: str) -> str:
    ends = {"stem/conv": "conv_stem", "stem/norm": "bn1"}
    ends |= {"top/conv": "conv_head", "top/norm": "bn2"}
    if layer in ends:
        return ends[layer]
    stage, block, part, kind = re.findall(BLOCK, layer)[0]
    names = {"expand": "conv_pw", "depthwise": "conv_dw", "project": "conv_pwl"}
    if STAGES[int(stage)].expansion == 1:
        names = {"depthwise": "conv_dw", "project": "conv_pw"}
    norm = tuple(names).index(part) + 1
    return f"blocks.{stage}.{block}." + (names[part] if kind == "conv" else f"bn{norm}")


RESNET = (torch_format("torchvision and timm", _torchvision_resnet),)
BN_INCEPTION = (torch_format("pretrainedmodels", _bn_inception),)
EFFICIENTNET_LITE0 = (
    torch_format("efficientnet_lite_pytorch", _efficientnet_lite),
    torch_format("timm", _timm_efficientnet),
)


# Vision transformers.

Table = Mapping[str, str]
"""Names by a layer's path, or a parameter's where its name follows no rule; a block's layers are relative to it."""


def _format(
    origin: str, block: str, table: Table, settings: Mapping[str, Any] | None = None
) -> WeightFormat:
    """Make a format of a table."""

    def name(path: str) -> str:
        first, _, rest = path.partition("/")
        number = first.removeprefix("block")
        before, path = (block.format(number), rest) if number.isdigit() else ("", path)
        if path in table:
            return before + table[path]
        layer, _, leaf = path.rpartition("/")
        full = f"{before}{table[layer]}.{TORCH_LEAVES[leaf]}"
        return full.replace("in_proj.", "in_proj_")  # as in PyTorch's attention

    return WeightFormat(origin, name, settings or {})


def _fuse(path: str, name: str) -> Table:
    """Name query, key and value, which are in one array."""
    return {f"{path}/{part}": name for part in ("query", "key", "value")}


_TIMM: Table = {
    "class_token": "cls_token",
    "positions": "pos_embed",
    "registers": "reg_token",
    "patches": "patch_embed.proj",
    "norm_before": "norm_pre",
    "norm": "norm",
    "projection": "head",
    "norm0": "norm1",
    "norm1": "norm2",
    **_fuse("attention", "attn.qkv"),
    "attention/out": "attn.proj",
    "scale0": "ls1.gamma",
    "scale1": "ls2.gamma",
    "dense0": "mlp.fc1",
    "dense1": "mlp.fc2",
    "pool/query": "attn_pool.latent",
    "pool/attention/query": "attn_pool.q",
    "pool/attention/key": "attn_pool.kv",
    "pool/attention/value": "attn_pool.kv",
    "pool/attention/out": "attn_pool.proj",
    "pool/norm": "attn_pool.norm",
    "pool/dense0": "attn_pool.mlp.fc1",
    "pool/dense1": "attn_pool.mlp.fc2",
}
_TRANSFORMERS: Table = {
    "class_token": "embeddings.cls_token",
    "positions": "embeddings.position_embeddings",
    "registers": "embeddings.register_tokens",
    "patches": "embeddings.patch_embeddings.projection",
    "norm": "layernorm",
    "norm0": "layernorm_before",
    "norm1": "layernorm_after",
    "attention/query": "attention.attention.query",
    "attention/key": "attention.attention.key",
    "attention/value": "attention.attention.value",
    "attention/out": "attention.output.dense",
    "dense0": "intermediate.dense",
    "dense1": "output.dense",
}
_TRANSFORMERS_DINOV2: Table = {
    **_TRANSFORMERS,
    "norm0": "norm1",
    "norm1": "norm2",
    "scale0": "layer_scale1.lambda1",
    "scale1": "layer_scale2.lambda1",
    "dense0": "mlp.fc1",
    "dense1": "mlp.fc2",
}
_TRANSFORMERS_SIGLIP: Table = {
    "positions": "embeddings.position_embedding.weight",
    "patches": "embeddings.patch_embedding",
    "norm": "post_layernorm",
    "norm0": "layer_norm1",
    "norm1": "layer_norm2",
    "attention/query": "self_attn.q_proj",
    "attention/key": "self_attn.k_proj",
    "attention/value": "self_attn.v_proj",
    "attention/out": "self_attn.out_proj",
    "dense0": "mlp.fc1",
    "dense1": "mlp.fc2",
    "pool/query": "head.probe",
    **_fuse("pool/attention", "head.attention.in_proj"),
    "pool/attention/out": "head.attention.out_proj",
    "pool/norm": "head.layernorm",
    "pool/dense0": "head.mlp.fc1",
    "pool/dense1": "head.mlp.fc2",
}
_TOWER = "vision_model."
_TRANSFORMERS_CLIP: Table = {
    **_TRANSFORMERS_SIGLIP,
    "class_token": f"{_TOWER}embeddings.class_embedding",
    "positions": f"{_TOWER}embeddings.position_embedding.weight",
    "patches": f"{_TOWER}embeddings.patch_embedding",
    "norm_before": f"{_TOWER}pre_layrnorm",
    "norm": f"{_TOWER}post_layernorm",
    "projection": "visual_projection",
}
_OPEN_CLIP: Table = {
    "class_token": "class_embedding",
    "positions": "positional_embedding",
    "patches": "conv1",
    "norm_before": "ln_pre",
    "norm": "ln_post",
    "projection/kernel": "proj",
    "norm0": "ln_1",
    "norm1": "ln_2",
    **_fuse("attention", "attn.in_proj"),
    "attention/out": "attn.out_proj",
    "dense0": "mlp.c_fc",
    "dense1": "mlp.c_proj",
}
_THEIRS = {"resampling": "transformers"}
_LAYER = "encoder.layer.{}."

VIT = (
    _format("timm and DINO", "blocks.{}.", _TIMM),
    _format("transformers", _LAYER, _TRANSFORMERS, _THEIRS),
)
DINOV2 = (
    _format("timm and DINO", "blocks.{}.", _TIMM),
    _format("transformers", _LAYER, _TRANSFORMERS_DINOV2, _THEIRS),
)
DINOV2_REGISTERS = (
    _format("timm", "blocks.{}.", _TIMM),
    _format("DINOv2", "blocks.{}.", {**_TIMM, "registers": "register_tokens"}),
    _format("transformers", _LAYER, _TRANSFORMERS_DINOV2),
)
CLIP = (
    _format("transformers", f"{_TOWER}encoder.layers.{{}}.", _TRANSFORMERS_CLIP, _THEIRS),
    _format("open_clip and CLIP", "transformer.resblocks.{}.", _OPEN_CLIP),
    _format("timm", "blocks.{}.", _TIMM),
)
SIGLIP = (
    _format("transformers", "encoder.layers.{}.", _TRANSFORMERS_SIGLIP, _THEIRS),
    _format("timm", "blocks.{}.", _TIMM, {"activation": "gelu"}),
)


def weight_formats(name: str) -> tuple[WeightFormat, ...]:
    """Return the formats in which a network's weights are published."""
    return resolve(NETWORKS[name].weight_formats)


POSITIONS = "params/positions"
TOKENS = (POSITIONS, "params/class_token", "params/registers", "params/pool/query")
"""Tokens ``[1, T, C]``; other libraries leave out axes of one entry."""
FUSED = {
    ".qkv.": ("query", "key", "value"),
    ".in_proj_": ("query", "key", "value"),
    ".kv.": ("key", "value"),
}
"""The parts of fused arrays, by a part of their names."""


def from_stored(array: np.ndarray, target: str, shape: Shape, name: str) -> np.ndarray | Shape:
    """Lay out a stored array as our parameter; return the shape that it needs where it has another."""
    if target in TOKENS:
        tokens = _tokens(array, target, shape)
        return shape if tokens is None else tokens
    number, place = _part(target, name)
    expected = stored_shape(target, shape, name)
    if array.shape != expected:
        return expected
    array = np.split(array, number)[place]
    if name.endswith("weight") and target.endswith("/kernel"):
        array = array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T
    return array.reshape(shape)


def stored_shape(target: str, shape: Shape, name: str) -> Shape:
    """Return the shape of a parameter in a file, where it has this name."""
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
