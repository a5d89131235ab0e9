"""Reports: figures, tables, comparisons and the page that shows what runs learned.

>>> from jdml import report
>>> report.html_report(["runs/a", "runs/b"], "report.html")  # doctest: +SKIP
"""

from jdml.report.compare import (
    Comparison,
    Row,
    compare_runs,
    comparison_records,
    comparison_table,
    summary_sentences,
)
from jdml.report.figures import confusions, curves, embedding_map, gallery, scatter_grid
from jdml.report.page import html_report
from jdml.report.runs import Run, read_runs
from jdml.report.tables import (
    PairedDifference,
    holm_correction,
    markdown_table,
    mean_std,
    paired_difference,
)

__all__ = [
    "Comparison",
    "PairedDifference",
    "Row",
    "Run",
    "compare_runs",
    "comparison_records",
    "comparison_table",
    "confusions",
    "curves",
    "embedding_map",
    "gallery",
    "holm_correction",
    "html_report",
    "markdown_table",
    "mean_std",
    "paired_difference",
    "read_runs",
    "scatter_grid",
    "summary_sentences",
]
