"""Meshes and axis names: nothing else in the numeric rooms knows of them.

A loss is written for one batch. Where its rows lie on the devices of a mesh, :func:`spread` runs it under
``jax.shard_map``, whatever the kinds of the mesh's axes; inside a ``jax.shard_map`` of the user's, who names the axis,
it runs where it is. Either way the two cores meet an :class:`Axis`: they compare the rows that are here with all that
there are, and bring together one number per row. What follows is computed by every device alike.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

Tree = Any

ROWS = frozenset(
    {
        "embeddings",
        "labels",
        "where",
        "weights",
        "positive",
        "self_index",
        "ids",
        "sample_beta",
        "latents",
        "log_dets",
    }
)
"""Arguments with one entry per row of the batch."""
REFERENCES = frozenset({"references", "reference_labels", "reference_where", "reference_ids"})
"""Arguments with one entry per reference."""


@dataclasses.dataclass(frozen=True)
class Axis:
    """The mesh axes over which the rows of one batch are spread; none on a single device."""

    names: tuple[str, ...] = ()
    whole: bool = False
    held: frozenset[str] | None = None

    @property
    def size(self) -> int:
        """The number of devices."""
        return int(jax.lax.psum(1, self.names)) if self.names else 1

    @property
    def index(self) -> Array | int:
        """The place of this device."""
        return jax.lax.axis_index(self.names) if self.names else 0

    @property
    def is_checked(self) -> bool:
        """Whether types tell what differs between devices (``check_vma``), and gradients heed it."""
        return bool(self.names) and bool(_varies_over(jax.lax.axis_index(self.names)))

    def holds_part(self, name: str, array: Array) -> bool:
        """Whether each device holds other rows of an argument, not all the same."""
        if not self.names:
            return False
        if self.held is not None:
            return name in self.held
        if name in ROWS:
            return True
        if self.is_checked:
            return bool(_varies_over(array) & frozenset(self.names))
        return name in REFERENCES

    def gather(self, tree: Tree) -> Tree:
        """All devices' rows ``[S·n, …]``, for computations that differ from device to device."""
        if not self.names:
            return tree
        return jax.tree.map(lambda x: jax.lax.all_gather(x, self.names, tiled=True), tree)

    def all_gather_stacked(self, tree: Tree) -> Tree:
        """Return every device's value ``[S, …]``, for computations that are the same on all of them."""
        if not self.names:
            return jax.tree.map(lambda x: x[None], tree)

        def gather(x: Array) -> Array:
            here = jnp.arange(self.size) == self.index
            numbers = x.astype(jnp.int32) if x.dtype == bool else x
            mine = jnp.where(here.reshape(-1, *(1,) * x.ndim), numbers[None], 0)
            return jax.lax.psum(mine, self.names).astype(x.dtype)

        return jax.tree.map(gather, tree)

    def rows(self, tree: Tree) -> Tree:
        """All devices' rows ``[S·n, …]``, for computations that are the same on all of them."""
        if not self.names:
            return tree
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), self.all_gather_stacked(tree))

    def total(self, value: Array) -> Array:
        """The sum over all devices."""
        return jax.lax.psum(value, self.names) if self.names else value

    def least(self, value: Array) -> Array:
        """The smallest over all devices."""
        return jax.lax.pmin(value, self.names) if self.names else value

    def most(self, value: Array) -> Array:
        """The largest over all devices."""
        return jax.lax.pmax(value, self.names) if self.names else value

    def mean_of_equal(self, value: Array) -> Array:
        """Return a value that every device has computed alike as the same on all of them."""
        return self.total(value / self.size)

    def local_slice(self, rows: Array) -> Array:
        """This device's rows of all ``[S·n, …]``, or all where these are wanted."""
        if not self.names or self.whole:
            return rows
        size = len(rows) // self.size
        return jax.lax.dynamic_slice_in_dim(rows, self.index * size, size)

    def shard(self, tree: Tree) -> tuple[Tree, Array]:
        """This device's share of rows that all have, filled up with zeros, and which of its rows are real."""
        total = len(jax.tree.leaves(tree)[0])
        if not self.names:
            return tree, jnp.ones(total, bool)
        size = -(-total // self.size)

        def cut(x: Array) -> Array:
            padded = jnp.pad(x, [(0, size * self.size - total)] + [(0, 0)] * (x.ndim - 1))
            return jax.lax.dynamic_slice_in_dim(padded, self.index * size, size)

        return jax.tree.map(cut, tree), self.index * size + jnp.arange(size) < total

    def psum_once(self, value: Array) -> Array:
        """A result that is the same on every device, with a gradient that counts once, not once per device."""
        if not self.names or self.is_checked:
            return value
        return _divide(value, self.size)

    def as_varying(self, value: Array) -> Array:
        """Return a shared value as one that differs: each device has a gradient of its own, and all are summed."""
        return value + jnp.asarray(self.index * 0, value.dtype) if self.names else value

    def replicated_grad(self, value: Array) -> Array:
        """An argument that is the same on every device, with a gradient that is whole on every one."""
        if not self.names or self.is_checked or not jnp.issubdtype(value.dtype, jnp.inexact):
            return value
        return _psum(value, self.names)


NOWHERE = Axis()
"""A single device."""


def as_axis(name: Any) -> Axis:
    """Return the axis of an argument ``axis_name``: None, a name, a tuple of names, or an axis."""
    if isinstance(name, Axis):
        return name
    if name is None:
        return NOWHERE
    names = (name,) if isinstance(name, str) else name
    if not isinstance(names, tuple) or not all(isinstance(part, str) for part in names):
        raise TypeError(f"axis_name must be a name, a tuple of names or None, got {name!r}")
    try:
        jax.lax.axis_index(names)
    except NameError:
        raise ValueError(
            f"axis_name must be an axis of a jax.shard_map around the call, got {name!r}"
        ) from None
    return Axis(names)


def spread(function: Callable[[dict[str, Any]], Tree], arguments: dict[str, Any]) -> Tree:
    """Call a function of keyword arguments where its arrays lie; on a mesh the result is the same on every device.

    If the arguments include ``axis_name``, the function gets an :class:`Axis` there; see :data:`ROWS` and
    :data:`REFERENCES`.
    """
    if arguments.get("axis_name") is not None:
        return function(_named(arguments))
    mesh = mesh_of(arguments)
    if mesh is None:
        return function(arguments)
    if "axis_name" in arguments:
        axis, held = _plan(mesh, arguments)
        arguments = {**arguments, "axis_name": dataclasses.replace(axis, held=held)}
    else:
        axis, held = NOWHERE, frozenset()
    entries, structure = jax.tree_util.tree_flatten_with_path(arguments)
    leaves = [leaf for _, leaf in entries]
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Array)]
    specs = tuple(P(axis.names) if entries[i][0][0].key in held else P() for i in at)

    def inside(*arrays: Array) -> Tree:
        filled = list(leaves)
        for i, array in zip(at, arrays, strict=True):
            filled[i] = array
        return function(jax.tree.unflatten(structure, filled))

    return _on(mesh, inside, specs, P(), [leaves[i] for i in at])


