"""The memory that a training process keeps, and the signals (SIGTERM, Ctrl-C) that end it."""

import contextlib
import ctypes
import logging
import signal
import threading
from typing import Any

import jax

_log = logging.getLogger(__name__)

TRIM_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -4, -8  # from glibc's malloc.h


def disable_malloc_trim() -> None:
    """Let this process keep the memory that it frees, from now on (glibc; no effect elsewhere).

    As it starts, glibc gives every array above 32 MiB back to the system when it is freed. A training step on a CPU
    asks for its arrays anew each time, and the system clears their pages: of a step of a small network that is a
    quarter to a half. The price is that the process stays as large as it once was.

    ``jdml`` and the processes of ``run_jobs`` call it at their start; a program of one's own may, before its first
    large array. The same from outside: ``MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=2147483647 MALLOC_ARENA_MAX=1``.

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
        return (
            f"asked to end (SIGTERM); saved at step {self.step}, the same call resumes from there"
        )


class Interrupted(KeyboardInterrupt):
    """A run was interrupted (Ctrl-C) and has saved where it was: the same call resumes from there."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step

    def __str__(self) -> str:
        return f"interrupted (Ctrl-C); saved at step {self.step}, the same call resumes from there"


class Termination:
    """Note SIGTERM and the first Ctrl-C without ending; a second Ctrl-C ends at once.

    Several processes agree, by JAX's preemption service, on a step at which all of them save: one that is asked to end
    takes the others along.
    """

    def __init__(self, watched: bool) -> None:
        self._watched = watched
        self._asked: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Termination":
        alone = jax.process_count() == 1
        if self._watched and alone and threading.current_thread() is threading.main_thread():
            self._before[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._note)
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *raised: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        if self._asked is not None and raised[0] is None:  # it came after the last step
            signal.raise_signal(self._asked)

    def _note(self, number: int, *_: object) -> None:
        if number == signal.SIGINT:
            if self._asked is not None:
                raise KeyboardInterrupt
            _log.warning("saving after this step; Ctrl-C once more ends at once")
        self._asked = number

    def end(self, step: int) -> BaseException:
        """Return what ends the run, saved at this step."""
        return Interrupted(step) if self._asked == signal.SIGINT else Preempted(step)

    def asked(self, step: int) -> bool:
        """Tell whether to save after this step and end; every process asks after every step."""
        if not self._watched or jax.process_count() == 1:
            return self._asked is not None
        from jax.experimental import multihost_utils

        return bool(multihost_utils.reached_preemption_sync_point(step))
