"""Every method by letter: what chooses, what is scored, and the same models side by side in one program."""

import dataclasses
import json
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml
from jdml.training.records import read_results

pytestmark = pytest.mark.slow


def test_letters_are_scored_when_settings_are_frozen(letters) -> None:
    study, settings, read = letters
    first = study.main(settings)
    assert "PARTIAL: 1 of 1 pilot runs, 1 of 1 trial runs" in first
    assert set(read) == {"train"}
    assert not any(settings.runs.iterdir())
    frozen = json.loads(settings.frozen.read_text())
    rates = [frozen[column]["MS"].get("rate") for column in ("tuned", "papers", "resnet")]
    assert rates == [2e-3, 1e-3, 2e-3]
    assert frozen["resnet"]["MS"]["network"] == "resnet20v2"
    study.main(dataclasses.replace(settings, minutes=0))  # no time: nothing is begun
    assert set(read) == {"train"}
    told = study.main(settings)
    assert set(read) == {"train", "test"}
    done = ", ".join(f"{n} of {n} {part} runs" for part, n in {"pilot": 1, "trial": 1}.items())
    assert told.startswith(f"PARTIAL: {done}, 2 of 2 tuned runs, 2 of 2 papers runs, 2 of 2 resnet")
    kept = read_results(settings.out)
    together = [name for name in kept if "together" in name]
    assert len(kept) == 2 + 6 + 3
    assert len(together) == 3
    assert all(0 < kept[name]["metrics"]["MAP@R"] <= 1 for name in together)
    assert [step for step, _ in kept["pilot: MS, fold 0-0"]["metrics"]["curve"]] == [1, 2]
    assert study.main(dataclasses.replace(settings, table=True)) == told
    with pytest.raises(ValueError, match=r"--only must name methods among MS; got \['Ms'\]"):
        study.main(dataclasses.replace(settings, only=("Ms",)))


def test_methods_of_letters_that_are_tuned_too_come_after_the_leading(letters, monkeypatch) -> None:
    """Nothing that is frozen changes; the best of what is tuned too is added when all of it is done."""
    study, settings, _ = letters
    names = ("MS", "EPS + MS", "margin")
    monkeypatch.undo()  # the methods themselves, and their own ranges
    monkeypatch.setattr(study, "METHODS", {name: study.METHODS[name] for name in names})
    monkeypatch.setattr(study, "LEADING", 1)
    results = {
        study.name_of(job): {"job": job, "metrics": {"validation": value}}
        for job, value in zip(study.pilots(), (0.5, 0.4, 0.6), strict=True)
    }
    assert {job["method"] for job in study.trials(results)} == {"margin"}
    assert study.freeze(results, study.read_frozen(settings.frozen)) == {}
    for number, job in enumerate(study.trials(results)):
        results[study.name_of(job)] = {"job": job, "metrics": {"validation": number / 100}}
    first = study.freeze(results, study.read_frozen(settings.frozen))
    assert {column: list(recipes) for column, recipes in first.items()} == {
        "tuned": ["margin"],
        "papers": list(names),
        "resnet": ["margin"],
    }
    assert first["tuned"]["margin"] == study.trials(results)[-1]["recipe"]
    settings.frozen.write_text(json.dumps(first))
    frozen = study.read_frozen(settings.frozen)
    assert study.freeze(results, frozen) == {}
    too = study.also(results)
    assert [job["method"] for job in too] == ["EPS + MS", "MS"] * study.TRIALS
    for number, job in enumerate(too):
        results[study.name_of(job)] = {"job": job, "metrics": {"validation": -number / 100}}
    second = study.freeze(results, frozen)
    assert second == {"also": {job["method"]: job["recipe"] for job in too[:2]}}
    assert study.freeze(results, {**frozen, **second}) == {}


