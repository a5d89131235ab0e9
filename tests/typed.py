"""What mypy says of a few calls: exactly those marked as wrong must be refused."""

import subprocess
import sys
import textwrap
from pathlib import Path

import jdml

ROOT = Path(jdml.__file__).parents[1]


def check_calls(code: str, folder: Path) -> None:
    """Assert that mypy refuses the lines that end in ``# wrong``, and no other."""
    file = folder / "calls.py"
    file.write_text(textwrap.dedent(code))
    lines = file.read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert {int(line.split(":")[1]) for line in errors} == wrong, done.stdout + done.stderr
