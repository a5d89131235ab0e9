"""The run folder and the log file by themselves."""

import errno
import gc
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jdml
from jdml.recipes import Recipe
from jdml.training.checkpoint import RunFolder
from jdml.training.compared import differences, told_apart
from jdml.training.description import _of_normalize
from jdml.training.embedded import Embedded, read_embeddings, write_embeddings
from jdml.training.lock import _HELD, lock
from jdml.training.log import Log, cut
from jdml.training.run_files import read_model, write_json


def state(scale=1.0):
    """Everything that a run may hold: typed keys, NamedTuples, empty containers, 16-bit numbers."""
    params = {"model": {"w": scale * jnp.arange(6.0).reshape(2, 3)}, "proxies": jnp.ones((2, 1, 3))}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    return {
        "params": params,
        "opt_state": optimizer.init(params),
        "batch_stats": {},
        "objective_state": (),
        "half": jnp.ones(2, jnp.bfloat16),
        "mask": jnp.array([True, False]),
        "step": jnp.asarray(3, jnp.int32),
        "key": jax.random.key(5),
    }


def test_round_trip(tmp_path, identical):
    folder = RunFolder(tmp_path, {"lr": 0.1})
    assert folder.restore(state()) is None
    folder.save(3, state(2.0), {"history": [{"step": 3, "loss": float("inf")}]})
    folder.close()
    again = RunFolder(tmp_path, {"lr": 0.1})
    tree, progress = again.restore(state())
    assert identical(tree, state(2.0))
    assert progress == {"history": [{"step": 3, "loss": float("inf")}]}
    again.close()


def test_scores_of_a_shorter_run_are_not_those_of_a_longer_one(tmp_path):
    config = {"lr": 0.1, "fit": {"steps": 2}}
    folder = RunFolder(tmp_path, config)
    folder.save(2, state(), {})
    folder.save_metrics({"step": 2, "R@1": 0.5})
    folder.close()
    RunFolder(tmp_path, config).close()
    assert (tmp_path / "metrics.json").exists()
    RunFolder(tmp_path, {**config, "fit": {"steps": 4}}, growing=True).close()
    assert not (tmp_path / "metrics.json").exists()
    assert json.loads((tmp_path / "metrics_before.json").read_text()) == {"step": 2, "R@1": 0.5}


def test_a_folder_with_scores_of_something_else_is_refused(tmp_path):
    write_json(tmp_path / "metrics.json", {"EPS": {"R@1": [0.5]}})
    for write in (lambda: None, lambda: write_json(tmp_path / "config.json", {"seeds": 3})):
        write()
        with pytest.raises(
            ValueError, match="has metrics.json, but neither a log nor a checkpoint"
        ):
            RunFolder(tmp_path, {"lr": 0.1})


def test_garbage_checkpoint(tmp_path):
    RunFolder(tmp_path, {}).close()
    (tmp_path / "checkpoints" / "7").mkdir()
    with pytest.raises(ValueError, match=r"checkpoint .*/7 is damaged"):
        RunFolder(tmp_path, {}).restore(state())


def test_one_process_at_a_time(tmp_path):
    """The same one may take the folder twice; another waits, or goes elsewhere."""
    program = "from jdml.training.checkpoint import RunFolder; RunFolder({!r}, {{}}).close()"
    command = [sys.executable, "-c", program.format(str(tmp_path))]
    folder, again = RunFolder(tmp_path, {}), RunFolder(tmp_path, {})
    again.close()
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 1
    assert "is written by another process at this moment" in told.stderr
    folder.close()
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_a_fork_keeps_no_folder(tmp_path):
    """It lives on when the process that wrote into the folder is killed."""
    program = f"""
import os, time
from pathlib import Path
from jdml.training.lock import lock
held = lock(Path({str(tmp_path)!r}))
there, here = os.pipe()
if os.fork() == 0:
    os.write(here, b"lives")
    time.sleep(5)
os.read(there, 5)
os._exit(0)
"""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([sys.executable, "-Wignore", "-c", program], check=True, **quiet)
    lock(tmp_path)


