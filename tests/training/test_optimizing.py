"""Optimizers of every kind: those that want the loss, those with parameters of their own to evaluate with, averages."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from optax import contrib

import jdml
from jdml.training import fit, load
from jdml.training.loss_scale import after_step, with_loss_scale

pytestmark = pytest.mark.slow


def run(toy, optimizer, out_dir=None, **settings):
    given = {"steps": 6, "evaluate": toy.spread, "evaluate_every": 2, "progress": False}
    parts = toy.model, toy.objective, optimizer, toy.data
    return fit(*parts, toy.batches(), out_dir=out_dir, **{**given, **settings})


def by_role(make):
    transforms = {"model": make(), "proxies": optax.adam(1e-2)}
    return jdml.optim.partition_by_role(transforms, {role: role for role in transforms})


WANT_THE_LOSS = {
    "momo": contrib.momo(1e-2),
    "polyak_sgd": optax.polyak_sgd(1e-2),
    "reduce_on_plateau": optax.chain(optax.adam(1e-2), contrib.reduce_on_plateau()),
    "by role": by_role(lambda: optax.polyak_sgd(1e-2)),
    "in MultiSteps": optax.MultiSteps(contrib.momo(1e-2), 2),
    "injected": optax.inject_hyperparams(optax.polyak_sgd)(1e-2),
}


def kernels(params):
    """Whether each parameter is one of the network's kernels."""
    return jax.tree_util.tree_map_with_path(lambda path, _: "kernel" in str(path[-1]), params)


def test_what_adds_gradients_as_they_are_is_refused(toy):
    """optax.masked leaves other gradients alone, and so adds them; a partition does not."""
    masked = optax.masked(optax.adamw(1e-2), kernels)
    with pytest.raises(ValueError, match=r"of 5 of 7 .* params\['model'\].*: optax.masked does so"):
        run(toy, masked, steps=1)
    frozen = optax.partition(
        {True: optax.adamw(1e-2, weight_decay=0.1), False: optax.set_to_zero()}, kernels
    )
    start, end = (run(toy, frozen, steps=steps).state.params for steps in (0, 3))
    stays = jax.tree.map(lambda a, b: bool((a == b).all()), start, end)
    assert stays == jax.tree.map(lambda moved: not moved, kernels(start))


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float32"])
def test_parameters_that_lose_updates_are_told(toy, caplog, kind):
    class Narrow(nn.Module):
        @nn.compact
        def __call__(self, images):
            return nn.Dense(2, param_dtype=kind)(images.reshape(len(images), -1))

    fit(Narrow(), toy.objective, optax.sgd(1e-3), toy.data, toy.batches(), steps=1, progress=False)
    lost = {"bfloat16": "0.004", "float16": "0.0005", "float32": None}[kind]
    assert (f"parameters are {kind}: updates below {lost} of" in caplog.text) == (lost is not None)


@pytest.mark.parametrize("kind", WANT_THE_LOSS)
def test_those_that_want_the_loss_get_it(toy, kind):
    assert np.isfinite(run(toy, WANT_THE_LOSS[kind], steps=2).history[-1]["loss"])


def test_the_loss_is_the_steps_own(toy):
    def update(grads, state, params=None, *, value, **extra):
        return jax.tree.map(jnp.zeros_like, grads), value

    keeps = optax.GradientTransformationExtraArgs(lambda params: jnp.zeros(()), update)
    result = run(toy, keeps, steps=2, log_every=1)
    assert float(result.state.opt_state) == pytest.approx(result.history[-1]["loss"])


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (optax.lbfgs(), "value_fn"),
        (by_role(optax.lbfgs), "value_fn"),
        (optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(5)), "value_fn"),
        (contrib.sam(optax.sgd(0.1), optax.sgd(0.1), opaque_mode=True), "sam"),
        (contrib.sam(optax.sgd(0.1), optax.sgd(0.1)), "sam"),
        (contrib.sophia(1e-3), "obj_fn"),
    ],
)
def test_those_that_cannot_work_are_refused_before_any_file(toy, tmp_path, optimizer, message):
    with pytest.raises(ValueError, match=f"optimizer .*({message})"):
        run(toy, optimizer, tmp_path / "run")
    assert not list(tmp_path.iterdir())


FREE = {
    "alone": contrib.schedule_free_adamw(1e-2),
    "by role": by_role(lambda: contrib.schedule_free_sgd(1e-2)),
    "in MultiSteps": optax.MultiSteps(contrib.schedule_free_adamw(1e-2), 2),
}


