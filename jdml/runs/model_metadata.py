"""What a run's embeddings are made of, in words that another process can read: network, crop, preprocessing, labels."""

import dataclasses
import importlib.metadata
from collections.abc import Mapping
from typing import Any, cast

import jax.numpy as jnp
import numpy as np

from jdml.data import Crops, ImageFiles
from jdml.data.protocols import TrainSet
from jdml.data.value_range import value_range
from jdml.losses.comparison import Normalize
from jdml.models.adapters import Model, unwrapped
from jdml.models.base_adapter import ModelAdapter
from jdml.models.creation import Normalizer, create
from jdml.models.finetuning import WithLora
from jdml.models.preprocess import Preprocess, standard, to_float
from jdml.recipes.loss import NORMALIZATIONS
from jdml.recipes.model_factory import from_factory
from jdml.registry import NETWORKS

Description = dict[str, Any]
PACKAGES = ("jdml", "jax", "flax", "optax", "numpy")


def describe(
    model: Model, preprocess: Preprocess, normalize: Normalize | None, train: TrainSet
) -> Description:
    """Say what stands between an image and its embedding.

    Args:
        model: the model.
        preprocess: what stands between stored images and the model.
        normalize: what retrieval does to embeddings.
        train: the data set that is trained on.

    Returns:
        JSON-able: ``network`` (and ``settings``), ``input``, ``crop``, ``preprocess``, ``normalize``, ``class_names``.
    """
    images = train.images
    return {
        **_of_model(model),
        **({"lora": model.scale} if isinstance(model, WithLora) else {}),
        "input": of_input(images),
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
    """Make the network that a description names.

    Raises:
        ValueError: if it is not one of :mod:`jdml.models`, and no factory made it.
    """
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
    """Make the function from stored images to the model's input.

    Raises:
        ValueError: if it is a function of the user's.
    """
    kind = description["preprocess"]
    if kind == "to_float":
        return standard
    if "mean" in kind:
        return Normalizer(tuple(kind["mean"]), tuple(kind["std"]), kind["bgr"])
    raise ValueError(f"its preprocess= was {kind['function']}: load(run, preprocess=…)")


def build_normalize(description: Description) -> Normalize | None:
    """Make what retrieval does to embeddings; None where it does nothing.

    Raises:
        ValueError: if it is a function of the user's.
    """
    kind = description["normalize"]
    if kind is None:
        return None
    if kind in NORMALIZATIONS:
        return NORMALIZATIONS[kind]
    raise ValueError(f"its normalize= was {kind}: load(run, normalize=…)")


def build_crop(description: Description) -> Crops | None:
    """Make the crop of image files; None where the run had images in memory.

    Raises:
        ValueError: if it is an object of the user's.
    """
    crop = description["crop"]
    if crop is None:
        return None
    if "class" in crop:
        raise ValueError(f"its images were cut by {crop['class']}, which jdml does not know")
    pairs = {name: tuple(crop[name]) for name in ("scale", "ratio")}
    return Crops(**{**crop, **pairs})


def at_defaults(there: Any, now: Description) -> Any:
    """A configuration with the settings that its network did not have when it was written, at their defaults.

    Args:
        there: a run's ``config.json``.
        now: the configuration that it is compared with.

    Returns:
        The configuration. Where its network is then the one of now, so is its fingerprint, which counts all settings.
    """
    old, new = _part(there, "embedding"), _part(now, "embedding")
    if "network" in new and old.get("class") == _name(NETWORKS[new["network"]].kind):
        # It was written when only networks with a name's own attributes were told; the fingerprint knows them all.
        named = {k: new[k] for k in ("network", "dim", "settings")}
        return {**there, "embedding": {**named, **{k: old[k] for k in old if k != "class"}}}
    settings = _part(old, "settings")
    lacking = _part(new, "settings").keys() - settings.keys()
    if not lacking or old.get("network") not in NETWORKS or old["network"] != new["network"]:
        return there
    kind: Any = NETWORKS[old["network"]].kind
    fields = dataclasses.fields(kind)
    defaults = {f.name: _plain(f.default, f.name) for f in fields if f.name in lacking}
    told = {**old, "settings": {**defaults, **settings}}
    made = {**there, "embedding": told}
    if told == new and "lora" not in told:
        model = {"model": now["fingerprint"]["model"]}
        made["fingerprint"] = _part(there, "fingerprint") | model
    return made


def _part(config: Any, name: str) -> Description:
    """What a configuration says under a name; nothing where that is no mapping."""
    part = config.get(name) if isinstance(config, dict) else None
    return part if isinstance(part, dict) else {}


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
    return {"class": _name(type(model))}


def _distance(model: Any, settings: Mapping[str, Any]) -> tuple[int, int]:
    """How many of a name's attributes a network has not; where that are some, the more of the others the nearer."""
    same = sum(getattr(model, k) == v for k, v in settings.items())
    other = len(settings) - same
    return other, -same if other else 0


_unknown = object()


def _plain(value: Any, name: str) -> Any:
    """A network's attribute as JSON has it."""
    if name == "dtype":
        return jnp.dtype(value).name
    if isinstance(value, tuple | list):
        return list(value)
    return value if isinstance(value, str | int | float | None) else _unknown


def of_input(images: Any) -> Any:
    """Say what a row of images is: its shape and type, of floating-point photographs their range; by parts."""
    if isinstance(images, dict):
        return {"parts": {name: of_input(part) for name, part in images.items()}}
    if isinstance(images, tuple):
        return {"parts": [of_input(part) for part in images]}
    seen = value_range(images)
    told = {} if seen is None else {"range": list(seen)}
    return {
        "shape": [int(n) for n in images.shape[1:]],
        "dtype": jnp.dtype(images.dtype).name,
        **told,
    }


def _of_crop(transform: object) -> Description:
    if isinstance(transform, Crops):
        return dataclasses.asdict(transform)
    return {"class": _name(transform)}


def _of_preprocess(preprocess: Preprocess) -> Any:
    if preprocess in (to_float, standard):
        return "to_float"
    if isinstance(preprocess, Normalizer):
        return dataclasses.asdict(preprocess)
    return {"function": _name(preprocess)}


def _of_normalize(normalize: Normalize | None) -> str | None:
    known = {function: name for name, function in NORMALIZATIONS.items()}
    return None if normalize is None else known.get(normalize, _name(normalize))


def _name(value: object) -> str:
    """Where a function or an object's class is defined."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"
