"""Training on image files: damaged images, resume, evaluation, history and log."""

import json
from dataclasses import replace

import chex
import numpy as np
import pytest

import jdml
from jdml import objectives
from jdml.data import (
    BadImageError,
    Dataset,
    ImageBatches,
    ImageFiles,
    RandomBatchSampler,
    conventional,
)
from jdml.training import metric_names, recall_ranks, score

pytest.importorskip("grain")


@pytest.fixture
def data(noise_files) -> Dataset:
    """Return forty images of noise in four classes."""
    labels = np.arange(40) % 4
    return Dataset("noise", ImageFiles(noise_files, conventional(8)), labels, {"class": labels})


def batches_of(data, kind=ImageBatches, **settings):
    return kind(data, RandomBatchSampler(40, 8, seed=1), workers=3, **settings)


def train(toy, data, batches, **settings):
    return toy.fit(train=data, sampler=batches, steps=12, every=5, log_every=4, **settings)


@pytest.mark.slow  # trains, is killed and resumed
def test_resume_is_bit_exact(toy, data, tmp_path):
    """A damaged file is skipped before and after the kill; a memory has the rows of the others."""
    data.images.files[5].write_bytes(b"\xff\xd8 no image")
    settings = {
        "checkpoint_every": 3,
        "function": lambda embed: {"norm": float(embed(data.images[:4]).sum())},
        "objective": objectives.with_memory(objectives.pair(jdml.contrastive_loss), 100, 2),
    }

    class Killed(ImageBatches):
        def __next__(self):
            if self.get_state()["batch"] + 5 * self.get_state()["epoch"] + 1 == 7:
                raise toy.Killed
            return super().__next__()

    def run(name, kind=ImageBatches):
        batches = batches_of(data, kind, on_bad_image="skip")
        return train(toy, data, batches, folder=tmp_path / name, **settings)

    unbroken = run("a")
    with pytest.raises(toy.Killed):
        run("b", Killed)
    resumed = run("b")
    chex.assert_trees_all_equal(unbroken.state, resumed.state)
    assert unbroken.history == resumed.history
    assert unbroken.history[-1]["bad_images"] == 1
    assert not any("input_wait" in record for record in unbroken.history)
    lines = [json.loads(line) for line in (tmp_path / "a" / "log.jsonl").read_text().splitlines()]
    assert all(0 <= line["input_wait"] <= 1 for line in lines)
    sampler = RandomBatchSampler(40, 8, seed=1)
    rows = np.concatenate([next(sampler) for _ in range(12)])
    rows = rows[rows != 5]
    memory = resumed.state.objective_state.memory
    np.testing.assert_array_equal(memory.ids[: len(rows)], rows)


def test_damaged_image_ends_the_run_and_is_named(toy, data):
    data.images.files[39].write_bytes(b"")
    with pytest.raises(BadImageError, match=r"39\.png"):
        train(toy, data, batches_of(data))


def test_images_without_a_pipeline_are_decoded_as_in_evaluation(toy, data):
    """A plain sampler over image files equals a pipeline without augmentation."""
    plain = train(toy, data, RandomBatchSampler(40, 8, seed=1))
    piped = train(toy, data, batches_of(data, augment=False))
    losses = [[record["loss"] for record in run.history] for run in (plain, piped)]
    np.testing.assert_allclose(*losses, rtol=1e-4)


def test_batches_of_another_data_set_are_refused(toy, data):
    with pytest.raises(ValueError, match=r"^sampler\b"):
        train(toy, data.select(np.arange(40)), batches_of(data))


# Scores


def test_score_of_queries_in_a_gallery():
    """Item 1 is found, item 0 is not; neighbours within the gallery do not matter."""
    points = np.array([0.0, 10.0, 1.0, 2.0, 11.0], np.float32).reshape(-1, 1, 1, 1)
    items = np.array([0, 1, 1, 0, 1])
    whole = Dataset("points", points, items, {"item": items, "any": 0 * items})
    sets = whole.select([0, 1]), whole.select([2, 3, 4])
    embed = lambda images: images.reshape(len(images), 1)  # noqa: E731
    scores = score(embed, *sets, normalize=None, recall_at=(1, 2))
    assert list(scores)[:4] == ["item/R@1", "item/R@2", "item/RP", "item/MAP@R"]
    assert (scores["item/R@1"], scores["item/R@2"], scores["any/R@1"]) == (0.5, 1.0, 1.0)
    queries, gallery = (replace(part, class_names={"item": ("a", "b")}) for part in sets)
    other = replace(gallery, views={**gallery.views, "item": 1 - gallery.views["item"]})
    other = replace(other, class_names={"item": ("b", "a")})  # another order of the same classes
    assert score(embed, queries, other, normalize=None, recall_at=(1, 2)) == scores


def test_recall_ranks_of_the_papers():
    assert recall_ranks("sop") == (1, 10, 100, 1000)
    assert recall_ranks("inshop") == (1, 10, 20, 30)
    assert metric_names(recall_ranks("cub")) == ("R@1", "R@2", "R@4", "R@8", "RP", "MAP@R")