@pytest.mark.parametrize("kind", FREE)
def test_schedule_free_is_evaluated_and_saved_with_its_own_parameters(toy, tmp_path, kind):
    result = run(toy, FREE[kind], tmp_path)
    raw, chosen = result.state.params, result.best_params
    (free,) = (
        part
        for part in jax.tree.leaves(
            result.state.opt_state, is_leaf=lambda x: isinstance(x, contrib.ScheduleFreeState)
        )
        if isinstance(part, contrib.ScheduleFreeState)
    )
    own = {"model": free.z["model"]} if kind == "by role" else free.z
    expected = {
        **raw,
        **contrib.schedule_free_eval_params(free._replace(z=own), {k: raw[k] for k in own}),
    }
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(chosen), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    kernels = [tree["model"]["Dense_0"]["kernel"] for tree in (raw, chosen)]
    assert np.abs(kernels[0] - kernels[1]).max() > 0
    for which in ("best", "last"):
        loaded = load(tmp_path, which=which, model=toy.model)
        np.testing.assert_allclose(
            loaded.embed(toy.data.images), result.embedder(toy.data.images), rtol=1e-5, atol=1e-6
        )
    scored = float(result.embedder(toy.data.images).std())
    assert result.history[-1]["spread"] == pytest.approx(scored)


