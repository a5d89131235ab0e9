"""The loop: schedule, early stopping, log, checkpoints, resume."""

import json
import shutil
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml.training.feed as feed
from jdml.training import Best, fit, improve, load
from jdml.training.checkpoint import RunFolder
from jdml.training.run_files import read_checkpoint

pytestmark = pytest.mark.slow


def train(toy, **settings):
    parts = {
        "model": toy.model,
        "objective": toy.objective,
        "optimizer": toy.optimizer,
        "train": toy.data,
        "sampler": toy.batches(),
        "steps": 12,
        "evaluate": toy.spread,
        "evaluate_every": 5,
        "log_every": 4,
        "progress": False,
    }
    return fit(**(parts | settings))


def log_lines(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


class Killed(BaseException):
    """Stands for a signal: nothing catches it."""


def killed_at(toy, step):
    """A sampler that dies when the batch of this step is asked for."""

    class Sampler(toy.batches):
        def __next__(self):
            if self.i + 1 == step:
                raise Killed
            return super().__next__()

    return Sampler()


def test_schedule(toy):
    result = train(toy, sampler=toy.batches())
    assert [record["step"] for record in result.history] == [4, 5, 8, 10, 12]
    assert [r["step"] for r in result.history if "spread" in r] == [5, 10, 12]
    assert result.stopped == "steps"
    assert int(result.state.step) == 12
    assert result.best is None


def test_records_are_means_over_the_steps_between(toy):
    every = train(toy, log_every=1).history
    some = train(toy, log_every=4).history
    losses = [record["loss"] for record in every]
    np.testing.assert_allclose(some[0]["loss"], np.mean(losses[:4]), rtol=1e-6)
    np.testing.assert_allclose(some[2]["loss"], np.mean(losses[5:8]), rtol=1e-6)


def test_loss_falls(toy):
    history = train(toy, steps=150, log_every=10).history
    assert history[-1]["loss"] < 0.5 * history[0]["loss"]


def test_host_batches_give_the_same_run(toy, monkeypatch):
    """Data too large for the device are gathered on the host."""
    on_device = train(toy)
    monkeypatch.setattr(feed, "DEVICE_BYTES", 0)
    on_host = train(toy)
    np.testing.assert_allclose(
        [r["loss"] for r in on_device.history], [r["loss"] for r in on_host.history], rtol=1e-4
    )


def test_starts_from_a_given_state_and_leaves_it_alone(toy, identical):
    first = train(toy).state
    copy = jax.tree.map(jnp.copy, first)
    second = train(toy, state=first, steps=3)
    assert identical(first, copy)
    assert not identical(second.state.params, first.params)


def test_improve():
    best, improved = improve(Best(), 0.3, 10)
    assert (best, improved) == (Best(0.3, 10, 0), True)
    best, improved = improve(best, float("nan"), 20)
    assert (best, improved) == (Best(0.3, 10, 1), False)
    best, improved = improve(best, 0.4, 30)
    assert (best, improved) == (Best(0.4, 30, 0), True)


def scripted(values):
    """An evaluation that returns given values in turn and remembers the parameters it saw."""
    seen = []

    def evaluate(embedder):
        seen.append(jax.tree.map(np.array, embedder.state.params))
        return {"value": values[len(seen) - 1]}

    return evaluate, seen


def test_early_stopping_keeps_the_best(toy, identical):
    evaluate, seen = scripted([0.1, 0.5, 0.4, 0.5, 0.9])
    result = train(toy, steps=100, evaluate=evaluate, evaluate_every=2, monitor="value", patience=2)
    assert result.stopped == "patience"
    assert int(result.state.step) == 8
    assert result.best == Best(0.5, 4, 2)
    assert identical(jax.tree.map(jnp.asarray, seen[1]), result.best_params)
    assert not identical(result.best_params, result.state.params)
    assert identical(result.embedder.state.params, result.best_params)


def test_monitor_without_patience_runs_to_the_end(toy):
    evaluate, _ = scripted([0.5, 0.1, 0.1])
    result = train(toy, evaluate=evaluate, monitor="value")
    assert result.stopped == "steps"
    assert result.best.step == 5


@pytest.mark.parametrize("die_at", [2, 6, 7, 11, 12])
def test_resume_is_bit_exact(toy, identical, tmp_path, die_at):
    settings = {"monitor": "spread", "checkpoint_every": 3}
    unbroken = train(toy, out_dir=tmp_path / "a", **settings)
    with pytest.raises(Killed):
        train(toy, out_dir=tmp_path / "b", sampler=killed_at(toy, die_at), **settings)
    resumed = train(toy, out_dir=tmp_path / "b", **settings)
    assert identical(unbroken.state, resumed.state)
    assert identical(unbroken.best_params, resumed.best_params)
    assert unbroken.best == resumed.best
    assert unbroken.history == resumed.history
    records = [
        {k: v for k, v in line.items() if k != "seconds"} for line in log_lines(tmp_path / "b")
    ]
    assert records == resumed.history


def test_resumed_patience_counts_on(toy, tmp_path):
    """Stale evaluations before the kill count after it, too."""
    evaluate, _ = scripted([0.5, 0.4])
    settings = {"evaluate_every": 2, "monitor": "value", "patience": 3, "steps": 20}
    with pytest.raises(Killed):
        train(toy, evaluate=evaluate, out_dir=tmp_path, sampler=killed_at(toy, 6), **settings)
    evaluate, _ = scripted([0.3, 0.2, 0.9])
    result = train(toy, evaluate=evaluate, out_dir=tmp_path, **settings)
    assert result.stopped == "patience"
    assert int(result.state.step) == 8
    assert result.best == Best(0.5, 2, 3)


def test_leftovers_of_a_killed_save(toy, identical, tmp_path):
    """A half-written checkpoint and a half-written log line are as if they had never been."""
    settings = {"checkpoint_every": 3}
    unbroken = train(toy, out_dir=tmp_path / "a", **settings)
    with pytest.raises(Killed):
        train(toy, out_dir=tmp_path / "b", sampler=killed_at(toy, 8), **settings)
    checkpoints = tmp_path / "b" / "checkpoints"
    shutil.copytree(checkpoints / "6", checkpoints / "9.orbax-checkpoint-tmp")
    (checkpoints / "9.orbax-checkpoint-tmp" / "progress" / "metadata").write_text('{"st')
    with (tmp_path / "b" / "log.jsonl").open("a") as log:
        log.write('{"step": 8, "lo')
    resumed = train(toy, out_dir=tmp_path / "b", **settings)
    assert identical(unbroken.state, resumed.state)
    assert not list(checkpoints.glob("*tmp*"))
    assert [line["step"] for line in log_lines(tmp_path / "b")] == [3, 4, 5, 6, 8, 9, 10, 12]


@pytest.mark.parametrize("dies_after", [3, 9, 12])
def test_a_kill_between_a_checkpoint_and_the_rest(toy, tmp_path, monkeypatch, dies_after):
    """What is written after a checkpoint is written when the run goes on from it: log line, model, metrics."""
    settings = {"checkpoint_every": 3, "evaluate_every": 4, "monitor": "spread"}
    train(toy, out_dir=tmp_path / "a", **settings)
    save = RunFolder.save

    def killed(folder, step, *rest):
        save(folder, step, *rest)
        if step == dies_after:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save", killed)
        with pytest.raises(Killed):
            train(toy, out_dir=tmp_path / "b", **settings)
    train(toy, out_dir=tmp_path / "b", **settings)
    for name in ("model.safetensors", "metrics.json"):
        assert (tmp_path / "b" / name).read_bytes() == (tmp_path / "a" / name).read_bytes(), name
    logged = [[{**line, "seconds": 0} for line in log_lines(tmp_path / run)] for run in ("a", "b")]
    assert logged[0] == logged[1]


def test_what_is_left_of_a_checkpoint_that_was_being_removed(toy, identical, tmp_path):
    first = train(toy, out_dir=tmp_path, checkpoint_every=4)
    checkpoints = tmp_path / "checkpoints"
    (checkpoints / "4" / "state" / "d").mkdir(parents=True)
    again = train(toy, out_dir=tmp_path, checkpoint_every=4)
    assert identical(first.state, again.state)
    assert {path.name for path in checkpoints.iterdir()} == {"8", "12"}


def test_finished_run_reports_again(toy, identical, tmp_path):
    first = train(toy, out_dir=tmp_path, monitor="spread")
    before = (tmp_path / "log.jsonl").read_text()
    again = train(toy, out_dir=tmp_path, monitor="spread", sampler=killed_at(toy, 1))
    assert identical(first.state, again.state)
    assert identical(first.best_params, again.best_params)
    assert first.history == again.history
    assert again.stopped == "steps"
    assert (tmp_path / "log.jsonl").read_text() == before


def test_keeps_two_checkpoints(toy, tmp_path):
    train(toy, out_dir=tmp_path, checkpoint_every=2)
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"10", "12"}
    assert read_checkpoint(tmp_path)["step"] == 12


