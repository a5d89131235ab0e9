"""What each idea of the five papers adds to the losses that it is put onto, over the three tasks that have them all."""

import dataclasses
import itertools
from collections.abc import Mapping

import numpy as np
from scipy import stats

from experiments.letters.tables import Model, tuned_models
from experiments.recommended.main import TASKS, field_of, kept_of
from experiments.study import start
from jdml.report import Paired, holm, markdown_table, paired

Models = Mapping[str, Mapping[Model, float]]
"""Of methods."""
EASY = ("MS", "circle", "triplet", "margin", "contrastive", "contrastive (similarity)", "SupCon")
REMEMBERED = ("MS", "EPS + MS", "contrastive", "triplet")
ALTERNATING = ("contrastive", "MS", "EPS + contrastive", "EPS + MS")
REGULARIZED = ("ProxyAnchor", "ProxyNCA*", "SoftTriple", "MPA", "MPA-AP", "PFML", "PFML, found")
FIELD = {"letters": "PFML, found"}
"""The field with α = 1, where PFML is the one with the paper's 4."""
IDEAS: dict[str, list[tuple[str, str]]] = {
    "easy positives (EPS)": [(f"EPS + {loss}", loss) for loss in EASY],
    "a memory (XBM)": [(f"{loss} + XBM", loss) for loss in REMEMBERED],
    "alternating problems (CCP)": [(f"{loss} + CCP", loss) for loss in ALTERNATING],
    "a flow (NIR)": [(f"{loss} + NIR", loss) for loss in REGULARIZED],
    "several proxies (MPA)": [("MPA", "ProxyAnchor"), ("MPA-DW", "ProxyNCA*")],
    "a field (PFML) for ProxyAnchor": [("PFML", "ProxyAnchor")],
    "a field (PFML) for MS": [("PFML", "MS")],
    "a field (PFML) for CPML": [("PFML", "CPML")],
}
"""Pairs of methods that differ by it alone: with one proxy MPA is ProxyAnchor and MPA-DW ProxyNCA*. PFML is a loss of
its own, beside what its paper compares it with."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Nothing is asked."""


def pairs_of(idea: str, task: str, field: Models) -> list[tuple[str, str]]:
    """The pairs of an idea that are on record for a task."""
    own = FIELD.get(task, "PFML")
    named = [(own, other) if one == "PFML" else (one, other) for one, other in IDEAS[idea]]
    return [pair for pair in named if field.keys() >= {*pair}]


def effect(field: Models, pairs: list[tuple[str, str]]) -> Paired:
    """The mean difference of the pairs, model by model of the same seed and fold."""
    means = [
        {
            model: float(np.mean([field[pair[side]][model] for pair in pairs]))
            for model in field[pairs[0][side]]
        }
        for side in (0, 1)
    ]
    return paired(*means)


def agreement(one: Models, other: Models) -> list[str]:
    """Kendall's τ between the orders of the methods that two tables have, its p without any relation, their number."""
    names = sorted(one.keys() & other.keys())
    first, second = ([np.mean([*table[name].values()]) for name in names] for table in (one, other))
    found = stats.kendalltau(first, second)
    return [f"{found.statistic:+.2f}", f"{found.pvalue:.2g}", str(len(names))]


def main(_: Settings) -> str:
    """The tables."""
    fields: dict[str, Models] = {task: field_of(task) for task in TASKS}
    found = {
        (idea, task): effect(field, pairs_of(idea, task, field))
        for idea in IDEAS
        for task, field in fields.items()
    }
    p = holm({key: pair.p for key, pair in found.items()}, len(found))

    def cell(idea: str, task: str) -> str:
        pair, sure = found[idea, task], " *" if p[idea, task] < 0.05 else ""
        number = len(pairs_of(idea, task, fields[task]))
        return f"{pair.mean:+.1f} [{pair.low:+.1f}, {pair.high:+.1f}]{sure} ({number})"

    rows = [[idea, *(cell(idea, task) for task in TASKS)] for idea in IDEAS]
    titles = [f"{name}, {task.measure}" for name, task in TASKS.items()]
    fields["letters, tuned"] = tuned_models(kept_of("letters"))
    couples = [*itertools.combinations(TASKS, 2), ("letters", "letters, tuned")]
    orders = [
        [f"{one} and {other}", *agreement(fields[one], fields[other])] for one, other in couples
    ]
    return "\n".join(
        [
            markdown_table(["what is added, points", *titles], rows),
            markdown_table(["the order of the methods", "Kendall's τ", "p", "methods"], orders),
        ]
    )


if __name__ == "__main__":
    start(main, Settings, __doc__)
