"""``jdml weights convert``: pretrained weights of other libraries for jdml's networks."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from jdml.registry import NETWORKS, pretrained_networks

if TYPE_CHECKING:
    Architecture = str
else:
    Architecture = Literal[tuple(sorted(pretrained_networks()))]


@dataclass(frozen=True)
class Convert:
    """Convert pretrained weights into a file for jdml.models.load_weights.

    Reads files of torchvision, timm, transformers (Hugging Face), open_clip, DINO and DINOv2, pretrainedmodels,
    efficientnet_lite_pytorch and the ViT paper's program, and checks every parameter's name and shape. A file that
    lacks one, or has another shape, is refused; what it has beyond the network, such as a classifier, is left out and
    listed.

    Which file of which library (jdml downloads nothing):

    {published}
    """

    file: Path
    """What was fetched: a .safetensors or .npz file, or one of PyTorch (.pth, .pt, .bin; needs torch)."""
    arch: Architecture = "resnet50"
    """The network, as in jdml.models.create."""
    out: Path | None = None
    """The .safetensors file to write; ARCH.safetensors by default."""
    names: bool = False
    """Also list every parameter with its name in the file."""

    def execute(self) -> None:
        """Convert, and say what matched."""
        from jdml.cli.terminal import print_table
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


if Convert.__doc__:  # which `python -OO` leaves out
    published = [f"{name}: {NETWORKS[name].weights}" for name in pretrained_networks()]
    Convert.__doc__ = Convert.__doc__.replace("{published}", "\n\n    ".join(published))
