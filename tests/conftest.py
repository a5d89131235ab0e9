"""What every test stands on: two CPU devices, quick compilation, strict ranks in the numeric rooms, real data sets."""

import contextlib
import ctypes
import gc
import io
import os
import platform
import signal
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Nearly all of the tests' time is compilation, of programs that run once or twice. XLA therefore optimizes them less
# (JDML_TESTS_OPTIMIZED=1 runs the tests on the programs that users get), and a program is compiled once for all workers
# and processes, and all runs until the library or JAX makes another of it: to read it takes a fifth of the time.
# They lie in a folder that `make clean` deletes, and that is emptied where it has grown large.
if os.environ.get("JDML_TESTS_OPTIMIZED", "0") == "0":
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    # A program is too small to be worth several threads of LLVM's, each with a machine of its own.
    flags = ["--xla_cpu_parallel_codegen_split_count=1"]
    if version("jaxlib").startswith(("0.9.", "0.10.")):
        # Half of the time of compilation; later releases do not know the flag.
        flags.append("--xla_cpu_use_fusion_emitters=false")
    os.environ.setdefault("XLA_FLAGS", " ".join(flags))
    # Nobody profiles them: no operation is told the line that it comes from, and no program must be cleaned of lines
    # before it is looked for.
    os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
    os.environ.setdefault("JAX_COMPILATION_CACHE_INCLUDE_METADATA_IN_KEY", "1")
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    programs = Path(__file__).parents[1] / "build" / "programs"
    sizes = {path: path.stat().st_size for path in programs.glob("*")}
    full = sum(sizes.values()) > 1 << 30
    for path, size in sizes.items():
        if full or size == 0:  # what wrote it was killed
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

pytest.register_assert_rewrite("data.own", "hunt.bad")  # what they assert is reported as a test's

# Traces make millions of objects, nearly none of them garbage: look for it a hundred times less often.
gc.freeze()
gc.set_threshold(70_000, 20, 20)

# Python maps 16 KB at a time for the frames of calls, and gives them back with the last of these frames: where a call
# that is repeated crosses an edge, it does so each time, up to an eighth of all time. Here a MiB has no edge.
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

# A worker that holds more than this drops its compiled programs; they are read again from the folder above. Where most
# of it is something else (PyTorch, TensorFlow, data), it may grow by a share of it before it drops them again.
LARGE, GROWTH = int(1.25 * 2**30), 384 << 20

# In these rooms an operand of lower rank that broadcasts by accident is an error.
STRICT_ROOMS = {
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
    """Spare pytest, which looks for garbage five times at the end, all that is none."""
    gc.collect()
    gc.freeze()


def room_of(path: Path) -> str:
    """The room whose tests the file holds, "" where it is none's."""
    return path.relative_to(TESTS).parts[0] if TESTS in path.parents else ""


@pytest.fixture(autouse=True)
def strict_ranks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make implicit rank promotion an error in the tests of the numeric rooms."""
    with jax.numpy_rank_promotion("raise" if room_of(request.path) in STRICT_ROOMS else "allow"):
        yield


@pytest.fixture(autouse=True)
def own_draws(request: pytest.FixtureRequest) -> None:
    """Begin a module's generator anew: what a test draws does not depend on which tests ran before it."""
    module = getattr(request.node, "module", None)
    if isinstance(getattr(module, "RNG", None), np.random.Generator):
        module.RNG = np.random.default_rng(2_718)


class Memory:
    """What the process holds, and what it may hold before its compiled programs are dropped, in bytes."""

    def __init__(self) -> None:
        self.process, self.limit = psutil.Process(), LARGE

    def held(self) -> int:
        """What the process holds now."""
        return self.process.memory_info().rss

    def bound(self) -> None:
        """Drop compiled programs once the process holds more than it may: JAX keeps every one."""
        if self.held() < self.limit:
            return
        jax.clear_caches()
        mlir.make_ir_context.cache_clear()
        self.give_back()
        if self.held() > LARGE:  # what else there is may be garbage
            gc.collect()
            self.give_back()
        self.limit = max(LARGE, self.held() + GROWTH)

    def give_back(self) -> None:
        """Return freed memory to the system: glibc keeps it otherwise."""
        if platform.libc_ver()[0] == "glibc":
            ctypes.CDLL("libc.so.6").malloc_trim(0)


MEMORY = Memory()


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    """Keep what compiled programs hold within bounds."""
    yield
    MEMORY.bound()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The real data sets: ``$JDML_SHARED_DATA``, else ``../shared/data`` beside the checkout."""
    folder = Path(os.environ.get("JDML_SHARED_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"needs the shared data sets: {folder} is not a folder (set JDML_SHARED_DATA)")
    return folder


@pytest.fixture(scope="session")
def jdml_command() -> Callable[..., SimpleNamespace]:
    """Run a command in this process; its code, output and error output."""
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
    """The same, to be taken apart."""

    def run(*words: object) -> tuple[Any, str, str]:
        done = jdml_command(*words)
        return done.code, done.out, done.err

    return run
