"""The networks' convolution equals `lax.conv_general_dilated`: values and gradients, for every algorithm."""

import re
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jdml.models import convolution
from jdml.models.convolution import convolve

LAYOUT = ("NHWC", "HWIO", "NHWC")

# (batch, height, width, channels, features, kernel's rows and columns), settings
GEOMETRIES = {
    "dense": ((4, 6, 5, 3, 4, 3, 3), {}),
    "one channel": ((2, 5, 5, 1, 3, 3, 3), {}),
    "stride": ((4, 7, 6, 3, 4, 3, 3), {"window_strides": (2, 2)}),
    "unequal strides": ((2, 7, 8, 3, 4, 2, 3), {"window_strides": (3, 1)}),
    "stride beyond the kernel": (
        (2, 7, 7, 2, 3, 2, 2),
        {"window_strides": (3, 3), "padding": "VALID"},
    ),
    "unequal padding": ((3, 6, 6, 3, 4, 3, 3), {"padding": ((2, 1), (0, 3))}),
    "pointwise": ((4, 5, 5, 3, 4, 1, 1), {}),
    "pointwise with stride": ((4, 5, 6, 3, 4, 1, 1), {"window_strides": (2, 2)}),
    "depthwise": ((4, 6, 6, 4, 4, 3, 3), {"feature_group_count": 4}),
    "depthwise with stride": (
        (4, 7, 7, 4, 4, 5, 5),
        {"feature_group_count": 4, "window_strides": (2, 2)},
    ),
    "depthwise multiplied": ((2, 5, 5, 2, 4, 3, 3), {"feature_group_count": 2}),
    "groups": ((2, 5, 5, 4, 6, 3, 3), {"feature_group_count": 2}),
    "sides of 1": ((3, 1, 1, 4, 2, 3, 3), {}),
    "batch of 1": ((1, 4, 1, 3, 2, 3, 3), {"window_strides": (2, 2)}),
}
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(convolution, "CHUNK_BYTES", 1)  # these batches are small


def arrays_of(shape: tuple[int, ...], groups: int, dtype: Any = jnp.float32) -> tuple:
    batch, height, width, channels, features, rows, columns = shape
    rng = np.random.default_rng(0)
    images = rng.normal(size=(batch, height, width, channels))
    kernel = rng.normal(size=(rows, columns, channels // groups, features))
    return jnp.asarray(images, dtype), jnp.asarray(kernel, dtype)


def both(name: str, dtype: Any = jnp.float32) -> tuple:
    """Return our convolution, XLA's, and arrays."""
    shape, settings = GEOMETRIES[name]
    settings = {"window_strides": (1, 1), "padding": "SAME", **settings}
    arrays = arrays_of(shape, settings.get("feature_group_count", 1), dtype)
    theirs = partial(lax.conv_general_dilated, dimension_numbers=LAYOUT, **settings)
    return partial(convolve, **settings), theirs, arrays


def with_gradients(function: Any) -> Any:
    """Return value and gradients of a weighted sum of the outputs."""

    @jax.jit
    def evaluated(images: jax.Array, kernel: jax.Array) -> tuple:
        value, pull = jax.vjp(function, images, kernel)
        up = jnp.cos(jnp.arange(value.size, dtype=jnp.float32)).reshape(value.shape)
        return value, pull(up.astype(value.dtype))

    return evaluated


def assert_close(actual: Any, expected: Any, dtype: Any) -> None:
    chex.assert_trees_all_equal_shapes_and_dtypes(actual, expected)
    wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), (actual, expected))
    scale = max(np.abs(leaf).max(initial=1.0) for leaf in jax.tree.leaves(wide[1]))
    chex.assert_trees_all_close(*wide, rtol=0, atol=TOLERANCE[jnp.dtype(dtype).name] * scale)


RULES = ["dense", "stride", "depthwise", "pointwise"]
"""One geometry for each algorithm of the gradients on a CPU."""
HALVES = [(name, dtype) for name in RULES for dtype in (jnp.bfloat16, jnp.float16)]


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, jnp.float32) for name in GEOMETRIES), *HALVES]
)
def test_equals_xla(name, dtype):
    ours, theirs, arrays = both(name, dtype)
    assert_close(with_gradients(ours)(*arrays), with_gradients(theirs)(*arrays), dtype)