def by_rows(function: Callable[[Tree, Tree], Tree], rows: Tree, others: Tree = ()) -> Tree:
    """Return ``function(rows, others)``, row by row, of which each device of a mesh takes some."""
    return _by_parts(lambda axis, rows, others: function(rows, others), rows, others, P)


def by_parts(function: Callable[[Axis, Tree, Tree], Tree], parts: Tree, others: Tree = ()) -> Tree:
    """Return ``function(axis, parts, others)``, the same on every device; each holds some rows of ``parts``."""
    return _by_parts(function, parts, others, lambda names: P())


def from_parts(
    function: Callable[[Axis, Tree, Tree], tuple[Tree, Tree]], parts: Tree, others: Tree = ()
) -> tuple[Tree, Tree]:
    """Return ``function(axis, parts, others)``: rows of all devices, and a second result that is the same on each."""
    results: tuple[Tree, Tree] = _by_parts(function, parts, others, lambda names: (P(names), P()))
    return results


def _by_parts(
    function: Callable[[Axis, Tree, Tree], Tree],
    parts: Tree,
    others: Tree,
    out: Callable[[tuple[str, ...]], Any],
) -> Tree:
    mesh = mesh_of((parts, others))
    if mesh is None:
        return function(NOWHERE, parts, others)
    part_leaves, part_tree = jax.tree.flatten(parts)
    names = _dividing(mesh, part_leaves[0].shape[0]) if part_leaves else ()
    axis = Axis(names, whole=True)
    other_leaves, other_tree = jax.tree.flatten(others)

    def inside(*arrays: Array) -> Tree:
        number = len(part_leaves)
        here = jax.tree.unflatten(part_tree, arrays[:number])
        return function(axis, here, jax.tree.unflatten(other_tree, arrays[number:]))

    specs = (P(axis.names),) * len(part_leaves) + (P(),) * len(other_leaves)
    return _on(mesh, inside, specs, out(axis.names), part_leaves + other_leaves)


