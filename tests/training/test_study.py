"""Studies: nothing is run twice, nothing is lost, nothing is mixed up."""

import json
import multiprocessing
import os
import subprocess
import sys
import time
import types
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jdml.training import study
from jdml.training.records import keep_result, read_results, write_results
from jdml.training.study import by_seed, run_study

pytestmark = pytest.mark.slow


def square(job: dict) -> dict:
    """A module-level job, as worker processes need it."""
    if job.get("fails"):
        raise RuntimeError("this job fails")
    return {"square": job["x"] ** 2}


def given(job: dict) -> dict:
    """What a worker may take of the cores and of a GPU's memory; long enough for each worker to take one."""
    time.sleep(0.3)
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return {"cores": cores, "memory": os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION")}


def test_workers_share_the_cores_and_the_memory_of_a_gpu(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    jobs = {f"job-{x}": {"x": x} for x in range(4)}
    results = run_study(given, jobs, tmp_path / "s.jsonl", workers=2, progress=False)
    assert {result["metrics"]["memory"] for result in results.values()} == {"0.375"}
    if hasattr(os, "sched_getaffinity"):  # only Linux shares cores out
        mine = sorted(os.sched_getaffinity(0))
        shares = {tuple(result["metrics"]["cores"]) for result in results.values()}
        assert shares <= {tuple(mine[::2]), tuple(mine[1::2] or mine)}
        assert {core for share in shares for core in share} <= set(mine)


@pytest.mark.parametrize(
    ("cores", "workers", "shares"),
    [
        ([0, 1], 2, [[0], [1]]),
        ([1, 3, 5, 7], 2, [[1, 5], [3, 7]]),
        ([0, 1, 2], 2, [[0, 2], [1]]),
        ([4], 3, [[4], [4], [4]]),
        ([0, 1], 3, [[0], [1], [0]]),
    ],
)
def test_no_worker_is_without_a_core(
    cores: list[int], workers: int, shares: list[list[int]]
) -> None:
    assert study._shares(cores, workers) == shares


@pytest.mark.parametrize(("said", "workers"), [("0.2", 2), (None, 1)])
def test_what_is_said_of_a_gpu_s_memory_holds(tmp_path, monkeypatch, said, workers) -> None:
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    if said:
        monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", said)
    jobs = {f"job-{x}": {"x": x} for x in range(3)}
    results = run_study(given, jobs, tmp_path / "s.jsonl", workers=workers, progress=False)
    assert {result["metrics"]["memory"] for result in results.values()} == {said}


def test_only_missing_jobs_run(tmp_path: Path) -> None:
    ran: list[int] = []

    def counted(job: dict) -> dict:
        ran.append(job["x"])
        return square(job)

    jobs, kept = {f"job-{x}": {"x": x} for x in range(3)}, tmp_path / "s.jsonl"
    run_study(counted, {"job-1": jobs["job-1"]}, kept, progress=False)
    results = run_study(counted, jobs, kept, progress=False)
    assert ran == [1, 0, 2]
    assert [results[name]["metrics"]["square"] for name in jobs] == [0, 1, 4]
    assert read_results(kept)["job-2"]["job"] == {"x": 2}


def test_one_file_takes_all_results(tmp_path: Path) -> None:
    """Of any names, in a folder that is made; a run a line, sorted."""
    ran, kept = [], tmp_path / "study" / "results.jsonl"

    def counted(job: dict) -> dict:
        ran.append(job["x"])
        return square(job)

    jobs = {f"a, b/c {x}-0": {"x": x} for x in range(3)}
    run_study(counted, dict(list(jobs.items())[:2]), kept, progress=False)
    results = run_study(counted, jobs, kept, progress=False)
    assert ran == [0, 1, 2]
    assert read_results(kept) == results
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [line["name"] for line in lines] == sorted(jobs)
    assert all(list(line) == ["job", "machine", "metrics", "name", "seconds"] for line in lines)
    with pytest.raises(ValueError, match=r"a, b/c 0-0 in .*results\.jsonl was made with other"):
        run_study(counted, {"a, b/c 0-0": {"x": 7}}, kept, progress=False)


def test_results_before_a_failure_are_kept(tmp_path: Path) -> None:
    jobs = {"a": {"x": 1}, "b": {"x": 2, "fails": True}}
    with pytest.raises(RuntimeError, match="this job fails"):
        run_study(square, jobs, tmp_path / "s.jsonl", progress=False)
    assert list(read_results(tmp_path / "s.jsonl")) == ["a"]


def test_numbers_of_any_library_are_kept(tmp_path: Path) -> None:
    out = tmp_path / "study.jsonl"
    jobs = {"a": {"s": 0}}
    kept = run_study(lambda job: {"x": jnp.float32(2), "y": np.int64(3)}, jobs, out)
    assert read_results(out)["a"]["metrics"] == {"x": 2.0, "y": 3}
    assert kept["a"]["metrics"] == {"x": 2.0, "y": 3}
    with pytest.raises(TypeError, match=r"jobs\['b'\] must hold settings that JSON has"):
        run_study(lambda job: {}, {"b": {"folder": Path("x")}}, tmp_path / "other.jsonl")


def test_a_result_is_what_is_read_again_whatever_a_run_does_with_its_job(tmp_path: Path) -> None:
    out, jobs = tmp_path / "s.jsonl", {"a": {"seed": 3, "dims": (4, 8), "rate": float("nan")}}

    def careless(job: dict) -> dict:
        assert job["dims"] == (4, 8)
        return {"m": job.pop("seed"), "curve": (1, 2)}

    first = run_study(careless, jobs, out, progress=False)
    assert set(jobs["a"]) == {"seed", "dims", "rate"}
    assert first["a"]["job"]["dims"] == [4, 8]
    assert first["a"]["metrics"] == {"m": 3, "curve": [1, 2]}
    again = run_study(careless, jobs, out, progress=False)
    assert json.dumps(again, sort_keys=True) == json.dumps(first, sort_keys=True)
    for results in (first, again):
        assert by_seed(results, "m", dims=(4, 8)) == {3: 3}
    assert by_seed({"a": {"job": {"x": 1}, "metrics": {"m": 1}}}, "m", x=1) == {}


@pytest.mark.parametrize(
    ("run", "jobs", "workers", "message"),
    [
        (square, {"a": {"x": 1}}, "2", "workers must be a Python integer >= 1, got '2'"),
        (square, [{"x": 1}], 1, "jobs must be settings by name, got a list"),
        (square, {"a": 3}, 1, r"jobs\['a'\] must be settings by name, got a int"),
        (
            lambda job: None,
            {"a": {}},
            1,
            "job 'a': run must return metrics by name, got a NoneType",
        ),
    ],
)
def test_what_is_no_study_is_refused(run, jobs, workers, message, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=message):
        run_study(run, jobs, tmp_path / "s.jsonl", workers=workers, progress=False)


def test_other_settings_are_refused(tmp_path: Path) -> None:
    kept = tmp_path / "s.jsonl"
    run_study(square, {"a": {"x": 1}}, kept, progress=False)
    with pytest.raises(
        ValueError, match=r"a in .*s\.jsonl was made with other settings: x: 1 there, 2 now"
    ):
        run_study(square, {"a": {"x": 2}}, kept, progress=False)


@pytest.mark.parametrize("workers", [1, 2])
def test_no_job_begins_when_time_is_up_and_workers_give_the_same_results(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "s.jsonl"

    def clock() -> float:
        """A minute passes with every job that ends."""
        return 60.0 * len(read_results(kept))

    monkeypatch.setattr(
        study, "time", types.SimpleNamespace(monotonic=clock, perf_counter=time.perf_counter)
    )
    jobs = {f"job-{x}": {"x": x} for x in range(6)}
    assert run_study(square, jobs, kept, minutes=0, progress=False) == {}
    results = run_study(square, jobs, kept, workers=workers, minutes=2, progress=False)
    assert 2 <= len(results) <= 1 + workers  # the other worker may have begun a third
    assert list(results) == list(jobs)[: len(results)]
    assert set(read_results(kept)) == set(results)
    assert all(
        result["metrics"]["square"] == result["job"]["x"] ** 2 for result in results.values()
    )
    assert len(run_study(square, jobs, kept, progress=False)) == 6


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"workers": 0}, ValueError, "workers must be >= 1, got 0"),
        ({"minutes": -1}, ValueError, "minutes must be >= 0, got -1"),
        ({"out": "runs/s"}, ValueError, "out must be a .jsonl file, got runs/s"),
        ({"minutes": "10"}, TypeError, "minutes must be a number >= 0, got '10'"),
    ],
)
def test_wrong_settings_are_refused(
    settings: dict, error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        run_study(square, {}, **{"out": tmp_path / "s.jsonl", **settings})


def test_a_metric_by_seed_of_runs_that_their_settings_tell() -> None:
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
    assert by_seed(runs, "R@1", way="bb", other=None) == {}
    with pytest.raises(ValueError, match=r"got two of seed 1 with \{'way': 'bb'\}"):
        by_seed(runs, "R@1", way="bb")


def test_results_of_parts_add_up(tmp_path: Path) -> None:
    kept = tmp_path / "s.jsonl"
    for part in (("b", "c"), ("a", "b")):
        run_study(square, {name: {"x": ord(name)} for name in part}, kept, progress=False)
    values = {name: result["job"]["x"] for name, result in read_results(kept).items()}
    assert list(values.items()) == [("a", 97), ("b", 98), ("c", 99)]


def keep_some(path: Path, first: int) -> None:
    for number in range(first, first + 40, 2):
        keep_result(path, f"{number:02d}", {"metrics": {"number": number}})


def test_studies_that_keep_in_one_file_at_a_time_lose_nothing(tmp_path: Path) -> None:
    """And who reads meanwhile finds whole lines."""
    path = tmp_path / "s.jsonl"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=keep_some, args=(path, k)) for k in range(2)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        assert all(result["metrics"] for result in read_results(path).values())
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert list(read_results(path)) == [f"{number:02d}" for number in range(40)]
    assert [file.name for file in tmp_path.iterdir()] == ["s.jsonl"]


