"""Divide the time of a first step: drawing the initial values, compiling the step, and Python.

    python benchmarks/first_step.py --out benchmarks/results.jsonl

Each network begins to train in a process of its own, once with no compiled programs on the disk and once with those
that the first time left there, as `jdml train` leaves them. Counted are seconds from `fit` to the end of its first
step: multi-similarity loss, Adam. What is neither of the two programs is tracing, lowering, reading modules and twenty
small programs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import machine
import numpy as np
import optax

import jdml
from jdml import data, models, objectives, training

COMPILED = "/jax/core/compile/backend_compile_duration"
PROGRAMS = {"initial values": "jit(_init)", "the step": "jit(indexed_step)"}


class Case(NamedTuple):
    """A network on images of one size, eight classes of four."""

    network: str
    size: int
    channels: int
    dim: int


CASES = {
    case.network: case
    for case in (
        Case("eps", 28, 1, 2),
        Case("small", 28, 1, 128),
        Case("resnet20v2", 28, 1, 2),
        Case("resnet18", 64, 3, 512),
        Case("resnet50", 64, 3, 512),
    )
}
if machine.SMOKE:
    CASES = {"eps": Case("eps", 8, 1, 2)}


def first_step(case: Case) -> dict[str, float]:
    """Seconds until the first step has ended, those of its two large programs, and of the processor's cores."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(8), 4)
    images = rng.normal(size=(32, case.size, case.size, case.channels)).astype(np.float32)
    seconds = dict.fromkeys(PROGRAMS, 0.0)

    def listen(event: str, duration: float, **details: Any) -> None:
        for part, program in PROGRAMS.items():
            if event == COMPILED and details.get("fun_name") == program:
                seconds[part] += duration

    jax.monitoring.register_event_duration_secs_listener(listen)
    start, busy = time.perf_counter(), time.process_time()
    training.fit(
        models.create(case.network, dim=case.dim),
        objectives.pair(jdml.multi_similarity_loss),
        optax.adam(1e-3),
        data.Dataset("noise", images, labels),
        data.ClassBatchSampler(labels, 8, 4),
        steps=1,
        progress=False,
    )
    whole = time.perf_counter() - start
    seconds["the rest"] = whole - sum(seconds.values())
    return {**seconds, "whole": whole, "core-seconds": time.process_time() - busy}


def in_new_process(case: Case, programs: str) -> dict[str, float]:
    """The same in a process that has compiled nothing, and finds what the folder holds."""
    env = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": programs,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }
    command = [sys.executable, __file__, "--here", case.network, *machine.small([], ["--smoke"])]
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
    seconds: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(CASES), help="names of networks")
    parser.add_argument("--here", help="one network, in this process; print JSON")
    parser.add_argument("--out", type=Path, help=machine.OUT)
    arguments = machine.arguments(parser)
    if arguments.here:
        print(json.dumps(first_step(CASES[arguments.here])))
        return
    print(f"{'seconds':14} initial values  the step  the rest  whole  core-seconds  again")
    rows = []
    for name in arguments.only:
        with tempfile.TemporaryDirectory() as programs:
            first, again = (in_new_process(CASES[name], programs) for _ in range(2))
        rows.append({**CASES[name]._asdict(), "first": first, "again": again})
        print(
            f"{name:14} {first['initial values']:14.1f} {first['the step']:9.1f} {first['the rest']:9.1f} "
            f"{first['whole']:6.1f} {first['core-seconds']:13.1f} {again['whole']:6.1f}",
            flush=True,
        )
    machine.write(arguments.out, rows)


if __name__ == "__main__":
    main()
