"""CCP in the training loop: each problem starts from the previous best, anchored, with new proxies; exact resume."""

import functools
import itertools
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jdml
from jdml import objectives, optim
from jdml.ccp import AlternatingProjections
from jdml.data import ImageFiles, conventional
from jdml.ops import ball
from jdml.training import AlternatingProblems, create_state, embed

K, POOL = 3, 5
OBJECTIVE = objectives.as_proxy_objective(jdml.contrastive_loss, 4, 2, proxies_per_class=K)
OPTIMIZER = optim.partition_by_role(
    {
        "model": optax.chain(optim.add_anchored_weights(0.1), optax.adam(1e-2)),
        "proxies": optax.adam(1e-2),
    },
    {"model": "model", "proxies": "proxies"},
)


def problems_of(toy, kind=AlternatingProblems, run_patience=50, **changes):
    machine = AlternatingProjections(patience=2, run_patience=run_patience)
    usual = {"train": toy.data, "pool_size": POOL, "monitor": "score", "machine": machine}
    return kind(model=toy.model, **(usual | changes))


def scripted(values):
    """Return an evaluation with given scores."""
    left = iter(values)
    return lambda embedder: {"score": next(left)}


def train(toy, scores, callback, **settings):
    evaluation = {"steps": 2 * len(scores), "function": scripted(scores), "every": 2}
    parts = {"objective": OBJECTIVE, "optimizer": OPTIMIZER, "callbacks": [callback]}
    return toy.fit(**(evaluation | parts | settings))


def anchor_of(state):
    return optax.tree.get(state.opt_state, "AnchoredWeightsState")


class Watched(AlternatingProblems):
    """Collects the states before and after each call."""

    @functools.cached_property
    def seen(self):
        return []

    def start(self, state):
        carried, after = super().start(state)
        self.seen.append((None, jax.tree.map(jnp.copy, after)))
        return carried, after

    def update(self, carried, step, state, metrics):
        before = jax.tree.map(jnp.copy, state)
        result = super().update(carried, step, state, metrics)
        self.seen.append((before, jax.tree.map(jnp.copy, result.state)))
        return result


def embeddings(toy, state, images=None):
    """Return a state's embeddings of images, by default of all samples."""
    images = toy.data.images if images is None else images
    x = embed(toy.model, state.params["model"], state.batch_stats, images)
    return np.asarray(ball(jnp.asarray(x)))


def chosen_rows(toy, proxies, x):
    """Return which samples the proxies of each class are; None if they are not different samples of it."""
    rows = []
    for of_class, chosen in enumerate(np.asarray(proxies)):
        own = np.flatnonzero(toy.data.labels == of_class)
        apart = np.abs(chosen[:, None] - x[own][None]).max(-1)
        rows.append(own[apart.argmin(1)].tolist())
        if apart.min(1).max() > 1e-5 or len(set(rows[-1])) < K:
            return None
    return rows


# The transition between two problems.

SCORES = [0.5, 0.4, 0.3, 0.1, 0.2, 0.1, 0.1, 0.9]
"""Improves, stale, stale → problem 1; improves, improves, stale, stale → problem 2."""


@pytest.fixture(scope="module")
def alternated(toy):
    """Return a run of three problems, whose pools have all samples and whose step is traced once, and its callback."""
    traced = chex.assert_max_traces(OBJECTIVE.loss, n=1)
    chex.clear_trace_counter()
    callback = problems_of(toy, Watched, anchor_first=False, pool_size=10)
    return train(toy, SCORES, callback, objective=OBJECTIVE._replace(loss=traced)), callback


