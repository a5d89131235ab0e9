"""The benchmarks run, on small sizes; their times are not looked at."""

import importlib.util
import io
import json
import platform
import subprocess
import sys
import textwrap
import types
from functools import partial
from pathlib import Path
from typing import Any

import chex
import flax.linen as nn
import jax
import numpy as np
import pytest

import jdml
from jdml.training.records import read_results, write_results

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


class Pixels(nn.Module):
    """A network that compiles in no time."""

    dim: int

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
        return nn.Dense(self.dim)(images.reshape(len(images), -1))


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A benchmark as a module, its timing cut short."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    for shared in ("machine", "losses", "potential_field"):  # of this folder, and fresh
        monkeypatch.setitem(sys.modules, shared, types.ModuleType(shared))  # undone at the end
        del sys.modules[shared]
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    timing = sys.modules.get("machine", module)  # shared, or a benchmark's own
    for setting in ("PAUSE", "WARM"):
        monkeypatch.setattr(timing, setting, 0.0)
    return module


def run(module: types.ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    """Its main with these arguments."""
    monkeypatch.setattr(sys, "argv", [module.__file__, *arguments])
    module.main()


def test_two_checkouts_take_turns(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    beside = load("beside", monkeypatch)
    monkeypatch.setitem(beside.CASES, "losses", lambda: iter([("still", lambda: lambda: None)]))
    monkeypatch.setattr(sys, "stdin", io.StringIO('"still"\n2\n3\n\n"still"\n\n'))
    beside.child(str(BENCHMARKS.parent), "losses")
    cases, made, *seconds, again = map(json.loads, capsys.readouterr().out.splitlines())
    assert (cases, made, again) == (["still"], "made", "made")
    assert len(seconds) == 2
    assert all(0 <= each < 1 for each in seconds)

    def side(milliseconds: float) -> Any:
        told: list[str] = []
        return types.SimpleNamespace(
            ask=lambda question: told.append(question) or milliseconds / 1e3, tell=told.append
        )

    sides = {"now": side(3.0), "before": side(2.0), "again": side(3.0)}
    row = beside.measure("still", sides, 4, 5)
    assert row == {
        "what": "still",
        "rounds": 4,
        "milliseconds": 3.0,
        "before": 2.0,
        "ratio": 1.5,
        "with_itself": 1.0,
    }
    assert "3.00 ms, before      2.00:  1.50  (with itself  1.00)" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="is hidden by"):
        beside.child("/elsewhere", "losses")


def test_pairs_of_the_same_two_commits_stay_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = load("beside", monkeypatch)
    monkeypatch.setattr(beside, "Side", lambda root, of: types.SimpleNamespace(cases=["a", "b"]))
    monkeypatch.setattr(beside, "measure", lambda case, *_: {"what": case, "ratio": 1.0})
    out, commits = tmp_path / "pairs.jsonl", {beside.HERE: "new", Path("old"): "old"}
    monkeypatch.setattr(beside, "commit", commits.get)

    def recorded(only: str) -> list[str]:
        run(beside, monkeypatch, "old", "--only", only, "--out", str(out))
        record = read_results(out)["beside_losses"]
        assert (record["now"], record["before"]) == (commits[beside.HERE], commits[Path("old")])
        return [row["what"] for row in record["rows"]]

    assert recorded("a") == ["a"]
    assert recorded("b") == ["a", "b"]
    commits[beside.HERE] = "newer"
    assert recorded("b") == ["b"]
    commits[beside.HERE] = None  # changes that no commit has
    assert recorded("a") == ["a"]
    assert recorded("b") == ["b"]


def test_a_checkout_with_changes_has_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = load("beside", monkeypatch)
    assert beside.commit(tmp_path) is None
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "--allow-empty", "-m", "first"]):
        (tmp_path / "file").write_text("1")
        author = ["-c", "user.name=me", "-c", "user.email=me@here"]
        subprocess.run(["git", "-C", str(tmp_path), *author, *command], check=True)
    assert beside.commit(tmp_path)
    (tmp_path / "file").write_text("2")
    assert beside.commit(tmp_path) is None


