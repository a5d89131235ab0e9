"""Full disks leave no incomplete file, and compiled programs are in the user's cache folder."""

import errno
import os
import shutil

import jax
import pytest

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
        assert "no space left" in done.err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow  # two runs; tests/training fills a disk within a checkpoint
def test_disk_that_fills_during_training_keeps_the_last_checkpoint(
    tmp_path, monkeypatch, jdml_command
):
    words = "train --model eps --dim 2 --batch-size 16 --checkpoint-every 2 --quiet --out".split()
    free, saves = shutil.disk_usage, []

    def filling(path):
        saves.append(path)
        return free(path) if len(saves) < 2 else free(path)._replace(free=1 << 20)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", filling)
        done = jdml_command(*words, tmp_path / "run", "--steps", "6")
    assert (done.code, done.err.count("\n")) == (2, 1), done.err
    assert "checkpoints: no space left" in done.err
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["2"]
    assert jdml_command(*words, tmp_path / "run", "--steps", "6").code == 0


def test_compiled_programs_are_cached_unless_switched_off(tmp_path, monkeypatch):
    monkeypatch.setenv("JDML_CACHE", "off")
    assert compilation_cache.keep_compiled_programs() is None
    names = (
        "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs",
        "jax_compilation_cache_max_size",
    )  # fmt: skip
    before = {name: jax.config.values[name] for name in names}
    monkeypatch.setenv("JDML_CACHE", str(tmp_path / "cache"))
    jax.config.update("jax_compilation_cache_dir", "a folder of the user's choice")
    try:
        assert compilation_cache.keep_compiled_programs() is None
        jax.config.update("jax_compilation_cache_dir", None)
        assert compilation_cache.keep_compiled_programs() == tmp_path / "cache"
        assert jax.config.values["jax_compilation_cache_dir"] == str(tmp_path / "cache")
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
    monkeypatch.delenv("JDML_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compilation_cache.user_cache() == tmp_path or os.name != "posix"
