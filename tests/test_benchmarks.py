"""The benchmarks run, on small sizes; their times are not looked at."""

import importlib.util
import json
import sys
import types
from pathlib import Path

import pytest

import jdml

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A benchmark as a module, its timing cut short."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    sys.modules.pop("machine", None)
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for setting in ("PAUSE", "WARM"):
        monkeypatch.setattr(sys.modules["machine"], setting, 0.0)
    return module


def run(module: types.ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    """Its main with these arguments."""
    monkeypatch.setattr(sys, "argv", [module.__file__, *arguments])
    module.main()


def test_alternation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The anchor costs exactly one copy of the parameters."""
    module = load("alternation", monkeypatch)
    monkeypatch.setattr(module, "ResNet20V2", lambda dim: jdml.models.EpsNet(dim))
    out = tmp_path / "alternation.json"
    run(module, monkeypatch, "--repeats", "1", "--out", str(out))
    found = json.loads(out.read_text())
    assert "device" in found["environment"]
    rows = {row["step"]: row for row in found["rows"]}
    assert "between two problems" in capsys.readouterr().out
    added = rows["proxies, anchored"]["optimizer_models"] - rows["proxies"]["optimizer_models"]
    assert added == pytest.approx(1, abs=0.01)


def test_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("losses", monkeypatch)
    monkeypatch.setattr(module, "BATCH", 16)
    monkeypatch.setattr(module, "CLASSES", (5,))
    out = tmp_path / "losses.json"
    run(
        module,
        monkeypatch,
        "--repeats",
        "1",
        "--only",
        "contrastive",
        "proxy_anchor",
        "--fresh-memory",  # the other way would last as long as this process
        "--out",
        str(out),
    )
    rows = json.loads(out.read_text())["rows"]
    assert [row["loss"] for row in rows] == ["contrastive", "proxy_anchor"]
    assert all(row["milliseconds"]["jdml"] > 0 and row["over_floor"] > 0 for row in rows)
    assert (tmp_path / "losses.png").exists()


def test_shares_of_a_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations are counted, and the flow has some."""
    module = load("isotropy", monkeypatch)
    small = {"num_blocks": 1, "hidden": 8, "depth": 2}
    monkeypatch.setitem(module.flows.PRESETS, "small", small)
    row = module.measure(8, "small", 1e9, 1)
    assert 0 < row["share"] < 0.05
    assert row["share"] == row["flow_operations"] / 1e9


@pytest.mark.parametrize("generated", [True, False])
def test_input_pipeline(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    generated: bool,
) -> None:
    """All kinds are measured, beside decoding; processes are left out for their start."""
    pytest.importorskip("grain")
    module = load("input_pipeline", monkeypatch)
    monkeypatch.setattr(module, "BATCH", 4)
    files = module.generate(tmp_path, 5)
    monkeypatch.setattr(module, "generate", lambda folder, count: files)
    out = tmp_path / "pipeline.json"
    folder = () if generated else ("--folder", str(tmp_path))
    quick = ("--repeats", "1", "--batches", "1", "--workers", "1", "2", "--no-processes")
    run(module, monkeypatch, *folder, *quick, "--out", str(out))
    rows = json.loads(out.read_text())["rows"]
    assert [(row["what"], row["workers"]) for row in rows] == [
        (what, workers)
        for workers in (1, 2)
        for what in ("decoding", "mlrc 227, thread", "conventional 224, thread")
    ]
    assert all(row["images_per_second"] > 0 for row in rows)
    assert "5 images, batches of 4" in capsys.readouterr().out


def test_image_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step, pipeline and both together are measured in images per second."""
    pytest.importorskip("grain")
    module = load("image_training", monkeypatch)
    monkeypatch.setattr(module, "FILES", 4)
    monkeypatch.setattr(
        module.models, "create", lambda name, dim, **_: jdml.models.SmallConvNet(dim, (4, 4))
    )
    out = tmp_path / "training.json"
    run(module, monkeypatch, "--batch", "2", "--size", "16", "--steps", "1", "--out", str(out))
    (row,) = json.loads(out.read_text())["rows"]
    assert row["training_images_per_second"] > 0
    assert 0 <= row["waiting_share"] <= 1
