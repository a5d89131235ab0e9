"""Full disks leave no incomplete file, and compiled programs are in the user's cache folder."""

import errno
import os

import jax

import jdml
from jdml import compilation_cache


def test_full_disk_leaves_no_incomplete_file(run, photos, tmp_path, monkeypatch, jdml_command):
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
    assert not list(tmp_path.iterdir())


def test_compiled_programs_are_cached_unless_switched_off(tmp_path, monkeypatch):
    monkeypatch.setenv("JDML_CACHE", "off")
    assert compilation_cache.keep_compiled_programs() is None
    names = (
        "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs",
        "jax_compilation_cache_max_size",
    )  # fmt: skip
    before = {name: jax.config.values[name] for name in names}
    (tmp_path / "cache").mkdir()
    for name in ("jit_part-1-cache", "jit_whole-2-cache", "jit_whole-2-atime"):
        (tmp_path / "cache" / name).write_bytes(b"12345678")
    monkeypatch.setenv("JDML_CACHE", str(tmp_path / "cache"))
    jax.config.update("jax_compilation_cache_dir", "a folder of the user's choice")
    try:
        assert compilation_cache.keep_compiled_programs() is None
        jax.config.update("jax_compilation_cache_dir", None)
        assert compilation_cache.keep_compiled_programs() == tmp_path / "cache"
        assert jax.config.values["jax_compilation_cache_max_size"] == 1 << 30
        left = {path.name for path in (tmp_path / "cache").glob("jit*")}
        assert left == {"jit_whole-2-cache", "jit_whole-2-atime"}  # the other is incomplete
        assert jdml.keep_compiled_programs(tmp_path / "own") == tmp_path / "own"
        assert jax.config.values["jax_compilation_cache_dir"] == str(tmp_path / "own")
        assert compilation_cache.keep_compiled_programs() is None  # one is set
        assert jdml.keep_compiled_programs(tmp_path / "cache") == tmp_path / "cache"
        assert jax.config.values["jax_compilation_cache_dir"] == str(tmp_path / "cache")
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
