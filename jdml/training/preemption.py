"""The end of a run that is asked to end: SIGTERM, which a cluster sends before it takes a machine away."""

import signal
import threading
from typing import Any

import jax


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


class Termination:
    """Within it, SIGTERM is noted and ends nothing.

    Several processes agree, by JAX's preemption service, on a step at which all of them save: one that is asked to end
    takes the others along.

    Args:
        watched: whether to note anything.
    """

    def __init__(self, watched: bool) -> None:
        self._watched = watched
        self._asked = False
        self._before: Any = None

    def __enter__(self) -> "Termination":
        alone = jax.process_count() == 1
        if self._watched and alone and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, *raised: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            if self._asked and raised[0] is None:  # it came after the last step
                signal.raise_signal(signal.SIGTERM)

    def _note(self, *_: object) -> None:
        self._asked = True

    def asked(self, step: int) -> bool:
        """Whether to save after this step and end; every process asks after every step."""
        if not self._watched or jax.process_count() == 1:
            return self._asked
        from jax.experimental import multihost_utils

        return bool(multihost_utils.reached_preemption_sync_point(step))
