"""Description of a run's embeddings that another process can read: network, crop, preprocessing, labels."""

import dataclasses
import importlib.metadata
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jdml.data import Crops, ImageFiles
from jdml.data.dataset import TrainSet, value_range
from jdml.distributed import Tree
from jdml.losses.comparison import Normalize
from jdml.models.adapters import Model, unwrapped
from jdml.models.base_adapter import ModelAdapter
from jdml.models.creation import Normalizer, create
from jdml.models.finetuning import WithLora
from jdml.models.preprocess import Preprocess, standard, to_float
from jdml.recipes.loss import NORMALIZATIONS
from jdml.recipes.network import from_factory
from jdml.registry import NETWORKS
from jdml.runs.identity import qualified_name
from jdml.runs.run_files import named_leaves

Description = dict[str, Any]
PACKAGES = ("jdml", "jax", "flax", "optax", "numpy")


def describe(
    model: Model, preprocess: Preprocess, normalize: Normalize | None, train: TrainSet
) -> Description:
    """Say what stands between an image and its embedding."""
    images = train.images
    return {
        **_of_model(model),
        **({"lora": model.scale} if isinstance(model, WithLora) else {}),
        "input": input_spec(images),
        "crop": _of_crop(images.transform) if isinstance(images, ImageFiles) else None,
        "preprocess": _of_preprocess(preprocess),
        "normalize": _of_normalize(normalize),
        "class_names": class_names(train),
    }


def versions() -> dict[str, str]:
    """Return the versions of what computes: jdml, jax, flax, optax, numpy."""
    numbers = {}
    for package in PACKAGES:
        try:
            numbers[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # used from its sources
            numbers[package] = "unknown"
    return numbers


def class_names(train: TrainSet) -> list[str]:
    """Return the names of the labels that are trained on; empty where they have none."""
    views = getattr(train, "views", {})
    for view, names in getattr(train, "class_names", {}).items():
        if np.array_equal(views[view], train.labels):
            return list(names)
    return []


def trained_view(train: TrainSet) -> str | None:
    """Return the name of the labelling that is trained on; None where there are none by name, or it is not of them."""
    views = getattr(train, "views", {})
    return next((view for view in views if np.array_equal(views[view], train.labels)), None)


def build_model(description: Description) -> Model:
    """Make the network that a description names."""
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
    """Make the function from stored images to the model's input."""
    kind = description["preprocess"]
    if kind == "to_float":
        return standard
    if "mean" in kind:
        return Normalizer(tuple(kind["mean"]), tuple(kind["std"]), kind["bgr"])
    raise ValueError(f"its preprocess= was {kind['function']}: load(run, preprocess=…)")


def build_normalize(description: Description) -> Normalize | None:
    """Make what retrieval does to embeddings; None where it does nothing."""
    kind = description["normalize"]
    if kind is None:
        return None
    if kind in NORMALIZATIONS:
        return NORMALIZATIONS[kind]
    raise ValueError(f"its normalize= was {kind}: load(run, normalize=…)")


def build_crop(description: Description) -> Crops | None:
    """Make the crop of image files; None where the run had images in memory."""
    crop = description["crop"]
    if crop is None:
        return None
    if "class" in crop:
        raise ValueError(f"its images were cut by {crop['class']}, which jdml does not know")
    pairs = {name: tuple(crop[name]) for name in ("scale", "ratio")}
    return Crops(**{**crop, **pairs})


def fit_variables(
    model: Model,
    arrays: Mapping[str, np.ndarray],
    described: dict[str, Any],
    path: Path,
    preprocess: Preprocess,
) -> dict[str, Any]:
    """Return arrays in the structure of a model's variables, which must be theirs."""
    template = _template(model, described, preprocess)
    wanted = named_leaves(template)
    there = {n: a for n, a in arrays.items() if not n.startswith("objective/")}
    for name in sorted(wanted.keys() | there.keys()):
        shapes = [list(x[name].shape) if name in x else "absent" for x in (there, wanted)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"model is not the run's: {name} is {shapes[0]} in {path} and {shapes[1]} in the model"
            )
    leaves = [jnp.asarray(arrays[name]) for name in wanted]
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def _template(model: Model, described: Description, preprocess: Preprocess) -> Description:
    """Return the shapes of a model's variables."""

    def init(inputs: Tree) -> Tree:
        return model.init(jax.random.key(0), preprocess(inputs), train=False)

    variables = jax.eval_shape(init, input_template(described["input"]))
    return {"params": variables.get("params", {}), "batch_stats": variables.get("batch_stats", {})}


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
    model = unwrapped(described)
    own = {name: record for name, record in NETWORKS.items() if type(model) is record.kind}
    if own:
        # One of them whatever its attributes: weights may change some (another grid, another activation).
        name = min(own, key=lambda name: _distance(model, own[name].settings))
        fixed = {k: v for k, v in own[name].settings.items() if getattr(model, k) == v}
        fields = [f.name for f in dataclasses.fields(model) if f.init]
        left = [f for f in fields if f not in ("parent", "name", "dim", *fixed)]
        settings = {f: _plain(getattr(model, f), f) for f in left}
        if not any(value is _unknown for value in settings.values()):
            return {"network": name, "dim": model.dim, "settings": settings}
    return {"class": qualified_name(type(model))}


def _distance(model: Any, settings: Mapping[str, Any]) -> tuple[int, int]:
    """Return a sort key: the number of attributes that differ, then minus those that agree."""
    same = sum(getattr(model, k) == v for k, v in settings.items())
    other = len(settings) - same
    return other, -same if other else 0


_unknown = object()


def _plain(value: Any, name: str) -> Any:
    """Return a network's attribute as JSON has it."""
    if name == "dtype":
        return jnp.dtype(value).name
    if isinstance(value, tuple | list):
        return list(value)
    return value if isinstance(value, str | int | float | None) else _unknown


def input_spec(images: Any) -> Any:
    """Say what a row of images is: its shape and type, of floating-point photographs their range; by parts."""
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


def _of_crop(transform: object) -> Description:
    if isinstance(transform, Crops):
        return dataclasses.asdict(transform)
    return {"class": qualified_name(transform)}


def _of_preprocess(preprocess: Preprocess) -> Any:
    if preprocess in (to_float, standard):
        return "to_float"
    if isinstance(preprocess, Normalizer):
        return dataclasses.asdict(preprocess)
    return {"function": qualified_name(preprocess)}


def _of_normalize(normalize: Normalize | None) -> str | None:
    known = {function: name for name, function in NORMALIZATIONS.items()}
    return None if normalize is None else known.get(normalize, qualified_name(normalize))
