"""Eight devices compute and train like one, with an eighth of the work on each."""

import json
from pathlib import Path

import pytest
from meshes.processes import TESTS, ended, python

pytestmark = pytest.mark.slow  # hundreds of programs for eight devices


@pytest.mark.parametrize(("folder", "parts", "least"), [("meshes", 2, 140), ("scale", 1, 11)])
def test_eight_devices_equal_one(folder: str, parts: int, least: int, tmp_path: Path) -> None:
    """A script's checks run in parts, one per core; at least so many run."""
    pytest.importorskip("distrax", reason="flows are built on distrax (the flows extra)")
    script = TESTS / folder / "eight_devices.py"
    files = [tmp_path / f"{part}.json" for part in range(parts)]
    started = [python(8, script, file, f"{part}/{parts}") for part, file in enumerate(files)]
    results: dict[str, str] = {}
    for process, file in zip(started, files, strict=True):
        printed = ended(process)
        assert process.returncode == 0, printed
        results |= json.loads(file.read_text())
    assert {name: why for name, why in results.items() if why} == {}
    assert len(results) >= least
