"""One table of all experiments: method × data set, from the results on file of each, into this folder's RECORD.md."""

import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.omniglot.methods import PAPER as OF_LETTERS
from jdml.report import markdown_table, mean_std
from jdml.runs.run_files import read_results

HERE = Path(__file__).parent
START, END = "<!-- table -->", "<!-- end of table -->"


class Column(NamedTuple):
    """A column of the table: the study that made its runs, with which options and when; what is shown of them."""

    title: str
    study: str
    options: str
    date: str
    metric: str
    names: list[list[str]]
    paper: str = ""

    @property
    def folder(self) -> str:
        """Return the study's folder."""
        return self.study.partition(".")[0]

    def method(self, run: str) -> str | None:
        """Return the method that a run's name, without its seed, stands for; None where it is not shown."""
        for pattern, method in self.names:
            if match := re.fullmatch(pattern, run):
                return match.expand(method)
        return None


TABLE = tomllib.loads((HERE / "columns.toml").read_text())
COLUMNS = tuple(Column(**values) for values in TABLE["columns"])
PAPER = {**TABLE["paper"], "letters": OF_LETTERS, "": {}}


def shown_runs(column: Column) -> list[tuple[str, dict[str, Any]]]:
    """Return all runs that the column shows, each with its method."""
    recorded = read_results(HERE / column.folder / "results.jsonl")
    named = [(column.method(key.rpartition("-")[0]), result) for key, result in recorded.items()]
    return [(name, run) for name, run in named if name and column.metric in run["metrics"]]


def values(column: Column) -> dict[str, list[float]]:
    """Return the metric of all runs by method."""
    by_method: dict[str, list[float]] = {}
    for method, result in shown_runs(column):
        by_method.setdefault(method, []).append(result["metrics"][column.metric])
    return by_method


def machines(column: Column) -> str:
    """Return which machines the runs were made on, as they tell, and where there are several, how many on each."""
    kinds = Counter(result["machine"] for _, result in shown_runs(column))
    if len(kinds) == 1:
        return next(iter(kinds))
    return "; ".join(f"{kind} ({number})" for kind, number in sorted(kinds.items()))


def cell(column: Column, method: str, runs: list[float] | None) -> str:
    """Return mean ± std of so many runs, and the paper's figure in brackets."""
    if runs is None:
        return "–"
    paper = PAPER[column.paper]
    paper_row = f" [{paper[method]}]" if method in paper else ""
    return f"{mean_std(runs)} ({len(runs)}){paper_row}"


def table() -> str:
    """Return the methods, best first in the first column that has them; then how columns were made."""
    columns = [(column, values(column)) for column in COLUMNS]

    def place(method: str) -> tuple[int, float]:
        first = next(i for i, (_, runs) in enumerate(columns) if method in runs)
        return first, -float(np.mean(columns[first][1][method]))

    ordered = sorted(dict.fromkeys(method for _, runs in columns for method in runs), key=place)
    rows = [[m, *(cell(column, m, runs.get(m)) for column, runs in columns)] for m in ordered]
    sources = [
        [
            *(column.title, column.date, machines(column), f"[{column.folder}]({column.folder})"),
            f"`python -m experiments.{column.study} {column.options}`",
        ]
        for column in COLUMNS
    ]
    return "\n".join(
        [
            markdown_table(["R@1", *(column.title for column in COLUMNS)], rows),
            "All on CPUs, without a GPU; in brackets how many runs, where machines differ:\n",
            markdown_table(["column", "date", "machine", "experiment", "command"], sources),
        ]
    )


def main() -> None:
    """Put the table into RECORD.md."""
    page = HERE / "RECORD.md"
    text = page.read_text()
    before, after = text[: text.index(START) + len(START)], text[text.index(END) :]
    page.write_text(f"{before}\n\n{table()}\n{after}")


if __name__ == "__main__":
    main()
