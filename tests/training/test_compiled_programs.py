"""The compilation cache: limited where that can be, and never left so that later writes break."""

import importlib.util

import jax
import pytest

from jdml.training import compiled_programs

NAMES = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_compilation_cache_max_size",
)


@pytest.fixture(autouse=True)
def _as_before(monkeypatch, tmp_path):
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


def test_without_filelock_nothing_is_written_where_there_is_a_limit(monkeypatch, tmp_path):
    has_filelock(monkeypatch, False)
    assert compiled_programs.keep_compiled_programs() == tmp_path / "unlimited"
    assert jax.config.values["jax_compilation_cache_max_size"] == -1
    has_filelock(monkeypatch, True)
    jax.config.update("jax_compilation_cache_dir", None)
    assert compiled_programs.keep_compiled_programs() == tmp_path
    assert jax.config.values["jax_compilation_cache_max_size"] == 1 << 30


def test_entries_of_before_are_mended(monkeypatch, tmp_path):
    has_filelock(monkeypatch, True)
    for name in ("jit_old-1-cache", "jit_new-2-cache", "jit_new-2-atime"):
        (tmp_path / name).write_bytes(b"12345678")
    compiled_programs.keep_compiled_programs()
    assert len((tmp_path / "jit_old-1-atime").read_bytes()) == 8
    assert (tmp_path / "jit_new-2-atime").read_bytes() == b"12345678"
