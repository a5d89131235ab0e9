"""One table of all experiments: method × data set, from the results on file of each, into this folder's README.md.

    python -m experiments.results

A cell is mean ± sample standard deviation in percent, then the number of runs. What the papers report stands beside it.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.omniglot.methods import PAPER as EPS_PAPER
from jdml.report import markdown_table, mean_std
from jdml.runs.results_store import read_results

HERE = Path(__file__).parent
START, END = "<!-- table -->", "<!-- end of table -->"


class Column(NamedTuple):
    """A column of the table.

    Attributes:
        title: its heading.
        study: the module that made the runs.
        options: with which.
        date: when.
        metric: in the results.
        rename: from a run's name there (without its seed) to a method, or None.
        paper: what the method's paper reports on the same task, in percent.
    """

    title: str
    study: str
    options: str
    date: str
    metric: str
    rename: Callable[[str], str | None]
    paper: Mapping[str, float] = {}

    @property
    def folder(self) -> str:
        """The experiment."""
        return self.study.partition(".")[0]


def same(name: str) -> str | None:
    """The method is the run's name; points of sweeps are none."""
    sweeps = "memory: levels: open positives batches trimmed positives_margin trimmed_margin curve".split()
    return None if name.split(" ")[0] in sweeps else name


def of_fields(data: str, suffix: str = "") -> Callable[[str], str | None]:
    """Names of the study of potential fields on a data set, clean or with noise; its sweeps' points are in digits."""

    def rename(name: str) -> str | None:
        of_data, _, name = name.partition(": ")
        clean = name.removesuffix(", noise")
        shown = of_data == data and name == clean + suffix and not name.endswith(", epoch")
        return clean if shown else None

    return rename


def of_eps(name: str) -> str | None:
    """Names of EPS's study on Omniglot, without what was made twice, or longer."""
    return None if name.endswith((", again", ", longer")) else same(name)


def of_multi_proxy(name: str) -> str | None:
    """Names of the study of several proxies per class on Omniglot, at twelve."""
    of_data, _, name = name.partition(": ")
    method = name.removesuffix(" 12")
    shown = name in ("ProxyAnchor", f"{method} 12")
    return method if of_data == "omniglot" and shown else None


def of_nir(name: str) -> str | None:
    """Names of NIR's deciding study on Omniglot: the loss alone, with the warm-up, and with NIR."""
    base, _, way = name.replace("NCAx", "NCA*").partition(", ")
    return {"alone": base, "warm-up": f"{base}, NIR's warm-up", "NIR": f"{base} + NIR"}.get(way)


OF_CCP = {
    "mnist: in batch": "contrastive",
    "mnist: samples": "contrastive, anchor samples",
    "mnist: single": "contrastive, one problem",
    "mnist: CCP": "contrastive + CCP",
}
"""Names of CCP's study on MNIST."""
PARITY_PAPER = {"triplet": 35.2, "EPS + triplet": 42.3}
CCP_PAPER = {"contrastive + CCP": 97.21, "contrastive, anchor samples": 98.06}
DIR, FIELDS = "--data-dir DIR", "potential_fields.main"
OMNIGLOT, MNIST = f"--data omniglot {DIR}", f"--data mnist {DIR}"
LETTERS, SEEN = "letters R@1", "seen digits R@1"
COLUMNS = (
    Column(
        *("Omniglot letters, 400 steps", "omniglot.main", f"{DIR} --workers 2", "2026-11-21"),
        *(LETTERS, same, EPS_PAPER),
    ),
    Column(
        *("Omniglot letters, 600 steps", "nir.decide", f"{DIR} --workers 2", "2026-11-22 and 23"),
        *("R@1", of_nir),
    ),
    Column(
        *("Omniglot letters, 600 steps, up to 12 proxies per class", "mpa.main"),
        *(f"{OMNIGLOT} --steps 600 --seeds 3", "2026-11-22 and 23"),
        *(LETTERS, of_multi_proxy),
    ),
    Column(
        *("Omniglot letters, 1,200 steps", "eps_omniglot.main", f"{DIR} --seeds 3", "2026-11-21"),
        *("letter R@1", of_eps, EPS_PAPER),
    ),
    Column(
        *("the same, proxies and fields", FIELDS, f"{OMNIGLOT} --parts methods --seeds 3"),
        *("2026-11-23", LETTERS, of_fields("omniglot")),
    ),
    Column(
        *("the same, 20 % wrong labels", FIELDS, f"{OMNIGLOT} --parts noise --seeds 5"),
        *("2026-11-21 and 23", LETTERS, of_fields("omniglot", ", noise")),
    ),
    Column(
        *("MNIST even/odd, unseen digits", "eps_mnist.main", f"{MNIST} --seeds 5", "2026-11-21"),
        *("unseen R@1", same, PARITY_PAPER),
    ),
    Column(
        *("MNIST even/odd, seen digits, 16-D", FIELDS, f"{MNIST} --parts methods --seeds 3"),
        *("2026-11-23", SEEN, of_fields("mnist")),
    ),
    Column(
        *("the same, 20 % wrong labels", FIELDS, f"{MNIST} --parts noise --seeds 5"),
        *("2026-11-22 and 23", SEEN, of_fields("mnist", ", noise")),
    ),
    Column(
        *("MNIST in the plane, MAP@R", "ccp_mnist.main", f"{MNIST} --seeds 3", "2026-11-24"),
        *("test", OF_CCP.get, CCP_PAPER),
    ),
    Column(
        *("CUB crops, frozen features", "cub_crops.main", f"{DIR} --weights lite0.safetensors"),
        *("2026-11-21", "R@1", same),
    ),
)


def shown_runs(column: Column) -> list[tuple[str, dict[str, Any]]]:
    """All runs that the column shows, each with its method."""
    kept = read_results(HERE / column.folder / "results.jsonl")
    named = [(column.rename(key.rpartition("-")[0]), result) for key, result in kept.items()]
    return [(name, run) for name, run in named if name and column.metric in run["metrics"]]


def values(column: Column) -> dict[str, list[float]]:
    """The metric of all runs by method."""
    by_method: dict[str, list[float]] = {}
    for method, result in shown_runs(column):
        by_method.setdefault(method, []).append(result["metrics"][column.metric])
    return by_method


def machines(column: Column) -> str:
    """Which machines the runs were made on, as they tell, and where there are several, how many on each."""
    kinds = Counter(result["machine"] for _, result in shown_runs(column))
    if len(kinds) == 1:
        return next(iter(kinds))
    return "; ".join(f"{kind} ({number})" for kind, number in sorted(kinds.items()))


def cell(column: Column, method: str, runs: list[float] | None) -> str:
    """Mean ± std of so many runs, and the paper's figure in brackets."""
    if runs is None:
        return "–"
    beside = f" [{column.paper[method]}]" if method in column.paper else ""
    return f"{mean_std(runs)} ({len(runs)}){beside}"


def table() -> str:
    """The methods, best first in the first column that has them; then how columns were made."""
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
    """Put the table into README.md."""
    page = HERE / "README.md"
    text = page.read_text()
    before, after = text[: text.index(START) + len(START)], text[text.index(END) :]
    page.write_text(f"{before}\n\n{table()}\n{after}")


if __name__ == "__main__":
    main()
