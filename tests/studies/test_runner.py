"""Studies: each job runs once, results are kept, and settings are compared."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import numpy as np
import psutil
import pytest

from experiments.study import by_seed
from jdml.runs.run_files import read_results, save_result
from jdml.studies.runner import run_jobs


def square(job):
    """Run a job; worker processes need a module-level function."""
    if job.get("fails"):
        raise RuntimeError("this job fails")
    return {"square": job["x"] ** 2}


def allowance(job):
    """Return the worker's cores and fraction of GPU memory; sleep so that each worker gets a job."""
    time.sleep(0.3)
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return {"cores": cores, "memory": os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION")}


def killed(job):
    os.kill(os.getpid(), 9)


def jobs_of(*numbers):
    return {f"job-{x}": {"x": x} for x in numbers}


@pytest.fixture
def results_file(tmp_path):
    """Return the path of a study's file."""
    return tmp_path / "study" / "s.jsonl"


@pytest.fixture
def study(results_file):
    """Run a study without a progress bar."""
    return lambda run, jobs, **settings: run_jobs(
        run, jobs, results_file, progress=False, **settings
    )


@pytest.mark.slow  # several processes
def test_workers_share_cores_and_gpu_memory(study, monkeypatch):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    workers = 3
    results = study(allowance, jobs_of(*range(4)), workers=workers)
    memory = {result["metrics"]["memory"] for result in results.values()}
    assert memory == {f"{0.75 / workers:.3f}"}
    if hasattr(os, "sched_getaffinity"):  # only Linux assigns cores
        mine = sorted(os.sched_getaffinity(0))
        allowed = {tuple(mine[worker % len(mine) :: workers]) for worker in range(workers)}
        assert {tuple(result["metrics"]["cores"]) for result in results.values()} <= allowed


def test_only_missing_jobs_run(study, results_file):
    """Names may have any characters; the file has one sorted line per run."""
    ran = []

    def counted(job):
        ran.append(job["x"])
        return square(job)

    jobs = {f"a, b/c\u2028ω {x}-0": {"x": x} for x in range(3)}
    first, second, third = jobs
    study(counted, {second: jobs[second]})
    results = study(counted, jobs)
    assert ran == [1, 0, 2]
    assert [results[name]["metrics"]["square"] for name in jobs] == [0, 1, 4]
    assert read_results(results_file) == results
    lines = [json.loads(line) for line in results_file.read_text().split("\n")[:-1]]
    assert [line["name"] for line in lines] == [first, second, third]
    assert all(list(line) == ["job", "machine", "metrics", "name", "seconds"] for line in lines)
    with pytest.raises(ValueError, match=rf"^{first} in .*s\.jsonl\b.* x: 0\b.*\b7\b"):
        study(counted, {first: {"x": 7}})


def test_results_equal_those_read_from_the_file(study):
    jobs = {"a": {"seed": 3, "dims": (4, 8), "rate": float("nan")}}

    def careless(job):
        assert job["dims"] == (4, 8)
        return {"m": job.pop("seed"), "curve": (1, 2), "x": jnp.float32(2), "y": np.int64(3)}

    first = study(careless, jobs)
    assert set(jobs["a"]) == {"seed", "dims", "rate"}
    assert first["a"]["job"]["dims"] == [4, 8]
    assert first["a"]["metrics"] == {"m": 3, "curve": [1, 2], "x": 2.0, "y": 3}
    again = study(careless, jobs)
    assert json.dumps(again, sort_keys=True) == json.dumps(first, sort_keys=True)
    for results in (first, again):
        assert by_seed(results, "m", dims=(4, 8)) == {3: 3}


def test_no_job_starts_after_the_time_limit(study, results_file, monkeypatch):
    """On this clock each finished job takes an hour."""
    jobs, now = jobs_of(*range(6)), time.monotonic
    with monkeypatch.context() as clock:
        clock.setattr(time, "monotonic", lambda: now() + 3600 * len(read_results(results_file)))
        assert study(square, jobs, minutes=0) == {}
        results = study(square, jobs, minutes=120)
    assert list(read_results(results_file)) == list(results) == list(jobs)[:2]
    assert all(result["metrics"] == square(result["job"]) for result in results.values())
    assert len(study(square, jobs)) == 6


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])  # two processes
def test_failed_job_is_named_and_other_results_are_kept(study, results_file, workers):
    jobs = {"good": {"x": 1}, "bad": {"x": 2, "fails": True}, "later": {"x": 3}}
    with pytest.raises(RuntimeError, match="^this job fails") as raised:
        study(square, jobs, workers=workers)
    assert "'bad'" in raised.value.__notes__[0]
    assert "good" in read_results(results_file)


@pytest.mark.slow  # two processes
def test_killed_worker_raises_with_its_jobs(study):
    with pytest.raises(RuntimeError, match="one|two"):
        study(killed, {"one": {"x": 1}, "two": {"x": 2}}, workers=2)


def test_by_seed_selects_runs_by_settings():
    runs = {
        f"{way}, {rate}-{seed}": {
            "job": {"way": way, "rate": rate, "seed": seed},
            "metrics": {"R@1": len(way) + seed} if seed < 2 else {"diverged": True},
        }
        for way in ("a", "bb")
        for rate in ([1, 2], [3])
        for seed in (1, 0, 2)
    }
    assert by_seed(runs, "R@1", way="bb", rate=[3]) == {1: 3, 0: 2}
    assert by_seed(runs, "R@1", way="bb", rate=[4]) == {}
    with pytest.raises(ValueError, match=r"^settings\b.*\bseed 1\b"):
        by_seed(runs, "R@1", way="bb")


# Records.


def write_every_other(path, first):
    for number in range(first, first + 20, 2):
        save_result(path, f"{number:02d}", {"metrics": {"number": number}})


def test_concurrent_writers_lose_no_result(tmp_path):
    """Readers find complete lines. A lock belongs to an open file, so threads act like processes."""
    path = tmp_path / "s.jsonl"
    (tmp_path / "s.jsonl.tmp").write_text('{"job": {"x"')  # left by a killed process
    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write_every_other, path, k) for k in range(2)]
        while not all(writer.done() for writer in writers):
            assert all(result["metrics"] for result in read_results(path).values())
    assert [writer.result() for writer in writers] == [None, None]
    assert list(read_results(path)) == [f"{number:02d}" for number in range(20)]
    assert {file.name for file in tmp_path.iterdir()} <= {"s.jsonl", ".s.jsonl.lock"}


ENDLESS = """
import os, time
from pathlib import Path
from jdml.studies.runner import run_jobs

def job(settings):
    Path(f"{os.getpid()}.pid").touch()
    time.sleep(600)

if __name__ == "__main__":
    run_jobs(job, {"a": {}, "b": {}}, "s.jsonl", workers=2, progress=False)
"""


def is_running(process):
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow  # three processes
def test_workers_end_with_a_killed_study(tmp_path):
    """Otherwise a restarted study would write into folders that they still use."""
    (tmp_path / "run.py").write_text(ENDLESS)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen([sys.executable, "run.py"], cwd=tmp_path, env=environment) as study:
        while len(workers := list(tmp_path.glob("*.pid"))) < 2:
            assert study.poll() is None
            time.sleep(0.05)
        study.kill()
    end = time.monotonic() + 300
    while any(is_running(int(worker.stem)) for worker in workers):
        assert time.monotonic() < end
        time.sleep(0.05)
