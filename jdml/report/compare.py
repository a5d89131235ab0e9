"""Runs side by side: what differs in their settings, what they scored, and whether seeds agree on the difference."""

import json
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jdml.report.runs import FILES, Run, number_repeated
from jdml.report.tables import (
    Paired,
    check_confidence,
    difference_cell,
    duration,
    holm,
    is_share,
    mean_std,
    paired,
    setting_cell,
    size,
)

FIRST = ("R@1", "MAP@R", "P@1", "NMI")
"""The metrics that a table shows where there are many."""
MOST = 8
VALIDATION = "validation "
"""What the metrics of held-out rows begin with."""
TESTS = ("test ", "seen ", "unseen ")
"""What those of test parts begin with."""


class Row(NamedTuple):
    """The runs of one setting.

    Attributes:
        name: what tells it from the others.
        runs: its runs, one for each seed.
        settings: what differs between the rows.
        values: by metric, one value for each run that has it.
        differences: by metric, to the first row; empty of that row.
        seconds: mean time of a run; None where it is not known.
        memory: most memory of a run, in MiB; likewise.
    """

    name: str
    runs: tuple[Run, ...]
    settings: dict[str, Any]
    values: dict[str, list[float]]
    differences: dict[str, Paired]
    seconds: float | None
    memory: float | None


class Comparison(NamedTuple):
    """Runs side by side.

    Attributes:
        rows: one for each setting; the first is the baseline.
        settings: names of the settings that differ.
        metrics: names of all metrics.
        shown: those that a table has room for.
        papers: what the methods' papers report of the metrics, in percent: by ``"paper"`` where it is one, else by
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
    confidence: float = 0.95,
) -> Comparison:
    """Put runs side by side; runs that differ only in their seed become one row.

    Args:
        runs: of :func:`read_runs`.
        metrics: which metrics a table shows, by their names or the ends of them (``"R@1"``). Default: R@1, MAP@R, P@1
            and NMI where there are many. Where runs were scored on held-out rows, these are meant, unless a whole name
            (``"test class R@1"``) says otherwise.
        baseline: the name of the row, or of one of its runs, that the others are compared with. Default: the first.
        confidence: of the intervals of the differences.

    Returns:
        A :class:`Comparison`.

    Raises:
        ValueError: no runs, a metric or a baseline that there is not, or a confidence outside 0…1.

    Implementation notes:
        A difference is taken between runs of the same seed (:func:`paired`), and is not in percent.
    """
    if not runs:
        raise ValueError("runs must hold at least one run, got none")
    check_confidence(confidence)
    groups = _groups(runs)
    names = _row_names(groups)
    settings = _differing_settings(groups, names)
    if baseline is not None:
        place = _baseline_row(baseline, names, groups)
        groups.insert(0, groups.pop(place))
        names.insert(0, names.pop(place))
    measured = list(dict.fromkeys(name for run in runs for name in run.metrics))
    rows = []
    for name, group in zip(names, groups, strict=True):
        seconds = [run.seconds for run in group if run.seconds is not None]
        row = Row(
            name,
            tuple(group),
            {key: group[0].settings.get(key) for key in settings},
            {m: [r.metrics[m] for r in group if m in r.metrics] for m in measured},
            {} if group is groups[0] else _differences(groups[0], group, measured, confidence),
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
        The columns' titles, and a row for each setting, in percent where a metric is a fraction, with the number of
        its runs that have the metric where some do not; last rows for what papers report.
    """
    rows, papers = comparison.rows, comparison.papers
    columns: list[tuple[str, list[str]]] = []

    def add(title: str, cells: list[str], of_papers: list[str] | None = None) -> None:
        columns.append((title, cells + (["–"] * len(papers) if of_papers is None else of_papers)))

    add("run", [row.name for row in rows], list(papers))
    if any(len(row.runs) > 1 for row in rows):
        add("runs", [str(len(row.runs)) for row in rows])
    for name in comparison.settings:
        add(name, [setting_cell(row.settings[name]) for row in rows])
    for metric in comparison.shown:
        reported = [f"{p[metric]:.1f}" if metric in p else "–" for p in papers.values()]
        title = f"{metric}, %" if is_share(metric) else metric
        add(title, [_value_cell(metric, row) for row in rows], reported)
        if len(rows) > 1:
            differences = [difference_cell(metric, row.differences.get(metric)) for row in rows]
            add(f"Δ {metric}", ["baseline", *differences[1:]])
    if any(row.seconds is not None for row in rows):
        add("time", [duration(row.seconds) for row in rows])
    if any(row.memory is not None for row in rows):
        add("memory", [size(row.memory) for row in rows])
    return [title for title, _ in columns], [
        list(row) for row in zip(*(cells for _, cells in columns), strict=True)
    ]