def test_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is a benchmark's, or holds a line for each; what is on record is sorted, and of these scripts."""
    machine = load("small_steps", monkeypatch).machine
    monkeypatch.setattr(sys, "argv", [str(BENCHMARKS / "small_steps.py")])
    alone, records = tmp_path / "mine.json", tmp_path / "new" / "results.jsonl"
    for path in (alone, records):
        assert machine.read(path) is None
        machine.write(path, [1], what="old")
        machine.write(path, [2], dim=8)
        assert machine.read(path) == {"environment": machine.describe(), "dim": 8, "rows": [2]}
    machine.write(records, [3], "isotropy")
    assert [record["rows"] for record in read_results(records).values()] == [[3], [2]]
    assert machine.read(records, "losses") is None
    assert machine.read(None) is None
    machine.write(None, [4])
    assert machine.picture(alone) == tmp_path / "mine.png"
    assert machine.picture(records) == tmp_path / "new" / "small_steps.png"
    assert machine.picture(records, "losses_fresh") == tmp_path / "new" / "losses_fresh.png"
    kept = read_results(machine.RESULTS)
    write_results(records, kept)
    assert records.read_text() == machine.RESULTS.read_text()
    scripts = {path.stem for path in BENCHMARKS.glob("*.py")} | {"losses_fresh", "retrieval_groups"}
    several = ("accelerator_", "compiled_", "beside_")
    names = {name.partition("_jax_")[0] for name in kept if not name.startswith(several)}
    assert names <= scripts


def test_alternation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The anchor costs exactly one copy of the parameters."""
    module = load("alternation", monkeypatch)
    monkeypatch.setattr(module, "ResNet20V2", Pixels)
    out = tmp_path / "alternation.json"
    run(module, monkeypatch, "--repeats", "1", "--out", str(out))
    content = json.loads(out.read_text())
    assert "device" in content["environment"]
    rows = {row["step"]: row for row in content["rows"]}
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
    known = {"environment": {**module.machine.describe(), "date": "2020-02-02"}, "rows": rows}
    again = module.merged(known, [{**rows[1], "over_floor": 9.0}])  # other losses' rows stay
    assert [(row["loss"], row.get("date")) for row in again] == [
        ("contrastive", "2020-02-02"),
        ("proxy_anchor", None),
    ]
    assert again[1]["over_floor"] == 9.0
    records = tmp_path / "results.jsonl"  # the same in the line of this benchmark, beside another's
    record = {**known, "rows": [rows[0], {**rows[1], "over_floor": 0.0}]}
    write_results(records, {"losses": {"rows": []}, "losses_fresh": record})
    few = ("--repeats", "1", "--only", "proxy_anchor", "--fresh-memory", "--out", str(records))
    run(module, monkeypatch, *few)
    kept = read_results(records)
    assert kept["losses"] == {"rows": []}
    assert [(row["loss"], row.get("date")) for row in kept["losses_fresh"]["rows"]] == [
        ("contrastive", "2020-02-02"),
        ("proxy_anchor", None),
    ]
    assert kept["losses_fresh"]["rows"][1]["over_floor"] > 0
    assert kept["losses_fresh"]["fresh_memory"] is True
    assert (tmp_path / "losses_fresh.png").exists()
    known["environment"]["cores"] = 1000
    with pytest.raises(SystemExit, match="another machine or version: cores"):
        module.merged(known, rows)


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc returns large arrays to the system"
)
def test_keep_freed_memory() -> None:
    """Large arrays take the pages that earlier ones have left: in a process of its own, as it lasts."""
    faults = """
        import resource
        import numpy as np
        from jdml.training import keep_freed_memory

        def of_ten_arrays():
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(10):
                np.ones(2**24, np.float32)
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

        fresh = of_ten_arrays()
        keep_freed_memory()
        of_ten_arrays()
        print(fresh, of_ten_arrays())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(faults)],
        cwd=BENCHMARKS,
        capture_output=True,
        text=True,
        check=True,
    )
    fresh, kept = map(int, done.stdout.split())
    assert kept < fresh / 10


