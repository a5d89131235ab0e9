"""Vision transformers compared with their weights' origin at two sizes, and conversion of every file's names."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from models import files
from models.files import DEPTH, GRID, HEADS, PROJECTED, WIDTH, convert, random_arrays

from jdml.models import convert_weights, load_weights, weights_settings
from jdml.models.weight_formats import weight_formats
from jdml.registry import NETWORKS


class Reference(NamedTuple):
    """A model of another library, its features, and what our converted file says."""

    network: str
    make: Callable[[], Any]
    pooled: Callable[[Any, Any], Any]
    origin: str = "transformers"
    settings: dict[str, Any] = {"resampling": "transformers"}
    any_size: bool = True


def library(name: str) -> Any:
    """Import a PyTorch library; operators of torchvision, which no network calls, are declared where CUDA is absent."""
    reason = f"compares with {name}: pip install jdml[parity]"
    torch = pytest.importorskip("torch", reason=reason)
    try:
        import torchvision  # noqa: F401
    except ImportError:
        pass  # the library reports the missing package
    except RuntimeError:
        for operator in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{operator}", schema)
    return pytest.importorskip(name, reason=reason, exc_type=ImportError)


def transformers(kind: str, **others: Any) -> Callable[[], Any]:
    """Return a function that makes a model of this kind."""

    def make() -> Any:
        theirs = library("transformers")
        sizes = {"hidden_size": WIDTH, "num_hidden_layers": DEPTH, "num_attention_heads": HEADS}
        config = kind.replace("WithProjection", "").replace("Model", "Config")
        config = getattr(theirs, config)(**sizes, **others)
        return getattr(theirs, kind)(config)

    return make


def timm(name: str, patch: int) -> Callable[[], Any]:
    sizes = {"embed_dim": WIDTH, "depth": DEPTH, "num_heads": HEADS, "img_size": patch * GRID}
    others = {"num_classes": 0, "dynamic_img_size": True}
    return lambda: library("timm").create_model(name, **sizes, **others)


def open_clip() -> Any:
    theirs = library("open_clip").transformer
    sizes = (16 * GRID, 16, WIDTH, DEPTH, HEADS, 4.0)
    return theirs.VisionTransformer(*sizes, output_dim=PROJECTED, act_layer=theirs.QuickGELU)


def as_is(model: Any, images: Any) -> Any:
    return model(images)


SIZES = {"intermediate_size": 4 * WIDTH, "patch_size": 16, "image_size": 16 * GRID}
BY_14 = {"patch_size": 14, "image_size": 14 * GRID}
REFERENCES = {
    "vit transformers": Reference(
        "vit_s16",
        transformers("ViTModel", **SIZES, layer_norm_eps=1e-6),
        lambda m, x: m(x, interpolate_pos_encoding=True).last_hidden_state[:, 0],
    ),
    "dinov2 transformers": Reference(
        "dinov2_s14", transformers("Dinov2Model", **BY_14), lambda m, x: m(x).pooler_output
    ),
    "registers transformers": Reference(
        "dinov2_s14_reg",
        transformers("Dinov2WithRegistersModel", **BY_14),
        lambda m, x: m(x).pooler_output,
        settings={},
    ),
    "clip transformers": Reference(
        "clip_b16",
        transformers("CLIPVisionModelWithProjection", **SIZES, projection_dim=PROJECTED),
        lambda m, x: m(x, interpolate_pos_encoding=True).image_embeds,
    ),
    "siglip transformers": Reference(
        "siglip_b16",
        transformers("SiglipVisionModel", **SIZES),
        lambda m, x: m(x, interpolate_pos_encoding=True).pooler_output,
    ),
    "vit timm": Reference("vit_b16", timm("vit_base_patch16_224", 16), as_is, "timm and DINO", {}),
    "dinov2 timm": Reference(
        "dinov2_s14", timm("vit_small_patch14_dinov2", 14), as_is, "timm and DINO", {}
    ),
    "registers timm": Reference(
        "dinov2_s14_reg", timm("vit_small_patch14_reg4_dinov2", 14), as_is, "timm", {}
    ),
    "siglip timm": Reference(
        "siglip_b16", timm("vit_base_patch16_siglip_224", 16), as_is, "timm", {"activation": "gelu"}
    ),
    "clip open_clip": Reference("clip_b16", open_clip, as_is, "open_clip and CLIP", {}, False),
}


def randomized(model: Any) -> Any:
    """Return the model with every parameter redrawn, also norms and scales."""
    import torch

    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0, 0.3 if parameter.ndim == 1 else 0.1)
    return model.eval()


def written(model: Any, folder: Path) -> Path:
    """Write a model's file with its library's names."""
    from safetensors.torch import save_file

    if hasattr(model, "save_pretrained"):
        model.save_pretrained(folder)
        return folder / "model.safetensors"
    arrays = {name: array.contiguous() for name, array in model.state_dict().items()}
    save_file(arrays, folder / "model.safetensors")
    return folder / "model.safetensors"


@pytest.mark.slow  # loads PyTorch, timm and transformers
@pytest.mark.filterwarnings("ignore")  # deprecations in other libraries
@pytest.mark.parametrize("name", REFERENCES)
def test_embeddings_equal_the_references(name, small, tmp_path):
    reference = REFERENCES[name]
    pytest.importorskip("torch", reason="compares with PyTorch: pip install jdml[parity]")
    model = randomized(reference.make())
    network, file = small(reference.network), tmp_path / "ours.safetensors"
    done = convert_weights(written(model, tmp_path), file, arch=network)
    assert done.origin == reference.origin
    assert all("mask_token" in part or part.startswith("pooler.") for part in done.unused)
    assert weights_settings(file) == reference.settings
    record = NETWORKS[network]
    width = record.settings.get("projection") or WIDTH
    patch = record.settings["patch"]
    for grid in [(GRID, GRID), (6, 5)][: 1 + reference.any_size]:
        shape = (2, patch * grid[0], patch * grid[1], 3)
        images = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        ours = files.features(network, width, file, images, **reference.settings)
        files.assert_equal_torchs(ours, partial(reference.pooled, model), images)


# Names in files that no reference above writes: DINOv2's own, and timm's CLIP, whose head has a bias.
C, P = WIDTH, PROJECTED
BLOCK = {
    "norm1.weight": (C,), "norm1.bias": (C,), "norm2.weight": (C,), "norm2.bias": (C,),
    "attn.qkv.weight": (3 * C, C), "attn.qkv.bias": (3 * C,), "attn.proj.weight": (C, C), "attn.proj.bias": (C,),
    "mlp.fc1.weight": (4 * C, C), "mlp.fc1.bias": (4 * C,), "mlp.fc2.weight": (C, 4 * C), "mlp.fc2.bias": (C,),
}  # fmt: skip
FILES = {
    "dinov2_s14_reg": ({**BLOCK, "ls1.gamma": (C,), "ls2.gamma": (C,)}, {
        "cls_token": (1, 1, C), "register_tokens": (1, 4, C), "pos_embed": (1, 17, C), "mask_token": (1, C),
        "patch_embed.proj.weight": (C, 3, 14, 14), "patch_embed.proj.bias": (C,),
        "norm.weight": (C,), "norm.bias": (C,),
    }),
    "clip_b16": (BLOCK, {
        "cls_token": (1, 1, C), "pos_embed": (1, 17, C), "patch_embed.proj.weight": (C, 3, 16, 16),
        "norm_pre.weight": (C,), "norm_pre.bias": (C,), "norm.weight": (C,), "norm.bias": (C,),
        "head.weight": (P, C), "head.bias": (P,),
    }),
}  # fmt: skip


def arrays_of(network: str) -> dict[str, np.ndarray]:
    """Return a file's arrays of random numbers; a head bias, which CLIP does not have, is zero."""
    of_block, shapes = FILES[network]
    for number in range(DEPTH):
        shapes = shapes | {f"blocks.{number}.{name}": shape for name, shape in of_block.items()}
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return {name: array * (name != "head.bias") for name, array in arrays.items()}


