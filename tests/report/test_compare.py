"""Comparison of runs: seeds of a row, paired differences, the summary, and the command."""

import csv
import re
from dataclasses import replace

import pytest
from report.files import train_config, write_run

from jdml.cli import main
from jdml.report import (
    Run,
    compare_runs,
    comparison_records,
    comparison_table,
    holm_correction,
    paired_difference,
    read_runs,
    summary_sentences,
)


def runs_of(metric="test class R@1", **values):
    return [
        Run(f"{name}-{seed}", {"loss": name}, seed, {metric: value})
        for name, of_seeds in values.items()
        for seed, value in enumerate(of_seeds)
    ]


A, B = (0.5, 0.6, 0.4), (0.55, 0.7, 0.5)
MORE = {"seconds": 60.0, "memory": 99.0}
RUNS = [
    Run(run.name, run.settings | {"lr": 0.1}, run.seed, run.metrics | {"loss": 9.0}, **MORE)
    for run in runs_of("R@1", a=A, b=B)
]


def test_differences_are_paired_with_intervals():
    comparison = compare_runs(RUNS)
    base, other = comparison.rows
    assert comparison.settings == []  # the rows are named by the loss
    assert base.differences == {}
    expected = paired_difference(*(dict(enumerate(values)) for values in (B, A)), scale=1)
    assert other.differences["R@1"] == pytest.approx(expected)
    wider = compare_runs(RUNS, confidence=0.99).rows[1].differences["R@1"]
    assert wider.low < expected.low
    columns, rows = comparison_table(comparison)
    assert columns == ["run", "runs", "R@1, %", "Δ R@1", "loss", "Δ loss", "time", "memory"]
    expected = ["a", "3", "50.0 ± 10.0", "baseline", "9 ± 0", "baseline", "1 min 0 s", "99 MiB"]
    assert rows[0] == expected
    assert rows[1][:4] == ["b", "3", "58.3 ± 10.4", "+8.3 [+1.2, +15.5]"]


def test_only_shared_seeds_are_compared():
    runs = [
        *RUNS[:3],
        Run("b", {"loss": "b", "lr": 0.2}, 7, {"R@1": 0.9}),
        Run("c", {"loss": "c"}, 2, {"R@1": 0.5}),
    ]
    comparison = compare_runs(runs, baseline="a", metrics=("R@1",))
    assert comparison.settings == ["lr"]
    assert comparison.rows[1].differences == {}
    alone = comparison.rows[2].differences["R@1"]
    assert (round(alone.mean, 6), alone.seeds) == (0.1, 1)
    record = comparison_records(comparison)[2]
    assert round(record["R@1 difference"], 6) == 0.1
    assert record["R@1 difference low"] == record["R@1 difference high"] == ""
    _, rows = comparison_table(comparison)
    assert [row[4] for row in rows] == ["baseline", "–", "+10.0 (n = 1)"]


def test_runs_without_a_score_are_listed_and_not_counted():
    runs = runs_of("R@1", a=(0.4, 0.5, 0.6), b=(0.45, 0.6, 0.65))
    runs[-1] = Run("b-2", {"loss": "b"}, 2)
    comparison = compare_runs(runs)
    _, rows = comparison_table(comparison)
    assert [row[1:3] for row in rows] == [["3", "50.0 ± 10.0"], ["3", "52.5 ± 10.6 (2 of 3)"]]
    assert summary_sentences(comparison)[-1].endswith(": b-2")
    assert [record["R@1 runs"] for record in comparison_records(comparison)] == [3, 2]


def test_setting_named_like_a_metric_is_renamed():
    settings = [
        {"loss": "a", "on": True, "lr": 1 / 3},
        {"loss": "b", "on": None, "lr": 0.1234567891},
    ]
    runs = [Run(f"{i}", some, 0, {"loss": 0.8}) for i, some in enumerate(settings)]
    columns = ("loss", "setting loss", "on", "lr")
    records = [[of[name] for name in columns] for of in comparison_records(compare_runs(runs))]
    assert records == [[0.8, "a", "yes", 1 / 3], [0.8, "b", "–", 0.1234567891]]


def test_rows_with_equal_names_are_numbered():
    runs = [
        *(Run(f"t-{seed}", {"l": 1}, seed, {"R@1": 0.5}) for seed in (0, 1)),
        Run("t", {"l": 2}, 0, {"R@1": 0.6}),
        Run("t", {"l": 3}, 0, {"R@1": 0.7}),
    ]
    assert [row.name for row in compare_runs(runs).rows] == ["t-0", "t", "t (2)"]
    assert compare_runs(runs, baseline="t").rows[0].settings == {"l": 2}
    assert compare_runs(runs, baseline="t-1").rows[0].settings == {"l": 1}


