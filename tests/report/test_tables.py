"""Tables: means with their spread, and columns that line up."""

import numpy as np
import pytest
from scipy import stats

from jdml.report import holm, markdown_table, mean_std, paired, paired_table


def test_mean_and_sample_standard_deviation() -> None:
    assert mean_std([0.1, 0.3]) == "20.0 ± 14.1"
    assert mean_std([1.0, 2.0, 3.0], scale=1, digits=2) == "2.00 ± 1.00"
    assert mean_std([0.25]) == "25.0"


def test_a_table_needs_values_and_whole_rows() -> None:
    with pytest.raises(ValueError, match="values must hold at least one run"):
        mean_std([])
    with pytest.raises(ValueError, match="rows must have 2 cells"):
        markdown_table(["a", "b"], [["1"]])


ONE, OTHER = {0: 0.5, 1: 0.62, 2: 0.41, 7: 0.9}, {2: 0.4, 1: 0.55, 0: 0.5, 3: 0.1}


@pytest.mark.parametrize("confidence", [0.95, 0.8])
def test_paired_differences_are_students(confidence: float) -> None:
    actual = paired(ONE, OTHER, confidence=confidence)
    both = np.array([[100 * values[seed] for seed in (0, 1, 2)] for values in (ONE, OTHER)])
    expected = stats.ttest_rel(*both)
    assert actual.seeds == 3
    np.testing.assert_allclose(actual.mean, np.mean(both[0] - both[1]))
    np.testing.assert_allclose(actual.p, expected.pvalue)
    np.testing.assert_allclose((actual.low, actual.high), expected.confidence_interval(confidence))


def test_paired_differences_that_have_no_spread() -> None:
    assert paired(ONE, ONE)[:4] == (0, 0, 0, 1)
    assert paired({0: 1, 1: 2}, {0: 0, 1: 1}, scale=1)[:4] == (1, 1, 1, 0)
    alone = paired({0: 0.5}, ONE)
    assert str(alone) == "+0 (1 seed)"
    assert np.isnan([alone.low, alone.high, alone.p]).all()
    assert str(paired({}, ONE)) == "–"


@pytest.mark.parametrize("confidence", [0, 1, float("nan")])
def test_a_confidence_is_between_0_and_1(confidence: float) -> None:
    with pytest.raises(ValueError, match=f"confidence must be between 0 and 1, got {confidence}"):
        paired(ONE, OTHER, confidence=confidence)


def test_holm_steps_down() -> None:
    corrected = holm({"a": 0.04, "b": 0.01, "c": 0.03, "d": float("nan")})
    assert list(corrected) == ["b", "c", "a"]
    np.testing.assert_allclose(list(corrected.values()), [3 * 0.01, 2 * 0.03, 2 * 0.03])
    np.testing.assert_allclose(list(holm({"a": 0.4, "b": 0.9}, tests=3).values()), [1, 1])
    assert holm({}) == {}
    assert holm({"a": 0.25, 1: 0.25}) == {"a": 0.5, 1: 0.5}
    with pytest.raises(ValueError, match="tests must be at least 2, the number of p-values, got 1"):
        holm({"a": 0.1, "b": 0.2}, tests=1)
    for p in (-1.0, 1.5, float("inf")):
        with pytest.raises(ValueError, match=rf"values\['a'\] must be a p-value .* got {p}"):
            holm({"a": p})


def test_the_first_of_several_paired_tests_decides() -> None:
    columns = {"triplet": {"new": ONE, "old": OTHER}, "margin": {"new": OTHER, "old": ONE}}
    tests = {"gain": ("new", "old"), "loss": ("old", "new")}
    table, said = paired_table("points", tests, columns, planned=3).split("\n\n")
    header, _, gain, loss = ([cell.strip() for cell in row.split("|")] for row in table.split("\n"))
    assert header == ["", "points", "triplet", "margin", ""]
    assert gain[1:-1] == ["gain: new − old", str(paired(ONE, OTHER)), str(paired(OTHER, ONE))]
    assert loss[1:-1] == ["loss: old − new", str(paired(OTHER, ONE)), str(paired(ONE, OTHER))]
    p = f"{3 * paired(ONE, OTHER).p:.2g}"
    assert said == f"gain, p with Holm's correction over 3 tests: triplet {p}, margin {p}.\n"


def test_paired_tests_without_runs() -> None:
    nothing = {"triplet": {"new": {0: 0.5}}}
    tests = {"gain": ("new", "old")}
    decided = paired_table("points", tests, nothing, planned=1)
    table = paired_table("points", tests, nothing)
    assert "| – " in table
    assert decided == f"{table}\ngain, p with Holm's correction over 1 tests: no runs yet.\n"


def test_paired_tests_are_as_many_as_planned() -> None:
    scores = {"triplet": {"new": ONE, "old": OTHER}}
    with pytest.raises(
        ValueError, match="planned must be at least 1, the number of columns, got 0"
    ):
        paired_table("points", {"gain": ("new", "old")}, scores, planned=0)
    with pytest.raises(ValueError, match="tests must hold at least one pair of ways, got none"):
        paired_table("points", {}, scores)
