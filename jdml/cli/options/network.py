"""Options of the network."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from jdml import registry
from jdml.cli.options.base import ASIDE, IN_RECIPE, Part, as_help
from jdml.recipes import Recipe
from jdml.registry.constraints import non_negative, one_of, positive
from jdml.registry.networks import OFFERED, OWN, SMALL_IMAGES, for_images
from jdml.registry.pointers import is_pointer

if TYPE_CHECKING:
    NetworkName = str
    Statistics = str
else:
    NetworkName = Literal[tuple(sorted(registry.NETWORKS))]
    Statistics = Literal[tuple(sorted(registry.image_statistics()))]
PoolingName = Literal["average", "average+max", "cubic", "gem", "max", "sum"]


def _networks_help() -> Any:
    """What each network for small images is, from its record."""
    small = [
        f"{name}: {network.layers}."
        for name, network in registry.NETWORKS.items()
        if network.small_images
    ]
    in_memory = ", ".join(name for name in registry.DATASETS if name not in registry.file_sets())
    return as_help(
        f"{' '.join(small)} The others are for photographs. Default: that of --weights; without, "
        f"{for_images(SMALL_IMAGES)} for images in memory ({in_memory}) of at most {SMALL_IMAGES} pixels, "
        f"{for_images(None)} for others. Or {OWN}, which makes a network of your own: it is called "
        f"with those of {', '.join(OFFERED)} that it has arguments for."
    )


@dataclass(frozen=True)
class Weights(Part):
    """Pretrained weights, and what the network computes."""

    weights: Path | None = None
    """Pretrained weights of the network, from jdml weights convert; images are then normalized as the weights expect.
    Default: random ones, which take many images to learn from photographs."""
    input_stats: Statistics | None = None
    """Whose weights they are, where not the network's usual ones: how images are normalized, and positions resampled.
    vit_s16_dino for DINO's of a vit_s16. Of --model package.module:factory: as whose weights its images are normalized;
    by default they are numbers from 0 to 1."""
    dim: Annotated[int | None, positive, IN_RECIPE] = None
    """Dimension of the embeddings. Default: 64; jdml benchmark: the paper's."""
    dtype: Annotated[Literal["bfloat16", "float16", "float32"], IN_RECIPE] = "float32"
    """What the network computes in; parameters stay float32. bfloat16: a loss of pairs multiplies the embeddings in it,
    too. float16, for cards without bfloat16, scales the loss."""
    remat: Annotated[bool, IN_RECIPE] = False
    """Compute a vision transformer's blocks again for the gradient: less memory, a third more time."""

    def check(self) -> None:
        """Refuse weights that are no file."""
        super().check()
        if self.weights is not None and not self.weights.is_file():
            raise ValueError(f"--weights must be a file, got {self.weights}")

    def changes(self, base: Recipe) -> dict[str, Any]:
        """Width and numbers."""
        own = self.typed({"dim": "dim", "dtype": "dtype", "remat": "remat"})
        return {**super().changes(base), **own}

    def pretrained(self) -> Any:
        """Return what the model's fresh variables become; None where they stay."""
        from jdml import models

        return None if self.weights is None else partial(models.load_weights, self.weights)

    def network_settings(self, network: str) -> dict[str, Any]:
        """Return the attributes of a network that --input-stats tells, and no file of weights does."""
        own = {} if is_pointer(network) else registry.NETWORKS[network].other_settings
        return dict(own.get(self.input_stats or "", {}))

    def preprocess(self, network: str) -> Any:
        """Return what stands between stored images and a network."""
        from jdml import models

        return models.normalizer(self.input_stats or network)


