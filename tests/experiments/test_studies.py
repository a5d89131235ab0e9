"""The experiments run from end to end, with a step or two, on small data."""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml
from jdml.recipes import make_objective
from jdml.registry.extras import MissingLibraryError
from jdml.training import by_recipe
from jdml.training.records import read_results

pytestmark = pytest.mark.slow


def test_eps_mnist_on_the_embedded_digits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from experiments.eps_mnist import main as study

    study.main(study.Settings(seeds=2, steps=2, out=tmp_path, workers=1))
    tables = capsys.readouterr().out
    assert all(method in tables for method in study.METHODS)
    assert "±" in tables
    assert (tmp_path / "scatter.png").stat().st_size > 10_000
    results = read_results(tmp_path / "results.jsonl")
    assert len(results) == 12
    assert all(
        0 <= value <= 1 for result in results.values() for value in result["metrics"].values()
    )


def test_mnist_comes_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from experiments.eps_mnist import main as study

    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(MissingLibraryError, match="mnist, without a folder of the four IDX files"):
        study.main(study.Settings(data="mnist", out=tmp_path))


def test_eps_omniglot_on_small_alphabets(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    write_omniglot: Callable[..., None],
) -> None:
    from experiments.eps_omniglot import main as study
    from experiments.eps_omniglot import tables as its_tables

    write_omniglot(tmp_path / "data")
    everything, left_out = (
        study.make_jobs,
        {"positives": (10, 20), "batches": (16, 80), "trimmed": (0.3, 0.5)},
    )
    points = {f"{part} {value}-0" for part, values in left_out.items() for value in values}
    points |= {f"trimmed_margin {value}-0" for value in (0.1, 0.3)}

    def small(settings: object) -> dict:
        jobs = {name: job for name, job in everything(settings).items() if name not in points}
        return {name: {**job, "batch": 16, "samples_per_class": 8} for name, job in jobs.items()}

    monkeypatch.setattr(study, "make_jobs", small)
    monkeypatch.setattr(study, "POINTS", 2)
    monkeypatch.setattr(study, "score", lambda x, dataset, clusters: dict.fromkeys(SCORES, 0.5))
    for module in (study, its_tables):
        monkeypatch.setattr(module, "CURVES", ("EPS + margin",))
        monkeypatch.setattr(module, "PRINTED", ("triplet, mined, printed",))
    settings = study.Settings(data_dir=tmp_path / "data", seeds=1, steps=1, out=tmp_path / "out")
    assert len(small(settings)) == 10
    study.main(settings)
    tables = capsys.readouterr().out
    assert all(method in tables for method in study.PAPER)
    assert (tmp_path / "out" / "curves.png").exists()

    others = dataclasses.replace(
        settings, parts=("printed", "longer", "curves", "trimmed_margin"), steps=2
    )
    study.main(others)
    tables = capsys.readouterr().out
    assert "| triplet, mined, printed |" in tables
    assert "| EPS + MS, longer | 50.0 (68.7) |" in tables
    assert "| trimmed share | letters R@1 | runs |\n" in tables
    curve = read_results(tmp_path / "out" / "results.jsonl")["curve EPS + margin-0"]
    assert [step for step, _ in curve["metrics"]["curve"]] == [1, 2]
    assert (tmp_path / "out" / "training.png").exists()


def test_some_positives_are_drawn_uniformly() -> None:
    from experiments.eps_omniglot.main import some_positives

    pairs = jdml.mining.all_pairs(jnp.array([0] * 6 + [1] * 2))
    keys = jax.random.split(jax.random.key(0), 400)
    kept = jax.vmap(lambda key: some_positives(3)(key, jnp.zeros((8, 8)), pairs).positive)(keys)
    chex.assert_trees_all_equal(kept.sum(2)[:, :6], jnp.full((400, 6), 3))
    chex.assert_trees_all_equal(kept[:, 6:], jnp.broadcast_to(pairs.positive[6:], (400, 2, 8)))
    chex.assert_trees_all_close(kept.mean(0)[:6], 0.6 * pairs.positive[:6], atol=0.1)


SCORES = (
    *(f"letter {name}" for name in ("R@1", "R@2", "R@4", "R@8", "NMI")),
    *(f"alphabet {name}" for name in ("R@1", "NMI", "NMI+")),
)


