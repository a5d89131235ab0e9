"""An Equinox module, of one row or of a batch, as a model."""

import contextlib
import inspect
import sys
from typing import Any

import jax
import jax.numpy as jnp

from jdml.adapt import path_texts
from jdml.data.images import CHANNELS
from jdml.distributed import Tree
from jdml.models.base_adapter import (
    ModelAdapter,
    Names,
    arguments,
    check_savable,
    flag_values,
    flags_of,
)

BATCH = "batch"
"""The name of the axis of rows, unless a batch norm names it."""


def is_equinox(model: Any) -> bool:
    """Return whether a model is an Equinox module; nothing is imported."""
    equinox = sys.modules.get("equinox")
    return equinox is not None and isinstance(model, equinox.Module)


class FromEquinox(ModelAdapter):
    """An Equinox module as functions; ``state`` is what ``equinox.nn.make_with_state`` returns besides it.

    Floating-point arrays are trained from their values in the module; other arrays and the state are carried from step
    to step and saved. A module of one row is mapped over the rows of a batch, each with a ``key`` of its own.
    """

    holds_parameters = True

    def __init__(self, module: Any, state: Any = None, train_flag: str | None = None) -> None:
        import equinox as eqx

        params, rest = eqx.partition(module, eqx.is_inexact_array)
        fixed, self._static = eqx.partition(rest, eqx.is_array)
        self._names = tuple(Names(part) for part in (params, fixed, state))
        shapes = jax.tree.map(lambda x: f"{x.dtype}{x.shape}", (params, fixed, state))
        identity = [jax.tree.flatten(part) for part in (self._static, shapes, train_flag)]
        super().__init__(module, tuple((tuple(leaves), tree) for leaves, tree in identity))
        call = type(module).__call__
        self._key = {x.name: x for x in arguments(call)[2:]}.get("key")
        self.flags = flags_of(call, train_flag)
        norms, drops = _mode_layers(module)
        self._axis: Any = next((norm.axis_name for norm in norms.values()), BATCH)
        self._set_frozen({p: x.inference for p, x in norms.items()}, [x.inference for x in drops])
        check_savable((fixed, state))

    @property
    def norms(self) -> list[str]:
        """The paths of batch norm; the state does not name the layers of its statistics."""
        return list(_mode_layers(self.module)[0])

    def init(self, key: Any, images: Any, /, *, train: bool = False) -> dict[str, Any]:
        """Return the arrays that the module and its state hold."""
        params, fixed, state = (names.initial() for names in self._names)
        carried = {"fixed": fixed, "state": state}
        return {"params": params, "batch_stats": {k: v for k, v in carried.items() if v}}

    def _embed(
        self, variables: Any, images: Any, train: bool, mutable: bool, rngs: Any
    ) -> tuple[Tree, Tree]:
        import equinox as eqx

        carried = variables["batch_stats"]
        params = self._names[0].tree(variables["params"])
        fixed = self._names[1].tree(carried.get("fixed", {}))
        state = self._names[2].tree(carried.get("state", {}))
        module = eqx.combine(params, fixed, self._static)
        module = eqx.nn.inference_mode(module, value=not train)
        if train and self.frozen_norms:
            module = eqx.tree_at(
                lambda x: [_mode_layers(x)[0][path].inference for path in self.frozen_norms],
                module,
                replace_fn=lambda _: True,
            )
        key = next(iter(rngs.values())) if rngs else None
        embeddings, state = self._call(module, images, state, key, train)
        if "state" in carried:
            carried = {**carried, "state": self._names[2].named(state)}
        return embeddings, carried

    def _call(
        self, module: Any, images: Tree, state: Any, key: jax.Array | None, train: bool
    ) -> tuple[Tree, Any]:
        """Return embeddings and the new state, row by row where the module takes one row."""
        flags: dict[str, Any] = flag_values(self.flags, train)

        def call(rows: Tree, state: Any, key: jax.Array | None) -> tuple[Tree, Any]:
            more = flags if key is None else {**flags, "key": key}
            if state is None:
                return module(rows, **more), None
            out: tuple[Tree, Any] = module(rows, state=state, **more)
            return out

        if self._key is None:
            key = None
        keys, axis = key, None
        if key is not None:
            keys, axis = jax.random.split(key, len(jax.tree.leaves(images)[0])), 0
        elif self._key is not None and self._key.default is inspect.Parameter.empty:
            key = keys = jax.random.key(0)  # in evaluation nothing draws from it
        mapped = jax.vmap(call, in_axes=(0, None, axis), out_axes=(0, None), axis_name=self._axis)
        layouts = [images]
        if getattr(images, "ndim", 0) == 4 and images.shape[-1] in CHANNELS:
            layouts.append(jnp.moveaxis(images, -1, 1))  # channels first, as Equinox has them
        for rows in layouts:
            with contextlib.suppress(Exception):  # of a module for batches
                shapes = jax.eval_shape(lambda *args: mapped(*args)[0], rows, state, keys)
                if all(leaf.ndim == 2 for leaf in jax.tree.leaves(shapes)):
                    return mapped(rows, state, keys)
        return call(images, state, key)


def _mode_layers(module: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return the batch norms of a module by their paths, and its dropouts."""
    import equinox as eqx

    def is_layer(node: Any) -> bool:
        return isinstance(node, eqx.nn.BatchNorm | eqx.nn.Dropout)

    leaves = jax.tree_util.tree_leaves_with_path(module, is_leaf=is_layer)
    norms = {
        "/".join(path_texts(path)): part
        for path, part in leaves
        if isinstance(part, eqx.nn.BatchNorm)
    }
    return norms, [part for _, part in leaves if isinstance(part, eqx.nn.Dropout) and part.p]
