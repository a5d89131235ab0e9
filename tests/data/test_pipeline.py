"""Batches of augmented images: a function of seed and step, whoever decodes; state; damaged images."""

import logging
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import jdml
from jdml.data import (
    BadImageError,
    ClassBatchSampler,
    Crops,
    Dataset,
    ImageBatches,
    ImageFiles,
    RandomBatchSampler,
    conventional,
    mlrc,
    without_bad_images,
)

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("grain")


@pytest.fixture
def data(tmp_path) -> Dataset:
    """Twelve noisy images of four classes."""
    noise = np.random.default_rng(0)
    paths = [tmp_path / f"{i}.jpg" for i in range(12)]
    for path in paths:
        Image.fromarray(noise.integers(0, 256, (24, 30, 3), np.uint8)).save(path)
    return Dataset("noise", ImageFiles(paths, mlrc(16)), np.arange(12) % 4)


@pytest.fixture
def make(data) -> Iterator:
    """Pipelines over the data, closed at the end."""
    made = []

    def build(dataset=data, sampler=None, **settings) -> ImageBatches:
        sampler = sampler or ClassBatchSampler(dataset.labels, 2, 2, seed=3)
        made.append(ImageBatches(dataset, sampler, **({"seed": 5, "workers": 1} | settings)))
        return made[-1]

    yield build
    for batches in made:
        batches.close()


class Corner:
    """A transform of a user's own, without a repr."""

    size = 16

    def __call__(self, image, random=None):
        return np.asarray(image)[:16, :16]


def same(a, b) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.slow
def test_a_batch_is_what_the_sampler_and_the_seeds_say(data, make):
    """By hand: the sampler's rows, each augmented by a generator of (seed, step, place)."""
    sampler = ClassBatchSampler(data.labels, 2, 2, seed=3)
    for step, batch in enumerate(islice(make(), 8)):
        rows = next(sampler)
        np.testing.assert_array_equal(batch.labels, data.labels[rows])
        np.testing.assert_array_equal(batch.ids, rows)
        assert batch.where.all()
        for place, row in enumerate(rows):
            random = np.random.default_rng([5, step, place])
            np.testing.assert_array_equal(batch.images[place], data.images.read(row, random))


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"workers": 4, "prefetch": 7},
        {"workers": 3, "prefetch": 1},
        {"workers": 2, "worker_kind": "process"},
    ],
)
def test_workers_change_nothing(make, settings):
    for one, other in zip(islice(make(), 9), make(**settings), strict=False):
        assert same(one, other)


@pytest.mark.slow
def test_without_augmentation_images_are_those_of_evaluation(data, make):
    sampler = RandomBatchSampler(12, 4)
    batch = next(make(sampler=sampler, augment=False))
    np.testing.assert_array_equal(batch.images, data.images[RandomBatchSampler(12, 4).batch_at(0)])


@pytest.mark.slow
def test_the_augmentation_changes_from_step_to_step(data, make):
    batches = make(sampler=RandomBatchSampler(12, 12))
    first, second = next(batches), next(batches)
    again = {image.tobytes() for image in first.images} & {
        image.tobytes() for image in second.images
    }
    assert not again


# State


@pytest.mark.slow
@pytest.mark.parametrize("stop", [0, 1, 2, 3, 7])
def test_a_state_is_a_place(make, stop):
    batches = make(workers=2)
    whole = list(islice(make(), stop + 4))
    for _ in range(stop):
        next(batches)
    state = batches.get_state()
    assert all(isinstance(value, int | list) for value in state.values())
    fresh = make()
    next(fresh)
    fresh.set_state(state)
    assert all(same(a, b) for a, b in zip(whole[stop:], islice(fresh, 4), strict=True))
    batches.set_state(state)  # and back, with batches under way
    assert same(next(batches), whole[stop])


@pytest.mark.slow
def test_starts_where_its_sampler_stands(data, make):
    sampler = ClassBatchSampler(data.labels, 2, 2, seed=3)
    next(sampler)
    assert same(next(make(sampler=sampler)), list(islice(make(), 2))[1])


@pytest.mark.slow
def test_states_of_others_are_refused(data, make):
    state = make().get_state()
    with pytest.raises(ValueError, match="another pipeline: augmentation_seed must be 6, got 5"):
        make(seed=6).set_state(state)
    with pytest.raises(ValueError, match="another pipeline: transform_checksum must be"):
        make(augment=False).set_state(state)
    with pytest.raises(ValueError, match="another sampler: seed must be 4, got 3"):
        make(sampler=ClassBatchSampler(data.labels, 2, 2, seed=4)).set_state(state)
    plain = [Dataset("own", ImageFiles(data.images.files, Corner()), data.labels) for _ in "ab"]
    make(plain[0]).set_state(make(plain[1]).get_state())
    other = ImageFiles(data.images.files, conventional(16))
    with pytest.raises(ValueError, match="another pipeline: transform_checksum must be"):
        make(Dataset("other", other, data.labels)).set_state(state)
    with pytest.raises(ValueError, match=r"state must have keys \['augmentation_seed', 'bad_rows'"):
        make().set_state(RandomBatchSampler(12, 4).get_state())


