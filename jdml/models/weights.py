"""Pretrained weights: from other libraries' files to ours, and from ours into a network."""

import dataclasses
import json
import re
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from jdml._paths import check_local, json_of
from jdml.models.creation import create
from jdml.models.dialects import Dialect, Shape, as_ours, dialects, grid_of
from jdml.models.tensors import read_metadata, read_tensors, write_tensors
from jdml.registry import NETWORKS, pretrained_networks

# What programs put before all names.
PREFIXES = (
    "",
    "module.",
    "model.",
    "backbone.",
    "module.backbone.",
    "resnet.",
    "vit.",
    "dinov2.",
    "dinov2_with_registers.",
    "visual.",
    "vision_model.",
    "model.vision_model.",
)
HEAD = "params/head/"
ARCHITECTURE = "architecture"
SETTINGS = "settings"
# What stands inside networks and changes nothing of what they compute here.
HARMLESS = ("num_batches_tracked", "mask_token", "logit_scale", "logit_bias")


class Conversion(NamedTuple):
    """What became of a file of weights.

    Attributes:
        arch: the architecture, as ``create`` names it.
        origin: whose names the file uses.
        converted: each of the network's parameters and statistics, with its name in the file.
        unused: names in the file that the network has no place for, such as a classifier's.
    """

    arch: str
    origin: str
    converted: dict[str, str]
    unused: tuple[str, ...]


def convert_weights(path: str | Path, out: str | Path, *, arch: str) -> Conversion:
    """Convert weights of another library into a file for ``load_weights``.

    Args:
        path: a ``.safetensors``, ``.npz`` or PyTorch (``.pth``, ``.pt``, ``.bin``) file. ResNets may have the names of
            torchvision and timm or of transformers; ``bn_inception`` those of pretrainedmodels; ``efficientnet_lite0``
            those of efficientnet_lite_pytorch or of timm's ``tf_efficientnet_lite0``; vision transformers those of
            timm, of transformers, and of their own programs: DINO's and DINOv2's (``.pth``), the ViT paper's
            (``.npz``), open_clip's.
        out: the ``.safetensors`` file to write, atomically.
        arch: the architecture, a name of ``jdml.registry.pretrained_networks()``.

    Returns:
        What was converted, and what was left.

    Raises:
        FileNotFoundError: if there is no file ``path``, or no folder for ``out``.
        ValueError: if the architecture has no conversion, a file has the wrong ending or cannot be read, ``out`` is
            ``path``, a parameter is missing, is not finite or has another shape, or the file's network has layers
            between those of ``arch`` (another depth, squeeze and excitation); naming the file, the parameter and both
            shapes.

    Implementation notes:
        Everything but the embedding head is converted, or nothing: a network that is pretrained in parts would run
        and be wrong. The names of the file are recognized by themselves, behind any of the usual prefixes such as
        ``"module."``. Arrays are stored as float32, as ``"params/…"`` and ``"batch_stats/…"``, with what the network
        is to be made with (:func:`weights_settings`): positions that were learned with transformers are resampled as
        there, timm's SigLIP has the exact GELU, a file for images of another size brings its grid. What no file tells
        is to be told: ``create("vit_s16", resampling="dino")`` for DINO's, ``create("clip_b32", activation="gelu")``
        for LAION's CLIP, or ``--normalization vit_s16_dino``, ``clip_b32_laion`` on the command line. Nor does a file
        tell timm's ``efficientnet_lite0`` from ``tf_efficientnet_lite0``, which alone is the network here.

    Example:
        >>> convert_weights("resnet50.bin", "resnet50.safetensors", arch="resnet152")
        Traceback (most recent call last):
        ValueError: arch must be one of ('resnet18', ..., 'siglip_so400m14'), got 'resnet152'
    """
    check_local("path", path)
    check_local("out", out)
    path, out = Path(path), Path(out)
    if arch not in pretrained_networks():
        raise ValueError(f"arch must be one of {pretrained_networks()}, got {arch!r}")
    if out.suffix != ".safetensors":
        raise ValueError(f"out must end in .safetensors, got {out}")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"out must lie in a folder that exists, got {out}")
    tensors = read_tensors(path)
    if out.exists() and out.samefile(path):
        raise ValueError(f"out must be another file than path, got {out} for both")
    shapes = _shapes(arch)
    dialect, names = _recognize(tensors, shapes, arch, path)
    converted = {}
    for target, name in names.items():
        array = as_ours(tensors[name], target, shapes[target], dialect, name)
        if isinstance(array, tuple):
            raise ValueError(
                f"{path}: {name} has shape {list(tensors[name].shape)}, {arch} needs {list(array)} for {target}"
            )
        if not np.isfinite(array).all():
            raise ValueError(f"{path}: {name} has values that are not finite")
        if target.endswith("/var") and (array < 0).any():
            raise ValueError(f"{path}: {name} holds variances, of which {array.min():.3g} is none")
        converted[target] = array
    used = set(names.values())
    unused = tuple(name for name in tensors if name not in used)
    foreign = [
        name for name in _foreign(unused, names, dialect) if not _adds_nothing(name, tensors[name])
    ]
    if foreign:
        raise ValueError(
            f"{path} holds another network than {arch}: it has {len(foreign)} arrays more between those of "
            f"{arch}, such as {', '.join(foreign[:3])}"
        )
    settings = {**dialect.settings, **grid_of(converted, shapes)}
    told = {SETTINGS: json.dumps(settings)} if settings else {}
    write_tensors(out, converted, {ARCHITECTURE: arch, **told})
    return Conversion(arch, dialect.origin, names, unused)


