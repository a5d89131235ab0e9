"""The network of a recipe, of the library or of a user's factory, and what of it learns."""

import dataclasses
import functools
import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from jdml import adapt, models
from jdml._optional_imports import call_user_object, import_user_object, is_pointer
from jdml.data import Dataset, ImageFiles
from jdml.models.adapters import HEAD, Object, as_model
from jdml.models.base_adapter import ModelAdapter
from jdml.models.embedding import Preprocess
from jdml.models.from_linen import FromLinen
from jdml.models.weights import settings_of
from jdml.ops.checks import non_negative, one_of, open_unit_interval, positive
from jdml.recipes.config import Config, RecipeError
from jdml.registry import NETWORKS
from jdml.registry.networks import CUSTOM_NETWORK, FACTORY_ARGS, for_images

BACKBONE = "backbone"
"""Value of ``freeze`` for all of a network but its embedding head."""
ALL_BUT_HEAD = f"(?!{HEAD}(?:/|$)).*"


@dataclasses.dataclass(frozen=True)
class NetworkConfig(Config):
    """The network, and how it is built."""

    name: str | None = None
    """The network, or package.module:factory. None: small, or eps for tiny images."""
    dim: Annotated[int, positive] = 64
    """Dimension of the embeddings."""
    pooling: str | None = None
    """Spatial pooling, such as average or max. None: the network's own."""
    head_init: Literal["random", "principal"] = "random"
    """Initial head: random, or the principal directions of pretrained features."""
    dtype: Literal["bfloat16", "float16", "float32"] = "float32"
    """Dtype of the network's computation; float16 adds loss scaling."""
    remat: bool = False
    """Recompute a vision transformer's blocks for the gradient, to save memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name is not None and not is_pointer(self.name):
            one_of("network", self.name, (*NETWORKS, CUSTOM_NETWORK))

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
            images: those it is for, ``[N, H, W, C]`` or image files; they choose a network without a name.
            freeze_batch_norm: whether batch norm keeps its running statistics; None: where the network has any.
            pretrained: a file of weights, or a partial of :func:`jdml.models.load_weights`, that fixes the
                network's attributes.
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
        record = NETWORKS[name]
        if freeze_batch_norm is None:
            freeze_batch_norm = record.batch_norm
        asked = {
            "pooling": self.pooling,
            "freeze_batch_norm": freeze_batch_norm,
            "remat": self.remat,
        }
        settings: dict[str, Any] = {n: v for n, v in asked.items() if v not in (None, False)}
        for field in settings:
            if not hasattr(record.kind, field):
                raise RecipeError(
                    f"{{{field}}} is not for {{network}} {name}, which has no such choice"
                )
        if self.dtype != NetworkConfig.dtype:
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
    """Rank of LoRA's updates; only they and the head are trained."""
    last_blocks: Annotated[int | None, positive] = None
    """Train only the last N blocks and the layers after them."""
    layer_decay: Annotated[float | None, open_unit_interval] = None
    """Factor of the learning rate from each block to the one before it."""
    lora_alpha: Annotated[float | None, positive] = None
    """LoRA's updates are multiplied by this divided by the rank. None: by 1."""
    lora_paths: str | None = None
    """Regular expression of the parameters that LoRA updates. None: the blocks' kernels."""
    cached_views: Annotated[int, non_negative] = 1
    """With a frozen backbone: number of crops of each image whose features are cached; 0: none."""
    freeze_batch_norm: bool = False
    """Freeze the running statistics of batch norm."""
    backbone_freeze_epochs: Annotated[int, non_negative] = 0
    """First epochs in which only the head and the loss's parameters learn."""
    backbone_freeze_steps: Annotated[int | None, non_negative] = None
    """The same in steps instead of epochs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen = [n for n in ("freeze", "last_blocks", "lora") if getattr(self, n) is not None]
        if len(chosen) > 1:
            raise RecipeError(
                f"{{{chosen[0]}}} and {{{chosen[1]}}} both say what is frozen: give one of them"
            )
        blocks_learn = self.lora is None and self.freeze != BACKBONE
        that_learn = f"blocks that learn: no {{lora}}, no {{freeze}} {BACKBONE}"
        for name, has, needs in (
            ("cached_views", self.freeze == BACKBONE, f"{{freeze}} {BACKBONE}"),
            ("lora_alpha", self.lora is not None, "{lora}, a rank"),
            ("lora_paths", self.lora is not None, "{lora}, a rank"),
            ("layer_decay", blocks_learn, that_learn),
        ):
            if getattr(self, name) != getattr(type(self), name) and not has:
                raise RecipeError(f"{{{name}}} needs {needs}; got {getattr(self, name)}")

    @property
    def freezes(self) -> bool:
        """Whether anything of the network is frozen throughout."""
        return any(x is not None for x in (self.freeze, self.last_blocks, self.lora))

    @property
    def caches_features(self) -> bool:
        """Whether features of the backbone are computed once."""
        return self.freeze == BACKBONE and self.cached_views > 0

    def frozen_pattern(self, network: NetworkConfig, names: Iterable[str]) -> str | None:
        """Return a pattern of the frozen parameters' paths, which begin with these names; None where all learn."""
        names = list(names)
        if self.freeze == BACKBONE:
            if HEAD not in names:
                raise RecipeError(
                    f"{{freeze}} backbone needs a network with a layer {HEAD}, got {', '.join(names)}"
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
        """Return a pattern of the paths of the arrays that learn changes of low rank."""
        if self.lora_paths is not None:
            return self.lora_paths
        _, blocks = network.blocks("lora", ": of others {lora_paths} says what changes")
        return f"(?:{blocks}).*/kernel"


def from_factory(pointer: str, settings: Mapping[str, Any]) -> ModelAdapter:
    """Build the network of a pointer; leave out ``settings`` that its factory does not take."""
    factory, taken = import_user_object(pointer), dict[str, Any]()
    is_class = inspect.isclass(factory)
    if is_class or inspect.isroutine(factory) or isinstance(factory, functools.partial):
        # The metaclass of modules has a signature of its own.
        parameters = inspect.signature(factory.__init__ if is_class else factory).parameters
        taken = {name: settings[name] for name in parameters if name in settings}
        values = {k: jnp.dtype(v).type if k == "dtype" else v for k, v in taken.items()}
        factory = call_user_object(pointer, factory, **values)
    # Batch norm that the factory was asked to freeze is the same in training.
    network = as_model(factory, train_flag=False if taken.get("freeze_batch_norm") else None)
    if isinstance(network, nn.Module):
        network = FromLinen(network)
    elif not isinstance(network, ModelAdapter):
        network = Object(network)
    network.factory = {"factory": pointer, "settings": taken}
    return network


def build_custom_model(
    config: NetworkConfig, train: Dataset, preprocess: Preprocess, **settings: Any
) -> ModelAdapter:
    """Build the network that a recipe names by its factory; refuse settings that it does not follow."""
    shape, pointer = train.images.shape, str(config.name)
    size = int(shape[1]) if len(shape) == 4 else None
    own = {**vars(config), **settings, "image_size": size}
    accepted = {name: own[name] for name in FACTORY_ARGS if own.get(name) is not None}
    network = from_factory(pointer, accepted)
    defaults = {**vars(NetworkConfig()), "freeze_batch_norm": False}
    for name in ("dtype", "remat", "pooling", "freeze_batch_norm"):
        if own[name] != defaults[name] and name not in network.factory["settings"]:
            raise RecipeError(f"{{{name}}} is not for {{network}} {pointer}, which takes no {name}")

    def embedded(image: jax.Array, key: jax.Array) -> Any:
        inputs = preprocess(image)
        return network.apply(network.init(key, inputs), inputs, train=False)

    dtype = jax.dtypes.canonicalize_dtype(getattr(train.images, "dtype", jnp.uint8))
    out = jax.eval_shape(embedded, jax.ShapeDtypeStruct((1, *shape[1:]), dtype), jax.random.key(0))
    if getattr(out, "shape", None) != (1, config.dim):
        raise RecipeError(
            f"{{dim}} must be the D of the embeddings [B, D] that {{network}} {pointer} gives, got {config.dim}; "
            f"one image gives {jax.tree.map(lambda leaf: list(leaf.shape), out)}"
        )
    return network
