"""A network split at its head: features are computed once, and a step trains the head alone."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jdml import adapt
from jdml.distributed import Tree
from jdml.models.adapters import HEAD, Model, Object, WithHead, part_of, traced


class FeatureSplit(Object):
    """A network before the input of one layer: from images to features ``[B, …]`` in float32."""

    def __init__(
        self, model: Model, layer: str, variables: Mapping[str, Tree], inputs: Tree
    ) -> None:
        self.base, self.layer = model, layer
        rows, structure = jax.tree.flatten(inputs)
        self.row = structure, tuple((x.shape[1:], jnp.result_type(x)) for x in rows)
        self.dtype = jax.eval_shape(lambda *x: self.features(*x), variables, inputs).dtype
        super().__init__(model, (model, layer, self.row, self.dtype))

    @classmethod
    def of_learning(
        cls, model: Model, freeze: str | None, variables: Mapping[str, Tree], inputs: Tree
    ) -> "FeatureSplit":
        """Split before the only layer that learns; the network must be the same in training."""
        marks = adapt.named_leaves(adapt.matching(variables["params"], freeze))
        learning = [os.path.dirname(path) or path for path, frozen in marks.items() if not frozen]
        layer = os.path.commonpath(learning)
        if not layer or (isinstance(model, WithHead) and layer.split("/")[0] != HEAD):
            raise ValueError(
                "cached_views: only one layer may learn, such as the head, got several: freeze more, such as "
                "'(?!head/).*'"
            )
        if traced(model, variables, inputs, True)[0] != traced(model, variables, inputs, False)[0]:
            raise ValueError(
                "cached_views: the network must be the same in training and evaluation, without dropout or trained "
                "batch norm"
            )
        return cls(model, layer, variables, inputs)

    def apply(self, variables: Any, images: Any, /, **_: Any) -> Any:
        """Return the features."""
        return self.features(variables, images).astype(jnp.float32)

    def features(self, variables: Any, images: Any) -> jax.Array:
        """Return the layer's input for images, in its own type."""
        if isinstance(self.base, WithHead):
            features: jax.Array = self.base.backbone.apply(part_of(variables, "backbone"), images)
            return features
        inputs: list[jax.Array] = []

        def note(args: Any) -> Any:
            inputs.append(args[0])
            return args

        self._at_layer(note, variables, images)
        if len(inputs) != 1:
            raise ValueError(
                f"cached_views: the network must call {self.layer} once, as a Linen layer, got {len(inputs)} calls: "
                "write jdml.models.WithHead(backbone, head)"
            )
        return inputs[0]

    def embeddings(self, variables: Any, features: jax.Array) -> Any:
        """Return the embeddings of features."""
        features = features.astype(self.dtype)
        if isinstance(self.base, WithHead):
            return self.base.head.apply(part_of(variables, HEAD), features)
        # The compiler removes what is computed of these images.
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
            return self.base.apply(variables, images, train=False)


class HeadOnly(Object):
    """A network after the split, with the parameters of the whole network."""

    def __init__(self, split: FeatureSplit) -> None:
        super().__init__(split.base, split)
        self._split = split

    def apply(self, variables: Any, features: Any, /, **settings: Any) -> Any:
        """Return embeddings of one view of each row ``[B, views, …]``: a random one in training, else the first."""
        views = features.shape[1]
        chosen = jnp.zeros(len(features), jnp.int32)
        if settings.get("train") and views > 1:
            chosen = jax.random.randint(settings["rngs"]["dropout"], chosen.shape, 0, views)
        x = jax.vmap(lambda row, view: row[view])(features, chosen)
        embeddings = self._split.embeddings(variables, x).astype(jnp.float32)
        stats = {"batch_stats": variables.get("batch_stats", {})}
        return (embeddings, stats) if settings.get("mutable") else embeddings