def test_a_study_that_is_killed_while_it_writes_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    keep_result(path, "a", {"metrics": {"x": 1}})
    (tmp_path / "s.jsonl.tmp").write_text('{"job": {"x"')  # as far as it came
    keep_result(path, "b", {"metrics": {"x": 2}})
    assert list(read_results(path)) == ["a", "b"]


def test_records_are_what_they_were(tmp_path: Path) -> None:
    runs = {
        "ω = 0.1, line\u2028two-0": {"metrics": {"R@1": 0.1 + 0.2, "none": None, "steps": 3}},
        "a-10": {"metrics": {"curve": [[1, 1e-7], [2, -0.0]], "nan": float("inf")}},
        "a-1": {},
    }
    write_results(tmp_path / "s.jsonl", runs)
    assert json.dumps(read_results(tmp_path / "s.jsonl")) == json.dumps(dict(sorted(runs.items())))


@pytest.mark.parametrize("line", ["mine", '{"metrics": {}}', "[1]", ""])
def test_a_broken_record_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_text(f'{{"name": "a"}}\n{line}\n')
    with pytest.raises(ValueError, match=r"s\.jsonl, line 2 is not a run's record"):
        read_results(tmp_path / "s.jsonl")


def killed(job: dict) -> dict:
    os.kill(os.getpid(), 9)
    return {}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_that_raises_is_named_and_others_are_kept(tmp_path: Path, workers: int) -> None:
    jobs = {"good": {"x": 1}, "bad": {"x": 2, "fails": True}, "later": {"x": 3}}
    with pytest.raises(RuntimeError, match="job 'bad': this job fails"):
        run_study(square, jobs, tmp_path / "s.jsonl", workers=workers, progress=False)
    assert "good" in read_results(tmp_path / "s.jsonl")


