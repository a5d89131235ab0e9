"""Runs side by side: seeds of a row, paired differences, what may be said of them, and the command's words."""

import csv
import io

import numpy as np
import pytest
from report.written import train_config, write_run
from scipy import stats

from jdml.cli import main
from jdml.cli.sweep import Sweep
from jdml.report import Run, compare_runs, comparison_records, comparison_table, read_runs, verdict
from jdml.report.compare import duration, is_share, size

RUNS = [
    Run(
        f"{loss}-{seed}",
        {"loss": loss, "lr": 0.1},
        seed,
        {"R@1": value, "loss": 9.0},
        seconds=60.0,
        memory=99.0,
    )
    for loss, values in (("a", (0.5, 0.6, 0.4)), ("b", (0.55, 0.7, 0.5)))
    for seed, value in enumerate(values)
]


def test_differences_are_paired_and_students():
    comparison = compare_runs(RUNS)
    base, other = comparison.rows
    assert comparison.settings == []  # the loss is the rows' name
    assert base.differences == {}
    actual = other.differences["R@1"]
    expected = stats.ttest_rel(other.values["R@1"], base.values["R@1"]).confidence_interval(0.95)
    assert actual.seeds == 3
    np.testing.assert_allclose(actual.mean, 0.25 / 3)
    np.testing.assert_allclose((actual.low, actual.high), expected)
    wider = compare_runs(RUNS, confidence=0.99).rows[1].differences["R@1"]
    assert wider.low < actual.low
    columns, rows = comparison_table(comparison)
    assert columns == ["run", "runs", "R@1, %", "Δ R@1", "loss", "Δ loss", "time", "memory"]
    assert rows[0] == [
        "a",
        "3",
        "50.0 ± 10.0",
        "baseline",
        "9 ± 0",
        "baseline",
        "1 min 0 s",
        "99 MiB",
    ]
    assert rows[1][:4] == ["b", "3", "58.3 ± 10.4", "+8.3 [+1.2, +15.5]"]


def test_seeds_that_are_not_shared_are_not_compared():
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


def test_runs_without_a_score_are_told_and_not_counted():
    runs = [
        Run(
            f"{loss}-{seed}",
            {"loss": loss},
            seed,
            {"R@1": value} if (loss, seed) != ("b", 2) else {},
        )
        for loss, values in {"a": (0.4, 0.5, 0.6), "b": (0.45, 0.6, 0.65)}.items()
        for seed, value in enumerate(values)
    ]
    comparison = compare_runs(runs)
    _, rows = comparison_table(comparison)
    assert [row[:3] for row in rows] == [
        ["a", "3", "50.0 ± 10.0"],
        ["b", "3", "52.5 ± 10.6 (2 of 3)"],
    ]
    assert "without a score: b-2" in verdict(comparison)
    assert [record["R@1 runs"] for record in comparison_records(comparison)] == [3, 2]
    alone = compare_runs([*runs[:2], *runs[5:]])
    assert verdict(alone)[-2:] == [
        "of chance only seeds tell that both rows have, two at least: here are none",
        "without a score: b-2",
    ]


def test_records_keep_settings_apart_from_what_they_are_called_like():
    settings = [
        {"loss": "a", "run": 1, "seconds": 0.1, "lr": 1 / 3, "R@1 runs": True, "on": None},
        {
            "loss": "b",
            "run": 2,
            "seconds": 0.2,
            "lr": 0.1234567891,
            "R@1 runs": False,
            "on": [1, 2],
        },
    ]
    runs = [
        Run(f"{i}", own, 0, {"R@1": 0.5, "loss": 0.8}, seconds=3.0)
        for i, own in enumerate(settings)
    ]
    one, other = comparison_records(compare_runs(runs))
    assert (one["run"], one["setting run"], one["seconds"], one["setting seconds"]) == (
        "0",
        1,
        3.0,
        0.1,
    )
    assert (one["loss"], one["setting loss"], other["setting loss"]) == (0.8, "a", "b")
    assert (one["lr"], other["lr"], one["setting R@1 runs"]) == (1 / 3, 0.1234567891, "yes")
    assert (one["on"], other["on"]) == ("–", "1 2")


