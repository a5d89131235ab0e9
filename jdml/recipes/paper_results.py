"""The papers' results, read from ``paper_results.toml``, which says what its keys mean."""

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from jdml.recipes.shared import DATASETS


@dataclass(frozen=True)
class PaperResult:
    """A row of a paper's table on one data set, by the keys of the file; ``values`` are in percent by metric."""

    table: str
    protocol: str
    method: str
    backbone: str
    dataset: str
    task: Mapping[str, Any]
    values: Mapping[str, float]
    unprinted: tuple[str, ...]
    note: str


def _read_table(
    paper: str,
    name: str,
    rows: Sequence[Mapping[str, Any]],
    metrics: Sequence[str] = (),
    metrics_sop: Sequence[str] = (),
    protocol: str = "conventional",
    task: Mapping[str, Any] = MappingProxyType({}),
    unprinted: Sequence[str] = (),
    note: str = "",
) -> Iterator[PaperResult]:
    """Read every row on every data set of a ``[[table]]``."""
    for row in rows:
        own = {**task, **row}
        numbers = {dataset: own.pop(dataset) for dataset in DATASETS if dataset in own}
        method, backbone = own.pop("method"), own.pop("backbone")
        for dataset, percentages in numbers.items():
            columns = (dataset == "sop" and metrics_sop) or metrics
            values = dict(zip(columns, percentages, strict=True))
            yield PaperResult(
                table=f"{paper}, {name}",
                protocol=protocol,
                method=method,
                backbone=backbone,
                dataset=dataset,
                task=own,
                values={metric: n for metric, n in values.items() if not math.isnan(n)},
                unprinted=tuple(unprinted),
                note=note,
            )


_FILE = tomllib.loads(files("jdml.recipes").joinpath("paper_results.toml").read_text("utf-8"))
PAPER_RESULTS = tuple(result for table in _FILE["table"] for result in _read_table(**table))
"""Every row of every table, on every data set."""


def unspecified_settings(method: str, protocol: str = "conventional") -> str:
    """Say what a method's paper leaves open under a protocol, and how it is filled in; "" where nothing is."""
    kind = "conventional" if protocol == "conventional" else "mlrc"
    return "; ".join(
        each["text"]
        for each in _FILE["unspecified"]["settings"]
        if method in each.get("methods", [method]) and each.get("protocol", kind) == kind
    )