def test_other_configuration_is_refused_before_any_work(toy, tmp_path):
    train(toy, out_dir=tmp_path, config={"lr": 0.01, "model": {"dim": 2}})
    settings = {"out_dir": tmp_path, "sampler": killed_at(toy, 1)}
    with pytest.raises(ValueError, match=r"another configuration: lr: 0\.01 there, 0\.1 now"):
        train(toy, config={"lr": 0.1, "model": {"dim": 2}}, **settings)
    with pytest.raises(ValueError, match=r"model\.dim: 2 there, 3 now"):
        train(toy, config={"lr": 0.01, "model": {"dim": 3}}, **settings)
    with pytest.raises(ValueError, match=r"fit\.steps: 12 there, 13 now"):
        train(toy, config={"lr": 0.01, "model": {"dim": 2}}, steps=13, **settings)


def test_resume_false_refuses_a_used_folder(toy, tmp_path):
    train(toy, out_dir=tmp_path)
    with pytest.raises(ValueError, match="already has a checkpoint of step 12"):
        train(toy, out_dir=tmp_path, resume=False)


def test_nan_names_its_step_and_is_not_saved(toy, tmp_path):
    """A sampler that reaches the poisoned row in step 7 only."""
    images = (toy.data.images / 255).astype(np.float32)
    images[0] = np.nan
    rows = iter([np.arange(1, 9)] * 6 + [np.arange(8)] * 9)

    class Sampler(toy.batches):
        def __next__(self):
            return next(rows)

    data = SimpleNamespace(images=images, labels=toy.data.labels)
    with pytest.raises(FloatingPointError, match="the loss is nan at step 7"):
        train(
            toy, train=data, sampler=Sampler(), out_dir=tmp_path, checkpoint_every=2, log_every=10
        )
    assert max(int(path.name) for path in (tmp_path / "checkpoints").iterdir()) == 6
    rows = iter([np.arange(1, 9)] * 6 + [np.arange(8)] * 9)
    with pytest.raises(FloatingPointError, match="nan at step 8, as in the 1 before it"):
        train(toy, train=data, sampler=Sampler(), skip_nonfinite=2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": -1}, "steps must be >= 0, got -1"),
        ({"evaluate_every": 0}, "evaluate_every must be >= 1, got 0"),
        ({"patience": 2}, "patience needs monitor"),
        ({"patience": 0, "monitor": "spread"}, "patience must be >= 1, got 0"),
        ({"monitor": "spread", "evaluate": None}, "no evaluate function"),
        ({"state": object(), "pretrained": dict}, "state and pretrained both say what to begin"),
        ({"state": object(), "start": dict}, "state and start both say what to begin with"),
        ({"monitor": "R@1"}, r"monitor 'R@1' is not among the metrics \['spread'\]"),
        ({"tensorboard": True}, "tensorboard needs out_dir"),
    ],
)
def test_bad_settings(toy, settings, message):
    with pytest.raises(ValueError, match=message):
        train(toy, **settings)


