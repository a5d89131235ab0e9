"""A study: many independent runs, in parallel processes, each one's result kept as soon as it is there."""

import concurrent.futures
import json
import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jdml.training.checkpoint import differences, write_json
from jdml.training.log import progress_bar
from jdml.training.memory import keep_freed_memory

Job = Mapping[str, Any]
Metrics = Mapping[str, Any]


def run_study(
    run: Callable[[Job], Metrics],
    jobs: Mapping[str, Job],
    out_dir: str | Path,
    *,
    workers: int = 1,
    progress: bool = True,
) -> dict[str, dict[str, Any]]:
    """Do all jobs that have no result yet, and return the results of all.

    Args:
        run: a module-level function from a job's settings to its metrics, both JSON-able.
        jobs: settings by name; a name becomes a file name.
        out_dir: where ``NAME.json`` is written for each job, atomically, when it is done; or a ``.json`` file that
            takes them all, for a study of many short runs.
        workers: processes at a time.
        progress: show a progress bar with the time that is left.

    Returns:
        By name: ``job``, ``metrics``, ``seconds`` and ``machine``.

    Raises:
        ValueError: ``workers`` below 1, or a result that was made with other settings, naming them.

    Implementation notes:
        Start it again after an interruption and only what is missing runs. A second worker on two cores gains little:
        it trains while the first one compiles or scores. Several workers are processes of their own, which keep the
        memory that they free (:func:`keep_freed_memory`).

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     results = run_study(dict, {"a": {"seed": 0}}, folder, progress=False)
        >>> results["a"]["metrics"]
        {'seed': 0}
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    keeper = _InFile(Path(out_dir)) if Path(out_dir).suffix == ".json" else _InFolder(Path(out_dir))
    results = {name: keeper.load(name, job) for name, job in jobs.items()}
    missing = {name: job for name, job in jobs.items() if results[name] is None}
    initial = len(jobs) - len(missing)
    with progress_bar(progress, total=len(jobs), initial=initial, unit="run") as bar:
        for name, result in _run_all(run, missing, workers):
            keeper.keep(name, result)
            results[name] = result
            bar.update()
    return {name: result for name, result in results.items() if result is not None}


def over_seeds(results: Mapping[str, Mapping[str, Any]], name: str, metric: str) -> list[Any]:
    """The values of a metric in all runs that differ only in their seed.

    Args:
        results: of :func:`run_study`, with jobs named ``NAME-SEED``.
        name: NAME.
        metric: the metric; runs without it are left out.

    Returns:
        The values in the order of the jobs.

    Example:
        >>> runs = {f"triplet-{seed}": {"metrics": {"R@1": value}} for seed, value in enumerate((0.4, 0.5))}
        >>> over_seeds(runs, "triplet", "R@1")
        [0.4, 0.5]
    """
    found = (run["metrics"] for key, run in results.items() if key.rpartition("-")[0] == name)
    return [metrics[metric] for metrics in found if metric in metrics]


def collect_results(folder: str | Path) -> dict[str, dict[str, Any]]:
    """All results of a folder: also those of a study's other parts, which were run before.

    Args:
        folder: the ``out_dir`` of :func:`run_study`. Every result is there with its job's settings, which are compared
            by name only: parts of other settings stand beside each other.

    Returns:
        By name, in alphabetical order, what :func:`run_study` returns.

    Raises:
        ValueError: a result that is not JSON.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for part in ("a", "b"):
        ...         _ = run_study(dict, {part: {"seed": 0}}, folder, progress=False)
        ...     list(collect_results(folder))
        ['a', 'b']
    """
    return {path.stem: _read(path) for path in sorted(Path(folder).glob("*.json"))}


def _run_all(run: Callable[[Job], Metrics], jobs: Mapping[str, Job], workers: int) -> Any:
    """Yield results by name as they come."""
    if workers == 1 or len(jobs) <= 1:
        for name, job in jobs.items():
            yield name, _timed(run, job)
        return
    context = multiprocessing.get_context("spawn")
    start = keep_freed_memory
    with concurrent.futures.ProcessPoolExecutor(workers, context, start) as pool:
        futures = {pool.submit(_timed, run, job): name for name, job in jobs.items()}
        try:
            for future in concurrent.futures.as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _timed(run: Callable[[Job], Metrics], job: Job) -> dict[str, Any]:
    start = time.perf_counter()
    metrics = dict(run(job))
    return {
        "job": dict(job),
        "metrics": metrics,
        "seconds": round(time.perf_counter() - start, 1),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


class _InFolder:
    """A file for each result."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def load(self, name: str, job: Job) -> dict[str, Any] | None:
        path = self.folder / f"{name}.json"
        return _checked(str(path), _read(path), job) if path.exists() else None

    def keep(self, name: str, result: Mapping[str, Any]) -> None:
        write_json(self.folder / f"{name}.json", result)


class _InFile:
    """One file for all results, written anew with each of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.results: dict[str, Any] = _read(path) if path.exists() else {}

    def load(self, name: str, job: Job) -> dict[str, Any] | None:
        found = self.results.get(name)
        return None if found is None else _checked(f"{name} in {self.path}", found, job)

    def keep(self, name: str, result: Mapping[str, Any]) -> None:
        self.results[name] = dict(result)
        write_json(self.path, self.results)


def _checked(what: str, result: dict[str, Any], job: Job) -> dict[str, Any]:
    different = differences(result["job"], json.loads(json.dumps(dict(job))))
    if different:
        raise ValueError(
            f"{what} was made with other settings: {'; '.join(different)}. Choose another folder"
        )
    return result


def _read(path: Path) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    return result
