"""Where a command trains: the devices of this machine, or of several processes; and how many rows at a time."""

from dataclasses import dataclass
from typing import Any

TOPOLOGY = ("devices", "micro_batch", "coordinator", "processes", "process")
"""Options that do not change what is computed: a run goes on with others."""


@dataclass(frozen=True)
class Machines:
    """Options of the commands that train."""

    devices: str | None = None
    """How many devices share each batch: a number, or all. Default: all there are, or as many as divide a batch."""
    micro_batch: int | None = None
    """Rows that go through the network at a time, for batches whose activations do not fit: the loss still sees the
    whole batch. Default: all of a batch."""
    coordinator: str | None = None
    """HOST:PORT of the first process, where several are started by hand: the same command on each, with --processes and
    its own --process. SLURM, Open MPI and GKE need none of the three."""
    processes: int | None = None
    """How many processes there are."""
    process: int | None = None
    """Which of them this is, 0 the first."""

    def join(self) -> None:
        """Join the other processes, if there are any, before anything touches a device."""
        from jdml.training import initialize

        if self.micro_batch is not None and self.micro_batch < 1:
            raise ValueError(f"--micro-batch must be at least 1, got {self.micro_batch}")
        if self.devices not in (None, "all") and not str(self.devices).isdigit():
            raise ValueError(f"--devices must be a number or all, got {self.devices!r}")
        initialize(self.coordinator, self.processes, self.process)

    def mesh(self, rows: int) -> tuple[Any, list[str]]:
        """The devices that share batches of so many rows, and a line that says so; None where there is but one."""
        import jax

        there, processes = jax.device_count(), jax.process_count()
        number = there if self.devices in (None, "all") else int(str(self.devices))
        if not 1 <= number <= there:
            raise ValueError(f"--devices must be from 1 to {there}, which there are, got {number}")
        if processes > 1 and number < there:
            raise ValueError(
                f"--devices must be all {there} of {processes} processes, got {number}"
            )
        if there == 1:
            return None, []
        if self.devices is None and processes == 1:
            number = max(n for n in range(1, there + 1) if rows % n == 0)
        mesh = jax.make_mesh((number,), ("data",), devices=jax.devices()[:number])
        of = f" of {processes} processes" if processes > 1 else ""
        kind = mesh.devices.flat[0].device_kind
        each = f"{rows / number:g} rows of a batch of {rows} on each"
        return mesh, [f"{number} of {there} devices{of} ({kind}), {each}"]