def verdict(comparison: Comparison) -> list[str]:
    """Say what the runs tell by the first metric that is shown, and what was looked at.

    Args:
        comparison: of :func:`compare_runs`.

    Returns:
        Sentences: which settings are better or worse than the baseline (Student's t over paired seeds, with Holm's
        correction for being several), or that these runs cannot tell; which runs have no score; and that the test part
        was looked at, where there is no other.
    """
    lines, shown = [], comparison.shown
    if shown and len(comparison.rows) > 1:
        lines = _significance(comparison, shown[0])
    runs = [run for row in comparison.rows for run in row.runs]
    unscored = [run.name for run in runs if not run.metrics.keys() & set(shown)]
    if shown and unscored:
        lines.append(f"without a score: {_first_of(unscored)}")
    if any(metric.startswith(TESTS) for metric in shown):
        parts = "test part" if any(metric.startswith("test ") for metric in shown) else "test parts"
        lines.append(
            f"these are scores of the {parts}: what is chosen by them scores too well on them; jdml train --validation "
            "0.2 holds out rows to choose by"
        )
    elif any(metric.startswith(VALIDATION) for metric in shown):
        lines.append(
            "these are scores of the held-out rows, which may choose; the test part then scores the choice"
        )
    return lines


def _significance(comparison: Comparison, metric: str) -> list[str]:
    """Say which rows are better or worse than the first, and which cannot be told from it."""
    base, *others = comparison.rows
    tested = {row.name: row.differences.get(metric) for row in others}
    known = {name: d for name, d in tested.items() if d is not None and d.seeds > 1}
    p = holm({name: d.p for name, d in known.items()}, tests=len(known))
    gains = {name: known[name].mean for name in p if p[name] < 1 - comparison.confidence}
    more, less = ("better", "worse") if is_share(metric) else ("more", "less")
    sides = {
        f"{more} than": [name for name in tested if gains.get(name, 0) > 0],
        f"{less} than": [name for name in tested if gains.get(name, 0) < 0],
        "these runs cannot tell from": [name for name in tested if name not in gains],
    }
    lines = []
    for words, names in sides.items():
        if names:
            cells = []
            for name in names:
                difference, count = tested[name], ""
                if difference is not None and difference.seeds > 1:
                    count = f" (n = {difference.seeds})"
                cell = difference_cell(metric, difference, "(no seed in common)")
                cells.append(f"{name} {cell}{count}")
            lines.append(f"{metric}: {words} {base.name}: {_first_of(cells)}")
    if len(known) > 1:
        lines.append(
            f"(Holm's correction over {len(known)} differences, {comparison.confidence:.0%})"
        )
    if not known and all(len(row.values[metric]) < 2 for row in comparison.rows):
        lines.append("one seed tells nothing of chance: several seeds each would (--seeds 5)")
    elif not known:
        lines.append("of chance only seeds tell that both rows have, two at least: here are none")
    return lines


def _first_of(names: Sequence[str]) -> str:
    """List the first names, and say how many more there are."""
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return ", ".join(names[:MOST]) + more


def comparison_records(comparison: Comparison) -> list[dict[str, Any]]:
    """Lay out a comparison as plain numbers, a record for each setting, for CSV files.

    Args:
        comparison: of :func:`compare_runs`.

    Returns:
        By column: ``run``, ``runs``, the settings that differ, and of every metric its mean, number of runs, standard
        deviation, difference and the difference's interval; ``seconds`` and ``memory_mib``. A setting that is called as
        one of the others is ``setting NAME``.
    """
    records = []
    for row in comparison.rows:
        numbers: dict[str, Any] = {}
        for metric in comparison.metrics:
            values, difference = row.values[metric], row.differences.get(metric)
            numbers[metric] = float(np.mean(values)) if values else ""
            numbers[f"{metric} runs"] = len(values)
            numbers[f"{metric} std"] = float(np.std(values, ddof=1)) if len(values) > 1 else ""
            for part, title in (("mean", ""), ("low", " low"), ("high", " high")):
                value = math.nan if difference is None else getattr(difference, part)
                numbers[f"{metric} difference{title}"] = "" if math.isnan(value) else value
        numbers["seconds"] = "" if row.seconds is None else row.seconds
        numbers["memory_mib"] = "" if row.memory is None else row.memory
        record: dict[str, Any] = {"run": row.name, "runs": len(row.runs)}
        for name in comparison.settings:
            value = row.settings[name]
            title = f"setting {name}" if name in ("run", "runs") or name in numbers else name
            plain = isinstance(value, int | float) and not isinstance(value, bool)
            record[title] = value if plain else setting_cell(value)
        records.append(record | numbers)
    return records


