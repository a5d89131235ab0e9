"""The studies' statistics, and whether the recorded runs are those that the code plans."""

from pathlib import Path
from typing import Any

import pytest
from flax.traverse_util import flatten_dict

from experiments.ccp_letters import main as ccp_letters
from experiments.ccp_mnist import branch
from experiments.ideas import main as ideas
from experiments.letters import factors, protocol, reasons
from experiments.letters import main as letters
from experiments.letters.methods import METHODS as BY_LETTER
from experiments.nir import decide
from experiments.omniglot.methods import METHODS as BY_ALPHABET
from jdml.runs.run_files import read_results
from jdml.studies.runner import results_of

FROZEN = letters.Settings().frozen


def letters_jobs() -> dict[str, Any]:
    """Return the jobs of the letters study, restricted to those with recorded runs."""
    runs = read_results(letters.Settings().out)
    jobs = letters.pilots() + letters.trials(runs) + letters.also(runs) + letters.models(FROZEN)
    return {protocol.name_of(job): job for job in jobs}


def planned_by(study: Any) -> dict[str, Any]:
    """Return the jobs that a study plans."""
    if study is letters:
        return letters_jobs()
    jobs = study.jobs_of(FROZEN) if hasattr(study, "jobs_of") else study.make_jobs(study.Settings())
    return jobs if isinstance(jobs, dict) else {protocol.name_of(job): job for job in jobs}


@pytest.mark.parametrize(
    "study",
    [ccp_letters, branch, letters, factors, reasons, decide],
    ids=lambda study: study.__name__,
)
def test_recorded_runs_have_the_settings_of_the_study(study: Any) -> None:
    jobs, name = planned_by(study), "kept.jsonl" if study is ccp_letters else "results.jsonl"
    file = study.Settings().out or Path(study.__file__).with_name(name)
    assert jobs.keys() <= results_of(jobs, file).keys()


def test_letters_scores_the_settings_of_the_best_trials() -> None:
    runs, frozen = read_results(letters.Settings().out), protocol.read_frozen(FROZEN)
    assert letters.best_of(runs, letters.trials(runs)) == frozen["tuned"]
    assert letters.best_of(runs, letters.also(runs)) == frozen["also"]
    best = list(frozen["tuned"])[: letters.DEEP]
    assert set(frozen["resnet"]) == set(best)


IDEAS = {
    "easy positives (EPS)": {"loss.miner"},
    "a memory (XBM)": {"loss.memory_size", "loss.memory_start_step"},
    "a flow (NIR)": {"loss.method"},
    "alternating problems (CCP)": {
        *("loss.method", "loss.normalize", "loss.miner", "loss.proxies.per_class"),
        *("batch.size", "batch.classes", "batch.samples_per_class", "optimizer.lr_multipliers"),
    },
}
"""The recipe's values that an idea may change; CCP's references are selected proxies in the ball, not mined."""


@pytest.mark.parametrize("idea", IDEAS)
def test_pairs_of_an_idea_differ_only_in_it(idea: str) -> None:
    for task, methods in {"letters": BY_LETTER, "alphabets": BY_ALPHABET}.items():
        pairs = ideas.pairs_of(idea, task, methods)
        assert pairs
        for pair in pairs:
            one, other = (flatten_dict(methods[name].to_json(), sep=".") for name in pair)
            changed = {name for name in {*one, *other} if one.get(name) != other.get(name)}
            assert changed
            assert all(name.startswith(tuple(IDEAS[idea])) for name in changed), pair
