"""Reports: figures, and the demo that the command line and the notebooks share."""

from jdml.report.figures import scatter_grid

__all__ = ["scatter_grid"]
