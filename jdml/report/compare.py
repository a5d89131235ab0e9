"""Compare runs: the settings that differ, the scores, and whether differences are more than chance."""

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jdml.data.listing import first_few
from jdml.report.runs import FILES, HELD_OUT, Run, unique_names
from jdml.report.tables import (
    CONFIDENCE,
    PairedDifference,
    difference_cell,
    duration,
    is_share,
    mean_std,
    number_format,
    paired_difference,
    setting_cell,
)

FIRST = ("R@1", "MAP@R", "P@1", "NMI")
"""The metrics that a table shows where there are many."""
MONITOR = "MAP@R"
"""The metric that training monitors by default."""
MOST = 8
TESTS = ("test ", "seen ", "unseen ")
"""Prefixes of the metrics of test parts."""
POWER = 0.8
"""Chance of showing a difference with the number of seeds that a sentence recommends."""


class Row(NamedTuple):
    """The runs of one setting.

    Attributes:
        name: of the row.
        runs: its runs, one for each seed.
        settings: those that differ between the rows.
        values: by metric, one value for each run that has it.
        differences: by metric, to the first row; empty for that row.
        seconds: mean time of a run; None if unknown.
        memory: most memory of a run, in MiB; None if unknown.
    """

    name: str
    runs: tuple[Run, ...]
    settings: dict[str, Any]
    values: dict[str, list[float]]
    differences: dict[str, PairedDifference]
    seconds: float | None
    memory: float | None


class Comparison(NamedTuple):
    """Runs side by side.

    Attributes:
        rows: one for each setting; the first is the baseline.
        settings: names of the settings that differ.
        metrics: names of all metrics.
        shown: the metrics of the table.
        papers: what the methods' papers report, in percent by metric: by ``"paper"`` if all report the same, else by
            ``"paper of ROW"``.
        confidence: of the differences' intervals.
    """

    rows: list[Row]
    settings: list[str]
    metrics: list[str]
    shown: list[str]
    papers: dict[str, dict[str, float]]
    confidence: float


def compare_runs(
    runs: Sequence[Run],
    *,
    metrics: Sequence[str] = (),
    baseline: str | None = None,
    confidence: float = CONFIDENCE,
) -> Comparison:
    """Put runs side by side; runs that differ only in their seed become one row.

    Args:
        runs: of :func:`read_runs`.
        metrics: which metrics a table shows, by their names or the ends of them (``"R@1"``). Default: R@1, MAP@R, P@1
            and NMI if there are many. Scores of held-out rows are preferred, unless a whole name (``"test class R@1"``)
            is given.
        baseline: the name of the row, or of one of its runs, that the others are compared with. Default: the first.
        confidence: of the intervals of the differences.

    Returns:
        A :class:`Comparison`.

    Raises:
        ValueError: no runs, an unknown metric or baseline, or a confidence outside 0…1.

    Implementation notes:
        A difference is taken between runs of the same seed (:func:`paired_difference`), and is not in percent. Of
        several rows, each interval has the level at which Holm's procedure tests its difference: it excludes 0 exactly
        if the difference is significant with Holm's correction.
    """
    if not runs:
        raise ValueError("runs must hold at least one run, got none")
    groups = _groups(runs)
    settings = _differing_settings(groups)
    if baseline is not None:
        rows_of = {run.name: name for name, group in reversed(groups.items()) for run in group}
        rows_of |= {name: name for name in groups}
        if baseline not in rows_of:
            raise ValueError(f"baseline must be one of {', '.join(groups)}, got {baseline!r}")
        first = rows_of[baseline]
        groups = {first: groups[first]} | groups
    measured = list(dict.fromkeys(name for run in runs for name in run.metrics))
    differences = {metric: _differences(groups, metric, confidence) for metric in measured}
    rows = []
    for name, group in groups.items():
        seconds = [run.seconds for run in group if run.seconds is not None]
        row = Row(
            name,
            tuple(group),
            {key: group[0].settings.get(key) for key in settings},
            {m: [r.metrics[m] for r in group if m in r.metrics] for m in measured},
            {m: by_row[name] for m, by_row in differences.items() if name in by_row},
            float(np.mean(seconds)) if seconds else None,
            max((run.memory for run in group if run.memory is not None), default=None),
        )
        rows.append(row)
    shown = _select_metrics(measured, metrics)
    return Comparison(rows, settings, measured, shown, _papers(rows, measured), confidence)


