"""Reading of runs of every command."""

import itertools
import json

import numpy as np
import pytest
from report.files import train_config, write_run

from jdml.cli import main
from jdml.report import compare_runs, comparison_table, read_runs
from jdml.runs.embedding_io import read_embeddings


def test_run_of_train_is_read(tmp_path):
    log = [{"step": 1, "loss": 2.0, "seconds": 1.5}, {"step": 2, "loss": None, "seconds": 3.0}]
    scores = {"step": 2, "test digit": {"R@1": 0.5, "queries": 9}}
    place = write_run(tmp_path / "a", train_config(), scores, log)
    (place / "resources.json").write_text('{"memory_mib": 70.5}')
    (run,) = read_runs(place)
    assert (run.name, run.seed, run.metrics) == ("a", 0, {"test digit R@1": 0.5})
    assert run.settings == {"data": "digits", "loss": "triplet", "optimizer.learning_rate": 0.001}
    assert (run.seconds, run.memory, run.command) == (3.0, 70.5, "jdml train --lr 0.001")
    assert [record["step"] for record in run.log] == [1, 2]
    assert not run.trained


def test_run_of_fit_is_identified_by_its_fingerprints(tmp_path):
    for name, objective in (("a", "one"), ("b", "another")):
        config = {"fit": {"steps": 4, "seed": 3}, "fingerprint": {"objective": objective}}
        write_run(tmp_path / name, config, {"MAP@R": 0.25})
    runs = read_runs(tmp_path)
    assert [run.seed for run in runs] == [3, 3]
    assert [row.name for row in compare_runs(runs).rows] == ["a", "b"]


def test_runs_of_other_files_or_networks_are_separate_rows(tmp_path):
    """A factory's settings may hold the seed."""
    for seed, files in enumerate((1, 2, 2)):
        config = train_config(seed=seed, provenance={"files_checksum": files})
        write_run(tmp_path / "typed" / f"a-{seed}", config)
    rows = compare_runs(read_runs(tmp_path / "typed")).rows
    assert [[run.seed for run in row.runs] for row in rows] == [[0], [1, 2]]
    for dims in ((4, 4), (4, 8)):
        place = tmp_path / f"own{dims[1]}"
        for seed, dim in enumerate(dims):
            network = {"factory": "nets:net", "settings": {"seed": seed}, "dim": dim}
            write_run(place / f"a-{seed}", {"fit": {"seed": seed}, "embedding": network})
        assert len(compare_runs(read_runs(place)).rows) == len(set(dims))


def test_runs_of_benchmark_are_read(tmp_path):
    options = {"method": "pfml", "protocol": "conventional", "seed": 4, "data_dir": "/x"}
    seeds = [{"ours": {"R@1": value}} for value in (0.25, 0.75)]
    folder = tmp_path / "b"
    for seed in (4, 5):
        config = {"benchmark": options, "provenance": {"paper": {"R@1": 73.4}}}
        write_run(folder / f"seed{seed}", config, log=[{"step": seed, "loss": 1}])
    scores = {"options": options, "ours": {"R@1": 0.5}, "seeds": seeds}
    (folder / "metrics.json").write_text(json.dumps(scores))
    runs = read_runs(folder)
    assert [(run.name, run.seed, run.metrics, run.log[0]["step"]) for run in runs] == [
        ("b-4", 4, {"R@1": 0.25}, 4),
        ("b-5", 5, {"R@1": 0.75}, 5),
    ]
    columns, rows = comparison_table(compare_runs(runs))
    assert columns == ["run", "runs", "R@1, %"]
    assert rows == [["b", "2", "50.0 ± 35.4"], ["paper", "–", "73.4"]]