def replicated(function: Callable[..., Tree]) -> Callable[..., Tree]:
    """Return the same function of arrays; on a mesh every device computes all of it. Keywords are static."""

    @functools.wraps(function)
    def wrapper(*arguments: Any, **static: Any) -> Tree:
        return by_parts(lambda axis, _, here: function(*here, **static), (), arguments)

    return wrapper


def mesh_of(tree: Tree) -> Any:
    """Return the abstract mesh of arrays, if it has several devices or ``Explicit`` axes, none ``Manual``."""
    for leaf in jax.tree.leaves(tree):
        if not isinstance(leaf, Array):
            continue
        mesh = jax.typeof(leaf).sharding.mesh
        if mesh.empty:
            continue
        if AxisType.Manual in mesh.axis_types:
            return None
        return mesh if mesh.size > 1 or AxisType.Explicit in mesh.axis_types else None
    return None


def is_explicit(tree: Tree) -> bool:
    """Whether arrays lie on a mesh of which an axis is ``Explicit``; False inside a ``shard_map``."""
    mesh = mesh_of(tree)
    return mesh is not None and AxisType.Explicit in mesh.axis_types


def off_mesh(array: Array) -> Array:
    """Return an array on one device, by way of the host where it lies on a mesh."""
    return array if mesh_of(array) is None else jnp.asarray(on_host(array))


def on_host(array: Array) -> np.ndarray:
    """Return all values of an array as NumPy's; every process asks for those of one that they share."""
    if array.is_fully_addressable:
        return np.asarray(array)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def zeros_alike(like: Array, shape: tuple[int, ...]) -> Array:
    """Return zeros that vary over the same mesh axes as an array: a loop under ``shard_map`` must start from such."""
    nothing = jnp.sum(jnp.where(like == like, 0, 0)).astype(like.dtype)
    return jnp.broadcast_to(nothing, shape)


def _on(
    mesh: Any, function: Callable[..., Tree], specs: Any, out: Any, arrays: list[Array]
) -> Tree:
    """Run a function on each device's parts of arrays, wherever these lie."""
    if not any(isinstance(array, jax.core.Tracer) for array in arrays):
        mesh = _devices_of(arrays)
        shardings = (NamedSharding(mesh, spec) for spec in specs)
        arrays = [jax.device_put(a, at) for a, at in zip(arrays, shardings, strict=True)]
    elif AxisType.Explicit in mesh.axis_types:
        arrays = [
            jax.sharding.reshard(jnp.asarray(array), NamedSharding(mesh, spec))
            for array, spec in zip(arrays, specs, strict=True)
        ]
    return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=out)(*arrays)


