"""What changes the order of methods by letter: levels, drawings, questions."""

import dataclasses
import json

import numpy as np
import pytest

from jdml.training.records import read_results, write_results

pytestmark = pytest.mark.slow


def test_levels_of_letters_change_one_thing() -> None:
    from experiments.letters import levels

    by_class = {"batch": [16, 4], "rate": 4e-3, "dim": 128}
    assert levels.at(by_class, "batch", 4096) == (
        {**by_class, "batch": [512, 8], "rate": 0.032},
        256,
        {},
    )
    assert levels.at(by_class, "batch", 256) == (
        {**by_class, "batch": [64, 4], "rate": 8e-3},
        496,
        {},
    )
    assert levels.at({**by_class, "batch": 64}, "batch", 32).recipe["batch"] == 32
    assert levels.at(by_class, "steps", 8000) == (by_class, 8000, {})
    assert levels.at(by_class, "dim", 8) == ({**by_class, "dim": 8}, 2000, {})
    assert levels.at(by_class, "wrong", 0.2) == (by_class, 2000, {"wrong": 0.2})
    wide = {**by_class, "batch": [8, 8]}
    assert levels.at(wide, "drawings", 5).recipe["batch"] == [12, 5]
    assert levels.at(wide, "drawings", 10).recipe["batch"] == [8, 8]