@pytest.mark.parametrize("name", ["steps", "evaluate_every", "log_every", "checkpoint_every"])
@pytest.mark.parametrize("value", [2.5, 4.0, float("nan"), "2", True])
def test_steps_are_whole_numbers(toy, name, value):
    """Of 2.5 steps the last never came."""
    with pytest.raises(TypeError, match=f"{name} must be a Python integer >= ., got {value!r}"):
        train(toy, **{name: value})


@pytest.mark.parametrize("name", ["loss", "step", "model", "skipped", "grad_norm"])
def test_a_metric_is_not_called_as_what_the_log_has(toy, name):
    with pytest.raises(ValueError, match=f"evaluate must not call a metric '{name}'"):
        train(toy, evaluate=lambda embed: {name: 1.0})


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (None, "a dictionary of numbers by name, got a NoneType"),
        ({"a": "x"}, "numbers, got 'x' of 'a'"),
    ],
)
def test_evaluate_returns_numbers(toy, scores, message):
    with pytest.raises(TypeError, match=f"evaluate must return {message}"):
        train(toy, evaluate=lambda embed: scores)


def test_a_monitor_that_is_never_a_number(toy, tmp_path, caplog):
    """The last parameters are the result, in memory and on disk."""
    settings = {"evaluate": lambda embed: {"a": float("nan")}, "monitor": "a"}
    last, result = train(toy, evaluate=None), train(toy, **settings, out_dir=tmp_path)
    assert result.best is None
    expected = last.embedder(toy.data.images)
    np.testing.assert_array_equal(result.embedder(toy.data.images), expected)
    np.testing.assert_array_equal(load(tmp_path, model=toy.model).embed(toy.data.images), expected)
    assert "monitor 'a' was never a number" in caplog.text


