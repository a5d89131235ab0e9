"""Networks by name, and their pretrained weights: converted from other libraries' files, and loaded."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from jdml import adapt
from jdml._paths import check_file, check_local, json_of
from jdml.models.io import read_metadata, read_tensors, write_tensors
from jdml.models.weight_formats import POSITIONS, Shape, WeightFormat, from_stored, weight_formats
from jdml.ops.checks import one_of
from jdml.registry import NETWORKS, image_statistics, pretrained_networks


def create(name: str, *, dim: int, **settings: Any) -> nn.Module:
    """Make a network by name.

    Args:
        name: the network's name, a key of ``jdml.registry.NETWORKS``.
        dim: width D of the embeddings.
        **settings: the network's other attributes, such as ``pooling`` or ``dtype``.

    Returns:
        The Linen module, without parameters yet.

    Raises:
        TypeError: if the network has no such attribute.
        ValueError: if there is no network of that name.

    Example:
        >>> create("small", dim=64, pooling="gem").dim
        64
    """
    one_of("name", name, NETWORKS)
    record = NETWORKS[name]
    module: nn.Module = record.kind(dim=dim, **{**record.settings, **settings})
    return module


@dataclasses.dataclass(frozen=True)
class Normalizer:
    """Normalizes photographs as a network's weights expect; equal ones are one static argument of ``jax.jit``."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    bgr: bool = False

    def __call__(self, images: jax.Array) -> jax.Array:
        """Normalize RGB images ``[…, H, W, 3]``, uint8 in 0…255 or floating-point in 0…1, to float32."""
        images = jnp.asarray(images)
        if images.ndim < 3 or images.shape[-1] != 3:
            raise ValueError(f"images must have shape [..., H, W, 3], got {list(images.shape)}")
        if jnp.issubdtype(images.dtype, jnp.floating):
            images = 255.0 * images.astype(jnp.float32)
        elif images.dtype != jnp.uint8:
            raise TypeError(f"images must be uint8 or floating point, got {images.dtype}")
        images = images[..., ::-1] if self.bgr else images
        return (images.astype(jnp.float32) - jnp.asarray(self.mean)) / jnp.asarray(self.std)


def normalizer(name: str) -> Callable[[jax.Array], jax.Array]:
    """Return the ``preprocess=`` of training for a network with pretrained weights.

    Args:
        name: the name of a network with pretrained weights, as in ``create``, or of other weights of it:
            ``"vit_s16"`` for those of ImageNet-21k, ``"vit_s16_dino"`` for DINO's.

    Returns:
        A function of RGB images ``[…, H, W, 3]``, uint8 in 0…255 or floating-point in 0…1, that returns float32.

    Raises:
        ValueError: if no network of that name has pretrained weights.

    Implementation notes:
        ResNets, DINO and DINOv2: ImageNet's mean and standard deviation per channel. ViT of ImageNet-21k and SigLIP:
        −1…1. CLIP: its own. BN-Inception: BGR in 0…255 minus (104, 117, 128), as its Caffe model. EfficientNet-Lite0:
        (x − 127) / 128.

    Example:
        >>> white = jnp.full((1, 1, 3), 255, jnp.uint8)
        >>> print(normalizer("bn_inception")(white), normalizer("vit_s16")(white))
        [[[151. 138. 127.]]] [[[1. 1. 1.]]]
    """
    known = image_statistics()
    one_of("name", name, known)
    return Normalizer(*known[name])


