"""How studies show their runs: cells of tables, points of figures, and the tables themselves."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jdml.report import mean_std
from jdml.runs.results_store import read_results
from jdml.studies.runner import over_seeds


def cell(values: Sequence[float], scale: float = 100.0, digits: int = 1, none: str = "–") -> str:
    """Mean and standard deviation of runs, in percent by default; a dash where there are none."""
    return mean_std(values, scale=scale, digits=digits) if len(values) else none


def cells(
    results: Mapping[str, Any],
    name: str,
    metrics: Iterable[str],
    scale: float = 100.0,
    digits: int = 1,
) -> list[str]:
    """A cell for each metric, of the runs of a name over their seeds."""
    return [cell(over_seeds(results, name, metric), scale, digits) for metric in metrics]


def beside(study: str, part: str = "") -> dict[str, Any]:
    """Of the runs that are kept beside a study's file those of a part, which are called ``part: run``, or of none."""
    kept = read_results(Path(study).with_name("results.jsonl"))
    named = {name.rpartition(": ")[::2]: run for name, run in kept.items()}
    return {name: run for (of, name), run in named.items() if of == part}


def curve(history: Sequence[Mapping[str, Any]], metric: str = "MAP@R") -> list[list[float]]:
    """Step and value of each evaluation of a run, as studies keep them."""
    return [[one["step"], round(float(one[metric]), 5)] for one in history if metric in one]


def subplots(rows: int = 1, columns: int = 1, *, size: tuple[float, float], **shared: Any) -> Any:
    """A figure, and its axes ``[rows, columns]``; no window is opened."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def draw_means(
    axes: Any, points: Iterable[float], runs: Sequence[Sequence[float]], **style: Any
) -> None:
    """Mean and standard deviation of the runs at each point, in percent; behind them a grid."""
    means = [100 * np.mean(values) for values in runs]
    spread = [100 * np.std(values, ddof=min(1, len(values) - 1)) for values in runs]
    axes.errorbar(points, means, spread, marker="o", capsize=3, **style)
    axes.grid(alpha=0.3)


def those_run(names: Iterable[str], results: Mapping[str, Any], setting: str) -> list[str]:
    """The names for a setting that some run has."""
    there = {result["job"].get(setting) for result in results.values()}
    return [name for name in names if name in there]


def tell(tables: str, results: Mapping[str, Any], path: Path) -> None:
    """Print tables, and how long their runs took; write the tables."""
    minutes = sum(result["seconds"] for result in results.values()) / 60
    print(f"{tables}\n{len(results)} runs, {minutes:.0f} process-minutes in all", flush=True)
    path.write_text(tables)
