"""``jdml compare``: runs side by side, in a table."""

import csv
import io
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jdml._paths import check_file

WIDTH = 120
"""Columns of the screen that a comparison takes, at most."""


@dataclass(frozen=True)
class Compare:
    """Put runs side by side: the settings that differ, what they scored, time and memory.

    Runs that differ only in their seed are one row, with mean and sample standard deviation. Every row is compared with
    the first one: Δ is the mean difference between runs of the same seed, and in brackets its confidence interval
    (Student's t over the seeds). Where that holds 0, the seeds do not agree on a difference, and a sentence below says
    that these runs cannot tell. Where runs were scored on held-out rows (--validation), these are shown: what chooses
    by the test part scores too well on it.
    """

    run: tuple[str, ...]
    """Folders of runs, of several runs (jdml sweep's) or of a study; or a study's results.jsonl."""
    metric: tuple[str, ...] = ()
    """Metrics to show, such as R@1, or by their whole names, such as "test class R@1". Default: R@1, MAP@R, P@1 and NMI
    where there are many."""
    baseline: str | None = None
    """The run that others are compared with. Default: the first."""
    confidence: float = 0.95
    """Of the intervals, 0 to 1."""
    csv: Path | None = None
    """Also write all metrics, as plain numbers, into this .csv file; - is the screen, instead of the table."""
    markdown: Path | None = None
    """Also write the table as Markdown into this .md file; - is the screen, instead of the table."""

    def execute(self) -> None:
        """Read, compare, show, write."""
        from jdml.report import compare_runs, read_runs

        for option, file, ending in (("csv", self.csv, "csv"), ("markdown", self.markdown, "md")):
            if file is not None and str(file) != "-":
                check_file(f"--{option}", file, (f".{ending}",))
        if not self.run:
            raise ValueError("RUN is missing: the folder of a run, or of several")
        comparison = compare_runs(
            read_runs(*self.run),
            metrics=self.metric,
            baseline=self.baseline,
            confidence=self.confidence,
        )
        show(comparison, self.csv, self.markdown)


def show(comparison: Any, csv_file: Path | None = None, markdown: Path | None = None) -> None:
    """Print a comparison, or write it."""
    from jdml.cli.terminal import print_table
    from jdml.models.tensors import write_text
    from jdml.report import comparison_records, comparison_table, markdown_table, summary_sentences

    columns, rows = comparison_table(comparison)
    texts = {
        csv_file: lambda: _as_csv(comparison_records(comparison)),
        markdown: lambda: markdown_table(
            [cell.replace("|", "\\|") for cell in columns],
            [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows],
        ),
    }
    outputs = {file: text() for file, text in texts.items() if file is not None}
    for file, text in outputs.items():
        if str(file) == "-":
            sys.stdout.write(text)
        else:
            write_text(file, text)
    if not any(str(file) == "-" for file in outputs):
        fitting, left_out = _as_wide_as(WIDTH, comparison)
        print_table(None, *comparison_table(fitting), width=WIDTH)
        for line in (*left_out, *summary_sentences(comparison)):
            print(_wrapped(line))
        for file in outputs:
            print(f"written: {file}")


def _as_wide_as(width: int, comparison: Any) -> tuple[Any, list[str]]:
    """A comparison of which a table has room, its last metrics and settings left out; and a line that names them."""
    from jdml.cli.terminal import width_of
    from jdml.report import comparison_table

    left_out: list[str] = []
    while width_of(*comparison_table(comparison)) > width:
        if len(comparison.shown) > 1:
            *shown, last = comparison.shown
            comparison = comparison._replace(shown=shown)
        elif comparison.settings:
            *settings, last = comparison.settings
            comparison = comparison._replace(settings=settings)
        else:
            break
        left_out.insert(0, last)
    if not left_out:
        return comparison, []
    rest = {*comparison.metrics}.difference(comparison.shown, left_out)
    more = f" and {len(rest)} more metrics" if rest else ""
    return comparison, [f"not shown: {', '.join(left_out)}{more} (--csv has all)"]


def _wrapped(line: str) -> str:
    return textwrap.fill(
        line, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def _as_csv(records: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()