def comparison_table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Lay out a comparison as words: columns and rows.

    Args:
        comparison: of :func:`compare_runs`.

    Returns:
        The columns' titles, and a row for each setting, in percent if a metric is a fraction, with the number of runs
        that have the metric if some do not; last the rows of the papers.
    """
    rows, papers = comparison.rows, comparison.papers
    columns: list[tuple[str, list[str]]] = [("run", [*(row.name for row in rows), *papers])]
    if any(len(row.runs) > 1 for row in rows):
        columns.append(("runs", [str(len(row.runs)) for row in rows]))
    for name in comparison.settings:
        columns.append((name, [setting_cell(row.settings[name]) for row in rows]))
    for metric in comparison.shown:
        reported = [f"{p[metric]:.1f}" if metric in p else "–" for p in papers.values()]
        cells = [_value_cell(metric, row) for row in rows]
        columns.append((f"{metric}, %" if is_share(metric) else metric, cells + reported))
        if len(rows) > 1:
            cells = [difference_cell(metric, row.differences.get(metric)) for row in rows[1:]]
            columns.append((f"Δ {metric}", ["baseline", *cells]))
    if any(row.seconds is not None for row in rows):
        columns.append(("time", [duration(row.seconds) for row in rows]))
    if any(row.memory is not None for row in rows):
        memory = ["–" if row.memory is None else f"{row.memory:.0f} MiB" for row in rows]
        columns.append(("memory", memory))
    titles, lists = zip(*columns, strict=True)
    return list(titles), [list(row) for row in itertools.zip_longest(*lists, fillvalue="–")]


def summary_sentences(comparison: Comparison) -> list[str]:
    """Say in sentences what a comparison shows.

    Args:
        comparison: of :func:`compare_runs`.

    Returns:
        For each metric of the table, the monitored one first: which settings are better or worse than the baseline, by
        how much, and which cannot be told apart from it, with the number of seeds that would be needed. Then the runs
        without a score, and which part of the data was scored.
    """
    lines, shown = [], comparison.shown
    base, *others = comparison.rows
    runs = [run for row in comparison.rows for run in row.runs]
    if shown and others:
        recipes = [run.config.get("recipe", {}) for run in runs]
        monitors = {(recipe.get("evaluation") or {}).get("monitor") for recipe in recipes}
        monitored = {_kind(monitor or MONITOR) for monitor in monitors}
        for metric in sorted(shown, key=lambda metric: _kind(metric) not in monitored):
            lines += _sentences(comparison, metric)
        several = [d for row in others for d in row.differences.values() if d.seeds > 1]
        if not several:
            lines.append(
                "no two rows share two seeds, so nothing shows whether a difference is chance: train several seeds of "
                "each (--seeds 5)"
            )
        elif len(others) > 1:
            lines.append(
                f"(intervals and sentences have Holm's correction over {len(others)} rows)"
            )
    unscored = [run.name for run in runs if not run.metrics.keys() & set(shown)]
    if shown and unscored:
        lines.append(f"without a score: {first_few(unscored, MOST)}")
    if any(metric.startswith(TESTS) for metric in shown):
        lines.append(
            "these are scores of the test part, which should choose nothing: jdml train --validation 0.2 holds out "
            "rows to choose by"
        )
    elif any(metric.startswith(HELD_OUT) for metric in shown):
        lines.append("these are scores of held-out rows: score the chosen setting on the test part")
    return lines


def _sentences(comparison: Comparison, metric: str) -> list[str]:
    """Say of a metric which rows differ from the first one, and which cannot be told apart from it."""
    base, *others = comparison.rows
    scale, form = number_format(metric)
    points = " points" if is_share(metric) else ""
    differences = {row.name: row.differences[metric] for row in others if metric in row.differences}
    tested = {name: each for name, each in differences.items() if each.seeds > 1}
    unclear = {name: each for name, each in tested.items() if each.low <= 0 <= each.high}
    lines = []
    for name in (name for name in tested if name not in unclear):
        difference = tested[name]
        above = difference.mean > 0
        low, by, high = (f"{scale * end:{form}}" for end in sorted(map(abs, difference[:3])))
        words = f"has a {'higher' if above else 'lower'} {metric} than {base.name} by {by}"
        if points:
            better = "better" if above else "worse"
            words = f"is {better} than {base.name} by {by} points of {metric}"
        lines.append(
            f"{name} {words} ({100 * comparison.confidence:.0f} % interval {low} to {high}, "
            f"{difference.seeds} seeds)"
        )
    if unclear:
        largest = max(unclear.values(), key=lambda difference: abs(difference.mean))
        needed = ""
        if largest.mean:
            seeds = _seeds_needed(largest, comparison.confidence)
            about = f"{abs(scale * largest.mean):{form}}{points}"
            needed = f"; about {seeds:,} would be needed for a difference of {about}"
        lines.append(
            f"{first_few(list(unclear), MOST)} cannot be told apart from {base.name} in {metric} by these "
            f"{largest.seeds} seeds{needed}"
        )
    return lines


def _seeds_needed(difference: PairedDifference, confidence: float) -> int:
    """Estimate how many seeds show a difference of this size and spread, by the normal approximation of a t-test."""
    from scipy.stats import norm, t

    statistic = t.isf(difference.p / 2, difference.seeds - 1)
    quantiles = norm.ppf(0.5 + confidence / 2) + norm.ppf(POWER)
    return 2 + math.ceil(difference.seeds * (quantiles / statistic) ** 2)


def comparison_records(comparison: Comparison) -> list[dict[str, Any]]:
    """Lay out a comparison as plain numbers, a record for each setting, for CSV files.

    Args:
        comparison: of :func:`compare_runs`.

    Returns:
        By column: ``run``, ``runs``, the settings that differ, and of every metric its mean, number of runs, standard
        deviation, difference and the difference's interval; ``seconds`` and ``memory_mib``. A setting with the name of
        another column is ``setting NAME``.
    """
    records = []
    for row in comparison.rows:
        numbers: dict[str, Any] = {}
        for metric in comparison.metrics:
            values = row.values[metric]
            mean, low, high, *_ = row.differences.get(metric, paired_difference({}, {}))
            numbers |= {
                metric: float(np.mean(values)) if values else None,
                f"{metric} runs": len(values),
                f"{metric} std": float(np.std(values, ddof=1)) if len(values) > 1 else None,
                f"{metric} difference": mean,
                f"{metric} difference low": low,
                f"{metric} difference high": high,
            }
        numbers |= {"seconds": row.seconds, "memory_mib": row.memory}
        record: dict[str, Any] = {"run": row.name, "runs": len(row.runs)}
        for name, value in row.settings.items():
            title = f"setting {name}" if name in record.keys() | numbers.keys() else name
            plain = isinstance(value, int | float) and not isinstance(value, bool)
            record[title] = value if plain else setting_cell(value)
        unknown = (name for name, value in numbers.items() if value is None or math.isnan(value))
        records.append(record | numbers | dict.fromkeys(unknown, ""))
    return records


def _value_cell(metric: str, row: Row) -> str:
    """Write mean ± standard deviation of a row, and the number of its runs with a value if some have none."""
    values = row.values[metric]
    if not values:
        return "–"
    if is_share(metric):
        cell = mean_std(values)
    else:
        spread = f" ± {np.std(values, ddof=1):.2g}" if len(values) > 1 else ""
        cell = f"{np.mean(values):.4g}{spread}"
    return cell if len(values) == len(row.runs) else f"{cell} ({len(values)} of {len(row.runs)})"


def _groups(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Group runs that differ only in their seed; a second run of a seed stands for itself."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        settings = {name: value for name, value in run.settings.items() if name != FILES}
        key = json.dumps(settings, sort_keys=True, default=str)
        while not all(_are_seeds(run, other) for other in groups.get(key, [])):
            key += "'"
        groups.setdefault(key, []).append(run)
    names = []  # of each group: the common part of its runs' names, or the first one's
    for group in groups.values():
        stems = {re.sub(r"[-_ ]?(seed)?[-_=]?\d+$", "", run.name) for run in group}
        common = len(group) > 1 and len(stems) == 1 and "" not in stems
        names.append(stems.pop() if common else group[0].name)
    unique = unique_names(names, [group[0].name for group in groups.values()])
    return dict(zip(unique, groups.values(), strict=True))


def _are_seeds(run: Run, other: Run) -> bool:
    """Whether runs of equal settings can be two seeds of one: of the same files, as far as both say."""
    files = {of.settings[FILES] for of in (run, other) if FILES in of.settings}
    return run.seed is not None and other.seed != run.seed and len(files) < 2


def _differing_settings(groups: Mapping[str, Sequence[Run]]) -> list[str]:
    """Name the settings that differ between groups, without those that the rows' names or other settings imply."""
    settings = [group[0].settings for group in groups.values()]
    return [
        name
        for name in dict.fromkeys(name for of_row in settings for name in of_row)
        if not name.startswith("its ")
        and len({json.dumps(of_row.get(name), default=str) for of_row in settings}) > 1
        and [str(of_row.get(name)) for of_row in settings] != list(groups)
    ]