def test_potential_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All sides compute the same, and the fit is over all sizes."""
    module = load("potential_field", monkeypatch)
    monkeypatch.setattr(module, "BATCH", 12)
    monkeypatch.setattr(module, "DIM", 8)
    out = tmp_path / "potential_field.json"
    sizes = ("--sizes", "52", "92")
    run(module, monkeypatch, *sizes, "--repeats", "1", "--dense-limit", "52", "--out", str(out))
    step = json.loads(out.read_text())
    assert [row["charges"] for row in step["rows"]] == [52, 92]
    assert ["dense JAX" in row["seconds"] for row in step["rows"]] == [True, False]
    assert step["exponent_of_bytes"] > 0
    assert "time ~ charges^" in capsys.readouterr().out
    assert (tmp_path / "potential_field.png").exists()
    arrays = module.arrays(52)
    steps = {
        loss.__name__: jax.jit(jax.value_and_grad(loss, (0, 2)))(*arrays)
        for loss in (module.ours, module.dense_jax)
    }
    torch_step = module.dense_torch(*arrays)
    if torch_step is not None:
        steps["dense_torch"] = jax.tree.map(np.asarray, torch_step())
    for step in steps.values():
        chex.assert_trees_all_close(step, steps["ours"], rtol=1e-4, atol=1e-5)


def test_large_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = load("large_batches", monkeypatch)
    out = tmp_path / "large_batches.json"
    sizes = ("--sizes", "16", "8192", "16384", "32768", "--measure", "16", "--dense-limit", "16")
    run(module, monkeypatch, *sizes, "--only", "info_nce", "--repeats", "1", "--out", str(out))
    content = json.loads(out.read_text())
    assert set(content["rows"][0]["seconds"]) == {"blocks", "at once", "optax"}
    assert [set(row["seconds"]) for row in content["rows"][1:]] == [set()] * 3
    assert 0 < content["exponent_of_bytes"] < 1.2
    assert "memory ~ rows^" in capsys.readouterr().out
    assert len(module.pair_losses()) == 16
    (row,) = module.limits(["info_nce"], ((64, 8),))
    assert 0 < row["bytes"] < row["limit"] == 4 * 4 * 64 * 8 + 2**27


def test_small_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = load("small_steps", monkeypatch)
    monkeypatch.setattr(module, "BATCH", 8)
    out = tmp_path / "small_steps.json"
    run(module, monkeypatch, "--only", "proxy_anchor", "--repeats", "1", "--out", str(out))
    (row,) = json.loads(out.read_text())["rows"]
    parts = {"products", "normalization", "normalized products", "loss"}
    assert set(row["milliseconds"]) == parts
    assert "proxy_anchor" in capsys.readouterr().out


def test_accelerator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The small form on a CPU: every section runs, and the CPU agrees with itself on a loss without and with proxies.

    Every method is made; two make a step.
    """
    module = load("accelerator", monkeypatch)
    made = {name: make() for name, make in module.programs.methods(8, 8).items()}
    few = {name: partial(made.get, name) for name in ("XBM", "sampled")}
    monkeypatch.setattr(module.programs, "methods", lambda classes, dim: few)
    monkeypatch.setattr(module, "CHECKED", ["triplet_loss", "arcface_loss"])
    monkeypatch.setattr(jdml.models, "create", lambda name, dim, **_: Pixels(dim))
    out = tmp_path / "device.jsonl"
    run(module, monkeypatch, "--small", "--repeats", "1", "--out", str(out))
    content = read_results(out)["accelerator_cpu"]
    assert set(content["rows"]) == set(module.SECTIONS)
    assert not content["failed"]
    assert all(row["right"] for row in content["rows"]["check"])
    for section in set(module.SECTIONS) - {"retrieval"}:  # of which one block is compiled
        compiled = {what for what, _ in module.programs_of(section)}
        assert {row["what"] for row in content["rows"][section]} <= compiled
    run(module, monkeypatch, "--small", "--budget", "0", "--only", "fields", "--out", str(out))
    assert "left out for lack of time: potential_field, 60 charges" in capsys.readouterr().out


def test_retrieval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ours, and theirs where it is installed, find the same."""
    module = load("retrieval", monkeypatch)
    out = tmp_path / "retrieval.json"
    run(module, monkeypatch, "--size", "120", "--repeats", "1", "--out", str(out))
    (row,) = json.loads(out.read_text())["rows"]
    assert row["seconds"]["jdml"] > 0
    assert row.get("largest_difference", 0) < 1e-6
    assert "120 x 128, R = 5" in capsys.readouterr().out
    out = tmp_path / "groups.jsonl"
    run(module, monkeypatch, "--groups", "120", "--repeats", "1", "--out", str(out))
    (row,) = read_results(out)["retrieval_groups"]["rows"]
    assert row["ratio"] == row["seconds"]["by groups"] / row["seconds"]["all count"]
    assert "120 queries, 120 x 128: " in capsys.readouterr().out


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


def test_image_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step and an embedding pass of a network, and of PyTorch's where it is installed."""
    module = load("image_training", monkeypatch)
    monkeypatch.setattr(module, "CASES", (module.Case("eps", 16, 8, 1, 3),))
    out = tmp_path / "results.jsonl"
    run(module, monkeypatch, "--repeats", "1", "--fresh-memory", "--parts", "--out", str(out))
    ((name, content),) = read_results(out).items()
    assert name.startswith("image_training_jax_")
    (row,) = content["rows"]
    assert row["forward"]["milliseconds"]["jdml"] < row["gradient"]["milliseconds"]["jdml"]
    assert set(row["step"]["milliseconds"]) - {"torch"} == {"jdml", "two devices"}
    for side in ("jdml", "two devices"):
        assert row["step"]["milliseconds"][side] > 0
        assert row["embedding"]["milliseconds"][side] > 0
    assert content["memory"] == "fresh"
    told = capsys.readouterr().out
    assert "eps" in told
    assert "two devices |" in told
    assert "jdml: forward" in told


