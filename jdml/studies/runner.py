"""A study: many independent runs in parallel processes. Each result is saved as soon as it is there."""

import copy
import functools
import itertools
import json
import math
import multiprocessing
import os
import pickle
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from jdml._optional_imports import progress_bar
from jdml._paths import check_local
from jdml.distributed import PeerExitedError
from jdml.ops import checks
from jdml.runs.identity import differences
from jdml.runs.preemption import disable_malloc_trim
from jdml.runs.results_store import as_read, read_results, save_result

Job = Mapping[str, Any]
Metrics = Mapping[str, Any]
GPU_MEMORY = 0.75
"""Of a GPU's memory, that JAX takes for itself: that of all workers together."""


def run_study(
    run: Callable[[Job], Metrics],
    jobs: Mapping[str, Job],
    out: str | Path,
    *,
    workers: int = 1,
    minutes: float | None = None,
    progress: bool = True,
) -> dict[str, dict[str, Any]]:
    """Do all jobs that have no result yet, as far as time goes, and return the results that there are.

    Args:
        run: a module-level function from a job's settings to its metrics, both JSON-able.
        jobs: settings by name.
        out: the study's file, such as ``results.jsonl``: JSON lines, a job a line, sorted by name. Each is written,
            atomically, when it is done. Several studies may share a file, also at the same time;
            :func:`jdml.runs.results_store.read_results` reads all that it holds.
        workers: processes at a time, each with its share of the cores.
        minutes: begin no job after so many minutes; those that have begun end, and are kept. None: do all.
        progress: show a progress bar with the job that ended last and the time that is left.

    Returns:
        By name: ``job``, ``metrics``, ``seconds`` and ``machine``.

    Raises:
        TypeError: ``minutes`` is not a number, or ``run`` no function that several workers can import.
        ValueError: ``workers`` below 1, ``minutes`` below 0, ``out`` no ``.jsonl`` file, or a result that was made with
            other settings, naming them.
        Exception: what a job raised, of the same kind, naming the job; no job begins after it, those that have begun
            end and are kept.
        RuntimeError: a worker was killed, naming the jobs at work.

    Implementation notes:
        Start it again, after an interruption or with more minutes, and only what is missing runs. Jobs begin in their
        order, each when a worker is free. Several workers are processes of their own, which keep the memory that they
        free (:func:`disable_malloc_trim`). On Linux each is held to its share of the cores: a step of a small network
        does not keep two cores busy, and a worker on each does 1.7 times as many runs as one on both. On a GPU each
        takes its share of the memory that JAX reserves, unless ``XLA_PYTHON_CLIENT_MEM_FRACTION`` says otherwise.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     results = run_study(dict, {"a": {"seed": 0}}, f"{folder}/results.jsonl", progress=False)
        >>> results["a"]["metrics"]
        {'seed': 0}
    """
    checks.count("workers", workers)
    if not isinstance(jobs, Mapping):
        raise TypeError(f"jobs must be settings by name, got a {type(jobs).__name__}")
    checks.optional(checks.non_negative)("minutes", minutes)
    check_local("out", out)
    out = Path(out)
    if out.suffix != ".jsonl":
        raise ValueError(f"out must be a .jsonl file, got {out}")
    if workers > 1:
        _check_importable(run)
    for name, job in jobs.items():
        if not isinstance(job, Mapping):
            raise TypeError(f"jobs[{name!r}] must be settings by name, got a {type(job).__name__}")
        try:
            json.dumps(dict(job))
        except TypeError as error:
            raise TypeError(f"jobs[{name!r}] must hold settings that JSON has: {error}") from error
    out.parent.mkdir(parents=True, exist_ok=True)
    kept = kept_results(jobs, out)
    results = {name: kept.get(name) for name in jobs}
    missing = {name: job for name, job in jobs.items() if name not in kept}
    initial, begun = len(jobs) - len(missing), _in_time(missing, minutes)
    with progress_bar(progress, total=len(jobs), initial=initial, unit="run") as bar:
        for name, result in _run_all(run, begun, min(workers, len(missing))):
            save_result(out, name, result)
            results[name] = result
            bar.set_postfix_str(name, refresh=False)
            bar.update()
    return {name: result for name, result in results.items() if result is not None}


def kept_results(jobs: Mapping[str, Job], out: str | Path) -> dict[str, dict[str, Any]]:
    """Read a study's file, of which these jobs are to go on.

    Args:
        jobs: settings by name.
        out: the study's file.

    Returns:
        All its results, by name; empty where there is no file.

    Raises:
        ValueError: one of these jobs was made with other settings, naming them.
    """
    kept = read_results(out)
    for name in (name for name in jobs if name in kept):
        _check_same(f"{name} in {out}", kept[name], jobs[name])
    return kept


