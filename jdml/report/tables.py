"""Tables of results: means with their standard deviations, in Markdown."""

from collections.abc import Sequence

import numpy as np


def mean_std(values: Sequence[float], *, scale: float = 100.0, digits: int = 1) -> str:
    """Write runs as ``mean ± std``, in percent by default.

    Args:
        values: one number per run.
        scale: what they are multiplied by.
        digits: after the decimal point.

    Returns:
        ``"54.8 ± 0.4"``, with the sample standard deviation (n − 1); of a single run just the number.

    Raises:
        ValueError: there are no values.

    Example:
        >>> mean_std([0.5, 0.52, 0.54]), mean_std([0.5])
        ('52.0 ± 2.0', '50.0')
    """
    if len(values) == 0:
        raise ValueError("values must hold at least one run, got none")
    scaled = scale * np.asarray(values, np.float64)
    mean = f"{scaled.mean():.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {scaled.std(ddof=1):.{digits}f}"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a Markdown table.

    Args:
        header: the columns' titles.
        rows: cells, one per column.

    Returns:
        The table, ending in a line break; its columns are aligned in plain text, too.

    Raises:
        ValueError: a row has another number of cells than the header.

    Example:
        >>> print(markdown_table(["method", "R@1"], [["triplet", "42.0"]]), end="")
        | method  | R@1  |
        | ------- | ---- |
        | triplet | 42.0 |
    """
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"rows must have {len(header)} cells like the header, got {list(row)}")
    widths = [max(len(cells[i]) for cells in [header, *rows]) for i in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    padded = [
        " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    ]
    return "".join(f"| {line} |\n" for line in padded)
