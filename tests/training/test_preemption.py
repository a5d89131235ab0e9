"""Preemption and several processes, tested in one process."""

import signal

import chex
import jax
import numpy as np
import pytest

from jdml.distributed import Placement, class_shards
from jdml.training import Preempted, initialize


def train(toy, folder, send=(), **settings):
    """Train for twenty steps; the process gets the signals before the fourteenth batch."""

    class Batches(toy.batches):
        def __next__(self):
            if self.step == 13:
                for number in send:
                    signal.raise_signal(number)
            return super().__next__()

    saved = {"folder": folder, "steps": 20, "log_every": 6, "checkpoint_every": 9}
    return toy.fit(sampler=Batches(), **saved, **settings)


@pytest.fixture(scope="module")
def unbroken(toy, tmp_path_factory):
    return train(toy, tmp_path_factory.mktemp("unbroken"))


@pytest.mark.parametrize(
    ("number", "error", "asynchronous"),
    [(signal.SIGTERM, Preempted, True), (signal.SIGINT, KeyboardInterrupt, False)],
)
def test_signalled_run_saves_and_resumes(toy, unbroken, tmp_path, number, error, asynchronous):
    before = signal.getsignal(number)
    settings = {"async_checkpoints": asynchronous}
    with pytest.raises(error, match=r"\bstep 14\b") as ended:
        train(toy, tmp_path, send=(number,), **settings)
    assert getattr(ended.value, "step", 14) == 14
    assert getattr(ended.value, "code", 143) == 143
    assert (tmp_path / "checkpoints" / "14").is_dir()
    assert signal.getsignal(number) is before
    resumed = train(toy, tmp_path, **settings)
    chex.assert_trees_all_equal(resumed.state, unbroken.state)
    assert resumed.history == unbroken.history  # also the mean of steps around the interruption


def test_second_interruption_ends_immediately(toy, tmp_path):
    with pytest.raises(KeyboardInterrupt) as ended:
        train(toy, tmp_path, send=(signal.SIGINT, signal.SIGINT))
    assert not str(ended.value)  # nothing was saved
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# Several processes.


def test_wrong_meshes_and_partitions_are_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"^shard\b"):
        Placement.on(None, {"proxies": jax.P("data")})
    with pytest.raises(TypeError, match=r"^mesh\b"):
        Placement.on("data", None)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match=r"^mesh\b.*\b2\b"):
        Placement.on(None, {})


def test_launchers_are_detected(monkeypatch):
    calls = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda *a, **k: calls.append(a))
    initialize()
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    initialize()
    initialize("localhost:1", 1, 0)
    assert not calls  # a single process
    for name, value in (
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("TPU_WORKER_HOSTNAMES", "a,b"),
    ):
        with monkeypatch.context() as launched:
            launched.setenv(name, value)
            initialize()
    initialize("localhost:1", 2, 1)
    assert calls == [(None, None, None)] * 3 + [("localhost:1", 2, 1)]


def test_arrays_of_a_role_are_sharded_if_the_devices_divide_them(toy):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    assert class_shards(mesh, toy.objective) == {"proxies": jax.P("data")}
    placed = Placement.on(mesh, {"proxies": jax.P("data")})
    tree = placed.place({"proxies": {"even": np.ones((4, 3)), "odd": np.ones((3, 4))}})
    specs = {name: leaf.sharding.spec for name, leaf in tree["proxies"].items()}
    assert specs == {"even": jax.P("data"), "odd": jax.P()}
    placed.check(tree)
    for params in ({"proxies": np.ones((3, 4))}, {"model": np.ones(2)}):
        with pytest.raises(ValueError, match=r"^shard\b.*\bproxies\b"):
            placed.check(params)
