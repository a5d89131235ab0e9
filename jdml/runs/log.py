"""The run's log: JSON lines, one per record, flushed."""

import contextlib
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jdml.models.tensors import naming, write_text
from jdml.runs.preemption import most_memory
from jdml.runs.run_files import LOG

RESOURCES = "resources.json"


class Log:
    """Appends records to ``log.jsonl``."""

    def __init__(self, folder: Path | None, *, after_step: int = 0) -> None:
        self._start = time.monotonic()
        self._before = 0.0
        self._file: Any = None
        if folder is None:
            return
        path = folder / LOG
        cut(path, after_step)
        self._before = _seconds(path)
        self._file = path.open("a", encoding="utf-8")

    def write(self, record: Mapping[str, float | int | str]) -> None:
        """Write one record as one line: the record and the wall ``seconds`` of the run so far.

        Values that are not finite become ``null``, as JSON has none. Seconds add up over the processes of a run.
        """
        if self._file is None:
            return
        finite = {
            k: v if isinstance(v, str) or math.isfinite(v) else None for k, v in record.items()
        }
        seconds = round(self._before + time.monotonic() - self._start, 3)
        with naming(Path(self._file.name)):
            self._file.write(json.dumps({**finite, "seconds": seconds}) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file, and say what the run has needed so far: ``resources.json``."""
        if self._file is not None:
            with contextlib.suppress(OSError, ValueError):  # a full disk is told by what needs it
                self._file.close()
                _write_resources(Path(self._file.name).parent / RESOURCES)


def _write_resources(path: Path) -> None:
    """The most memory that any process of the run has held."""
    from jdml.runs.run_files import read_json, write_json

    before = read_json(path, dict).get("memory_mib") if path.is_file() else None
    known = [held for held in (before, most_memory()) if isinstance(held, int | float)]
    write_json(path, {"memory_mib": max(known, default=None)})


def cut(path: Path, after_step: int) -> None:
    """Remove, atomically, the lines whose ``step`` is after ``after_step`` or that do not parse; end the last one."""
    if not path.exists():
        return
    text = path.read_text(encoding="utf-8", errors="replace")
    kept = "".join(line + "\n" for line in text.splitlines() if _step(line) <= after_step)
    if kept != text:
        write_text(path, kept)


def _seconds(path: Path) -> float:
    """The seconds of the last line; 0 where there is none."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    seconds = json.loads(lines[-1]).get("seconds") if lines else 0.0
    return float(seconds) if isinstance(seconds, int | float) else 0.0


def _step(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf
