"""CCP in the loop: problems begin where the best one ended, anchored, with new proxies; nothing is lost on a kill."""

import dataclasses
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
from jdml.training import AlternatingProblems, create_state, embed, fit
from jdml.training.models import as_model

pytestmark = pytest.mark.slow

K, POOL = 3, 5
OBJECTIVE = objectives.as_proxy_objective(jdml.contrastive_loss, 4, 2, proxies_per_class=K)
OPTIMIZER = optim.partition_by_role(
    {
        "model": optax.chain(optim.add_anchored_weights(0.1), optax.adam(1e-2)),
        "proxies": optax.adam(1e-2),
    },
    {"model": "model", "proxies": "proxies"},
)


def hook_of(toy, **changes):
    machine = AlternatingProjections(patience=2, run_patience=50)
    given = {"train": toy.data, "pool_size": POOL, "monitor": "score", "machine": machine}
    return AlternatingProblems(model=toy.model, **(given | changes))


def scripted(values):
    """An evaluation with given scores."""
    left = iter(values)
    return lambda embedder: {"score": next(left)}


def train(toy, scores, hook, steps=None, **settings):
    parts = {
        "model": toy.model,
        "objective": OBJECTIVE,
        "optimizer": OPTIMIZER,
        "train": toy.data,
        "sampler": toy.batches(),
        "steps": steps or 2 * len(scores),
        "evaluate": scripted(scores),
        "evaluate_every": 2,
        "progress": False,
        "hook": hook,
    }
    return fit(**(parts | settings))


def anchor_of(state):
    anchors = [
        part
        for part in jax.tree.leaves(
            state.opt_state, is_leaf=lambda p: isinstance(p, optim.AnchoredWeightsState)
        )
        if isinstance(part, optim.AnchoredWeightsState)
    ]
    assert len(anchors) == 1
    return anchors[0]


@dataclasses.dataclass
class Watched:
    """A hook that keeps the states that pass through another one."""

    inner: AlternatingProblems
    seen: list

    @property
    def config(self):
        return self.inner.config

    def template(self, state):
        return self.inner.template(state)

    def start(self, state):
        carried, after = self.inner.start(state)
        self.seen.append((None, jax.tree.map(jnp.copy, after)))
        return carried, after

    def after_evaluation(self, carried, state, metrics):
        before = jax.tree.map(jnp.copy, state)
        result = self.inner.after_evaluation(carried, state, metrics)
        self.seen.append((before, jax.tree.map(jnp.copy, result.state)))
        return result


def embeddings(toy, state):
    x = embed(toy.model, state.params["model"], state.batch_stats, toy.data.images)
    return np.asarray(ball(jnp.asarray(x)))


def are_samples(toy, proxies, x):
    """Whether each class's proxies are different embeddings of its samples."""
    for of_class, chosen in enumerate(np.asarray(proxies)):
        apart = np.abs(chosen[:, None] - x[toy.data.labels == of_class][None]).max(-1)
        if apart.min(1).max() > 1e-5 or len(set(apart.argmin(1))) < len(chosen):
            return False
    return True


def test_a_problem_begins_at_the_best_of_the_one_before(toy):
    #         improves, stale, stale → problem 1; improves, improves, stale, stale → problem 2
    scores = [0.5, 0.4, 0.3, 0.1, 0.2, 0.1, 0.1, 0.9]
    hook = Watched(hook_of(toy, anchor_first=False), [])
    result = train(toy, scores, hook)
    assert [record["problem"] for record in result.history] == [0, 0, 0, 1, 1, 1, 1, 2]
    first, *evaluations = hook.seen
    assert are_samples(toy, first[1].params["proxies"], embeddings(toy, first[1]))
    assert not anchor_of(evaluations[1][1]).anchored
    for best, end in ((0, 2), (4, 6)):
        at_best, after = evaluations[best][0], evaluations[end][1]
        chex.assert_trees_all_equal(after.params["model"], at_best.params["model"])
        chex.assert_trees_all_equal(after.batch_stats, at_best.batch_stats)
        assert anchor_of(after).anchored
        chex.assert_trees_all_equal(anchor_of(after).anchor["model"], at_best.params["model"])
        x = embeddings(toy, at_best)
        assert are_samples(toy, after.params["proxies"], x)
        assert not are_samples(toy, at_best.params["proxies"], x)
    for before, after in evaluations[:2] + evaluations[3:6]:
        chex.assert_trees_all_equal(before.params, after.params)


