"""``jdml report`` and ``jdml compare``: what runs learned, on a page or in a table."""

import csv
import io
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jdml import report
from jdml._paths import check_file, write_text
from jdml.cli.commands import print_table
from jdml.ops.checks import default_of
from jdml.report.embedding_stats import Projection
from jdml.report.images import attach_images

WIDTH = 120
"""Letters of a line; wider tables are printed on their side."""


@dataclass(frozen=True)
class Report:
    """Write an HTML page about runs: scores side by side, curves, neighbours, mistakes, a map of the embeddings.

    The page is one file and works offline. RUN is the folder of a run, of several runs or of a study, or a .npz file of
    embeddings with labels (and files, for images). Runs that differ only in their seed are one row, with mean and
    standard deviation; neighbours and map are those of the first seed.

    Images are read from where the run read them, or from --source.
    """

    run: tuple[str, ...]
    """Folders, each of one run, of several runs or of a study; or .npz files with embeddings, labels and files."""
    out: Path = Path("report.html")
    """The page to write."""
    source: str | None = None
    """Images for all runs: a folder of images, a .csv or Parquet file, module:name, or a data set with its folder, such
    as cub:CUB_200_2011. Default: the images that each run was scored on."""
    data_dir: Path | None = None
    """Folder of the runs' data sets. Default: as when they were trained."""
    labels: str | None = None
    """The labelling that is shown first. Default: the data's first."""
    map: tuple[Projection, ...] = default_of(report.html_report, "projections")
    """Projections of the map; tsne takes a minute for 10,000 images."""
    max_images: int = default_of(report.html_report, "max_images")
    """Maximum number of images on the map and with neighbours; of more, a random sample."""
    thumbnails: int = default_of(report.html_report, "thumbnails")
    """Number of pictures in the page, for all runs together."""
    max_runs: int = default_of(report.html_report, "max_runs")
    """Number of runs whose embeddings are shown (the first ones); scores are shown for all."""
    baseline: str | None = None
    """The run that others are compared with. Default: the first."""
    metric: tuple[str, ...] = ()
    """Metrics of the table, such as R@1. Default: R@1, MAP@R, P@1 and NMI if there are many."""
    title: str = default_of(report.html_report, "title")
    """Title of the page."""

    def execute(self) -> None:
        """Read the runs and write the page."""
        check_file("--out", self.out, (".html", ".htm"))
        runs = report.read_runs(*self.run)
        attached = [attach_images(run, self.source, self.data_dir) for run in runs]
        report.html_report(
            [run for run, _ in attached],
            self.out,
            title=self.title,
            labels=self.labels,
            projections=self.map,
            max_images=self.max_images,
            thumbnails=self.thumbnails,
            max_runs=self.max_runs,
            baseline=self.baseline,
            metrics=self.metric,
        )
        for run, note in attached:
            if note:
                print(f"note: {run.name}: {note}")
        print(f"report: {self.out} ({self.out.stat().st_size / 1e6:.1f} MB)")


@dataclass(frozen=True)
class Compare:
    """Compare runs in a table: the settings that differ, scores, time and memory.

    Runs that differ only in their seed are one row, with mean and sample standard deviation. Every row is compared with
    the first one: Δ is the mean difference between runs of the same seed, with its confidence interval in brackets
    (Student's t over the seeds; with several rows Holm's correction). Sentences below the table say which rows are
    better or worse than the first, and how many seeds would be needed for the others. Scores of held-out rows
    (--validation) are shown if there are any, because a choice by test scores would make them too high.
    """

    run: tuple[str, ...]
    """Folders, each of one run, of several runs (jdml sweep's) or of a study; or a study's results.jsonl."""
    metric: tuple[str, ...] = ()
    """Metrics to show, such as R@1, or by their whole names, such as "test class R@1". Default: R@1, MAP@R, P@1 and NMI
    if there are many."""
    baseline: str | None = None
    """The run that others are compared with. Default: the first."""
    confidence: float = default_of(report.compare_runs, "confidence")
    """Level of the intervals, 0 to 1."""
    csv: Path | None = None
    """Also write all metrics, as plain numbers, into this .csv file; - prints them instead of the table."""
    markdown: Path | None = None
    """Also write the table as Markdown into this .md file; - prints it instead of the table."""

    def execute(self) -> None:
        """Read the runs, compare them, print or write the table."""
        for option, file, ending in (("csv", self.csv, "csv"), ("markdown", self.markdown, "md")):
            if file is not None and file != Path("-"):
                check_file(f"--{option}", file, (f".{ending}",))
        comparison = report.compare_runs(
            report.read_runs(*self.run),
            metrics=self.metric,
            baseline=self.baseline,
            confidence=self.confidence,
        )
        print_comparison(comparison, self.csv, self.markdown)


def print_comparison(
    comparison: Any, csv_file: Path | None = None, markdown: Path | None = None
) -> None:
    """Print a comparison, and write all metrics into a .csv file, its table into a .md file."""
    columns, rows = report.comparison_table(comparison)
    texts: dict[Path, str] = {}
    if csv_file is not None:
        records, text = report.comparison_records(comparison), io.StringIO()
        writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        texts[csv_file] = text.getvalue()
    if markdown is not None:
        cells = [[cell.replace("|", "\\|") for cell in row] for row in (columns, *rows)]
        texts[markdown] = report.markdown_table(cells[0], cells[1:])
    printed = texts.pop(Path("-"), None)
    for file, content in texts.items():
        write_text(file, content)
    if printed is not None:
        print(printed, end="")
        return
    print_table(None, columns, rows, width=WIDTH)
    for line in report.summary_sentences(comparison):
        print(textwrap.fill(line, WIDTH, subsequent_indent="  ", break_long_words=False))
    for file in texts:
        print(f"written: {file}")
