"""Studies that are kept run by run: nothing is run twice, and the tables say what they hold."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml
from jdml.training.records import read_results, write_results

pytestmark = pytest.mark.slow


def no_run(job: dict, **where: str | None) -> dict:
    raise AssertionError(f"{job} was kept, and is run again")


def test_what_pfml_needs_is_kept_run_by_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from experiments.pfml_needs import main as study
    from experiments.pfml_needs import trials

    factors = {"start": ("sphere", "samples"), "attraction": ("off",), "alpha": (1.0,)}
    monkeypatch.setattr(study, "FACTORS", {**factors, "clip": ("norm",)})
    monkeypatch.setattr(study, "DIMS", (8,))
    monkeypatch.setattr(study, "NUMBERS", (0, 2))
    monkeypatch.setattr(study, "NOISE", 0.5)
    monkeypatch.setattr(trials, "POINT_STEPS", 3)
    settings = study.Settings(
        seeds=1, steps=2, parts=("points", "factors", "number"), out=tmp_path, quiet=True
    )
    assert study.main(dataclasses.replace(settings, minutes=0)) == ""
    first = study.main(settings)
    kept = read_results(tmp_path / "results.jsonl")
    assert len(kept) == 2 + 2 + 4
    monkeypatch.setattr(study, "run", no_run)  # nothing is done twice
    assert study.main(settings) == first
    assert study.main(dataclasses.replace(settings, tables=True)) == first
    assert "start: samples − sphere" in first
    assert "(1 seed)" in first
    without = kept["digits: number: proxies=0 noise=0.5-0"]["metrics"]
    assert set(without) == {f"{a} {b}" for a in ("held out", "seen") for b in ("R@1", "MAP@R")}
    points = kept["digits: points: dim=8 start=samples attraction=off alpha=1.0 clip=norm-0"][
        "metrics"
    ]
    assert points["covered"] > 0.5
    with pytest.raises(SystemExit, match="--parts regime is for --task letters"):
        study.main(study.Settings(parts=("regime",)))


def test_what_pfml_needs_scores_no_test_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_omniglot: Callable[..., None]
) -> None:
    from experiments.pfml_needs import trials

    for seed in range(3):
        parts = trials.load("digits", None, seed, False)
        held_out = set(parts.labels[parts.held_out].tolist())
        assert held_out == {2 * seed, 2 * seed + 1}
        assert set(parts.modes.tolist()) == set(range(6)) - held_out
        assert set(parts.labels.tolist()) == set(range(6))
        pixels = [part.images.reshape(len(part.images), -1) for part in (parts.train, parts.scored)]
        known = jdml.data.load("digits").images.reshape(-1, 64)
        assert {row.tobytes() for part in pixels for row in part} <= {x.tobytes() for x in known}
    write_omniglot(tmp_path, ("Aa", "Bb", "Cc"))
    monkeypatch.setattr(trials, "HELD_OUT_ALPHABETS", 1)
    parts = trials.load("letters", str(tmp_path), 0, False)
    assert (parts.train.num_classes, len(np.unique(parts.labels))) == (8, 4)
    assert set(parts.scored.views["alphabet"]).isdisjoint(parts.train.views["alphabet"])
    whole = trials.load("letters", str(tmp_path), 0, True)
    assert (whole.train.num_classes, len(whole.train), len(np.unique(whole.labels))) == (
        12,
        240,
        12,
    )


def test_what_pfml_needs_by_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_omniglot: Callable[..., None]
) -> None:
    """Number, α, start and rate where a class has few images; then methods side by side, from best to worst."""
    from experiments.pfml_needs import main as study
    from experiments.pfml_needs import tables, trials

    write_omniglot(tmp_path, ("Aa", "Bb"))
    monkeypatch.setattr(trials, "HELD_OUT_ALPHABETS", 1)
    few = {"proxies": (1,), "alpha": (1.0,), "start": ("samples",), "proxy_rate": (10.0,)}
    monkeypatch.setattr(study, "FEW", few)
    monkeypatch.setattr(study, "REGIME", {"PFML-found, 1": study.REGIME["PFML-found, 1"]})
    monkeypatch.setitem(trials.TASKS, "letters", trials.Task(2, 8, 1e-3, 8))
    settings = {"task": "letters", "data_dir": tmp_path, "seeds": 1, "quiet": True}
    told = study.main(study.Settings(**settings, parts=("few", "regime"), out=tmp_path))
    kept = read_results(tmp_path / "results.jsonl")
    assert [(r["job"]["test"], r["job"]["clip"], r["job"]["noise"]) for r in kept.values()] == [
        (False, "norm", 0.0),
        (True, "entry", 0.0),
        (True, "entry", 0.2),
    ]
    assert "| 1       | 1.0   | samples | 10.0 " in told
    runs = {
        f"regime: method={method} noise=0.0-{seed}": {
            "metrics": {"held out R@1": value + 0.01 * seed}
        }
        for method, value in (("a", 0.5), ("b", 0.7), ("c", 0.6))
        for seed in range(2)
    }
    text = tables.report(runs, ("regime",))
    ranked = [line.split("|")[2].strip() for line in text.splitlines() if "± 0.7" in line][:3]
    assert ranked == ["b", "c", "a"]
    assert text.count("+10.0 [+10.0, +10.0] (2)") == 2


def test_paired_differences_leave_out_settings_without_a_partner() -> None:
    from experiments.pfml_needs import tables

    runs = {}
    for seed, gain in enumerate((0.02, 0.03, 0.04)):
        for level, value in (("a", 0.5), ("b", 0.5 + gain)):
            name = f"factors: start={level} alpha=1-{seed}"
            runs[name] = {"metrics": {"held out R@1": value + 0.1 * seed}}
    runs["factors: start=b alpha=4-0"] = {"metrics": {"held out R@1": 0.0}}
    text = tables.report(runs, ("factors",))
    assert "+3.0 [+0.5, +5.5] (3)" in text
    assert text.count("| 3     |") == 2


@pytest.mark.usefixtures("_small_flows")
def test_nir_s_gain_is_decided_run_by_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_omniglot: Callable[..., None]
) -> None:
    """Each run is kept as soon as it ends, none is run twice, and the tables say how many seeds they hold."""
    from experiments.nir import decide as study

    write_omniglot(tmp_path / "data", ("Aa", "Bb", "Cc", "Dd"))
    monkeypatch.setattr(study, "STEPS", 2)
    monkeypatch.setattr(study, "WARMUP", 1)
    ways = {way: dict(study.WAYS[way]) for way in ("warm-up, reset", "NIR", "warm-up")}
    monkeypatch.setattr(study, "WAYS", {k: {**v, "warmup": 1} for k, v in ways.items()})
    monkeypatch.setattr(study, "TESTS", {"it": ("NIR", "warm-up")})
    monkeypatch.setattr(study, "BATCH", (2, 4))
    settings = study.Settings(
        tmp_path / "data", seeds=2, bases=("ProxyAnchor",), out=tmp_path / "kept.jsonl"
    )
    tables = study.main(settings)
    kept = read_results(settings.out)
    assert len(kept) == 6
    marked = {name: {**run, "seconds": -1.0} for name, run in kept.items()}
    missing = "ProxyAnchor, NIR-0"
    del marked[missing]
    write_results(settings.out, marked)
    study.main(dataclasses.replace(settings, minutes=0))  # no time: nothing is begun
    assert missing not in read_results(settings.out)
    assert study.main(settings) == tables  # the same run again, to the bit
    now = read_results(settings.out)
    assert now.keys() == kept.keys()
    assert {name for name, run in now.items() if run["seconds"] >= 0} == {missing}
    assert "n = 2" in tables
    assert "p with Holm's correction over 3 tests: ProxyAnchor" in tables
    run = now["ProxyAnchor, NIR-1"]
    assert [step for step, _ in run["metrics"]["curve"]] == [1, 2]
    assert "data_dir" not in run["job"]  # of this machine alone
    assert (tmp_path / "decided.png").stat().st_size > 10_000
    table_again = study.main(study.Settings(table=True, out=settings.out))
    assert table_again == tables


def test_all_else_forgets_when_the_backbone_begins() -> None:
    from experiments.nir import decide as study

    rule = study.reset_at(study.optax.adam(0.1), 2)
    params = {"a": jnp.ones(2)}
    state = rule.init(params)
    steps = []
    for size in (40.0, 40.0, 1.0):
        updates, state = rule.update({"a": size * jnp.ones(2)}, state, params)
        steps.append(float(updates["a"][0]))
    np.testing.assert_allclose(steps, [-0.1, -0.1, -0.1], rtol=1e-4)


def test_ways_on_from_a_plateau(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from experiments.ccp_mnist import branch as study

    monkeypatch.setattr(study, "PLATEAU", {"most": 2, "every": 1, "patience": 5})
    monkeypatch.setattr(study, "STEPS", 6)
    monkeypatch.setattr(study, "WAYS", {way: study.WAYS[way] for way in ("go on", "CCP")})
    monkeypatch.setattr(study, "TESTS", {"alternating at all": ("CCP", "go on")})
    settings = study.Settings(data="digits", seeds=2, out=tmp_path / "kept.jsonl", cache=tmp_path)
    tables = study.main(settings)
    kept = read_results(settings.out)
    assert len(kept) == 6
    assert (tmp_path / "branched.png").exists()
    assert "| plateau " in tables
    assert "alternating at all: CCP − go on" in tables
    assert "n = 2" in tables
    assert len(kept["CCP-0"]["metrics"]["curve"]) == 6
    monkeypatch.setattr(study, "run", no_run)  # nothing is run again
    assert study.main(settings) == tables


def test_ccp_by_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_omniglot: Callable[..., None]
) -> None:
    from experiments.ccp_letters import main as study

    write_omniglot(tmp_path / "data", ("Aa", "Bb", "Cc", "Dd", "Ee", "Ff"))
    monkeypatch.setattr(study, "BATCH", (4, 4))
    monkeypatch.setattr(study, "FOLDS", 2)
    ways = {way: study.WAYS[way] for way in ("alone", "CCP-L", "XBM")}
    monkeypatch.setattr(study, "WAYS", ways)
    tests = ("CCP beside its own loss", "CCP beside a memory")
    monkeypatch.setattr(study, "TESTS", {name: study.TESTS[name] for name in tests})
    settings = study.Settings(
        tmp_path / "data",
        seeds=1,
        losses=("contrastive",),
        steps=2,
        ways=(*ways, "one problem, no anchor"),
        out=tmp_path / "kept.jsonl",
    )
    tables = study.main(settings)
    kept = read_results(settings.out)
    assert len(kept) == 8
    assert "(1 seed)" in tables
    assert "| CCP-L " in tables
    assert "Holm's correction over 3 tests: no runs yet." in tables
    later = next(row for row in tables.splitlines() if "one problem, no anchor − alone" in row)
    assert "n = 2" in later
    assert "| step 500 |" in tables
    assert 0 <= kept["contrastive, XBM, fold 1-0"]["metrics"]["MAP@R"] <= 1


def test_problems_of_a_run_by_letter() -> None:
    from experiments.ccp_letters import progress as study

    values = [0.1, 0.3, 0.2, 0.5, 0.4, 0.6, 0.7]
    numbers = [0, 0, 0, 1, 1, 2, 2]
    curve = [
        {"step": 100.0 * (k + 1), "problem": float(number), "MAP@R": value}
        for k, (number, value) in enumerate(zip(numbers, values, strict=True))
    ]
    assert [tuple(problem) for problem in study.problems_of(curve)] == [
        (3, 2, 0.3, True),
        (2, 1, 0.5, True),
        (2, 2, 0.7, False),
    ]
    assert study.by_problem([{"curve": curve}]) == ["300", "30.0", "1", "1", "1 of 2", "+20.00"]
    assert study.by_step([{"curve": curve}]) == ["40.0", *4 * ["70.0"], "1"]


def test_adapted_birds_are_chosen_on_held_out_species_and_compared_by_seed() -> None:
    from experiments.cub_crops import adapting as study

    jobs = study.trials()
    results = {name: {"job": job, "metrics": {"MAP@R at 0": 0.5}} for name, job in jobs.items()}
    still = dict.fromkeys(study.COLUMNS, 0.8)
    results[study.FROZEN]["metrics"] = still
    for name, job in jobs.items():
        if job["way"] in study.WAYS:
            best = (job["rate"], 10) if job["way"] != "head" else (1e-4, 40)
            results[name]["metrics"] = {
                f"MAP@R at {step}": 0.9 if (job["rate"], step) == best else 0.4
                for step in job["steps"]
            }
    counted = study.tests(results)
    assert [(job["rate"], job["steps"]) for job in counted.values()][::3] == [
        (1e-4, [40]),
        (3e-5, [10]),
        (3e-4, [10]),
    ]
    assert len(counted) == 9
    for name, job in counted.items():
        if job["way"] == "head":
            gained = {column: 0.8 + 0.01 * job["seed"] for column in study.COLUMNS}
            results[name] = {"job": job, "metrics": gained}
    told = study.report(results)
    assert "| head            | 0.0001 | 40    | 90.0           | 82.0 ± 1.0 |" in told
    assert "| head: head − frozen features | +2 [-0.484, +4.48], p = 0.074, n = 3 |" in told
    assert "LoRA" not in told
    scores = {"loss at first": 9.0, "MAP@R": 0.5}
    runs = {
        f"{way}-{seed}": {"job": {"way": way, "seed": seed}, "metrics": {**scores, "loss": loss}}
        for way, loss in zip(study.RANDOM, (2.0, 1.0), strict=True)
        for seed in study.SEEDS
    }
    rows = study.compared_on_digits(runs).splitlines()
    assert rows[-1].startswith(
        "| second − first        | +0 [+0, +0], p = 1, n = 3 | -1 [-1, -1], p = 0"
    )
    variables = {"params": {"stem": 1, "head": {"embedding": None}}}
    begun = study.begin(None, variables)["params"]
    np.testing.assert_array_equal(begun["head"]["embedding"]["kernel"], np.eye(study.CHANNELS))


def test_fine_tuned_birds_keep_their_runs_and_the_network_has_its_own_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from experiments.cub_crops import finetuned as study

    few = {"TEN": ("MS",), "CHOOSE": {"pair": "MS"}, "RATES": (1e-5, 1e-4), "SEEDS": (0, 1)}
    for name, value in {**few, "STEPS": 2, "ALONE": 1, "EVALUATIONS": 1, "SIDE": 12}.items():
        monkeypatch.setattr(study, name, value)
    labels = np.repeat(np.arange(8), 10)
    images = np.random.default_rng(0).integers(0, 255, (80, 12, 12, 3), np.uint8)
    birds = jdml.data.Dataset("birds", images, labels)
    monkeypatch.setattr(study, "load", lambda _: study.Parts(birds, birds, birds))
    settings = study.Settings(out=tmp_path / "kept.jsonl")
    assert "held-out MAP@R" in study.main(dataclasses.replace(settings, minutes=0))
    told = study.main(settings)
    kept = read_results(settings.out)
    assert list(kept) == ["MS-0", "MS-1", "try MS 0.0001", "try MS 1e-05"]
    rates = {name: kept[name]["metrics"]["validation"] for name in list(kept)[2:]}
    assert kept["MS-0"]["job"]["rate"] == float(max(rates, key=lambda n: rates[n]).split()[-1])
    assert "| frozen features | 86.3" in told
    assert told.count("n = 2") == 8  # bare and under a head, two metrics, the method and the mean
    monkeypatch.setattr(study, "run", no_run)
    assert study.main(settings) == told
    rule = study.parts_of_step(study.recipe_of("MS"), 1e-5, 8)[1]
    params = {"model": {"stem": jnp.ones(1), "head": jnp.ones(1)}}
    state, moved = rule.init(params), []
    for _ in range(2):
        updates, state = rule.update(params, state, params)
        moved.append(updates["model"])
    assert not moved[0]["stem"].any()
    # The cosine is at its middle for both; Adam's step of a constant gradient is its rate.
    np.testing.assert_allclose(
        [moved[1]["head"][0], moved[1]["stem"][0]], [-5e-4, -5e-6], rtol=1e-4
    )


def test_crops_on_the_device_are_parts_of_the_image() -> None:
    from experiments.cub_crops import finetuned as study

    up, left = jnp.meshgrid(jnp.arange(8.0), jnp.arange(8.0), indexing="ij")
    image = jnp.stack([up, left, jnp.ones((8, 8))], -1)
    keys = jax.random.split(jax.random.key(0), 64)
    whole = jdml.data.Crops(8, 8, (1.0, 1.0), (1.0, 1.0))
    some = jdml.data.Crops(8, 8, (0.08, 1.0))
    for crops in (whole, some):
        cut = jax.vmap(lambda key, c=crops: study.random_crop(key, image, c))(keys)
        np.testing.assert_allclose(cut[..., 2], 1.0, rtol=1e-5)
        assert -1e-4 <= cut.min()
        assert cut.max() <= 7 + 1e-4
        rises = np.asarray(cut[:, 0, -1, 1] > cut[:, 0, 0, 1])
        assert 16 < rises.sum() < 48  # half of them are mirrored
        if crops is whole:
            np.testing.assert_allclose(cut[rises][0], image, atol=1e-4)
            np.testing.assert_allclose(cut[~rises][0], image[:, ::-1], atol=1e-4)
        else:
            sides = np.ptp(cut, axis=(1, 2))[:, :2] / 7
            assert sides.min() < 0.5 < 0.8 < sides.max()
    net = study.OnCrops(jdml.models.create("", dim=2), some)
    params = net.init(jax.random.key(0), image[None])
    assert list(params["params"]) == ["Dense_0"]
    rngs = {"dropout": jax.random.key(1)}
    seen = [net.apply(params, image[None], train=train, rngs=rngs) for train in (False, True)]
    np.testing.assert_allclose(seen[0], net.network.apply(params, image[None]))
    assert abs(seen[0] - seen[1]).max() > 1e-3


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch, write_omniglot: Callable[..., None], tmp_path: Path):
    """The letters' study with a method, two steps and a trial, on eight letters; which parts of the data it read."""
    from experiments.letters import main as study
    from experiments.letters import protocol

    write_omniglot(tmp_path / "data", ("Aa", "Bb"))
    methods = {"MS": dataclasses.replace(study.METHODS["MS"], batch=(4, 4))}
    columns = {"tuned": (1,), "papers": (1,), "resnet": (1,), "also": (1,), "again": ()}
    for name, value in {"STEPS": 2, "EVERY": 1, "FOLDS": 2, "COLUMNS": columns}.items():
        monkeypatch.setattr(protocol, name, value)
    for name, value in {"METHODS": methods, "TRIALS": 1}.items():
        monkeypatch.setattr(study, name, value)
    values = {"rate": 2e-3, "per_class": 16}  # 4 × 16 rows, of the letters that there are
    monkeypatch.setattr(study, "trial", lambda recipe, number: values)
    read: list[str] = []
    load = jdml.data.load

    def told(*names: object, split: str, **where: object) -> jdml.data.Dataset:
        read.append(split)
        return load(*names, split=split, **where)

    monkeypatch.setattr(jdml.data, "load", told)
    protocol.letters.cache_clear()
    folder = {"runs": tmp_path / "runs", "frozen": tmp_path / "frozen.json"}
    yield study, study.Settings(tmp_path / "data", out=tmp_path / "kept.jsonl", **folder), read
    protocol.letters.cache_clear()


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


