"""Reports: figures, tables, and the demo that the command line and the notebooks share."""

from jdml.report.figures import scatter_grid
from jdml.report.tables import markdown_table, mean_std

__all__ = ["markdown_table", "mean_std", "scatter_grid"]