def test_an_average_is_the_sum_over_the_steps(toy, tmp_path):
    seen = []
    kept = run(toy, optax.adam(1e-2), tmp_path, ema=0.5)
    for steps in range(1, 7):
        seen.append(run(toy, optax.adam(1e-2), steps=steps).state.params)
    weights = 0.5 ** np.arange(5, -1, -1)
    expected = jax.tree.map(lambda *all: np.average(all, axis=0, weights=weights), *seen)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(kept.best_params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    for a, b in zip(jax.tree.leaves(seen[-1]), jax.tree.leaves(kept.state.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    images = toy.data.images
    assert kept.history[-1]["spread"] == pytest.approx(float(kept.embedder(images).std()))
    for which in ("best", "last"):
        own = load(tmp_path, which=which, model=toy.model).embed(images)
        np.testing.assert_array_equal(own, kept.embedder(images))


@pytest.mark.parametrize("decay", [1e-9, 0.5, 0.999, 1 - 1e-6, 1 - 1e-8, 1 - 1e-12])
def test_an_average_of_any_decay_has_nothing_of_the_start(decay):
    from jdml.training.optimizing import with_average

    tx = with_average(optax.sgd(1.0), decay)
    params, seen = {"x": jnp.array([1000.0])}, []
    state = tx.init(params)
    for step in range(4):
        grads = {"x": params["x"] - step}  # to 0, 1, 2, 3
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        seen.append(float(params["x"][0]))
        weights = float(decay) ** np.arange(step, -1, -1, dtype=np.float64)
        expected = np.average(seen, weights=weights)
        np.testing.assert_allclose(state.average["x"], [expected], rtol=1e-6, atol=1e-6)


def test_an_average_goes_on_to_the_bit(toy, identical, tmp_path):
    class Killed(BaseException):
        pass

    class Sampler(toy.batches):
        def __next__(self):
            if self.i == 3:
                raise Killed
            return super().__next__()

    settings = {"ema": 0.9, "monitor": "spread"}
    whole = run(toy, optax.adam(1e-2), tmp_path / "whole", **settings)
    parts = toy.model, toy.objective, optax.adam(1e-2), toy.data
    with pytest.raises(Killed):
        fit(
            *parts, Sampler(), steps=6, evaluate=toy.spread, evaluate_every=2, progress=False,
            out_dir=tmp_path / "run", **settings,
        )  # fmt: skip
    again = run(toy, optax.adam(1e-2), tmp_path / "run", **settings)
    assert identical(whole.state, again.state)
    assert identical(whole.best_params, again.best_params)
    with pytest.raises(ValueError, match="another configuration"):
        run(toy, optax.adam(1e-2), tmp_path / "run", **{**settings, "ema": 0.99})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ema": 1.0}, "ema must be below 1, such as 0.999, got 1.0"),
        ({"ema": 0}, "ema must be .*, got 0"),
        ({"ema": 0.9, "hook": object()}, "ema and hook"),
        ({"ema": 0.9, "optimizer": contrib.schedule_free_sgd(1e-2)}, "ema: the optimizer .schedule_free"),
    ],
)  # fmt: skip
def test_averages_that_are_none(toy, settings, message):
    settings = {"optimizer": optax.adam(1e-2), **settings}
    with pytest.raises(ValueError, match=message):
        run(toy, **settings)


def test_multi_steps_count_batches_outside_and_updates_inside(toy):
    """Six steps are six batches; a schedule inside sees three."""
    seen = optax.MultiSteps(optax.adam(optax.linear_schedule(1e-2, 0.0, 3)), 2)
    result = run(toy, seen)
    assert int(result.state.step) == 6
    assert int(result.state.opt_state.gradient_step) == 3
    count = [
        x
        for p, x in jax.tree_util.tree_leaves_with_path(result.state.opt_state)
        if "count" in str(p)
    ]
    assert {int(number) for number in count} == {3}


@pytest.mark.parametrize("accumulate", [False, True])
def test_a_schedule_that_has_ended_is_not_gone_on_with(toy, tmp_path, accumulate):
    def ending(steps):
        made = optax.adam(optax.cosine_decay_schedule(1e-2, steps))
        return optax.MultiSteps(made, 2) if accumulate else made

    optimizer = ending(3 if accumulate else 6)
    state = run(toy, optimizer, tmp_path / "other").state
    run(toy, optimizer, tmp_path / "same")
    for settings in ({"out_dir": tmp_path / "same", "longer": True}, {"state": state}):
        with pytest.raises(ValueError, match="updates of 0 from step 6 on: its schedule has ended"):
            run(toy, optimizer, steps=8, **settings)
    with pytest.raises(
        ValueError, match="optimizer is another. The steps grew, .*schedule ends at"
    ):
        run(toy, ending(8), tmp_path / "other", steps=8, longer=True)


def test_a_longer_run_says_what_makes_it_longer(toy, tmp_path):
    run(toy, optax.adam(1e-2), tmp_path)
    with pytest.raises(ValueError, match="fit.steps: 6 there, 8 now. The steps grew: with longer="):
        run(toy, optax.adam(1e-2), tmp_path, steps=8)
    assert run(toy, optax.adam(1e-2), tmp_path, steps=8, longer=True).history[-1]["step"] == 8
    with pytest.raises(ValueError, match="fit.steps: 8 there, 6 now$"):
        run(toy, optax.adam(1e-2), tmp_path)


@pytest.mark.parametrize(
    "optimizer",
    [optax.adam(optax.cosine_decay_schedule(1e-2, 6, alpha=0.1)), optax.polyak_sgd(1e-2)],
    ids=["adam", "polyak_sgd"],
)
def test_what_has_not_ended_goes_on(toy, tmp_path, optimizer):
    run(toy, optimizer, tmp_path)
    assert run(toy, optimizer, tmp_path, steps=8, longer=True).history[-1]["step"] == 8


class Half(nn.Module):
    dtype: type = jnp.float16

    @nn.compact
    def __call__(self, images):
        return nn.Dense(2, dtype=self.dtype)(images.reshape(len(images), -1)).astype(jnp.float32)


def of_size(weight):
    return jdml.objectives.pair(lambda x, labels, **_: weight * jnp.mean(x**2))


def half(toy, weight, out_dir=None, dtype=jnp.float16, **settings):
    given = {"steps": 1, "log_every": 1, "progress": False, "loss_scale": True, **settings}
    parts = of_size(weight), optax.sgd(1e-3 / weight), toy.data, toy.batches()
    return fit(Half(dtype), *parts, out_dir=out_dir, **given)


def test_a_scaled_loss_has_gradients_where_float16_has_none(toy):
    norms = [
        half(toy, 1e-9, loss_scale=scaled, dtype=dtype).history[-1]["grad_norm"]
        for scaled, dtype in ((False, jnp.float16), (True, jnp.float16), (False, jnp.float32))
    ]
    assert norms[0] == 0
    assert norms[1] == pytest.approx(norms[2], rel=0.02)


def test_steps_whose_scaled_gradients_overflow_are_left_out(toy, tmp_path):
    whole = half(toy, 1e3, steps=12)
    skipped = [record["skipped"] for record in whole.history]
    assert skipped[0] == 1
    assert skipped[-1] == 0
    assert float(whole.state.opt_state.scale) == 2.0 ** (15 - sum(skipped))
    assert np.isfinite(whole.history[-1]["loss"])
    half(toy, 1e3, tmp_path, steps=2)
    again = half(toy, 1e3, tmp_path, steps=12, longer=True)
    jax.tree.map(np.testing.assert_array_equal, again.state.opt_state, whole.state.opt_state)
    jax.tree.map(np.testing.assert_array_equal, again.state.params, whole.state.params)
    with pytest.raises(FloatingPointError, match="loss is inf at step 40, as in the 39 before"):
        half(toy, jnp.inf, steps=41)


def test_the_scale_is_doubled_after_a_while():
    optimizer = with_loss_scale(optax.sgd(1.0))
    state = optimizer.init(jnp.ones(2))._replace(steps=jnp.int32(1998))
    scales = []
    for done in (True, True, False, True):
        state = after_step(state, jnp.bool_(done))
        scales.append((float(state.scale), int(state.steps)))
    assert scales == [(2.0**15, 1999), (2.0**16, 0), (2.0**15, 0), (2.0**15, 1)]
