"""Every study and every benchmark runs from end to end with --smoke, and writes finite numbers."""

import importlib
import math
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import chex
import pytest

from jdml.runs.run_files import read_results

ROOT = Path(__file__).parents[2]
EXPERIMENTS, BENCHMARKS = ROOT / "experiments", ROOT / "benchmarks"
NEEDS = {"gallery_on_disk": "faiss", "input_pipeline": "grain", "training_from_files": "grain"}
NOT_RUN = {"ideas.main", "compiled"}  # runs nothing; needs other packages: tests/compilers


def main_modules(pattern: str) -> list[str]:
    """Return the names of the scripts among some files."""
    files = [file for file in ROOT.glob(pattern) if '__name__ == "__main__"' in file.read_text()]
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts[1:]) for file in files}
    return sorted(names - NOT_RUN)


STUDIES, SCRIPTS = main_modules("experiments/*/*.py"), main_modules("benchmarks/*.py")


def scripts_in_memory() -> list[str]:
    """Return the imported modules of studies and benchmarks, and those of other folders with these names."""
    stems = {path.stem for path in BENCHMARKS.glob("*.py")}
    return [
        name for name in sys.modules if name in stems or name.partition(".")[0] == "experiments"
    ]


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Import studies and benchmarks anew, in an empty folder."""
    for name in scripts_in_memory():
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield
    forget_scripts()


def forget_scripts() -> None:
    """Import studies and benchmarks anew the next time."""
    for name in scripts_in_memory():
        del sys.modules[name]


@pytest.fixture
def smoke(
    scripts: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Return what runs a script as a command does, and what it printed."""
    files = [
        *EXPERIMENTS.glob("*/*.json*"),
        *EXPERIMENTS.glob("*/*.png"),
        *BENCHMARKS.glob("*.json*"),
    ]
    records = {file: file.stat().st_mtime_ns for file in files}

    def run(script: str, *words: str) -> str:
        forget_scripts()  # a run's folder has its name from when the scripts are imported
        monkeypatch.setattr(sys, "argv", [f"{script}.py", *words, "--smoke"])
        if script in SCRIPTS:
            runpy.run_path(str(BENCHMARKS / f"{script}.py"), run_name="__main__")
        else:
            runpy.run_module(f"experiments.{script}", run_name="__main__", alter_sys=True)
        printed = capsys.readouterr().out
        assert printed.startswith("smoke")
        assert records == {file: file.stat().st_mtime_ns for file in files}
        return printed

    return run


def check_finite(values: Any) -> None:
    """Check that all numbers in nested values are finite."""
    if isinstance(values, dict | list):
        for value in values.values() if isinstance(values, dict) else values:
            check_finite(value)
    elif isinstance(values, float):
        assert math.isfinite(values)


SLOW = pytest.mark.slow  # up to half a minute each


def check_study(printed: str, folder: Path) -> None:
    """Check that a study made runs, and printed a table, of finite numbers."""
    files = [file for file in folder.glob("**/*.jsonl") if file.name != "log.jsonl"]
    runs = [run for file in files for run in read_results(file).values()]
    assert runs
    assert all(run["metrics"] for run in runs)
    check_finite(runs)
    rows = [line for line in printed.splitlines() if line.startswith("| ")]
    assert any(character.isdigit() for line in rows[2:] for character in line)


@SLOW
@pytest.mark.parametrize("study", [study for study in STUDIES if study != "letters.main"])
def test_study(study: str, smoke: Callable[..., str], tmp_path: Path) -> None:
    check_study(smoke(study), tmp_path / "runs")


@SLOW
def test_letters_in_one_program_equal_separate_training(
    smoke: Callable[..., str], tmp_path: Path
) -> None:
    """Models trained in one program or one after the other are equal to rounding."""
    scores = []
    for words in ((), ("--abreast",)):
        printed = smoke("letters.main", *words)
        folder = tmp_path / re.search(r"runs/smoke-\w+", printed)[0]
        check_study(printed, folder)
        runs = read_results(folder / "letters" / "results.jsonl")
        scores.append({name: run["metrics"] for name, run in runs.items()})
    chex.assert_trees_all_close(*scores, atol=0.02)


@SLOW
@pytest.mark.parametrize("script", SCRIPTS)
def test_benchmark(script: str, smoke: Callable[..., str], tmp_path: Path) -> None:
    if script in NEEDS:
        pytest.importorskip(NEEDS[script])
    smoke(script)
    (file,) = tmp_path.glob("runs/smoke-*/results.jsonl")
    (record,) = read_results(file).values()
    assert record["rows"]
    assert record["smoke"]
    check_finite(record)


def test_smoke_run_of_a_benchmark_refuses_an_output_file(
    smoke: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        smoke("losses", "--out", str(tmp_path / "results.jsonl"))
    assert "--out" in f"{refused.value}{capsys.readouterr().err}"
    assert not list(tmp_path.iterdir())


def test_rows_of_another_machine_are_not_mixed_with_this_ones(scripts: None) -> None:
    machine, losses = map(importlib.import_module, ("machine", "losses"))
    rows = [{"loss": name, "classes": None, "ratio": 1.0} for name in ("triplet", "circle")]
    record = {"environment": machine.describe(), "dim": 8, "rows": rows}
    merged = losses.merged(record, [{**rows[1], "ratio": 9.0}])
    assert [(row["loss"], row["ratio"]) for row in merged] == [("triplet", 1.0), ("circle", 9.0)]
    with pytest.raises(SystemExit, match=r"\bcores\b"):
        losses.merged({"environment": {**machine.describe(), "cores": 1000}, "rows": rows}, rows)
