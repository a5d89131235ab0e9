"""The recipe to begin with where a pretrained network learns whole, as `jdml train --weights` trains: on birds."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.cub_crops import finetuned
from experiments.cub_crops.main import BACKBONE, COLUMNS, FEATURES
from experiments.recommended.main import HERE, RECOMMENDED, on_task
from experiments.smoke import small
from experiments.study import by_seed, cell, start
from jdml.recipes import Recipe
from jdml.report import markdown_table, paired_difference
from jdml.runs.run_files import read_results

ROWS = small(80, 8)
"""Rows of a batch, as for all methods there."""
FIRST = "MPA-DW"
"""The best of the ten methods that are fine-tuned."""
BIRDS = HERE.parent / "cub_crops"
Settings = finetuned.Settings


def recipe_of(labels: Any) -> Recipe:
    """Return the recommended recipe where all learns, with the task's network and number of steps."""
    made = on_task(labels, "pretrained", finetuned.STEPS, ROWS)
    return made.replace(network={"name": BACKBONE}, finetune={"freeze_batch_norm": True})


def run(job: Mapping[str, Any], *, data_dir: str | None, weights: str | None) -> dict[str, Any]:
    """Train, and score the best of the evaluations on the held-out species on the test species."""
    parts = finetuned.load(data_dir)
    return finetuned.fit(recipe_of(parts.train.labels), parts, job["seed"], weights)


def jobs_of() -> dict[str, dict[str, Any]]:
    """Return a run for each seed, with all that makes its recipe another."""
    made = recipe_of(np.repeat(np.arange(16), 30))
    job = {"method": RECOMMENDED, "loss": made.loss.name, "settings": dict(made.loss.settings)}
    job["batch"] = [made.batch.classes, made.batch.samples_per_class]
    job["rate"] = made.optimizer.learning_rate
    return {f"{RECOMMENDED}, all learns-{seed}": {**job, "seed": seed} for seed in finetuned.SEEDS}


def report(results: Mapping[str, Any]) -> str:
    """Compare its scores with the best of the ten and with frozen features."""
    tuned = read_results(BIRDS / "finetuned.jsonl")
    ten = {name: run for name, run in tuned.items() if run["job"]["test"]}
    bare = read_results(BIRDS / "results.jsonl")[f"{FEATURES}-0"]["metrics"]
    own = {c: by_seed(results, c, method=RECOMMENDED) for c in COLUMNS}
    first = {c: by_seed(ten, c, method=FIRST) for c in COLUMNS}
    rows = [
        [name, *(cell([*scores[c].values()]) for c in COLUMNS), str(len(scores["R@1"]))]
        for name, scores in ((RECOMMENDED, own), (FIRST, first))
    ]
    rows.append([FEATURES, *(f"{100 * bare[c]:.1f}" for c in COLUMNS), "1"])
    gaps = []
    for c in COLUMNS:
        others = (first[c], dict.fromkeys(own[c], bare[c]))
        gaps.append([c, *(str(paired_difference(own[c], other)) for other in others)])
    titles = [f"{RECOMMENDED} − {FIRST}", f"{RECOMMENDED} − {FEATURES}"]
    sections = [f"{len(own['R@1'])} of {len(finetuned.SEEDS)} runs.\n"]
    sections += [markdown_table(["birds, all learns", *COLUMNS, "runs"], rows)]
    return "\n".join([*sections, markdown_table(["points", *titles], gaps)])


def main(settings: Settings) -> str:
    """Do the runs that are missing; the tables."""
    jobs, weights = jobs_of(), settings.weights_file
    return report(settings.results(run, jobs, HERE / "whole.jsonl", weights=weights))


if __name__ == "__main__":
    start(main, Settings, __doc__)
