"""Python in separate processes, because a process cannot change its number of devices."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
LIMIT = 3600
"""Seconds after which a process hangs."""


def python(devices: int, *words: object) -> subprocess.Popen[str]:
    """Start Python on a number of devices."""
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices),
        "PYTHONPATH": os.pathsep.join(map(str, (TESTS, TESTS.parent))),
    }
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> str:
    """Wait for its end; return what it printed."""
    return process.communicate(timeout=LIMIT)[0]
