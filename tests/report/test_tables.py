"""Tables: means with their spread, and columns that line up."""

import pytest

from jdml.report import markdown_table, mean_std


def test_mean_and_sample_standard_deviation() -> None:
    assert mean_std([0.1, 0.3]) == "20.0 ± 14.1"
    assert mean_std([1.0, 2.0, 3.0], scale=1, digits=2) == "2.00 ± 1.00"
    assert mean_std([0.25]) == "25.0"


def test_a_table_needs_values_and_whole_rows() -> None:
    with pytest.raises(ValueError, match="values must hold at least one run"):
        mean_std([])
    with pytest.raises(ValueError, match="rows must have 2 cells"):
        markdown_table(["a", "b"], [["1"]])
