"""Compare each loss with and without each idea of the five papers, over the three tasks that have them all."""

import dataclasses
import itertools
from collections.abc import Mapping

import numpy as np
from scipy import stats

from experiments.letters.tables import Model, tuned_models
from experiments.recommended.main import TASKS, record_of, untuned
from experiments.study import read_toml, start
from jdml.report import PairedDifference, holm_correction, markdown_table, paired_difference

Models = Mapping[str, Mapping[Model, float]]
"""The models of each method."""
IDEAS, FIELD = (read_toml(__file__)[name] for name in ("ideas", "field"))


@dataclasses.dataclass(frozen=True)
class Settings:
    """Nothing is asked."""


def pairs_of(idea: str, task: str, field: Models) -> list[tuple[str, str]]:
    """Return the pairs of an idea that are on record for a task."""
    own = FIELD.get(task, "PFML")
    named = [(own, other) if one == "PFML" else (one, other) for one, other in IDEAS[idea]]
    return [pair for pair in named if field.keys() >= {*pair}]


def effect(field: Models, pairs: list[tuple[str, str]]) -> PairedDifference:
    """Return the mean difference of the pairs, model by model of the same seed and fold."""
    means = [
        {
            model: float(np.mean([field[pair[side]][model] for pair in pairs]))
            for model in field[pairs[0][side]]
        }
        for side in (0, 1)
    ]
    return paired_difference(*means)


def agreement(one: Models, other: Models) -> list[str]:
    """Kendall's τ between the orders of the methods that two tables have, its p without any relation, their number."""
    names = sorted(one.keys() & other.keys())
    first, second = ([np.mean([*table[name].values()]) for name in names] for table in (one, other))
    answer = stats.kendalltau(first, second)
    return [f"{answer.statistic:+.2f}", f"{answer.pvalue:.2g}", str(len(names))]


def main(_: Settings) -> str:
    """Return the tables."""
    fields: dict[str, Models] = {task: untuned(task) for task in TASKS}
    answer = {
        (idea, task): effect(field, pairs_of(idea, task, field))
        for idea in IDEAS
        for task, field in fields.items()
    }
    p = holm_correction({key: pair.p for key, pair in answer.items()}, len(answer))

    def cell(idea: str, task: str) -> str:
        pair, sure = answer[idea, task], " *" if p[idea, task] < 0.05 else ""
        number = len(pairs_of(idea, task, fields[task]))
        return f"{pair.mean:+.1f} [{pair.low:+.1f}, {pair.high:+.1f}]{sure} ({number})"

    rows = [[idea, *(cell(idea, task) for task in TASKS)] for idea in IDEAS]
    titles = [f"{name}, {task.measure}" for name, task in TASKS.items()]
    fields["letters, tuned"] = tuned_models(record_of("letters"))
    pairs = [*itertools.combinations(TASKS, 2), ("letters", "letters, tuned")]
    orders = [
        [f"{one} and {other}", *agreement(fields[one], fields[other])] for one, other in pairs
    ]
    added = markdown_table(["what is added, points", *titles], rows)
    order = markdown_table(["the order of the methods", "Kendall's τ", "p", "methods"], orders)
    return f"{added}\n{order}"


if __name__ == "__main__":
    start(main, Settings, __doc__)
