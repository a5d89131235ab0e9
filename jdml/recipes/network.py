"""The network of a recipe, and what of it learns."""

import dataclasses
import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import jax.numpy as jnp

from jdml import adapt, models
from jdml._import_path import is_pointer
from jdml.data import ImageFiles
from jdml.models.weights import settings_of
from jdml.ops.checks import non_negative, one_of, open_unit_interval, positive
from jdml.recipes.config import Config, RecipeError, check_regex
from jdml.registry import NETWORKS
from jdml.registry.networks import OWN, for_images

BACKBONE = "backbone"
"""Value of ``freeze`` for all of a network but its embedding head."""
HEAD = "head"
"""The embedding layer of every network that has a backbone."""
ALL_BUT_HEAD = f"(?!{HEAD}(?:/|$)).*"


@dataclasses.dataclass(frozen=True)
class NetworkConfig(Config):
    """The network, and how it is built."""

    name: str | None = None
    """The network, or package.module:factory. None: small, or eps for tiny images."""
    dim: Annotated[int, positive] = 64
    """Dimension of the embeddings."""
    pooling: str | None = None
    """How the network pools over space. None: its own way."""
    head_init: Literal["random", "principal"] = "random"
    """Begin the head at random, or on principal directions of pretrained features."""
    dtype: Literal["bfloat16", "float16", "float32"] = "float32"
    """Type that the network computes in; float16 scales the loss."""
    remat: bool = False
    """Recompute a vision transformer's blocks for the gradient, to save memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name is not None and not is_pointer(self.name):
            one_of("network", self.name, (*NETWORKS, OWN))

    def resolve(self, images: Any) -> str:
        """Return the network's name, chosen by the images where the recipe has none."""
        if self.name is not None:
            return self.name
        return for_images(None if isinstance(images, ImageFiles) else max(images.shape[1:3]))

    def build(
        self,
        images: Any,
        *,
        freeze_batch_norm: bool | None = False,
        pretrained: Any = None,
        **own: Any,
    ) -> Any:
        """Make one of the library's networks.

        Args:
            images: those it is for, ``[N, H, W, C]`` or image files, by which it is chosen where it has no name.
            freeze_batch_norm: whether batch norm keeps its running statistics; None: where the network has any.
            pretrained: a file of weights that says how the network is made, or a partial of
                :func:`jdml.models.load_weights`.
            **own: more attributes of the network.

        Returns:
            The Linen module.

        Raises:
            ValueError: pooling, batch norm or blocks that the network does not have.

        Example:
            >>> import numpy as np
            >>> NetworkConfig("small", dim=8).build(np.zeros([1, 32, 32, 3])).dim
            8
        """
        name = self.resolve(images)
        record, settings = NETWORKS[name], dict[str, Any]()
        if self.pooling is not None:
            if not record.pooling:
                raise RecipeError(f"{{pooling}} is not for {{network}} {name}, which has its own")
            settings["pooling"] = self.pooling
        if freeze_batch_norm or (freeze_batch_norm is None and record.batch_norm):
            if not record.batch_norm:
                raise RecipeError(f"{{network}} {name} has no batch norm to freeze")
            settings["freeze_batch_norm"] = True
        if self.remat:
            if not hasattr(record.kind, "remat"):
                raise RecipeError(
                    f"{{remat}} is for vision transformers, {{network}} {name} has no blocks"
                )
            settings["remat"] = True
        if self.dtype != "float32":
            settings["dtype"] = jnp.dtype(self.dtype).type
        return models.create(
            name, dim=self.dim, **{**settings_of(pretrained, name), **settings, **own}
        )

    def blocks(self, field: str, instead: str = "") -> tuple[str, str]:
        """Return the patterns of what comes before the network's blocks, and of these, for a field that needs them."""
        record = NETWORKS.get(self.name or "")
        if record is None or record.blocks is None:
            known = ", ".join(name for name, network in NETWORKS.items() if network.blocks)
            raise RecipeError(
                f"{{{field}}} needs a {{network}} with blocks ({known}), got {self.name}{instead}"
            )
        return record.blocks