@pytest.mark.parametrize("abreast", [False, True])
def test_letters_models_abreast_are_those_alone(letters, monkeypatch, *, abreast: bool) -> None:
    """The same starts, batches, steps, choices and scores, to what other convolutions round; each kept as its own."""
    study, settings, read = letters
    monkeypatch.setattr(study.abreast, "side_by_side", lambda: abreast)
    recipe = study.told(dataclasses.replace(study.METHODS["MS"], memory=16))
    settings.frozen.write_text(json.dumps({"papers": {"MS": recipe}}))
    jobs = {
        study.name_of(job): job
        for fold in range(2)
        for job in [study.make_job("MS", "papers", 1, fold, recipe)]
    }
    study.abreast.run_all(settings, jobs)
    kept = read_results(settings.out)
    assert set(kept) == {*jobs, "papers: MS, together-1"}
    where = {"data_dir": settings.folder, "runs": str(settings.runs), "frozen": settings.frozen}
    alone = {name: study.run(job, **where) for name, job in jobs.items()}
    alone["papers: MS, together-1"] = study.run(
        {**jobs["papers: MS, fold 0-1"], "fold": None}, **where
    )
    for name, metrics in alone.items():
        chex.assert_trees_all_close(kept[name]["metrics"], metrics, atol=0.02)
        chex.assert_trees_all_equal_structs(kept[name]["metrics"], metrics)
    read.clear()
    study.abreast.run_all(settings, jobs)
    assert not read


def test_models_of_a_program_have_as_many_letters() -> None:
    """EPS with a margin for each letter has no proxies, but parameters by letter."""
    from experiments.letters import abreast, factors

    jobs = [job for job in factors.jobs_of(factors.HERE / "frozen.json") if job["seed"] == 1]
    units: dict[str, set[int | None]] = {}
    for job in jobs:
        name = abreast._unit(job, jdml.recipes.Recipe.from_json(job["recipe"]))
        units.setdefault(name, set()).add(job["data"].get("letters"))
    assert all(len(letters) == 1 for letters in units.values())
    assert len(units) < len(jobs) / 2


def test_a_letters_model_abreast_that_diverges_is_kept_as_such(letters, monkeypatch) -> None:
    """The others of its program go on, and are scored; nothing is scored together."""
    from experiments.letters import abreast

    study, settings, _ = letters
    recipe = study.told(study.METHODS["MS"])
    settings.frozen.write_text(json.dumps({"papers": {"MS": recipe}}))
    jobs = [study.make_job("MS", "papers", 1, fold, recipe) for fold in (0, 1)]
    begin = abreast._begin

    def broken(*settings: object) -> object:
        model, step, models = begin(*settings)
        params = jax.tree.map(lambda leaf: leaf.at[1].set(jnp.nan), models.states.params)
        return model, step, models._replace(states=models.states._replace(params=params))

    monkeypatch.setattr(abreast, "_begin", broken)
    abreast.run_all(settings, {study.name_of(job): job for job in jobs})
    kept = {name: run["metrics"] for name, run in read_results(settings.out).items()}
    assert set(kept) == {"papers: MS, fold 0-1", "papers: MS, fold 1-1"}
    assert kept["papers: MS, fold 1-1"] == {"diverged": "the loss is nan at step 1"}
    assert kept["papers: MS, fold 0-1"]["MAP@R"] > 0


