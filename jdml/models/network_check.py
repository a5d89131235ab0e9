"""One trial of a user's network on shapes, before any work."""

import logging
import re
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jdml.distributed import Tree
from jdml.models import train_flags
from jdml.models.adapters import Model
from jdml.models.base_adapter import ModelAdapter, StatefulModuleAdapter
from jdml.models.finetuning import moving_statistics
from jdml.models.preprocess import Preprocess

ROWS = 2
"""The number of rows of the trial; variables are made with one, so that what has a batch's shape shows."""
_log = logging.getLogger(__name__)


def check_network(model: Model, preprocess: Preprocess, sample: Tree) -> None:
    """Refuse a network that cannot be trained, evaluated or saved as it is. The library's own are not tried."""
    if not isinstance(model, ModelAdapter):
        return
    layers: set[str] = set()
    key = jax.eval_shape(lambda: jax.random.key(0))
    with nn.intercept_methods(_note_mode_layers(layers)):
        fresh = jax.eval_shape(lambda k, x: model.init(k, preprocess(x)), key, _rows(sample, 1))
    params, stats = fresh["params"], fresh.get("batch_stats", {})
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise ValueError(
                f"model's parameters must be floating point, got {leaf.dtype} in params{jax.tree_util.keystr(path)}"
            )
    inputs = jax.eval_shape(preprocess, _rows(sample, ROWS))
    trained, (_, updates) = traced(model, fresh, inputs, True)
    _check_carried(stats, updates.get("batch_stats", stats))
    if isinstance(model, StatefulModuleAdapter) and model.frozen:
        _log.warning("batch norm in evaluation mode is frozen: %s", ", ".join(model.frozen))
    if "BatchNorm" in layers and stats and not model.same_in_training:
        if not moving_statistics(model, params, stats, inputs):
            _log.warning(
                "the running statistics of batch norm do not change in training: it is frozen"
            )
    has_modes = bool(layers) or getattr(model, "has_modes", False)
    if (
        has_modes
        and not model.same_in_training
        and trained == traced(model, fresh, inputs, False)[0]
    ):
        raise ValueError(
            "model has batch norm or dropout, but computes the same in training and evaluation: name its flag, which "
            f"is none of {train_flags.KNOWN}, by jdml.models.as_model(model, train_flag='…'), or write "
            "train_flag=False where this is intended"
        )


def traced(
    model: Model, variables: Mapping[str, Tree], inputs: Tree, train: bool
) -> tuple[str, Any]:
    """Return a network's program in words, and the shapes of what it returns."""

    def apply(variables: Any, inputs: Tree, key: jax.Array) -> Any:
        rngs = {"dropout": key}
        return model.apply(variables, inputs, train=train, mutable=["batch_stats"], rngs=rngs)

    variables = {"batch_stats": {}, **variables}
    program, shapes = jax.make_jaxpr(apply, return_shape=True)(
        variables, inputs, jax.eval_shape(lambda: jax.random.key(0))
    )
    return re.sub(r"0x[0-9a-f]+", "", str(program)), shapes


def _rows(sample: Tree, number: int) -> Tree:
    def rows(leaf: Any) -> jax.ShapeDtypeStruct:
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
        return jax.ShapeDtypeStruct((number, *np.shape(leaf)[1:]), dtype)

    return jax.tree.map(rows, sample)


def _note_mode_layers(layers: set[str]) -> Any:
    """Note Linen's layers that do something else in training, which are known only where they are called."""

    def interceptor(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        module = context.module
        if isinstance(module, nn.BatchNorm) or (isinstance(module, nn.Dropout) and module.rate):
            layers.add(type(module).__name__)
        return call(*args, **kwargs)

    return interceptor


def _check_carried(before: Tree, after: Tree) -> None:
    """Refuse variables that a step changes in shape or type: a second step could not follow."""
    old, new = (
        {
            jax.tree_util.keystr(path).replace("['~", "['"): f"{leaf.dtype}{list(leaf.shape)}"
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }
        for tree in (before, after)
    )
    for name in (*old, *new):
        if old.get(name) != new.get(name):
            raise ValueError(
                "model must keep the shapes and types of what it carries from step to step, but "
                f"{name} was {old.get(name, 'not there')} and is {new.get(name, 'gone')} after a step of {ROWS} rows"
            )
