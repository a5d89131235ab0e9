"""One convolution for all networks: on a CPU by the products that are quickest there, elsewhere XLA's own.

``convolve`` takes the place of ``jax.lax.conv_general_dilated`` in ``flax.linen.Conv(conv_general_dilated=convolve)``;
parameters, their names and their initial values are Flax's. What computes each part of it on a CPU depends on the shape
alone: ``docs/convolutions.md`` has the table and the measurements.
"""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jdml.ops.meshes import Axis, from_parts, zeros_alike

CHUNK_BYTES = 1 << 21
"""Bytes that the gradient of a kernel lays out at a time: about what the caches of two cores hold."""


class Geometry(NamedTuple):
    """How a kernel meets the images; hashable, so that it can be static."""

    strides: tuple[int, ...]
    padding: Sequence[tuple[int, int]]
    groups: int
    precision: Any


def convolve(
    images: jax.Array,
    kernel: jax.Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    precision: Any = None,
) -> jax.Array:
    """Convolve images ``[B, H, W, C]`` with a kernel, as ``jax.lax.conv_general_dilated`` does, to rounding."""
    for name, dilation in (("lhs_dilation", lhs_dilation), ("rhs_dilation", rhs_dilation)):
        if dilation is not None and {*dilation} != {1}:
            raise ValueError(f"{name} must be 1, got {tuple(dilation)}")
    size = kernel.shape[:2]
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(images.shape[1:3], size, window_strides, padding)
    # Zeros beyond the kernel's reach are laid down: of XLA's own gradient the CPU would make negative padding, and err.
    pads = np.array(padding)
    wide = np.maximum(pads - np.array(size)[:, None] + 1, 0)
    if wide.any():
        images = jnp.pad(images, ((0, 0), *wide, (0, 0)))
    padding = tuple(map(tuple, (pads - wide).tolist()))
    geometry = Geometry(tuple(window_strides), padding, feature_group_count, precision)

    # On a mesh each device convolves its own images; without this it would collect all for the gradient's chunks.
    def here(axis: Axis, images: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[()]]:
        return _convolve(geometry, images, axis.as_varying(kernel)), ()

    features: jax.Array = from_parts(here, images, kernel)[0]
    return features


def windows(
    x: jax.Array, size: Sequence[int], strides: Sequence[int], axis: int = 1
) -> list[jax.Array]:
    """Return the strided slice that each place of a window covers, row by row, of the two axes from ``axis`` on."""

    def along(x: jax.Array, axis: int, index: int, which: int) -> jax.Array:
        end = x.shape[axis] - size[which] + 1 + index
        return lax.slice_in_dim(x, index, end, strides[which], axis)

    return [
        along(along(x, axis, i, 0), axis + 1, j, 1) for i in range(size[0]) for j in range(size[1])
    ]


Transform = Callable[[Geometry, jax.Array, jax.Array], jax.Array]
Part = Callable[[Geometry, jax.Array, jax.Array, jax.Array], jax.Array]


def _xla(geometry: Geometry, images: jax.Array, kernel: jax.Array) -> jax.Array:
    strides, padding, groups, precision = geometry
    return lax.conv_general_dilated(
        images,
        kernel,
        strides,
        padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
        precision=precision,
    )


def _pad(geometry: Geometry, images: jax.Array) -> jax.Array:
    return jnp.pad(images, ((0, 0), *geometry.padding, (0, 0)))


