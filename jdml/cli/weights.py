"""``jdml weights convert``: pretrained weights of other libraries for jdml's networks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Architecture = Literal["bn_inception", "efficientnet_lite0", "resnet18", "resnet50", "vit_s16"]


@dataclass(frozen=True)
class Convert:
    """Convert pretrained weights into a file for jdml.models.load_weights.

    Reads files of torchvision, timm, transformers (Hugging Face), DINO, pretrainedmodels, efficientnet_lite_pytorch and
    the ViT paper's program, and checks every parameter's name and shape. A file that lacks one, or has another shape,
    is refused; what it has beyond the network, such as a classifier, is left out and listed.

    Which file of which library (jdml downloads nothing):

    resnet18: resnet18-f37072fd.pth of download.pytorch.org/models, or model.safetensors of timm/resnet18.tv_in1k

    resnet50: resnet50-0676ba61.pth (the papers' weights) or resnet50-11ad3fa6.pth of download.pytorch.org/models

    bn_inception: bn_inception-52deb4733.pth of pretrainedmodels (data.lip6.fr/cadene/pretrainedmodels)

    efficientnet_lite0: model.safetensors of timm/tf_efficientnet_lite0.in1k on huggingface.co

    vit_s16: model.safetensors of timm/vit_small_patch16_224.augreg_in21k on huggingface.co, or DINO's
    dino_deitsmall16_pretrain.pth of dl.fbaipublicfiles.com/dino (then train with --input-stats vit_s16_dino)
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
