"""Runs side by side: what differs in their settings, what they scored, and whether seeds agree on the difference."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jdml.report.runs import FILES, Run
from jdml.report.tables import Paired, check_confidence, holm, mean_std, paired

SHARE = re.compile(r"(^|[\s/])(R@\d+|P@1|RP|MAP@\w+|nDCG@\d+|NMI\+?)$")
"""Metrics that are fractions, and are shown in percent."""
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
    differing = _differing([group[0].settings for group in groups])
    names = _row_names(groups)
    differing = [  # what the names of the rows say already is not said again
        setting
        for setting in differing
        if [str(group[0].settings.get(setting)) for group in groups] != names
    ]
    if baseline is not None:
        first = _place_of(baseline, names, groups)
        order = [first, *(place for place in range(len(groups)) if place != first)]
        groups, names = [groups[i] for i in order], [names[i] for i in order]
    measured = list(dict.fromkeys(name for run in runs for name in run.metrics))
    rows = []
    for name, group in zip(names, groups, strict=True):
        rows.append(
            Row(
                name,
                tuple(group),
                {key: group[0].settings.get(key) for key in differing},
                {m: [r.metrics[m] for r in group if m in r.metrics] for m in measured},
                {} if group is groups[0] else _differences(groups[0], group, measured, confidence),
                _mean([run.seconds for run in group]),
                max((run.memory for run in group if run.memory is not None), default=None),
            )
        )
    shown, papers = _shown(measured, metrics), _papers(rows, measured)
    return Comparison(rows, differing, measured, shown, papers, confidence)


def comparison_table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Lay out a comparison as words: columns and rows.

    Args:
        comparison: of :func:`compare_runs`.

    Returns:
        The columns' titles, and a row for each setting, in percent where a metric is a fraction, with the number of
        its runs that have the metric where some do not; last rows for what papers report.
    """
    some = {
        "time": any(row.seconds is not None for row in comparison.rows),
        "memory": any(row.memory is not None for row in comparison.rows),
        "runs": any(len(row.runs) > 1 for row in comparison.rows),
    }
    several = len(comparison.rows) > 1
    columns = ["run", *(["runs"] if some["runs"] else []), *comparison.settings]
    for metric in comparison.shown:
        columns.append(f"{metric}, %" if is_share(metric) else metric)
        if several:
            columns.append(f"Δ {metric}")
    columns += [name for name in ("time", "memory") if some[name]]
    rows = []
    for row in comparison.rows:
        cells = [row.name, *([str(len(row.runs))] if some["runs"] else [])]
        cells += [setting_cell(row.settings[name]) for name in comparison.settings]
        for metric in comparison.shown:
            cells.append(value_cell(metric, row.values[metric]) + _of_so_many(row, metric))
            if several:
                cells.append(
                    difference_cell(metric, row.differences.get(metric), row is comparison.rows[0])
                )
        cells += [duration(row.seconds)] if some["time"] else []
        cells += [size(row.memory)] if some["memory"] else []
        rows.append(cells)
    for name, reported in comparison.papers.items():
        cells = [name, *(["–"] if some["runs"] else []), *("–" for _ in comparison.settings)]
        for metric in comparison.shown:
            value = reported.get(metric)
            cells.append("–" if value is None else f"{value:.1f}")
            cells += ["–"] if several else []
        rows.append([*cells, *("–" for name in ("time", "memory") if some[name])])
    return columns, rows


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
        lines = _told_apart(comparison, shown[0])
    without = [run.name for row in comparison.rows for run in row.runs if not _scored(run, shown)]
    if shown and without:
        more = f" and {len(without) - MOST} more" if len(without) > MOST else ""
        lines.append(f"without a score: {', '.join(without[:MOST])}{more}")
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


def _told_apart(comparison: Comparison, metric: str) -> list[str]:
    """Which rows are better or worse than the first, and which cannot be told from it."""
    base, *others = comparison.rows
    tested = {place: row.differences.get(metric) for place, row in enumerate(others)}
    known = {place: d for place, d in tested.items() if d is not None and d.seeds > 1}
    p = holm({place: d.p for place, d in known.items()}, tests=len(known)) if known else {}
    surely = {place: known[place].mean for place in p if p[place] < 1 - comparison.confidence}
    more, less = ("better", "worse") if is_share(metric) else ("more", "less")
    sides = {
        f"{more} than {base.name}": [place for place in tested if surely.get(place, 0) > 0],
        f"{less} than {base.name}": [place for place in tested if surely.get(place, 0) < 0],
        f"these runs cannot tell from {base.name}": [
            place for place in tested if place not in surely
        ],
    }
    lines = []
    for words, places in sides.items():
        cells = [f"{others[place].name} {_with_count(metric, tested[place])}" for place in places]
        rest = f" and {len(places) - MOST} more" if len(places) > MOST else ""
        if places:
            lines.append(f"{metric}: {words}: {', '.join(cells[:MOST])}{rest}")
    if len(known) > 1:
        lines.append(
            f"(Holm's correction over {len(known)} differences, {comparison.confidence:.0%})"
        )
    if not known and all(len(row.values[metric]) < 2 for row in comparison.rows):
        lines.append("one seed tells nothing of chance: several seeds each would (--seeds 5)")
    elif not known:
        lines.append("of chance only seeds tell that both rows have, two at least: here are none")
    return lines