def test_letters_abreast_end_in_time(letters, monkeypatch) -> None:
    """What cannot go abreast has the time that is left, and nothing goes alone that could go abreast."""
    study, settings, _ = letters
    asked: list[tuple[str, int, float]] = []

    def seen(where: str) -> Callable[..., dict]:
        def kept(settings: object, jobs: dict, *others: object, **more: object) -> dict:
            jobs = others[0] if where == "alone" else jobs
            asked.append((where, len(jobs), settings.minutes))
            now[0] += 60
            return {}

        return kept

    now = [0.0]
    monkeypatch.setattr(study.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(study.abreast, "run_all", seen("abreast"))
    monkeypatch.setattr(study.Settings, "results", seen("alone"))
    study.main(dataclasses.replace(settings, minutes=3, abreast=True))
    assert asked[:3] == [("abreast", 1, 3), ("alone", 0, 2), ("abreast", 0, 1)]


def test_letters_models_abreast_that_diverge_are_told_by_step() -> None:
    from experiments.letters import abreast

    told: dict[int, str] = {}
    finite, broken = np.ones((3, 4)), np.ones((3, 4))
    broken[1, 2:], broken[2, 0] = np.inf, np.nan
    abreast._note_divergence(told, {"loss": finite, "grad_norm": finite}, 0)
    abreast._note_divergence(told, {"loss": finite, "grad_norm": broken}, 8)
    abreast._note_divergence(told, {"loss": broken, "grad_norm": broken}, 12)
    assert told == {
        1: "the grad_norm is inf at step 11",
        2: "the grad_norm is nan at step 9",
    }


def test_unseen_letters_are_not_read_for_other_settings(letters) -> None:
    study, settings, read = letters
    recipe = study.told(study.METHODS["MS"])
    job = study.make_job("MS", "papers", 1, 0, recipe)
    where = {"data_dir": settings.folder, "runs": str(settings.runs)}
    with pytest.raises(ValueError, match="MS, papers: the test letters are for settings that are"):
        study.run(job, frozen=str(settings.frozen), **where)
    settings.frozen.write_text(json.dumps({"papers": {"MS": {**recipe, "rate": 0.5}}}))
    with pytest.raises(ValueError, match="has none of this method, or others"):
        study.run(job, frozen=str(settings.frozen), **where)
    assert not read
    settings.frozen.write_text(json.dumps({"papers": {"MS": recipe}}))
    assert len(study.load_test(job, settings.folder, settings.frozen)) == 160


def test_folds_of_letters_are_disjoint_and_cover_all(letters) -> None:
    study, settings, _ = letters
    held_out = []
    for fold in range(study.protocol.FOLDS):
        train, validation = study.load_fold(settings.folder, fold)
        assert set(train.views["letter"]).isdisjoint(validation.views["letter"])
        assert len(train) + len(validation) == 160
        np.testing.assert_array_equal(np.unique(train.labels), np.arange(4))
        held_out += np.unique(validation.views["letter"]).tolist()
    assert sorted(held_out) == list(range(8))


def test_a_letters_run_that_was_stopped_goes_on(letters, monkeypatch: pytest.MonkeyPatch) -> None:
    study, settings, _ = letters
    job = study.make_job("MS", "papers", 1, 0, study.told(study.METHODS["MS"]))
    whole = study.fit_one(job, 0, settings.folder, settings.runs / "whole")
    seen, retrieval_in = [], study.by_recipe.retrieval_in

    def stopped(validation: object, recipe: object) -> Callable[..., object]:
        evaluate = retrieval_in(validation, recipe)

        def once(embedder: object) -> object:
            seen.append(int(embedder.state.step))
            if seen == [1, 2]:
                raise KeyboardInterrupt
            return evaluate(embedder)

        return once

    monkeypatch.setattr(study.by_recipe, "retrieval_in", stopped)
    with pytest.raises(KeyboardInterrupt):
        study.fit_one(job, 0, settings.folder, settings.runs)
    again = study.fit_one(job, 0, settings.folder, settings.runs)
    assert seen == [1, 2, 2]
    chex.assert_trees_all_equal(again.best_params, whole.best_params)
    assert again.history == whole.history


def test_trials_of_letters_stay_in_their_ranges() -> None:
    from experiments.letters import methods

    for name, recipe in methods.METHODS.items():
        ranges = methods.ranges_of(recipe)
        values = [methods.trial(recipe, number) for number in range(10)]
        assert len({str(methods.tuned(recipe, own)) for own in values}) == 10, name
        for setting, span in ranges.items():
            ((kind, ends),) = span.items()
            tried = [own[setting] for own in values]
            assert set(tried) == set(ends) if kind == "of" else min(ends) <= min(tried), name
            assert kind == "of" or max(tried) <= max(ends), name
    points = np.array([methods.spread(3, number) for number in range(1000)])
    np.testing.assert_allclose(points.mean(0), 0.5, atol=5e-3)
    np.testing.assert_allclose(np.cov(points.T), np.eye(3) / 12, atol=5e-3)


def test_a_nested_loss_of_letters_is_the_sum_over_its_prefixes() -> None:
    from experiments.letters import methods

    x, y = jax.random.normal(jax.random.key(0), (8, 128)), jnp.arange(8) // 2
    recipe = methods.METHODS["SupCon, matryoshka"]
    objective = methods.objective_of("SupCon, matryoshka", recipe, 4)
    value, _ = objective.loss({}, x, y, key=jax.random.key(0), state=objective.init_state())
    alone = [jdml.sup_con_loss(x[:, :size], y) for size in (128, 64, 32, 16)]
    np.testing.assert_allclose(value, np.sum(alone), rtol=1e-5)
    assert methods.objective_of("SupCon", recipe, 4) is None


def test_intervals_of_letters_are_student_s() -> None:
    """Against the density of t, integrated in float64 until 97.5 % lie below."""
    from experiments.letters import tables

    values = {
        (seed, fold): 0.4 + 0.01 * seed + 0.003 * fold**2 for seed in range(3) for fold in range(4)
    }
    x, freedom = np.linspace(0, 60, 2_000_001), len(values) - 1
    density = (1 + x**2 / freedom) ** (-(freedom + 1) / 2)
    area = np.cumsum((density[1:] + density[:-1]) / 2)
    quantile = x[1 + np.searchsorted(area / area[-1], 0.95)]
    runs = 100 * np.array(list(values.values()))
    half = quantile * runs.std(ddof=1) / len(runs) ** 0.5
    expected = f"{runs.mean():.1f} [{runs.mean() - half:.1f}, {runs.mean() + half:.1f}]"
    assert tables.interval(values) == expected
    assert tables.interval({(0, 0): 0.25}) == "25.0"
    assert tables.interval({}) == "–"


def test_differences_of_letters_that_count() -> None:
    from experiments.letters import tables

    base = {(seed, fold): 0.4 + 0.01 * seed + 0.003 * fold for seed in (1, 2) for fold in range(4)}
    worse = {key: value - 0.02 - 0.001 * key[0] for key, value in base.items()}
    near = {key: value - 0.004 - 0.0001 * key[1] for key, value in base.items()}
    columns = {"tuned": {"a": worse, "b": base, "c": near}, "papers": {"b": near, "a": near}}
    runs = {
        f"{column}: {method} {key}": {
            "job": {"column": column, "method": method, "seed": key[0], "fold": key[1]},
            "metrics": dict.fromkeys(tables.SCORES, value),
        }
        for column, methods in columns.items()
        for method, values in methods.items()
        for key, value in values.items()
        if column == "tuned" or key[0] == 1
    }
    together = {"column": "tuned", "method": "a", "seed": 1, "fold": None}
    runs["tuned: a, together"] = {"job": together, "metrics": dict.fromkeys(tables.SCORES, 0.9)}
    tables_of = (tables.counting(make(runs)) for make in (tables.between, tables.beside))
    rows = [line for text in tables_of for line in text.splitlines() if " − " in line]
    assert [row.split("  ")[0].rstrip(" |") for row in rows] == [
        "| b − a",
        "| c − a",
        "| a: tuned − paper's",
    ]
    assert "-1.69" in rows[2]
    assert "n = 4" in rows[2]
    planned = {"pilot": [], "trial": [], "tuned": list(runs), "papers": ["missing"]}
    told = tables.report(runs, planned)
    assert told.startswith("PARTIAL: 0 of 0 pilot runs, 0 of 0 trial runs, ")
    assert "b − a" in told
    assert "papers, PARTIAL" in told
    assert "tuned − paper's" not in told  # nothing is compared with what is not whole