def test_problem_starts_at_the_best_state_of_the_previous_one(toy, alternated):
    result, callback = alternated
    assert [record["problem"] for record in result.history] == [0, 0, 0, 1, 1, 1, 1, 2]
    first, *evaluations = callback.seen
    assert chosen_rows(toy, first[1].params["proxies"], embeddings(toy, first[1]))
    assert not anchor_of(evaluations[1][1]).anchored
    for best, end in ((0, 2), (4, 6)):
        at_best, after = evaluations[best][0], evaluations[end][1]
        chex.assert_trees_all_equal(after.params["model"], at_best.params["model"])
        chex.assert_trees_all_equal(after.batch_stats, at_best.batch_stats)
        assert anchor_of(after).anchored
        chex.assert_trees_all_equal(anchor_of(after).anchor["model"], at_best.params["model"])
        x = embeddings(toy, at_best)
        assert chosen_rows(toy, after.params["proxies"], x)
        assert not chosen_rows(toy, at_best.params["proxies"], x)
    for before, after in evaluations[:2] + evaluations[3:6]:
        chex.assert_trees_all_equal(before.params, after.params)


@pytest.mark.slow  # trains several problems
def test_problem_starts_at_the_last_state_with_restore_false(toy):
    """The run ends after the third stale evaluation."""
    callback = problems_of(toy, Watched, run_patience=3, restore=False)
    result = train(toy, [0.5, 0.4, 0.3, 0.2, 0.9], callback)
    assert (result.stop_reason, int(result.state.step)) == ("callback", 8)
    (at_best, _), (before, after) = callback.seen[1], callback.seen[3]
    chex.assert_trees_all_equal(after.params["model"], before.params["model"])
    chex.assert_trees_all_equal(after.batch_stats, before.batch_stats)
    chex.assert_trees_all_equal(anchor_of(after).anchor["model"], at_best.params["model"])
    assert chosen_rows(toy, after.params["proxies"], embeddings(toy, before))
    assert not chosen_rows(toy, after.params["proxies"], embeddings(toy, at_best))


def test_new_proxies_are_the_worst_covered_samples(toy, alternated):
    """The log has their covering radius, also relative to the distance between classes."""
    result, callback = alternated
    record = result.history[2]
    (at_best, _), (_, after) = callback.seen[1], callback.seen[3]
    x, old = embeddings(toy, at_best), np.asarray(ball(at_best.params["proxies"]))
    radii, means = [], []
    for of_class in range(4):
        samples = x[toy.data.labels == of_class]
        apart = np.linalg.norm(samples[:, None] - old[of_class][None], axis=-1).min(1)
        first = after.params["proxies"][of_class, 0]
        np.testing.assert_allclose(first, samples[apart.argmax()], atol=1e-5)
        radii.append(apart.max())
        means.append(samples.mean(0))
    apart = np.linalg.norm(np.array(means)[:, None] - np.array(means)[None], axis=-1)
    np.testing.assert_allclose(record["covering_radius"], np.mean(radii), rtol=1e-4)
    ratio = np.mean(radii) / (apart.sum() / 12)
    np.testing.assert_allclose(record["covering_ratio"], ratio, rtol=1e-4)


# The start of the first problem.


@pytest.fixture(scope="module")
def fresh(toy):
    """Return an untrained state and its embeddings of all samples."""
    state = create_state(toy.model, OBJECTIVE, OPTIMIZER, toy.data.images[:1], seed=0)
    return state, embeddings(toy, state)


def first_rows(toy, fresh, **changes):
    """Return which samples the first proxies are."""
    state, x = fresh
    return chosen_rows(toy, problems_of(toy, **changes).start(state)[1].params["proxies"], x)


def test_first_proxies_are_random_samples(toy, fresh):
    """They are not the samples farthest from each other, for any pool size."""
    by_seed = [first_rows(toy, fresh, seed=seed) for seed in range(6)]
    assert len({tuple(sorted(rows[0])) for rows in by_seed}) > 3
    assert first_rows(toy, fresh, pool_size=10) == by_seed[0]


@pytest.mark.parametrize("first", ["origin", "covering"])
def test_first_proxies_cover_samples_far_from_the_origin_or_random_ones(toy, fresh, first):
    """As in the released program, and in the paper: of any K of a class's ten samples."""
    cover = jax.vmap(lambda x, begin: jdml.ccp.greedy_k_center(x, begin, K), (None, 0))
    for of_class, rows in enumerate(first_rows(toy, fresh, first=first, pool_size=10)):
        own = np.flatnonzero(toy.data.labels == of_class)  # the pool is all of them
        x = fresh[1][own]
        begins = x[np.array(list(itertools.combinations(range(10), K)))]
        begins = np.zeros((1, 1, 2)) if first == "origin" else begins
        covers = own[np.asarray(jax.jit(cover)(x, begins))].tolist()
        assert rows in covers
        assert len({tuple(each) for each in covers}) < 100  # of 720
    few = [first_rows(toy, fresh, first=first, pool_size=size) for size in (1, K)]
    assert few[0] == few[1]  # a pool has at least as many samples as proxies


