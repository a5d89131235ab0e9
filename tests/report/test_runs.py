"""Runs are read back from wherever they were written."""

import json

import numpy as np
import pytest
from report.written import train_config, write_run

from jdml import report
from jdml.cli.search import _of_file
from jdml.report import compare_runs, comparison_table, read_runs
from jdml.training.records import write_results


def test_a_run_of_train_is_read(tmp_path):
    log = [
        {"step": 1, "loss": 2.0, "seconds": 1.5},
        {"step": 2, "loss": None, "seconds": 3.0},
    ]
    scores = {"step": 2, "test digit": {"R@1": 0.5, "queries": 9}}
    place = write_run(tmp_path / "a", train_config(), scores, log)
    (place / "resources.json").write_text('{"memory_mib": 70.5}')
    (run,) = read_runs(place)
    assert (run.name, run.seed, run.metrics) == ("a", 0, {"test digit R@1": 0.5})
    assert run.settings == {"data": "digits", "loss": "triplet", "lr": 0.001}
    assert (run.seconds, run.memory, run.command) == (3.0, 70.5, "jdml train --lr 0.001")
    assert [record["step"] for record in run.log] == [1, 2]
    assert not run.trained


def test_a_run_of_fit_is_told_by_its_fingerprints(tmp_path):
    for name, objective in (("a", "one"), ("b", "another")):
        config = {"fit": {"steps": 4, "seed": 3}, "fingerprint": {"objective": objective}}
        write_run(tmp_path / name, config, {"MAP@R": 0.25})
    runs = read_runs(tmp_path)
    assert [run.seed for run in runs] == [3, 3]
    assert [row.name for row in compare_runs(runs).rows] == ["a", "b"]


def test_the_runs_of_benchmark_are_read(tmp_path):
    options = {
        "method": "pfml",
        "protocol": "conventional",
        "seed": 4,
        "data_dir": "/x",
    }
    seeds = [{"ours": {"R@1": value}} for value in (0.25, 0.75)]
    folder = tmp_path / "b"
    for seed in (4, 5):
        config = {"benchmark": options, "started": {"paper": {"R@1": 73.4}}}
        write_run(folder / f"seed{seed}", config, log=[{"step": seed, "loss": 1}])
    told = {"options": options, "ours": {"R@1": 0.5}}
    (folder / "metrics.json").write_text(json.dumps({**told, "seeds": seeds}))
    runs = read_runs(folder)
    assert [(run.name, run.seed, run.metrics, run.log[0]["step"]) for run in runs] == [
        ("b-4", 4, {"R@1": 0.25}, 4),
        ("b-5", 5, {"R@1": 0.75}, 5),
    ]
    columns, rows = comparison_table(compare_runs(runs))
    assert columns == ["run", "runs", "R@1, %"]
    assert rows == [["b", "2", "50.0 ± 35.4"], ["paper", "–", "73.4"]]


def test_each_part_of_a_row_stands_beside_its_own(tmp_path):
    told = {
        "options": {"protocol": "mlrc"},
        "separated": {"P@1": 0.6},
        "concatenated": {"P@1": 0.7},
    }
    paper = {"separated P@1": 62.39, "concatenated P@1": 69.73}
    write_run(tmp_path / "b" / "fold0", {"started": {"paper": paper}})
    (tmp_path / "b" / "metrics.json").write_text(json.dumps(told))
    assert compare_runs(read_runs(tmp_path / "b")).papers == {"paper": paper}


def test_four_folds_are_one_run(tmp_path):
    rows = {"separated": {"MAP@R": 0.25}, "concatenated": {"MAP@R": 0.5}, "std": {"MAP@R": 0.1}}
    for fold in range(4):
        log = [{"step": 7 + fold, "loss": 1, "seconds": 1.5 + fold}]
        folder = write_run(tmp_path / "m" / f"fold{fold}", {"benchmark": {}}, log=log)
        (folder / "resources.json").write_text(json.dumps({"memory_mib": 100 + fold}))
    scores = {"options": {"protocol": "mlrc", "seed": 0}, **rows}
    (tmp_path / "m" / "metrics.json").write_text(json.dumps(scores))
    (run,) = read_runs(tmp_path / "m")
    assert run.metrics == {"separated MAP@R": 0.25, "concatenated MAP@R": 0.5}
    assert run.log[0]["step"] == 7
    assert (run.seconds, run.memory) == (12.0, 103)


def test_folds_of_a_benchmark_that_goes_on_have_scores_of_held_out_classes_alone(tmp_path):
    config = {"started": {"command": "jdml benchmark --protocol mlrc"}, "recipe": {"loss": "pfml"}}
    for seed in (0, 1):
        scores = {"step": 4, "R@1": 0.5 + seed / 4}
        write_run(tmp_path / "m" / f"fold{seed}", {**config, "fit": {"seed": seed}}, scores)
    runs = read_runs(tmp_path / "m")
    assert [run.metrics for run in runs] == [{"validation R@1": 0.5}, {"validation R@1": 0.75}]


def test_the_jobs_of_a_sweep_are_seeds_of_its_settings(tmp_path):
    jobs = {
        f"triplet-{seed}": {"job": {"name": f"triplet-{seed}", "loss": "triplet", "seed": seed}}
        for seed in (0, 1)
    }
    write_results(
        tmp_path / "sweep.jsonl", {k: {**v, "metrics": {"R@1": 0.5}} for k, v in jobs.items()}
    )
    (row,) = compare_runs(read_runs(tmp_path / "sweep.jsonl")).rows
    assert row.values == {"R@1": [0.5, 0.5]}


