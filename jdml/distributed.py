"""Meshes of devices, the processes that they belong to, and the signals that end a process.

Rows of a batch are sharded over the first axis of the mesh, roles that ``shard`` names are partitioned, all else is
replicated. Several processes run the same program on the same mesh; each provides its own rows, and the first one
writes.
"""

import contextlib
import ctypes
import functools
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.tree_util import KeyPath
from jax.typing import ArrayLike

__all__ = ["initialize"]

Tree = Any
"""A pytree of arrays."""
HEARTBEAT = 30
"""Seconds without a sign of life after which a process counts as ended."""
SHUTDOWN = 30
"""Seconds that a process waits for the others at its end."""

_log = logging.getLogger(__name__)


class PeerExitedError(RuntimeError):
    """Another process of the run, or of the study, has ended; the message says what to do."""


@dataclass(frozen=True)
class Placement:
    """The devices of parameters, optimizer states and batches. Hashable, as a static part of compiled steps."""

    mesh: Any = None
    shard: tuple[tuple[str, P], ...] = ()

    @classmethod
    def on(cls, mesh: Any, shard: Mapping[str, Any] | None) -> "Placement":
        """Return the placement that :class:`jdml.training.Devices` describes."""
        if mesh is not None and not isinstance(mesh, Mesh):
            raise TypeError(f"mesh must be a jax.sharding.Mesh, got a {type(mesh).__name__}")
        devices: Any = () if mesh is None else mesh.devices.flat
        processes = jax.process_count()
        if processes > 1 and {device.process_index for device in devices} != {*range(processes)}:
            raise ValueError(
                f"mesh must hold devices of all {processes} processes, got {mesh}: write "
                'jax.make_mesh((jax.device_count(),), ("data",))'
            )
        if mesh is None:
            if shard:
                raise ValueError(f"shard needs a mesh: got shard for {', '.join(shard)}, mesh=None")
            if jax.device_count() > 1:
                _warn_idle_devices(jax.device_count())
            return HERE
        return cls(Mesh(mesh.devices, mesh.axis_names), tuple((shard or {}).items()))

    @property
    def devices(self) -> int:
        """How many devices share the rows of a batch."""
        return 1 if self.mesh is None else int(self.mesh.shape[self.mesh.axis_names[0]])

    def check(self, params: Mapping[str, Tree]) -> None:
        """Refuse roles that the parameters lack, or none of whose arrays can be partitioned."""
        for role, spec in self.shard:
            if role not in params:
                raise ValueError(f"shard names {role!r}, the parameters have {sorted(params)}")
            shapes = [list(np.shape(leaf)) for leaf in jax.tree.leaves(params[role])]
            if not any(self._fits(shape, spec) for shape in shapes):
                raise ValueError(
                    f"shard[{role!r}] is {spec} over {self._parts(spec)} devices, which divides none of the shapes "
                    f"{shapes[:3]}"
                )

    def place(self, tree: Tree) -> Tree:
        """Put a run's state on the devices."""
        if self.mesh is None:
            return tree
        return _put(tree, self.map(lambda leaf, sharding: sharding, tree))

    def keep(self, tree: Tree) -> Tree:
        """Constrain the state inside a compiled step to its sharding."""
        return self.map(jax.lax.with_sharding_constraint, tree)

    def map(self, function: Callable[[jax.Array, NamedSharding], Any], tree: Tree) -> Tree:
        """Apply a function to each array of a state and the sharding of its role, where there is a mesh."""
        if self.mesh is None:
            return tree

        def one(path: KeyPath, leaf: jax.Array) -> Any:
            names = {getattr(part, "key", None) for part in path}
            specs = (s for role, s in self.shard if role in names and self._fits(np.shape(leaf), s))
            return function(leaf, NamedSharding(self.mesh, next(specs, P())))

        return jax.tree_util.tree_map_with_path(one, tree)

    def replicate(self, tree: Tree) -> Tree:
        """Put whole arrays, such as a data set, on every device."""
        if self.mesh is None:
            return jax.tree.map(jnp.asarray, tree)
        return _put(jax.tree.map(np.asarray, tree), NamedSharding(self.mesh, P()))

    def local_rows(self, size: int) -> np.ndarray:
        """Return the sorted rows of a batch of ``size`` rows that this process fills."""
        if self.mesh is None or jax.process_count() == 1:
            return np.arange(size)
        local = self._rows().addressable_devices_indices_map((size,)).values()
        return np.unique(np.concatenate([np.arange(size)[index] for index in local]))

    def shard_batch(self, rows: Tree, size: int) -> Tree:
        """Make a batch of ``size`` rows over the devices from the rows of :meth:`local_rows`."""
        if self.mesh is None:
            return rows
        sharding = self._rows()

        def one(part: ArrayLike) -> jax.Array:
            own, shape = np.asarray(part), (size, *np.shape(part)[1:])
            return jax.make_array_from_process_local_data(sharding, own, shape)

        return jax.tree.map(one, rows)

    def _rows(self) -> NamedSharding:
        return NamedSharding(self.mesh, P(self.mesh.axis_names[0]))

    def _fits(self, shape: Sequence[int], spec: P) -> bool:
        pairs = zip(shape, spec, strict=False)
        return len(shape) >= len(spec) and all(n % self._parts(P(axes)) == 0 for n, axes in pairs)

    def _parts(self, spec: P) -> int:
        return int(np.prod([self.mesh.shape[name] for name in jax.tree.leaves(tuple(spec))]))