def test_potential_fields_on_the_embedded_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from experiments.potential_fields import main as study
    from experiments.potential_fields import picture

    monkeypatch.setattr(study, "CLEAN", ("PFML", "ProxyAnchor"))
    monkeypatch.setattr(study, "NOISY", ("PFML", "triplet"))
    monkeypatch.setattr(study, "SWEEPS", {"alpha": (2.0,), "proxies_per_class": (0,)})
    monkeypatch.setattr(study, "FOILS", ("CPML, decaying",))
    monkeypatch.setattr(study, "NEAR", ("SoftTriple",))
    monkeypatch.setattr(picture.learned, "__defaults__", (2, 60))
    parts = ("picture", "learned", "methods", "noise", "foils", "epoch", "sweeps")
    study.main(study.Settings(seeds=1, steps=1, parts=parts, out=tmp_path))
    tables = capsys.readouterr().out
    assert "| ProxyAnchor |" in tables
    assert "| triplet" in tables
    assert "| alpha |" in tables
    assert (tmp_path / "fields.png").stat().st_size > 50_000
    results = read_results(tmp_path / "results.jsonl")
    assert len(results) == 8
    assert 0 < results["PFML-0"]["metrics"]["proxy distance, nearest"] < 2
    assert 0 <= results["PFML-0"]["metrics"]["proxies together"] <= 1
    assert "proxies together" not in results["ProxyAnchor-0"]["metrics"]  # one per class
    measured = results["SoftTriple, epoch-0"]["metrics"]
    assert 0 < measured["epoch: nearest"] <= measured["epoch: assignment"]
    assert 0 < measured["epoch: represented"] < 2
    assert 0 <= measured["epoch: covered"] <= 1
    for name in ("learned", "sweeps"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def test_potential_fields_on_held_out_alphabets(
    tmp_path: Path, write_omniglot: Callable[..., None]
) -> None:
    """One training alphabet of five is scored, the others are trained on; the test alphabets are not touched."""
    write_omniglot(tmp_path, ("Aa", "Bb", "Cc", "Dd", "Ee"))
    from experiments.potential_fields import main as study

    whole, parts = (study.load("omniglot", str(tmp_path), held_out) for held_out in (False, True))
    assert [title for title, _, _ in parts.scored] == ["letters", "alphabets"]
    assert (len(whole.train), whole.train.num_classes) == (400, 5)
    assert (len(parts.train), parts.train.num_classes) == (320, 4)
    np.testing.assert_array_equal(np.unique(parts.train.labels), np.arange(4))
    held_out, letters = parts.scored[0][1:]
    assert set(held_out.views["alphabet"]).isdisjoint(parts.train.views["alphabet"])
    pixels = np.concatenate([parts.train.images, held_out.images]).reshape(400, -1)
    np.testing.assert_array_equal(
        np.unique(pixels, axis=0), np.unique(whole.train.images.reshape(400, -1), axis=0)
    )
    assert len(np.unique(letters)) == 4


def test_mpa_on_the_embedded_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from experiments.mpa import main as study

    monkeypatch.setattr(study, "NUMBERS", (1, 2))
    monkeypatch.setattr(study, "SHOWN", 2)
    monkeypatch.setattr(study, "FAMILY", ("MPA",))
    papers = {name: study.PAPER[name] for name in ("MPA", "ProxyAnchor")}
    monkeypatch.setattr(study, "PAPER", papers)
    study.main(study.Settings(steps=1, out=tmp_path))
    assert "nDCG@8" in capsys.readouterr().out
    assert (tmp_path / "proxies.png").exists()
    assert (tmp_path / "gradients.png").stat().st_size > 20_000
    assert len(read_results(tmp_path / "results.jsonl")) == 3


def test_ccp_on_the_embedded_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from experiments.ccp_mnist import main as study

    monkeypatch.setitem(study.TASKS, "digits", study.TASKS["digits"]._replace(steps=9, every=1))
    grid = study.Sweep("pool_size", (8, 16), "proxies_per_class", (4,))
    monkeypatch.setattr(study, "SWEEPS", {"pool": grid})
    study.main(study.Settings(parts=("methods", "pool"), out=tmp_path))
    tables = capsys.readouterr().out
    assert "| samples" in tables
    assert "| in batch" in tables
    assert "by pool size (rows) and proxies per class (columns)" in tables
    results = read_results(tmp_path / "results.jsonl")
    assert set(results) == {"in batch-0", "samples-0", "single-0", "CCP-0", "CCP, pool_size 8-0"}
    assert results["single-0"]["metrics"]["history"] == []
    assert sum(problem["steps"] for problem in results["CCP-0"]["metrics"]["history"]) <= 9
    assert all(0 < r["metrics"]["test"] <= 1 for r in results.values())
    assert [step for step, _ in results["CCP-0"]["metrics"]["curve"]] == list(range(1, 10))
    assert (tmp_path / "panels.png").stat().st_size > 30_000
    assert (tmp_path / "curves.png").stat().st_size > 10_000


@pytest.mark.usefixtures("_small_flows")
def test_nir_on_the_embedded_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from experiments.nir import main as study
    from experiments.nir import regularized

    monkeypatch.setattr(study, "METHODS", ("ProxyAnchor",))
    monkeypatch.setattr(regularized, "METHODS", ("ProxyAnchor",))
    monkeypatch.setattr(study, "VARIANTS", {"exp": {}})
    monkeypatch.setattr(study, "ABLATIONS", {"ω = 0": {"nir": {"weight": 0.0}}})
    parts = ("picture", "switch", "methods", "ablations", "time")
    study.main(study.Settings(seeds=2, steps=2, parts=parts, out=tmp_path))
    tables = capsys.readouterr().out
    assert "(p = " in tables
    assert "| ω = 0 " in tables
    assert "| exp | " in tables
    assert "a step's milliseconds" in tables
    results = read_results(tmp_path / "results.jsonl")
    assert len(results) == 6
    metrics = results["ProxyAnchor + NIR-0"]["metrics"]
    assert sum(metrics["test spectrum"]) == pytest.approx(1, abs=1e-5)
    assert 0 < metrics["mAP@1000"] <= 1
    for name in ("isotropy", "switch_off", "spectra"):
        assert (tmp_path / f"{name}.png").stat().st_size > 20_000


def test_nir_notes_a_run_that_diverges(monkeypatch: pytest.MonkeyPatch) -> None:
    from experiments.nir import main as study

    def diverges(*arguments: object, **settings: object) -> None:
        raise FloatingPointError("the loss is nan at step 3")

    monkeypatch.setattr(by_recipe, "fit", diverges)
    job = {**study.make_base(study.Settings()), "seed": 0}
    assert study.run(job) == {"diverged": "the loss is nan at step 3"}


def test_omniglot_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_omniglot: Callable[..., None]
) -> None:
    from experiments.omniglot import main as study

    write_omniglot(tmp_path / "data", ("Aa", "Bb", "Cc"))
    monkeypatch.setattr(study, "HELD_OUT", 1)
    for batch in ("BATCH", "LETTER_BATCH"):
        monkeypatch.setattr(study, batch, (2, 4))
    only = ("triplet", "contrastive + CCP", "PFML")
    settings = study.Settings(tmp_path / "data", seeds=2, steps=8, only=only, out=tmp_path / "out")
    table = study.main(settings)
    assert all(method in table for method in only)
    assert "±" in table
    results = read_results(tmp_path / "out" / "results.jsonl")
    assert len(results) == 6
    assert study.main(settings).count("|") == table.count("|")  # nothing is run again
    by_letter = dataclasses.replace(settings, labels=("letter",), seeds=1, only=("triplet",))
    assert "| triplet, by letter | " in study.main(by_letter)
    metrics = read_results(tmp_path / "out" / "results.jsonl")["triplet, by letter-0"]["metrics"]
    assert 0 < metrics["letters R@1"] <= metrics["languages R@1"] <= 1
    with pytest.raises(ValueError, match=r"--only must name methods among .*; got \['tripplet'\]"):
        study.make_jobs(study.Settings(tmp_path, only=("tripplet",)))