def test_padding_beyond_the_kernel():
    """Equals explicit zero padding; XLA's own gradient is wrong here on a CPU (jaxlib 0.10)."""
    arrays = arrays_of((2, 5, 6, 3, 4, 3, 3), 1)
    zeros = ((4, 0), (3, 5))

    def padded(images: jax.Array, kernel: jax.Array) -> jax.Array:
        images = jnp.pad(images, ((0, 0), *zeros, (0, 0)))
        return lax.conv_general_dilated(images, kernel, (1, 1), "VALID", dimension_numbers=LAYOUT)

    ours = partial(convolve, window_strides=(1, 1), padding=zeros)
    assert_close(with_gradients(ours)(*arrays), with_gradients(padded)(*arrays), jnp.float32)


@pytest.mark.parametrize("name", RULES)
def test_vmap_checkpoint_and_second_gradient(name):
    """`vmap` over images and kernels, `jax.checkpoint`, and a gradient of a gradient."""
    ours, theirs, (images, kernel) = both(name)
    many = jnp.stack([images, 2 * images]), jnp.stack([kernel, kernel + 1])
    actual, expected = (
        jax.jit(jax.vmap(with_gradients(jax.checkpoint(function))))(*many)
        for function in (ours, theirs)
    )
    assert_close(actual, expected, jnp.float32)

    def slope(function: Any, kernel: jax.Array) -> jax.Array:
        by_kernel = jax.grad(lambda kernel: jnp.sum(function(images, kernel) ** 3))
        return jnp.sum(by_kernel(kernel) ** 2)

    actual, expected = (
        jax.jit(jax.grad(partial(slope, function)))(kernel) for function in (ours, theirs)
    )
    scale = float(jnp.abs(expected).max())
    chex.assert_trees_all_close(actual / scale, expected / scale, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", RULES)
def test_batches_sharded_over_a_mesh(name):
    """Each device computes its own images; the only collective is the sum of the kernel's gradient."""
    ours, theirs, arrays = both(name)
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    placed = jax.device_put(arrays[0], NamedSharding(mesh, PartitionSpec("data")))
    kernel = jax.device_put(arrays[1], NamedSharding(mesh, PartitionSpec()))
    step = with_gradients(ours)
    actual, expected = step(placed, kernel), with_gradients(theirs)(*arrays)
    assert "all-gather" not in step.lower(placed, kernel).compile().as_text()
    assert actual[0].sharding.is_equivalent_to(placed.sharding, 4)
    assert_close(jax.device_get(actual), jax.device_get(expected), jnp.float32)


@pytest.mark.parametrize(
    ("name", "platform"), [*((name, "cuda") for name in RULES), ("dense", "tpu")]
)
def test_accelerator_programs_use_plain_convolutions(name, platform):
    ours, theirs, arrays = both(name)

    def kinds(function: Any, platform: str) -> dict[str, int]:
        exported = jax.export.export(with_gradients(function), platforms=[platform])(*arrays)
        text = exported.mlir_module()
        ops = ("convolution", "dot_general", "while")
        return {op: len(re.findall(rf"stablehlo\.{op}\b", text)) for op in ops}

    counts = kinds(ours, platform)
    assert counts == kinds(theirs, platform)
    assert counts["convolution"] == 3
    assert kinds(ours, "cpu")["convolution"] < 3


def test_one_program_for_all_platforms():
    ours, _, arrays = both("depthwise")
    exported = jax.export.export(with_gradients(ours), platforms=["cpu", "cuda", "tpu"])(*arrays)
    assert "stablehlo.case" in exported.mlir_module()
    assert_close(exported.call(*arrays), with_gradients(ours)(*arrays), jnp.float32)


def test_forward_mode_is_refused():
    """As docs/convolutions.md says."""
    ours, _, arrays = both("dense")
    with pytest.raises(TypeError, match="forward-mode autodiff"):
        jax.jvp(ours, arrays, arrays)
