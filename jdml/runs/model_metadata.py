"""Description of a run's embeddings as JSON: network, crop, preprocessing, labels."""

import contextlib
import dataclasses
import operator
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jdml import adapt
from jdml.data import Crops
from jdml.data.dataset import TrainSet, value_range
from jdml.distributed import Tree
from jdml.losses.comparison import Normalize
from jdml.models.adapters import Model, unwrap
from jdml.models.base_adapter import ModelAdapter
from jdml.models.embedding import Preprocess, default_preprocess, uint8_to_float
from jdml.models.weights import Normalizer, create
from jdml.recipes.loss import NORMALIZATIONS
from jdml.recipes.network import from_factory
from jdml.registry import NETWORKS
from jdml.runs.identity import qualified_name
from jdml.runs.run_files import through_json

Description = dict[str, Any]
FUNCTIONS: dict[str, Any] = {
    **NORMALIZATIONS,
    "default_preprocess": default_preprocess,
    "uint8_to_float": uint8_to_float,
    "to_float": default_preprocess,
}
"""The library's functions before and after a network; None is "none". ``to_float`` is of 0.1."""


def describe(
    model: Model, preprocess: Preprocess, normalize: Normalize | None, train: TrainSet
) -> Description:
    """Describe the network, the crop, the preprocessing and the normalization of a run."""
    names = getattr(train, "class_names", {})
    return {
        **_of_model(model),
        "input": input_spec(train.images),
        "crop": _describe_part(getattr(train.images, "transform", None)),
        "preprocess": _describe_part(preprocess),
        "normalize": _describe_part(normalize),
        "class_names": list(names.get(trained_view(train), ())),
    }


def _describe_part(value: Any) -> Any:
    """Return the name or the settings of a function of the library, or where another one is defined."""
    for name, function in FUNCTIONS.items():
        if function is value:
            return name
    is_own = isinstance(value, Crops | Normalizer)
    return dataclasses.asdict(value) if is_own else {"function": qualified_name(value)}


def versions() -> dict[str, str]:
    """Return the versions of what computes: jdml, jax, flax, optax, numpy."""
    packages: Any = sys.modules["jdml"], jax, flax, optax, np
    return {package.__name__: package.__version__ for package in packages}


def trained_view(train: TrainSet) -> str | None:
    """Return the name of the labels that are trained on; None where they have none."""
    views = getattr(train, "views", {})
    return next((view for view in views if np.array_equal(views[view], train.labels)), None)


def build_model(description: Description) -> Model:
    """Build the network of a description."""
    if "factory" in description:
        return from_factory(description["factory"], description["settings"])
    if description.get("network") not in NETWORKS:
        kind = description.get("class", description.get("network"))
        raise ValueError(f"its model, {kind}, is not one of jdml.models: load(run, model=…)")
    settings = dict(description.get("settings", {}))
    if "dtype" in settings:
        settings["dtype"] = jnp.dtype(settings["dtype"]).type
    return cast(Model, create(description["network"], dim=description["dim"], **_tuples(settings)))


def _tuples(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of JSON with tuples in place of lists."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}


def build_part(name: Literal["crop", "preprocess", "normalize"], description: Description) -> Any:
    """Build the crop of image files, the function before the network, or the one after it."""
    part: Any = description[name] or "none"  # runs of 0.1 have null, and texts of other functions
    if isinstance(part, str) and part in FUNCTIONS:
        return FUNCTIONS[part]
    other = part if isinstance(part, str) else part.get("function", part.get("class"))
    if other is not None:
        remedy = "" if name == "crop" else f": load(run, {name}=…)"
        raise ValueError(f"its {name} was {other}, which is not of jdml{remedy}")
    return (Crops if name == "crop" else Normalizer)(**_tuples(part))


def fit_variables(template: Mapping[str, Tree], arrays: Mapping[str, Any], path: Path) -> Any:
    """Return a run's arrays, of their own types, in the structure of a network's variables; refuse other ones."""
    own = adapt.named_leaves(template)
    stored = {n: a for n, a in arrays.items() if not n.startswith("objective/")}
    adapt.check_same_arrays(f"model is not that of {path}", stored, own, types=False)
    leaves = [jax.device_put(arrays[name]) for name in own]
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def input_template(described: Any) -> Any:
    """Return the shape and type of one row of inputs."""
    if "parts" in described:
        parts = described["parts"]
        if isinstance(parts, dict):
            return {name: input_template(value) for name, value in parts.items()}
        return tuple(input_template(value) for value in parts)
    dtype = jax.dtypes.canonicalize_dtype(described["dtype"])  # int64 tokens are int32 in JAX
    return jax.ShapeDtypeStruct((1, *map(operator.index, described["shape"])), dtype)


def _of_model(described: Model) -> Description:
    if isinstance(described, ModelAdapter) and described.factory:
        return dict(described.factory)
    model = unwrap(described)
    own = {name: record.settings for name, record in NETWORKS.items() if type(model) is record.kind}
    if own:
        # The name that says most of it: weights may change attributes, such as the grid.
        same = {name: {k: getattr(model, k) == v for k, v in own[name].items()} for name in own}
        name = max(own, key=lambda each: 2 * sum(same[each].values()) - len(same[each]))
        left = [f.name for f in dataclasses.fields(model) if f.init and not same[name].get(f.name)]
        settings = {k: getattr(model, k) for k in left if k not in ("parent", "name", "dim")}
        if "dtype" in settings:
            settings["dtype"] = jnp.dtype(model.dtype).name
        with contextlib.suppress(AttributeError):  # of what JSON does not have
            return {"network": name, "dim": model.dim, "settings": through_json(settings)}
    return {"class": qualified_name(type(model))}


def input_spec(images: Any) -> Any:
    """Describe a row of images, or of each part: shape, type, and the range of floating-point photographs."""
    if isinstance(images, dict):
        return {"parts": {name: input_spec(part) for name, part in images.items()}}
    if isinstance(images, tuple):
        return {"parts": [input_spec(part) for part in images]}
    values = value_range(images)
    measured = {} if values is None else {"range": list(values)}
    return {
        "shape": [int(n) for n in images.shape[1:]],
        "dtype": jnp.dtype(images.dtype).name,
        **measured,
    }
