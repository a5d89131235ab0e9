"""A network by the name of a user's factory, ``package.module:factory``: built for a recipe, and built again."""

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jdml._import_path import call_user_object, import_user_object
from jdml.data import Dataset
from jdml.models.adapters import Object, as_model
from jdml.models.base_adapter import ModelAdapter
from jdml.models.embedding import Preprocess
from jdml.models.from_linen import FromLinen
from jdml.recipes import FinetuneConfig, NetworkConfig, Recipe, RecipeError
from jdml.registry.networks import OFFERED


def from_factory(pointer: str, settings: Mapping[str, Any]) -> ModelAdapter:
    """Build the network of a pointer; ``settings`` that its factory does not take are left out."""
    factory, taken = import_user_object(pointer), {}
    if (
        inspect.isroutine(factory)
        or inspect.isclass(factory)
        or isinstance(factory, functools.partial)
    ):
        taken = _taken(pointer, factory, settings)
        values = {k: jnp.dtype(v).type if k == "dtype" else v for k, v in taken.items()}
        factory = call_user_object(pointer, factory, **values)
    try:
        # Batch norm that the factory was asked to freeze is the same in training.
        network = as_model(factory, train_flag=False if taken.get("freeze_batch_norm") else None)
    except TypeError as error:
        raise TypeError(f"{pointer}: {error}") from error
    if isinstance(network, nn.Module):
        network = FromLinen(network)
    elif not isinstance(network, ModelAdapter):
        network = Object(network)
    network.factory = {"factory": pointer, "settings": taken}
    return network


def build_custom_model(
    recipe: Recipe, pointer: str, train: Dataset, seed: int, preprocess: Preprocess
) -> ModelAdapter:
    """Build the network that a recipe names by its factory; refuse settings that it does not follow."""
    shape = train.images.shape
    values = vars(recipe.network) | {"freeze_batch_norm": recipe.finetune.freeze_batch_norm}
    settings = {name: values[name] for name in OFFERED if name in values}
    settings |= {"seed": seed, **({"image_size": int(shape[1])} if len(shape) == 4 else {})}
    network = from_factory(pointer, {k: v for k, v in settings.items() if v is not None})
    defaults = vars(NetworkConfig()) | {"freeze_batch_norm": FinetuneConfig().freeze_batch_norm}
    for name in ("dtype", "remat", "pooling", "freeze_batch_norm"):
        if values[name] != defaults[name] and name not in network.factory["settings"]:
            raise RecipeError(f"{{{name}}} is not for {{network}} {pointer}, which takes no {name}")

    def embedded(image: jax.Array, key: jax.Array) -> Any:
        inputs = preprocess(image)
        return network.apply(network.init(key, inputs), inputs, train=False)

    dtype = jax.dtypes.canonicalize_dtype(getattr(train.images, "dtype", jnp.uint8))
    row = jax.ShapeDtypeStruct((1, *shape[1:]), dtype)
    out = jax.eval_shape(embedded, row, jax.random.key(0))
    if getattr(out, "ndim", None) != 2:
        shapes = jax.tree.map(lambda leaf: list(leaf.shape), out)
        raise ValueError(f"model must give embeddings [B, D], got {shapes} of one image")
    if out.shape[1] != recipe.network.dim:
        raise RecipeError(
            f"{{dim}} must be {out.shape[1]}, the numbers that {{network}} {pointer} gives of an image, "
            f"got {recipe.network.dim}"
        )
    return network


def _taken(pointer: str, factory: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a factory has arguments for; all that it requires are among them."""
    # The metaclass of modules has a signature of its own, which tells nothing.
    call, start = (factory.__init__, 1) if inspect.isclass(factory) else (factory, 0)
    parameters = list(inspect.signature(call).parameters.values())[start:]
    for parameter in parameters:
        is_variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        required = parameter.default is parameter.empty and not is_variadic
        if required and parameter.name not in settings:
            raise TypeError(
                f"{pointer} is called with those of {', '.join(OFFERED)} that it has arguments for, but its argument "
                f"{parameter.name} has no default: wrap it in a function that gives it"
            )
    return {p.name: settings[p.name] for p in parameters if p.name in settings}
