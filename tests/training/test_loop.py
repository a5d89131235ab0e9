"""The loop: schedule, early stopping, log, checkpoints, resume."""

import json
import os
import shutil
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdml.training import Best, SkipNonfinite, load, pretrained


def train(toy, **settings):
    usual = {"steps": 12, "function": toy.spread, "every": 5, "log_every": 4}
    return toy.fit(**(usual | settings))


def log_lines(folder):
    """Return the records of a log, which has no NaN: that is not JSON."""
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [json.loads(line, parse_constant=pytest.fail) for line in lines]


SETTINGS = {"monitor": "spread", "checkpoint_every": 3, "config": {"lr": 0.01, "net": {"dim": 2}}}


@pytest.fixture(scope="module")
def uninterrupted(toy, tmp_path_factory):
    """Return a finished run and its folder, which tests only read."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    return train(toy, folder=folder, **SETTINGS), folder


@pytest.fixture(scope="module")
def plain(toy):
    return train(toy)


def test_schedule_and_means_between_records(toy, plain):
    assert [record["step"] for record in plain.history] == [4, 5, 8, 10, 12]
    assert [r["step"] for r in plain.history if "spread" in r] == [5, 10, 12]
    assert (plain.stop_reason, int(plain.state.step), plain.best) == ("steps", 12, None)
    assert "\n" not in repr(plain) + repr(plain.state)
    losses = [record["loss"] for record in train(toy, log_every=1).history]
    means = [record["loss"] for record in plain.history]
    np.testing.assert_allclose(means[0], np.mean(losses[:4]), rtol=1e-6)
    np.testing.assert_allclose(means[2], np.mean(losses[5:8]), rtol=1e-6)


def test_starts_from_a_given_state_without_changing_it(toy, uninterrupted):
    first = uninterrupted[0].state
    copy = jax.tree.map(jnp.copy, first)
    second = train(toy, state=first, steps=3)
    chex.assert_trees_all_equal(first, copy)
    assert (second.state.params["proxies"] != first.params["proxies"]).any()


def scripted(values):
    """Return an evaluation with given values in turn that records the parameters."""
    seen = []

    def evaluate(embedder):
        seen.append(jax.tree.map(np.array, embedder.state.params))
        return {"value": values[len(seen) - 1]}

    return evaluate, seen


def test_early_stopping_keeps_the_best(toy):
    evaluate, seen = scripted([0.1, 0.5, 0.4, 0.5, 0.9])
    result = train(toy, steps=100, function=evaluate, every=2, monitor="value", patience=2)
    assert result.stop_reason == "patience"
    assert int(result.state.step) == 8
    assert result.best == Best(0.5, 4, 2)
    chex.assert_trees_all_equal(seen[1], result.best_params)
    assert (result.best_params["proxies"] != result.state.params["proxies"]).any()
    chex.assert_trees_all_equal(result.embedder.state.params, result.best_params)


@pytest.mark.parametrize("die_at", [2, 8, 12])
def test_resume_is_bit_exact(toy, uninterrupted, tmp_path, die_at):
    """A partly written checkpoint and a partly written log line change nothing."""
    with pytest.raises(toy.Killed):
        train(toy, folder=tmp_path, sampler=toy.batches(die_at), **SETTINGS)
    if die_at == 8:
        checkpoints = tmp_path / "checkpoints"
        shutil.copytree(checkpoints / "6", checkpoints / "9.orbax-checkpoint-tmp")
        (checkpoints / "9.orbax-checkpoint-tmp" / "progress" / "metadata").write_text('{"st')
        (checkpoints / "3" / "state" / "d").mkdir(parents=True, exist_ok=True)  # was being removed
        with (tmp_path / "log.jsonl").open("a") as log:
            log.write('{"step": 8, "lo')
    resumed, whole = train(toy, folder=tmp_path, **SETTINGS), uninterrupted[0]
    chex.assert_trees_all_equal(whole.state, resumed.state)
    chex.assert_trees_all_equal(whole.best_params, resumed.best_params)
    assert whole.best == resumed.best
    assert whole.history == resumed.history
    records = log_lines(tmp_path)
    seconds = [record.pop("seconds") for record in records]
    assert seconds == sorted(seconds)  # those before the kill count
    assert records == resumed.history
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"9", "12"}


def test_patience_is_resumed(toy, tmp_path):
    """Stale evaluations before the kill count after it."""
    evaluate, _ = scripted([0.5, 0.4])
    settings = {"every": 2, "monitor": "value", "patience": 3, "steps": 20}
    with pytest.raises(toy.Killed):
        train(toy, function=evaluate, folder=tmp_path, sampler=toy.batches(6), **settings)
    evaluate, _ = scripted([0.3, 0.2, 0.9])
    result = train(toy, function=evaluate, folder=tmp_path, **settings)
    assert result.stop_reason == "patience"
    assert int(result.state.step) == 8
    assert result.best == Best(0.5, 2, 3)


@pytest.mark.parametrize("dies_at", [3, 12])
def test_kill_after_a_checkpoint_but_before_model_and_metrics(
    toy, uninterrupted, tmp_path, monkeypatch, dies_at
):
    """The resumed run writes the model and metrics that were missing."""
    replace, checkpoint = os.replace, tmp_path / "checkpoints" / str(dies_at)

    def killed(source, target):
        if checkpoint.exists() and str(target).endswith(("model.safetensors", "metrics.json")):
            raise toy.Killed
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(toy.Killed):
            train(toy, folder=tmp_path, **SETTINGS)
    train(toy, folder=tmp_path, **SETTINGS)
    for name in ("model.safetensors", "metrics.json"):
        assert (tmp_path / name).read_bytes() == (uninterrupted[1] / name).read_bytes(), name
    logged = [[{**x, "seconds": 0} for x in log_lines(run)] for run in (uninterrupted[1], tmp_path)]
    assert logged[0] == logged[1]


def test_finished_run_returns_its_result_and_refuses_other_settings(toy, uninterrupted):
    """It has two checkpoints, and refuses before any work."""
    first, folder = uninterrupted
    log = (folder / "log.jsonl").read_text()
    settings = {**SETTINGS, "folder": folder, "sampler": toy.batches(1)}
    again = train(toy, **settings)
    chex.assert_trees_all_equal(first.state, again.state)
    chex.assert_trees_all_equal(first.best_params, again.best_params)
    assert (first.history, first.stop_reason) == (again.history, again.stop_reason)
    assert first.stop_reason == "steps"  # the monitor has no patience
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"9", "12"}
    for change, words in (
        ({"config": {"lr": 0.01, "net": {"dim": 3}}}, r"\bnet\.dim: 2\b.*3\b"),
        ({"steps": 13}, r"\bsteps: 12\b.*13\b.*allow_more_steps="),
        ({"steps": 9, "allow_more_steps": True}, r"\bsteps: 12\b.* 9\b"),
        ({"resume": False}, r"\bstep 12\b"),
    ):
        with pytest.raises(ValueError, match=words):
            train(toy, **{**settings, **change})
    assert (folder / "log.jsonl").read_text() == log


def test_nan_loss_names_its_step_and_is_not_saved(toy, tmp_path):
    """A sampler that reaches the poisoned row in step 7 only."""
    images = (toy.data.images / 255).astype(np.float32)
    images[0] = np.nan
    rows = [np.arange(1, 9)] * 6 + [np.arange(8)] * 9
    parts = {"train": SimpleNamespace(images=images, labels=toy.data.labels), "folder": tmp_path}
    with pytest.raises(FloatingPointError, match=r"\bloss is nan at step 7\b"):
        train(toy, sampler=toy.rows(rows), checkpoint_every=2, log_every=10, **parts)
    assert max(int(path.name) for path in (tmp_path / "checkpoints").iterdir()) == 6


@pytest.mark.parametrize(
    ("settings", "error", "name"),
    [
        ({"steps": -1}, ValueError, "steps"),
        ({"steps": True}, TypeError, "steps"),
        ({"log_every": "2"}, TypeError, "log_every"),
        ({"checkpoint_every": 4.0}, TypeError, "checkpoint_every"),
        ({"every": 0}, ValueError, "every"),
        ({"patience": 2}, ValueError, "patience"),
        ({"patience": 0, "monitor": "spread"}, ValueError, "patience"),
        ({"monitor": "spread", "function": None}, ValueError, "monitor"),
        ({"monitor": "R@1"}, ValueError, r"monitor.*R@1.*spread"),
        ({"state": object()}, TypeError, "state"),
        ({"state": lambda state: state._replace(params={})}, ValueError, "state.*parameters"),
        ({"evaluation": 3}, TypeError, "function"),
        ({"devices": 3}, TypeError, "mesh"),
        ({"folder": ""}, ValueError, "folder"),
        ({"function": lambda embed: {"loss": 1.0}}, ValueError, "evaluation.*loss"),
    ],
)
def test_wrong_settings_are_refused(toy, settings, error, name):
    with pytest.raises(error, match=rf"^{name}\b"):
        train(toy, **settings)


def test_monitor_that_is_always_nan_keeps_the_last_parameters(toy, plain, tmp_path, caplog):
    """In memory and on disk, with a warning."""
    settings = {"function": lambda embed: {"a": float("nan")}, "monitor": "a"}
    result = train(toy, **settings, folder=tmp_path)
    assert result.best is None
    expected = plain.embedder(toy.data.images)
    np.testing.assert_array_equal(result.embedder(toy.data.images), expected)
    np.testing.assert_array_equal(load(tmp_path, model=toy.model).embed(toy.data.images), expected)
    assert [line["a"] for line in log_lines(tmp_path) if "a" in line] == [None] * 3
    assert sum("monitor 'a'" in message for message in caplog.messages) == 1


def test_pretrained_variables_must_match_the_network(toy):
    for begin, words in (
        (lambda variables: variables["params"], "BatchNorm_0"),
        (lambda variables: {"params": {**variables["params"], "more": np.ones(2)}}, "more"),
    ):
        with pytest.raises(ValueError, match=rf"^pretrained\b.*{words}"):
            train(toy, state=pretrained(begin), steps=1)


def test_progress_bar_shows_loss_and_metric(toy, capsys):
    train(toy, progress=True, function=lambda embed: {**toy.spread(embed), "other": 0.0})
    shown = capsys.readouterr().err
    assert all(words in shown for words in ("12/12", "loss=", "spread="))
    assert "other=" not in shown
    train(toy)
    assert capsys.readouterr().err == ""


def test_steps_that_are_not_finite_are_skipped(toy, tmp_path, capsys):
    """1e25 is finite but its square is not: Adam's second moment would become infinite and remain so."""
    good, bad = np.arange(1, 9), np.arange(3, 35, 4)  # bad has one class only

    def loss(params, embeddings, labels, **others):
        plain, metrics = toy.objective.loss(params, embeddings, labels, **others)
        return plain * jnp.where((labels == 3).all(), 1e25, 1.0), metrics

    objective = toy.objective._replace(loss=loss)

    def run(*kinds, allowed=2, **settings):
        callbacks = [SkipNonfinite(allowed)] if allowed else []
        parts = {"objective": objective, "sampler": toy.rows(kinds), "callbacks": callbacks}
        return train(toy, **{"steps": len(kinds), "function": None, **parts, **settings})

    before, after = run(good, good, good), run(good, good, good, bad)
    chex.assert_trees_all_equal(after.state._replace(step=before.state.step), before.state)
    kinds = [good, bad, good, bad, good, good]
    result = run(*kinds, folder=tmp_path / "a", every=3, log_every=3)
    assert [record["skipped"] for record in result.history] == [1, 1]
    assert [line["skipped"] for line in log_lines(tmp_path / "a")] == [1, 1]
    assert all(np.isfinite(record["loss"]) for record in result.history)
    assert np.isfinite(jax.tree.leaves(result.state.opt_state)[1]).all()
    with pytest.raises(FloatingPointError, match=r"\bstep 4\b.*\b1\b"):
        run(good, good, bad, bad, good)
    with pytest.raises(FloatingPointError, match=r"\bstep 4\b"):
        run(good, good, good, bad, allowed=None)
    assert "skipped" not in run(good, allowed=None).history[-1]
    capsys.readouterr()
    run(bad, good, log_every=1, progress=True)
    shown = capsys.readouterr().err
    assert "skipped=1" in shown
    assert "nan" not in shown


def test_16_bit_parameters_are_warned_of(toy, tmp_path, caplog):
    """Small updates of them round to nothing. A run has them also in a model with others."""
    inits = [lambda *_, t=t: {"w": jnp.ones((9, 2), t)} for t in (jnp.bfloat16, jnp.float32)]
    halves, wide = ((init, lambda w, x: x.reshape(len(x), -1) @ w["w"]) for init in inits)
    train(toy, steps=0, model=halves, folder=tmp_path)
    assert "bfloat16" in caplog.text
    assert load(tmp_path, model=wide).params["w"].dtype == jnp.bfloat16
