"""Studies that are kept run by run: nothing is run twice, and the tables say what they hold."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml
from jdml.training.records import read_results, write_results

pytestmark = pytest.mark.slow


def test_what_pfml_needs_is_kept_run_by_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], no_run
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
    assert study.main(dataclasses.replace(settings, table=True)) == first
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


def test_ways_on_from_a_plateau(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_run) -> None:
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_run
) -> None:
    from experiments.cub_crops import finetuned as study

    few = {"TEN": ("MS",), "CHOOSE": {"pair": "MS"}, "RATES": (1e-5, 1e-4), "SEEDS": (0, 1)}
    for name, value in {**few, "STEPS": 2, "ALONE": 1, "EVALUATIONS": 1, "SIDE": 12}.items():
        monkeypatch.setattr(study, name, value)
    labels = np.repeat(np.arange(8), 10)
    images = np.random.default_rng(0).integers(0, 255, (80, 12, 12, 3), np.uint8)
    birds = jdml.data.Dataset("birds", images, labels)
    monkeypatch.setattr(study, "load", lambda _: study.Parts(birds, birds, birds))
    monkeypatch.setattr(study.models, "load_weights", lambda path, variables: variables)
    places = {"out": tmp_path / "kept.jsonl", "weights": tmp_path / "weights"}
    settings = study.Settings(**places, seeds=(0, 1))
    (tmp_path / "weights").write_bytes(b"weights")
    with pytest.raises(ValueError, match="--weights is needed: without it the network's weights"):
        study.main(dataclasses.replace(settings, weights=None))
    with pytest.raises(ValueError, match=r"--seeds must be among \(0, 1\), got \(1, 2\)"):
        study.main(dataclasses.replace(settings, seeds=(1, 2)))
    assert "PARTIAL: 0 of 2 runs" in study.main(dataclasses.replace(settings, minutes=0))
    assert "PARTIAL: 1 of 2 runs" in study.main(dataclasses.replace(settings, seeds=(1,)))
    assert "MS-0" not in read_results(settings.out)
    told = study.main(settings)
    assert told.startswith("All: 2 of 2 runs are scored.")
    kept = read_results(settings.out)
    assert list(kept) == ["MS-0", "MS-1", "try MS 0.0001", "try MS 1e-05"]
    tried = ("try MS 1e-05", "try MS 0.0001")  # in the order of RATES: of equal ones the first
    rates = {name: kept[name]["metrics"]["validation"] for name in tried}
    assert kept["MS-0"]["job"]["rate"] == float(max(rates, key=lambda n: rates[n]).split()[-1])
    assert "| frozen features | 86.3" in told
    assert told.count("n = 2") == 8  # bare and under a head, two metrics, the method and the mean
    monkeypatch.setattr(study, "run", no_run)
    assert study.main(settings) == told
    broken = {**kept, "MS-1": {**kept["MS-1"], "metrics": {"diverged": "at step 1"}}}
    partial = study.report(broken, read_results(study.HERE / "results.jsonl"))
    assert partial.startswith("PARTIAL: 1 of 2 runs are scored.\n\nDiverged: MS-1.")
    assert study.MEAN not in partial
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