def _papers(rows: Sequence[Row], measured: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return what papers report, equal numbers once."""
    papers: dict[str, dict[str, float]] = {}
    for row in rows:
        reported = {name: value for run in row.runs for name, value in run.paper.items()}
        paper = {
            metric: reported[name]
            for metric in measured
            for name in (metric.split()[-1], metric)
            if name in reported
        }
        if paper and paper not in papers.values():
            papers[f"paper of {row.name}"] = paper
    return papers if len(papers) != 1 else {"paper": next(iter(papers.values()))}


def _differences(
    groups: Mapping[str, Sequence[Run]], metric: str, confidence: float
) -> dict[str, PairedDifference]:
    """Compare the groups that share seeds with the first one, with intervals at the levels of Holm's procedure."""
    base, *others = (
        {run.seed: run.metrics[metric] for run in group if metric in run.metrics}
        for group in groups.values()
    )
    values = dict(zip(list(groups)[1:], others, strict=True))

    def to_base(name: str, level: float) -> PairedDifference:
        return paired_difference(values[name], base, scale=1.0, confidence=level)

    differences = {name: to_base(name, confidence) for name in values}
    tested = [name for name, difference in differences.items() if difference.seeds > 1]
    left = len(tested)
    for name in sorted(tested, key=lambda name: differences[name].p):
        differences[name] = to_base(name, 1 - (1 - confidence) / left)
        left -= not differences[name].low <= 0 <= differences[name].high
    return {name: difference for name, difference in differences.items() if difference.seeds}


def _kind(metric: str) -> str:
    """Return the last part of a metric's name, such as R@1."""
    return re.split(r"[\s/]", metric)[-1]


def _select_metrics(metrics: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Choose the metrics of a table: those that are asked for, or the usual ones of many."""
    held_out = [metric for metric in metrics if metric.startswith(HELD_OUT)]
    selected: dict[str, None] = {}
    for name in wanted:
        fitting = [metric for metric in metrics if name in (metric, _kind(metric))]
        if not fitting:
            raise ValueError(f"metrics must be among {', '.join(metrics) or 'none'}, got {name!r}")
        validation = [] if name in fitting else [m for m in fitting if m in held_out]
        selected |= dict.fromkeys(validation or fitting)
    if wanted:
        return list(selected)
    metrics = held_out or metrics
    if len(metrics) <= MOST // 2:
        return list(metrics)
    parts = dict.fromkeys(metric.removesuffix(_kind(metric)) for metric in metrics)
    usual = [f"{part}{kind}" for part in parts for kind in FIRST if f"{part}{kind}" in metrics]
    return (usual or list(metrics))[:MOST]