def test_going_on_from_where_it_is(toy):
    hook = Watched(hook_of(toy, restore=False), [])
    train(toy, [0.5, 0.4, 0.3, 0.2], hook)
    (at_best, _), (before, after) = hook.seen[1], hook.seen[3]
    chex.assert_trees_all_equal(after.params["model"], before.params["model"])
    chex.assert_trees_all_equal(after.batch_stats, before.batch_stats)
    chex.assert_trees_all_equal(anchor_of(after).anchor["model"], at_best.params["model"])
    assert are_samples(toy, after.params["proxies"], embeddings(toy, before))
    assert not are_samples(toy, after.params["proxies"], embeddings(toy, at_best))


def test_the_new_proxies_are_those_that_were_covered_worst(toy):
    hook = Watched(hook_of(toy, pool_size=10), [])
    train(toy, [0.5, 0.4, 0.3], hook)
    (at_best, _), (_, after) = hook.seen[1], hook.seen[3]
    x, old = embeddings(toy, at_best), np.asarray(ball(at_best.params["proxies"]))
    for of_class in range(4):
        samples = x[toy.data.labels == of_class]  # ten samples: the pool is all of them
        apart = np.linalg.norm(samples[:, None] - old[of_class][None], axis=-1).min(1)
        np.testing.assert_allclose(
            after.params["proxies"][of_class, 0], samples[apart.argmax()], atol=1e-5
        )


def started(toy, **changes):
    """The state that the first problem begins with, and the embeddings of all samples before it."""
    state = create_state(toy.model, OBJECTIVE, OPTIMIZER, toy.data.images[:1], seed=0)
    x = embeddings(toy, state)
    return hook_of(toy, **changes).start(state)[1], x


def chosen_rows(toy, proxies, x):
    """Which samples the proxies of each class are."""
    rows = []
    for of_class, chosen in enumerate(np.asarray(proxies)):
        own = np.flatnonzero(toy.data.labels == of_class)
        apart = np.abs(chosen[:, None] - x[own][None]).max(-1)
        assert apart.min(1).max() < 1e-5
        rows.append(own[apart.argmin(1)].tolist())
    return rows


def test_the_first_proxies_are_random_samples(toy):
    """Not those that are farthest from each other, whatever the pool's size."""
    seeds = [started(toy, seed=seed) for seed in range(6)]
    rows_by_seed = [chosen_rows(toy, state.params["proxies"], x) for state, x in seeds]
    assert len({tuple(sorted(rows[0])) for rows in rows_by_seed}) > 3
    assert all(len(set(rows)) == K for seed in rows_by_seed for rows in seed)
    with_larger, x = started(toy, pool_size=10)
    assert chosen_rows(toy, with_larger.params["proxies"], x) == rows_by_seed[0]


def test_the_released_start_covers_what_is_far_from_the_origin(toy):
    state, x = started(toy, first="origin", pool_size=10)
    for of_class, rows in enumerate(chosen_rows(toy, state.params["proxies"], x)):
        own = np.flatnonzero(toy.data.labels == of_class)  # ten samples: the pool is all of them
        norms = np.linalg.norm(x[own], axis=1)
        assert norms[own.tolist().index(rows[0])] >= norms.max() - 1e-6
        picked = jdml.ccp.greedy_k_center(jnp.asarray(x[own]), jnp.zeros((1, 2)), K)
        assert rows == own[picked].tolist()


