"""Tables of results: means with their standard deviations, paired differences, cells, Markdown."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

SHARE = re.compile(r"(^|[\s/])(R@\d+|P@1|RP|MAP@\w+|nDCG@\d+|NMI\+?)$")
"""Metrics that are fractions, and are shown in percent."""

PERCENT = 100.0
"""Factor of the tables' fractions."""
CONFIDENCE = 0.95
"""The intervals', unless another is given."""


def mean_std(values: Sequence[float], *, scale: float = PERCENT, digits: int = 1) -> str:
    """Write runs as ``mean ± std``, in percent by default.

    Args:
        values: one number per run.
        scale: factor of the values.
        digits: after the decimal point.

    Returns:
        ``"54.8 ± 0.4"``, with the sample standard deviation (n − 1); the number alone for a single run.

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


class PairedDifference(NamedTuple):
    """A mean difference over the same seeds.

    Attributes:
        mean: of the differences.
        low: lower end of the confidence interval; NaN for one seed, as are ``high`` and ``p``.
        high: upper end.
        p: of a two-sided paired t-test.
        seeds: number of seeds that both have.
    """

    mean: float
    low: float
    high: float
    p: float
    seeds: int

    def __str__(self) -> str:
        if self.seeds == 0:
            return "–"
        if self.seeds == 1:
            return f"{self.mean:+.3g} (1 seed)"
        return f"{self.mean:+.3g} [{self.low:+.3g}, {self.high:+.3g}], p = {self.p:.2g}, n = {self.seeds}"


def paired_difference(
    one: Mapping[Any, float],
    other: Mapping[Any, float],
    *,
    scale: float = PERCENT,
    confidence: float = CONFIDENCE,
) -> PairedDifference:
    r"""Compare two settings over the seeds that both have, by Student's t.

    Of the n differences :math:`d`, with mean :math:`\bar d` and sample standard deviation :math:`s`,

    .. math:: \bar d \pm t_{n-1}\, s / \sqrt n

    The interval covers the variation between seeds, not between data sets.

    Args:
        one: values by seed.
        other: values by seed, subtracted from those of ``one``.
        scale: factor of the differences, percent by default.
        confidence: of the interval.

    Returns:
        The difference; its text is a cell of a table.

    Raises:
        ValueError: a confidence outside 0…1.

    Example:
        >>> print(paired_difference({0: 0.52, 1: 0.55, 2: 0.5}, {0: 0.5, 1: 0.5, 2: 0.49, 3: 0.1}))
        +2.67 [-2.5, +7.84], p = 0.16, n = 3
    """
    from scipy.stats import t

    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
    gains = scale * np.array([one[seed] - other[seed] for seed in one if seed in other])
    count, nan = len(gains), float("nan")
    if count < 2:
        return PairedDifference(float(gains[0]) if count else nan, nan, nan, nan, count)
    mean, spread, root = float(gains.mean()), float(gains.std(ddof=1)), count**0.5
    half = float(t.ppf(0.5 + confidence / 2, count - 1)) * spread / root
    p = 2 * float(t.sf(abs(mean) * root / spread, count - 1)) if spread else float(mean == 0)
    return PairedDifference(mean, mean - half, mean + half, p, count)


def holm_correction(values: Mapping[Any, float], tests: int | None = None) -> dict[Any, float]:
    r"""Correct several p-values by Holm's step-down method.

    Of m tests, in ascending order of their :math:`p_1 \le p_2 \le …`,

    .. math:: \tilde p_k = \max_{j \le k} \min(1, (m - j + 1)\, p_j)

    Args:
        values: p-values by name; NaNs, of a single seed, are left out.
        tests: m, the planned number of tests. Default: the number of p-values.

    Returns:
        Corrected p-values by name, in ascending order.

    Raises:
        ValueError: fewer tests than p-values.

    Reference:
        Holm, *A Simple Sequentially Rejective Multiple Test Procedure*, 1979.

    Example:
        >>> p = holm_correction({"a": 0.04, "b": 0.01, "c": 0.03})
        >>> {name: round(value, 3) for name, value in p.items()}
        {'b': 0.03, 'c': 0.06, 'a': 0.06}
    """
    finite = {name: p for name, p in values.items() if not np.isnan(p)}
    tests = len(finite) if tests is None else tests
    if tests < len(finite):
        raise ValueError(
            f"tests must be at least {len(finite)}, the number of p-values, got {tests}"
        )
    corrected: dict[Any, float] = {}
    least = 0.0
    for place, name in enumerate(sorted(finite, key=finite.__getitem__)):
        least = corrected[name] = max(least, min(1.0, finite[name] * (tests - place)))
    return corrected


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a Markdown table.

    Args:
        header: the columns' titles.
        rows: cells, one per column.

    Returns:
        The table, ending in a line break; its columns are aligned in plain text, too.

    Example:
        >>> print(markdown_table(["method", "R@1"], [["triplet", "42.0"]]), end="")
        | method  | R@1  |
        | ------- | ---- |
        | triplet | 42.0 |
    """
    widths = [max(map(len, cells)) for cells in zip(header, *rows, strict=True)]
    lines = [header, ["-" * width for width in widths], *rows]
    padded = [
        " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    ]
    return "".join(f"| {line} |\n" for line in padded)


def is_share(metric: str) -> bool:
    """Return whether a metric is a fraction, shown in percent."""
    return SHARE.search(metric) is not None


def number_format(metric: str) -> tuple[float, str]:
    """Return the factor and the format of a metric's differences."""
    return (PERCENT, ".1f") if is_share(metric) else (1.0, ".3g")


def difference_cell(metric: str, difference: PairedDifference | None) -> str:
    """Write a difference and its interval."""
    if difference is None:
        return "–"
    scale, form = number_format(metric)
    mean, low, high = (f"{scale * number:+{form}}" for number in difference[:3])
    return f"{mean} (n = 1)" if difference.seeds == 1 else f"{mean} [{low}, {high}]"


def setting_cell(value: Any) -> str:
    """Format a setting for a table."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "–"
    return f"{value:g}" if isinstance(value, float) else str(value)


def duration(seconds: float | None) -> str:
    """Write seconds in words: 5.0 s, 2 min 10 s, 2 h 2 min."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