def test_a_folder_that_is_refused_is_free(tmp_path):
    folder = RunFolder(tmp_path, {"a": 1})
    folder.save(1, state(), {})
    folder.close()
    with pytest.raises(ValueError, match="another configuration") as kept:
        RunFolder(tmp_path, {"a": 2})
    assert kept.value is not None  # and so what it holds
    assert not _HELD


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "run").touch()
    with pytest.raises(ValueError, match="out_dir must be a folder, .*run is a file"):
        RunFolder(tmp_path / "run", {})


def test_a_model_s_file_that_is_none(tmp_path):
    file = tmp_path / "model.safetensors"
    with pytest.raises(FileNotFoundError):
        read_model(file)
    file.write_bytes(b"no header")
    with pytest.raises(ValueError, match="model.safetensors is not a readable .safetensors file"):
        read_model(file)


def test_normalizations_are_written_by_name():
    assert _of_normalize(None) is None
    assert _of_normalize(jdml.sphere) == "sphere"
    assert _of_normalize(optax.global_norm).endswith("norm")


def test_damaged_checkpoint(tmp_path):
    """Orbax leaves its other reads unfinished when one fails: they are collected here."""
    folder = RunFolder(tmp_path, {})
    folder.save(3, state(), {})
    for path in (tmp_path / "checkpoints" / "3" / "state").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:10])
    with pytest.raises(ValueError, match=r"checkpoint .*/3 is damaged"):
        folder.restore(state())
    gc.collect()


def test_checkpoint_of_another_model(tmp_path):
    folder = RunFolder(tmp_path, {})
    folder.save(3, state(), {})
    other = state() | {
        "params": {"model": {"w": jnp.zeros((4, 3))}, "proxies": jnp.ones((2, 1, 3))}
    }
    with pytest.raises(
        ValueError, match=r"of another model: .*'w'.*float32\[2, 3\].* there, .*float32\[4, 3\]"
    ):
        folder.restore(other)
    with pytest.raises(ValueError, match=r"'half'.*absent now"):
        folder.restore({k: v for k, v in state().items() if k != "half"})


def test_checkpoints_without_configuration(tmp_path):
    folder = RunFolder(tmp_path, {})
    folder.save(3, state(), {})
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match=r"has checkpoints but no config\.json"):
        RunFolder(tmp_path, {})


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "\xff"])
def test_broken_configuration(tmp_path, text):
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=r"config\.json is not valid JSON"):
        RunFolder(tmp_path, {})


def test_configuration_must_be_json(tmp_path):
    with pytest.raises(TypeError, match="config must be JSON-able"):
        RunFolder(tmp_path, {"f": np.sin})


def test_fields_that_a_recipe_did_not_have_are_at_their_defaults(tmp_path):
    now = Recipe().to_json()
    before = {name: value for name, value in now.items() if name not in ("freeze", "kept_views")}
    RunFolder(tmp_path, {"recipe": before}).save(3, state(), {})
    RunFolder(tmp_path, {"recipe": now})
    with pytest.raises(ValueError, match=r"configuration: recipe\.freeze: null there, .head. now$"):
        RunFolder(tmp_path, {"recipe": {**now, "freeze": "head"}})


def test_settings_that_a_network_did_not_have_are_at_their_defaults(tmp_path):
    settings = {"pooling": "gem", "remat": False}
    now = {"embedding": {"network": "vit_s16", "dim": 4, "settings": settings}}
    before = {"embedding": {**now["embedding"], "settings": {"pooling": "gem"}}}
    now["fingerprint"], before["fingerprint"] = (
        {"model": "new", "data": "d"},
        {"model": "old", "data": "d"},
    )
    RunFolder(tmp_path, before).save(3, state(), {})
    RunFolder(tmp_path, now)
    for change in ({"dim": 8}, {"settings": {**settings, "remat": True}}, {"network": "vit_b16"}):
        other = {**now, "embedding": {**now["embedding"], **change}}
        with pytest.raises(ValueError, match=r"configuration: .*; the model is another$"):
            RunFolder(tmp_path, other)
    with pytest.raises(ValueError, match="configuration: the data is another$"):
        RunFolder(tmp_path, {**now, "fingerprint": {"model": "new", "data": "other"}})


