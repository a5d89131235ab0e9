"""What every test stands on: two CPU devices, quick compilation, strict ranks in the numeric rooms, real data sets."""

import atexit
import ctypes
import gc
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Nearly all of the tests' time is compilation, of programs that run once or twice. XLA therefore optimizes them less
# (JDML_TESTS_OPTIMIZED=1 runs the tests on the programs that users get), and a program is compiled once for all workers
# and all processes that tests start: it lies in a folder that goes with the run, if that is quicker than to compile it.
if os.environ.get("JDML_TESTS_OPTIMIZED", "0") == "0":
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    # A program is too small to be worth several threads of LLVM's, each with a machine of its own.
    flags = ["--xla_cpu_parallel_codegen_split_count=1"]
    if version("jaxlib").startswith(("0.9.", "0.10.")):
        # Half of the time of compilation; later releases do not know the flag.
        flags.append("--xla_cpu_use_fusion_emitters=false")
    os.environ.setdefault("XLA_FLAGS", " ".join(flags))
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    programs = tempfile.mkdtemp(prefix="jdml-tests-")
    atexit.register(shutil.rmtree, programs, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = programs
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")

import jax
import psutil
import pytest
from jax._src.interpreters import mlir

# Traces make millions of objects, nearly none of them garbage: look for it a hundred times less often.
gc.freeze()
gc.set_threshold(70_000, 20, 20)

# JAX lowers each program in an MLIR context of its own, which it keeps with the program: more than a MiB, and a
# twentieth of all time. Here they share one, until programs are dropped.
mlir.make_ir_context = cache(mlir.make_ir_context)

TESTS = Path(__file__).parent
REPOSITORY = TESTS.parent

# Two devices on one machine, so that sharded losses are tested wherever the tests run.
jax.config.update("jax_num_cpu_devices", 2)

# A worker that holds more than this drops its compiled programs; they are read again from the folder above. Where most
# of it is something else (PyTorch, TensorFlow, data), it may grow by a share of it before it drops them again.
LARGE, GROWTH = int(1.25 * 2**30), 384 << 20

# In these rooms an operand of lower rank that broadcasts by accident is an error.
STRICT_ROOMS = {"ops", "losses", "mining", "memory", "metrics", "objectives"}

# What `make test-quick` leaves out: what runs whole programs or learns, reads real data, compiles networks or compares
# with other libraries, and losses beside one of each kind.
SLOW_FILES = {
    "test_alternation.py",
    "test_anchor_blocks.py",
    "test_anchor_objective.py",
    "test_backbones.py",
    "test_benchmarks.py",
    "test_checking.py",
    "test_cli.py",
    "test_cli_benchmark.py",
    "test_cli_images.py",
    "test_convnets.py",
    "test_convolution.py",
    "test_devices.py",
    "test_edges.py",
    "test_eps_settings.py",
    "test_everyday.py",
    "test_feed.py",
    "test_field_theory.py",
    "test_figures.py",
    "test_fit.py",
    "test_flows.py",
    "test_heads.py",
    "test_imports.py",
    "test_kept_studies.py",
    "test_layers.py",
    "test_lists.py",
    "test_look.py",
    "test_loop.py",
    "test_meshes.py",
    "test_micro_batch.py",
    "test_nir_objective.py",
    "test_omniglot.py",
    "test_page.py",
    "test_path.py",
    "test_pipeline.py",
    "test_pml_parity.py",
    "test_processes.py",
    "test_protocols.py",
    "test_recipes.py",
    "test_resnets.py",
    "test_seen.py",
    "test_site.py",
    "test_streams.py",
    "test_studies.py",
    "test_study.py",
    "test_testing.py",
    "test_theory.py",
    "test_training.py",
    "test_weight_parity.py",
    "test_weights.py",
}
SLOW_TESTS = {
    "test_a_disk_that_fills_up_in_training_keeps_the_checkpoint_before",
    "test_a_gallery_on_disk",
    "test_a_million_classes_fit",
    "test_a_monitor_adds_its_metrics_to_the_loss",
    "test_a_run_that_is_asked_to_end_saves_and_goes_on",
    "test_any_pair_loss_is_a_proxy_loss",
    "test_blocks_change_nothing",
    "test_class_names_and_tensors_of_torch",
    "test_commands_exist",
    "test_defaults_and_float32",
    "test_duplicates_tie_exactly",
    "test_equals_pytorch_metric_learning",
    "test_every_size_is_handled",
    "test_examples_run",
    "test_fields_without_proxies",
    "test_jnp_reductions_of_no_term_are_zero",
    "test_matryoshka_cuts_embeddings_proxies_and_references",
    "test_mined_losses_keep_the_properties",
    "test_nearest_on_disk",
    "test_option_in_float64",
    "test_other_normalizations_stay_finite",
    "test_python_blocks_run",
    "test_rows_that_do_not_count_bring_no_class",
    "test_separated_classes_reach_one",
    "test_the_class_field_at_a_charge_is_its_potential_and_its_own_term",
    "test_triplets_tie_and_coincide",
    "test_weights_are_converted",
    "test_without_the_regularizer",
}
QUICK_LOSSES = {"triplet", "proxy_anchor", "potential_field"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow."""
    from jdml import losses

    others = {name.removesuffix("_loss") for name in losses.__all__} - QUICK_LOSSES
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        another_loss = str(parameters.get("name")).removesuffix("_loss") in others
        whole_program = item.path.name in SLOW_FILES or item.name.split("[")[0] in SLOW_TESTS
        if another_loss or whole_program:
            item.add_marker(pytest.mark.slow)


def room_of(path: Path) -> str:
    """The room whose tests the file holds, "" where it is none's."""
    room = path.relative_to(TESTS).parts[0] if TESTS in path.parents else ""
    return room.removeprefix("test_").removesuffix(".py")


@pytest.fixture(autouse=True)
def strict_ranks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make implicit rank promotion an error in the tests of the numeric rooms."""
    with jax.numpy_rank_promotion("raise" if room_of(request.path) in STRICT_ROOMS else "allow"):
        yield


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
        gc.collect()
        if platform.libc_ver()[0] == "glibc":  # which keeps freed memory otherwise
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        self.limit = max(LARGE, self.held() + GROWTH)


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
