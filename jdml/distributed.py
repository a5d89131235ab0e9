"""Where a run's arrays lie: meshes of devices, and the processes that these belong to.

Rows of a batch are sharded over the first axis of the mesh, roles that ``shard`` names are partitioned, all else is
replicated: ``jax.jit`` does the rest. Several processes run the same program on the same mesh; each puts in its own
rows, and one of them writes.
"""

import contextlib
import functools
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.tree_util import KeyPath
from jax.typing import ArrayLike

__all__ = ["initialize"]

Tree = Any
"""Arrays in dictionaries, tuples and the like, as JAX takes them."""
HEARTBEAT = 30
"""Seconds without a sign of life after which a process counts as ended."""
SHUTDOWN = 30
"""Seconds that a process waits for the others at its end."""
COUNTS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
"""Environment variables of launchers: the number of processes."""
CLUSTERS = ("TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES", "JOB_COMPLETION_INDEX")
"""Environment variables of GKE on several machines."""

_log = logging.getLogger(__name__)


class PeerExitedError(RuntimeError):
    """Another process of the run, or of the study, has ended; the message says what to do."""


@dataclass(frozen=True)
class Placement:
    """Where parameters, optimizer states and batches lie. Hashable: a part of what a compiled step is made from."""

    mesh: Mesh | None = None
    shard: tuple[tuple[str, P], ...] = ()

    @classmethod
    def on(cls, mesh: Any, shard: Mapping[str, Any] | None) -> "Placement":
        """Return the placement that :class:`jdml.training.Devices` describes."""
        if mesh is None:
            if shard:
                raise ValueError(f"shard needs a mesh: got shard for {', '.join(shard)}, mesh=None")
            if jax.process_count() > 1:
                raise ValueError(
                    f"mesh must hold the devices of all {jax.process_count()} processes, got None: "
                    'write jax.make_mesh((jax.device_count(),), ("data",))'
                )
            _say_where(jax.device_count())
            return HERE
        if not isinstance(mesh, Mesh):
            raise TypeError(f"mesh must be a jax.sharding.Mesh, got a {type(mesh).__name__}")
        if not isinstance(shard or {}, Mapping):
            raise TypeError(f"shard must map roles to PartitionSpecs, got a {type(shard).__name__}")
        if {d.process_index for d in mesh.devices.flat} != set(range(jax.process_count())):
            raise ValueError(
                f"mesh must hold devices of all {jax.process_count()} processes, got {mesh}"
            )
        for role, spec in (shard or {}).items():
            if not isinstance(spec, P):
                raise TypeError(f"shard[{role!r}] must be a PartitionSpec, got {spec!r}")
            missing = set(_axes(spec)) - set(mesh.axis_names)
            if missing:
                raise ValueError(
                    f"shard[{role!r}] is over the axes {sorted(missing)}, mesh has {mesh.axis_names}"
                )
        return cls(Mesh(mesh.devices, mesh.axis_names), tuple((shard or {}).items()))

    @property
    def devices(self) -> int:
        """How many devices share the rows of a batch."""
        return 1 if self.mesh is None else self.mesh.shape[self.mesh.axis_names[0]]

    @property
    def in_turn(self) -> bool:
        """Whether a step must end before the next begins: a CPU's devices share few threads and wait for each other."""
        return self.mesh is not None and self.mesh.devices.flat[0].platform == "cpu"

    def check(self, params: Mapping[str, Tree]) -> None:
        """Refuse roles that are not there, or none of whose arrays can be partitioned as asked."""
        for role, spec in self.shard:
            if role not in params:
                raise ValueError(
                    f"shard names the role {role!r}, the parameters have {sorted(params)}"
                )
            shapes = [list(np.shape(leaf)) for leaf in jax.tree.leaves(params[role])]
            if not any(self._fits(shape, spec) for shape in shapes):
                raise ValueError(
                    f"shard[{role!r}] is {spec} over {self._parts(spec)} devices, which divides none of the shapes "
                    f"{shapes[:3]}"
                )

    def place(self, tree: Tree) -> Tree:
        """Put a run's state where it belongs."""
        if self.mesh is None:
            return tree
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: put(leaf, self._at(self._spec(path, leaf))), tree
        )

    def keep(self, tree: Tree) -> Tree:
        """Constrain the state inside a compiled step: what comes out lies where it came from."""
        if self.mesh is None:
            return tree

        def one(path: KeyPath, leaf: jax.Array) -> jax.Array:
            return jax.lax.with_sharding_constraint(leaf, self._at(self._spec(path, leaf)))

        return jax.tree_util.tree_map_with_path(one, tree)

    def shapes(self, tree: Tree) -> Tree:
        """Return the shapes and shardings of a state, which a step can be compiled for."""
        if self.mesh is None:
            return tree

        def one(path: KeyPath, leaf: jax.Array) -> jax.ShapeDtypeStruct:
            at = self._at(self._spec(path, leaf))
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at)

        return jax.tree_util.tree_map_with_path(one, tree)

    def replicate(self, tree: Tree) -> Tree:
        """Put whole arrays, such as a data set, on every device."""
        if self.mesh is None:
            return jax.tree.map(jnp.asarray, tree)
        return jax.tree.map(lambda x: put(np.asarray(x), self._at(P())), tree)

    def local_rows(self, size: int) -> np.ndarray:
        """Return the rows of a batch of ``size`` rows that this process fills, rising."""
        if self.mesh is None or jax.process_count() == 1:
            return np.arange(size)
        there = self._rows().addressable_devices_indices_map((size,)).values()
        return np.unique(np.concatenate([np.arange(size)[index] for index in there]))

    def shard_batch(self, rows: Tree, size: int) -> Tree:
        """Make a batch of ``size`` rows over the devices from the rows that :meth:`local_rows` names."""
        if self.mesh is None:
            return rows
        places = self.local_rows(size)

        def one(part: ArrayLike) -> jax.Array:
            part = np.asarray(part)

            def rows_at(index: Any) -> np.ndarray:
                first, last, _ = index[0].indices(size)
                start = np.searchsorted(places, first)
                return part[start : start + last - first]

            return jax.make_array_from_callback((size, *part.shape[1:]), self._rows(), rows_at)

        return jax.tree.map(one, rows)

    def _at(self, spec: P) -> NamedSharding:
        assert self.mesh is not None
        return NamedSharding(self.mesh, spec)

    def _rows(self) -> NamedSharding:
        assert self.mesh is not None
        return self._at(P(self.mesh.axis_names[0]))

    def _spec(self, path: KeyPath, leaf: jax.Array) -> P:
        """Return the partition of an array's role, wherever in a state the role's name stands."""
        names = {getattr(part, "key", None) for part in path}
        for role, spec in self.shard:
            if role in names and self._fits(np.shape(leaf), spec):
                return spec
        return P()

    def _fits(self, shape: Sequence[int], spec: P) -> bool:
        if len(shape) < len(spec):
            return False
        return all(n % self._parts(P(axes)) == 0 for n, axes in zip(shape, spec, strict=False))

    def _parts(self, spec: P) -> int:
        assert self.mesh is not None
        return int(np.prod([self.mesh.shape[name] for name in _axes(spec)]))


