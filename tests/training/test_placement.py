"""Processes, preemption and compiled programs, as one process sees them."""

import importlib.util
import os
import signal

import jax
import numpy as np
import pytest

from jdml.training import Preempted, compiled_programs, fit, initialize
from jdml.training.placement import HERE, Placement, agreed, class_shards, either

# Processes and preemption, as one process sees them.


def train(toy, out_dir, term_at=None, number=signal.SIGTERM, sampler=None, **settings):
    class Batches(toy.batches):
        def __next__(self):
            if self.i + 1 == term_at:
                os.kill(os.getpid(), number)
            return super().__next__()

    return fit(
        toy.model,
        toy.objective,
        toy.optimizer,
        toy.data,
        sampler or Batches(),
        **{"steps": 20, "log_every": 6, "checkpoint_every": 9, "progress": False, **settings},
        out_dir=out_dir,
    )


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_run_that_is_asked_to_end_saves_and_goes_on(toy, identical, tmp_path, asynchronous):
    before = signal.getsignal(signal.SIGTERM)
    unbroken = train(toy, tmp_path / "a")
    settings = {"async_saves": asynchronous}
    with pytest.raises(Preempted, match="saved at step 14, the same call goes on") as ended:
        train(toy, tmp_path / "b", term_at=14, **settings)
    assert ended.value.code == 143
    assert (tmp_path / "b" / "checkpoints" / "14").is_dir()
    assert signal.getsignal(signal.SIGTERM) is before
    resumed = train(toy, tmp_path / "b", **settings)
    assert identical(resumed.state, unbroken.state)
    assert resumed.history == unbroken.history  # also the mean over the steps around the end


@pytest.mark.slow
def test_a_run_that_is_interrupted_saves_and_goes_on(toy, identical, tmp_path):
    unbroken = train(toy, tmp_path / "a")
    with pytest.raises(KeyboardInterrupt, match="saved at step 14, the same call goes on") as ended:
        train(toy, tmp_path / "b", term_at=14, number=signal.SIGINT)
    assert ended.value.step == 14
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    resumed = train(toy, tmp_path / "b")
    assert identical(resumed.state, unbroken.state)
    assert resumed.history == unbroken.history


@pytest.mark.slow
def test_a_second_interruption_ends_at_once(toy, tmp_path):
    class Impatient(toy.batches):
        def __next__(self):
            if self.i == 13:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
            return super().__next__()

    with pytest.raises(KeyboardInterrupt) as ended:
        train(toy, tmp_path, sampler=Impatient())
    assert not hasattr(ended.value, "step")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"coordinator": "a:1"}, "belong together, processes and process is missing"),
        ({"coordinator": "a", "processes": 2, "process": 0}, "HOST:PORT, got 'a'"),
        ({"coordinator": "a:1", "processes": 2, "process": 2}, "from 0 to 1, got 2"),
        ({"coordinator": "a:1", "processes": 0, "process": 0}, "at least 1, got 0"),
    ],
)
def test_initialize_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        initialize(**arguments)


def test_launchers_are_known(monkeypatch):
    calls = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda *a, **k: calls.append(a))
    initialize()
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    initialize()
    initialize("localhost:1", 1, 0)
    assert not calls  # one process
    for name, value in (
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("TPU_WORKER_HOSTNAMES", "a,b"),
    ):
        with monkeypatch.context() as told:
            told.setenv(name, value)
            initialize()
    initialize("localhost:1", 2, 1)
    assert calls == [(None, None, None)] * 3 + [("localhost:1", 2, 1)]


def test_one_process_agrees_with_itself():
    assert agreed({"a": 0.1}) == {"a": 0.1}
    assert either(np.array([True, False])).tolist() == [True, False]


def test_a_placement_that_is_here_changes_nothing(toy):
    rows = np.arange(3)
    assert Placement.on(None, None) is HERE
    assert HERE.place(rows) is rows
    assert HERE.spread(rows, 3) is rows
    assert HERE.own(3).tolist() == [0, 1, 2]
    mesh = jax.make_mesh((2,), ("data",))
    assert class_shards(mesh, toy.objective) == {"proxies": jax.P("data")}
    assert class_shards(None, toy.objective) == {}


# The compilation cache: limited where that can be, and never left so that later writes break.

NAMES = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_compilation_cache_max_size",
)


@pytest.fixture
def settings_of_before(monkeypatch, tmp_path):
    before = {name: jax.config.values[name] for name in NAMES}
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv(compiled_programs.SWITCH, str(tmp_path))
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def has_filelock(monkeypatch, there):
    find = importlib.util.find_spec
    specs = {"filelock": object() if there else None}
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *a: specs[name] if name in specs else find(name, *a),
    )


def test_several_processes_need_a_mesh(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="mesh must hold the devices of all 2 processes, got None"):
        Placement.on(None, {})


def test_a_partition_is_one_and_fits_or_is_none():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    with pytest.raises(TypeError, match=r"shard\['proxies'\] must be a PartitionSpec, got 'data'"):
        Placement.on(mesh, {"proxies": "data"})
    placed = Placement.on(mesh, {"proxies": jax.P("data")})
    assert placed._fits((4, 3), jax.P("data"))
    assert not placed._fits((3, 4), jax.P("data"))


@pytest.mark.parametrize(
    ("system", "folder"),
    [
        ("darwin", "home/Library/Caches"),
        ("win32", "local"),
        ("linux", "xdg"),
        ("plain", "home/.cache"),
    ],
)
def test_where_a_user_s_programs_lie(monkeypatch, tmp_path, system, folder):
    monkeypatch.setattr(compiled_programs.Path, "home", lambda: tmp_path / "home")
    monkeypatch.setattr(compiled_programs.sys, "platform", system)
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg") if system == "linux" else "")
    assert compiled_programs.user_cache() == tmp_path / folder


@pytest.mark.usefixtures("settings_of_before")
def test_without_filelock_nothing_is_written_where_there_is_a_limit(monkeypatch, tmp_path):
    has_filelock(monkeypatch, False)
    assert compiled_programs.keep_compiled_programs() == tmp_path / "unlimited"
    assert jax.config.values["jax_compilation_cache_max_size"] == -1
    has_filelock(monkeypatch, True)
    jax.config.update("jax_compilation_cache_dir", None)
    assert compiled_programs.keep_compiled_programs() == tmp_path
    assert jax.config.values["jax_compilation_cache_max_size"] == 1 << 30


@pytest.mark.usefixtures("settings_of_before")
def test_entries_that_a_killed_process_was_writing_are_removed(monkeypatch, tmp_path):
    has_filelock(monkeypatch, True)
    for name in ("jit_part-1-cache", "jit_whole-2-cache", "jit_whole-2-atime"):
        (tmp_path / name).write_bytes(b"12345678")
    compiled_programs.keep_compiled_programs()
    assert {path.name for path in tmp_path.glob("jit*")} == {
        "jit_whole-2-cache",
        "jit_whole-2-atime",
    }