def test_the_algorithm_s_start_covers_what_random_samples_leave(toy):
    state, x = started(toy, first="covering", pool_size=10)
    rows = chosen_rows(toy, state.params["proxies"], x)
    hook = hook_of(toy, first="covering", pool_size=10)
    random, there = hook._rows(hook.train.labels, 4, K, (0, 1))
    assert there.all()
    for of_class in range(4):
        own = np.sort(hook._rows(hook.train.labels, 4, 10, (0,))[0][of_class])
        picked = jdml.ccp.greedy_k_center(jnp.asarray(x[own]), jnp.asarray(x[random[of_class]]), K)
        assert rows[of_class] == own[picked].tolist()


def test_proxies_may_be_those_of_the_state(toy):
    state = create_state(toy.model, OBJECTIVE, OPTIMIZER, toy.data.images[:1], seed=0)
    after = started(toy, first="kept")[0]
    chex.assert_trees_all_equal(after.params, state.params)


def test_the_first_problem_may_be_anchored_where_training_begins(toy):
    state, _ = started(toy)
    assert anchor_of(state).anchored
    chex.assert_trees_all_equal(anchor_of(state).anchor["model"], state.params["model"])
    assert not anchor_of(started(toy, anchor_first=False)[0]).anchored


@pytest.mark.parametrize(("pool", "size"), [(1, 3), (2, 6), (3, 3), (5, 5)])
def test_a_pool_smaller_than_the_proxies_is_that_many_times_as_large(toy, pool, size):
    state = create_state(toy.model, OBJECTIVE, OPTIMIZER, toy.data.images[:1], seed=0)
    points, there = hook_of(toy, pool_size=pool)._pool(state, (1,))
    assert points.shape == (4, size, 2)
    assert there.all()
    train(toy, [0.5, 0.4, 0.3], hook_of(toy, pool_size=pool))  # as far as a second problem


def test_the_log_tells_the_radius_in_units_of_the_distance_between_classes(toy):
    hook = Watched(hook_of(toy, pool_size=10), [])
    record = train(toy, [0.5, 0.4, 0.3, 0.2], hook).history[2]
    at_best = hook.seen[1][0]
    x, old = embeddings(toy, at_best), np.asarray(ball(at_best.params["proxies"]))
    radii, means = [], []
    for of_class in range(4):
        samples = x[toy.data.labels == of_class]
        radii.append(np.linalg.norm(samples[:, None] - old[of_class][None], axis=-1).min(1).max())
        means.append(samples.mean(0))
    apart = np.linalg.norm(np.array(means)[:, None] - np.array(means)[None], axis=-1)
    np.testing.assert_allclose(record["covering_radius"], np.mean(radii), rtol=1e-4)
    np.testing.assert_allclose(
        record["covering_ratio"], np.mean(radii) / (apart.sum() / 12), rtol=1e-4
    )


def test_the_run_ends(toy):
    machine = AlternatingProjections(patience=2, run_patience=3)
    result = train(toy, [0.5, 0.4, 0.3, 0.2, 0.9], hook_of(toy, machine=machine), monitor="score")
    assert result.stopped == "hook"
    assert int(result.state.step) == 8
    assert result.best is not None
    assert result.best.value == 0.5


def test_after_the_last_step_nothing_changes(toy):
    result = train(toy, [0.5, 0.4, 0.3], hook_of(toy, anchor_first=False))
    assert not anchor_of(result.state).anchored
    chex.assert_trees_all_equal(result.state.params, result.best_params)
    assert not are_samples(toy, result.state.params["proxies"], embeddings(toy, result.state))


def test_nothing_is_compiled_again(toy):
    traced = chex.assert_max_traces(OBJECTIVE.loss, n=1)
    chex.clear_trace_counter()
    objective = OBJECTIVE._replace(loss=traced)
    train(toy, [0.5, 0.4, 0.3, 0.1, 0.1, 0.1, 0.1], hook_of(toy), objective=objective)