HERE = Placement()
"""One device."""


def placement_of(tree: Tree) -> Placement:
    """Return where arrays lie: on the mesh of the first that has one of several devices."""
    for leaf in jax.tree.leaves(tree):
        mesh = getattr(getattr(leaf, "sharding", None), "mesh", None)
        if isinstance(mesh, Mesh) and mesh.size > 1 and set(mesh.axis_types) == {AxisType.Auto}:
            return Placement(mesh)
    return HERE


def class_shards(mesh: Mesh | None, objective: Any) -> dict[str, P]:
    """Return the usual partition: proxies by their classes, if the devices divide these."""
    proxies = jax.eval_shape(objective.init, jax.random.key(0)).get("proxies")
    if mesh is None or proxies is None or len(proxies.shape) < 2:
        return {}
    axis = mesh.axis_names[0]
    return {"proxies": P(axis)} if proxies.shape[0] % mesh.shape[axis] == 0 else {}


def put(array: ArrayLike, sharding: NamedSharding) -> jax.Array:
    """Put an array, whole in this process or on a mesh, as ``sharding`` says."""
    if isinstance(array, jax.Array) and array.sharding == sharding:
        return array
    if jax.process_count() == 1:
        return jax.device_put(array, sharding)
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return jax.jit(lambda x: x, out_shardings=sharding)(array)
    if isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        data = put(jax.random.key_data(array), NamedSharding(sharding.mesh, P()))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(array))
    whole = np.asarray(array)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


