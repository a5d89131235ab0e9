"""Many independent runs in parallel processes; each result is saved when its run ends."""

import copy
import itertools
import math
import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from jdml._optional_imports import progress_bar
from jdml._paths import check_local
from jdml.data.images import usable_cores
from jdml.data.pipeline import end_with_parent
from jdml.distributed import PeerExitedError, disable_malloc_trim
from jdml.ops import checks
from jdml.runs.identity import differences, explain
from jdml.runs.run_files import read_results, save_result, through_json

Job = Mapping[str, Any]
Metrics = Mapping[str, Any]
GPU_MEMORY = 0.75
"""The share of a GPU's memory that JAX reserves, of all workers together."""


def run_jobs(
    run: Callable[[Job], Metrics],
    jobs: Mapping[str, Job],
    out: str | Path,
    *,
    workers: int = 1,
    minutes: float | None = None,
    progress: bool = True,
) -> dict[str, dict[str, Any]]:
    """Run all jobs that have no result yet in a study's file, and return all results.

    ``run`` is a module-level function from a job's settings to its metrics, both JSON-able. A result (``job``,
    ``metrics``, ``seconds``, ``machine``) is written atomically when its job ends; several studies may share a file,
    also at the same time. No job starts after the ``minutes``, or after an error, which names its job; running ones end
    and are saved. On Linux each worker is bound to its share of the cores: a step of a small network does not keep two
    cores busy, and one worker per core does 1.7 times as many runs as one on both. On a GPU each takes its share of the
    memory that JAX reserves, unless ``XLA_PYTHON_CLIENT_MEM_FRACTION`` is set.
    """
    checks.count("workers", workers)
    checks.optional(checks.non_negative)("minutes", minutes)
    check_local("out", out)
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    results = results_of(jobs, out)
    missing = {name: job for name, job in jobs.items() if name not in results}
    end = time.monotonic() + 60 * (math.inf if minutes is None else minutes)
    started = itertools.takewhile(lambda job: time.monotonic() < end, missing.items())
    initial = len(jobs) - len(missing)
    with progress_bar(progress, total=len(jobs), initial=initial, unit="run") as bar:
        for name, result in _run_all(run, started, min(workers, len(missing))):
            save_result(out, name, result)
            results[name] = result
            bar.set_postfix_str(name, refresh=False)
            bar.update()
    return {name: results[name] for name in jobs if name in results}


def results_of(jobs: Mapping[str, Job], out: str | Path) -> dict[str, dict[str, Any]]:
    """Read a study's file; refuse one of these jobs that was run with other settings, naming them."""
    results = read_results(out)
    for name in (name for name in jobs if name in results):
        different = differences(results[name]["job"], through_json(dict(jobs[name])))
        if different:
            shown = "; ".join(explain(different))
            raise ValueError(
                f"{name} in {out} was run with other settings: {shown}. Choose another file"
            )
    return results


def _run_all(
    run: Callable[[Job], Metrics], jobs: Iterator[tuple[str, Job]], workers: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield results by name as they come; take a job only when it starts."""
    if workers <= 1:
        for name, job in jobs:
            yield name, _time_run(run, name, job)
        return
    context = multiprocessing.get_context("spawn")
    shares = context.SimpleQueue()
    cores = sorted(usable_cores())
    for worker in range(workers):  # with more workers than cores some share one
        shares.put(cores[worker % len(cores) :: workers])
    with ProcessPoolExecutor(workers, context, _start_worker, (shares, workers)) as pool:
        names: dict[Future[dict[str, Any]], str] = {}
        failed: Exception | None = None
        while True:
            for name, job in itertools.islice(jobs, workers - len(names)):
                names[pool.submit(_time_run, run, name, job)] = name
            if not names:
                break
            for future in wait(names, return_when=FIRST_COMPLETED).done:
                name = names.pop(future)
                try:
                    yield name, future.result()
                except BrokenProcessPool as error:
                    running = ", ".join((name, *names.values()))
                    raise PeerExitedError(
                        f"a worker ended during one of the jobs {running}: it was killed, perhaps for lack of memory "
                        "(take fewer workers), or cannot import run (put a notebook's function into a .py file)"
                    ) from error
                except Exception as error:  # raised below, after the running jobs are saved
                    failed, jobs = failed or error, iter(())
    if failed is not None:
        raise failed


def _start_worker(shares: Any, workers: int) -> None:
    """Start a worker on its share of the cores and of a GPU's memory, before JAX counts them."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{GPU_MEMORY / workers:.3f}")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, shares.get())
    disable_malloc_trim()
    end_with_parent()  # a restarted study would write into the same folders


def _time_run(run: Callable[[Job], Metrics], name: str, job: Job) -> dict[str, Any]:
    """Run a job, and return its result as it is read from the file; errors name the job."""
    start = time.perf_counter()
    try:
        metrics = run(copy.deepcopy(dict(job)))
    except Exception as error:  # whatever a job raises
        error.add_note(f"in job {name!r}")
        raise
    cores, all_cores = len(usable_cores()), os.cpu_count()
    used = all_cores if cores == all_cores else f"{cores} of {all_cores}"
    return through_json(
        {
            "job": dict(job),
            "metrics": dict(metrics),
            "seconds": round(time.perf_counter() - start, 1),
            "machine": f"{platform.machine()}, {used} cores",
        }
    )