class Killed(BaseException):
    """Stands for a signal."""


@pytest.mark.parametrize("die_at", [4, 7, 9, 13])
def test_a_killed_run_ends_with_the_same_bits(toy, identical, tmp_path, die_at):
    scores = [0.5, 0.4, 0.3, 0.1, 0.2, 0.1, 0.1, 0.9]

    def by_step(embedder):
        return {"score": scores[int(embedder.state.step) // 2 - 1]}

    class Sampler(toy.batches):
        def __next__(self):
            if self.i + 1 == die_at:
                raise Killed
            return super().__next__()

    settings = {"evaluate": by_step, "monitor": "score", "checkpoint_every": 3}
    whole = train(toy, scores, hook_of(toy), out_dir=tmp_path / "a", **settings)
    with pytest.raises(Killed):
        train(toy, scores, hook_of(toy), out_dir=tmp_path / "b", sampler=Sampler(), **settings)
    resumed = train(toy, scores, hook_of(toy), out_dir=tmp_path / "b", **settings)
    assert identical(resumed.state, whole.state)
    assert identical(resumed.best_params, whole.best_params)
    assert resumed.history == whole.history


def test_a_run_that_goes_on_chooses_no_first_proxies(toy, tmp_path, monkeypatch):
    train(toy, [0.5, 0.4], hook_of(toy), out_dir=tmp_path)
    monkeypatch.setattr(AlternatingProblems, "start", None)
    train(toy, [0.5, 0.4], hook_of(toy), out_dir=tmp_path)


def test_a_class_smaller_than_the_pool_gives_all_it_has(toy):
    labels = np.array([0] * 2 + [1] * 14 + [2] * 12 + [3] * 12, np.int32)
    data = SimpleNamespace(images=toy.data.images, labels=labels)
    hook = dataclasses.replace(hook_of(toy), train=data)
    state = create_state(toy.model, OBJECTIVE, OPTIMIZER, toy.data.images[:1], seed=0)
    _, after = hook.start(state)
    x = embeddings(toy, state)
    apart = np.abs(np.asarray(after.params["proxies"][0])[:, None] - x[:2][None]).max(-1)
    assert apart.min(1).max() < 1e-5
    assert set(apart.argmin(1)) == {0, 1}


def test_image_files_are_augmented_as_in_training(toy, tmp_path):
    from PIL import Image

    noise = np.random.default_rng(0)
    shape = toy.data.images.shape[1:]
    for i in range(40):
        pixels = noise.integers(0, 256, (30, 40, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    files = [tmp_path / f"{i}.png" for i in range(40)]
    images = ImageFiles(files, conventional(shape[0]))
    hook = hook_of(toy, train=SimpleNamespace(images=images, labels=toy.data.labels), seed=3)
    seen = hook._images(np.array([4, 2]), (1,))[:]
    np.testing.assert_array_equal(seen, images.augmented(np.array([4, 2]), seed=(3, 1)))
    np.testing.assert_array_equal(seen[1:], hook._images(np.array([2]), (1,))[:])
    assert (seen != images[[4, 2]]).any()
    assert (seen != hook._images(np.array([4, 2]), (2,))[:]).any()
    plain = dataclasses.replace(hook, augment=False)
    np.testing.assert_array_equal(plain._images(np.array([4, 2]), (1,))[:], images[[4, 2]])
    assert plain.config == {**hook.config, "augment": False}


def test_damaged_images_are_not_chosen(toy, tmp_path):
    from PIL import Image

    noise, shape = np.random.default_rng(0), toy.data.images.shape[1:]
    files = [tmp_path / f"{i}.png" for i in range(40)]
    for file in files:
        Image.fromarray(noise.integers(0, 256, (30, 40, 3), np.uint8)).save(file)
    labels = np.arange(40) % 4
    images = ImageFiles(files, conventional(shape[0]))
    whole = hook_of(toy, train=SimpleNamespace(images=images, labels=labels), pool_size=12)
    state = create_state(toy.model, OBJECTIVE, OPTIMIZER, images[:1], seed=0)
    every, there = whole._pool(state, (1,))
    assert there.sum() == 40
    for bad in (2, 5, 9):
        files[bad].write_bytes(files[bad].read_bytes()[:40])
    hook = hook_of(toy, train=SimpleNamespace(images=images, labels=labels), pool_size=12)
    pool, there = hook._pool(state, (1,))
    assert there.sum(1).tolist() == [10, 8, 9, 10]
    np.testing.assert_array_equal(pool[0], every[0])
    again, _ = hook_of(toy, train=hook.train, pool_size=12)._pool(state, (1,))
    np.testing.assert_array_equal(pool, again)
    for bad in range(3, 40, 4):
        files[bad].write_bytes(b"")
    hook = hook_of(toy, train=hook.train, pool_size=12)
    with pytest.raises(ValueError, match="class 3 has no whole image to choose from"):
        hook._pool(state, (1,))


def test_pools_are_of_whatever_the_network_takes(toy):
    rows = np.arange(24, dtype=np.int32).reshape(12, 2)
    for images in ({"a": rows, "b": jnp.asarray(rows)}, rows):
        hook = hook_of(toy, train=SimpleNamespace(images=images, labels=np.arange(12) % 4))
        for leaf in jax.tree.leaves(hook._images(np.array([5, 1]), (1,))):
            np.testing.assert_array_equal(leaf, rows[[5, 1]])
        model = as_model((lambda key, x: {}, lambda params, x: 1.0 * sum(jax.tree.leaves(x))))
        hook = dataclasses.replace(hook, model=model, pool_size=3, normalize=None)
        state = SimpleNamespace(
            params={"proxies": jnp.zeros((4, 2, 2)), "model": {}}, batch_stats={}
        )
        pool, there = hook._pool(state, (1,))
        assert there.all()
        factor = len(jax.tree.leaves(images))
        assert set(pool[2, :, 0].tolist()) == {factor * x for x in (4.0, 12.0, 20.0)}


def test_refuses_before_any_step(toy):
    def refuses(message, optimizer=OPTIMIZER, objective=OBJECTIVE, **changes):
        with pytest.raises((ValueError, TypeError), match=message):
            train(toy, [0.5], hook_of(toy, **changes), optimizer=optimizer, objective=objective)

    refuses("pool_size must be >= 1, got 0", pool_size=0)
    refuses("pool_size must be", pool_size=2.5)
    refuses("restore must be True or False, got 'no'", restore="no")
    refuses("anchor_first must be True or False, got 'no'", anchor_first="no")
    refuses("first must be one of random, covering, origin, kept, got 'farthest'", first="farthest")
    refuses("monitor must be the name of an evaluation metric, got None", monitor=None)
    refuses("opt_state holds no anchor", optimizer=optax.adam(1e-3))
    refuses("seed must be an integer from 0 to", seed=-1)
    refuses("machine must be AlternatingProjections, got a NoneType", machine=None)
    refuses("normalize must be a function or None, got 'ball'", normalize="ball")
    refuses("the objective has no proxies", objective=objectives.pair(jdml.contrastive_loss))
    hidden = SimpleNamespace(images=toy.data.images, labels=np.full(40, -1))
    refuses("class 0 has no sample", train=hidden)
    gap = SimpleNamespace(
        images=toy.data.images, labels=np.where(toy.data.labels == 2, 3, toy.data.labels)
    )
    refuses("class 2 has no sample", train=gap)
    refuses("monitor 'recall' is not among the metrics", monitor="recall")
    with pytest.raises(ValueError, match="hook acts after evaluations"):
        train(toy, [0.5], hook_of(toy), evaluate=None)