def test_differences():
    assert differences({"a": [1, 2]}, {"a": [1, 2]}) == []
    assert differences({"a": 1, "b": {"c": 2}}, {"b": {"c": 3}, "d": None}) == [
        "a: 1 there, absent now",
        "b.c: 2 there, 3 now",
        "d: absent there, null now",
    ]


def test_write_json_is_whole_or_nothing(tmp_path):
    write_json(tmp_path / "m.json", {"a": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "m.json", {"a": np.sin})
    assert json.loads((tmp_path / "m.json").read_text()) == {"a": 1}


def test_cut(tmp_path):
    path = tmp_path / "log.jsonl"
    cut(path, 3)
    assert not path.exists()
    path.write_text('{"step": 1}\n{"step": 4}\n[]\n{"step": 3}\n{"st')
    cut(path, 3)
    assert path.read_text() == '{"step": 1}\n{"step": 3}\n'
    path.write_text('{"step": 1}\n{"step": 3}')  # what comes next begins a line
    cut(path, 3)
    assert path.read_text() == '{"step": 1}\n{"step": 3}\n'


@pytest.mark.parametrize(
    "error",
    [
        ValueError("RESOURCE_EXHAUSTED: Error writing local file [os_error_code='28']"),
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    ],
)
def test_a_disk_that_fills_up_within_a_checkpoint_is_told_as_such(tmp_path, monkeypatch, error):
    def full(*_, **__):
        raise error

    folder = RunFolder(tmp_path, {})
    monkeypatch.setattr(folder._manager, "save", full)
    with pytest.raises(OSError, match=r"No space left on device: .*checkpoints") as told:
        folder.save(1, {"state": jnp.ones(2)}, {})
    assert told.value.errno == errno.ENOSPC
    folder.close()


def test_a_log_whose_disk_is_full_is_closed(tmp_path):
    log = Log(tmp_path)
    log._file.close()
    log._file = open("/dev/full", "w")
    with pytest.raises(OSError, match="No space left"):
        log.write({"step": 1})
    log.close()


def test_tensorboard_goes_on_after_the_step(tmp_path, monkeypatch):
    made, writer = [], SimpleNamespace(close=lambda: None)

    def summaries(folder, purge_step):
        made.append((folder, purge_step))
        return writer

    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=summaries))
    Log(tmp_path, after_step=4, tensorboard=True).close()
    assert made == [(str(tmp_path / "tensorboard"), 5)]


def test_log_has_no_nan(tmp_path):
    log = Log(tmp_path)
    log.write({"step": 1, "R@1": float("nan"), "loss": 0.5})
    log.close()
    line = json.loads((tmp_path / "log.jsonl").read_text(), parse_constant=pytest.fail)
    assert line["R@1"] is None
    assert line["loss"] == 0.5
    assert line["seconds"] >= 0


TWO_DEVICES = """
import sys, jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
from jdml.training.checkpoint import RunFolder
assert jax.device_count() == 2
at = NamedSharding(jax.make_mesh((2,), ("data",)), P("data"))
tree = {"proxies": jax.device_put(jnp.arange(8.0).reshape(4, 2), at), "half": jnp.ones(2, jnp.bfloat16)}
folder = RunFolder(sys.argv[1], {})
folder.save(3, {"state": tree, "best": ()}, {})
folder.close()
"""


ONE_DEVICE = """
import sys, jax, numpy as np
from pathlib import Path
from jdml.training.run_files import read_checkpoint
assert jax.device_count() == 1
found = read_checkpoint(Path(sys.argv[1]))
np.testing.assert_array_equal(found["state"]["proxies"], np.arange(8.0).reshape(4, 2))
assert found["state"]["half"].dtype == jax.numpy.bfloat16
assert found["step"] == 3
"""


