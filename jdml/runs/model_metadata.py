"""Description of a run's embeddings as JSON: network, crop, preprocessing, labels."""

import contextlib
import dataclasses
import operator
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jdml.data import Crops, ImageFiles
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
from jdml.runs.run_files import named_leaves, through_json

Description = dict[str, Any]


def describe(
    model: Model, preprocess: Preprocess, normalize: Normalize | None, train: TrainSet
) -> Description:
    """Describe the network, the crop, the preprocessing and the normalization of a run."""
    transform = train.images.transform if isinstance(train.images, ImageFiles) else None
    other_crop = None if transform is None else {"class": qualified_name(transform)}
    if isinstance(preprocess, Normalizer):
        prepared: Any = dataclasses.asdict(preprocess)
    elif preprocess in (uint8_to_float, default_preprocess):
        prepared = "to_float"
    else:
        prepared = {"function": qualified_name(preprocess)}
    known = {None: None, **{function: name for name, function in NORMALIZATIONS.items()}}
    names = getattr(train, "class_names", {})
    return {
        **_of_model(model),
        "input": input_spec(train.images),
        "crop": dataclasses.asdict(transform) if isinstance(transform, Crops) else other_crop,
        "preprocess": prepared,
        "normalize": known.get(normalize, qualified_name(normalize)),
        "class_names": list(names.get(trained_view(train), ())),
    }


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
    settings = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
    return cast(Model, create(description["network"], dim=description["dim"], **settings))


def build_preprocess(description: Description) -> Preprocess:
    """Build the function from stored images to the model's input."""
    kind = description["preprocess"]
    if kind == "to_float":
        return default_preprocess
    if "mean" in kind:
        return Normalizer(tuple(kind["mean"]), tuple(kind["std"]), kind["bgr"])
    raise ValueError(f"its preprocess= was {kind['function']}: load(run, preprocess=…)")


def build_normalize(description: Description) -> Normalize | None:
    """Build the normalization of embeddings; None without one."""
    kind = description["normalize"]
    if kind is not None and kind not in NORMALIZATIONS:
        raise ValueError(f"its normalize= was {kind}: load(run, normalize=…)")
    return NORMALIZATIONS.get(kind)


def build_crop(description: Description) -> Crops | None:
    """Build the crop of image files; None where the run had images in memory."""
    crop = description["crop"]
    if crop is None:
        return None
    if "class" in crop:
        raise ValueError(f"its images were cropped by {crop['class']}, which is not of jdml")
    pairs = {name: tuple(crop[name]) for name in ("scale", "ratio")}
    return Crops(**{**crop, **pairs})


def fit_variables(template: Mapping[str, Tree], arrays: Mapping[str, Any], path: Path) -> Any:
    """Return a run's arrays in the structure of a network's variables; refuse other names or shapes."""
    own = named_leaves(template)
    stored = {n: a for n, a in arrays.items() if not n.startswith("objective/")}
    for name in sorted(own.keys() | stored.keys()):
        shapes = [list(np.shape(x[name])) if name in x else "absent" for x in (stored, own)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"model is not the run's: {name} is {shapes[0]} in {path} and {shapes[1]} in the model"
            )
    leaves = [jnp.asarray(arrays[name], leaf.dtype) for name, leaf in own.items()]
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
