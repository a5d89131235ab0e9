"""Embed a whole set with a network of any kind."""

from functools import partial
from typing import Any

import jax
import numpy as np

from jdml.data.dataset import as_inputs
from jdml.distributed import Placement, Tree, placement_of
from jdml.models.adapters import AnyModel, Model, as_model
from jdml.models.preprocess import Preprocess, standard
from jdml.ops import checks

Variables = dict[str, Tree]
"""A model's ``{"params", "batch_stats"}``."""
PIXELS = 1 << 21  # that a forward pass embeds at a time


def _embed_batch(
    model: AnyModel,
    preprocess: Preprocess,
    placement: Placement,
    variables: Variables,
    images: Tree,
) -> Tree:
    return _embedded(as_model(model), preprocess, placement, variables, images)


@partial(jax.jit, static_argnames=("model", "preprocess", "placement"))
def _embedded(
    model: Model, preprocess: Preprocess, placement: Placement, variables: Variables, images: Tree
) -> Tree:
    return placement.keep(model.apply(variables, preprocess(images), train=False))


def rows_at_once(images: Any) -> int:
    """How many rows :func:`embed` takes at a time: 512 images of up to 64×64, 32 of 224×224."""
    shape = images.shape if hasattr(images, "shape") else np.shape(images)
    pixels = shape[1] * shape[2] if len(shape) == 4 else 1
    return 1 << (min(512, max(1, PIXELS // pixels)).bit_length() - 1)


def embed(
    model: AnyModel,
    params: Tree,
    batch_stats: Tree,
    images: Tree,
    *,
    batch_size: int | None = None,
    preprocess: Preprocess = standard,
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

    Returns:
        Embeddings ``[N, D]`` as a NumPy array.

    Raises:
        TypeError: if ``batch_size`` is no integer.
        ValueError: if it is not positive, there are no images, or a list's images have several shapes.

    Implementation notes:
        The last batch is padded, and a set smaller than ``batch_size`` goes in one batch padded to a
        power of two, so that a model is compiled once and stays compiled between calls. Where the parameters lie on a
        mesh, its devices share the rows, and of several processes each reads its own; all get all embeddings.
    """
    if isinstance(images, list):
        images = as_inputs("images", images)
    parts = jax.tree.leaves(images)
    size = len(parts[0])
    if batch_size is None:
        batch_size = rows_at_once(parts[0])
    checks.count("batch_size", batch_size)
    if size == 0:
        raise ValueError("images must hold at least one image, got none")
    placement = placement_of(params)
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
        embedded = _embed_batch(model, preprocess, placement, variables, batch)
        vectors.append(jax.tree.map(lambda x, n=size - start: np.asarray(x)[:n], embedded))
    return jax.tree.map(lambda *several: np.concatenate(several), *vectors)
