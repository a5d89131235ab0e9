"""Proxies that begin on samples, heads that begin on principal directions."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from PIL import Image

import jdml
from jdml import data, objectives, training
from jdml.recipes import Recipe

RNG = np.random.default_rng(0)
TRAIN = data.Dataset("some", RNG.random((9, 4, 4, 1)).astype(np.float32), np.arange(9) % 2)
MODEL = jdml.models.SmallConvNet(3, (4,))


def begin(per_class: int, objective: object = None) -> training.TrainState:
    objective = objective or objectives.proxy(jdml.potential_field_loss, 2, 3, per_class)
    return training.create_state(MODEL, objective, optax.adam(1e-3), TRAIN.images, seed=1)


def test_proxies_begin_on_different_samples_of_their_class_as_training_embeds_them() -> None:
    state = begin(4)
    started = training.start_on_samples(state, MODEL, TRAIN, seed=3)
    again = training.start_on_samples(state, MODEL, TRAIN, seed=3)
    np.testing.assert_array_equal(started.params["proxies"], again.params["proxies"])
    proxies = np.asarray(started.params["proxies"])
    np.testing.assert_allclose(np.linalg.norm(proxies, axis=-1), 1, rtol=1e-5)
    assert jax.tree.all(
        jax.tree.map(jnp.array_equal, started.params["model"], state.params["model"])
    )

    rows = training.start._rows(np.random.default_rng(3), TRAIN.labels, 2, 4)
    assert all(len(set(of_class)) == 4 for of_class in rows.tolist())
    assert (TRAIN.labels[rows] == [[0], [1]]).all()
    variables = {"params": state.params["model"], "batch_stats": state.batch_stats}
    expected, _ = MODEL.apply(
        variables, TRAIN.images[rows.ravel()], train=True, mutable=["batch_stats"]
    )
    np.testing.assert_allclose(
        proxies.reshape(8, 3), jdml.sphere(jnp.asarray(expected)), rtol=1e-4, atol=1e-5
    )


def test_a_small_class_has_some_samples_twice_and_an_empty_one_is_told() -> None:
    proxies = training.start_on_samples(begin(7), MODEL, TRAIN, rows_at_a_time=5).params["proxies"]
    assert proxies.shape == (2, 7, 3)
    one = data.Dataset("one", TRAIN.images, np.zeros(9, int))
    with pytest.raises(ValueError, match="class 1 has no sample to begin on"):
        training.start_on_samples(begin(2), MODEL, one)
    with pytest.raises(ValueError, match="rows_at_a_time must be >= 1, got 0"):
        training.start_on_samples(begin(2), MODEL, TRAIN, rows_at_a_time=0)
    plain = begin(1, objectives.pair(jdml.triplet_loss))
    with pytest.raises(
        ValueError, match=r"the objective has no proxies: its parameters are \['model'\]"
    ):
        training.start_on_samples(plain, MODEL, TRAIN)


def test_a_damaged_file_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = [tmp_path / f"{i}.png" for i in range(4)]
    for i, file in enumerate(files):
        Image.fromarray(np.full((4, 4, 3), 60 * i, np.uint8)).save(file)
    files[1].write_bytes(b"no image")
    images = data.ImageFiles(files, data.conventional(4))
    photos = data.Dataset("photos", images, np.zeros(4, int))
    objective = objectives.proxy(jdml.potential_field_loss, 1, 3, 4)
    state = training.create_state(MODEL, objective, optax.adam(1e-3), images[:1], seed=1)
    proxies = training.start_on_samples(state, MODEL, photos).params["proxies"]
    whole = training.start_on_samples(state, MODEL, photos.select(np.array([0, 2, 3])))
    np.testing.assert_array_equal(proxies, whole.params["proxies"])
    assert "1.png" in caplog.text
    begun, without = (
        training.start_head(state, MODEL, part).params["model"]
        for part in (photos, photos.select(np.array([0, 2, 3])))
    )
    chex.assert_trees_all_close(begun, without, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"seed": -1}, ValueError, "seed must be an integer from 0 .*, got -1"),
        ({"seed": "a"}, TypeError, "seed must be an integer from 0 .*, got a str"),
        ({"state": {}}, TypeError, "state must be a TrainState, got a dict"),
        ({"model": None}, TypeError, "model must be"),
        ({"train": TRAIN.images}, TypeError, "train must be a data set with images and labels"),
        ({"preprocess": 3}, TypeError, "preprocess must be"),
    ],
)
def test_what_samples_cannot_be_taken_from(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    arguments = {"state": begin(2), "model": MODEL, "train": TRAIN, **change}
    with pytest.raises(error, match=message):
        training.start_on_samples(**arguments)


def with_head(model: Any, images: Any = TRAIN.images) -> training.TrainState:
    objective = objectives.pair(jdml.circle_loss)
    return training.create_state(model, objective, optax.adam(1e-3), images, seed=1)


def pooled(model: Any, state: training.TrainState, images: np.ndarray, width: int) -> np.ndarray:
    """What the head is given: the network's embeddings with the identity for a head."""
    identity = {"kernel": jnp.eye(width), "bias": jnp.zeros(width)}
    head = {**state.params["model"]["head"], "embedding": identity}
    params = {**state.params["model"], "head": head}
    variables = {"params": params, "batch_stats": state.batch_stats}
    return np.asarray(model.clone(dim=width).apply(variables, images), np.float64)