def _value_cell(metric: str, row: Row) -> str:
    """Write mean ± standard deviation of a row, and of how many of its runs where some have no value."""
    values = row.values[metric]
    if not values:
        return "–"
    if is_share(metric):
        cell = mean_std(values)
    else:
        spread = f" ± {np.std(values, ddof=1):.2g}" if len(values) > 1 else ""
        cell = f"{np.mean(values):.4g}{spread}"
    return cell if len(values) == len(row.runs) else f"{cell} ({len(values)} of {len(row.runs)})"


def _groups(runs: Sequence[Run]) -> list[list[Run]]:
    """Group runs that differ only in their seed; a second run of a seed stands for itself."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        settings = {name: value for name, value in run.settings.items() if name != FILES}
        key = json.dumps(settings, sort_keys=True, default=str)
        while not all(_are_seeds(run, other) for other in groups.get(key, [])):
            key += "'"
        groups.setdefault(key, []).append(run)
    return list(groups.values())


def _are_seeds(run: Run, other: Run) -> bool:
    """Whether runs of equal settings can be two seeds of one: of the same files, as far as both tell."""
    files = {of.settings[FILES] for of in (run, other) if FILES in of.settings}
    return run.seed is not None and other.seed != run.seed and len(files) < 2


def _differing_settings(groups: Sequence[Sequence[Run]], names: Sequence[str]) -> list[str]:
    """Name the settings that differ between groups, without those that the rows' names repeat."""
    settings = [group[0].settings for group in groups]
    return [
        name
        for name in dict.fromkeys(name for of_row in settings for name in of_row)
        if not name.startswith("its ")
        and len({json.dumps(of_row.get(name), default=str) for of_row in settings}) > 1
        and [str(of_row.get(name)) for of_row in settings] != list(names)
    ]


def _row_names(groups: Sequence[Sequence[Run]]) -> list[str]:
    """Name rows by their run, or what is common to the names of their runs."""
    names: list[str] = []
    for group in groups:
        stems = {re.sub(r"[-_ ]?(seed)?[-_=]?\d+$", "", run.name) for run in group}
        common = len(group) > 1 and len(stems) == 1 and "" not in stems
        names.append(stems.pop() if common else group[0].name)
    return number_repeated(
        [
            group[0].name if names.count(name) > 1 else name
            for name, group in zip(names, groups, strict=True)
        ]
    )


def _baseline_row(baseline: str, names: Sequence[str], groups: Sequence[Sequence[Run]]) -> int:
    """Find the row of a name, or else of a run of that name."""
    if baseline in names:
        return names.index(baseline)
    places = [i for i, group in enumerate(groups) if baseline in [run.name for run in group]]
    if len(places) == 1:
        return places[0]
    if not places:
        raise ValueError(f"baseline must be one of {', '.join(names)}, got {baseline!r}")
    rows = ", ".join(names[place] for place in places)
    raise ValueError(f"baseline {baseline!r} is a run of several rows: write one of {rows}")


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
    base: Sequence[Run], group: Sequence[Run], metrics: Sequence[str], confidence: float
) -> dict[str, Paired]:
    """Compare two groups of runs by each metric for which they share a seed."""
    differences = {}
    for metric in metrics:
        values = (
            {run.seed: run.metrics[metric] for run in runs if metric in run.metrics}
            for runs in (group, base)
        )
        differences[metric] = paired(*values, scale=1.0, confidence=confidence)
    return {metric: difference for metric, difference in differences.items() if difference.seeds}


def _select_metrics(metrics: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Choose the metrics of a table: those that are asked for, or the usual ones of many."""
    held_out = [metric for metric in metrics if metric.startswith(VALIDATION)]
    kinds = {metric: re.split(r"[\s/]", metric)[-1] for metric in metrics}
    selected: list[str] = []
    for name in wanted:
        fitting = [metric for metric in metrics if name in (metric, kinds[metric])]
        if not fitting:
            raise ValueError(f"metrics must be among {', '.join(metrics) or 'none'}, got {name!r}")
        validation = [metric for metric in fitting if metric in held_out]
        selected += fitting if name in fitting or not validation else validation
    if wanted:
        return list(dict.fromkeys(selected))
    metrics = held_out or metrics
    if len(metrics) <= MOST // 2:
        return list(metrics)
    parts = dict.fromkeys(metric.removesuffix(kinds[metric]) for metric in metrics)
    usual = [f"{part}{kind}" for part in parts for kind in FIRST if f"{part}{kind}" in metrics]
    return (usual or list(metrics))[:MOST]