def _pointwise(geometry: Geometry, images: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return one product of the strided images and the kernel."""
    rows, columns = geometry.strides
    images = images[:, ::rows, ::columns]
    return _product("bhwi,io->bhwo", geometry, images, kernel[0, 0]).astype(images.dtype)


def _by_places(geometry: Geometry, images: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return a depthwise sum over the kernel's places, in float32 at least."""
    dtype = jnp.promote_types(images.dtype, jnp.float32)
    padded = _pad(geometry, images.astype(dtype))
    parts = windows(padded, kernel.shape[:2], geometry.strides)
    numbers = kernel.astype(dtype).reshape(-1, kernel.shape[3])
    terms = [part * row for part, row in zip(parts, numbers, strict=True)]
    return reduce(jnp.add, terms).astype(images.dtype)


def _rule(geometry: Geometry, kernel: jax.Array) -> Transform:
    """Return what computes a convolution on a CPU; it is transposed for the gradient of the images."""
    rows, columns, channels, features = kernel.shape
    if geometry.groups == 1:
        is_pointwise = rows == columns == 1 and geometry.padding == ((0, 0), (0, 0))
        return _pointwise if is_pointwise else _xla
    return _by_places if geometry.groups == features and channels == 1 else _xla


def _by_images(
    transform: Transform, geometry: Geometry, images: jax.Array, kernel: jax.Array, up: jax.Array
) -> jax.Array:
    """Return the gradient of the images: a transform transposed."""
    (gradient,) = jax.linear_transpose(lambda x: transform(geometry, x, kernel), images)(up)
    return gradient


def _by_kernel(
    transform: Transform, geometry: Geometry, images: jax.Array, kernel: jax.Array, up: jax.Array
) -> jax.Array:
    """Return the gradient of the kernel: a transform transposed."""
    (gradient,) = jax.linear_transpose(lambda k: transform(geometry, images, k), kernel)(up)
    return gradient


def _cpu_by_kernel(
    geometry: Geometry, images: jax.Array, kernel: jax.Array, up: jax.Array
) -> jax.Array:
    if geometry.groups > 1 and _rule(geometry, kernel) is _xla:
        return _by_kernel(_xla, geometry, images, kernel, up)
    return _by_chunks(_kernel_rule(geometry, kernel), geometry, images, kernel, up)


def _kernel_rule(geometry: Geometry, kernel: jax.Array) -> Part:
    """Return what computes a chunk's share of the gradient of the kernel on a CPU."""
    if geometry.groups > 1:
        return _depthwise_part
    rows, columns, channels, features = kernel.shape
    shifted = columns * channels + rows * features
    apart = geometry.strides == (1, 1) and rows * columns > 1
    return _shifted_part if apart and shifted <= 2 * rows * columns * channels else _patches_part


def _by_chunks(
    part_of: Part, geometry: Geometry, images: jax.Array, kernel: jax.Array, up: jax.Array
) -> jax.Array:
    """Sum the gradient of the kernel, in float32 at least, over chunks of the batch."""
    rows = _rows_at_once(part_of, images, kernel, up)
    if rows == len(images):
        return part_of(geometry, images, kernel, up).astype(kernel.dtype)

    def add(index: jax.Array, total: jax.Array) -> jax.Array:
        chunk, above = (lax.dynamic_slice_in_dim(a, index * rows, rows) for a in (images, up))
        return total + part_of(geometry, chunk, kernel, above)

    zero = zeros_alike(up, kernel.shape).astype(jnp.promote_types(kernel.dtype, jnp.float32))
    return lax.fori_loop(0, len(images) // rows, add, zero).astype(kernel.dtype)


def _rows_at_once(part_of: Part, images: jax.Array, kernel: jax.Array, up: jax.Array) -> int:
    """Return the largest divisor of the batch of which a part lays out at most a chunk's bytes, and at least 1."""
    rows, columns, _, features = kernel.shape
    if rows * columns == 1:  # nothing is laid out
        return len(images)
    if part_of is _shifted_part:
        laid_out = images.shape[1] * up.shape[2] * (columns * images.shape[3] + rows * features)
    else:
        laid_out = up.shape[1] * up.shape[2] * rows * columns * images.shape[3]
    most = max(1, max(CHUNK_BYTES // 4, 2 * kernel.size) // max(1, laid_out))
    return max(n for n in range(1, len(images) + 1) if len(images) % n == 0 and n <= most)


def _patches_part(
    geometry: Geometry, images: jax.Array, kernel: jax.Array, up: jax.Array
) -> jax.Array:
    """Return one product of patches ``[K·K′·C, N]`` and ``up [N, C′]``."""
    channels = _pad(geometry, images).transpose(3, 0, 1, 2)
    places = windows(channels, kernel.shape[:2], geometry.strides, axis=2)
    patches = jnp.concatenate(places)
    return _product("kbhw,bhwo->ko", geometry, patches, up).reshape(kernel.shape)


def _shifted_part(
    geometry: Geometry, images: jax.Array, kernel: jax.Array, up: jax.Array
) -> jax.Array:
    """Return one product of images shifted along rows ``[K′·C, N]`` and ``up`` shifted along columns ``[N, K·C′]``."""
    # At stride 1 the K + K′ shifts of the two sides meet in all K · K′ places, and neither is laid out that often.
    rows, columns, channels, features = kernel.shape
    (top, bottom), across = geometry.padding
    wide = jnp.pad(images.transpose(3, 0, 1, 2), ((0, 0), (0, 0), (0, 0), across))
    left = jnp.concatenate(windows(wide, (1, columns), (1, 1), axis=2))
    none, down = (0, 0, 0), (rows - 1 - top, rows - 1 - bottom, 0)
    high = lax.pad(up, jnp.zeros((), up.dtype), (none, down, none, none))
    right = jnp.concatenate(windows(high, (rows, 1), (1, 1))[::-1], -1)
    gradient = _product("kbhw,bhwo->ko", geometry, left, right)
    return gradient.reshape(columns, channels, rows, features).transpose(2, 0, 1, 3)


def _depthwise_part(
    geometry: Geometry, images: jax.Array, kernel: jax.Array, up: jax.Array
) -> jax.Array:
    """Return a sum over all pixels of ``up`` times the slice of each place of the kernel."""
    padded = _pad(geometry, images)
    parts = windows(padded, kernel.shape[:2], geometry.strides)
    dtype = jnp.promote_types(kernel.dtype, jnp.float32)
    up = up.astype(dtype)
    sums = [jnp.sum(part * up, (0, 1, 2)) for part in parts]
    return jnp.stack(sums).reshape(kernel.shape)


def _product(text: str, geometry: Geometry, left: jax.Array, right: jax.Array) -> jax.Array:
    """Return a product whose sums are accumulated in float32 at least."""
    dtype = jnp.promote_types(left.dtype, jnp.float32)
    return jnp.einsum(text, left.astype(dtype), right.astype(dtype), precision=geometry.precision)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _convolve(geometry: Geometry, images: jax.Array, kernel: jax.Array) -> jax.Array:
    rule = _rule(geometry, kernel)
    if rule is _xla:
        return _xla(geometry, images, kernel)
    return lax.platform_dependent(
        images, kernel, cpu=partial(rule, geometry), default=partial(_xla, geometry)
    )


def _convolve_forward(
    geometry: Geometry, images: jax.Array, kernel: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _convolve(geometry, images, kernel), (images, kernel)


def _convolve_backward(
    geometry: Geometry, residuals: tuple[jax.Array, jax.Array], up: jax.Array
) -> tuple[jax.Array, jax.Array]:
    rules = (
        (partial(_by_images, _rule(geometry, residuals[1])), partial(_by_images, _xla)),
        (_cpu_by_kernel, partial(_by_kernel, _xla)),
    )
    by_images, by_kernel = (
        lax.platform_dependent(
            *residuals, up, cpu=partial(on_cpu, geometry), default=partial(default, geometry)
        )
        for on_cpu, default in rules
    )
    return by_images, by_kernel


_convolve.defvjp(_convolve_forward, _convolve_backward)
