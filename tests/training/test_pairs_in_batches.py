"""Batches without positive or negative pairs: refused, stopped, and never the default."""

import jax
import numpy as np
import optax
import pytest

import jdml
from jdml import data, objectives, training
from jdml.cli.train import Train, TrainingRun
from jdml.recipes import BatchConfig, LossConfig, Recipe
from jdml.recipes.recipe import check_positives, usual_batch

CLASSES = np.repeat(np.arange(40), 5)
UNEQUAL = np.repeat(np.arange(6), [1, 1, 2, 5, 30, 60])


def shape(classes, samples, **settings):
    return BatchConfig(classes=classes, samples_per_class=samples, **settings)


def pairs(rows, labels):
    """Count the pairs of one class in a batch."""
    y = [labels[row] for row in rows if row >= 0]
    return sum(y[i] == y[j] for i in range(len(y)) for j in range(i))


@pytest.mark.parametrize(
    ("batch", "labels"),
    [
        (BatchConfig(16), CLASSES),
        (shape(4, 5), CLASSES),
        (shape(3, 4, class_sampling_power=0.5), UNEQUAL),
    ],
)
def test_expected_number_of_pairs_is_the_mean_over_batches(batch, labels):
    sampler = batch.build(labels)
    mean = np.mean([pairs(next(sampler), labels) for _ in range(2000)])
    assert batch.expected_positive_pairs(labels) == pytest.approx(mean, rel=0.05)


def test_batches_within_groups_of_a_view():
    batch, views = shape(2, 3, group_by="kind", class_sampling_power=0.5), {"kind": CLASSES // 5}
    rows = next(batch.build(CLASSES, views=views))
    assert len(set(CLASSES[rows] // 5)) == 1
    with pytest.raises(ValueError, match=r"^group_by\b.*\bkinds\b"):
        batch.replace(group_by="kinds").build(CLASSES, views=views)


@pytest.mark.parametrize(
    ("loss", "labels", "batch"),
    [
        ("triplet", np.arange(400) % 40, "16x4"),
        ("triplet", np.arange(40) % 10, "10x4"),
        ("triplet", np.arange(80) % 2, "2x32"),
        ("triplet", UNEQUAL, "6x3"),
        ("triplet", np.arange(9) // 2, "5x2"),
        ("proxy_anchor", np.arange(40) % 10, "40"),
    ],
)
def test_default_batch_has_positives_and_negatives(loss, labels, batch):
    usual = usual_batch(BatchConfig(), LossConfig(loss), labels)
    check_positives(usual, LossConfig(loss), labels)
    rows = next(usual.build(labels))
    assert pairs(rows, labels) > 0
    assert len({labels[row] for row in rows if row >= 0}) > 1
    assert str(usual) == batch


@pytest.mark.parametrize(
    ("batch", "labels", "words"),
    [
        (shape(20, 1), CLASSES, "batch 20x1.*16x4"),
        (BatchConfig(16), np.arange(30), "each training class has one image"),
        (BatchConfig(1), CLASSES, "batch 1"),
        (shape(1, 5), CLASSES, "batch 1x5"),
    ],
)
def test_batches_without_pairs_are_refused(batch, labels, words):
    own = data.Dataset("own", np.zeros((len(labels), 8, 8, 1), np.uint8), labels)
    with pytest.raises(ValueError, match=rf"\b{words}\b"):
        training.train(Recipe(batch=batch.replace(steps=1)), own, progress=False)


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


def test_fit_stops_without_negatives(caplog):
    """Data of one class are warned of before the first step: other losses than this have a gradient there."""
    for labels, words in ((CLASSES, r"sampler\b.*two classes.*\b50"), (0 * CLASSES, "train")):
        sampler = data.ClassBatchSampler(labels, 1, 5)
        with pytest.raises(ValueError, match=rf"^{words}\b"):
            fitted(objectives.pair(jdml.triplet_loss), labels, sampler, 60)
    assert "train has one class" in caplog.text


@pytest.mark.slow  # trains four objectives
def test_fit_continues_with_few_positives_proxies_or_a_memory():
    """One positive in many batches; a loss that is 0 from the start; a proxy loss; a memory that has to fill first."""
    rare = np.concatenate([np.arange(39), [0]])
    fitted(objectives.pair(jdml.triplet_loss), rare, data.RandomBatchSampler(40, 30), 60)
    satisfied = objectives.pair(lambda x, labels, **others: 0 * x.sum())
    fitted(satisfied, CLASSES, data.RandomBatchSampler(200, 6), 60)
    proxies = objectives.proxy(jdml.proxy_anchor_loss, 40, 2)
    fitted(proxies, CLASSES, data.ClassBatchSampler(CLASSES, 20, 1), 60)
    remembering = objectives.with_memory(objectives.pair(jdml.triplet_loss), 40, 2, warmup=55)
    fitted(remembering, CLASSES, data.ClassBatchSampler(CLASSES, 20, 1), 60)


def test_command_has_no_batch_larger_than_the_data():
    large = TrainingRun(Train(batch={"size": 2000}).resolve())
    assert large.recipe.batch.rows == 1198