def test_every_method_of_the_table_trains(tmp_path: Path) -> None:
    from experiments.omniglot import main as study
    from experiments.omniglot import methods

    x, y = jax.random.normal(jax.random.key(0), (24, 128)), jnp.arange(24) % 4
    for name, method in study.METHODS.items():
        if "NIR" in name or name in methods.QUICK:
            continue  # slow to compile; those of --quick are run above
        objective = make_objective(method, 4)
        params = objective.init(jax.random.key(1))
        state = objective.init_state()

        def loss(params, objective=objective, state=state):
            return objective.loss(params, x, y, key=jax.random.key(2), state=state)[0]

        value, grads = jax.jit(jax.value_and_grad(loss))(params)
        assert np.isfinite(value), name
        chex.assert_tree_all_finite(grads)


def test_cub_crops_on_random_features(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from experiments.cub_crops import features
    from experiments.cub_crops import main as study

    rng = np.random.default_rng(0)
    monkeypatch.setattr(
        features,
        "pooled",
        lambda dataset, weights: rng.normal(size=(len(dataset), 1, 1, 1280)).astype("f"),
    )
    settings = study.Settings(
        shared_data / "cub_crops227", seeds=1, steps=8, only=("EPS + MS",), out=tmp_path
    )
    table = study.main(settings)
    assert "RANDOM (no --weights)" in table
    assert "frozen features" in table
    assert "EPS + MS" in table
    assert (tmp_path / "gallery.png").stat().st_size > 50_000
    assert (tmp_path / "map.png").stat().st_size > 10_000
    jobs = study.make_jobs(dataclasses.replace(settings, seeds=2, open_set=True), tmp_path)
    assert len(jobs) == 4
    one, other = (study.run(jobs[f"open set: frozen features-{seed}"]) for seed in range(2))
    assert one.keys() == other.keys() >= set(study.OPEN_SET)
    assert one != other  # a seed draws which species are known
