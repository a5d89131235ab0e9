"""Tools of the benchmarks: timing in turn, peak memory, the machine's name, the file of results."""

import argparse
import ctypes
import json
import os
import platform
import secrets
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

SMOKE = "--smoke" in sys.argv[1:]
"""Whether all sizes are tiny, to see that a benchmark runs; its numbers mean nothing."""


def small(value: Any, toy: Any) -> Any:
    """A constant's value, or its toy value with --smoke."""
    return toy if SMOKE else value


PAUSE = small(0.3, 0.0)
"""Seconds without work before a turn."""
WARM = small(0.05, 0.0)
"""Seconds of work before the timed calls of a turn."""
CALLS = small(3, 1)
"""Timed calls of a turn."""
OUT = (
    "write the numbers to this file: JSON, or JSON lines (.jsonl), one of which is this benchmark's"
)
"""Help of `--out`."""
RESULTS = Path(__file__).with_name("results.jsonl")
"""Recorded results, one benchmark a line."""


def arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Read the command line, which may hold --smoke."""
    help_of_smoke = "toy sizes, to see that it runs; the record goes into a new folder runs/smoke-…"
    parser.add_argument("--smoke", action="store_true", help=help_of_smoke)
    parser.allow_abbrev = False  # --smo would be read here, and not above
    chosen = parser.parse_args()
    if SMOKE:
        if chosen.out != parser.get_default("out"):
            parser.error("--out: with --smoke the record goes into a folder of its own")
        chosen.out = Path("runs") / f"smoke-{secrets.token_hex(4)}" / RESULTS.name
        print(f"smoke: a toy run, whose numbers mean nothing, in {chosen.out.parent}", flush=True)
    return chosen


def disable_malloc_trim() -> None:
    """Keep freed memory for the next call, as a process that trains should."""
    from jdml.training import disable_malloc_trim

    if not SMOKE:
        disable_malloc_trim()


def timed_in_turn(
    functions: Mapping[str, Callable[[], Any]],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of calls, one function after the other, several times around: the machine may be shared.

    Before each turn comes a pause, as the threads of the library that was measured before go on spinning for a while
    and would take the cores from this one, and calls that are not timed, as cores and caches must wake up.
    """
    for function in functions.values():
        function()
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(small(-(-repeats // CALLS), 1)):
        for name, function in functions.items():
            time.sleep(PAUSE)
            started = time.perf_counter()
            while time.perf_counter() - started < WARM:
                function()
            for _ in range(CALLS):
                start = clock()
                function()
                seconds[name].append(clock() - start)
    return seconds


def median(seconds: Mapping[str, list[float]]) -> dict[str, float]:
    """The median of each."""
    return {name: statistics.median(values) for name, values in seconds.items()}


def torch_device() -> str:
    """Return PyTorch's device: the GPU if JAX uses it."""
    import torch

    return "cuda" if jax.default_backend() == "gpu" and torch.cuda.is_available() else "cpu"


def awaited(run: Callable[[], Any]) -> Callable[[], Any]:
    """A call of PyTorch's that returns when its device has done it."""
    if torch_device() == "cpu":
        return run
    import torch

    def call() -> Any:
        result = run()
        torch.cuda.synchronize()
        return result

    return call


def peak_memory(function: Callable[[], Any]) -> int | None:
    """Bytes of resident memory that a call adds at its peak.

    None where the system does not tell (not Linux), or arrays lie on another device.

    What earlier calls have freed is given back first: a call would find its memory there and seem to need none.
    """
    if jax.default_backend() != "cpu":
        return None
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        function()
        return max(0, _status("VmHWM") - before)
    except (OSError, AttributeError, TypeError):
        return None


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(field)


def temporaries(compiled: jax.stages.Compiled) -> int | None:
    """Bytes that a compiled function holds besides its arguments and results."""
    analysis = compiled.memory_analysis()
    return None if analysis is None else int(analysis.temp_size_in_bytes)


def describe() -> dict[str, Any]:
    """The machine and the versions."""
    versions = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }
    try:
        import torch

        versions["torch"] = torch.__version__
    except ImportError:
        pass
    return versions


def write(path: Path | None, rows: Any, name: str | None = None, **others: Any) -> None:
    """The rows with the machine and what was found of them, as JSON or as the line of this name among others'."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"environment": describe(), **others, "rows": rows}
    if SMOKE:
        record["smoke"] = True
    if path.suffix == ".jsonl":
        from jdml.runs.run_files import save_result  # here: its imports are not to be measured

        save_result(path, name or _script(), record)
    else:
        path.write_text(json.dumps(record, indent=1) + "\n")


def read(path: Path | None, name: str | None = None) -> dict[str, Any] | None:
    """Read a benchmark's result from a file; None if there is none."""
    if path is None or not path.is_file():
        return None
    if path.suffix == ".jsonl":
        from jdml.runs.run_files import read_results

        return read_results(path).get(name or _script())
    record: dict[str, Any] = json.loads(path.read_text())
    return record


def picture(path: Path, name: str | None = None) -> Path:
    """Return the path of a picture of the numbers, in the folder of their file."""
    if path.suffix == ".jsonl":
        return path.with_name(f"{name or _script()}.png")
    return path.with_suffix(".png")


def of_this_jax() -> str:
    """The name of a record whose figures hang on the version of JAX, of which each has its own."""
    return f"{_script()}_jax_{'.'.join(jax.__version__.split('.')[:2])}"


def _script() -> str:
    """The name of a record, where no other is said."""
    return Path(sys.argv[0]).stem


def mebibytes(size: int | None) -> str:
    """For a table."""
    return "-" if size is None else f"{size / 2**20:.0f}"