@dataclass(frozen=True)
class Network(Weights):
    """Which network, and how it is built."""

    model: Annotated[NetworkName | str | None, IN_RECIPE, _networks_help()] = None
    pooling: Annotated[PoolingName | None, IN_RECIPE] = None
    """How the network pools over space. Default: average."""
    head: Annotated[Literal["principal", "random"] | None, IN_RECIPE] = None
    """Where the embedding head begins: random, or on the principal directions of what the network gives it, which keeps
    what pretrained weights know. Default: random; of the recommended recipe (see --loss) principal with --weights."""
    freeze_batch_norm: Annotated[bool, IN_RECIPE] = False
    """Batch norm keeps its running statistics, as pretrained weights bring them; --micro-batch needs it."""
    freeze: Annotated[str | None, IN_RECIPE] = None
    """What of the network stays as it is: backbone, all but the embedding head; or a regular expression of parameters'
    paths or of their first names, such as "block[0-8]|patches". Batch norm keeps its statistics then. Default: all
    learns."""
    kept_views: Annotated[int | None, non_negative, IN_RECIPE] = None
    """With --freeze backbone: of how many views of each image the backbone's features are computed, once. 1 (the
    default): the image as in evaluation; more: augmented ones; 0: images go through the backbone at each step."""
    features: Annotated[Path | None, ASIDE] = None
    """Folder in which these features are kept for other runs. Default: features/ in --out."""
    last_blocks: Annotated[int | None, positive, IN_RECIPE] = None
    """Only so many of the network's last blocks learn, with what comes after them."""
    lora: Annotated[int | None, positive, IN_RECIPE] = None
    """Rank of the changes that the kernels of the network's blocks learn, while all of it but the embedding head stays;
    what is kept is merged."""
    lora_alpha: Annotated[float | None, positive, IN_RECIPE] = None
    """These changes are multiplied by this over --lora. Default: by 1."""
    lora_paths: Annotated[str | None, IN_RECIPE] = None
    """Which arrays learn such changes: a regular expression of their paths. Default: the kernels of the blocks."""

    def check(self) -> None:
        """Refuse what the network does not have."""
        known = sorted(registry.pretrained_networks())
        own = self.model is not None and is_pointer(self.model)
        if self.input_stats is not None and self.weights is None and not own:
            raise ValueError("--input-stats needs --weights, whose images are normalized")
        if self.weights is not None and self.model is not None and self.model not in known:
            raise ValueError(
                f"--weights are those of {', '.join(known[:-1])} or {known[-1]}, got --model {self.model}"
            )
        super().check()
        if self.model is None or own:
            return
        one_of("--model", self.model, (*sorted(registry.NETWORKS), OWN))
        network = registry.NETWORKS[self.model]
        if self.pooling is not None and not network.pooling:
            raise ValueError(f"--pooling is not for --model {self.model}, which has its own")
        if self.freeze_batch_norm and not network.batch_norm:
            raise ValueError(f"--model {self.model} has no batch norm to freeze")

    def settled(self) -> Self:
        """Also name the network, where weights do."""
        options = super().settled()
        if options.model is not None or options.weights is None:
            return options
        from jdml.models.tensors import read_metadata
        from jdml.models.weights import ARCHITECTURE

        model = read_metadata(options.weights).get(ARCHITECTURE)
        if model is None:
            raise ValueError(
                f"--weights {options.weights} does not name its network: convert it first (jdml weights convert)"
            )
        return replace(options, model=model)

    def changes(self, base: Recipe) -> dict[str, Any]:
        """Also the network itself."""
        own = self.typed(
            {
                "model": "network",
                "pooling": "pooling",
                "head": "head",
                "freeze": "freeze",
                "kept_views": "kept_views",
                "last_blocks": "last_blocks",
                "lora": "lora",
                "lora_alpha": "lora_alpha",
                "lora_paths": "lora_paths",
            }
        )
        return {**super().changes(base), **own, "freeze_batch_norm": self.freeze_batch_norm}

    def preprocess(self, network: str) -> Any:
        """Return what stands between stored images and a network: nothing that weights expect, where there are none."""
        from jdml.training import standard

        named = self.weights is not None or self.input_stats is not None
        return super().preprocess(network) if named else standard