def load_weights(path: str | Path, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Put converted weights into a network's initialized variables, all but the embedding head.

    Args:
        path: a file that ``convert_weights`` (or ``jdml weights convert``) wrote.
        variables: what the network's ``init`` returns: ``{"params": …}`` and, with batch norm, ``"batch_stats"``.

    Returns:
        Variables of the same structure: everything under ``params/head`` as it was, everything else from the file.

    Raises:
        TypeError: variables that are no mapping.
        FileNotFoundError: if there is no such file.
        ValueError: if the file cannot be read, was not written by ``convert_weights``, or does not fit the variables;
            naming the file, its architecture, the first parameter that does not fit, and both shapes.

    Example:
        Training that starts from pretrained weights::

            start = functools.partial(load_weights, "resnet50.safetensors")
            training.fit(model, objective, optimizer, train, sampler, steps=1000, state=training.pretrained(start))

        >>> load_weights("resnet50.npz", {})
        Traceback (most recent call last):
        ValueError: path must end in .safetensors (see convert_weights), got resnet50.npz
    """
    check_local("path", path)
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"path must end in .safetensors (see convert_weights), got {path}")
    tensors = read_tensors(path)
    arch = read_metadata(path).get(ARCHITECTURE)
    if arch is None:
        raise ValueError(
            f"{path} does not name its architecture: convert it first (convert_weights)"
        )
    if not isinstance(variables, Mapping):
        raise TypeError(
            f"variables must be what the network's init returns, got a {type(variables).__name__}"
        )
    current = flatten_dict(dict(variables), sep="/", keep_empty_nodes=True)
    fresh = {
        name: value
        for name, value in current.items()
        if name.startswith(HEAD) or not hasattr(value, "shape")
    }
    expected = {name: value for name, value in current.items() if name not in fresh}
    for name in sorted(expected.keys() | tensors.keys()):
        there, here = _shape_in(tensors, name), _shape_in(expected, name)
        if there != here:
            raise ValueError(
                f"{path} holds weights of {arch!r}, which do not fit the variables: "
                f"{name} is {there} in the file and {here} in the variables"
            )
    loaded = {name: jnp.asarray(tensors[name], value.dtype) for name, value in expected.items()}
    return unflatten_dict({**loaded, **fresh}, sep="/")


def weights_settings(pretrained: Any) -> dict[str, Any]:
    """Tell with which attributes a network computes what its pretrained weights were trained in.

    Args:
        pretrained: a file that ``convert_weights`` wrote, or ``functools.partial(load_weights, FILE)``.

    Returns:
        Keywords of ``create``; none of weights that need none, of files converted by earlier versions, and of other
        functions.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file cannot be read.

    Example:
        >>> weights_settings(lambda variables: variables)
        {}
    """
    if isinstance(pretrained, partial) and pretrained.func is load_weights and pretrained.args:
        pretrained = pretrained.args[0]
    if not isinstance(pretrained, str | Path) or Path(pretrained).suffix != ".safetensors":
        return {}
    settings: dict[str, Any] = json_of(
        read_metadata(Path(pretrained)).get(SETTINGS, "{}"), pretrained, dict
    )
    return settings


def settings_of(pretrained: Any, name: str) -> dict[str, Any]:
    """Tell what a file of pretrained weights says of a network, as keywords of its class."""
    said = weights_settings(pretrained)
    if not said:
        return {}
    kind: Any = NETWORKS[name].kind
    own = {field.name for field in dataclasses.fields(kind) if field.init}
    own -= {"dim", "name", "parent"}
    unknown = sorted(said.keys() - own)
    file = pretrained.args[0] if isinstance(pretrained, partial) else pretrained
    if unknown and read_metadata(Path(file)).get(ARCHITECTURE) == name:
        raise ValueError(
            f"{file} says {unknown[0]}={said[unknown[0]]!r} of its network, and {name} has no such attribute: it was "
            "not written by this version's convert_weights"
        )
    return {key: value for key, value in said.items() if key in own}


@cache
def _shapes(arch: str) -> dict[str, Shape]:
    """The shape of everything to convert, by its path."""
    images = jax.ShapeDtypeStruct((1, 64, 64, 3), jnp.float32)
    variables = jax.eval_shape(create(arch, dim=1).init, jax.random.key(0), images)
    flat = flatten_dict(variables, sep="/")
    return {name: leaf.shape for name, leaf in flat.items() if not name.startswith(HEAD)}


def _recognize(
    tensors: Mapping[str, np.ndarray], shapes: Mapping[str, Shape], arch: str, path: Path
) -> tuple[Dialect, dict[str, str]]:
    """The dialect that finds the most of what is needed in the file, and its name for each parameter."""
    known = dialects(arch)
    best, most = known[0], -1
    names: dict[str, str] = {}
    for dialect in known:
        for prefix in PREFIXES:
            tried = {target: prefix + dialect.name(target.partition("/")[2]) for target in shapes}
            matching = sum(name in tensors for name in tried.values())
            if matching > most:
                best, names, most = dialect, tried, matching
    missing = [f"{name} ({target})" for target, name in names.items() if name not in tensors]
    if missing:
        shown = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
        raise ValueError(
            f"{path}: {len(missing)} of {len(shapes)} parameters of {arch} are missing, by the names of {best.origin}: "
            f"{shown}; the file has {', '.join(list(tensors)[:5]) or 'no arrays'}, …"
        )
    return best, names


def _foreign(unused: tuple[str, ...], names: Mapping[str, str], dialect: Dialect) -> list[str]:
    """Unused names that lie within the network: beside its layers, or in none, where a classifier never is."""
    target, name = next(iter(names.items()))
    prefix = name.removesuffix(dialect.name(target.partition("/")[2]))
    within = {name.removeprefix(prefix).replace("/", ".").split(".")[0] for name in names.values()}
    parts = {name: re.split(r"[./]", name.removeprefix(prefix)) for name in unused}
    return [
        name
        for name in unused
        if name.startswith(prefix)
        and not name.endswith(HARMLESS)
        and (len(parts[name]) == 1 or parts[name][0] in within)
    ]


def _adds_nothing(name: str, array: np.ndarray) -> bool:
    """Whether an array that is not used is a bias of zeros."""
    return name.endswith(".bias") and not array.any()


def _shape_in(arrays: Mapping[str, Any], name: str) -> str:
    return str(list(arrays[name].shape)) if name in arrays else "absent"