def test_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both large programs are found by their names; a network begins twice, with one folder of programs."""
    jax.clear_caches()  # another test may have compiled them
    module = load("first_step", monkeypatch)
    monkeypatch.setattr(module, "CASES", {"eps": module.Case("eps", 8, 1, 2)})
    folders = []

    def here(case: tuple[str, int, int, int], programs: str) -> dict[str, float]:
        folders.append(programs)
        return module.first_step(case)

    monkeypatch.setattr(module, "in_new_process", here)
    out = tmp_path / "first.json"
    run(module, monkeypatch, "--out", str(out))
    (row,) = json.loads(out.read_text())["rows"]
    first = row["first"]
    assert first["initial values"] > 0
    assert first["the step"] > 0
    parts = first["initial values"] + first["the step"] + first["the rest"]
    assert np.isclose(parts, first["whole"])
    assert len(folders) == 2
    assert len(set(folders)) == 1
    assert "core-seconds" in capsys.readouterr().out


def test_convolutions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each part is measured beside XLA's and every other formulation, which agree; a record for each version of JAX."""
    module = load("convolutions", monkeypatch)
    cases = (module.Case(2, 5, 2, 3, 3), module.Case(2, 5, 2, 2, 3, 2, groups=2))
    monkeypatch.setattr(module, "CASES", cases)
    out = tmp_path / "results.jsonl"
    run(module, monkeypatch, "--repeats", "1", "--out", str(out))
    ((name, record),) = read_results(out).items()
    version = name.removeprefix("convolutions_jax_")
    assert version.count(".") == 1
    assert jax.__version__.startswith(f"{version}.")
    rows = record["rows"]
    assert [row["part"] for row in rows] == ["forward", "images", "kernel"] * 2
    assert all(row["chosen"] in row["milliseconds"] for row in rows)
    assert all(row["largest_difference"] < 1e-5 for row in rows)
    assert "chosen" in capsys.readouterr().out


def test_training_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step, pipeline and both together are measured in images per second."""
    pytest.importorskip("grain")
    module = load("training_from_files", monkeypatch)
    monkeypatch.setattr(module, "FILES", 4)
    monkeypatch.setattr(
        module.models, "create", lambda name, dim, **_: jdml.models.SmallConvNet(dim, (4, 4))
    )
    out = tmp_path / "training.json"
    run(module, monkeypatch, "--batch", "2", "--size", "16", "--steps", "1", "--out", str(out))
    (row,) = json.loads(out.read_text())["rows"]
    assert row["training_images_per_second"] > 0
    assert 0 <= row["waiting_share"] <= 1


def test_gallery_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both find the same rows; here without processes of their own."""
    pytest.importorskip("faiss")
    module = load("gallery_on_disk", monkeypatch)
    path = tmp_path / "gallery.npy"
    module.write_gallery(path, 30_000, 8)
    answers = {}
    for name in ("jdml", "faiss"):
        told: list[tuple[float, int, np.ndarray, np.ndarray]] = []
        module.search(name, path, 600, 3, types.SimpleNamespace(put=told.append))
        answers[name] = told[0]
    np.testing.assert_allclose(answers["jdml"][2], answers["faiss"][2], atol=1e-3)
    assert (answers["jdml"][3] == answers["faiss"][3]).mean() > 0.999


def test_micro_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The gradients agree, and both ways are timed."""
    module = load("micro_batches", monkeypatch)
    monkeypatch.setattr(module, "SmallConvNet", lambda dim, **_: Pixels(dim))
    out = tmp_path / "micro_batches.json"
    run(
        module,
        monkeypatch,
        "--sizes",
        "16",
        "4",
        "--side",
        "4",
        "--repeats",
        "1",
        "--out",
        str(out),
    )
    (row,) = json.loads(out.read_text())["rows"]
    assert row["relative_difference"] < 1e-5
    assert row["ratio"] > 0
    assert "16 rows, 4 at a time" in capsys.readouterr().out