def named_by(origin: str, network: str) -> dict[str, np.ndarray]:
    """Return random arrays under a library's names."""
    return random_arrays(network, next(x for x in weight_formats(network) if x.origin == origin))


def test_image_encoder_of_transformers_clip_is_converted(small, tmp_path):
    network = small("clip_b16")
    text = {"text_projection.weight", "text_model.final_layer_norm.weight", "logit_scale"}
    arrays = dict.fromkeys(text, np.ones((P, C), np.float32))
    done, _ = convert(arrays | named_by("transformers", network), tmp_path, network)
    assert (done.origin, set(done.unused)) == ("transformers", text)


@pytest.mark.parametrize("file", FILES)
def test_every_array_of_a_file_is_used(file, small, tmp_path):
    network, arrays = small(file), arrays_of(file)
    done, converted = convert(arrays, tmp_path, network)
    assert set(done.unused) <= {"mask_token", "head.bias"}
    params = load_weights(converted, files.zeros(network))["params"]
    value = params["block0"]["attention"]["value"]["kernel"]
    fused = arrays["blocks.0.attn.qkv.weight"]
    np.testing.assert_array_equal(value.reshape(C, C), fused[2 * C :].T)


def test_positions_of_another_grid_set_the_grid(small, tmp_path):
    network = small("siglip_b16")
    arrays = named_by("timm", network)
    arrays["pos_embed"] = np.ones((1, 36, C), np.float32)
    _, file = convert(arrays, tmp_path, network)
    assert weights_settings(file) == {"activation": "gelu", "grid": 6}
    arrays["pos_embed"] = np.ones((1, 35, C), np.float32)
    with pytest.raises(ValueError, match=r"pos_embed .*\[1, 35, 48\].*\[1, 16, 48\]"):
        convert(arrays, tmp_path, network)


@pytest.mark.parametrize(
    ("file", "network", "change", "named"),
    [
        ("dinov2_s14_reg", "dinov2_s14", {}, "register_tokens"),
        ("clip_b16", "clip_b16", {"head.bias": np.ones(P, np.float32)}, r"head\.bias"),
    ],
)
def test_file_of_another_network_is_refused(file, network, change, named, small, tmp_path):
    with pytest.raises(ValueError, match=rf"in\.safetensors\b.*{named}"):
        convert({**arrays_of(file), **change}, tmp_path, small(network))