# Damaged images


def damage(data: Dataset, *rows: int) -> list[Path]:
    paths = [data.images.files[row] for row in rows]
    for path in paths:
        path.write_bytes(path.read_bytes()[:100])
    return paths


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_damaged_image_stops_the_run(data, make, kind):
    damage(data, 7)
    sampler = RandomBatchSampler(12, 12)
    batches = make(sampler=sampler, worker_kind=kind)
    for _ in range(2):  # it stands where it was, and so raises again
        with pytest.raises(BadImageError, match=r"7\.jpg: expected a whole image"):
            next(batches)
    assert batches.get_state()["batch"] == 0


@pytest.mark.slow
def test_damaged_images_are_skipped_named_once_and_counted(data, make, caplog):
    damage(data, 7)
    data.images.files[2].unlink()
    batches = make(sampler=RandomBatchSampler(12, 6), on_bad_image="skip")
    with caplog.at_level(logging.WARNING, "jdml.data"):
        seen = list(islice(batches, 4))
    rows = RandomBatchSampler(12, 6)
    for batch in seen:
        bad = np.isin(next(rows), [2, 7])
        np.testing.assert_array_equal(batch.where, ~bad)
        assert not batch.images[bad].any()
        assert batch.images[~bad].any(axis=(1, 2, 3)).all()
    assert batches.bad_images == 2
    assert len(caplog.messages) == 2
    assert "skipped: " in caplog.text
    assert "7.jpg: expected a whole image" in caplog.text
    fresh = make(sampler=RandomBatchSampler(12, 6), on_bad_image="skip")
    fresh.set_state(batches.get_state())
    assert fresh.bad_images == 2


@pytest.mark.slow
def test_without_bad_images(data, caplog):
    damage(data, 7, 3)
    whole = without_bad_images(data)
    np.testing.assert_array_equal(whole.labels, np.delete(data.labels, [3, 7]))
    assert len(whole.images[:]) == 10
    assert len(caplog.messages) == 2
    arrays = Dataset("arrays", np.zeros((2, 1, 1, 3), np.uint8), np.arange(2))
    assert without_bad_images(arrays) is arrays


KILLED = """
import multiprocessing, os, pathlib, signal, sys
import numpy as np
from jdml.data import Dataset, ImageBatches, ImageFiles, RandomBatchSampler, mlrc

if __name__ == "__main__":
    files = sorted(pathlib.Path(sys.argv[1]).glob("*.jpg"))
    data = Dataset("d", ImageFiles(files, mlrc(16)), np.arange(len(files)))
    sampler = RandomBatchSampler(len(files), 4)
    batches = ImageBatches(data, sampler, workers=2, worker_kind="process")
    next(batches)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
def test_worker_processes_end_with_a_killed_run(data, tmp_path):
    (tmp_path / "run.py").write_text(KILLED)
    command = [sys.executable, str(tmp_path / "run.py"), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(Path(jdml.__file__).parents[1])}
    with open(tmp_path / "out", "w") as out:
        done = subprocess.run(
            command, stdout=out, stderr=subprocess.DEVNULL, env=environment, timeout=120
        )
    assert done.returncode == -signal.SIGKILL
    workers = [int(pid) for pid in (tmp_path / "out").read_text().split()]
    assert len(workers) == 2
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline, "worker processes go on without their run"
        time.sleep(0.1)


# Samplers at random


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampler",
    [ClassBatchSampler(np.arange(12) % 4, 2, 2, seed=1), RandomBatchSampler(12, 5, seed=1)],
)
def test_batch_at_any_step(sampler):
    whole = list(islice(pickle.loads(pickle.dumps(sampler)), 20))
    state = sampler.get_state()
    for step in np.random.default_rng(0).permutation(20):
        np.testing.assert_array_equal(sampler.batch_at(int(step)), whole[step])
    assert sampler.get_state() == state
    sampler.step = 13
    np.testing.assert_array_equal(next(sampler), whole[13])
    assert sampler.step == 14
    with pytest.raises(ValueError, match="step must be at least 0, got -1"):
        sampler.batch_at(-1)


# Mistakes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({"seed": -1}, ValueError, "seed must be at least 0, got -1"),
        ({"workers": 0}, ValueError, "workers must be at least 1, got 0"),
        ({"workers": 2.0}, TypeError, "workers must be an integer, got 2.0"),
        ({"prefetch": 0}, ValueError, "prefetch must be at least 1, got 0"),
        ({"augment": "none"}, TypeError, "augment must be True or False, got 'none'"),
        (
            {"worker_kind": "fork"},
            ValueError,
            r"worker_kind must be one of \('thread', 'process'\)",
        ),
        ({"on_bad_image": "ignore"}, ValueError, r"on_bad_image must be one of \('stop', 'skip'\)"),
        ({"sampler": iter([[0]])}, TypeError, "sampler must be an EpochSampler, got list_iterator"),
        (
            {"sampler": RandomBatchSampler(11, 2)},
            ValueError,
            "sampler must be over the data set's 12 rows, got one over 11",
        ),
        (
            {"dataset": Dataset("d", np.zeros((12, 2, 2, 3), np.uint8), np.arange(12))},
            TypeError,
            "dataset must have images of type ImageFiles, got ndarray",
        ),
    ],
)
def test_mistakes(data, settings, error, match):
    parts = {"dataset": data, "sampler": RandomBatchSampler(12, 2)} | settings
    with pytest.raises(error, match=match):
        ImageBatches(parts.pop("dataset"), parts.pop("sampler"), **parts)


# Augmentation: where crops may lie, what evaluation cuts out, that randomness is the generator's.


def gradient(width: int, height: int):
    """Red grows to the right, green to the bottom, from 0 to 240: a pixel's colour tells its place."""
    x, y = np.meshgrid(np.linspace(0, 240, width), np.linspace(0, 240, height))
    return Image.fromarray(np.stack([x, y, 0 * x], 2).round().astype(np.uint8))


