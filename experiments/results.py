"""One table of all experiments: method × data set, from the results on file of each, into this folder's README.md.

    python -m experiments.results

A cell is mean ± sample standard deviation in percent, then the number of runs. What the papers report stands beside it.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jdml.report import markdown_table, mean_std
from jdml.training.records import read_results

HERE = Path(__file__).parent
START, END = "<!-- table -->", "<!-- end of table -->"
MACHINE = "two x86-64 CPU cores, no GPU"


class Column(NamedTuple):
    """What a column shows.

    Attributes:
        title: its heading.
        folder: the experiment.
        metric: in its results.
        rename: from a run's name there (without its seed) to a method, or None.
        paper: what the method's paper reports on the same task, in percent.
        date: of the runs.
        command: that made them.
    """

    title: str
    folder: str
    metric: str
    rename: Any
    paper: dict[str, float]
    date: str
    command: str


def same(name: str) -> str | None:
    """The method is the run's name; points of sweeps are none."""
    sweeps = ("positives", "batches", "trimmed", "positives_margin", "trimmed_margin", "curve")
    return None if name.split(" ")[0] in sweeps else name


def of_fields(data: str, suffix: str = "") -> Any:
    """Names of the study of potential fields on a data set, clean or with noise; its sweeps' points are in digits."""

    def rename(name: str) -> str | None:
        of_data, _, name = name.partition(": ")
        clean = name.removesuffix(", noise")
        shown = of_data == data and name == clean + suffix and not name.endswith(", epoch")
        return clean if shown else None

    return rename


def of_eps(name: str) -> str | None:
    """Names of EPS's study on Omniglot, without what was made twice."""
    return None if name.endswith(", again") else same(name)


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


def of_ccp(name: str) -> str | None:
    """Names of CCP's study on MNIST."""
    names = {
        "mnist: in batch": "contrastive",
        "mnist: samples": "contrastive, anchor samples",
        "mnist: single": "contrastive, one problem",
        "mnist: CCP": "contrastive + CCP",
    }
    return names.get(name)


EPS_PAPER = {
    "triplet": 49.4,
    "ProxyNCA": 49.1,
    "margin": 49.4,
    "MS": 57.7,
    "EPS + triplet": 68.4,
    "EPS + margin": 66.2,
    "EPS + MS": 68.7,
}
OMNIGLOT = "--data omniglot --data-dir DIR"
MNIST = "--data mnist --data-dir DIR"
COLUMNS = (
    Column(
        "Omniglot letters, 400 steps",
        "omniglot",
        "letters R@1",
        same,
        EPS_PAPER,
        "2026-11-21",
        "python -m experiments.omniglot.main --data-dir DIR --workers 2",
    ),
    Column(
        "Omniglot letters, 600 steps",
        "nir",
        "R@1",
        of_nir,
        {},
        "2026-11-22 and 23",
        "python -m experiments.nir.decide --data-dir DIR --workers 2",
    ),
    Column(
        "Omniglot letters, 600 steps, up to 12 proxies per class",
        "mpa",
        "letters R@1",
        of_multi_proxy,
        {},
        "2026-11-22 and 23",
        f"python -m experiments.mpa.main {OMNIGLOT} --steps 600 --seeds 3",
    ),
    Column(
        "Omniglot letters, 1,200 steps",
        "eps_omniglot",
        "letter R@1",
        of_eps,
        EPS_PAPER,
        "2026-11-21",
        "python -m experiments.eps_omniglot.main --data-dir DIR --seeds 3",
    ),
    Column(
        "the same, proxies and fields",
        "potential_fields",
        "letters R@1",
        of_fields("omniglot"),
        {},
        "2026-11-23",
        f"python -m experiments.potential_fields.main {OMNIGLOT} --parts methods --seeds 3",
    ),
    Column(
        "the same, 20 % wrong labels",
        "potential_fields",
        "letters R@1",
        of_fields("omniglot", ", noise"),
        {},
        "2026-11-21 and 23",
        f"python -m experiments.potential_fields.main {OMNIGLOT} --parts noise --seeds 5",
    ),
    Column(
        "MNIST even/odd, unseen digits",
        "eps_mnist",
        "unseen R@1",
        same,
        {"triplet": 35.2, "EPS + triplet": 42.3},
        "2026-11-21",
        "python -m experiments.eps_mnist.main --data mnist --data-dir DIR --seeds 5",
    ),
    Column(
        "MNIST even/odd, seen digits, 16-D",
        "potential_fields",
        "seen digits R@1",
        of_fields("mnist"),
        {},
        "2026-11-23",
        f"python -m experiments.potential_fields.main {MNIST} --parts methods --seeds 3",
    ),
    Column(
        "the same, 20 % wrong labels",
        "potential_fields",
        "seen digits R@1",
        of_fields("mnist", ", noise"),
        {},
        "2026-11-22 and 23",
        f"python -m experiments.potential_fields.main {MNIST} --parts noise --seeds 5",
    ),
    Column(
        "MNIST in the plane, MAP@R",
        "ccp_mnist",
        "test",
        of_ccp,
        {"contrastive + CCP": 97.21, "contrastive, anchor samples": 98.06},
        "2026-11-24",
        "python -m experiments.ccp_mnist.main --data mnist --data-dir DIR --seeds 3",
    ),
    Column(
        "CUB crops, frozen features",
        "cub_crops",
        "R@1",
        same,
        {},
        "2026-11-21",
        "python -m experiments.cub_crops.main --data-dir DIR --weights lite0.safetensors",
    ),
)


def values(column: Column) -> dict[str, list[float]]:
    """The metric of all runs by method."""
    by_method: dict[str, list[float]] = {}
    for key, result in read_results(HERE / column.folder / "results.jsonl").items():
        method = column.rename(key.rpartition("-")[0])
        if method is not None and column.metric in result["metrics"]:
            by_method.setdefault(method, []).append(result["metrics"][column.metric])
    return by_method


def cell(column: Column, method: str, runs: list[float] | None) -> str:
    """Mean ± std of so many runs, and the paper's figure in brackets."""
    if runs is None:
        return "–"
    paper = f" [{column.paper[method]}]" if method in column.paper else ""
    return f"{mean_std(runs)} ({len(runs)}){paper}"


def table() -> str:
    """The methods, best first in the first column that has them; then how columns were made."""
    columns = [values(column) for column in COLUMNS]

    def place(method: str) -> tuple[int, float]:
        first = next(i for i, runs in enumerate(columns) if method in runs)
        return first, -float(np.mean(columns[first][method]))

    ordered = sorted(dict.fromkeys(method for runs in columns for method in runs), key=place)
    rows = [
        [
            method,
            *(cell(c, method, runs.get(method)) for c, runs in zip(COLUMNS, columns, strict=True)),
        ]
        for method in ordered
    ]
    sources = [
        [column.title, column.date, f"[{column.folder}]({column.folder})", f"`{column.command}`"]
        for column in COLUMNS
    ]
    return "\n".join(
        [
            markdown_table(["R@1", *(column.title for column in COLUMNS)], rows),
            f"All on {MACHINE}:\n",
            markdown_table(["column", "date", "experiment", "command"], sources),
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