# Prefixes that programs put before all names.
PREFIXES = (
    "",
    "module.",
    "model.",
    "backbone.",
    "module.backbone.",
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
# Arrays inside networks that change no embedding.
HARMLESS = ("num_batches_tracked", "mask_token", "logit_scale", "logit_bias")


class Conversion(NamedTuple):
    """The result of converting a file of weights.

    Attributes:
        arch: the architecture, as ``create`` names it.
        origin: the library whose names the file uses.
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
        path: a ``.safetensors`` or PyTorch (``.pth``, ``.pt``, ``.bin``) file. ResNets have the names of torchvision
            and timm; ``bn_inception`` those of pretrainedmodels; ``efficientnet_lite0`` those of
            efficientnet_lite_pytorch or of timm's ``tf_efficientnet_lite0``; vision transformers those of timm, of
            transformers, and of their own programs: DINO's, DINOv2's, open_clip's.
        out: the ``.safetensors`` file to write, atomically.
        arch: the architecture, a name of ``jdml.registry.pretrained_networks()``.

    Returns:
        The converted parameters, and the names that are not used.

    Raises:
        FileNotFoundError: if there is no file ``path``.
        ValueError: if the architecture has no conversion, a file has the wrong ending or cannot be read, ``out`` cannot
            be written or is ``path``, a parameter is missing, is not finite or has another shape, or the file's network
            has layers between those of ``arch``, such as a deeper one's.

    Implementation notes:
        Everything but the embedding head is converted, or nothing, to float32, with the attributes that the network
        needs (:func:`weights_settings`): the resampling of positions, the GELU of timm's SigLIP, the grid of a file for
        images of another size. Some are in no file: ``create("vit_s16", resampling="dino")`` for DINO's weights,
        ``create("clip_b32", activation="gelu")`` for LAION's CLIP, or ``--normalization vit_s16_dino``,
        ``clip_b32_laion`` on the command line. timm's ``efficientnet_lite0`` has the names of
        ``tf_efficientnet_lite0``, but is another network: only the latter is right here.

    Example:
        >>> convert_weights("resnet50.bin", "resnet50.safetensors", arch="resnet152")
        Traceback (most recent call last):
        ValueError: arch must be one of resnet18, ..., got 'resnet152'...
    """
    check_local("path", path)
    check_local("out", out)
    path, out = Path(path), Path(out)
    one_of("arch", arch, pretrained_networks())
    check_file("out", out, (".safetensors",))
    tensors = read_tensors(path)
    if out.exists() and out.samefile(path):
        raise ValueError(f"out must be another file than path, got {out} for both")
    shapes = _shapes(arch)
    layout, prefix, names = _recognize(tensors, shapes, arch, path)
    converted = {}
    for target, name in names.items():
        array = from_stored(tensors[name], target, shapes[target], name)
        if isinstance(array, tuple):
            raise ValueError(
                f"{path}: {name} has shape {list(tensors[name].shape)}, {arch} needs {list(array)} for {target}"
            )
        if not np.isfinite(array).all():
            raise ValueError(f"{path}: {name} has values that are not finite")
        converted[target] = array
    unused = {name: array for name, array in tensors.items() if name not in names.values()}
    foreign = _foreign(unused, names, prefix)
    if foreign:
        raise ValueError(
            f"{path} holds another network than {arch}: it has {len(foreign)} arrays more between those of "
            f"{arch}, such as {', '.join(foreign[:3])}"
        )
    settings = dict(layout.settings)
    if POSITIONS in shapes and converted[POSITIONS].shape != shapes[POSITIONS]:
        settings["grid"] = math.isqrt(converted[POSITIONS].shape[1])
    metadata = {SETTINGS: json.dumps(settings)} if settings else {}
    write_tensors(out, converted, {ARCHITECTURE: arch, **metadata})
    return Conversion(arch, layout.origin, names, tuple(unused))


def load_weights(path: str | Path, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Put converted weights into a network's initialized variables, all but the embedding head.

    Args:
        path: a file of ``convert_weights`` or ``jdml weights convert``.
        variables: what the network's ``init`` returns: ``{"params": …}`` and, with batch norm, ``"batch_stats"``.

    Returns:
        Variables of the same structure: ``params/head`` unchanged, everything else from the file.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file cannot be read, was not written by ``convert_weights``, or does not fit the variables.

    Example:
        ``training.fit(…, state=start)`` begins with pretrained weights by

        >>> from functools import partial
        >>> from jdml import training
        >>> start = training.pretrained(partial(load_weights, "resnet50.safetensors"))
    """
    check_local("path", path)
    path = Path(path)
    arch = read_metadata(path).get(ARCHITECTURE)
    if arch is None:
        raise ValueError(
            f"{path} does not name its architecture: convert it first (convert_weights)"
        )
    tensors = read_tensors(path)
    current = flatten_dict(dict(variables), sep="/", keep_empty_nodes=True)
    arrays = {name: value for name, value in current.items() if hasattr(value, "shape")}
    expected = {name: value for name, value in arrays.items() if not name.startswith(HEAD)}
    message = f"{path} holds weights of {arch!r}, which do not fit the variables"
    adapt.check_same_arrays(message, tensors, expected, types=False)
    loaded = {name: jnp.asarray(tensors[name], value.dtype) for name, value in expected.items()}
    return unflatten_dict({**current, **loaded}, sep="/")


def weights_settings(pretrained: Any) -> dict[str, Any]:
    """Return the attributes that a network needs for its pretrained weights.

    Args:
        pretrained: a file that ``convert_weights`` wrote, or ``functools.partial(load_weights, FILE)``.

    Returns:
        Keywords of ``create``; empty for weights that need none, and for other functions.

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
    """Return the settings of a file of pretrained weights that are attributes of a network."""
    kind: Any = NETWORKS[name].kind
    own = {field.name for field in dataclasses.fields(kind)}
    return {key: value for key, value in weights_settings(pretrained).items() if key in own}


@cache
def _shapes(arch: str) -> dict[str, Shape]:
    """Return the shape of everything to convert, by its path."""
    images = jax.ShapeDtypeStruct((1, 64, 64, 3), jnp.float32)
    variables = jax.eval_shape(create(arch, dim=1).init, jax.random.key(0), images)
    flat = flatten_dict(variables, sep="/")
    return {name: leaf.shape for name, leaf in flat.items() if not name.startswith(HEAD)}


def _recognize(
    tensors: Mapping[str, np.ndarray], shapes: Mapping[str, Shape], arch: str, path: Path
) -> tuple[WeightFormat, str, dict[str, str]]:
    """Return the format with the most names in the file, the prefix of all, and the name of each parameter."""
    candidates = [
        (layout, prefix, {x: prefix + layout.name(x.partition("/")[2]) for x in shapes})
        for layout in weight_formats(arch)
        for prefix in PREFIXES
    ]
    best = max(candidates, key=lambda each: sum(name in tensors for name in each[2].values()))
    layout, _, names = best
    missing = [f"{name} ({target})" for target, name in names.items() if name not in tensors]
    if missing:
        shown = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
        raise ValueError(
            f"{path}: {len(missing)} of {len(shapes)} parameters of {arch} are missing, by the names of "
            f"{layout.origin}: {shown}; the file has {', '.join(list(tensors)[:5]) or 'no arrays'}, …"
        )
    return best


def _foreign(unused: Mapping[str, np.ndarray], names: Mapping[str, str], prefix: str) -> list[str]:
    """Return unused names within the network: next to its layers, or in none, where a classifier never is."""
    within = {name.removeprefix(prefix).split(".")[0] for name in names.values()}
    foreign = []
    for name, array in unused.items():
        first, _, rest = name.removeprefix(prefix).partition(".")
        is_within = name.startswith(prefix) and (not rest or first in within)
        changes_nothing = name.endswith(HARMLESS) or (name.endswith(".bias") and not array.any())
        if is_within and not changes_nothing:
            foreign.append(name)
    return foreign
