"""Reasons of three surprises of *What changes the order*: the same models with one suspected thing changed."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.letters import protocol
from experiments.letters.protocol import Job, make_job, name_of, read_frozen
from experiments.letters.runs import HERE, OfModels
from experiments.omniglot.methods import EASY
from experiments.smoke import record, small
from experiments.study import start
from jdml.report import markdown_table, paired_difference
from jdml.runs.run_files import read_results

SEED = 1
WRONG, SCALE = 0.2, 12.0
"""Share of wrong labels; circle's scale γ, where its trials chose 98."""
ROWS, QUARTER = small(1024, 16), 2
"""Rows of a batch; the evaluation after a quarter of the steps."""
LATE = {"EPS + margin": ("also", "beta", "β's"), "ArcFace": ("tuned", "proxies", "the proxies'")}
"""The methods that begin late with a large batch: their frozen column, the suspected role, and its name."""
FOLDS = {"circle": small((0, 1, 2, 3), (0,)), **dict.fromkeys(LATE, small((0, 1), (0,)))}


@dataclasses.dataclass(frozen=True)
class Settings(OfModels):
    """Settings of the study."""

    out: Path = record(HERE / "reasons.jsonl")
    """File of the kept runs."""
    frozen: Path = HERE / "frozen.json"
    """File of the settings that are changed."""


def jobs_of(frozen: Path) -> dict[str, Job]:
    """Circle with another scale or positives, with right labels and wrong; large batches with a role's usual rate."""
    frozen_choices = read_frozen(frozen)
    circle = frozen_choices["tuned"]["circle"]
    soft = {"settings": {**circle.loss.settings, "gamma": SCALE}}
    changed = {
        f"γ {SCALE:g}": circle.replace(loss=soft),
        "easy positives": circle.replace(loss={"miner": EASY}),
    }
    jobs = [
        make_job("circle", f"{name}, {labels}", SEED, fold, recipe, data=data)
        for name, recipe in changed.items()
        for labels, data in (("right", {}), ("wrong", {"wrong": WRONG}))
        for fold in FOLDS["circle"]
    ]
    for method, (column, role, called) in LATE.items():
        usual = frozen_choices[column][method]
        large = protocol.at(usual, "batch", ROWS)
        slower = usual.optimizer.learning_rate / large.recipe.optimizer.learning_rate
        rates = large.recipe.optimizer.lr_multipliers
        rates = {"lr_multipliers": {**rates, role: rates[role] * slower}}
        recipe, name = large.recipe.replace(optimizer=rates), f"batch {ROWS}, {called} usual rate"
        own = {"steps": large.steps, "every": large.steps // protocol.LOOKS}
        jobs += [make_job(method, name, SEED, fold, recipe, **own) for fold in FOLDS[method]]
    return {name_of(job): job for job in jobs}


def held_out(
    results: Mapping[str, Any], column: str, method: str, evaluation: int | None = None
) -> dict[int, float]:
    """Return MAP@R of the held-out letters by fold, at the best evaluation or at a number of them."""
    names = {fold: f"{column}: {method}, fold {fold}-{SEED}" for fold in FOLDS[method]}
    models = {fold: results[name]["metrics"] for fold, name in names.items() if name in results}
    return {
        fold: own["validation"] if evaluation is None else own["curve"][evaluation - 1][1]
        for fold, own in models.items()
    }


def report(results: Mapping[str, Any], frozen: Path) -> str:
    """Return what wrong labels cost circle as it is and changed, and how the large batch begins with either rate."""

    def each(values: Mapping[int, float]) -> str:
        return ", ".join(f"{100 * value:.1f}" for value in values.values()) or "–"

    scored, factors = (read_results(HERE / f"{name}.jsonl") for name in ("results", "factors"))
    usual = read_frozen(frozen)["tuned"]["circle"].loss.settings["gamma"]
    costs: dict[str, list[tuple[Mapping[str, Any], str]]] = {
        f"γ {usual:g}, as scored": [(scored, "tuned"), (factors, f"wrong {WRONG}")]
    }
    for name in (f"γ {SCALE:g}", "easy positives"):
        costs[name] = [(results, f"{name}, {labels}") for labels in ("right", "wrong")]
    rows = []
    for name, columns in costs.items():
        right, wrong = (held_out(of, column, "circle") for of, column in columns)
        rows.append([name, each(right), each(wrong), str(paired_difference(right, wrong))])
    titles = ["circle, held-out MAP@R by fold", "right labels", "a fifth wrong", "right − wrong"]
    tables = [markdown_table(titles, rows)]
    for method, (column, _, called) in LATE.items():
        begins = {
            "usual × 4, as scored": (factors, f"batch {ROWS}"),
            "usual": (results, f"batch {ROWS}, {called} usual rate"),
            f"(batch {protocol.USUAL['batch']})": (scored, column),
        }
        rows = [
            [name, *(each(held_out(of, label, method, at)) for at in (QUARTER, None))]
            for name, (of, label) in begins.items()
        ]
        title = f"{method}, batch {ROWS}: {called} rate"
        tables.append(markdown_table([title, "after a quarter of the steps", "at best"], rows))
    return "\n".join(tables)


def main(settings: Settings) -> str:
    """Run what is missing, as far as time goes; return the tables."""
    settings.do(jobs_of(settings.frozen).values())
    return report(read_results(settings.out), settings.frozen)


if __name__ == "__main__":
    start(main, Settings, __doc__)