def gather_to_host(tree: Tree) -> Tree:
    """Gather arrays of a mesh on one device of this process."""

    def one(leaf: Any) -> Any:
        sharding = getattr(leaf, "sharding", None)
        if not isinstance(sharding, NamedSharding) or sharding.mesh.size == 1:
            return leaf
        same = put(leaf, NamedSharding(sharding.mesh, P()))
        return same.addressable_data(0)

    return jax.tree.map(one, tree)


def initialize(
    coordinator: str | None = None, processes: int | None = None, process: int | None = None
) -> None:
    """Join the processes of this program: call it first, before anything touches a device.

    A thin call of ``jax.distributed.initialize``. SLURM, Open MPI and GKE set all that is needed; by hand pass all
    three. Where one process runs, or where it was called before, nothing is done.

    Args:
        coordinator: ``"HOST:PORT"`` of the first process.
        processes: how many there are.
        process: which this is, 0 the first.

    Raises:
        ValueError: some of the three and not all, a number out of range, an address without a port.

    Example:
        >>> initialize()  # one process
    """
    given = {"coordinator": coordinator, "processes": processes, "process": process}
    missing = [name for name, value in given.items() if value is None]
    if 0 < len(missing) < 3:
        raise ValueError(
            f"coordinator, processes and process belong together, {' and '.join(missing)} is missing"
        )
    if coordinator is not None and processes is not None and process is not None:
        if not coordinator.rpartition(":")[2].isdigit() or ":" not in coordinator:
            raise ValueError(f"coordinator must be HOST:PORT, got {coordinator!r}")
        if processes < 1:
            raise ValueError(f"processes must be at least 1, got {processes}")
        if not 0 <= process < processes:
            raise ValueError(f"process must be from 0 to {processes - 1}, got {process}")
    alone = processes == 1 or (processes is None and not _launched())
    if alone or jax.distributed.is_initialized():
        return
    jax.distributed.initialize(
        coordinator,
        processes,
        process,
        heartbeat_timeout_seconds=HEARTBEAT,
        shutdown_timeout_seconds=SHUTDOWN,
    )


@contextlib.contextmanager
def peer_failure_context() -> Iterator[None]:
    """Raise a PeerExitedError if a computation fails because another process has ended."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1 or "RESOURCE_EXHAUSTED" in str(error):
            raise
        raise PeerExitedError(
            f"process {jax.process_index()} of {jax.process_count()} cannot go on: another process of this run has "
            "ended, or cannot be reached; with a folder, the same command resumes from the last checkpoint"
        ) from error


def is_main_process() -> bool:
    """Tell whether this process is the one that writes."""
    return jax.process_index() == 0


def wait_for_all(name: str) -> None:
    """Wait until every process is here."""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(name)


def broadcast_metrics(values: Mapping[str, float]) -> dict[str, float]:
    """Return the first process's numbers: others that measured the same may differ in the last digit."""
    if jax.process_count() == 1 or not values:
        return dict(values)
    from jax.experimental import multihost_utils

    bits = np.array(list(values.values()), np.float64).view(np.uint32)
    numbers = np.asarray(multihost_utils.broadcast_one_to_all(bits)).astype(np.uint32)
    return dict(zip(values, numbers.view(np.float64).tolist(), strict=True))


def any_process(flags: np.ndarray) -> np.ndarray:
    """Return where flags are True in any process."""
    if jax.process_count() == 1:
        return flags
    from jax.experimental import multihost_utils

    return np.any(np.asarray(multihost_utils.process_allgather(flags)), axis=0)


def _launched() -> bool:
    """Tell whether a launcher that JAX knows started several processes."""
    several = any(int(os.environ.get(name, 1)) > 1 for name in COUNTS)
    return (
        several
        or any("," in os.environ.get(n, "") for n in CLUSTERS[:2])
        or CLUSTERS[2] in os.environ
    )


def _axes(spec: P) -> list[str]:
    """List the axes that a partition names."""
    return [
        name
        for part in spec
        if part is not None
        for name in (part if isinstance(part, tuple) else (part,))
    ]


@functools.cache
def _say_where(devices: int) -> None:
    """Say, once, that devices are idle."""
    if devices > 1:
        _log.warning(
            "training on 1 of %d devices: fit(devices=jax.make_mesh((%d,), ('data',))) takes all",
            devices,
            devices,
        )
