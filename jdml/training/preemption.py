"""The end of a run that is asked to end: SIGTERM, which a cluster sends before it takes a machine away, or Ctrl-C."""

import logging
import signal
import threading
from typing import Any

import jax

_log = logging.getLogger(__name__)


class Preempted(SystemExit):
    """A run was asked to end (SIGTERM) and has saved where it was: the same call goes on from there.

    Args:
        step: of the checkpoint.
    """

    def __init__(self, step: int) -> None:
        super().__init__(128 + signal.SIGTERM)
        self.step = step

    def __str__(self) -> str:
        return (
            f"asked to end (SIGTERM); saved at step {self.step}, the same call goes on from there"
        )


class Interrupted(KeyboardInterrupt):
    """A run was interrupted (Ctrl-C) and has saved where it was: the same call goes on from there.

    Args:
        step: of the checkpoint.
    """

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step

    def __str__(self) -> str:
        return f"interrupted (Ctrl-C); saved at step {self.step}, the same call goes on from there"


class Termination:
    """Within it, SIGTERM and the first Ctrl-C are noted and end nothing; a second Ctrl-C ends at once.

    Several processes agree, by JAX's preemption service, on a step at which all of them save: one that is asked to end
    takes the others along.

    Args:
        watched: whether to note anything.
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
        """What ends the run, saved at this step."""
        return Interrupted(step) if self._asked == signal.SIGINT else Preempted(step)

    def asked(self, step: int) -> bool:
        """Whether to save after this step and end; every process asks after every step."""
        if not self._watched or jax.process_count() == 1:
            return self._asked is not None
        from jax.experimental import multihost_utils

        return bool(multihost_utils.reached_preemption_sync_point(step))
