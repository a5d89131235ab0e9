"""Callbacks: when they are called, with what, and what they may do to a run."""

import dataclasses
import functools
import json
import sys
from types import SimpleNamespace

import chex
import jax.numpy as jnp
import numpy as np
import pytest

from jdml.training import EMA, CallbackResult, SkipNonfinite, Stop, TensorBoard, every


class Notes:
    """Notes its calls."""

    def __init__(self, returns=None):
        self.calls, self.returns = {}, returns

    def __call__(self, step, state, metrics):
        assert int(state.step) == step
        self.calls[step] = dict(metrics)
        return self.returns


def test_callbacks_are_called_by_their_steps_and_after_the_last(fit_toy):
    own, tenth, evaluated = Notes(), Notes(), Notes()
    own.every = 4
    callbacks = [own, every(10, tenth), evaluated]
    history = fit_toy(steps=11, every=3, log_every=50, callbacks=callbacks).history
    assert list(own.calls) == [4, 8, 11]
    assert list(tenth.calls) == [10, 11]
    assert list(evaluated.calls) == [3, 6, 9, 11]
    records = {record.pop("step"): record for record in history}
    assert list(records) == [3, 4, 6, 8, 9, 10, 11]
    for notes in own, tenth, evaluated:
        for step, metrics in notes.calls.items():
            assert metrics == records[step]
            assert {type(value) for value in metrics.values()} == {float}
    logged = Notes()
    fit_toy(steps=5, function=None, every=50, log_every=2, callbacks=[logged])
    assert list(logged.calls) == [2, 4, 5]


def test_a_callback_ends_the_run(fit_toy):
    """The others are called after the last step, too."""
    before, after = Notes(), Notes()
    before.every = after.every = 3
    stop = every(4, lambda step, state, metrics: Stop("enough"))
    result = fit_toy(steps=9, every=9, callbacks=[before, stop, after])
    assert (result.stop_reason, int(result.state.step)) == ("enough", 4)
    assert "spread" in result.history[-1]
    assert list(before.calls) == list(after.calls) == [3, 4]
    assert fit_toy(steps=4, callbacks=[stop]).stop_reason == "steps"


def test_a_callback_replaces_the_state(fit_toy):
    """But not where it was evaluated after the last step: that is the result. Its own arrays stay its own."""
    proxies = jnp.ones((4, 2))
    seen = []

    def replace(step, state, metrics):
        seen.append(np.array(state.params["proxies"]))
        return state._replace(params={**state.params, "proxies": proxies})

    result = fit_toy(steps=3, callbacks=[every(1, replace)])
    assert np.abs(seen[1] - 1).max() < 0.1  # one step from there
    assert not np.array_equal(result.state.params["proxies"], proxies)
    assert proxies.sum() == 8
    plain = fit_toy(steps=3, log_every=1)
    last = every(3, replace)
    chex.assert_trees_all_equal(fit_toy(steps=3, callbacks=[last]).state, plain.state)
    result = fit_toy(steps=3, function=None, callbacks=[last])
    np.testing.assert_array_equal(result.state.params["proxies"], proxies)


def without_params(step, state, metrics):
    return state._replace(params={})


@dataclasses.dataclass(frozen=True)
class Count:
    """Counts its calls, shifts proxies by the count."""

    name: str
    every: int = 2

    @property
    def config(self):
        return {"every": self.every}

    def template(self, state):
        return {"count": jnp.zeros((), jnp.int32)}

    def start(self, state):
        return self.template(state), state

    def update(self, carried, step, state, metrics):
        count = carried["count"] + 1
        params = {**state.params, "proxies": state.params["proxies"] + 0.01 * count}
        told = {self.name: int(count)}
        stop = Stop(self.name) if int(count) == 9 else None
        return CallbackResult({"count": count}, state._replace(params=params), told, stop)


def counted(toy, fit, folder, die_at=None, steps=8, **settings):
    parts = {"callbacks": [Count("a"), Count("b", 3)], "sampler": toy.batches(die_at)}
    saved = {"steps": steps, "checkpoint_every": 3, "monitor": "spread", "log_every": 1}
    return fit(folder, **parts, **saved, **settings)


def test_what_several_callbacks_carry_is_saved(toy, fit_toy, tmp_path):
    whole = counted(toy, fit_toy, tmp_path / "whole")
    assert [record["a"] for record in whole.history if "a" in record] == [1, 2, 3, 4]
    assert [record["b"] for record in whole.history if "b" in record] == [1, 2, 3]
    with pytest.raises(toy.Killed):
        counted(toy, fit_toy, tmp_path / "run", die_at=6)
    resumed = counted(toy, fit_toy, tmp_path / "run")
    chex.assert_trees_all_equal(resumed.state, whole.state)
    assert resumed.history == whole.history
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["callbacks"] == {"Count": {"every": 2}, "Count 2": {"every": 3}}
    with pytest.raises(ValueError, match=r"\bcallbacks\.Count 2\.every: 3 there, 4 now"):
        fit_toy(tmp_path / "run", callbacks=[Count("a"), Count("b", 4)], steps=8)
    with pytest.raises(ValueError, match=r"\bsteps: 8\b"):
        counted(toy, fit_toy, tmp_path / "run", steps=9, allow_more_steps=True)
    ended = fit_toy(steps=30, every=30, callbacks=[Count("nine", 1)])
    assert (ended.stop_reason, int(ended.state.step)) == ("nine", 9)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda fit: every(0, print), ValueError, "n"),
        (lambda fit: EMA(1.0), ValueError, "decay"),
        (lambda fit: SkipNonfinite(0), ValueError, "limit"),
        (lambda fit: fit(callbacks=[EMA(0.9), Count("a")]), ValueError, "callbacks.*EMA"),
        (lambda fit: fit(callbacks=[Notes({})]), TypeError, "callbacks.*dict"),
        (lambda fit: fit(callbacks=[every(1, without_params)]), ValueError, "callbacks.*params"),
    ],
)
def test_wrong_callbacks_and_values_are_refused(fit_toy, call, error, words):
    with pytest.raises(error, match=rf"^{words}\b"):
        call(functools.partial(fit_toy, steps=3, every=1))


def test_tensorboard_replaces_what_a_killed_run_had_written(tmp_path, monkeypatch):
    made, scalars = [], []

    def summaries(folder, purge_step):
        made.append((folder, purge_step))
        return SimpleNamespace(add_scalar=lambda *scalar: scalars.append(scalar), flush=list)

    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=summaries))
    board = TensorBoard(tmp_path / "board", every=2)
    for step in 4, 6:
        board(step, None, {"loss": 0.5})
    assert made == [(str(tmp_path / "board"), 4)]
    assert scalars == [("loss", 0.5, 4), ("loss", 0.5, 6)]