def test_each_papers_numbers_are_one_row():
    runs = [
        Run(name, {"method": name}, 0, {"ours R@1": 0.5}, paper={"R@1": value})
        for name, value in (("pfml", 73.4), ("proxy_anchor", 69.7), ("again", 73.4))
    ]
    _, rows = comparison_table(compare_runs(runs))
    assert [row[0] for row in rows[3:]] == ["paper of pfml", "paper of proxy_anchor"]
    assert ["73.4" in rows[3], "69.7" in rows[4]] == [True, True]
    assert compare_runs(runs[::2]).papers == {"paper": {"ours R@1": 73.4}}


def test_default_metrics_are_the_usual_ones():
    names = [f"{view} {kind}" for view in "xy" for kind in ("MAP@R", "R@1", "R@2", "R@4", "RP")]
    runs = [Run("a", {}, 0, dict.fromkeys(names, 0.5))]
    assert compare_runs(runs).shown == ["x R@1", "x MAP@R", "y R@1", "y MAP@R"]
    assert compare_runs(runs, metrics=["R@2", "y RP"]).shown == ["x R@2", "y R@2", "y RP"]


TWO = [replace(run, metrics=run.metrics | {"test class MAP@R": 0.3}) for run in runs_of(a=A, b=B)]
CLOSE = {"a": A, "b": B, "c": (0.5, 0.6, 0.41), "d": (0.4, 0.6, 0.4)}


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        (runs_of(a=A, b=B), [r"b is better than a by 8\.3 points of .* R@1 .*1\.2 to 15\.5"]),
        (runs_of(a=B, b=A), [r"b is worse than a by 8\.3 points .*1\.2 to 15\.5, 3 seeds"]),
        (runs_of(a=A, b=(0.6, 0.5, 0.5)), [r"b cannot .* 3 seeds; about 97 .* 3\.3 points"]),
        (TWO, [r"^b cannot .* MAP@R", r"^b is better .* R@1"]),  # monitored first
        (runs_of(a=(0.5,), b=(0.9,)), ["--seeds"]),
        (runs_of(**CLOSE), [r"^b, c, d cannot ", r"Holm.* 3 rows"]),
        (runs_of("loss", a=(1.0, 2.0), b=(5.0, 6.001)), ["b has a higher loss than a by 4 "]),
    ],
)
def test_summary_sentences(runs, expected):
    lines = summary_sentences(compare_runs(runs))
    for line, pattern in zip(lines, expected, strict=False):
        assert re.search(pattern, line), lines
    assert ("test part" in lines[-1]) == ("loss" not in runs[0].metrics)


def test_intervals_exclude_zero_exactly_where_holms_correction_is_significant():
    comparison = compare_runs(runs_of("R@1", **CLOSE, e=tuple(x + 0.2 for x in B)))
    differences = [row.differences["R@1"] for row in comparison.rows[1:]]
    corrected = holm_correction({place: d.p for place, d in enumerate(differences)})
    significant = [not d.low <= 0 <= d.high for d in differences]
    assert significant == [corrected[place] < 0.05 for place in range(len(differences))]
    assert 0 < sum(significant) < len(differences)


def test_comparison_uses_held_out_scores_if_there_are_any():
    runs = [
        Run(name, {"loss": name}, 0, {"test class R@1": test, "validation class R@1": held_out})
        for name, test, held_out in (("a", 0.5, 0.6), ("b", 0.9, 0.5))
    ]
    for metrics in ([], ["R@1"]):
        comparison = compare_runs(runs, metrics=metrics)
        assert comparison.shown == ["validation class R@1"]
        assert "held-out" in summary_sentences(comparison)[-1]
    comparison = compare_runs(runs, metrics=["test class R@1"])
    assert comparison.shown == ["test class R@1"]
    assert "--validation" in summary_sentences(comparison)[-1]


def test_compare_prints_and_writes(tmp_path, capsys):
    for run in RUNS:
        config = train_config(loss=run.settings["loss"], seed=run.seed)
        scores = {"step": 1, "R@1": run.metrics["R@1"]}
        write_run(tmp_path / "runs" / run.name, config, scores)
    place, table = str(tmp_path / "runs"), str(tmp_path / "c.csv")
    assert main(["compare", place, "--csv", table, "--markdown", "-"]) == 0
    assert "| b   | 3    | 58.3 ± 10.4 | +8.3 [+1.2, +15.5] |" in capsys.readouterr().out
    records = list(csv.DictReader((tmp_path / "c.csv").read_text().splitlines()))
    expected = comparison_records(compare_runs(read_runs(place)))
    assert records == [{name: str(value) for name, value in row.items()} for row in expected]
    assert main(["compare", place, "--baseline", "b"]) == 0
    shown = capsys.readouterr().out
    assert shown.index(" b ") < shown.index(" a ")
    assert main(["compare", str(tmp_path / "none")]) == 2
    assert str(tmp_path / "none") in capsys.readouterr().err
