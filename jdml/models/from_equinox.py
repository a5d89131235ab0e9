"""An Equinox module as a model."""

import contextlib
import inspect
import sys
from typing import Any

import jax
import jax.numpy as jnp

from jdml.adapt import path_text
from jdml.data.images import CHANNELS
from jdml.distributed import Tree
from jdml.models.base_adapter import (
    ModelAdapter,
    Result,
    arguments,
    by_name,
    check_savable,
    flag_values,
    flags_of,
    restored,
)


def is_equinox(model: Any) -> bool:
    """Return whether a model is an Equinox module; nothing is imported."""
    equinox = sys.modules.get("equinox")
    return equinox is not None and isinstance(model, equinox.Module)


class FromEquinox(ModelAdapter):
    """An Equinox module of one row, images as they are or ``[C, H, W]``, with the ``state`` of ``make_with_state``."""

    holds_parameters = True

    def __init__(self, module: Any, state: Any = None, train_flag: str | None = None) -> None:
        import equinox as eqx

        self._params, rest = eqx.partition(module, eqx.is_inexact_array)
        fixed, self._static = eqx.partition(rest, eqx.is_array)
        self._carried = {"fixed": fixed, "state": state}
        arrays = self._params, fixed, state
        shapes = jax.tree.map(lambda x: f"{x.dtype}{x.shape}", arrays)
        identity = [jax.tree.flatten(part) for part in (self._static, shapes, train_flag)]
        super().__init__(module, tuple((tuple(leaves), tree) for leaves, tree in identity))
        call = type(module).__call__
        self._key = {x.name: x for x in arguments(call)[2:]}.get("key")
        self.flags = flags_of(call, train_flag)
        norms, drops = _mode_layers(module)
        self._axis: Any = next((norm.axis_name for norm in norms.values()), "batch")
        self.norms = list(norms)  # whose statistics the state does not name
        self._set_frozen({p: x.inference for p, x in norms.items()}, [x.inference for x in drops])
        check_savable(self._carried)

    def init(self, key: Any, images: Any, /, *, train: bool = False) -> dict[str, Any]:
        """Return the arrays that the module and its state hold."""
        params, carried = jax.tree.map(jnp.asarray, (self._params, self._carried))
        return {"params": by_name(params), "batch_stats": by_name(carried)}

    def _embed(self, variables: Any, images: Any, train: bool, mutable: bool, rngs: Any) -> Result:
        import equinox as eqx

        params = restored(variables["params"], self._params)
        carried = restored(variables["batch_stats"], self._carried)
        module = eqx.combine(params, carried["fixed"], self._static)
        module = eqx.nn.inference_mode(module, value=not train)
        if train and self.frozen_norms:
            module = eqx.tree_at(
                lambda x: [_mode_layers(x)[0][path].inference for path in self.frozen_norms],
                module,
                replace_fn=lambda _: True,
            )
        keys = None
        if self._key is not None and (rngs or self._key.default is inspect.Parameter.empty):
            # In evaluation nothing draws from it.
            key = next(iter(rngs.values())) if rngs else jax.random.key(0)
            keys = jax.random.split(key, len(jax.tree.leaves(images)[0]))

        def call(row: Tree, state: Any, key: jax.Array | None) -> tuple[Tree, Any]:
            more: dict[str, Any] = flag_values(self.flags, train)
            more |= {} if key is None else {"key": key}
            if state is None:
                return module(row, **more), None
            out: tuple[Tree, Any] = module(row, state=state, **more)
            return out

        mapped = jax.vmap(call, (0, None, 0), (0, None), axis_name=self._axis)
        if getattr(images, "ndim", 0) == 4 and images.shape[-1] in CHANNELS:
            unmoved, images = images, jnp.moveaxis(images, -1, 1)
            with contextlib.suppress(Exception):  # of a module that takes [C, H, W]
                shapes = jax.eval_shape(mapped, unmoved, carried["state"], keys)[0]
                if all(leaf.ndim == 2 for leaf in jax.tree.leaves(shapes)):
                    images = unmoved
        embeddings, state = mapped(images, carried["state"], keys)
        return embeddings, by_name({**carried, "state": state})


def _mode_layers(module: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return the batch norms of a module by their paths, and its dropouts."""
    import equinox as eqx

    def is_layer(node: Any) -> bool:
        return isinstance(node, eqx.nn.BatchNorm | eqx.nn.Dropout)

    leaves = jax.tree_util.tree_leaves_with_path(module, is_leaf=is_layer)
    norms = {path_text(path): x for path, x in leaves if isinstance(x, eqx.nn.BatchNorm)}
    return norms, [x for _, x in leaves if isinstance(x, eqx.nn.Dropout) and x.p]