@pytest.mark.parametrize("crops", [mlrc(), conventional()])
@pytest.mark.parametrize("size", [(500, 375), (375, 500), (100, 100), (1200, 30), (1, 1), (3, 900)])
def test_sizes(crops, size):
    image = Image.new("RGB", size, (10, 20, 30))
    for random in (None, np.random.default_rng(0)):
        out = crops(image, random)
        assert out.shape == (crops.size, crops.size, 3)
        assert out.dtype == np.uint8
        assert (out == [10, 20, 30]).all()


def test_evaluation_is_the_centre():
    """Of 512 × 256, resized to 512 × 256, the middle 224 columns and rows."""
    out = conventional()(gradient(512, 256)).astype(int)
    np.testing.assert_allclose(out[112, [0, -1], 0], [240 * 144 / 511, 240 * 367 / 511], atol=1)
    np.testing.assert_allclose(out[[0, -1], 112, 1], [240 * 16 / 255, 240 * 239 / 255], atol=1)


def test_evaluation_resizes_the_short_side():
    wide, high = mlrc(), mlrc()
    np.testing.assert_allclose(
        wide(gradient(1024, 512)).astype(int),
        np.swapaxes(high(gradient(512, 1024)), 0, 1)[..., [1, 0, 2]].astype(int),
        atol=1,
    )


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (333, 217), (90, 61), (227, 900)])
def test_evaluation_is_resizing_then_cropping(size):
    """As its words say, with Pillow's own resize and crop of the whole image."""
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    image = Image.fromarray(noise)
    width, height = (side * 256 // min(size) for side in size)
    left, upper = (width - 227) // 2, (height - 227) // 2
    whole = image.resize((width, height), Image.Resampling.BILINEAR)
    expected = np.asarray(whole.crop((left, upper, left + 227, upper + 227))).astype(int)
    np.testing.assert_allclose(mlrc()(image).astype(int), expected, atol=1)


@pytest.mark.parametrize(("crops", "smallest"), [(mlrc(64), 0.16), (conventional(64), 0.08)])
def test_random_boxes_keep_to_scale_and_ratio(crops, smallest):
    random = np.random.default_rng(1)
    boxes = np.array([crops._draw(400, 300, random) for _ in range(2000)])
    widths, heights = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2] <= 400).all()
    assert (boxes[:, 3] <= 300).all()
    shares, aspects = widths * heights / (400 * 300), widths / heights
    assert smallest * 0.98 < shares.min() < smallest * 1.1
    assert 0.95 < shares.max() <= 1
    assert 0.74 < aspects.min() < 0.76
    assert 1.32 < aspects.max() < 1.35


def test_half_of_the_crops_are_mirrored():
    crops = Crops(8, 8, (1.0, 1.0))
    image = gradient(16, 16)
    random = np.random.default_rng(0)
    outs = [crops(image, random) for _ in range(400)]
    mirrored = [out[4, 0, 0] > out[4, -1, 0] for out in outs]
    assert 0.4 < np.mean(mirrored) < 0.6


def test_an_extreme_aspect_falls_back_to_the_centre():
    crops = conventional(16)
    left, upper, right, lower = crops._draw(3000, 30, np.random.default_rng(0))
    assert (right - left, lower - upper) == (40, 30)
    assert left == (3000 - 40) // 2


def test_the_generator_decides():
    image = gradient(90, 70)
    one, again, other = (mlrc(32)(image, np.random.default_rng(s)) for s in (3, 3, 4))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


def test_pickles():
    assert pickle.loads(pickle.dumps(mlrc())) == mlrc()


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"size": 0}, "size must be from 1 to short_side = 256, got 0"),
        ({"size": 300}, "size must be from 1 to short_side = 256, got 300"),
        ({"scale": (0, 1)}, r"scale must be 0 < low ≤ high ≤ 1, got \(0, 1\)"),
        ({"scale": (0.5, 1.5)}, r"scale must be .* got \(0.5, 1.5\)"),
        ({"ratio": (2, 1)}, r"ratio must be 0 < low ≤ high ≤ inf, got \(2, 1\)"),
    ],
)
def test_bad_settings(settings, match):
    with pytest.raises(ValueError, match=match):
        Crops(**({"size": 224, "short_side": 256, "scale": (0.1, 1)} | settings))
