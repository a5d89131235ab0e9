"""A network split at its head: features are computed once, and a step trains the head alone."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jdml import adapt
from jdml.distributed import Tree
from jdml.models.adapters import AnyModel, Model, as_model, unwrapped
from jdml.models.base_adapter import ModelAdapter
from jdml.models.network_check import traced

HEAD = "head"
WITHOUT = "without cached_views (0 in a recipe) images go through the network at each step"


class WithHead(ModelAdapter):
    """A backbone and a head as one network, whose features can be cached: ``head(backbone(images))``.

    Linen networks are split at their head by themselves; use this for networks of other kinds. The parameters are
    ``{"backbone": …, "head": …}``.

    Args:
        backbone: whatever :func:`jdml.training.fit` takes, from images to features ``[B, …]``.
        head: such a network from features to embeddings ``[B, D]``.

    Raises:
        TypeError: no networks.

    Example:
        >>> import flax.linen as nn
        >>> backbone = lambda key, x: {}, lambda params, x: x.mean((1, 2))
        >>> WithHead(backbone, nn.Dense(8)).init(jax.random.key(0), jnp.ones((1, 4, 4, 3)))["params"].keys()
        dict_keys(['backbone', 'head'])
    """

    def __init__(self, backbone: AnyModel, head: AnyModel) -> None:
        self.backbone, self.head = as_model(backbone), as_model(head)
        super().__init__(
            (unwrapped(self.backbone), unwrapped(self.head)), (self.backbone, self.head)
        )
        parts = (self.backbone, self.head)
        self.holds_parameters = any(getattr(x, "holds_parameters", False) for x in parts)
        self.has_modes = any(getattr(x, "has_modes", False) for x in parts)
        self.same_in_training = any(getattr(x, "same_in_training", False) for x in parts)

    def init(self, key: Any, images: Any, /, *, train: bool = False) -> Any:
        """Return the variables of both."""
        backbone = self.backbone.init(key, images)
        features = jax.eval_shape(lambda v, x: self.backbone.apply(v, x), backbone, images)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), features)
        head = self.head.init(jax.random.fold_in(key, 1), zeros)
        return {
            kind: {"backbone": backbone.get(kind, {}), HEAD: head.get(kind, {})}
            for kind in ("params", "batch_stats")
        }

    def apply(self, variables: Any, images: Any, /, **settings: Any) -> Any:
        """Return embeddings; with ``mutable`` also ``{"batch_stats": …}``."""
        features = self.backbone.apply(_part(variables, "backbone"), images, **settings)
        if not settings.get("mutable"):
            return self.head.apply(_part(variables, HEAD), features, **settings)
        features, updates = features
        embeddings, of_head = self.head.apply(_part(variables, HEAD), features, **settings)
        stats = {"backbone": updates, HEAD: of_head}
        old = variables.get("batch_stats", {})
        return embeddings, {
            "batch_stats": {k: new.get("batch_stats", old[k]) for k, new in stats.items()}
        }


class FeatureSplit:
    """A network before and after the input of one layer."""

    def __init__(
        self, model: Model, layer: str, variables: Mapping[str, Tree], inputs: Tree
    ) -> None:
        self.model, self.layer = model, layer
        rows, structure = jax.tree.flatten(inputs)
        self.row = structure, tuple((x.shape[1:], jnp.result_type(x)) for x in rows)
        self.dtype = jax.eval_shape(self.features, variables, inputs).dtype

    @classmethod
    def of_learning(
        cls, model: Model, freeze: str | None, variables: Mapping[str, Tree], inputs: Tree
    ) -> "FeatureSplit":
        """Split where what learns begins, which must be one layer, the same in training."""
        params = variables["params"]
        marks = jax.tree.leaves(adapt.matching(params, freeze))
        learning = [p for p, stays in zip(adapt.paths(params), marks, strict=True) if not stays]
        layer = os.path.commonpath([os.path.dirname(path) or path for path in learning])
        if not layer or (isinstance(model, WithHead) and layer.split("/")[0] != HEAD):
            raise ValueError(
                "cached_views: what learns must be one layer, such as the head, got parameters of several: freeze "
                f"more, such as '(?!head/).*'; {WITHOUT}"
            )
        if traced(model, variables, inputs, True)[0] != traced(model, variables, inputs, False)[0]:
            raise ValueError(
                "cached_views: the network must be the same in training and evaluation, without dropout or batch norm "
                f"that is trained; {WITHOUT}"
            )
        return cls(model, layer, variables, inputs)

    @property
    def identity(self) -> tuple[Any, ...]:
        """All that programs of the split depend on."""
        return self.model, self.layer, self.row, self.dtype

    def features(self, variables: Any, images: Any) -> jax.Array:
        """Return what the layer takes of images, in its own type."""
        if isinstance(self.model, WithHead):
            features: jax.Array = self.model.backbone.apply(_part(variables, "backbone"), images)
            return features
        taken: list[jax.Array] = []

        def take(args: Any) -> Any:
            taken.append(args[0])
            return args

        self._at_layer(take, variables, images)
        if len(taken) != 1:
            raise ValueError(
                f"cached_views: the network must call {self.layer} once, as a Linen layer, got {len(taken)} calls: "
                f"write jdml.models.WithHead(backbone, head); {WITHOUT}"
            )
        return taken[0]

    def embeddings(self, variables: Any, features: jax.Array) -> Any:
        """Return the embeddings of features."""
        features = features.astype(self.dtype)
        if isinstance(self.model, WithHead):
            return self.model.head.apply(_part(variables, HEAD), features)
        # What is computed of these images is not used, and leaves the program.
        structure, shapes = self.row
        one = features.reshape(len(features), -1)[:, 0]
        images = [
            jnp.broadcast_to(one.reshape(-1, *[1] * len(shape)), (len(one), *shape)).astype(dtype)
            for shape, dtype in shapes
        ]
        images = jax.tree.unflatten(structure, images)
        return self._at_layer(lambda args: (features, *args[1:]), variables, images)

    def _at_layer(self, change: Callable[[Any], Any], variables: Any, images: Any) -> Any:
        """Apply the network, with other arguments of the layer."""

        def interceptor(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
            is_layer = "/".join(context.module.path) == self.layer
            if context.method_name == "__call__" and is_layer:
                args = change(args)
            return call(*args, **kwargs)

        with nn.intercept_methods(interceptor):
            return self.model.apply(variables, images, train=False)


class Backbone(ModelAdapter):
    """A network before the split: from images to features ``[B, …]`` in float32."""

    def __init__(self, split: FeatureSplit) -> None:
        super().__init__(split.model, split.identity)
        self._split = split

    def apply(self, variables: Any, images: Any, /, **_: Any) -> Any:
        """Return the features."""
        return self._split.features(variables, images).astype(jnp.float32)


class HeadOnly(ModelAdapter):
    """A network after the split, with the parameters of the whole network."""

    def __init__(self, split: FeatureSplit) -> None:
        super().__init__(split.model, split.identity)
        self._split = split

    def apply(self, variables: Any, features: Any, /, **settings: Any) -> Any:
        """Return embeddings of one view ``[B, views, …]`` of each row: in training drawn, else the first."""
        views = features.shape[1]
        drawn = jnp.zeros(len(features), jnp.int32)
        if settings.get("train") and views > 1:
            drawn = jax.random.randint(settings["rngs"]["dropout"], drawn.shape, 0, views)
        x = jax.vmap(lambda row, view: row[view])(features, drawn)
        embeddings = self._split.embeddings(variables, x).astype(jnp.float32)
        stats = {"batch_stats": variables.get("batch_stats", {})}
        return (embeddings, stats) if settings.get("mutable") else embeddings


def _part(variables: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The variables of the backbone, or of the head."""
    return {kind: variables.get(kind, {}).get(name, {}) for kind in ("params", "batch_stats")}