@dataclasses.dataclass(frozen=True)
class FinetuneConfig(Config):
    """The parts of the network that learn, how fast by depth, and from when on."""

    freeze: str | None = None
    """Frozen parameters: backbone, or a regular expression of their paths."""
    lora: Annotated[int | None, positive] = None
    """Rank of low-rank changes of the blocks' kernels; the rest is frozen but the head."""
    last_blocks: Annotated[int | None, positive] = None
    """Train only the network's last blocks, so many, and what follows."""
    layer_decay: Annotated[float | None, open_unit_interval] = None
    """Factor of the learning rate from each block to the one before it."""
    lora_alpha: Annotated[float | None, positive] = None
    """Low-rank changes are multiplied by this over the rank. None: by 1."""
    lora_paths: str | None = None
    """Arrays that change, as a regular expression. None: the blocks' kernels."""
    cached_views: Annotated[int, non_negative] = 1
    """With a frozen backbone: views of each image whose features are cached; 0: none."""
    freeze_batch_norm: bool = False
    """Keep the running statistics of batch norm."""
    backbone_freeze_epochs: Annotated[int, non_negative] = 0
    """First epochs in which only the head and the loss's parameters learn."""
    backbone_freeze_steps: Annotated[int | None, non_negative] = None
    """First steps in which only these learn, in place of epochs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("freeze", "lora_paths"):
            check_regex(name, getattr(self, name))
        chosen = [n for n in ("freeze", "last_blocks", "lora") if getattr(self, n) is not None]
        if len(chosen) > 1:
            raise RecipeError(
                f"{{{chosen[0]}}} and {{{chosen[1]}}} both say what is frozen: give one of them"
            )
        if self.cached_views != 1 and self.freeze != BACKBONE:
            raise RecipeError(f"{{cached_views}} needs {{freeze}} {BACKBONE}, got {self.freeze}")
        for name in ("lora_alpha", "lora_paths"):
            if getattr(self, name) is not None and self.lora is None:
                raise RecipeError(f"{{{name}}} needs {{lora}}, a rank")
        if self.layer_decay is not None and (self.lora is not None or self.freeze == BACKBONE):
            name = "lora" if self.freeze is None else "freeze"
            raise RecipeError(
                f"{{layer_decay}} is for blocks that learn; with {{{name}}} {getattr(self, name)} they are frozen"
            )

    @property
    def freezes(self) -> bool:
        """Whether anything of the network is frozen throughout."""
        return any(x is not None for x in (self.freeze, self.last_blocks, self.lora))

    @property
    def caches_features(self) -> bool:
        """Whether features of the backbone are computed once."""
        return self.freeze == BACKBONE and self.cached_views > 0

    def frozen_pattern(self, network: NetworkConfig, names: Iterable[str]) -> str | None:
        """Return which parameters are frozen.

        Args:
            network: the network's part of the recipe.
            names: the first names of the network's parameters.

        Returns:
            A pattern of their paths, see :func:`jdml.adapt.matching`; None where all learn.

        Raises:
            ValueError: a network without a head of its own, or with fewer blocks.

        Example:
            >>> FinetuneConfig(freeze="backbone").frozen_pattern(NetworkConfig(), ["stem", "head"])
            '(?!head(?:/|$)).*'
            >>> vit = NetworkConfig("vit_s16")
            >>> names = ["patches", "block0", "block1", "norm", "head"]
            >>> FinetuneConfig(last_blocks=1).frozen_pattern(vit, names)
            'block0|patches'
        """
        names = list(names)
        if self.freeze == BACKBONE:
            if HEAD not in names:
                raise RecipeError(
                    f"{{freeze}} backbone needs a network whose embedding layer is called {HEAD}, got one of "
                    f"{', '.join(names)}: write a pattern of what is to be frozen"
                )
            return ALL_BUT_HEAD
        if self.last_blocks is None:
            return self.freeze
        depth = adapt.depths(names, *network.blocks("last_blocks"))
        there = max(depth.values(), default=0) - 1
        if self.last_blocks >= there:
            raise RecipeError(
                f"{{last_blocks}} must be below the network's {there} blocks, got {self.last_blocks}"
            )
        frozen = [name for name in names if depth[name] <= there - self.last_blocks]
        return "|".join(map(re.escape, sorted(frozen)))

    def lora_pattern(self, network: NetworkConfig) -> str:
        r"""Return which arrays learn changes of low rank, as a pattern of their paths.

        Raises:
            ValueError: a network of which no blocks are known.

        Example:
            >>> FinetuneConfig(lora=8).lora_pattern(NetworkConfig("vit_s16"))
            '(?:block\\d+).*/kernel'
        """
        if self.lora_paths is not None:
            return self.lora_paths
        _, blocks = network.blocks("lora", ": of others {lora_paths} says what changes")
        return f"(?:{blocks}).*/kernel"