@pytest.mark.parametrize(
    ("pretrained", "message"),
    [
        (
            lambda variables: variables["params"],
            "a dictionary of params, batch_stats, .* got Batch",
        ),
        (lambda variables: None, "got NoneType"),
        (
            lambda variables: {"params": {**variables["params"], "more": np.ones(2)}},
            r"params\['more'\] is not there, got float.*\[2\]",
        ),
        (lambda variables: {"params": {}}, "own parameters: params.* got none"),
    ],
)
def test_pretrained_returns_what_the_network_has(toy, pretrained, message):
    with pytest.raises(ValueError, match=message):
        train(toy, pretrained=pretrained)


def test_a_folder_without_a_name(toy):
    with pytest.raises(ValueError, match="out_dir must be a path, got ''"):
        train(toy, out_dir="")


def test_progress_bar_shows_loss_and_metric(toy, capsys):
    before, evaluate = [], lambda embed: {**toy.spread(embed), "other": 0.0}
    tell = lambda line: before.append(capsys.readouterr().err)  # noqa: E731
    train(toy, progress=True, evaluate=evaluate, tell=tell)
    assert before[0].endswith(" \r")  # a line that is told stands alone
    shown = capsys.readouterr().err
    assert "compiling" in before[0] + shown
    assert "12/12" in shown
    assert "loss=" in shown
    assert "spread=" in shown
    assert "other=" not in shown
    train(toy)
    assert capsys.readouterr().err == ""


def test_tensorboard(toy, tmp_path):
    pytest.importorskip("tensorboardX", reason="needs tensorboardX")
    train(toy, out_dir=tmp_path, tensorboard=True)
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"spread" in events.read_bytes()


@pytest.mark.parametrize("value", [np.nan, 1e25])
def test_steps_that_are_not_finite_are_left_out(toy, identical, tmp_path, capsys, value):
    """1e25 is finite, but its square, which Adam takes, is not: its second moment would stay infinite for good."""
    good, bad = np.arange(1, 9), np.arange(3, 35, 4)  # the latter of one class only

    def loss(params, embeddings, labels, **others):
        plain, metrics = toy.objective.loss(params, embeddings, labels, **others)
        return plain * jnp.where((labels == 3).all(), value, 1.0), metrics

    objective = toy.objective._replace(loss=loss)

    class Sampler(toy.batches):
        def __init__(self, *kinds):
            self.kinds, self.i = kinds, 0

        def __next__(self):
            self.i += 1
            return self.kinds[self.i - 1]

    def run(*kinds, allowed=2, **settings):
        return train(
            toy, objective=objective, sampler=Sampler(*kinds), steps=len(kinds), evaluate=None,
            skip_nonfinite=allowed, **settings,
        )  # fmt: skip

    before, after = run(good, good, good), run(good, good, good, bad)
    assert identical(after.state._replace(step=before.state.step), before.state)
    kinds = [good, bad, good, bad, good, good]
    result = run(*kinds, out_dir=tmp_path / "a", evaluate_every=3, log_every=3)
    assert [record["skipped"] for record in result.history] == [1, 1]
    assert [line["skipped"] for line in log_lines(tmp_path / "a")] == [1, 1]
    assert all(np.isfinite(record["loss"]) for record in result.history)
    assert np.isfinite(jax.tree.leaves(result.state.opt_state)[1]).all()
    with pytest.raises(FloatingPointError, match="at step 4, as in the 1 before it"):
        run(good, good, bad, bad, good)
    with pytest.raises(FloatingPointError, match="at step 4"):
        run(good, good, good, bad, allowed=None)
    with pytest.raises(ValueError, match="skip_nonfinite must be >= 1, got 0"):
        run(good, allowed=0)
    assert "skipped" not in run(good, allowed=None).history[-1]
    capsys.readouterr()
    run(bad, good, log_every=1, progress=True)
    shown = capsys.readouterr().err
    assert "skipped=1" in shown
    assert "nan" not in shown