def test_a_study_and_a_demo_are_read(tmp_path):
    study = {
        f"{name}-{seed}": {
            "job": {"method": name, "seed": seed},
            "metrics": {"R@1": seed / 4, "spectrum": [1, 2]},
            "seconds": 2.0,
        }
        for name in ("EPS", "MS")
        for seed in (1, 2)
    }
    (tmp_path / "s").mkdir()
    write_results(tmp_path / "s" / "results.jsonl", study)
    for place in (tmp_path / "s", tmp_path / "s" / "results.jsonl"):
        rows = compare_runs(read_runs(place)).rows
        assert [(row.name, row.values["R@1"]) for row in rows] == [
            ("EPS", [0.25, 0.5]),
            ("MS", [0.25, 0.5]),
        ]
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "metrics.json").write_text(json.dumps({"EPS": {"R@1": [0.5, 0.75]}}))
    assert [run.name for run in read_runs(tmp_path / "d")] == ["EPS-0", "EPS-1"]


def test_embeddings_in_a_file_are_read(tmp_path):
    x = np.eye(4, dtype=np.float32)
    np.savez(
        tmp_path / "e.npz", embeddings=x, labels=np.array(["b", "a", "b", "a"]), files=list("wxyz")
    )
    (run,) = read_runs(tmp_path / "e.npz")
    assert run.data.labels.tolist() == [1, 0, 1, 0]
    assert run.data.class_names["class"] == ("a", "b")
    assert [str(file) for file in run.data.images.files] == list("wxyz")
    np.savez(tmp_path / "bare.npz", embeddings=x)
    (bare,) = read_runs(tmp_path / "bare.npz")
    assert bare.data.views == {}
    levels = np.array([["b", "q"], ["a", "p"], ["b", "r"], ["a", "p"]])
    np.savez(tmp_path / "levels.npz", embeddings=x, labels=levels)
    (by_level,) = read_runs(tmp_path / "levels.npz")
    assert by_level.data.class_names == {"level 0": ("a", "b"), "level 1": ("p", "q", "r")}
    assert by_level.data.labels.tolist() == [1, 0, 2, 0]
    assert _of_file(tmp_path / "levels.npz", None, drawn=False).labels.tolist() == list("qprp")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.eye(2)}, "has no array 'embeddings'; it has x"),
        ({"embeddings": np.ones(3)}, r"must be \[N, D\], got \[3\]"),
        ({"embeddings": np.full((2, 2), np.nan)}, "must be finite in float32, row 0 is not"),
        (
            {"embeddings": np.eye(2), "labels": np.arange(3)},
            r"labels of .* \[N\] = \[2\], got \[3\]",
        ),
    ],
)
def test_embeddings_that_are_none_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "e.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        read_runs(tmp_path / "e.npz")


def test_places_without_runs_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_runs(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="holds no run"):
        read_runs(tmp_path)
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(ValueError, match=r"neither a folder nor a \.npz"):
        read_runs(tmp_path / "a.txt")
    (tmp_path / "b.npz").write_text("no zip")
    with pytest.raises(ValueError, match=r"not a readable \.npz file"):
        read_runs(tmp_path / "b.npz")


def test_a_study_that_two_paths_lead_to_is_one(tmp_path, monkeypatch):
    runs = {f"a-{seed}": {"job": {"seed": seed}, "metrics": {"R@1": 0.5}} for seed in (0, 1)}
    write_results(tmp_path / "results.jsonl", runs)
    monkeypatch.chdir(tmp_path)
    assert [run.name for run in read_runs(tmp_path, ".")] == ["a-0", "a-1"]


def test_runs_of_one_name_are_told_apart(tmp_path):
    for parent in ("x", "y"):
        write_run(tmp_path / parent / "a", train_config(seed=0, parent=parent))
    names = [
        run.name for run in read_runs(tmp_path / "x" / "a", tmp_path / "y" / "a", tmp_path / "x")
    ]
    assert names == ["x/a", "y/a"]
    (tmp_path / "x" / "latest").symlink_to(tmp_path / "x" / "a")
    assert [run.name for run in read_runs(tmp_path / "x")] == ["a"]


def test_a_sweep_s_first_run_is_the_baseline_of_all(tmp_path):
    for name in ("b-0", "a-0", "c-0"):
        write_run(tmp_path / "s" / name, train_config(loss=name, seed=0), {"step": 1, "R@1": 0.5})
    assert [run.name for run in read_runs(tmp_path / "s")] == ["a-0", "b-0", "c-0"]
    (tmp_path / "s" / "sweep.json").write_text('["c-0", "b-0"]')
    for place in (tmp_path / "s", tmp_path):
        assert [run.name for run in read_runs(place)] == ["c-0", "b-0", "a-0"]


def test_curves_are_drawn_from_logs_and_folders(tmp_path):
    log = [{"step": s, "loss": 1 / s, "R@1": s / 9 if s > 1 else None} for s in (1, 2, 3)]
    figure = report.curves({"a": log, "b": [log, log]})
    assert [axes.get_title() for axes in figure.axes] == ["loss", "R@1"]
    assert len(figure.axes[0].lines) == 3
    assert figure.axes[1].lines[0].get_xdata().tolist() == [2, 3]
    write_run(tmp_path / "r", train_config(), log=log)
    assert len(report.curves(tmp_path / "r", metrics=["loss"]).axes) == 1
    with pytest.raises(ValueError, match="metrics must be among loss, R@1, got 'x'"):
        report.curves({"a": log}, metrics=["x"])
    with pytest.raises(ValueError, match="nothing that can be drawn"):
        report.curves({"a": [{"step": 1}]})