@pytest.mark.parametrize(("count", "cores"), [(None, {0}), (3, {0, 1, 2})])
def test_cores_where_a_system_does_not_say_which(monkeypatch, count, cores) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert study._cores() == cores


def test_seconds_are_told_to_a_tenth(monkeypatch) -> None:
    clock = iter([1.0, 2.26])
    monkeypatch.setattr(study.time, "perf_counter", lambda: next(clock))
    assert study._timed(dict, {})["seconds"] == 1.3


def test_results_lie_on_this_machine() -> None:
    with pytest.raises(ValueError, match="out must be a path of this machine"):
        run_study(dict, {}, "gs://bucket/results.jsonl")


def test_an_error_that_is_made_otherwise_is_named_by_a_note() -> None:
    class Odd(Exception):
        def __init__(self, one: int, other: int) -> None:
            super().__init__(one, other)

    named = study._named("a", Odd(1, 2))
    assert (named.args, named.__notes__) == ((1, 2), ["in job 'a'"])


def test_a_worker_that_is_killed_is_told_with_its_jobs(tmp_path: Path) -> None:
    jobs = {"one": {"x": 1}, "two": {"x": 2}}
    with pytest.raises(RuntimeError, match="a worker was ended, .* one of the jobs .*(one|two)"):
        run_study(killed, jobs, tmp_path / "s.jsonl", workers=2, progress=False)


ENDLESS = """
import os, sys, time
from pathlib import Path
from jdml.training.study import run_study

def job(settings):
    Path(settings["told"]).write_text(str(os.getpid()))
    time.sleep(600)

if __name__ == "__main__":
    run_study(job, {n: {"told": sys.argv[1] + n} for n in "ab"}, sys.argv[1] + ".jsonl", workers=2, progress=False)
"""


def test_workers_end_with_a_study_that_is_killed(tmp_path: Path) -> None:
    """Else a study that is begun again would train in folders in which they still train."""
    (tmp_path / "run.py").write_text(ENDLESS)
    told = [tmp_path / f"s{name}" for name in "ab"]
    words = [sys.executable, str(tmp_path / "run.py"), str(tmp_path / "s")]
    with subprocess.Popen(words, env={**os.environ, "JAX_PLATFORMS": "cpu"}) as study_of_two:
        while not all(file.exists() and file.read_text() for file in told):
            time.sleep(0.05)
        study_of_two.kill()
    workers = [int(file.read_text()) for file in told]
    until = time.monotonic() + 20
    while any(Path(f"/proc/{worker}/cmdline").exists() for worker in workers):
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize("kind", ["lambda", "notebook"])
def test_functions_that_workers_cannot_import(tmp_path, monkeypatch, kind) -> None:
    run = lambda job: {}  # noqa: E731
    if kind == "notebook":
        run = square
        monkeypatch.setattr(square, "__module__", "__main__")
        monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    with pytest.raises(TypeError, match="run must be a function of a module.*take workers=1"):
        run_study(run, {"a": {"x": 1}}, tmp_path / "s.jsonl", workers=2, progress=False)
    assert run_study(run, {"a": {"x": 1}}, tmp_path / "s.jsonl", progress=False)
