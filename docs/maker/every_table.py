"""The page of every table, figure, equation and statement of the papers, from ``every_table.toml``."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jdml.report import mean_std
from jdml.runs.run_files import read_results
from maker.records import table

REPOSITORY = Path(__file__).parents[2]
RECORD = Path(__file__).with_suffix(".toml")
NEEDS = {
    "": "–",
    "nothing": "nothing; seconds to a minute",
    "digits": "scikit-learn's digits; minutes",
    "MNIST": "MNIST's files; an hour or two",
    "Omniglot": "Omniglot's zips; hours",
    "photographs": "a GPU, the photographs, pretrained weights",
}
"""Requirements of tests and commands, by the record's word."""
SHORT = "--data-dir DIR --weights FILE --out RUN"
"""The arguments that … in a command stands for."""


class Item(NamedTuple):
    """A row of the page.

    Attributes:
        what: ``"Eq. 4.1"``, ``"Table 3"``, ``"Eq. 7–26"``, ``"§4.4 ρ"``.
        words: what that is.
        made: tests, as ``file::function``, and commands.
        needs: a key of ``NEEDS``.
        came: what came out, where it is more than that a test holds, with its numbers as ``{study|run|metric}``.
    """

    what: str
    words: str
    made: list[str]
    needs: str
    came: str

    @property
    def kind(self) -> str:
        """Return its kind, such as Table or Eq."""
        return "§" if self.what.startswith("§") else self.what.split()[0]

    @property
    def numbers(self) -> list[str]:
        """Its number, or all of a run of numbers."""
        first, _, last = self.what.removeprefix(self.kind).strip().partition("–")
        return [str(number) for number in range(int(first), int(last) + 1)] if last else [first]

    @property
    def tests(self) -> list[str]:
        """The tests among what holds it."""
        return [name for name in self.made if "::" in name]

    @property
    def commands(self) -> list[str]:
        """The commands, whole."""
        return [line.replace("…", SHORT) for line in self.made if "::" not in line]


class Paper(NamedTuple):
    """A paper's part of the record: its name, what it is, its page, its items and how many of each kind it prints."""

    title: str
    about: str
    page: str
    items: list[Item]
    counts: Mapping[str, int]


def papers() -> dict[str, Paper]:
    """Read the record."""
    read = tomllib.loads(RECORD.read_text())
    return {
        name: Paper(**{**paper, "items": [Item(*item) for item in paper["items"]]})
        for name, paper in read.items()
    }


@cache
def results(study: str) -> dict[str, Any]:
    """Read the runs that are kept of a study."""
    folder = REPOSITORY / "experiments" / study
    files = [file for name in ("results", "kept") if (file := folder / f"{name}.jsonl").is_file()]
    return {key: run for file in files for key, run in read_results(file).items()}


def number(place: str) -> str:
    """Write what the kept runs of a name measured: ``study|run|metric``, in percent, or as it is with ``|1`` behind."""
    study, run, metric, *scale = place.split("|")
    values = [
        float(result["metrics"][metric])
        for key, result in results(study).items()
        if key.rpartition("-")[0] == run and metric in result["metrics"]
    ]
    if not values or not np.isfinite(values).all():
        raise ValueError(f"{{{place}}}: no run on record has that metric")
    return mean_std(values, scale=1.0, digits=2) if scale else mean_std(values)


def came_out(item: Item) -> str:
    """Say what came out, numbers filled in."""
    nothing_said = "not run" if item.needs == "photographs" else "holds"
    return re.sub(r"\{([^{}]+)\}", lambda match: number(match[1]), item.came or nothing_said)


def page() -> str:
    """Make the page."""
    read = papers()
    listed = ", ".join(f"{paper.title} {sum(paper.counts.values())}" for paper in read.values())
    parts = [
        "# Every table and figure\n",
        "Every table, figure, numbered equation, proposition and claim of the five papers, with the test or command that reproduces "
        "it, what that needs, and the result here. Results are read from kept runs: mean ± sample standard deviation over seeds, "
        f"in percent unless stated. The papers have: {listed}.\n",
        f"In commands, … stands for `{SHORT}`; `--dry-run` instead tries the whole path on images of noise. Run a test with "
        "`python -m pytest FILE -k NAME`. § marks what a paper prints without a number.\n",
        *(line for paper in read.values() for line in of_paper(paper)),
    ]
    return "\n".join(parts)


def of_paper(paper: Paper) -> Iterator[str]:
    """Write a paper's part."""
    counted = ", ".join(f"{kind} {count}" for kind, count in paper.counts.items())
    yield f"\n## {paper.title}\n"
    yield f"{paper.about}: [its page]({paper.page}). {counted}.\n"
    rows = [
        [
            item.what,
            item.words or "–",
            "<br>".join(f"`{line}`" for line in item.made) or "–",
            NEEDS[item.needs],
            came_out(item),
        ]
        for item in paper.items
    ]
    yield table(["", "what it is", "test or command", "needs", "result here"], rows)
