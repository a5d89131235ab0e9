"""How the models of the letters' study come along: validation by step, and what CCP's problems are good for."""

from typing import Any, NamedTuple

import numpy as np

from experiments.study import cell
from jdml.report import markdown_table

AT = (500, 1000, 3000, 5000, 10_000)
"""Steps at which the validation letters are told; a run that ended before has its last value."""


class Problem(NamedTuple):
    """One problem of a run, from its own evaluations.

    Attributes:
        evaluations: how many it had.
        best: which of them was the best, from 1.
        value: MAP@R there; the solution that the next problem goes back to.
        ended: whether another one followed.
    """

    evaluations: int
    best: int
    value: float
    ended: bool


def problems_of(curve: list[dict[str, float]]) -> list[Problem]:
    """Split a run's evaluations by problem."""
    numbers = np.array([record["problem"] for record in curve])
    values = np.array([record["MAP@R"] for record in curve])
    last = numbers.max()
    return [
        Problem(len(own), 1 + int(own.argmax()), float(own.max()), bool(number < last))
        for number in np.unique(numbers)
        for own in [values[numbers == number]]
    ]


def by_step(metrics: list[dict[str, Any]]) -> list[str]:
    """MAP@R of the validation letters at some steps, mean over models; how many had ended before the last of them."""
    curves = [{int(r["step"]): r["MAP@R"] for r in of_model["curve"]} for of_model in metrics]
    at = [[curve[min(step, max(curve))] for curve in curves] for step in AT]
    ended = sum(max(curve) < AT[-1] for curve in curves)
    return [*(f"{100 * np.mean(values):.1f}" for values in at), str(ended)]


def by_problem(metrics: list[dict[str, Any]]) -> list[str]:
    """What the first problem takes, and what the later ones that ended bring and undo."""
    runs = [problems_of(of_model["curve"]) for of_model in metrics]
    every = int(metrics[0]["curve"][0]["step"])
    first = [run[0] for run in runs if run[0].ended]
    later = [problem for run in runs for problem in run[1:] if problem.ended]
    pairs = [pair for run in runs for pair in zip(run, run[1:], strict=False) if pair[1].ended]
    gains = [after.value - before.value for before, after in pairs]
    evaluations = sum(problem.evaluations for problem in later)
    undone = sum(problem.evaluations - problem.best for problem in later)
    return [
        cell([every * p.evaluations for p in first], 1.0, 0),
        cell([p.value for p in first]),
        str(len(later)),
        str(sum(problem.best == 1 for problem in later)),
        f"{undone} of {evaluations}",
        f"{100 * np.mean(gains):+.2f}" if gains else "–",
    ]


def tables(models: dict[tuple[str, str], list[dict[str, Any]]], chance: tuple[str, ...]) -> str:
    """Both tables.

    Args:
        models: metrics of the models of each loss and way.
        chance: the ways whose problems end.
    """
    trained = {key: metrics for key, metrics in models.items() if metrics}
    steps = [[*key, *by_step(metrics), str(len(metrics))] for key, metrics in trained.items()]
    problems = [[*key, *by_problem(trained[key])] for key in trained if key[1] in chance]
    at = (f"step {at:,}" for at in AT)
    first = markdown_table(["loss", "way", *at, "ended before", "models"], steps)
    titles = ["loss", "way", "first problem's steps", "its MAP@R", "later, ended"]
    titles += ["best at once", "undone", "gain"]
    return f"{first}\n{markdown_table(titles, problems)}"
