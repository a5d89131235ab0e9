"""Batches without positive or negative pairs: refused, stopped, and never the default."""

import re
from dataclasses import replace

import jax
import numpy as np
import optax
import pytest

import jdml
from jdml import data, objectives, training
from jdml.cli.train import Train
from jdml.cli.training_run import TrainingRun
from jdml.recipes import Recipe
from jdml.recipes.sampler import (
    check_positives,
    make_sampler,
    positive_pairs,
    with_batch_that_fits,
    with_usual_batch,
)

CLASSES = np.repeat(np.arange(40), 5)
UNEQUAL = np.repeat(np.arange(6), [1, 1, 2, 5, 30, 60])


def pairs(rows, labels):
    """Count the pairs of one class in a batch."""
    y = [labels[row] for row in rows if row >= 0]
    return sum(y[i] == y[j] for i in range(len(y)) for j in range(i))


UNLIKE = np.repeat(np.arange(12), [1, 2, 3, 5, 8, 13, 2, 3, 5, 8, 2, 3])


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        ({"batch": 16}, CLASSES),
        ({"batch": (4, 5)}, CLASSES),
        ({"batch": (3, 4), "class_power": 0.5}, UNLIKE),
    ],
)
def test_expected_number_of_pairs_is_the_mean_over_batches(settings, labels):
    recipe = Recipe(**settings)
    sampler = make_sampler(recipe, labels)
    mean = np.mean([pairs(next(sampler), labels) for _ in range(2000)])
    assert positive_pairs(recipe, labels) == pytest.approx(mean, rel=0.05)


def test_batch_within_keeps_groups_and_refuses_others():
    typed = Train(batch="2x3", batch_within="kind", class_power=0.5, remat=True, dtype="float16")
    recipe = typed.recipe()
    assert Recipe.from_json(recipe.to_json()) == recipe
    assert (recipe.batch_within, recipe.class_power) == ("kind", 0.5)
    assert (recipe.remat, recipe.dtype) == (True, "float16")
    rows = next(make_sampler(recipe, CLASSES, views={"kind": CLASSES // 5}))
    assert len(set(CLASSES[rows] // 5)) == 1
    for changed, name in ({"batch_within": "kinds"}, "kinds"), ({"batch": 8}, "batch"):
        with pytest.raises(ValueError, match=rf"^batch_within\b.*\b{name}\b"):
            make_sampler(replace(recipe, **changed), CLASSES, views={"kind": CLASSES // 5})


@pytest.mark.parametrize("labels", [UNEQUAL, np.arange(9) // 2])
def test_default_batches_of_pair_losses_have_positives_and_negatives(labels):
    recipe = with_usual_batch(Recipe(), labels)
    check_positives(recipe, labels)
    rows = next(make_sampler(recipe, labels))
    assert pairs(rows, labels) > 0
    assert len({labels[row] for row in rows if row >= 0}) > 1
    assert len(rows) <= 64


@pytest.mark.parametrize(
    ("loss", "labels", "batch"),
    [
        ("triplet", np.arange(400) % 40, (16, 4)),
        ("triplet", np.arange(40) % 10, (10, 4)),
        ("triplet", np.arange(80) % 2, (2, 32)),
        ("proxy_anchor", np.arange(40) % 10, 40),
    ],
)
def test_default_batch(loss, labels, batch):
    assert with_usual_batch(Recipe(loss=loss), labels).batch == batch


def test_batches_shrink_to_the_data():
    labels = np.arange(30) % 3
    fits = {200: 30, 8: 8, (9, 4): (3, 4), (2, 40): (2, 10), (2, 5): (2, 5)}
    for batch, expected in fits.items():
        assert with_batch_that_fits(Recipe(batch=batch), labels).batch == expected


@pytest.mark.parametrize(
    ("recipe", "labels", "words"),
    [
        (Recipe(batch=(20, 1)), CLASSES, "batch 20x1.*16x4"),
        (Recipe(batch=16), np.arange(30), "30 classes"),
        (Recipe(batch=1), CLASSES, "batch 1"),
        (Recipe(batch=(1, 5)), CLASSES, "batch 1x5"),
    ],
)
def test_batches_without_pairs_are_refused(recipe, labels, words):
    with pytest.raises(ValueError, match=rf"\b{words}\b"):
        check_positives(recipe, labels)
    images = np.zeros((len(labels), 8, 8, 1), np.uint8)
    with pytest.raises(ValueError, match=rf"\b{words}\b"):
        training.train(
            replace(recipe, steps=1), data.Dataset("own", images, labels), progress=False
        )


POINTS = (lambda key, x: jax.random.normal(key, (4, 2)), lambda params, x: x @ params)


def fitted(objective, labels, sampler, steps, **settings):
    images = np.random.default_rng(0).normal(size=(len(labels), 4)).astype(np.float32)
    parts = objective, optax.sgd(0.1), data.Dataset("points", images, np.asarray(labels)), sampler
    return training.fit(POINTS, *parts, steps=steps, progress=False, **settings)


@pytest.mark.parametrize(("steps", "mine"), [(3, None), (120, jdml.mining.easy_positive())])
def test_fit_stops_without_positives(steps, mine, tmp_path):
    objective = objectives.pair(jdml.triplet_loss, mine=mine)
    sampler = data.ClassBatchSampler(CLASSES, 20, 1)
    with pytest.raises(ValueError, match=rf"^sampler\b.*one class.*\b{min(steps, 50)}\b"):
        fitted(objective, CLASSES, sampler, steps, run=tmp_path)
    assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize("labels", [CLASSES, np.zeros(200, int)])
def test_fit_stops_without_negatives(labels, caplog):
    sampler = data.ClassBatchSampler(labels, 1, 5)
    with pytest.raises(ValueError, match=r"^sampler\b.*two classes.*\b50\b"):
        fitted(objectives.pair(jdml.triplet_loss), labels, sampler, 60)
    assert ("one class" in caplog.text) == (labels.max() == 0)


def test_fit_continues_with_few_positives_proxies_or_a_memory():
    """One positive in many batches; a proxy loss; a memory that has to fill first."""
    rare = np.concatenate([np.arange(39), [0]])
    fitted(objectives.pair(jdml.triplet_loss), rare, data.RandomBatchSampler(40, 30), 60)
    proxies = objectives.proxy(jdml.proxy_anchor_loss, 40, 2)
    fitted(proxies, CLASSES, data.ClassBatchSampler(CLASSES, 20, 1), 60)
    remembering = objectives.with_memory(objectives.pair(jdml.triplet_loss), 40, 2, warmup=55)
    fitted(remembering, CLASSES, data.ClassBatchSampler(CLASSES, 20, 1), 60)


def run_of(**options):
    settled = Train(**options).settled()
    return TrainingRun(settled, settled.recipe(), {})


def test_command_reports_the_batch():
    run = run_of()
    assert run.recipe.batch == (10, 6)
    assert any(re.search(r"\b150 pairs\b", line) for line in run.summary())
    proxies = run_of(loss="proxy_anchor")
    assert proxies.recipe.batch == 64
    assert not any("pairs" in line for line in proxies.summary())
    (note,) = (line for line in run_of(batch="11x4").summary() if "--batch" in line)
    assert re.findall(r"\d+x\d+", note) == ["10x4", "11x4"]
    assert run_of(batch="2000").recipe.batch == 1198
    with pytest.raises(ValueError, match=r"^--batch 10x1\b"):
        run_of(batch="10x1")
