"""Full disks leave no incomplete file, and compiled programs are in the user's cache folder."""

import errno
import os

import jax
import pytest

import jdml


@pytest.mark.parametrize("before", [{}, {"e.npz": b"old", "m.safetensors": b"old"}])
def test_full_disk_leaves_the_files_that_were_there(
    before, run, photos, tmp_path, monkeypatch, jdml_command
):
    for name, content in before.items():
        (tmp_path / name).write_bytes(content)

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    for words in (
        ("embed", run.folder, photos, "--quiet", "--out", tmp_path / "e.npz"),
        ("export", run.folder, "--out", tmp_path / "m.safetensors"),
    ):
        done = jdml_command(*words)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "No space left" in done.err
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.fixture
def cache_settings():
    """Restore JAX's settings of its compilation cache."""
    names = ("jax_compilation_cache_", "jax_persistent_cache_min")
    before = {name: value for name, value in jax.config.values.items() if name.startswith(names)}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.usefixtures("cache_settings")
def test_compiled_programs_are_cached_unless_switched_off(tmp_path, monkeypatch):
    """Entries that a killed process did not complete are removed."""
    monkeypatch.setenv("JDML_CACHE", "off")
    assert jdml.keep_compiled_programs() is None
    monkeypatch.setenv("JDML_CACHE", str(tmp_path))
    jax.config.update("jax_compilation_cache_dir", "a folder of the user's choice")
    assert jdml.keep_compiled_programs() is None
    jax.config.update("jax_compilation_cache_dir", None)
    for name in ("jit_part-1-cache", "jit_whole-2-cache", "jit_whole-2-atime"):
        (tmp_path / name).write_bytes(b"12345678")
    assert jdml.keep_compiled_programs() == tmp_path
    left = {path.name for path in tmp_path.glob("jit*")}
    assert left == {"jit_whole-2-cache", "jit_whole-2-atime"}
    assert jax.config.values["jax_compilation_cache_max_size"] == 1 << 30
    assert jdml.keep_compiled_programs(tmp_path / "own") == tmp_path / "own"
    assert jax.config.values["jax_compilation_cache_dir"] == str(tmp_path / "own")
    assert jdml.keep_compiled_programs() is None  # one is set