def test_drawings_of_a_level_of_letters() -> None:
    from experiments.letters import levels

    rows, letters = 7 + np.arange(200), np.repeat(np.arange(10) * 3, 20)
    own, labels = levels.rows_of({}, rows, letters, 0)
    np.testing.assert_array_equal(own, rows)
    np.testing.assert_array_equal(labels, letters // 3)
    own, labels = levels.rows_of({"letters": 4}, rows, letters, 1)
    assert np.bincount(labels).tolist() == [20] * 4
    assert len(set(letters[own - 7])) == 4
    own, labels = levels.rows_of({"drawings": 5}, rows, letters, 1)
    assert np.bincount(labels).tolist() == [5] * 10
    np.testing.assert_array_equal(labels, letters[own - 7] // 3)
    other, _ = levels.rows_of({"drawings": 5}, rows, letters, 2)
    assert set(other) != set(own)
    own, labels = levels.rows_of({"wrong": 0.4}, rows, letters, 1)
    np.testing.assert_array_equal(own, rows)
    assert (labels != letters // 3).sum() == 80
    assert set(labels) == set(range(10))


def test_distorted_letters_are_the_same_letters() -> None:
    from experiments.letters import levels

    image = np.zeros((1, 28, 28, 1), np.uint8)
    image[0, 10:18, 12:15] = 200
    copies = levels.distorted(image)
    assert copies.shape == (levels.COPIES, 28, 28, 1)
    assert copies.dtype == np.uint8
    assert len(np.unique(copies.reshape(levels.COPIES, -1), axis=0)) == levels.COPIES
    mass = copies.astype(float).sum((1, 2, 3)) / image.sum()
    assert ((0.7 < mass) & (mass < 1.45)).all()  # a side 0.85 to 1.15 times as long
    grid = np.indices((28, 28))
    centres = [(grid * one[..., 0]).sum((1, 2)) / one.sum() for one in copies.astype(float)]
    np.testing.assert_allclose(centres, [(13.5, 13.0)] * levels.COPIES, atol=2.6)


def test_levels_of_letters_are_scored_beside_the_usual_one(letters, monkeypatch) -> None:
    """Only of frozen settings; the usual level comes from the models that are scored anyway."""
    from experiments.letters import factors, levels

    study, settings, read = letters
    monkeypatch.setattr(levels, "FACTORS", {"wrong": (0.5,), "augmented": (True,)})
    monkeypatch.setattr(levels, "USUAL", {**levels.USUAL, "steps": 2})
    monkeypatch.setattr(factors, "METHODS", ("MS", "ArcFace"))
    question = factors.Asked("wrong", 0.5, "MS", "ArcFace")
    monkeypatch.setattr(factors, "ASKED", (question,))
    own = factors.Settings(
        settings.data_dir, out=settings.out.with_name("levels.jsonl"), scored=settings.out
    )
    own = dataclasses.replace(own, frozen=settings.frozen)
    assert factors.main(own).startswith("PARTIAL: 0 of 0 runs, 0 of 2 methods")
    settings.frozen.write_text(json.dumps({"tuned": {"MS": study.told(study.METHODS["MS"])}}))
    usual = {"column": "tuned", "method": "MS", "seed": 1}
    scores = dict.fromkeys(("P@1", "RP", "MAP@R"), 0.5)
    runs = [{"job": {**usual, "fold": fold}, "metrics": scores} for fold in (0, 1)]
    write_results(settings.out, {str(number): run for number, run in enumerate(runs)})
    assert factors.main(dataclasses.replace(own, seeds=(3,))).startswith("PARTIAL: 2 of 8 runs")
    told = factors.main(own)
    assert set(read) == {"train", "test"}
    assert told.startswith("PARTIAL: 8 of 8 runs, 1 of 2 methods.")
    assert "Asked" not in told
    assert "| wrong                  | 0.0               | 0.5 " in told
    for factor in ("wrong", "augmented"):
        assert (own.out.with_suffix("") / f"{factor}.png").stat().st_size > 10_000
    kept = read_results(own.out)
    assert kept["wrong 0.5: MS, fold 1-1"]["job"]["data"] == {"wrong": 0.5}
    assert all(len(run["metrics"]["curve"]) == 2 for run in kept.values())
    assert factors.main(dataclasses.replace(own, table=True)) == told
    job = {**kept["wrong 0.5: MS, fold 1-1"]["job"], "level": 0.25, "recipe": {"dim": 3}}
    with pytest.raises(ValueError, match="MS, wrong 0.5: the test letters are for settings that"):
        study.load_test(job, settings.folder, settings.frozen)
    with pytest.raises(ValueError, match=r"--only must name factors among wrong, augmented; got"):
        factors.main(dataclasses.replace(own, only=("color",)))
    with pytest.raises(ValueError, match=r"--seeds must be among \(1, 2, 3\), got \(1, 4\)"):
        factors.main(dataclasses.replace(own, seeds=(1, 4)))
    monkeypatch.setitem(levels.USUAL, "steps", 4)
    with pytest.raises(ValueError, match=r"wrong 0.5: MS, fold 0-1 in .* with other settings"):
        factors.main(own)


def test_what_one_seed_of_letters_suggests_is_asked_of_the_others(monkeypatch) -> None:
    from experiments.letters import factors

    near = {(seed, fold): 0.4 + 0.01 * fold for seed in (1, 2, 3) for fold in range(4)}
    values = {
        "a": {0.0: near, 0.2: {m: v - 0.01 - (m[0] == 1) for m, v in near.items()}},
        "b": {0.0: near, 0.2: {m: v - 0.05 - 0.001 * m[1] for m, v in near.items()}},
    }
    questions = (factors.Asked("wrong", 0.2, "a", "b"), factors.Asked("wrong", 0.2, "b", "a"))
    monkeypatch.setattr(factors, "ASKED", questions)
    found = factors.answers({"wrong": values})
    assert list(found) == ["wrong 0.2: a − b", "wrong 0.2: b − a"]
    told = [(round(one.mean, 3), one.seeds) for one in found.values()]
    assert told == [
        (4.15, 8),
        (-4.15, 8),
    ]  # the first seed, of which a loses a hundred points, has no say
    told = [line.split("|")[-2].strip() for line in factors.verdicts(found).splitlines()[2:]]
    assert told == ["yes", "no"]  # the second has the other sign
    del found["wrong 0.2: a − b"]
    assert "| wrong 0.2: a − b       | a model diverged" in factors.verdicts(found)
    for some in ({}, {model: v for model, v in near.items() if model != (3, 2)}):
        assert not factors.answers({"wrong": {**values, "a": {0.0: near, 0.2: some}}})
        assert not factors.answers({"wrong": {**values, "b": {0.0: some, 0.2: near}}})


def test_every_question_of_letters_is_planned_and_of_methods_that_are_run() -> None:
    from experiments.letters import factors, levels

    jobs = factors.jobs_of(factors.HERE / "frozen.json")
    by_seed = {
        seed: {(job["factor"], job["level"], job["method"]) for job in jobs if job["seed"] == seed}
        for seed in (factors.FIRST, *factors.OTHERS)
    }
    assert len(by_seed[1]) == 7 * sum(map(len, levels.FACTORS.values()))
    asked = {
        (one.factor, one.level, name) for one in factors.ASKED for name in (one.more, one.less)
    }
    assert asked == by_seed[2] == by_seed[3]
    assert asked < by_seed[1]
    assert {one.factor for one in factors.ASKED} == set(levels.FACTORS)


def test_levels_of_letters_beside_the_usual_one_in_numbers() -> None:
    from experiments.letters import factors

    near = {(1, fold): 0.4 + 0.01 * fold for fold in range(4)}
    far = {0.0: near, 0.2: {m: v - 0.05 - 0.001 * m[1] for m, v in near.items()}}
    told = factors.gains({"b": {**far, 0.4: far[0.2]}}, "wrong").splitlines()
    assert [cell.strip() for cell in told[2].split("|")[1:4]] == ["b", *2 * ["-5.1 [-5.4, -4.9]"]]
    assert factors.gain({(1, 0): 0.5}, near) == "–"
    right, wrong = {"a": 0.415, "b": 0.41, "c": 0.1}, {"a": 0.405, "b": 0.36, "c": 0.5}
    values = {name: {0.0: {0: right[name]}, 0.2: {0: wrong[name]}} for name in right}
    assert factors.agreement(values, "wrong", 0.2) == "-0.33"  # one of three pairs keeps its order
    assert factors.agreement({"a": values["a"]}, "wrong", 0.2) == "–"


@pytest.mark.parametrize("method", ["ArcFace", "ProxyAnchor + NIR"])
def test_a_level_of_letters_abreast_is_what_training_on_its_drawings_gives(letters, method) -> None:
    from experiments.letters import abreast, levels, methods

    study, settings, _ = letters
    recipe = study.told(dataclasses.replace(methods.METHODS[method], batch=16))
    job = {**study.make_job(method, "wrong 0.5", 0, 0, recipe), "data": {"wrong": 0.5}}
    abreast.run({"models": [job]}, settings.folder, str(settings.out), str(settings.frozen))
    (result,) = (kept["metrics"] for kept in read_results(settings.out).values())
    train, validation = study.load_fold(settings.folder, 0)
    _, labels = levels.rows_of(job["data"], np.arange(len(train)), train.labels, 0)
    alone = study.by_recipe.train(
        study.Recipe.from_json(recipe),
        dataclasses.replace(train, labels=labels),
        validation=validation,
        steps=2,
        evaluate_every=1,
        progress=False,
    )
    curve = [[record["step"], record["MAP@R"]] for record in alone.history if "MAP@R" in record]
    np.testing.assert_allclose(result["curve"], curve, atol=2e-3)
    with pytest.raises(ValueError, match="steps must be a multiple of those between evaluations"):
        abreast.fit([{**job, "every": 3}], settings.folder, None)


def test_models_of_other_letters_do_not_begin_together(letters) -> None:
    from experiments.letters import abreast

    study, settings, _ = letters
    recipe = study.told(study.METHODS["MS"])
    job = study.make_job("MS", "pilot", 0, 0, recipe)
    fewer = {**job, "data": {"letters": 2}}
    with pytest.raises(ValueError, match="models of a program must have as many letters"):
        abreast.fit([job, fewer], settings.folder, None)


def test_pictures_of_factors_part_the_seeds_and_show_intervals_of_several_models(
    tmp_path, monkeypatch
) -> None:
    from matplotlib.axes import Axes

    from experiments.letters import pictures

    drawn = []

    def errorbar(self, places, means, sides, **style) -> None:
        drawn.append((list(places), list(means), np.asarray(sides), style))
        return plain(self, places, means, sides, **style)

    plain = Axes.errorbar
    monkeypatch.setattr(Axes, "errorbar", errorbar)
    near = {(seed, fold): 0.4 + 0.01 * fold for seed in (1, 2) for fold in range(3)}
    far = {model: value - 0.1 * model[0] for model, value in near.items()}
    values = {"a": {0.0: near, 0.2: far, 0.4: {(1, 0): 0.2}}, "b": {0.0: near, 0.2: {}, 0.4: {}}}
    pictures.draw("wrong", values, (1,), tmp_path / "wrong.png")
    assert (tmp_path / "wrong.png").stat().st_size > 10_000
    means, gains, asked, other = drawn
    np.testing.assert_allclose(means[1], [41, 31, 20])
    half = pictures.paired(
        {fold: 0.4 + 0.01 * fold for fold in range(3)}, dict.fromkeys(range(3), 0.0)
    )
    np.testing.assert_allclose(means[2][0], [41 - half.low, 41 - half.low, 0], atol=1e-9)
    np.testing.assert_allclose(gains[1], [-10, -20])  # of one model there is no interval
    assert gains[2][0][1] == 0
    np.testing.assert_allclose(asked[1], [-20])  # the other seeds, hollow, where they were run
    assert asked[3]["markerfacecolor"] == "white" != gains[3]["markerfacecolor"]
    assert other[3]["label"] == "b"
    assert other[0] == [0]


def test_reasons_change_one_suspected_thing_and_read_no_unseen_letter(letters, monkeypatch) -> None:
    from experiments.letters import abreast, levels, reasons
    from experiments.letters.protocol import name_of

    _, settings, read = letters
    kept = reasons.read_frozen(reasons.HERE / "frozen.json")
    jobs = reasons.jobs_of(reasons.HERE / "frozen.json")
    assert len(jobs) == 2 * 8 + 2 * 2
    for job in jobs.values():
        method, recipe = job["method"], dict(job["recipe"])
        if method == "circle":
            usual = dict(kept["tuned"]["circle"])
            if "γ" in job["column"]:
                assert usual["settings"]["gamma"] == 98.2
                assert recipe["settings"] == {**usual.pop("settings"), "gamma": 12.0}
                recipe.pop("settings")
            else:
                assert "miner" not in usual
                assert recipe.pop("miner") == "easy_positive"
            assert job["data"] == ({"wrong": 0.2} if "wrong" in job["column"] else {})
        else:
            role, column = {
                "EPS + margin": ("beta", "also"),
                "ArcFace": ("proxies", "tuned"),
            }[method]
            frozen = kept[column][method]
            usual = dict(levels.at(frozen, "batch", 1024).recipe)
            rates = [made["rate"] * made["role_rates"][role] for made in (recipe, frozen)]
            np.testing.assert_allclose(*rates)
            other = {**recipe.pop("role_rates"), role: frozen["role_rates"][role]}
            assert other == usual.pop("role_rates")
        assert recipe == usual
    small = {**kept["tuned"]["circle"], "batch": [4, 4], "dim": 8}
    tuned = {"circle": small, "ArcFace": kept["tuned"]["ArcFace"]}
    frozen = {"tuned": tuned, "also": {"EPS + margin": kept["also"]["EPS + margin"]}}
    settings.frozen.write_text(json.dumps(frozen))
    monkeypatch.setattr(reasons, "FOLDS", {"circle": (0, 1), "EPS + margin": (), "ArcFace": ()})
    own = reasons.Settings(settings.data_dir, out=settings.out, frozen=settings.frozen)
    told = reasons.main(own)
    assert set(read) == {"train"}
    made = read_results(settings.out)
    assert len(made) == 8
    right = [made[f"γ 12, right: circle, fold {fold}-1"]["metrics"] for fold in (0, 1)]
    assert f"| γ 12                           | {100 * right[0]['validation']:.1f}, " in told
    assert reasons.held_out(made, "γ 12, right", "circle", 1) == {
        fold: own["curve"][0][1] for fold, own in enumerate(right)
    }
    assert reasons.main(dataclasses.replace(own, table=True)) == told
    # Nothing here is scored beside others: of four models only the one that is missing goes again.
    lost = "γ 12, wrong: circle, fold 1-1"
    write_results(settings.out, {name: run for name, run in made.items() if name != lost})
    fitted: list[str] = []
    fit = abreast.fit
    monkeypatch.setattr(
        abreast, "fit", lambda jobs, *rest: fitted.extend(map(name_of, jobs)) or fit(jobs, *rest)
    )
    assert reasons.main(own) == told
    assert fitted == [lost]


def test_what_trials_went_with_is_told_by_ranks() -> None:
    from experiments.letters import tables

    def run(number: int, rate: float, margin: float, value: float) -> dict:
        recipe = {"rate": rate, "batch": [16, 4], "settings": {"margin": margin, "hard": True}}
        job = {"method": "a", "column": f"trial {number}", "recipe": recipe}
        return {"job": job, "metrics": {"validation": value}}

    runs = {str(n): run(n, n, margin, n / 10) for n, margin in enumerate((5.0, 3.0, 4.0))}
    model = {"method": "a", "column": "tuned", "seed": 1, "fold": 0}
    runs["scored"] = {"job": model, "metrics": {"MAP@R": 0.4}}
    told = tables.went_with(runs).splitlines()
    assert [cell.strip() for cell in told[2].split("|")[1:-1]] == ["a", "1.00", "rate", "1.00"]
    first = {name: kept for name, kept in runs.items() if name in ("0", "scored")}
    assert len(tables.went_with(first).splitlines()) == 3  # a single trial tells nothing
    assert len(tables.went_with({"scored": runs["scored"]}).splitlines()) == 3
