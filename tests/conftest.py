"""Configure all tests: two CPU devices, fast compilation, no rank promotion in numeric packages, real data sets."""

import contextlib
import ctypes
import gc
import io
import os
import platform
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from quick import QUICK

os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Nearly all of the tests' time is compilation of programs that run once or twice. XLA therefore optimizes them less
# (JDML_TESTS_OPTIMIZED=1 runs the tests on the programs that users get), and a program is compiled once for all workers
# and processes, and for later runs until the library or JAX changes: reading it back takes a fifth of the time.
# The programs are in a folder that `make clean` deletes. It is emptied when it has grown large.
if os.environ.get("JDML_TESTS_OPTIMIZED", "0") == "0":
    for name, value in QUICK.items():
        os.environ.setdefault(name, value)
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    programs = Path(__file__).parents[1] / "build" / "programs"
    sizes = {path: path.stat().st_size for path in programs.glob("*")}
    full = sum(sizes.values()) > 1 << 30
    for path, size in sizes.items():
        if full or size == 0:  # its writer was killed
            path.unlink(missing_ok=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(programs)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")

import jax
import numpy as np
import psutil
import pytest
from _pytest import runner
from jax._src.interpreters import mlir

# Their failed assertions are reported like those of a test.
pytest.register_assert_rewrite("data.pictures", "hunt.bad")

# Tracing makes millions of objects, hardly any of them garbage: collect a hundred times less often.
gc.freeze()
gc.set_threshold(70_000, 20, 20)

# Python allocates call frames in blocks of 16 KB and frees a block with its last frame. A repeated call at the edge of
# a block allocates and frees it each time, which takes up to an eighth of all time. Blocks of a MiB avoid this.
runner.runtestprotocol.__code__ = runner.runtestprotocol.__code__.replace(co_stacksize=1 << 17)

# JAX lowers each program in an MLIR context of its own, which it keeps with the program: more than a MiB, and a
# twentieth of all time. Here they share one, until programs are dropped.
mlir.make_ir_context = cache(mlir.make_ir_context)

# A suite in the background or under nohup inherits an ignored Ctrl-C: it and its children get the usual one.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).parent
REPOSITORY = TESTS.parent

# Two devices on one machine, so that sharded losses are tested wherever the tests run.
jax.config.update("jax_num_cpu_devices", 2)

# A worker that holds more than this drops its compiled programs and reads them again from the folder above. If most of
# the memory is something else (PyTorch, TensorFlow, data), it may grow by a fraction of that before the next drop.
LARGE, GROWTH = int(1.25 * 2**30), 384 << 20

# In the tests of these packages an operand of lower rank that broadcasts by accident is an error.
STRICT_PACKAGES = {
    "ops",
    "mining",
    "memory",
    "fields",
    "losses",
    "metrics",
    "ccp",
    "objectives",
    "optim",
}


def pytest_sessionfinish() -> None:
    """Freeze all objects, as pytest collects garbage five times at the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_rank_promotion(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make implicit rank promotion an error in the tests of numeric packages."""
    strict = request.path.relative_to(TESTS).parts[0] in STRICT_PACKAGES
    with jax.numpy_rank_promotion("raise" if strict else "allow"):
        yield


@pytest.fixture(autouse=True)
def reset_generator(request: pytest.FixtureRequest) -> None:
    """Reset the module's generator, so that a test's draws do not depend on the tests that ran before it."""
    module = getattr(request.node, "module", None)
    if isinstance(getattr(module, "RNG", None), np.random.Generator):
        module.RNG = np.random.default_rng(2_718)


MEMORY = SimpleNamespace(process=psutil.Process(), limit=LARGE)


def memory_after_trimming() -> int:
    """Return freed memory to the system, as glibc keeps it otherwise; return what the process still uses."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return MEMORY.process.memory_info().rss


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    """Drop compiled programs once the process uses more than the limit: JAX keeps every one."""
    yield
    if MEMORY.process.memory_info().rss < MEMORY.limit:
        return
    jax.clear_caches()
    mlir.make_ir_context.cache_clear()
    used = memory_after_trimming()
    if used > LARGE:  # other memory may be garbage
        gc.collect()
        used = memory_after_trimming()
    MEMORY.limit = max(LARGE, used + GROWTH)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of the real data sets: ``$JDML_SHARED_DATA``, else ``../shared/data`` next to the checkout."""
    folder = Path(os.environ.get("JDML_SHARED_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"needs the shared data sets: {folder} is not a folder (set JDML_SHARED_DATA)")
    return folder


@pytest.fixture(scope="session")
def jdml_command() -> Callable[..., SimpleNamespace]:
    """Run a command in this process; return its exit code, output and error output."""
    import jdml.cli

    def run(*words: object) -> SimpleNamespace:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = jdml.cli.main([str(word) for word in words])
            except SystemExit as stop:
                code = stop.code
        return SimpleNamespace(code=code, out=out.getvalue(), err=err.getvalue())

    return run


@pytest.fixture(scope="session")
def jdml_main(jdml_command: Callable[..., SimpleNamespace]) -> Callable[..., tuple[Any, str, str]]:
    """Run a command in this process; return the same as a tuple."""

    return lambda *words: tuple(vars(jdml_command(*words)).values())