def test_rows_of_one_name_are_told_apart():
    runs = [
        *(Run(f"t-{seed}", {"l": 1}, seed, {"R@1": 0.5}) for seed in (0, 1)),
        Run("t", {"l": 2}, 0, {"R@1": 0.6}),
        Run("t", {"l": 3}, 0, {"R@1": 0.7}),
    ]
    assert [row.name for row in compare_runs(runs).rows] == ["t-0", "t", "t (2)"]
    assert compare_runs(runs, baseline="t").rows[0].settings == {"l": 2}
    assert compare_runs(runs, baseline="t-1").rows[0].settings == {"l": 1}
    twice = [
        Run(name, {"l": name, "m": m}, m, {"R@1": 0.5}) for name in ("a-0", "a-1") for m in (0, 1)
    ]
    named = [Run("x-1", run.settings, run.seed, run.metrics) for run in twice]
    with pytest.raises(ValueError, match="baseline 'x-1' is a run of several rows|must be one of"):
        compare_runs([Run("y", {}, 3, {}), *named[1:]], baseline="x-2")


def test_papers_that_report_other_numbers_are_told_apart():
    runs = [
        Run(name, {"method": name}, 0, {"ours R@1": 0.5}, paper={"R@1": value})
        for name, value in (("pfml", 73.4), ("proxy_anchor", 69.7), ("again", 73.4))
    ]
    _, rows = comparison_table(compare_runs(runs))
    assert [row[0] for row in rows[3:]] == ["paper of pfml", "paper of proxy_anchor"]
    assert ["73.4" in rows[3], "69.7" in rows[4]] == [True, True]
    assert compare_runs(runs[::2]).papers == {"paper": {"ours R@1": 73.4}}


def test_two_runs_of_one_seed_are_two_rows():
    twice = [RUNS[0], RUNS[0]]
    assert len(compare_runs(twice).rows) == 2


def test_the_baseline_is_chosen():
    assert [row.name for row in compare_runs(RUNS, baseline="b-1").rows] == ["b", "a"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"baseline": "x"}, "baseline must be one of a, b, got 'x'"),
        ({"metrics": ["x"]}, "metrics must be among R@1, loss, got 'x'"),
        ({"confidence": 1.0}, r"confidence must be between 0 and 1, got 1\.0"),
    ],
)
def test_what_there_is_not_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        compare_runs(RUNS, **settings)
    with pytest.raises(ValueError, match="at least one run"):
        compare_runs([])


def test_many_metrics_are_cut_to_the_usual_ones():
    names = [f"{view} {kind}" for view in "xy" for kind in ("MAP@R", "R@1", "R@2", "R@4", "RP")]
    runs = [Run("a", {}, 0, dict.fromkeys(names, 0.5))]
    assert compare_runs(runs).shown == ["x R@1", "x MAP@R", "y R@1", "y MAP@R"]
    assert compare_runs(runs, metrics=["R@2", "y RP"]).shown == ["x R@2", "y R@2", "y RP"]


def test_numbers_are_shown_as_people_read_them():
    assert is_share("test digit/MAP@R")
    assert not is_share("loss")
    assert (duration(None), duration(7300), size(2048)) == ("–", "2 h 1 min", "2.0 GiB")


def test_compare_prints_and_writes(tmp_path, capsys):
    for run in RUNS:
        scores = {"step": 1, "R@1": run.metrics["R@1"]}
        write_run(
            tmp_path / "runs" / run.name,
            train_config(loss=run.settings["loss"], seed=run.seed),
            scores,
        )
    assert (
        main(
            ["compare", str(tmp_path / "runs"), "--csv", str(tmp_path / "c.csv"), "--markdown", "-"]
        )
        == 0
    )
    assert "| b   | 3    | 58.3 ± 10.4 | +8.3 [+1.2, +15.5] |" in capsys.readouterr().out
    records = list(csv.DictReader(io.StringIO((tmp_path / "c.csv").read_text())))
    assert [record["run"] for record in records] == ["a", "b"]
    assert float(records[1]["R@1 difference"]) == pytest.approx(0.25 / 3)
    assert records == [
        {k: str(v) for k, v in r.items()}
        for r in comparison_records(compare_runs(read_runs(tmp_path / "runs")))
    ]
    assert main(["compare", str(tmp_path / "runs"), "--baseline", "b"]) == 0
    shown = capsys.readouterr().out
    assert shown.index(" b ") < shown.index(" a ")
    assert main(["compare", str(tmp_path / "none")]) == 2
    assert "does not exist" in capsys.readouterr().err


