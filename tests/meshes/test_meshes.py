"""Meshes: the same values and gradients as on one device, and an eighth of the work on each of eight."""

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from losses.registry import REGISTRY

pytestmark = pytest.mark.slow  # hundreds of programs for eight devices

SCRIPT = Path(__file__).parent / "eight_devices.py"
TESTS, PARTS = Path(__file__).parents[1], 2
LIMIT = 3600
"""Seconds after which the script hangs."""
WAYS = ("explicit axes", "auto axes", "shard_map")


def named_checks() -> list[str]:
    """Return the names of the checks that are functions of the script and of the modules that it imports."""
    return [
        node.name.replace("_", " ")
        for file in sorted(SCRIPT.parent.glob("*_devices.py"))
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(d, ast.Name) and d.id == "check" for d in node.decorator_list)
    ]


def run_script(folder: Path) -> dict[str, str]:
    """Return the script's results; eight devices need separate processes, one per core."""
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "8",
        "PYTHONPATH": os.pathsep.join(map(str, (TESTS, TESTS.parent))),
    }
    files = [folder / f"{part}.json" for part in range(PARTS)]
    started = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(file), f"{part}/{PARTS}"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for part, file in enumerate(files)
    ]
    results: dict[str, str] = {}
    for process, file in zip(started, files, strict=True):
        printed, _ = process.communicate(timeout=LIMIT)
        assert process.returncode == 0, printed
        results |= json.loads(file.read_text())["results"]
    return results


@pytest.fixture(scope="session")
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Run the script once, in the first worker that needs it; the others wait for its results."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if hasattr(request.config, "workerinput") else base) / "meshes"
    whole = folder / "whole.json"
    try:
        folder.mkdir()
    except FileExistsError:
        for _ in range(LIMIT):
            if whole.exists():
                break
            time.sleep(1)
    else:
        try:
            found = run_script(folder)
        except (AssertionError, OSError, subprocess.SubprocessError, ValueError) as error:
            found = {"the script": str(error)}
        (folder / "part.json").write_text(json.dumps(found))
        (folder / "part.json").rename(whole)
    return dict(json.loads(whole.read_text()))


def test_script_ends_without_an_error(results: dict[str, str]) -> None:
    assert "the script" not in results, results["the script"]


@pytest.mark.parametrize("name", REGISTRY)
def test_loss(results: dict[str, str], name: str) -> None:
    broken = {way: results[f"{way}, {name}"] for way in WAYS if results[f"{way}, {name}"]}
    assert not broken, broken


@pytest.mark.parametrize("name", named_checks())
def test_check(results: dict[str, str], name: str) -> None:
    assert results[name] == "", results[name]


def test_options_and_other_meshes(results: dict[str, str]) -> None:
    """All other entries: miners, blocks, reductions, other numbers of devices and types of axes."""
    others = set(results) - {f"{way}, {name}" for way in WAYS for name in REGISTRY}
    broken = {name: results[name] for name in others - set(named_checks()) if results[name]}
    assert len(others) > 30
    assert not broken, broken