def over_seeds(results: Mapping[str, Mapping[str, Any]], name: str, metric: str) -> list[Any]:
    """Return the values of a metric in all runs that differ only in their seed.

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
    chosen = (run["metrics"] for key, run in results.items() if key.rpartition("-")[0] == name)
    return [metrics[metric] for metrics in chosen if metric in metrics]


def by_seed(
    results: Mapping[str, Mapping[str, Any]], metric: str, /, **settings: Any
) -> dict[int, Any]:
    """Return the values of a metric by seed, in the runs of some settings.

    Args:
        results: of :func:`run_study` or :func:`~jdml.runs.results_store.read_results`, with jobs that have a ``seed``.
        metric: the metric; runs without it, or without a seed, are left out.
        **settings: what the runs' jobs have, among other settings.

    Returns:
        The values in the order of the results; what :func:`jdml.report.paired_difference` compares.

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
    values: dict[int, Any] = {}
    wanted = as_read(settings)
    for run in results.values():
        job, metrics = run["job"], run["metrics"]
        if metric not in metrics or "seed" not in job or not wanted.items() <= as_read(job).items():
            continue
        if job["seed"] in values:
            raise ValueError(
                f"settings must tell runs of a seed apart, got two of seed {job['seed']} with {settings}"
            )
        values[job["seed"]] = metrics[metric]
    return values


def _in_time(jobs: Mapping[str, Job], minutes: float | None) -> Iterator[tuple[str, Job]]:
    """Yield the jobs one by one; none after so many minutes from when the first is asked for."""
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
            try:
                result = _timed(run, job)
            except Exception as error:  # whatever a job raises goes on, with its name
                raise _named(name, error) from error
            yield name, result
        return
    context = multiprocessing.get_context("spawn")
    shares = context.SimpleQueue()
    for share in _shares(sorted(_cores()), workers):
        shares.put(share)
    with ProcessPoolExecutor(workers, context, _begin, (shares, workers)) as pool:
        names: dict[Future[dict[str, Any]], str] = {}
        failed: Exception | None = None
        while True:
            for name, job in itertools.islice(jobs, workers - len(names)):
                names[pool.submit(_timed, run, job)] = name
            if not names:
                break
            for future in wait(names, return_when=FIRST_COMPLETED).done:
                name = names.pop(future)
                try:
                    result = future.result()
                except BrokenProcessPool as error:
                    at = ", ".join((name, *names.values()))
                    raise PeerExitedError(
                        f"a worker was ended, perhaps for want of memory, during one of the jobs {at}: begin again "
                        "with fewer workers; what is done is kept"
                    ) from error
                except Exception as error:  # raised below, when the jobs that run are kept
                    failed, jobs = failed or _named(name, error), iter(())
                    continue
                yield name, result
    if failed is not None:
        raise failed


def _named(name: str, error: Exception) -> Exception:
    """Return an error of the same kind that names its job."""
    try:
        named = type(error)(f"job {name!r}: {error}")
    except Exception:  # of a kind that is made otherwise
        error.add_note(f"in job {name!r}")
        return error
    named.__cause__ = error
    return named


def _check_importable(run: Any) -> None:
    """Refuse a function that a worker, a new process, cannot import."""
    function = run
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", type(function).__name__)
    main = sys.modules["__main__"]
    inside = getattr(function, "__module__", None) == "__main__" and not hasattr(main, "__file__")
    try:
        pickle.dumps(run)
    except Exception:  # pickle raises many kinds, and so does a user's __reduce__
        inside = True
    if inside:
        raise TypeError(
            f"run must be a function of a module, which each of the workers imports, got {name}, which a notebook, or "
            "another function, has defined: put it into a .py file, or take workers=1"
        )


def _cores() -> set[int]:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _shares(cores: list[int], workers: int) -> list[list[int]]:
    """Divide the cores among the workers; with more workers than cores some share one."""
    return [cores[worker % len(cores) :: workers] for worker in range(workers)]


def _begin(shares: Any, workers: int) -> None:
    """Begin a worker: on its share of the cores, and of a GPU's memory, before anything counts them."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{GPU_MEMORY / workers:.3f}")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, shares.get())
    disable_malloc_trim()
    threading.Thread(
        target=_end_with, args=(multiprocessing.parent_process(),), daemon=True
    ).start()


def _end_with(study: Any) -> None:
    """End this worker when the study is killed: begun again, it would train in the same folders."""
    study.join()
    os._exit(1)


def _timed(run: Callable[[Job], Metrics], job: Job) -> dict[str, Any]:
    """Return a job's result as a reader of the file will have it."""
    start = time.perf_counter()
    metrics = run(copy.deepcopy(dict(job)))
    if not isinstance(metrics, Mapping):
        raise TypeError(f"run must return metrics by name, got a {type(metrics).__name__}")
    used, there = len(_cores()), os.cpu_count()
    return as_read(
        {
            "job": dict(job),
            "metrics": dict(metrics),
            "seconds": round(time.perf_counter() - start, 1),
            "machine": f"{platform.machine()}, {there if used == there else f'{used} of {there}'} cores",
        }
    )


def _check_same(what: str, result: dict[str, Any], job: Job) -> None:
    different = differences(result["job"], json.loads(json.dumps(dict(job))))
    if different:
        raise ValueError(
            f"{what} was made with other settings: {'; '.join(different)}. Choose another file"
        )