@pytest.mark.parametrize("pooling", ["average", "gem"])
def test_a_head_begins_on_the_principal_directions_of_its_features(pooling: str) -> None:
    """Of all projections to three dimensions none keeps more of the features' squares."""
    model = jdml.models.create("small", dim=3, pooling=pooling).clone(features=(4, 8))
    state = with_head(model)
    of_model = state.params["model"]
    fives = {
        **of_model["head"],
        "embedding": {**of_model["head"]["embedding"], "bias": 5 + jnp.zeros(3)},
    }
    state = state._replace(params={**state.params, "model": {**of_model, "head": fives}})
    started = training.start_head(state, model, TRAIN, seed=3)
    head = started.params["model"]["head"]
    features = pooled(model, state, TRAIN.images, 8)
    _, values, directions = np.linalg.svd(features, full_matrices=False)
    kept = np.linalg.norm(features @ np.asarray(head["embedding"]["kernel"]), axis=0)
    np.testing.assert_allclose(kept, values[:3], rtol=1e-4, atol=1e-5)
    along = np.abs(directions[:3] @ np.asarray(head["embedding"]["kernel"]))
    np.testing.assert_allclose(along, np.eye(3), atol=1e-2)
    assert not head["embedding"]["bias"].any()  # of fives
    others = {**state.params["model"], "head": {**head, "embedding": None}}
    mine = {**started.params["model"], "head": {**head, "embedding": None}}
    chex.assert_trees_all_equal(mine, others)
    assert started.opt_state is state.opt_state


def test_a_head_looks_at_some_images_and_at_all_where_there_are_fewer() -> None:
    model = jdml.models.create("small", dim=2).clone(features=(4,))
    state = with_head(model)
    rows = np.sort(np.random.default_rng(5).permutation(9)[:4])
    seen = training.start_head(state, model, TRAIN, seed=5, images=4).params["model"]["head"]
    alone = training.start_head(state, model, TRAIN.select(rows)).params["model"]["head"]
    chex.assert_trees_all_close(seen, alone, rtol=1e-5)


def test_a_head_begins_on_what_the_network_is_given_in_training() -> None:
    """Images as they are preprocessed; of one that gives no finite features the head is not made."""
    model = jdml.models.create("small", dim=2).clone(features=(4,))
    state = with_head(model)

    def cut_off(images: Any) -> Any:
        return jnp.minimum(images, 0.3)

    small = dataclasses.replace(TRAIN, images=np.minimum(TRAIN.images, 0.3))
    begun, same, other = (
        training.start_head(state, model, train, preprocess=preprocess).params
        for train, preprocess in (
            (TRAIN, cut_off),
            (small, training.standard),
            (TRAIN, training.standard),
        )
    )
    chex.assert_trees_all_close(begun, same, rtol=1e-5)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(begun, other, rtol=1e-3)
    broken = dataclasses.replace(TRAIN, images=TRAIN.images.copy())
    broken.images[4] = np.nan
    with pytest.raises(ValueError, match="not of 1 of 9 images, such as 4 of train"):
        training.start_head(state, model, broken)


def test_a_recipe_s_head_begins_before_its_proxies_and_once(tmp_path: Path) -> None:
    recipe = Recipe(loss="proxy_anchor", network="small", dim=4, batch=4, rate=1e-30, steps=1)
    recipe = dataclasses.replace(recipe, head="principal", start="samples")
    begun = training.train(recipe, TRAIN, out_dir=tmp_path, seed=2, progress=False)
    model = jdml.models.create("small", dim=4)
    objective = objectives.proxy(jdml.proxy_anchor_loss, 2, 4)
    state = training.create_state(model, objective, optax.adam(1.0), TRAIN.images, seed=2)
    expected = training.start_head(state, model, TRAIN, seed=2)
    expected = training.start_on_samples(expected, model, TRAIN, seed=2)
    chex.assert_trees_all_close(begun.state.params, expected.params, rtol=1e-5, atol=1e-6)
    before = begun.state.params
    again = training.train(
        recipe, TRAIN, steps=2, out_dir=tmp_path, seed=2, longer=True, progress=False
    )
    chex.assert_trees_all_close(again.state.params, before, rtol=1e-5, atol=1e-6)


