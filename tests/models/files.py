"""Random weights under the names of other libraries' files, and features with their weights."""

from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from safetensors.numpy import save_file

from jdml.models import Conversion, convert_weights, create, load_weights
from jdml.models.weight_formats import WeightFormat, stored_shape

WIDTH, DEPTH, HEADS, PROJECTED, GRID = 48, 2, 4, 20, 4
"""Sizes of small vision transformers."""


def zeros(arch: str, dim: int = 8) -> dict:
    """Return a network's variables with the shapes of its init, all zeros."""
    images = jax.ShapeDtypeStruct((1, 64, 64, 3), np.float32)
    shapes = jax.eval_shape(create(arch, dim=dim).init, jax.random.key(0), images)
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)


def random_arrays(arch: str, layout: WeightFormat) -> dict[str, np.ndarray]:
    """Return positive arrays for all layers but the head, by a library's names."""
    draw, arrays = np.random.default_rng(0), {}
    for target, value in flatten_dict(zeros(arch), sep="/").items():
        if not target.startswith("params/head/"):
            name = layout.name(target.partition("/")[2])
            shape = stored_shape(target, value.shape, name)
            arrays[name] = draw.uniform(0.5, 1.5, shape).astype(np.float32)
    return arrays


def convert(arrays: dict[str, np.ndarray], folder: Path, arch: str) -> tuple[Conversion, Path]:
    """Convert arrays as ``in.safetensors``; return the conversion and its file."""
    save_file(arrays, folder / "in.safetensors")
    out = folder / "out.safetensors"
    return convert_weights(folder / "in.safetensors", out, arch=arch), out


def features(arch: str, dim: int, file: Path, images: np.ndarray, **settings) -> np.ndarray:
    """Return pooled features of our network with a file's weights and an identity head."""
    variables = load_weights(file, zeros(arch, dim))
    variables["params"]["head"]["embedding"]["kernel"] = np.eye(dim, dtype=np.float32)
    return np.asarray(jax.jit(create(arch, dim=dim, **settings).apply)(variables, images))


def assert_equal_torchs(ours: np.ndarray, network: Callable, images: np.ndarray) -> None:
    """Compare features with those of a network of PyTorch, up to 1e-5 of the largest."""
    import torch

    with torch.no_grad():
        theirs = network(torch.from_numpy(images.transpose(0, 3, 1, 2).copy())).numpy()
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())
