"""Memory that a training process keeps instead of asking the system for it at every step."""

import contextlib
import ctypes
import sys

TRIM_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -4, -8  # from glibc's malloc.h


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, from now on (glibc; no effect elsewhere).

    As it starts, glibc gives every array above 32 MiB back to the system when it is freed. A training step on a CPU
    asks for its arrays anew each time, and the system clears their pages: of a step of a small network that is a
    quarter to a half. The price is that the process stays as large as it once was.

    ``jdml`` and the processes of ``run_study`` call it at their start; a program of one's own may, before its first
    large array. The same from outside: ``MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=2147483647 MALLOC_ARENA_MAX=1``.

    Example:
        >>> keep_freed_memory()
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        c = ctypes.CDLL(None)
        c.mallopt(MMAP_MAX, 0)
        c.mallopt(TRIM_THRESHOLD, 2**31 - 1)
        c.mallopt(ARENA_MAX, 1)


def most_memory() -> float | None:
    """The most memory held so far, in MiB: of the first device where it tells, else of this process.

    Returns:
        MiB; None where nobody tells.

    Example:
        >>> held = most_memory()
    """
    import jax

    device = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in device:
        return round(device["peak_bytes_in_use"] / 2**20, 1)
    try:
        import resource
    except ModuleNotFoundError:  # not on Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20, 1)