HERE = Placement()
"""One device."""


def placement_of(tree: Tree) -> Placement:
    """Return the placement of arrays: the mesh of the first that has several devices."""
    for leaf in jax.tree.leaves(tree):
        mesh = getattr(getattr(leaf, "sharding", None), "mesh", None)
        if isinstance(mesh, Mesh) and mesh.size > 1 and set(mesh.axis_types) == {AxisType.Auto}:
            return Placement(mesh)
    return HERE


def class_shards(mesh: Mesh, objective: Any) -> dict[str, P]:
    """Return the usual partition: proxies by their classes, if the devices divide these."""
    proxies = jax.eval_shape(objective.init, jax.random.key(0)).get("proxies")
    if proxies is None or len(proxies.shape) < 2:
        return {}
    axis = mesh.axis_names[0]
    return {"proxies": P(axis)} if proxies.shape[0] % mesh.shape[axis] == 0 else {}


def _same(tree: Tree) -> Tree:
    return tree


def _put(tree: Tree, shardings: Tree) -> Tree:
    """Put arrays, whole in each process or on the mesh, into shardings."""
    if jax.process_count() == 1:
        return jax.device_put(tree, shardings)
    return jax.jit(_same, out_shardings=shardings)(tree)


def initialize(
    coordinator: str | None = None, processes: int | None = None, process: int | None = None
) -> None:
    """Join the processes of this program: call it first, before anything touches a device.

    A thin call of ``jax.distributed.initialize``. SLURM, Open MPI and GKE set all that is needed; otherwise pass all
    three. With one process, or after a first call, it does nothing.

    Args:
        coordinator: ``"HOST:PORT"`` of the first process.
        processes: their number.
        process: the index of this one, from 0.

    Raises:
        ValueError: some of the three without the others, or a process out of range.

    Example:
        >>> initialize()  # one process
    """
    arguments = (coordinator, processes, process)
    if None in arguments and arguments != (None, None, None):
        raise ValueError(f"processes, process and coordinator belong together, got {arguments}")
    if processes is not None and process is not None and not 0 <= process < processes:
        raise ValueError(f"process must be from 0 to {processes - 1}, got {process}")
    is_alone = processes == 1 or (processes is None and not _is_launched())
    if is_alone or jax.distributed.is_initialized():
        return
    jax.distributed.initialize(
        *arguments, heartbeat_timeout_seconds=HEARTBEAT, shutdown_timeout_seconds=SHUTDOWN
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
            f"process {jax.process_index()} of {jax.process_count()} cannot continue: another process of this run has "
            "ended, or cannot be reached; with a folder, the same command resumes from the last checkpoint"
        ) from error


