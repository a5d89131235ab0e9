"""One table of all experiments: method × data set, from the results on file of each, into this folder's README.md."""

import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.omniglot.methods import PAPER as OF_LETTERS
from jdml.report import markdown_table, mean_std
from jdml.runs.results_store import read_results

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
            if found := re.fullmatch(pattern, run):
                return found.expand(method)
        return None


TABLE = tomllib.loads((HERE / "columns.toml").read_text())
COLUMNS = tuple(Column(**values) for values in TABLE["columns"])
PAPER = {**TABLE["paper"], "letters": OF_LETTERS, "": {}}


def runs_of(column: Column) -> list[tuple[str, dict[str, Any]]]:
    """Return all runs that the column shows, each with its method."""
    runs = read_results(HERE / column.folder / "results.jsonl")
    named = [(column.method(key.rpartition("-")[0]), run) for key, run in runs.items()]
    return [(name, run) for name, run in named if name and column.metric in run["metrics"]]


def table() -> str:
    """Return the methods, best first in the first column that has them; then how columns were made."""
    columns: list[dict[str, list[float]]] = []
    sources = []
    for column in COLUMNS:
        columns.append({})
        runs = runs_of(column)
        for method, run in runs:
            columns[-1].setdefault(method, []).append(run["metrics"][column.metric])
        kinds = sorted(Counter(run["machine"] for _, run in runs).items())
        machines = [kind if len(kinds) == 1 else f"{kind} ({number})" for kind, number in kinds]
        sources.append(
            [
                *(column.title, column.date, "; ".join(machines)),
                f"[{column.folder}]({column.folder})",
                f"`python -m experiments.{column.study} {column.options}`",
            ]
        )

    def place(method: str) -> tuple[int, float]:
        first = next(i for i, runs in enumerate(columns) if method in runs)
        return first, -float(np.mean(columns[first][method]))

    rows = []
    for method in sorted(dict.fromkeys(method for runs in columns for method in runs), key=place):
        rows.append([method])
        for column, runs in zip(COLUMNS, columns, strict=True):
            values, paper = runs.get(method), PAPER[column.paper].get(method)
            suffix = "" if paper is None else f" [{paper}]"
            text = "–" if values is None else f"{mean_std(values)} ({len(values)}){suffix}"
            rows[-1].append(text)
    return "\n".join(
        [
            markdown_table(["R@1", *(column.title for column in COLUMNS)], rows),
            "All on CPUs, without a GPU; in brackets how many runs, where machines differ:\n",
            markdown_table(["column", "date", "machine", "experiment", "command"], sources),
        ]
    )


def main() -> None:
    """Put the table into README.md."""
    page = HERE / "README.md"
    text = page.read_text()
    before, after = text[: text.index(START) + len(START)], text[text.index(END) :]
    page.write_text(f"{before}\n\n{table()}\n{after}")


if __name__ == "__main__":
    main()