def _with_count(metric: str, difference: Paired | None) -> str:
    """A difference, its interval and its number of seeds."""
    if difference is None:
        return "(no seed in common)"
    cell = difference_cell(metric, difference)
    return cell if difference.seeds == 1 else f"{cell} (n = {difference.seeds})"


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
        record: dict[str, Any] = {"run": row.name, "runs": len(row.runs)}
        numbers = _numbers(row, comparison.metrics)
        for name in comparison.settings:
            value = row.settings[name]
            taken = name in ("run", "runs") or name in numbers
            plain = isinstance(value, int | float) and not isinstance(value, bool)
            record[f"setting {name}" if taken else name] = value if plain else setting_cell(value)
        records.append(record | numbers)
    return records


def _numbers(row: Row, metrics: Sequence[str]) -> dict[str, Any]:
    """What a row's runs scored and took, by column."""
    numbers: dict[str, Any] = {}
    for metric in metrics:
        values, difference = row.values[metric], row.differences.get(metric)
        numbers[metric] = float(np.mean(values)) if values else ""
        numbers[f"{metric} runs"] = len(values)
        numbers[f"{metric} std"] = float(np.std(values, ddof=1)) if len(values) > 1 else ""
        for part in ("mean", "low", "high"):
            value = float("nan") if difference is None else getattr(difference, part)
            name = "difference" if part == "mean" else f"difference {part}"
            numbers[f"{metric} {name}"] = "" if math.isnan(value) else value
    numbers["seconds"] = "" if row.seconds is None else row.seconds
    numbers["memory_mib"] = "" if row.memory is None else row.memory
    return numbers


def is_share(metric: str) -> bool:
    """Whether a metric is a fraction, shown in percent."""
    return SHARE.search(metric) is not None


def value_cell(metric: str, values: Sequence[float]) -> str:
    """Mean ± standard deviation as a table shows it."""
    if not values:
        return "–"
    if is_share(metric):
        return mean_std(values)
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    mean = f"{float(np.mean(values)):.4g}"
    return mean if len(values) == 1 else f"{mean} ± {spread:.2g}"


def difference_cell(metric: str, difference: Paired | None, is_baseline: bool = False) -> str:
    """A difference and its interval as a table shows them."""
    if is_baseline:
        return "baseline"
    if difference is None:
        return "–"
    scale, form = (100.0, "+.1f") if is_share(metric) else (1.0, "+.3g")
    text = format(scale * difference.mean, form)
    if difference.seeds == 1:
        return f"{text} (n = 1)"
    return f"{text} [{scale * difference.low:{form}}, {scale * difference.high:{form}}]"


