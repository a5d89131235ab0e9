"""The studies' statistics, and whether the recorded runs are those that the code plans."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from flax.traverse_util import flatten_dict

from experiments.ccp_letters import main as ccp_letters
from experiments.ccp_mnist import branch
from experiments.ideas import main as ideas
from experiments.letters import factors, protocol, reasons, tables
from experiments.letters import main as letters
from experiments.letters.methods import METHODS as BY_LETTER
from experiments.nir import decide
from experiments.omniglot.methods import METHODS as BY_ALPHABET
from experiments.pfml_needs import main as pfml_needs
from jdml.runs.run_files import read_results
from jdml.studies.runner import results_of

FROZEN = letters.Settings().frozen
MODELS = {(seed, fold): 0.4 + 0.01 * fold for seed in (1, 2, 3) for fold in range(4)}


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


def runs_of(column: str, methods: Mapping[str, Mapping[Any, float]]) -> dict[str, Any]:
    """Return results of letters' models, by seed and fold."""
    return {
        f"{column}: {method} {key}": {
            "job": {"column": column, "method": method, "seed": key[0], "fold": key[1]},
            "metrics": dict.fromkeys(tables.SCORES, value),
        }
        for method, values in methods.items()
        for key, value in values.items()
    }


def test_letters_reports_significant_and_large_differences() -> None:
    worse = {key: value - 0.02 - 0.001 * key[0] for key, value in MODELS.items()}
    near = {key: value - 0.004 - 0.0001 * key[1] for key, value in MODELS.items()}
    runs = runs_of("tuned", {"a": worse, "b": MODELS, "c": near})
    runs |= runs_of("tuned", {"a": {(1, None): 0.9}})  # an ensemble of four models
    found = tables.between(runs)
    assert list(found) == ["b − c", "b − a", "c − a"]
    assert found["b − a"].seeds == len(MODELS)
    rows = tables.counting(found).splitlines()[2:]
    assert [row.split("|")[1].strip() for row in rows] == ["b − a", "c − a"]
    planned = {"pilot": [], "trial": [], "tuned": [*runs], "papers": ["missing"]}
    text = tables.report(runs, planned)
    assert text.startswith("PARTIAL")
    assert "b − a" in text
    assert "b − a" not in tables.report(runs, {**planned, "tuned": [*runs, "missing"]})


def test_letters_answers_its_questions_with_the_other_seeds() -> None:
    question = factors.Asked("wrong", 0.2, "FastAP", "circle")
    assert question in factors.ASKED
    values: dict[str, Any] = {
        factor: {
            name: {level: {} for level in protocol.ordered(factor)} for name in factors.METHODS
        }
        for factor in protocol.FACTORS
    }
    of_more = {key: value - 0.01 - (key[0] == 1) for key, value in MODELS.items()}
    of_less = {key: value - 0.05 - 0.001 * key[1] for key, value in MODELS.items()}
    values["wrong"]["FastAP"] |= {0.0: MODELS, 0.2: of_more}
    values["wrong"]["circle"] |= {0.0: MODELS, 0.2: of_less}
    found = factors.answers(values)
    assert list(found) == [factors.asked_as(*question)]
    (gap,) = found.values()
    assert (round(gap.mean, 3), gap.seeds) == (4.15, 8)
    row = next(line for line in factors.verdicts(found).splitlines() if "FastAP − circle" in line)
    assert row.split("|")[-2].strip() == "yes"
    del of_less[3, 2]
    assert not factors.answers(values)


def test_paired_differences_skip_settings_without_a_partner() -> None:
    runs = {
        f"factors: start={level} alpha=1-{seed}": {"metrics": {"held out R@1": value + 0.1 * seed}}
        for seed, gain in enumerate((0.02, 0.03, 0.04))
        for level, value in (("a", 0.5), ("b", 0.5 + gain))
    }
    runs["factors: start=b alpha=4-0"] = {"metrics": {"held out R@1": 0.0}}
    assert "+3.0 [+0.5, +5.5] (3)" in pfml_needs.report(runs, ("factors",))


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
