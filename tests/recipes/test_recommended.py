"""The recommended recipe."""

import numpy as np
import pytest

from jdml.recipes import (
    BatchConfig,
    LossConfig,
    NetworkConfig,
    OptimizerConfig,
    Recipe,
    recommended,
)


@pytest.mark.parametrize(
    ("sizes", "rows", "batch", "miner", "small"),
    [
        ([99] * 50, 64, (16, 4), "none", "refuse"),
        ([100] * 50, 64, (4, 16), "easy_positive", "refuse"),
        ([640] * 27, 400, (10, 40), "easy_positive", "refuse"),
        ([30] * 16, 80, (16, 5), "none", "refuse"),
        ([3] * 90, 64, (21, 3), "none", "refuse"),
        ([200, 150, 120, 130, 110, 2, 140, 120], 64, (4, 16), "easy_positive", "pad"),
        ([1000, 60, 60, 60, 60], 64, (5, 12), "none", "refuse"),
    ],
)
def test_batch_and_miner_depend_on_class_sizes(sizes, rows, batch, miner, small):
    made = recommended(np.repeat(np.arange(len(sizes)), sizes), rows=rows)
    classes, samples = batch
    assert (made.batch.classes, made.batch.samples_per_class) == (classes, samples)
    assert (made.loss.miner, made.batch.on_small_class) == (miner, small)


@pytest.mark.parametrize(
    ("pretraining", "rate", "head"),
    [
        ("small", 3e-3, "random"),
        ("untrained", 1e-3, "random"),
        ("pretrained", 1e-4, "principal"),
        ("frozen", 3e-4, "principal"),
    ],
)
def test_recommended_settings(pretraining, rate, head):
    """The settings are those that the study has tested."""
    assert recommended([0] * 9 + [1] * 9, pretraining=pretraining, steps=300) == Recipe(
        loss=LossConfig("circle", {"margin": 0.1, "gamma": 100.0}),
        network=NetworkConfig(head_init=head),
        batch=BatchConfig(classes=2, samples_per_class=9, on_small_class="refuse", steps=300),
        optimizer=OptimizerConfig(learning_rate=rate, lr_warmup_steps=15, schedule="cosine"),
    )
    assert recommended(steps=0).optimizer.lr_warmup_steps == 0
