"""Initialization of proxies from samples and of heads from principal components."""

import dataclasses
import functools

import chex
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jdml
from jdml import data, objectives, training
from jdml.recipes import Recipe

RNG = np.random.default_rng(0)
TRAIN = data.Dataset("some", RNG.random((9, 4, 4, 1)).astype(np.float32), np.arange(9) % 2)
MODEL = jdml.models.SmallConvNet(3, (4,))


def begin(per_class):
    objective = objectives.proxy(jdml.potential_field_loss, 2, 3, per_class)
    return training.create_state(MODEL, objective, optax.adam(1e-3), TRAIN.images, seed=1)


def test_proxies_start_at_embedded_samples_of_their_class():
    state, train = begin(4), TRAIN.select(np.arange(8))  # all 4 samples of each class
    started = training.init_proxies_from_samples(state, MODEL, train, seed=3)
    again = training.init_proxies_from_samples(state, MODEL, train, seed=3)
    np.testing.assert_array_equal(started.params["proxies"], again.params["proxies"])
    chex.assert_trees_all_equal(started.params["model"], state.params["model"])
    variables = {"params": state.params["model"], "batch_stats": state.batch_stats}
    embedded, _ = MODEL.apply(variables, train.images, train=True, mutable=["batch_stats"])
    for label, proxies in enumerate(started.params["proxies"]):
        expected = np.asarray(jdml.sphere(embedded)[label::2])
        gaps = np.linalg.norm(np.asarray(proxies)[:, None] - expected, axis=-1)
        assert sorted(gaps.argmin(1)) == [0, 1, 2, 3]
        np.testing.assert_allclose(gaps.min(1), 0, atol=1e-5)
    of_more = training.init_proxies_from_samples(begin(7), MODEL, TRAIN)  # samples are repeated
    assert of_more.params["proxies"].shape == (2, 7, 3)


def test_damaged_file_is_skipped(noise_files, caplog):
    noise_files[1].write_bytes(b"no image")
    images = data.ImageFiles(noise_files[:4], data.conventional(4))
    photos = data.Dataset("photos", images, np.zeros(4, int))
    objective = objectives.proxy(jdml.potential_field_loss, 1, 3, 4)
    state = training.create_state(MODEL, objective, optax.adam(1e-3), images[:1], seed=1)
    proxies = training.init_proxies_from_samples(state, MODEL, photos).params["proxies"]
    whole = training.init_proxies_from_samples(state, MODEL, photos.select(np.array([0, 2, 3])))
    np.testing.assert_array_equal(proxies, whole.params["proxies"])
    assert "1.png" in caplog.text


def pooled(model, state, images, width):
    """Return the head's input: the network's embeddings with an identity head."""
    identity = {"kernel": jnp.eye(width), "bias": jnp.zeros(width)}
    head = {**state.params["model"]["head"], "embedding": identity}
    params = {**state.params["model"], "head": head}
    variables = {"params": params, "batch_stats": state.batch_stats}
    return np.asarray(model.clone(dim=width).apply(variables, images), np.float64)


def test_head_starts_at_the_principal_components_of_its_features():
    """No other projection to three dimensions keeps more of the features' squared norm."""
    model = jdml.models.create("small", dim=3, pooling="gem").clone(features=(4, 8))
    parts = model, objectives.pair(jdml.circle_loss), optax.adam(1e-3)
    state = training.create_state(*parts, TRAIN.images, seed=1)
    state.params["model"]["head"]["embedding"]["bias"] += 5
    started = training.init_head_from_pca(state, model, TRAIN, seed=3)
    head = started.params["model"]["head"]
    features = pooled(model, state, TRAIN.images, 8)
    _, values, directions = np.linalg.svd(features, full_matrices=False)
    kept = np.linalg.norm(features @ np.asarray(head["embedding"]["kernel"]), axis=0)
    np.testing.assert_allclose(kept, values[:3], rtol=1e-4, atol=1e-5)
    along = np.abs(directions[:3] @ np.asarray(head["embedding"]["kernel"]))
    np.testing.assert_allclose(along, np.eye(3), atol=1e-2)
    assert not head["embedding"]["bias"].any()  # was 5
    others = {**state.params["model"], "head": {**head, "embedding": None}}
    mine = {**started.params["model"], "head": {**head, "embedding": None}}
    chex.assert_trees_all_equal(mine, others)
    assert started.opt_state is state.opt_state


BROKEN = dataclasses.replace(TRAIN, images=np.full_like(TRAIN.images, np.nan))
ZEROS = dataclasses.replace(TRAIN, labels=np.zeros(9, int))
PROXIES, HEAD = training.init_proxies_from_samples, training.init_head_from_pca


@pytest.mark.parametrize(
    ("function", "change", "name"),
    [
        (PROXIES, {"seed": -1}, "seed"),
        (PROXIES, {"train": ZEROS}, "class 1"),
        (HEAD, {"seed": -1}, "seed"),
        (PROXIES, {"train": TRAIN.images}, "train must"),
        (HEAD, {"train": TRAIN.images}, "train must"),
        (PROXIES, {"objective": objectives.pair(jdml.circle_loss)}, "no proxies"),
        (HEAD, {"train": BROKEN}, "train"),
        (HEAD, {"model": jdml.models.SmallConvNet(9, (4,))}, "4, 9"),
    ],
)
def test_what_cannot_be_initialized_is_refused(function, change, name):
    change = {"model": MODEL, "train": TRAIN, **change}
    objective = change.pop("objective", objectives.proxy(jdml.potential_field_loss, 2, 3, 2))
    parts = change["model"], objective, optax.adam(1e-3), TRAIN.images
    with pytest.raises((TypeError, ValueError), match=rf"\b{name}\b"):
        function(training.create_state(*parts, seed=1), **change)


def test_run_that_starts_on_samples_is_resumed(toy, tmp_path):
    """Only with the same samples; tests/training/test_recipe_runs.py has the state that it starts at."""
    objective = objectives.proxy(jdml.potential_field_loss, 2, 3, 2)
    parts = {"model": MODEL, "objective": objective, "train": TRAIN}

    def run(steps, start):
        sampler = data.RandomBatchSampler(9, 4)
        saved = {"folder": tmp_path, "allow_more_steps": True}
        return toy.fit(steps=steps, state=start, sampler=sampler, **parts, **saved).state.step

    on_samples = functools.partial(PROXIES, model=MODEL, train=TRAIN)
    assert [run(steps, functools.partial(on_samples, seed=3)) for steps in (1, 2)] == [1, 2]
    for other in (functools.partial(on_samples, seed=4), None):
        with pytest.raises(ValueError, match=r"\bstart\b"):
            run(3, other)


def test_recipe_with_a_wide_head_is_refused_before_its_folder_is_made(tmp_path):
    """A head from principal axes has no more dimensions than the features."""
    settings = {"name": "small", "dim": 512, "head_init": "principal"}
    wide = Recipe().replace(network=settings, batch={"steps": 1})
    with pytest.raises(ValueError, match=r"^head_init\b.*\bdim 512\b"):
        training.train(wide, TRAIN, run=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