def setting_cell(value: Any) -> str:
    """Format a setting for a table."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "–"
    return f"{value:g}" if isinstance(value, float) else str(value)


def duration(seconds: float | None) -> str:
    """Seconds in words.

    Example:
        >>> duration(5.04), duration(130), duration(7325), duration(None)
        ('5.0 s', '2 min 10 s', '2 h 2 min', '–')
    """
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds) // 60
    return (
        f"{minutes} min {int(seconds) % 60} s"
        if minutes < 60
        else f"{minutes // 60} h {minutes % 60} min"
    )


def size(mebibytes: float | None) -> str:
    """Memory in words.

    Example:
        >>> size(500.2), size(2048), size(None)
        ('500 MiB', '2.0 GiB', '–')
    """
    if mebibytes is None:
        return "–"
    return f"{mebibytes:.0f} MiB" if mebibytes < 1024 else f"{mebibytes / 1024:.1f} GiB"


def _groups(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs that differ only in their seed, together; a second run of a seed stands for itself."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        settings = {name: value for name, value in run.settings.items() if name != FILES}
        key = json.dumps(settings, sort_keys=True, default=str)
        while any(not _together(run, other) for other in groups.get(key, [])):
            key += "'"
        groups.setdefault(key, []).append(run)
    return list(groups.values())


def _together(run: Run, other: Run) -> bool:
    """Whether runs of equal settings can be two seeds of one: of the same files, as far as both tell."""
    files = {of.settings[FILES] for of in (run, other) if FILES in of.settings}
    return run.seed is not None and other.seed != run.seed and len(files) < 2


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for run in settings for name in run if not name.startswith("its "))
    return [
        name
        for name in names
        if len({json.dumps(run.get(name), default=str) for run in settings}) > 1
    ]


def _row_names(groups: Sequence[Sequence[Run]]) -> list[str]:
    """What rows are called: by their run, or what is common to the names of their runs."""
    names: list[str] = []
    for group in groups:
        name = group[0].name
        if len(group) > 1:
            stems = {re.sub(r"[-_ ]?(seed)?[-_=]?\d+$", "", run.name) for run in group}
            name = stems.pop() if len(stems) == 1 and "" not in stems else name
        names.append(name)
    names = [
        group[0].name if names.count(name) > 1 else name
        for name, group in zip(names, groups, strict=True)
    ]
    for place, name in enumerate(names):
        number = 1
        while names[place] in names[:place]:
            number += 1
            names[place] = f"{name} ({number})"
    return names


def _place_of(baseline: str, names: Sequence[str], groups: Sequence[Sequence[Run]]) -> int:
    """The row of a name, or else of a run of that name."""
    if baseline in names:
        return names.index(baseline)
    places = [
        place for place, group in enumerate(groups) if baseline in [run.name for run in group]
    ]
    if not places:
        raise ValueError(f"baseline must be one of {', '.join(names)}, got {baseline!r}")
    if len(places) > 1:
        rows = ", ".join(names[place] for place in places)
        raise ValueError(f"baseline {baseline!r} is a run of several rows: write one of {rows}")
    return places[0]


def _papers(rows: Sequence[Row], measured: Sequence[str]) -> dict[str, dict[str, float]]:
    """What papers report, those of the same numbers once."""
    by_row = {
        row.name: {
            metric: value
            for metric in measured
            for run in row.runs
            for name, value in run.paper.items()
            if name in (metric, metric.split()[-1])
        }
        for row in rows
    }
    different: dict[str, dict[str, float]] = {}
    for name, paper in by_row.items():
        if paper and paper not in different.values():
            different[f"paper of {name}"] = paper
    return different if len(different) != 1 else {"paper": next(iter(different.values()))}


def _scored(run: Run, metrics: Sequence[str]) -> bool:
    """Whether a run has any of these metrics."""
    return any(metric in run.metrics for metric in metrics)


def _of_so_many(row: Row, metric: str) -> str:
    """Of how many of a row's runs a value is, where it is not of all."""
    scored = len(row.values[metric])
    return f" ({scored} of {len(row.runs)})" if 0 < scored < len(row.runs) else ""


def _differences(
    base: Sequence[Run], group: Sequence[Run], metrics: Sequence[str], confidence: float
) -> dict[str, Paired]:
    differences = {}
    for metric in metrics:
        values = [
            {run.seed: run.metrics[metric] for run in runs if metric in run.metrics}
            for runs in (group, base)
        ]
        differences[metric] = paired(*values, scale=1.0, confidence=confidence)
    return {metric: difference for metric, difference in differences.items() if difference.seeds}


def _shown(metrics: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """The metrics of a table: those that are asked for, or the first ones of many."""
    if wanted:
        chosen = []
        for name in wanted:
            fitting = [m for m in metrics if m == name or re.split(r"[\s/]", m)[-1] == name]
            if not fitting:
                raise ValueError(
                    f"metrics must be among {', '.join(metrics) or 'none'}, got {name!r}"
                )
            chosen += [m for m in _held_out(fitting, name) if m not in chosen]
        return chosen
    metrics = _held_out(metrics)
    if len(metrics) <= MOST // 2:
        return list(metrics)
    kinds = {m: re.split(r"[\s/]", m)[-1] for m in metrics}
    parts = list(dict.fromkeys(m.removesuffix(kind) for m, kind in kinds.items()))
    usual = [f"{part}{kind}" for part in parts for kind in FIRST if f"{part}{kind}" in kinds]
    return (usual or list(metrics))[:MOST]


def _held_out(metrics: Sequence[str], wanted: str | None = None) -> Sequence[str]:
    """Those of held-out rows, where there are any and no other one was asked for by its whole name."""
    of_validation = [metric for metric in metrics if metric.startswith(VALIDATION)]
    return metrics if wanted in metrics or not of_validation else of_validation


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
