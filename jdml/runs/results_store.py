"""Records of a study's runs: one file of JSON lines, a run a line, sorted by name."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jdml._optional_imports import require_package
from jdml._paths import check_local, json_of
from jdml.models.tensors import write_text


def read_results(path: str | Path) -> dict[str, dict[str, Any]]:
    """Read all results in a study's file, by name.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_results(f"{folder}/a.jsonl", {"b-0": {"metrics": {"R@1": 0.5}}, "a-0": {}})
        ...     read_results(f"{folder}/a.jsonl")
        {'a-0': {}, 'b-0': {'metrics': {'R@1': 0.5}}}
    """
    check_local("path", path)
    path = Path(path)
    results: dict[str, dict[str, Any]] = {}
    if not path.exists():
        return results
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            name, result = _read(line, f"{path}, line {number}")
            if name in results:
                raise ValueError(f"{path}, line {number}: {name} is there twice")
            results[name] = result
    return dict(sorted(results.items()))


def write_results(path: str | Path, results: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the results of runs, atomically: a reader, or a killed process, leaves the old file or the new one."""
    lines = [
        json.dumps({**result, "name": name}, sort_keys=True, ensure_ascii=False, default=_plain)
        for name, result in sorted(results.items())
    ]
    write_text(Path(path), "".join(f"{line}\n" for line in lines))


def as_read(value: Any) -> Any:
    """Return a value as it is read from a file: lists for tuples, Python's numbers."""
    return json.loads(json.dumps(value, default=_plain))


def _plain(value: Any) -> Any:
    """Return a number of an array library as Python's."""
    if np.ndim(value) == 0 and hasattr(value, "item"):
        return value.item()
    raise TypeError(
        f"a result must be of numbers, texts, lists and dictionaries, got a {type(value).__name__}"
    )


def save_result(path: str | Path, name: str, result: Mapping[str, Any]) -> None:
    """Add a run's result to those of a file, or put it in the place of one of that name.

    Several processes may add to one file at a time, and none loses what another has added.
    """
    with _locked(Path(path)):
        write_results(path, {**read_results(path), name: result})


def delete_results(path: str | Path, names: Collection[str]) -> None:
    """Take the results of some runs out of a file, so that they are made again."""
    path = Path(path)
    if not path.exists():
        return
    with _locked(path):
        results = read_results(path)
        rest = {name: result for name, result in results.items() if name not in names}
        if len(rest) < len(results):
            write_results(path, rest)


def _read(line: bytes, where: str) -> tuple[str, dict[str, Any]]:
    try:
        record = json_of(line, where, dict)
        return str(record.pop("name")), record
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{where} is not a run's record, JSON with its name: {error}") from error


def _locked(path: Path) -> Any:
    require_package("filelock", "several processes that write one file")
    from filelock import FileLock

    return FileLock(path.with_name(f".{path.name}.lock"), is_singleton=True)