@pytest.mark.slow
def test_what_two_devices_wrote_is_read_on_one(tmp_path):
    """By processes of their own: this one has two devices."""
    for devices, code in (("2", TWO_DEVICES), ("1", ONE_DEVICE)):
        environment = {**os.environ, "JAX_NUM_CPU_DEVICES": devices}
        command = [sys.executable, "-c", code, str(tmp_path)]
        subprocess.run(command, env=environment, check=True)


def test_a_key_of_another_kind_names_the_setting(tmp_path):
    folder = RunFolder(tmp_path, {})
    folder.save(3, {**state(), "key": jax.random.key(5, impl="rbg")}, {})
    with pytest.raises(
        ValueError, match="rbg there, threefry2x32 now: set .*jax_default_prng_impl"
    ):
        folder.restore(state())
    folder.close()


def test_what_is_another_is_told_in_a_line():
    single = {f"['{n}']": "float32[2]" for n in range(40)}
    double = {name: "float64[2]" for name in single}
    lines = differences(single, double)
    told = told_apart(double, single, lines)
    assert told.startswith('has double precision: set jax.config.update("jax_enable_x64", True)')
    assert 'jax_enable_x64", False' in told_apart(single, double, lines)
    other = {**single, "['more']": "float32[3]"}
    assert "of another model: ['more']: absent there" in told_apart(
        single, other, differences(single, other)
    )
    many = {name: "float32[3]" for name in single}
    told = told_apart(single, many, differences(single, many))
    assert told.endswith("; and 37 more")
    assert len(told) < 300


# Embeddings in files: what is written is read again, and refused in words where it is none.

X = np.eye(3, 2, dtype=np.float32)


def test_what_is_written_is_read_again(tmp_path):
    written = Embedded(X, np.array(["a", "b", "b"]), np.array(list("xyz")), "a model")
    write_embeddings(tmp_path / "e.npz", written)
    read = read_embeddings(tmp_path / "e.npz")
    assert [column.tolist() for column in read[:3]] == [c.tolist() for c in written[:3]]
    assert read.model == "a model"
    write_embeddings(tmp_path / "bare.npz", Embedded(X))
    assert read_embeddings(tmp_path / "bare.npz")[1:] == (None, None, "")
    write_embeddings(tmp_path / "e.npy", written)
    np.testing.assert_array_equal(np.load(tmp_path / "e.npy"), X)


def test_tables_need_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match="writing .*e.parquet needs pyarrow"):
        write_embeddings(tmp_path / "e.parquet", Embedded(X))


def test_columns_of_another_program_are_understood_or_refused(tmp_path):
    file = tmp_path / "e.npz"
    np.savez(
        file, embeddings=X, labels=np.array([b"a", b"b", "é".encode()]), files=np.array([b"x"] * 3)
    )
    read = read_embeddings(file)
    assert (read.labels.tolist(), read.files.tolist()) == (["a", "b", "é"], ["x"] * 3)
    for name, values, message in [
        ("labels", np.array([0.0, np.nan, 1.0]), "must be integers or strings, got float64"),
        ("labels", np.array(["2020-01-01"] * 3, "datetime64[D]"), "got datetime64"),
        ("labels", np.array([b"\xff"] * 3), "must be UTF-8"),
        ("files", np.arange(3), "must be strings, got int64"),
    ]:
        np.savez(file, embeddings=X, **{name: values})
        with pytest.raises(ValueError, match=f"{name} of .*{message}"):
            read_embeddings(file)
    np.savez(file, embeddings=np.array([[1.0], [1e300]]))
    with pytest.raises(ValueError, match="must be finite in float32, row 1 is not"):
        read_embeddings(file)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"path must end in .npz or .npy or .parquet, got .*e\.csv"
    ):
        write_embeddings(tmp_path / "e.csv", Embedded(X))
    np.savez(tmp_path / "e.npz", embeddings=X, files=np.array(["x"]))
    with pytest.raises(ValueError, match=r"files of .* must have shape \[N\] = \[3\], got \[1\]"):
        read_embeddings(tmp_path / "e.npz")