def test_first_problem_is_anchored_at_the_initial_state(toy, fresh):
    before, _ = fresh
    state = problems_of(toy).start(before)[1]
    assert anchor_of(state).anchored
    chex.assert_trees_all_equal(anchor_of(state).anchor["model"], before.params["model"])
    state = problems_of(toy, anchor_first=False, first="unchanged").start(before)[1]
    assert not anchor_of(state).anchored
    chex.assert_trees_all_equal(state.params, before.params)  # proxies are unchanged, too


def test_pools_have_undamaged_images_augmented_as_in_training(toy, noise_files):
    images = ImageFiles(noise_files, conventional(toy.data.images.shape[1]))
    files = SimpleNamespace(images=images, labels=toy.data.labels)
    whole = [5, 13, 37]  # of class 1
    for row in set(range(1, 40, 4)) - set(whole):
        noise_files[row].write_bytes(noise_files[row].read_bytes()[:40])
    state = create_state(toy.model, OBJECTIVE, OPTIMIZER, images[:1], seed=0)
    for augment in (True, False):
        callback = problems_of(toy, train=files, seed=3, augment=augment)
        proxies = np.asarray(callback.start(state)[1].params["proxies"][1])
        read = images.augmented(np.array(whole), seed=(3, 0)) if augment else images[whole]
        apart = np.abs(proxies[:, None] - embeddings(toy, state, read)[None]).max(-1)
        assert sorted(apart.argmin(1)) == [0, 1, 2]
        assert apart.min(1).max() < 1e-5
    assert callback.config["augment"] is False
    for row in range(3, 40, 4):
        noise_files[row].write_bytes(b"")
    with pytest.raises(ValueError, match="^class 3 "):
        problems_of(toy, train=files).start(state)


# Kills and refusals.


@pytest.mark.slow  # trains, is killed and resumed
def test_killed_run_resumes_exactly(toy, tmp_path):
    def by_step(embedder):
        return {"score": SCORES[int(embedder.state.step) // 2 - 1]}

    def run(name, die_at=None):
        callback = problems_of(toy, Watched)
        parts = {"folder": tmp_path / name, "sampler": toy.batches(die_at), "function": by_step}
        saved = {"monitor": "score", "checkpoint_every": 3}
        return train(toy, SCORES, callback, **parts, **saved), callback

    unbroken, _ = run("unbroken")
    with pytest.raises(toy.Killed):
        run("broken", die_at=7)
    resumed, callback = run("broken")
    assert callback.seen[0][0] is not None  # a resumed run does not select first proxies
    chex.assert_trees_all_equal(resumed.state, unbroken.state)
    chex.assert_trees_all_equal(resumed.best_params, unbroken.best_params)
    assert resumed.history == unbroken.history


def labelled(change):
    """Return the toy's images with changed labels."""
    return lambda toy: SimpleNamespace(images=toy.data.images, labels=change(toy.data.labels))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"pool_size": 0}, "pool_size"),
        ({"first": "farthest"}, "first"),
        ({"train": labelled(lambda labels: labels + (labels == 2))}, "class 2"),
        ({"train": labelled(lambda labels: labels * 0), "first": "unchanged"}, "class 1"),
        ({"optimizer": optax.adam(1e-3)}, "opt_state"),
    ],
)
def test_wrong_callback_is_refused_before_any_step(toy, changes, name):
    changes = {key: value(toy) if key == "train" else value for key, value in changes.items()}
    optimizer = changes.pop("optimizer", OPTIMIZER)
    with pytest.raises(ValueError, match=rf"^{name}\b"):
        train(toy, [0.5], problems_of(toy, **changes), optimizer=optimizer)
