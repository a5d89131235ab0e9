"""A network of anyone's by the name of what makes it, ``package.module:factory``: made for a recipe, and made again."""

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
from jdml.models.base_adapter import Wrapped
from jdml.models.from_linen import FromLinen
from jdml.models.preprocess import Preprocess
from jdml.recipes import FinetuneConfig, NetworkConfig, Recipe, RecipeError
from jdml.registry.networks import OFFERED


def from_factory(pointer: str, settings: Mapping[str, Any]) -> Wrapped:
    """Make a network.

    Args:
        pointer: ``"package.module:factory"``, a function or class that returns what :func:`jdml.training.fit` takes as
            a model, or such a model itself; looked for in the working directory, too.
        settings: plain values by the names of arguments; those that the factory does not have are left out.

    Returns:
        The network, whose ``factory`` says how it is made again.

    Raises:
        TypeError: a factory that needs other arguments, or returns no network.
        ValueError: what cannot be imported; what the factory raises, and where.
    """
    made, given = import_user_object(pointer), {}
    if inspect.isroutine(made) or inspect.isclass(made) or isinstance(made, functools.partial):
        given = _taken(pointer, made, settings)
        made = call_user_object(
            pointer, made, **{name: _value(name, given[name]) for name in given}
        )
    try:
        network = as_model(made)
    except TypeError as error:
        raise TypeError(f"{pointer}: {error}") from error
    if isinstance(network, nn.Module):
        network = FromLinen(network)
    elif not isinstance(network, Wrapped):
        network = Object(network)
    network.factory = {"factory": pointer, "settings": given}
    return network


def make_own(
    recipe: Recipe, pointer: str, train: Dataset, seed: int, preprocess: Preprocess
) -> Wrapped:
    """Make the network that a recipe names by its factory.

    Args:
        recipe: the recipe.
        pointer: its network.
        train: whose images it is for.
        seed: of parameters that the factory draws.
        preprocess: what stands between stored images and the network.

    Returns:
        The network, which gives embeddings of the recipe's width.

    Raises:
        TypeError: see :func:`from_factory`.
        ValueError: a setting of the recipe that the factory does not take, or another width than the recipe's.
    """
    shape = train.images.shape
    given = vars(recipe.network) | {"freeze_batch_norm": recipe.finetune.freeze_batch_norm}
    settings = {name: given[name] for name in OFFERED if name in given}
    settings |= {"seed": seed, **({"image_size": int(shape[1])} if len(shape) == 4 else {})}
    network = from_factory(pointer, {k: v for k, v in settings.items() if v is not None})
    plain = vars(NetworkConfig()) | {"freeze_batch_norm": FinetuneConfig().freeze_batch_norm}
    for name in ("dtype", "remat", "pooling", "freeze_batch_norm"):
        if given[name] != plain[name] and name not in network.factory["settings"]:
            raise RecipeError(f"{{{name}}} is not for {{network}} {pointer}, which takes no {name}")
    width = _width(network, train, preprocess)
    if width != recipe.network.dim:
        raise RecipeError(
            f"{{dim}} must be {width}, the numbers that {{network}} {pointer} gives of an image, "
            f"got {recipe.network.dim}"
        )
    return network


def _taken(pointer: str, factory: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a factory has arguments for; all that it needs are among them."""
    # What makes modules has a signature of its own, which tells nothing.
    made_by, itself = (factory.__init__, 1) if inspect.isclass(factory) else (factory, 0)
    parameters = list(inspect.signature(made_by).parameters.values())[itself:]
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for parameter in parameters:
        needed = parameter.default is parameter.empty and parameter.kind not in several
        if needed and parameter.name not in settings:
            raise TypeError(
                f"{pointer} is called with those of {', '.join(OFFERED)} that it has arguments for, but its argument "
                f"{parameter.name} has no default: wrap it in a function that gives it"
            )
    return {p.name: settings[p.name] for p in parameters if p.name in settings}


def _value(name: str, value: Any) -> Any:
    return jnp.dtype(value).type if name == "dtype" else value


def _width(network: Wrapped, train: Dataset, preprocess: Preprocess) -> int:
    """How many numbers a network gives of an image."""
    images = train.images
    dtype = jax.dtypes.canonicalize_dtype(getattr(images, "dtype", jnp.uint8))

    def embedded(image: jax.Array, key: jax.Array) -> Any:
        inputs = preprocess(image)
        return network.apply(network.init(key, inputs), inputs, train=False)

    row = jax.ShapeDtypeStruct((1, *images.shape[1:]), dtype)
    out = jax.eval_shape(embedded, row, jax.random.key(0))
    if getattr(out, "ndim", None) != 2:
        shown = jax.tree.map(lambda leaf: list(leaf.shape), out)
        raise ValueError(f"model must give embeddings [B, D], got {shown} of one image")
    return int(out.shape[1])
