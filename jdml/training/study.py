"""A study: many independent runs, in parallel processes, each one's result kept as soon as it is there."""

import itertools
import json
import math
import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

from jdml.ops import checks
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
    minutes: float | None = None,
    progress: bool = True,
) -> dict[str, dict[str, Any]]:
    """Do all jobs that have no result yet, as far as time goes, and return the results that there are.

    Args:
        run: a module-level function from a job's settings to its metrics, both JSON-able.
        jobs: settings by name; a name becomes a file name.
        out_dir: where ``NAME.json`` is written for each job, atomically, when it is done; or a ``.json`` file that
            takes them all, for a study of many short runs.
        workers: processes at a time, each with its share of the cores.
        minutes: begin no job after so many minutes; those that have begun end, and are kept. None: do all.
        progress: show a progress bar with the job that ended last and the time that is left.

    Returns:
        By name: ``job``, ``metrics``, ``seconds`` and ``machine``.

    Raises:
        TypeError: ``minutes`` is not a number.
        ValueError: ``workers`` below 1, ``minutes`` below 0, or a result that was made with other settings, naming
            them.

    Implementation notes:
        Start it again, after an interruption or with more minutes, and only what is missing runs. Jobs begin in their
        order, each when a worker is free. Several workers are processes of their own, which keep the memory that they
        free (:func:`keep_freed_memory`). On Linux each is held to its share of the cores: a step of a small network
        does not keep two cores busy, and a worker on each does 1.7 times as many runs as one on both.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     results = run_study(dict, {"a": {"seed": 0}}, folder, progress=False)
        >>> results["a"]["metrics"]
        {'seed': 0}
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    checks.optional(checks.non_negative)("minutes", minutes)
    keeper = _InFile(Path(out_dir)) if Path(out_dir).suffix == ".json" else _InFolder(Path(out_dir))
    results = {name: keeper.load(name, job) for name, job in jobs.items()}
    missing = {name: job for name, job in jobs.items() if results[name] is None}
    initial, begun = len(jobs) - len(missing), _in_time(missing, minutes)
    with progress_bar(progress, total=len(jobs), initial=initial, unit="run") as bar:
        for name, result in _run_all(run, begun, min(workers, len(missing))):
            keeper.keep(name, result)
            results[name] = result
            bar.set_postfix_str(name, refresh=False)
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


def by_seed(
    results: Mapping[str, Mapping[str, Any]], metric: str, /, **settings: Any
) -> dict[int, Any]:
    """The values of a metric by seed, in the runs of some settings.

    Args:
        results: of :func:`run_study` or :func:`collect_results`, with jobs that have a ``seed``.
        metric: the metric; runs without it are left out.
        **settings: what the runs' jobs have, among other settings.

    Returns:
        The values in the order of the results; what :func:`jdml.report.paired` compares.

    Raises:
        ValueError: two runs of a seed have these settings.

    Example:
        >>> runs = {
        ...     f"{way} {seed}": {"job": {"way": way, "seed": seed}, "metrics": {"R@1": value}}
        ...     for way, seed, value in (("alone", 0, 0.4), ("alone", 1, 0.5), ("NIR", 0, 0.6))
        ... }
        >>> by_seed(runs, "R@1", way="alone")
        {0: 0.4, 1: 0.5}
    """
    found: dict[int, Any] = {}
    for run in results.values():
        job, metrics = run["job"], run["metrics"]
        if metric not in metrics or not settings.items() <= job.items():
            continue
        if job["seed"] in found:
            raise ValueError(
                f"settings must tell runs of a seed apart, got two of seed {job['seed']} with {settings}"
            )
        found[job["seed"]] = metrics[metric]
    return found


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


def _in_time(jobs: Mapping[str, Job], minutes: float | None) -> Iterator[tuple[str, Job]]:
    """The jobs one by one; none after so many minutes from when the first is asked for."""
    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    for name, job in jobs.items():
        if time.monotonic() >= end:
            return
        yield name, job


def _run_all(
    run: Callable[[Job], Metrics], jobs: Iterator[tuple[str, Job]], workers: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield results by name as they come; ask for a job only when it is to begin."""
    if workers <= 1:
        for name, job in jobs:
            yield name, _timed(run, job)
        return
    context = multiprocessing.get_context("spawn")
    shares = context.SimpleQueue()
    for share in _shares(sorted(_cores()), workers):
        shares.put(share)
    with ProcessPoolExecutor(workers, context, _begin, (shares,)) as pool:
        names: dict[Future[dict[str, Any]], str] = {}
        while True:
            for name, job in itertools.islice(jobs, workers - len(names)):
                names[pool.submit(_timed, run, job)] = name
            if not names:
                return
            for future in wait(names, return_when=FIRST_COMPLETED).done:
                yield names.pop(future), future.result()


def _cores() -> set[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _shares(cores: list[int], workers: int) -> list[list[int]]:
    """A share of the cores for each worker; with more workers than cores some share one."""
    return [cores[worker % len(cores) :: workers] for worker in range(workers)]


def _begin(shares: Any) -> None:
    """Begin a worker: on its share of the cores, before anything counts them."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, shares.get())
    keep_freed_memory()


def _timed(run: Callable[[Job], Metrics], job: Job) -> dict[str, Any]:
    start = time.perf_counter()
    metrics = dict(run(job))
    used, there = len(_cores()), os.cpu_count()
    return {
        "job": dict(job),
        "metrics": metrics,
        "seconds": round(time.perf_counter() - start, 1),
        "machine": f"{platform.machine()}, {there if used == there else f'{used} of {there}'} cores",
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