def is_main_process() -> bool:
    """Return whether this process is the one that writes."""
    return jax.process_index() == 0


def broadcast_metrics(values: Mapping[str, float]) -> dict[str, float]:
    """Return the first process's numbers; those of others may differ in the last digit."""
    if jax.process_count() == 1 or not values:
        return dict(values)
    bits = np.array(list(values.values()), np.float64).view(np.uint32)
    numbers = np.asarray(multihost_utils.broadcast_one_to_all(bits)).astype(np.uint32)
    return dict(zip(values, numbers.view(np.float64).tolist(), strict=True))


def any_process(flags: np.ndarray) -> np.ndarray:
    """Return where flags are True in any process."""
    return np.any(multihost_utils.process_allgather(flags), axis=0)


@functools.cache  # once a process
def _warn_idle_devices(number: int) -> None:
    use = f"fit(devices=jax.make_mesh(({number},), ('data',))) uses all"
    _log.warning("training on 1 of %d devices: %s", number, use)


def _is_launched() -> bool:
    """Return whether a launcher that JAX knows started several processes: SLURM, Open MPI or GKE."""
    counts = [os.environ.get(n, 1) for n in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")]
    hosts = [os.environ.get(n, "") for n in ("TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES")]
    is_job = "JOB_COMPLETION_INDEX" in os.environ
    return any(int(n) > 1 for n in counts) or any("," in names for names in hosts) or is_job


# Signals that end a process (SIGTERM, Ctrl-C), and the memory that it keeps.

TRIM_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -4, -8  # from glibc's malloc.h


def disable_malloc_trim() -> None:
    """Let this process keep the memory that it frees (glibc; no effect elsewhere).

    By default glibc returns every freed array above 32 MiB to the system, which clears the pages that the next training
    step asks for: a quarter to a half of a small network's step on a CPU. In return, the process does not shrink.

    ``jdml`` and the processes of ``run_jobs`` call it; call it in your own program before the first large array, or
    set ``MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=2147483647 MALLOC_ARENA_MAX=1``.

    Example:
        >>> disable_malloc_trim()
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        c = ctypes.CDLL(None)
        c.mallopt(MMAP_MAX, 0)
        c.mallopt(TRIM_THRESHOLD, 2**31 - 1)
        c.mallopt(ARENA_MAX, 1)


class Preempted(SystemExit):
    """A run was asked to end (SIGTERM) and has saved where it was: the same call resumes from there.

    Args:
        step: of the checkpoint.
    """

    def __init__(self, step: int) -> None:
        super().__init__(128 + signal.SIGTERM)
        self.step = step

    def __str__(self) -> str:
        return f"asked to end (SIGTERM); saved at step {self.step}, the same call resumes it"


@contextlib.contextmanager
def note_termination(watched: bool) -> Iterator[Callable[[int], BaseException | None]]:
    """Note SIGTERM and Ctrl-C, of which a second ends at once; yield a function: what ends the run after a step."""
    # By JAX's preemption service all processes, which must ask after every step, save and end at one.
    several = watched and jax.process_count() > 1
    asked: list[int] = []
    before: dict[int, Any] = {}

    def note(number: int, *_: object) -> None:
        if number == signal.SIGINT:
            if asked:
                raise KeyboardInterrupt
            _log.warning("saving after this step; Ctrl-C once more ends at once")
        asked.append(number)

    def ending(step: int) -> BaseException | None:
        if not (multihost_utils.reached_preemption_sync_point(step) if several else asked):
            return None
        if asked[-1:] != [signal.SIGINT]:
            return Preempted(step)
        return KeyboardInterrupt(f"interrupted; saved at step {step}, the same call resumes it")

    if watched and not several and threading.current_thread() is threading.main_thread():
        before[signal.SIGTERM] = signal.signal(signal.SIGTERM, note)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            before[signal.SIGINT] = signal.signal(signal.SIGINT, note)
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked:  # it came after the last step
        signal.raise_signal(asked[-1])
