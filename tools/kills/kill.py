"""Kill training at random moments, go on with the same command, compare with a run that nobody killed: bit for bit.

    python tools/kills/kill.py [--count 100] [--seed 0] [--only WORDS] [--record FILE] [--work FOLDER] [--mode kill]

Each of `count` trials draws what is run (`killed_runs.py`) and one to three moments: after some time; at one of the
operations on the run's files (opened, half written, synchronized, renamed, removed, by a preloaded library, whatever
thread or language does it); inside an evaluation, a save, a change of problem. There the process gets SIGKILL. The same
command then goes on to the end, and what is in the folder is compared: parameters, statistics, state of optimizer and
objective in every checkpoint kept, progress, `model.safetensors`, `metrics.json`, `config.json`, the log but for its
seconds, and that nothing else lies there. Files that commands write are the old or the new ones, byte for byte.

`--mode problems` kills where CCP's problem changes, within it or at what is written until the next save has ended.
`--mode sweep` kills at each operation in turn instead, `--only` of one run. `--mode full` lets the disk be full, or not
writable, from a random operation on: a run ends in a sentence, and goes on to the same bits when there is room again.
`--mode disk` does it with real ones, by whoever may mount: a file system too small, a folder mounted read-only, one
made immutable while it is written.

The record has a line for each trial; where it has those of a seed, a mode and a choice, the rest is done. The exit code
tells whether all agreed.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from processes import LIBRARY, Moment

HERE = Path(__file__).parent
if LIBRARY in os.environ:
    import disks
    import killed_runs
    from trials import Runs
PROBLEMS = ("recipe ccp", "jdml train, CCP on a folder of images", "two processes")
"""Runs that have changes of problem."""


def begin_again(work: Path) -> None:
    """Go on in a process with the library preloaded, which has imported everything and computed nothing."""
    library = work / "operations.so"
    words = [
        "cc",
        "-shared",
        "-fPIC",
        "-O1",
        "-o",
        str(library),
        str(HERE / "operations.c"),
        "-ldl",
    ]
    subprocess.run(words, check=True)
    environment = {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(work / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
        "XLA_FLAGS": "--xla_cpu_parallel_codegen_split_count=1",
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])]),
        "PYTHONWARNINGS": "ignore",
    }
    environment |= {"LD_PRELOAD": str(library), LIBRARY: str(library)}
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | environment)


def drawn_trials(runs: Any, only: str, mode: str) -> Iterator[Callable[[], dict]]:
    """Draw trials for ever: each run of one process in turn, two processes thrice as often, and what commands write."""
    order = runs.draw
    one = {name: run for name, run in killed_runs.ONE.items() if only in name}
    writers = [name for name in killed_runs.WRITERS if only in name]
    if mode == "sweep":
        for name, run in one.items():
            number = len((runs.whole(name, run) / "operations").read_text().splitlines())
            for at in range(1, number + 1):
                yield partial(runs.trial, name, run, [Moment(at="operation", number=at)])
        for name in writers:
            for at in range(1, runs.operations_of(name) + 1):
                yield partial(runs.killed_while_writing, name, [Moment(at="operation", number=at)])
        return
    more = {name: run for name, run in killed_runs.MANY.items() if only in name}
    if mode in ("full", "disk"):
        tried, writing = (
            (runs.refused, runs.refused_while_writing)
            if mode == "full"
            else (partial(disks.run_on, runs), partial(disks.fill_disk, runs))
        )
        first = [partial(writing, name) for name in writers]
        first += [partial(tried, name, run) for name, run in more.items()]
        turns = [partial(tried, name, run) for name, run in one.items()]
        while first or turns:  # what commands write, then runs
            for some in (first, turns):
                order.shuffle(some)
                yield from some
        return
    if mode == "problems":
        changing = {
            name: run for name, run in {**one, "two processes": None}.items() if only in name
        }
        turns = [partial(runs.problems, n, run) for n, run in changing.items() if n in PROBLEMS]
    else:
        turns = [partial(runs.trial, name, run) for name, run in one.items()]
        turns += [partial(runs.pair, "two processes")] * 3 * (only in "two processes")
        turns += [partial(runs.killed_while_writing, name) for name in writers]
    while turns:
        order.shuffle(turns)
        yield from turns


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument(
        "--mode", choices=("kill", "problems", "sweep", "full", "disk"), default="kill"
    )
    options = parser.parse_args()
    work = options.work or Path(tempfile.mkdtemp(prefix="jdml-kills-"))
    work.mkdir(parents=True, exist_ok=True)
    if LIBRARY not in os.environ:
        sys.argv += [] if options.work else ["--work", str(work)]
        begin_again(work.absolute())
    work = work.absolute()
    if options.record:
        options.record.parent.mkdir(parents=True, exist_ok=True)
    import_all()
    for name, drawn in (("images", killed_runs.draw_images), ("dots", killed_runs.draw_dots)):
        if not (work / name).exists():
            drawn(work / name)
    runs = Runs(work, random.Random(options.seed))
    drawn_by = {"seed": options.seed, "mode": options.mode, "only": options.only}
    before = [json.loads(line) for line in lines_of(options.record)]
    done = {
        report["trial"]: report["agrees"] for report in before if drawn_by.items() <= report.items()
    }
    drawn = drawn_trials(runs, options.only, options.mode)
    for number, trial in zip(range(options.count), drawn, strict=False):
        if number in done:
            continue
        runs.draw, begun = random.Random(f"{options.seed} {number}"), time.monotonic()
        report = {"trial": number, **drawn_by, **trial()}
        report["seconds"] = round(time.monotonic() - begun, 1)
        done[number] = report["agrees"]
        if options.record:
            with options.record.open("a") as file:
                file.write(json.dumps(report) + "\n")
        print(json.dumps(report), flush=True)
    print(f"{sum(done.values())} of {len(done)} agree")
    return not all(done.values())


def lines_of(record: Path | None) -> list[str]:
    """A record that is gone on with, if there is one."""
    return record.read_text().splitlines() if record is not None and record.exists() else []


def import_all() -> None:
    """Import what the runs need; no device is touched."""
    import flax.linen  # noqa: F401
    import grain  # noqa: F401
    import matplotlib.figure  # noqa: F401
    import optax  # noqa: F401
    import orbax.checkpoint  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import rich  # noqa: F401
    import safetensors.numpy  # noqa: F401
    import sklearn.datasets  # noqa: F401
    import tyro  # noqa: F401


if __name__ == "__main__":
    sys.exit(main())