def test_low_rank_changes_have_a_head_that_begins_too() -> None:
    vit = jdml.models.create("vit_s16", dim=4).clone(width=8, depth=1, heads=2, patch=2, grid=2)
    model = training.WithLora(vit, 2, "block0.*/kernel")
    images = np.repeat(TRAIN.images, 3, axis=-1)
    train = data.Dataset("some", images, TRAIN.labels)
    state = with_head(model, images)
    started = training.start_head(state, model, train).params["model"]
    kernel = np.asarray(started["head"]["embedding"]["kernel"], np.float64)
    np.testing.assert_allclose(kernel.T @ kernel, np.eye(4), atol=1e-5)
    chex.assert_trees_all_equal(started["lora"], state.params["model"]["lora"])


class Convolved(nn.Module):
    """A network whose head is no dense layer."""

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
        return nn.Conv(3, (4, 4), padding="VALID", name="head")(images)[:, 0, 0]


class Headless(nn.Module):
    """A network without a head by that name."""

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
        return nn.Dense(3, name="last")(images.reshape(len(images), -1))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            Convolved(),
            r"one dense layer called head with a kernel \[C, D\], the network has head/kernel",
        ),
        (Headless(), "the network has none among last"),
        (
            jdml.models.SmallConvNet(9, (4,)),
            "has no more dimensions than features, got 9 of 4",
        ),
    ],
)
def test_heads_that_cannot_begin_on_principal_directions(model: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        training.start_head(with_head(model), model, TRAIN)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"images": 0}, ValueError, "images must be >= 1, got 0"),
        ({"seed": -1}, ValueError, "seed must be an integer from 0 .*, got -1"),
        ({"state": {}}, TypeError, "state must be a TrainState, got a dict"),
        ({"train": TRAIN.images}, TypeError, "train must be a data set with images and labels"),
        ({"preprocess": 3}, TypeError, "preprocess must be"),
    ],
)
def test_what_a_head_cannot_begin_with(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    arguments = {"state": begin(2), "model": MODEL, "train": TRAIN, **change}
    with pytest.raises(error, match=message):
        training.start_head(**arguments)


def with_step(state: training.TrainState, *_: object, preprocess: object) -> training.TrainState:
    return state._replace(step=state.step + 5)


def with_fewer_proxies(
    state: training.TrainState, *_: object, preprocess: object
) -> training.TrainState:
    return state._replace(params={**state.params, "proxies": state.params["proxies"][:, :1]})


def without_proxies(
    state: training.TrainState, *_: object, preprocess: object
) -> training.TrainState:
    return state._replace(params={"model": state.params["model"]})


def nothing(*_: object, preprocess: object) -> None:
    return None


@pytest.mark.parametrize(
    ("start", "error", "message"),
    [
        ("samples", TypeError, "start must be a function .* got a str"),
        (begin, TypeError, "got begin, which takes no preprocess"),
        (nothing, TypeError, "start must return a TrainState, got a NoneType"),
        (with_step, ValueError, "start must leave step at 0, got 5"),
        (
            with_fewer_proxies,
            ValueError,
            r"\['proxies'\] was float32\[2, 2, 3\], got .*\[2, 1, 3\]",
        ),
        (without_proxies, ValueError, r"\['proxies'\] was float32\[2, 2, 3\], got none"),
    ],
)
def test_what_a_run_cannot_begin_with(start: Any, error: type[Exception], message: str) -> None:
    objective = objectives.proxy(jdml.potential_field_loss, 2, 3, 2)
    parts = (MODEL, objective, optax.sgd(0.1), TRAIN, data.RandomBatchSampler(9, 4, seed=0))
    with pytest.raises(error, match=message):
        training.fit(*parts, steps=1, start=start, progress=False)


class Begun:
    """What was begun, where a function's fingerprint does not look."""

    seeds: list[int] = []


def begun(*args: object, seed: int, **settings: object) -> training.TrainState:
    Begun.seeds.append(seed)
    return training.start_on_samples(*args, seed=seed, **settings)


def test_a_run_that_begins_on_samples_goes_on_where_it_was(tmp_path: Path) -> None:
    objective = objectives.proxy(jdml.potential_field_loss, 2, 3, 2, alpha=1.0)

    def run(steps: int, start: object, out_dir: Path | None) -> training.TrainState:
        sampler = data.RandomBatchSampler(len(TRAIN.labels), 4, seed=0)
        parts = (MODEL, objective, optax.sgd(0.0), TRAIN, sampler)
        settings = {"steps": steps, "start": start, "out_dir": out_dir, "checkpoint_every": 1}
        return training.fit(*parts, **settings, longer=True, progress=False).state

    start = functools.partial(begun, seed=3)
    fresh = training.create_state(MODEL, objective, optax.sgd(0.0), TRAIN.images, seed=0)
    expected = start(fresh, MODEL, TRAIN).params["proxies"]
    for steps in (1, 2):  # of these the second goes on
        state = run(steps, start, tmp_path)
        np.testing.assert_array_equal(state.params["proxies"], expected)
    assert Begun.seeds == [3, 3]  # once here, once in the run that was begun
    for other in (functools.partial(begun, seed=4), None):
        with pytest.raises(ValueError, match="start"):
            run(3, other, tmp_path)
    assert not np.array_equal(run(1, None, None).params["proxies"], expected)
