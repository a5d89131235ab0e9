"""Embed a whole set with a network of any kind, and prepare stored images for it."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jdml.data.dataset import (
    Range,
    as_inputs,
    check_in_unit_range,
    check_not_bits,
    check_same_range,
)
from jdml.distributed import Placement, Tree, placement_of
from jdml.models.adapters import AnyModel, Model, as_model
from jdml.models.weights import Normalizer
from jdml.ops import checks

Preprocess = Callable[[Any], Any]
"""From a batch as it is stored to the model's input, inside the compiled step."""


def uint8_to_float(images: jax.Array) -> jax.Array:
    """Turn uint8 images 0…255 into float32 0…1; leave floating-point images as they are.

    Args:
        images: of any shape.

    Returns:
        The images, floating point.

    Raises:
        TypeError: the images are neither uint8 nor floating point.

    Example:
        >>> import jax.numpy as jnp
        >>> uint8_to_float(jnp.array([0, 255], jnp.uint8)).tolist()
        [0.0, 1.0]
    """
    images = jnp.asarray(images)
    if jnp.issubdtype(images.dtype, jnp.floating):
        return images
    if images.dtype != jnp.uint8:
        raise TypeError(f"images must be uint8 or floating point, got {images.dtype}")
    return images.astype(jnp.float32) / 255.0


def default_preprocess(inputs: Any) -> Any:
    """Apply :func:`uint8_to_float` to images, and leave other inputs, such as tokens, as they are.

    Args:
        inputs: an array, or a pytree of arrays.

    Returns:
        The same structure. Integers other than uint8 are tokens, except where they have the shape of images.

    Raises:
        TypeError: images ``[B, H, W, C]`` that are neither uint8 nor floating point.

    Example:
        >>> import jax.numpy as jnp
        >>> default_preprocess({"image": jnp.array([255], jnp.uint8), "tokens": jnp.array([[7]])})
        {'image': Array([1.], dtype=float32), 'tokens': Array([[7]], dtype=int32)}
    """

    def one(leaf: Any) -> jax.Array:
        leaf = jnp.asarray(leaf)
        tokens = jnp.issubdtype(leaf.dtype, jnp.integer) and leaf.dtype != jnp.uint8
        return leaf if tokens and leaf.ndim != 4 else uint8_to_float(leaf)

    return jax.tree.map(one, inputs)


def check_as_trained(images: Any, spec: Mapping[str, Any], preprocess: object) -> None:
    """Refuse photographs in another range than those that were trained on (``spec`` of ``input_spec``)."""
    usual = uint8_to_float, default_preprocess
    is_custom = not isinstance(preprocess, Normalizer) and preprocess not in usual
    if is_custom or len(spec.get("shape", ())) != 3 or not hasattr(images, "dtype"):
        return
    if isinstance(images, np.ndarray) and images.dtype.kind == "f":
        for row, image in enumerate(images):  # one by one: all may be more than a device holds
            if not np.isfinite(image).all():
                raise ValueError(f"images must be finite, row {row} is not")
    if spec["dtype"] == "uint8" or isinstance(preprocess, Normalizer):
        check_in_unit_range("images", images, ", as the run was trained")
        check_not_bits("images", images, "images * 255 for black and white ones")
    elif "range" in spec:
        check_same_range("images", images, Range(*spec["range"]))


@partial(jax.jit, static_argnames=("model", "preprocess", "normalize", "placement"))
def _embed_batch(
    model: Model,
    preprocess: Preprocess,
    normalize: Callable[..., jax.Array] | None,
    placement: Placement,
    variables: Mapping[str, Tree],
    images: Tree,
) -> Tree:
    vectors = model.apply(variables, preprocess(images), train=False)
    return placement.keep(vectors if normalize is None else jax.tree.map(normalize, vectors))


def embed(
    model: AnyModel,
    params: Tree,
    batch_stats: Tree,
    images: Tree,
    *,
    batch_size: int | None = None,
    preprocess: Preprocess = default_preprocess,
    normalize: Callable[..., jax.Array] | None = None,
) -> np.ndarray:
    """Embed a whole set in evaluation mode.

    Args:
        model: whatever :func:`fit` takes.
        params: the model's parameters (``state.params["model"]``).
        batch_stats: the model's running statistics (``state.batch_stats``).
        images: ``[N, H, W, C]``, anything that slices to an array, in any order of bytes; may be larger than the
            device's memory. Or what else the model takes, with rows first. Or a list of images of one shape.
        batch_size: rows per forward pass; by default 512 images of up to 64×64, 32 of 224×224.
        preprocess: as in training.
        normalize: applied to the embeddings ``[B, D]`` of a batch, in the same program; None for nothing.

    Returns:
        Embeddings ``[N, D]`` as a NumPy array.

    Raises:
        TypeError: if ``batch_size`` is no integer.
        ValueError: if it is not positive, there are no images, or a list's images have several shapes.

    Implementation notes:
        The last batch is padded, and a set smaller than ``batch_size`` is padded to a power of two, so that few
        programs are compiled. Where the parameters lie on a mesh, its devices share the rows; each of several processes
        reads its own rows, and all get all embeddings.
    """
    if isinstance(images, list):
        images = as_inputs("images", images)
    first = jax.tree.leaves(images)[0]
    size = len(first)
    if batch_size is None:
        shape = np.shape(first)
        pixels = shape[1] * shape[2] if len(shape) == 4 else 1
        batch_size = 1 << (min(512, max(1, (1 << 21) // pixels)).bit_length() - 1)
    checks.count("batch_size", batch_size)
    if size == 0:
        raise ValueError("images must hold at least one image, got none")
    network, placement = as_model(model), placement_of(params)
    rows = min(batch_size, 1 << (size - 1).bit_length())
    rows = -(-rows // placement.devices) * placement.devices
    variables = {"params": params, "batch_stats": batch_stats}
    own = placement.local_rows(rows)

    def padded(part: Any, start: int) -> np.ndarray:
        batch = checks.as_array(np.asarray(part[start + own[0] : start + own[-1] + 1]))
        missing = own[-1] + 1 - own[0] - len(batch)
        return np.pad(batch, [(0, missing)] + [(0, 0)] * (batch.ndim - 1))[own - own[0]]

    vectors = []
    for start in range(0, size, rows):
        batch = jax.tree.map(lambda part, start=start: padded(part, start), images)
        batch = placement.shard_batch(batch, rows)
        embeddings = _embed_batch(network, preprocess, normalize, placement, variables, batch)
        vectors.append(jax.tree.map(lambda x, n=size - start: np.asarray(x)[:n], embeddings))
    return jax.tree.map(lambda *parts: np.concatenate(parts), *vectors)
