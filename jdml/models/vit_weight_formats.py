"""Names of vision transformers' parameters in the files of other libraries."""

from collections.abc import Mapping
from typing import Any

from jdml.models.weight_formats import TORCH_LEAVES, WeightFormat

Table = Mapping[str, str]
"""Names by a layer's path, or a parameter's where its name follows no rule; a block's layers are relative to it."""


def _format(
    origin: str,
    block: str,
    table: Table,
    settings: Mapping[str, Any] | None = None,
    *,
    transposed: bool = True,
) -> WeightFormat:
    """Make a format of a table."""
    leaves = TORCH_LEAVES if transposed else {}

    def name(path: str) -> str:
        first, _, rest = path.partition("/")
        number = first.removeprefix("block")
        before, path = (block.format(number), rest) if number.isdigit() else ("", path)
        if path in table:
            return before + table[path]
        layer, _, leaf = path.rpartition("/")
        between = "." if transposed else "/"
        full = f"{before}{table[layer]}{between}{leaves.get(leaf, leaf)}"
        return full.replace("in_proj.", "in_proj_")  # as in PyTorch's attention

    return WeightFormat(origin, name, transposed, settings or {})


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
_JAX: Table = {
    "class_token": "cls",
    "positions": "Transformer/posembed_input/pos_embedding",
    "patches": "embedding",
    "norm": "Transformer/encoder_norm",
    "norm0": "LayerNorm_0",
    "norm1": "LayerNorm_2",
    "attention/query": "MultiHeadDotProductAttention_1/query",
    "attention/key": "MultiHeadDotProductAttention_1/key",
    "attention/value": "MultiHeadDotProductAttention_1/value",
    "attention/out": "MultiHeadDotProductAttention_1/out",
    "dense0": "MlpBlock_3/Dense_0",
    "dense1": "MlpBlock_3/Dense_1",
}

_THEIRS = {"resampling": "transformers"}
_LAYER = "encoder.layer.{}."

VIT = (
    _format("timm and DINO", "blocks.{}.", _TIMM),
    _format("transformers", _LAYER, _TRANSFORMERS, _THEIRS),
    _format("the ViT paper's program", "Transformer/encoderblock_{}/", _JAX, transposed=False),
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
