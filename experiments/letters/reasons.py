"""Why two surprises of *What changes the order* are as they are: the same models with one suspected number changed.

What would count is written in README.md, before the runs. They are looked at on the held-out letters alone; the unseen
ones are not read.

    python -m experiments.letters.reasons --data-dir DIR --workers 2
    python -m experiments.letters.reasons --table
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.letters import abreast, levels
from experiments.letters.protocol import Job, make_job, name_of, read_frozen
from experiments.options import Kept, start
from jdml.report import markdown_table, paired
from jdml.training.records import read_results

HERE = Path(__file__).parent
SEED = 1
WRONG, SCALE = 0.2, 12.0
"""Share of wrong labels; circle's scale γ, where its trials chose 98."""
ROWS, QUARTER = 1024, 2
"""Of a batch; the evaluation that is a quarter of the way."""
LATE = "EPS + margin"
FOLDS = {"circle": (0, 1, 2, 3), LATE: (0, 1)}


@dataclasses.dataclass(frozen=True)
class Settings(Kept):
    """What is run."""

    out: Path = HERE / "reasons.jsonl"
    """File of the kept runs."""
    frozen: Path = HERE / "frozen.json"
    """File of the settings that are changed."""


def jobs_of(frozen: Path) -> dict[str, Job]:
    """Circle with another scale, with right labels and wrong ones; a large batch with its boundaries' usual rate."""
    kept = read_frozen(frozen)
    circle, late = kept["tuned"]["circle"], levels.at(kept["also"][LATE], "batch", ROWS)
    softer = {**circle, "settings": {**circle["settings"], "gamma": SCALE}}
    usual = kept["also"][LATE]["rate"] / late.recipe["rate"]
    rates = late.recipe["role_rates"]
    slower = {**late.recipe, "role_rates": {**rates, "beta": rates["beta"] * usual}}
    jobs = [
        {**make_job("circle", f"γ {SCALE:g}, {labels}", SEED, fold, softer), "data": changed}
        for labels, changed in (("right", {}), ("wrong", {"wrong": WRONG}))
        for fold in FOLDS["circle"]
    ]
    every = late.steps // levels.LOOKS
    jobs += [
        {
            **make_job(LATE, f"batch {ROWS}, β's usual rate", SEED, fold, slower),
            **{"steps": late.steps, "every": every},
        }
        for fold in FOLDS[LATE]
    ]
    return {name_of(job): job for job in jobs}


def held_out(
    results: Mapping[str, Any], column: str, method: str, look: int | None = None
) -> dict[int, float]:
    """MAP@R on the held-out letters by fold, at the best evaluation or at a look; of the models that there are."""
    names = {fold: f"{column}: {method}, fold {fold}-{SEED}" for fold in FOLDS[method]}
    there = {fold: results[name]["metrics"] for fold, name in names.items() if name in results}
    return {
        fold: own["validation"] if look is None else own["curve"][look - 1][1]
        for fold, own in there.items()
    }


def report(results: Mapping[str, Any], frozen: Path) -> str:
    """What wrong labels cost with either scale, and how the large batch begins with either rate."""
    scored, factors = (read_results(HERE / f"{name}.jsonl") for name in ("results", "factors"))
    usual = read_frozen(frozen)["tuned"]["circle"]["settings"]["gamma"]
    costs: dict[float, list[tuple[Mapping[str, Any], str]]] = {
        usual: [(scored, "tuned"), (factors, f"wrong {WRONG}")],
        SCALE: [(results, f"γ {SCALE:g}, {labels}") for labels in ("right", "wrong")],
    }
    rows = []
    for scale, columns in costs.items():
        right, wrong = (held_out(of, column, "circle") for of, column in columns)
        rows.append([f"γ {scale:g}", _each(right), _each(wrong), str(paired(right, wrong))])
    titles = ["circle, held-out MAP@R by fold", "right labels", "a fifth wrong", "right − wrong"]
    begin = {
        "usual × 4, as scored": (factors, f"batch {ROWS}"),
        "usual": (results, f"batch {ROWS}, β's usual rate"),
    }
    late = [
        [name, _each(held_out(of, column, LATE, QUARTER)), _each(held_out(of, column, LATE))]
        for name, (of, column) in begin.items()
    ]
    headings = [f"{LATE}, batch {ROWS}: β's rate", "after a quarter of the steps", "at best"]
    return "\n".join([markdown_table(titles, rows), markdown_table(headings, late)])


def _each(values: Mapping[int, float]) -> str:
    """Percent, fold by fold."""
    return ", ".join(f"{100 * value:.1f}" for value in values.values()) or "–"


def main(settings: Settings) -> str:
    """Run what is missing, as far as time goes; return the tables."""
    if not settings.table:
        abreast.run_all(settings, jobs_of(settings.frozen))
    return report(read_results(settings.out), settings.frozen)


if __name__ == "__main__":
    start(main, Settings, __doc__)