def test_letters_models_abreast_are_those_alone(letters) -> None:
    """The same starts, batches, steps, choices and scores, to what other convolutions round; each kept as its own."""
    study, settings, read = letters
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


def test_levels_of_letters_change_one_thing() -> None:
    from experiments.letters import levels

    by_class = {"batch": [16, 4], "rate": 4e-3, "dim": 128}
    assert levels.at(by_class, "batch", 4096) == (
        {**by_class, "batch": [512, 8], "rate": 0.032},
        250,
        {},
    )
    assert levels.at(by_class, "batch", 256) == (
        {**by_class, "batch": [64, 4], "rate": 8e-3},
        500,
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
    monkeypatch.setattr(factors, "METHODS", ("MS",))
    monkeypatch.setattr(factors, "FOLDS", 2)
    own = factors.Settings(
        settings.data_dir, out=settings.out.with_name("levels.jsonl"), scored=settings.out
    )
    own = dataclasses.replace(own, frozen=settings.frozen)
    assert factors.main(own).startswith("PARTIAL: 0 of 0 runs")
    settings.frozen.write_text(json.dumps({"tuned": {"MS": study.told(study.METHODS["MS"])}}))
    usual = {"column": "tuned", "method": "MS", "seed": 1}
    scores = dict.fromkeys(("P@1", "RP", "MAP@R"), 0.5)
    runs = [{"job": {**usual, "fold": fold}, "metrics": scores} for fold in (0, 1)]
    write_results(settings.out, {str(number): run for number, run in enumerate(runs)})
    told = factors.main(own)
    assert set(read) == {"train", "test"}
    assert told.startswith("All: 4 of 4 runs.")
    assert "| wrong                  | 0.0               | 0.5 " in told
    assert own.out.with_suffix(".png").stat().st_size > 10_000
    kept = read_results(own.out)
    assert kept["wrong 0.5: MS, fold 1-1"]["job"]["data"] == {"wrong": 0.5}
    assert all(len(run["metrics"]["curve"]) == 2 for run in kept.values())
    assert factors.main(dataclasses.replace(own, table=True)) == told
    job = {**kept["wrong 0.5: MS, fold 1-1"]["job"], "level": 0.25, "recipe": {"dim": 3}}
    with pytest.raises(ValueError, match="MS, wrong 0.5: the test letters are for settings that"):
        study.load_test(job, settings.folder, settings.frozen)
    with pytest.raises(ValueError, match=r"--only must name factors among wrong, augmented; got"):
        factors.main(dataclasses.replace(own, only=("color",)))


def test_shifts_of_letters_are_differences_of_differences() -> None:
    from experiments.letters import factors

    near = {fold: 0.4 + 0.01 * fold for fold in range(4)}
    values = {
        "a": {0.0: near, 0.2: {fold: value - 0.01 for fold, value in near.items()}},
        "b": {0.0: near, 0.2: {f: value - 0.05 - 0.001 * f for f, value in near.items()}},
    }
    shift = factors.shifts(values, "wrong")["0.2: a − b"]
    assert (round(shift.mean, 3), shift.seeds) == (4.15, 4)
    values["c"] = {0.0: dict.fromkeys(near, 0.1), 0.2: dict.fromkeys(near, 0.5)}
    values["b"][0.0] = dict.fromkeys(near, 0.41)
    assert factors.agreement(values, "wrong", 0.2) == "-0.33"  # of three pairs one keeps its order
    assert factors.agreement(values, "wrong", 0.4) == "–"


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
