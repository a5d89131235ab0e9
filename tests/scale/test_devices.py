"""Training on many devices is training on one: what `eight_devices.py` tries, in a process with as many."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("distrax")

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parent / "eight_devices.py"
TESTS = Path(__file__).parents[1]


def test_what_holds_on_one_device_holds_on_many(tmp_path: Path) -> None:
    """Every method's parameters and history; memory, checkpoints and refusals."""
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "8",
        "PYTHONPATH": os.pathsep.join(map(str, (TESTS, TESTS.parent))),
    }
    file = tmp_path / "results.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(file)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(file.read_text())
    broken = {name: why for name, why in results.items() if why}
    assert not broken, broken
    assert len(results) >= 6