def test_four_folds_are_one_run(tmp_path):
    rows = {"separated": {"MAP@R": 0.25}, "concatenated": {"MAP@R": 0.5}, "std": {"MAP@R": 0.1}}
    paper = {"separated MAP@R": 22.39, "concatenated MAP@R": 29.73}
    for fold in range(4):
        log = [{"step": 7 + fold, "loss": 1, "seconds": 1.5 + fold}]
        config = {"benchmark": {}, "provenance": {"paper": paper}}
        folder = write_run(tmp_path / "m" / f"fold{fold}", config, log=log)
        (folder / "resources.json").write_text(json.dumps({"memory_mib": 100 + fold}))
    scores = {"options": {"protocol": "mlrc", "seed": 0}, **rows}
    (tmp_path / "m" / "metrics.json").write_text(json.dumps(scores))
    (run,) = read_runs(tmp_path / "m")
    assert run.metrics == {"separated MAP@R": 0.25, "concatenated MAP@R": 0.5}
    assert run.log[0]["step"] == 7
    assert (run.seconds, run.memory) == (12.0, 103)
    assert compare_runs([run]).papers == {"paper": paper}


def test_folds_of_an_unfinished_benchmark_have_validation_scores(tmp_path):
    started = {"command": "jdml benchmark --protocol mlrc"}
    config = {"provenance": started, "recipe": {"loss": {"name": "pfml"}}}
    for seed in (0, 1):
        scores = {"step": 4, "R@1": 0.5 + seed / 4}
        write_run(tmp_path / "m" / f"fold{seed}", {**config, "fit": {"seed": seed}}, scores)
    runs = read_runs(tmp_path / "m")
    assert [run.metrics for run in runs] == [{"validation R@1": 0.5}, {"validation R@1": 0.75}]


def test_study_is_read(tmp_path, monkeypatch):
    records = [
        {"name": f"{method}-{seed}", "job": {"method": method, "seed": seed}, "seconds": 2.0}
        | {"metrics": {"R@1": seed / 4, "spectrum": [1, 2]}}
        for method, seed in itertools.product(("EPS", "MS"), (1, 2))
    ]
    (tmp_path / "results.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in records))
    monkeypatch.chdir(tmp_path)
    for places in ([tmp_path], ["results.jsonl"], [tmp_path, "."]):
        rows = compare_runs(read_runs(*places)).rows
        expected = {"EPS": [0.25, 0.5], "MS": [0.25, 0.5]}
        assert {row.name: row.values["R@1"] for row in rows} == expected


def test_embeddings_in_a_file_are_read(tmp_path):
    x = np.eye(4, dtype=np.float32)
    np.savez(tmp_path / "e.npz", embeddings=x, labels=list("baba"), files=list("wxyz"))
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


def test_paths_without_runs_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "b.npz").write_text("no zip")
    for name in ("empty", "a.txt", "b.npz"):
        with pytest.raises(ValueError, match=rf"\b{name}\b"):
            read_runs(tmp_path / name)


def test_embeddings_of_text_are_refused_by_their_file(tmp_path, capsys):
    file = tmp_path / "words.npz"
    np.savez(file, embeddings=np.full((4, 2), "0.5"), labels=np.arange(4) % 2)
    for read in (read_runs, read_embeddings):
        with pytest.raises(ValueError, match=rf"^embeddings of {file} .*<U3"):
            read(file)
    assert main(["report", str(file), "--out", str(tmp_path / "r.html")]) == 2
    assert f"embeddings of {file} " in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()


def test_runs_with_equal_names_are_named_by_their_folders(tmp_path):
    for parent in ("x", "y"):
        write_run(tmp_path / parent / "a", train_config(seed=0, parent=parent))
    runs = read_runs(tmp_path / "x" / "a", tmp_path / "y" / "a", tmp_path / "x")
    assert [run.name for run in runs] == ["x/a", "y/a"]
    (tmp_path / "x" / "latest").symlink_to(tmp_path / "x" / "a")
    assert [run.name for run in read_runs(tmp_path / "x")] == ["a"]


def test_first_run_of_a_sweep_is_the_baseline(tmp_path):
    for name in ("b-0", "a-0", "c-0"):
        write_run(tmp_path / "s" / name, train_config(loss=name, seed=0), {"step": 1, "R@1": 0.5})
    assert [run.name for run in read_runs(tmp_path / "s")] == ["a-0", "b-0", "c-0"]
    (tmp_path / "s" / "sweep.json").write_text('["c-0", "b-0"]')
    for place in (tmp_path / "s", tmp_path):
        assert [run.name for run in read_runs(place)] == ["c-0", "b-0", "a-0"]