def runs_of(metric="test class R@1", **values):
    """Runs by setting, a seed each value."""
    return [
        Run(f"{name}-{seed}", {"loss": name}, seed, {metric: value})
        for name, of_seeds in values.items()
        for seed, value in enumerate(of_seeds)
    ]


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        (
            runs_of(a=(0.5, 0.6, 0.4), b=(0.55, 0.7, 0.5)),
            ["better than a: b +8.3 [+1.2, +15.5] (n = 3)"],
        ),
        (runs_of(a=(0.55, 0.7, 0.5), b=(0.5, 0.6, 0.4)), ["worse than a: b -8.3"]),
        (
            runs_of(a=(0.5, 0.6, 0.4), b=(0.6, 0.5, 0.5)),
            ["these runs cannot tell from a: b +3.3 [-25.4, +32.0] (n = 3)"],
        ),
        (
            runs_of(a=(0.5,), b=(0.9,)),
            ["these runs cannot tell from a-0: b-0 +40.0 (n = 1)", "one seed tells nothing"],
        ),
        (
            runs_of(a=(0.5, 0.6, 0.4), b=(0.55, 0.7, 0.5), c=(0.5, 0.6, 0.41), d=(0.4, 0.6, 0.4)),
            ["these runs cannot tell from a: b +8.3", "Holm's correction over 3 differences, 95%"],
        ),
        (runs_of("loss", a=(1.0, 2.0), b=(5.0, 6.001)), ["loss: more than a: b"]),
    ],
)
def test_the_verdict_says_what_the_runs_tell(runs, said):
    lines = verdict(compare_runs(runs))
    for words in said:
        assert any(words in line for line in lines), lines
    assert ("these are scores of the test part" in lines[-1]) == ("loss" not in runs[0].metrics)


def test_one_row_has_no_verdict():
    assert verdict(compare_runs(runs_of("R@1", a=(0.5, 0.6)))) == []


def test_held_out_rows_choose_where_there_are_any():
    runs = [
        Run(name, {"loss": name}, 0, {"test class R@1": test, "validation class R@1": held_out})
        for name, test, held_out in (("a", 0.5, 0.6), ("b", 0.9, 0.5))
    ]
    for metrics in ([], ["R@1"]):
        comparison = compare_runs(runs, metrics=metrics)
        assert comparison.shown == ["validation class R@1"]
        assert "scores of the held-out rows" in verdict(comparison)[-1]
        assert not any("test part:" in line for line in verdict(comparison))
    comparison = compare_runs(runs, metrics=["test class R@1"])
    assert comparison.shown == ["test class R@1"]
    assert "scores of the test part: what is chosen by them" in verdict(comparison)[-1]


def test_a_comparison_takes_120_columns(tmp_path, capsys):
    """Long names, many settings, many metrics: cut to the first, and what is left out is named."""
    names = [
        f"test {view} {kind}"
        for view in ("class", "superclass")
        for kind in ("R@1", "MAP@R", "P@1", "NMI")
    ]
    for number in range(3):
        config = train_config(
            loss=f"a_rather_long_name_{number}", lr=0.1**number, seed=0, momentum=number
        )
        write_run(
            tmp_path / ("long_" * 12 + str(number)),
            config,
            {"step": 1, **dict.fromkeys(names, 0.5)},
        )
    assert main(["compare", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    table, _, rest = shown.partition("not shown: ")
    assert max(map(len, shown.splitlines())) <= 120
    assert "test superclass NMI (--csv has all)" in " ".join(rest.split())
    assert table.count("50.0") >= 3
    assert all(name in " ".join(shown.split()) for name in names)


def test_a_sweep_of_flags_and_of_values_in_brackets(tmp_path):
    given = ("remat=True,False", "loss-setting=k=(1, 2),k=(1, 4)")
    swept = Sweep(loss="recall_at_k", set=given, out=tmp_path).runs()
    assert {name: (run.remat, run.loss_setting) for name, run in swept.items()} == {
        "True_k=_1_2_-0": (True, ("k=(1, 2)",)),
        "True_k=_1_4_-0": (True, ("k=(1, 4)",)),
        "False_k=_1_2_-0": (False, ("k=(1, 2)",)),
        "False_k=_1_4_-0": (False, ("k=(1, 4)",)),
    }
    with pytest.raises(
        ValueError, match="--set remat is a flag: its values are True and False, got 1"
    ):
        Sweep(set=("remat=1",), out=tmp_path).runs()