def _devices_of(arrays: list[Array]) -> Any:
    """The mesh, with its devices, on which one of some arrays lies that are no tracers."""
    meshes = (getattr(getattr(array, "sharding", None), "mesh", None) for array in arrays)
    return next(mesh for mesh in meshes if mesh is not None and not mesh.empty)


def _named(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments inside a user's ``shard_map``: what is the same on every device gets gradients that are whole."""
    axis = as_axis(arguments["axis_name"])
    parts = set(ROWS)
    if arguments.get("self_index") is None:
        parts |= REFERENCES
    elif not axis.is_checked:
        axis = dataclasses.replace(axis, held=ROWS)  # a memory is the same on every device

    def prepare(name: str, value: Any) -> Any:
        if name in parts:
            return value
        return jax.tree.map(lambda v: axis.replicated_grad(v) if isinstance(v, Array) else v, value)

    return {**{name: prepare(name, value) for name, value in arguments.items()}, "axis_name": axis}


def _plan(mesh: Any, arguments: dict[str, Any]) -> tuple[Axis, frozenset[str]]:
    """The axes that share the work of a loss, and the arguments of which each device holds a part."""
    anchors: Any = arguments.get("embeddings", arguments.get("latents"))
    rows = jnp.shape(anchors)[0] if jnp.ndim(anchors) else 0
    names = _dividing(mesh, rows)
    proxies = arguments.get("proxies")
    if isinstance(proxies, Array) and proxies.ndim > 1 and jnp.ndim(anchors):
        by_class = _dividing(mesh, len(proxies))
        more = _size(mesh, by_class) - _size(mesh, names)
        if more > 0 or (more == 0 and _shared_by_class(mesh, anchors, proxies)):
            return Axis(by_class, whole=True), frozenset({"proxies"})
    held = set(ROWS)
    references = arguments.get("references")
    # A memory, in which rows find themselves, is the same on every device: to collect it again would cost more.
    remembered = arguments.get("self_index") is not None
    if isinstance(references, Array) and references.ndim and names and not remembered:
        if len(references) % _size(mesh, names) == 0:
            held |= REFERENCES
    return Axis(names, whole=True), frozenset(held)


def _shared_by_class(mesh: Any, rows: Any, proxies: Any) -> bool:
    """Whether the rows of a batch are collected, and each device keeps some classes: the smaller of both is sent.

    Proxies of which an ``Explicit`` type says that every device has them whole need not be sent, but by class their
    gradients are collected besides the rows: from three times the rows. ``Auto`` types do not tell where proxies lie.
    """
    spec = jax.typeof(proxies).sharding.spec
    whole = AxisType.Explicit in mesh.axis_types and (not len(spec) or spec[0] is None)
    return (3 if whole else 1) * np.size(rows) <= np.size(proxies)


def _dividing(mesh: Any, rows: int) -> tuple[str, ...]:
    """As many axes of a mesh as divide a number of rows."""
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    mixed = AxisType.Explicit in mesh.axis_types
    names: list[str] = []
    for name in mesh.axis_names:
        usable = not mixed or kinds[name] == AxisType.Explicit
        if usable and rows and rows % _size(mesh, (*names, name)) == 0:
            names.append(name)
    return tuple(names)


def _size(mesh: Any, names: tuple[str, ...]) -> int:
    return math.prod(mesh.shape[name] for name in names)


def _varies_over(array: Array) -> frozenset[str]:
    """The axes over which a value's type says that it differs."""
    kind = jax.typeof(array)
    varying = getattr(kind, "vma", None)
    if varying is None:
        varying = kind.manual_axis_type.varying
    return frozenset(varying)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _divide(value: Array, size: int) -> Array:
    return value


@_divide.defjvp
def _divide_jvp(size: int, primals: Any, tangents: Any) -> tuple[Array, Array]:
    return primals[0], tangents[0] / size


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _psum(value: Array, names: tuple[str, ...]) -> Array:
    return value


_psum.defvjp(
    lambda value, names: (value, None),
    lambda names, _, cotangent: (jax.lax.psum(cotangent, names),),
)
