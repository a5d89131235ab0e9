"""Tables of numbers: means with their spread, paired differences, Holm's correction."""

import numpy as np
import pytest
from scipy import stats

from jdml.report import holm_correction, mean_std, paired_difference

ONE, OTHER = {0: 0.5, 1: 0.62, 2: 0.41, 7: 0.9}, {2: 0.4, 1: 0.55, 0: 0.5, 3: 0.1}


def test_mean_and_sample_standard_deviation():
    assert mean_std([0.1, 0.3]) == "20.0 ± 14.1"
    assert mean_std([1.0, 2.0, 3.0], scale=1, digits=2) == "2.00 ± 1.00"
    assert mean_std([0.25]) == "25.0"


@pytest.mark.parametrize("confidence", [0.95, 0.8])
def test_paired_differences_have_students_intervals(confidence):
    actual = paired_difference(ONE, OTHER, confidence=confidence)
    both = np.array([[100 * values[seed] for seed in (0, 1, 2)] for values in (ONE, OTHER)])
    expected = stats.ttest_rel(*both)
    assert actual.seeds == 3
    np.testing.assert_allclose(actual.mean, np.mean(both[0] - both[1]))
    np.testing.assert_allclose(actual.p, expected.pvalue)
    np.testing.assert_allclose((actual.low, actual.high), expected.confidence_interval(confidence))


def test_paired_differences_without_spread():
    assert paired_difference(ONE, ONE)[:4] == (0, 0, 0, 1)
    assert paired_difference({0: 1, 1: 2}, {0: 0, 1: 1}, scale=1)[:4] == (1, 1, 1, 0)
    alone = paired_difference({0: 0.5}, ONE)
    assert str(alone) == "+0 (1 seed)"
    assert np.isnan([alone.low, alone.high, alone.p]).all()
    assert str(paired_difference({}, ONE)) == "–"


def test_holm_correction():
    corrected = holm_correction({"a": 0.04, "b": 0.01, "c": 0.03, "d": float("nan")})
    assert list(corrected) == ["b", "c", "a"]
    np.testing.assert_allclose(list(corrected.values()), [3 * 0.01, 2 * 0.03, 2 * 0.03])
    np.testing.assert_allclose(
        list(holm_correction({"a": 0.4, "b": 0.9}, tests=3).values()), [1, 1]
    )
    assert holm_correction({}) == {}
    assert holm_correction({"a": 0.25, 1: 0.25}) == {"a": 0.5, 1: 0.5}
