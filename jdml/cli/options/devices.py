"""Where a command trains: the devices of this machine, or of several processes; and how many rows at a time."""

from dataclasses import dataclass
from typing import Annotated, Any

from jdml.cli.options.parts import NOT_DEFINING, check_options
from jdml.ops.checks import at_least

MOST_OF_A_CPU = 64
"""Devices that a CPU is divided into, at most."""


@dataclass(frozen=True)
class DeviceOptions:
    """Which devices and processes train, and how many rows at a time."""

    devices: Annotated[str | None, NOT_DEFINING] = None
    """Devices that share a batch: a number (also of a CPU), or all."""
    micro_batch: Annotated[int | None, at_least(1), NOT_DEFINING] = None
    """Rows that go through the network at a time; the loss sees all."""
    coordinator: Annotated[str | None, NOT_DEFINING] = None
    """HOST:PORT of the first of several processes started by hand."""
    processes: Annotated[int | None, NOT_DEFINING] = None
    """Number of processes."""
    process: Annotated[int | None, NOT_DEFINING] = None
    """Which of them this is, from 0."""

    def join(self) -> None:
        """Join the other processes, if there are any, before anything touches a device."""
        from jdml.training import initialize

        check_options(self)
        if self.devices not in (None, "all") and not str(self.devices).isdigit():
            raise ValueError(f"--devices must be a number or all, got {self.devices!r}")
        initialize(self.coordinator, self.processes, self.process)
        if self.devices not in (None, "all"):
            _divide_cpu(int(str(self.devices)))

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
        among = f" of {processes} processes" if processes > 1 else ""
        kind = mesh.devices.flat[0].device_kind
        each = f"{rows / number:g} rows of a batch of {rows} on each"
        return mesh, [f"{number} of {there} devices{among} ({kind}), {each}"]


def _divide_cpu(number: int) -> None:
    """So many devices of this machine's CPU, for a process alone whose user has not said how many there are."""
    import contextlib
    import os

    import jax

    said = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    said |= jax.config.values["jax_num_cpu_devices"] >= 0
    if not said and not jax.distributed.is_initialized():
        with contextlib.suppress(RuntimeError):  # the devices are in use already, in a notebook
            jax.config.update("jax_num_cpu_devices", max(1, min(number, MOST_OF_A_CPU)))
