"""The backbones in PyTorch, from their papers, with the parameters under the names of the published files.

Each module maps images `[B, 3, H, W]` to features `[B, C]` as its architecture pools them. Needs torch.
"""

import torch
from torch import nn
from torch.nn import functional as F


def randomize(net: nn.Module, seed: int = 0) -> nn.Module:
    """Fill batch norm, layer norm and tokens, which start at 0 and 1, with random numbers."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
            if isinstance(module, nn.BatchNorm2d | nn.LayerNorm):
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_(0, 0.1)
        for name in ("cls_token", "pos_embed"):
            if hasattr(net, name):
                getattr(net, name).normal_(0, 0.5)
    return net.eval()


def mean_over_space(x: torch.Tensor) -> torch.Tensor:
    return x.mean((2, 3))


# ResNet, with torchvision's names


class ResidualBlock(nn.Module):
    def __init__(self, before: int, channels: int, stride: int, bottleneck: bool):
        super().__init__()
        after = 4 * channels if bottleneck else channels
        # (channels in, channels out, size, stride) of each convolution
        plan = (
            [(before, channels, 1, 1), (channels, channels, 3, stride), (channels, after, 1, 1)]
            if bottleneck
            else [(before, channels, 3, stride), (channels, channels, 3, 1)]
        )
        for i, (a, b, k, s) in enumerate(plan, start=1):
            setattr(self, f"conv{i}", nn.Conv2d(a, b, k, s, k // 2, bias=False))
            setattr(self, f"bn{i}", nn.BatchNorm2d(b))
        self.length = len(plan)
        if stride != 1 or before != after:
            self.downsample = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for i in range(1, self.length + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            y = F.relu(y) if i < self.length else y
        return F.relu(y + (self.downsample(x) if hasattr(self, "downsample") else x))


class TorchResNet(nn.Module):
    def __init__(self, blocks: tuple[int, ...], bottleneck: bool):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        channels = 64
        for stage, number in enumerate(blocks):
            row = []
            for i in range(number):
                stride = 2 if stage and not i else 1
                row.append(ResidualBlock(channels, 64 << stage, stride, bottleneck))
                channels = (64 << stage) * (4 if bottleneck else 1)
            setattr(self, f"layer{stage + 1}", nn.Sequential(*row))
        self.fc = nn.Linear(channels, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for stage in range(1, 5):
            x = getattr(self, f"layer{stage}")(x)
        return mean_over_space(x)


# BN-Inception, with the names of pretrainedmodels

# block: channels of 1x1, 3x3 (reduced, out), double 3x3 (reduced, out), pooling, projection
MIXES = {
    "3a": (64, 64, 64, 64, 96, "avg", 32),
    "3b": (64, 64, 96, 64, 96, "avg", 64),
    "3c": (0, 128, 160, 64, 96, "stride", 0),
    "4a": (224, 64, 96, 96, 128, "avg", 128),
    "4b": (192, 96, 128, 96, 128, "avg", 128),
    "4c": (160, 128, 160, 128, 160, "avg", 128),
    "4d": (96, 128, 192, 160, 192, "avg", 128),
    "4e": (0, 128, 192, 192, 256, "stride", 0),
    "5a": (352, 192, 320, 160, 224, "avg", 128),
    "5b": (352, 192, 320, 192, 224, "max", 128),
}


class TorchBNInception(nn.Module):
    def __init__(self):
        super().__init__()
        self._add("conv1_7x7_s2", 3, 64, 7, 2)
        self._add("conv2_3x3_reduce", 64, 64, 1)
        self._add("conv2_3x3", 64, 192, 3)
        channels = 192
        for block, (point, r3, c3, rd, cd, pool, projection) in MIXES.items():
            stride = 2 if pool == "stride" else 1
            if point:
                self._add(f"inception_{block}_1x1", channels, point, 1)
                self._add(f"inception_{block}_pool_proj", channels, projection, 1)
            self._add(f"inception_{block}_3x3_reduce", channels, r3, 1)
            self._add(f"inception_{block}_3x3", r3, c3, 3, stride)
            self._add(f"inception_{block}_double_3x3_reduce", channels, rd, 1)
            self._add(f"inception_{block}_double_3x3_1", rd, cd, 3)
            self._add(f"inception_{block}_double_3x3_2", cd, cd, 3, stride)
            channels = c3 + cd + (point + projection if point else channels)
        self.last_linear = nn.Linear(channels, 10)

    def _add(self, name: str, before: int, after: int, size: int, stride: int = 1) -> None:
        setattr(self, name, nn.Conv2d(before, after, size, stride, size // 2))
        setattr(self, f"{name}_bn", nn.BatchNorm2d(after))

    def _run(self, x: torch.Tensor, *names: str) -> torch.Tensor:
        for name in names:
            x = F.relu(getattr(self, f"{name}_bn")(getattr(self, name)(x)))
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(self._run(x, "conv1_7x7_s2"), 3, 2, ceil_mode=True)
        x = self._run(x, "conv2_3x3_reduce", "conv2_3x3")
        x = F.max_pool2d(x, 3, 2, ceil_mode=True)
        for block, (*_, pool, _) in MIXES.items():
            name = f"inception_{block}"
            single = self._run(x, f"{name}_3x3_reduce", f"{name}_3x3")
            parts = (f"{name}_double_3x3_{part}" for part in ("reduce", "1", "2"))
            branches = [single, self._run(x, *parts)]
            if pool == "stride":
                x = torch.cat([*branches, F.max_pool2d(x, 3, 2, ceil_mode=True)], 1)
                continue
            pooled = {"avg": F.avg_pool2d, "max": F.max_pool2d}[pool](x, 3, 1, 1)
            point = self._run(x, f"{name}_1x1")
            x = torch.cat([point, *branches, self._run(pooled, f"{name}_pool_proj")], 1)
        return mean_over_space(x)


# EfficientNet-Lite0, with the names of efficientnet_lite_pytorch

# repeats, size, stride, expansion, channels
LITE0 = [
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
]


class SameConv(nn.Conv2d):
    """TensorFlow's SAME padding: ⌈side / stride⌉ outputs, the odd pixel of padding at the end."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padding = []
        for side, size, stride in zip(x.shape[:1:-1], self.kernel_size, self.stride, strict=True):
            total = max((-(-side // stride) - 1) * stride + size - side, 0)
            padding += [total // 2, total - total // 2]
        return super().forward(F.pad(x, padding))


class LiteBlock(nn.Module):
    def __init__(self, before: int, after: int, size: int, stride: int, expansion: int):
        super().__init__()
        wide = before * expansion
        if expansion > 1:
            self._expand_conv = SameConv(before, wide, 1, bias=False)
            self._bn0 = nn.BatchNorm2d(wide, eps=1e-3)
        self._depthwise_conv = SameConv(wide, wide, size, stride, groups=wide, bias=False)
        self._bn1 = nn.BatchNorm2d(wide, eps=1e-3)
        self._project_conv = SameConv(wide, after, 1, bias=False)
        self._bn2 = nn.BatchNorm2d(after, eps=1e-3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        if hasattr(self, "_expand_conv"):
            y = F.relu6(self._bn0(self._expand_conv(y)))
        y = F.relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        return x + y if x.shape == y.shape else y


class TorchLite0(nn.Module):
    def __init__(self):
        super().__init__()
        self._conv_stem = SameConv(3, 32, 3, 2, bias=False)
        self._bn0 = nn.BatchNorm2d(32, eps=1e-3)
        blocks, channels = [], 32
        for repeats, size, stride, expansion, after in LITE0:
            for i in range(repeats):
                blocks.append(LiteBlock(channels, after, size, stride if i == 0 else 1, expansion))
                channels = after
        self._blocks = nn.ModuleList(blocks)
        self._conv_head = SameConv(channels, 1280, 1, bias=False)
        self._bn1 = nn.BatchNorm2d(1280, eps=1e-3)
        self._fc = nn.Linear(1280, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu6(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        return mean_over_space(F.relu6(self._bn1(self._conv_head(x))))


# ViT-S/16, with the names of timm and DINO


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        weights = (query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5).softmax(-1)
        return self.proj((weights @ value).transpose(1, 2).flatten(2))


class VitBlock(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.ModuleDict(
            {"fc1": nn.Linear(width, 4 * width), "fc2": nn.Linear(4 * width, width)}
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x))))


class TorchViT(nn.Module):
    def __init__(self, width: int = 384, depth: int = 12, heads: int = 6):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 197, width))
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, width, 16, 16)})
        self.blocks = nn.ModuleList([VitBlock(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = self.patch_embed["proj"](x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), patches], 1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.norm(x)[:, 0]


# The networks for small images, which have no published files


class TorchEpsNet(nn.Module):
    def __init__(self, size: int, dim: int):
        super().__init__()
        self.conv0, self.conv1 = nn.Conv2d(1, 32, 3, 1, 1), nn.Conv2d(32, 64, 3, 1, 1)
        self.norm0, self.norm1 = nn.BatchNorm2d(32), nn.BatchNorm2d(64)
        self.dense = nn.Linear(64 * (size // 2) ** 2, 128)
        self.embedding = nn.Linear(128, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm0(F.relu(self.conv0(x)))
        x = F.max_pool2d(self.norm1(F.relu(self.conv1(x))), 2)
        return self.embedding(F.relu(self.dense(x.flatten(1))))


class TorchSmallConvNet(nn.Module):
    def __init__(self, dim: int, channels: tuple[int, ...] = (1, 32, 64, 64, 64)):
        super().__init__()
        pairs = list(zip(channels, channels[1:], strict=False))
        self.convs = nn.ModuleList([nn.Conv2d(a, b, 3, 1, 1, bias=False) for a, b in pairs])
        self.norms = nn.ModuleList([nn.BatchNorm2d(b) for _, b in pairs])
        self.embedding = nn.Linear(channels[-1], dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.max_pool2d(F.relu(norm(conv(x))), 2)
        return self.embedding(mean_over_space(x))


class PreactivationBlock(nn.Module):
    def __init__(self, before: int, channels: int, stride: int):
        super().__init__()
        self.norm0, self.norm1 = nn.BatchNorm2d(before), nn.BatchNorm2d(channels)
        self.conv0 = nn.Conv2d(before, channels, 3, stride, 1, bias=False)
        self.conv1 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        if stride != 1 or before != channels:
            self.shortcut = nn.Conv2d(before, channels, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = F.relu(self.norm0(x))
        changed = self.conv1(F.relu(self.norm1(self.conv0(before))))
        return changed + (self.shortcut(before) if hasattr(self, "shortcut") else x)


class TorchResNet20V2(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3, 1, 1, bias=False)
        blocks, before = [], 16
        for stage, channels in enumerate((16, 32, 64)):
            for index in range(3):
                stride = 2 if stage and not index else 1
                blocks.append(PreactivationBlock(before, channels, stride))
                before = channels
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(64)
        self.embedding = nn.Linear(64, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.embedding(mean_over_space(F.relu(self.norm(self.blocks(self.conv(x))))))


NETWORKS = {
    "resnet18": lambda: TorchResNet((2, 2, 2, 2), bottleneck=False),
    "resnet50": lambda: TorchResNet((3, 4, 6, 3), bottleneck=True),
    "bn_inception": TorchBNInception,
    "efficientnet_lite0": TorchLite0,
    "vit_s16": TorchViT,
}
