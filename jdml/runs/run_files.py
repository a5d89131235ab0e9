"""Files of runs: JSON, logs, models, checkpoints, and the results of a study."""

import contextlib
import json
import math
import operator
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jdml import adapt
from jdml._paths import check_local, json_of, lock_of, with_filename, write_text
from jdml.distributed import Tree
from jdml.models.io import read_metadata, read_safetensors, write_tensors

CONFIG = "config.json"
CHECKPOINTS = "checkpoints"
LOG = "log.jsonl"
MODEL = "model.safetensors"
"""The best parameters; in a run without a monitor the last."""
LAST = "last.safetensors"
"""The last parameters of a run with a monitor."""
METRICS = "metrics.json"
RESOURCES = "resources.json"
DESCRIPTION = "jdml"
"""The key of the description, as JSON, in a model file's metadata."""
as_number = operator.methodcaller("item")
"""Returns a number of an array library as Python's."""


def is_of_benchmark(config: Mapping[str, Any]) -> bool:
    """Return whether ``jdml benchmark`` began a run."""
    return str(config.get("provenance", {}).get("command")).startswith("jdml benchmark")


def write_json(path: str | Path, content: Any) -> None:
    """Write JSON to a file atomically."""
    write_text(Path(path), json.dumps(content, indent=2, sort_keys=True) + "\n")


def read_json(path: Path, kind: type = object, missing: Any = None) -> Any:
    """Read a JSON file; return ``missing`` without the file, if it is not None."""
    if missing is not None and not path.is_file():
        return missing
    return json_of(path.read_bytes(), path, kind)


def write_model(path: Path, variables: Mapping[str, Tree], description: Mapping[str, Any]) -> None:
    """Write ``{"params", "batch_stats"}`` and their description as one ``.safetensors``, atomically."""
    arrays = {name: np.asarray(value) for name, value in adapt.named_leaves(variables).items()}
    write_tensors(path, arrays, {DESCRIPTION: json.dumps(description, sort_keys=True)})


def read_model(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read the arrays of :func:`write_model` by name, and their description."""
    metadata = read_metadata(path)
    if DESCRIPTION not in metadata:
        raise ValueError(f"{path} was not written by a run of jdml: it has no description")
    return read_safetensors(path), json_of(metadata[DESCRIPTION], path, dict)


def read_description(path: Path) -> dict[str, Any]:
    """Read the description of a model file; empty where it has none."""
    return json_of(read_metadata(path).get(DESCRIPTION, "{}"), path, dict)


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, which may have pages."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else ""


class Log:
    """Appends records to ``log.jsonl``."""

    def __init__(self, folder: Path | None, *, after_step: int = 0) -> None:
        self._start = time.monotonic()
        self._before = 0.0
        self._file: Any = None
        if folder is None:
            return
        path = folder / LOG
        self._before = truncate_log(path, after_step)
        self._file = path.open("a", encoding="utf-8")

    def write(self, record: Mapping[str, float | int | str]) -> None:
        """Write one record as one line, with the run's wall ``seconds``; values that are not finite are ``null``."""
        if self._file is None:
            return
        finite = {
            k: v if isinstance(v, str) or math.isfinite(v) else None for k, v in record.items()
        }
        seconds = round(self._before + time.monotonic() - self._start, 3)
        with with_filename(Path(self._file.name)):
            self._file.write(json.dumps({**finite, "seconds": seconds}) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file, and write what the run has needed so far: ``resources.json``."""
        if self._file is not None:
            with contextlib.suppress(OSError, ValueError):  # such as of a full disk
                self._file.close()
                path = Path(self._file.name).parent / RESOURCES
                before = read_json(path, dict, missing={}).get("memory_mib")
                known = [mib for mib in (before, peak_memory()) if isinstance(mib, int | float)]
                write_json(path, {"memory_mib": max(known, default=None)})


def truncate_log(path: Path, after_step: int) -> float:
    """Remove the lines after a step and those that do not parse, end the last one, and return its seconds."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    lines = [line for line in text.splitlines() if _step(line) <= after_step]
    whole = "".join(line + "\n" for line in lines)
    if whole != text:
        write_text(path, whole)
    seconds = json.loads(lines[-1]).get("seconds") if lines else 0.0
    return float(seconds) if isinstance(seconds, int | float) else 0.0


def _step(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf


def peak_memory() -> float | None:
    """Return the most memory held so far, in MiB: of the first device if it is known, else of this process."""
    device = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in device:
        return round(device["peak_bytes_in_use"] / 2**20, 1)
    try:
        import resource
    except ModuleNotFoundError:  # not on Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20, 1)


# Results of a study: one file of JSON lines, a run a line, sorted by name.


def read_results(path: str | Path) -> dict[str, dict[str, Any]]:
    """Read all results in a study's file, by name."""
    check_local("path", path)
    path = Path(path)
    results: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else (), 1):
        where = f"{path}, line {number}"
        result = json_of(line, where, dict)
        name = str(result.pop("name", None))
        if name in results:
            raise ValueError(f"{where}: {name} is there twice")
        results[name] = result
    return dict(sorted(results.items()))


def write_results(path: str | Path, results: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the results of runs atomically."""
    lines = [
        json.dumps({**result, "name": name}, sort_keys=True, ensure_ascii=False, default=as_number)
        for name, result in sorted(results.items())
    ]
    write_text(Path(path), "".join(f"{line}\n" for line in lines))


def through_json(value: Any) -> Any:
    """Return a value as JSON returns it: lists for tuples, Python's numbers."""
    return json.loads(json.dumps(value, default=as_number))


def save_result(path: str | Path, name: str, result: Mapping[str, Any]) -> None:
    """Add a run's result to a file, or replace the one of that name; several processes may add at a time."""
    with lock_of(Path(path)):
        write_results(path, {**read_results(path), name: result})


def delete_results(path: str | Path, names: Collection[str]) -> None:
    """Remove the results of some runs from a file, so that they are computed again."""
    path = Path(path)
    if path.exists():
        with lock_of(path):
            results = read_results(path)
            write_results(path, {n: result for n, result in results.items() if n not in names})
