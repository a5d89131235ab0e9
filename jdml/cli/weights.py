"""``jdml weights convert``: pretrained weights of other libraries for jdml's networks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Architecture = Literal["resnet18", "resnet50", "bn_inception", "efficientnet_lite0", "vit_s16"]


@dataclass(frozen=True)
class Convert:
    """Convert pretrained weights into a file for jdml.models.load_weights.

    Reads files of torchvision, timm, transformers (Hugging Face), DINO, pretrainedmodels, efficientnet_lite_pytorch and
    the ViT paper's program, and checks every parameter's name and shape. A file that lacks one, or has another shape,
    is refused; what it has beyond the network, such as a classifier, is left out and listed.

    Example: jdml weights convert resnet50.pth --arch resnet50 --out resnet50.safetensors
    """

    file: Path
    """A .safetensors or .npz file, or one of PyTorch (.pth, .pt, .bin; needs torch)."""
    arch: Architecture = "resnet50"
    """The network, as in jdml.models.create."""
    out: Path | None = None
    """The .safetensors file to write; ARCH.safetensors by default."""
    names: bool = False
    """Also list every parameter with its name in the file."""

    def run(self) -> None:
        """Convert, and say what matched."""
        from jdml.cli.show import print_table
        from jdml.models import convert_weights

        out = self.out or Path(f"{self.arch}.safetensors")
        done = convert_weights(self.file, out, arch=self.arch)
        if self.names:
            print_table(f"{self.file}", ["parameter", "in the file"], list(done.converted.items()))
        print(
            f"{self.arch}, by the names of {done.origin}: "
            f"{len(done.converted)} converted, {len(done.unused)} unused, 0 missing"
        )
        if done.unused:
            print(f"unused: {', '.join(done.unused)}")
        print(f"written: {out}")
