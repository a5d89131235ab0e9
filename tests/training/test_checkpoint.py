"""A run's folder: checkpoints, locks, the log, and files of embeddings."""

import fcntl
import gc
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jdml.runs.checkpoint import RunFolder
from jdml.runs.embedding_io import EmbeddingTable, read_embeddings, write_embeddings
from jdml.runs.run_files import truncate_log


def state():
    """Return a state with typed keys, NamedTuples, empty containers and 16-bit numbers."""
    params = {"model": {"w": jnp.arange(6.0).reshape(2, 3)}, "proxies": jnp.ones((2, 1, 3))}
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


def lock_is_free(path):
    """Return whether the lock is free. It belongs to an open file, so this file acts like another process's."""
    folder = os.open(path / ".lock", os.O_RDWR)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(folder)
    return True


def test_metrics_of_a_shorter_run_are_removed(tmp_path):
    config = {"lr": 0.1, "fit": {"steps": 2}}
    folder = RunFolder(tmp_path, config)
    folder.save(2, state(), {})
    folder.save_metrics({"step": 2, "R@1": 0.5})
    folder.close()
    RunFolder(tmp_path, config).close()
    assert (tmp_path / "metrics.json").exists()
    more = {**config, "fit": {"steps": 4}}
    with pytest.raises(ValueError, match="allow_more_steps"):
        RunFolder(tmp_path, more)
    grown = RunFolder(tmp_path, more, growing=True)
    assert (tmp_path / "metrics.json").exists()
    grown.restore(state())
    grown.close()
    assert not (tmp_path / "metrics.json").exists()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("file", "text"), [("metrics.json", "{}"), ("config.json", "{")])
def test_folder_that_is_not_a_run_is_refused(tmp_path, file, text):
    (tmp_path / file).write_text(text)
    with pytest.raises(ValueError, match=file):
        RunFolder(tmp_path, {})


def truncate_files(path):
    for file in (path / "checkpoints" / "3" / "state").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[:10])


OTHER = {"params": {"model": {"w": jnp.zeros((4, 3))}, "proxies": jnp.ones((2, 1, 3))}}


@pytest.mark.parametrize(
    ("prepare", "changes", "names"),
    [
        (truncate_files, {}, r"^checkpoint .*/3\b"),
        (lambda path: (path / "checkpoints" / "7").mkdir(), {}, r"^checkpoint .*/7\b"),
        (None, OTHER, r"/w\b.*float32\[2, 3\].*float32\[4, 3\]"),
        (None, {"more": jnp.ones(2)}, r"^checkpoint .*/3\b.*\bmore\b"),
        (None, {"key": jax.random.key(5, impl="rbg")}, r"\bkey\b.*uint32"),
    ],
)
def test_damaged_or_foreign_checkpoint_is_refused(tmp_path, prepare, changes, names):
    """Orbax leaves other reads unfinished when one fails; they are collected here."""
    saved = RunFolder(tmp_path, {})
    saved.save(3, state(), {})
    saved.close()
    if prepare:
        prepare(tmp_path)
    folder = RunFolder(tmp_path, {})
    with pytest.raises(ValueError, match=names):
        folder.restore({**state(), **changes})
    folder.close()
    gc.collect()


def test_folder_is_locked_for_one_run(tmp_path):
    """Also within a process; a refused open releases the lock."""
    folder = RunFolder(tmp_path, {"a": 1})
    with pytest.raises(ValueError, match=r"^folder\b"):
        RunFolder(tmp_path, {"a": 1})
    assert not lock_is_free(tmp_path)
    folder.save(1, state(), {})
    folder.close()
    with pytest.raises(ValueError, match=r"^folder\b.*\ba: 1\b.*\b2\b") as refused:
        RunFolder(tmp_path, {"a": 2})
    assert refused.value is not None  # keeps the error's traceback alive
    assert lock_is_free(tmp_path)
    RunFolder(tmp_path, {"a": 1}).close()


@pytest.mark.filterwarnings("ignore:.*fork")
def test_fork_does_not_keep_the_lock(tmp_path):
    """A fork may outlive the process that wrote into the folder."""
    folder, (end, own_end) = RunFolder(tmp_path, {}), os.pipe()
    fork = os.fork()
    if fork == 0:
        os.close(own_end)
        os.read(end, 1)
        os._exit(0)
    folder.close()
    free = lock_is_free(tmp_path)
    os.close(own_end)
    os.waitpid(fork, 0)
    assert free


# The log.


def test_lines_after_a_step_are_removed(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1}\n{"step": 4}\n[]\n{"step": 3}\n{"st')
    truncate_log(path, 3)
    assert path.read_text() == '{"step": 1}\n{"step": 3}\n'
    path.write_text('{"step": 1}\n{"step": 3}')  # the next record must start a line
    truncate_log(path, 3)
    assert path.read_text() == '{"step": 1}\n{"step": 3}\n'


# Embeddings in files.

X = np.eye(3, 2, dtype=np.float32)


@pytest.mark.parametrize("name", ["e.npz", "e.npy", "e.parquet"])
def test_embeddings_without_labels_or_files_round_trip(tmp_path, name):
    """tests/use/test_serving.py searches and scores those with both."""
    if name == "e.parquet":
        pytest.importorskip("pyarrow")
    write_embeddings(tmp_path / name, EmbeddingTable(X, model="a model"))
    vectors, *others = read_embeddings(tmp_path / name)
    np.testing.assert_array_equal(vectors, X)
    assert others == [None, None, "a model"]


def test_embeddings_of_other_programs_are_read(tmp_path):
    """Texts as bytes; in Parquet float64 in lists of any size, and labels by level."""
    names = {"labels": np.array([b"a", b"b", "é".encode()]), "files": np.array([b"x"] * 3)}
    np.savez(tmp_path / "e.npz", embeddings=X, **names)
    read = read_embeddings(tmp_path / "e.npz")
    assert (read.labels.tolist(), read.files.tolist()) == (["a", "b", "é"], ["x"] * 3)
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    levels = [["a", "b"], ["a", "c"], ["d", "e"]]
    columns = {"id": [1, 2, 3], "embedding": X.astype(float).tolist(), "label": levels}
    parquet.write_table(arrow.table(columns), tmp_path / "e.parquet")
    read = read_embeddings(tmp_path / "e.parquet")
    assert (read.vectors.tolist(), read.labels.tolist()) == (X.tolist(), levels)
    assert (read.vectors.dtype, read.files, read.model) == (np.float32, None, "")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("labels", np.array([0.0, np.nan, 1.0])),
        ("files", np.arange(3)),
        ("embeddings", np.array([[1.0], [1e300]])),
    ],
)
def test_wrong_columns_are_refused(tmp_path, name, values):
    np.savez(tmp_path / "e.npz", **{"embeddings": X, name: values})
    with pytest.raises(ValueError, match=rf"^{name} of .*e\.npz\b"):
        read_embeddings(tmp_path / "e.npz")
