"""Batches of augmented images: they depend on seed and step only; state; damaged images; crops."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
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
    """Write twelve noisy images of four classes."""
    noise = np.random.default_rng(0)
    paths = [tmp_path / f"{i}.jpg" for i in range(12)]
    for path in paths:
        Image.fromarray(noise.integers(0, 256, (24, 30, 3), np.uint8)).save(path)
    return Dataset("noise", ImageFiles(paths, mlrc(16)), np.arange(12) % 4)


@pytest.fixture
def make(data) -> Iterator:
    """Build pipelines over the data; they are closed at the end."""
    made = []

    def build(dataset=data, sampler=None, **settings) -> ImageBatches:
        sampler = sampler or ClassBatchSampler(dataset.labels, 2, 2, seed=3)
        made.append(ImageBatches(dataset, sampler, **({"seed": 5, "workers": 1} | settings)))
        return made[-1]

    yield build
    for batches in made:
        batches.close()


class Corner:
    """A custom transform without a repr."""

    size = 16

    def __call__(self, image, random=None):
        return np.asarray(image)[:16, :16]


def same(a, b) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("settings", [{}, {"workers": 4, "prefetch": 7}])
def test_batch_equals_sampler_rows_augmented_by_seed(data, make, settings):
    """Computed by hand: the sampler's rows, each augmented by a generator of (seed, step, position)."""
    sampler = ClassBatchSampler(data.labels, 2, 2, seed=3)
    for step, batch in enumerate(islice(make(**settings), 9)):
        rows = next(sampler)
        np.testing.assert_array_equal(batch.labels, data.labels[rows])
        np.testing.assert_array_equal(batch.ids, rows)
        assert batch.where.all()
        for place, row in enumerate(rows):
            random = np.random.default_rng([5, step, place])
            np.testing.assert_array_equal(batch.images[place], data.images.read(row, random))


# State


@pytest.mark.parametrize("stop", [0, 2, 7])
def test_state_restores_the_position(make, stop):
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
    batches.set_state(state)  # and back, with batches in flight
    assert same(next(batches), whole[stop])


def test_pipeline_starts_at_its_samplers_position(data, make):
    """And without augmentation reads as evaluation does."""
    sampler = RandomBatchSampler(12, 4)
    next(sampler)
    batch = next(make(sampler=sampler, augment=False))
    np.testing.assert_array_equal(batch.images, data.images[RandomBatchSampler(12, 4).batch_at(1)])


def test_state_of_another_pipeline_is_refused(data, make):
    state = make().get_state()
    other = Dataset("other", ImageFiles(data.images.files, conventional(16)), data.labels)
    for batches, name in (
        (make(seed=6), "augmentation_seed"),
        (make(augment=False), "transform_checksum"),
        (make(other), "transform_checksum"),
        (make(sampler=ClassBatchSampler(data.labels, 2, 2, seed=4)), "seed"),
        (make(sampler=RandomBatchSampler(12, 4)), "keys"),
    ):
        with pytest.raises(ValueError, match=rf"\b{name}\b"):
            batches.set_state(state)
    own = [Dataset("own", ImageFiles(data.images.files, Corner()), data.labels) for _ in "ab"]
    make(own[0]).set_state(make(own[1]).get_state())


# Damaged images


def damage(data: Dataset, *rows: int) -> list[Path]:
    paths = [data.images.files[row] for row in rows]
    for path in paths:
        path.write_bytes(path.read_bytes()[:100])
    return paths


def test_damaged_image_stops_the_run(data, make):
    damage(data, 7)
    batches = make(sampler=RandomBatchSampler(12, 12))
    for _ in range(2):  # the position does not move, so it raises again
        with pytest.raises(BadImageError, match=r"/7\.jpg:"):
            next(batches)
    assert batches.get_state()["batch"] == 0


def test_threads_start_no_process(make):
    before = psutil.Process().children()
    next(make(workers=2))
    assert psutil.Process().children() == before


@pytest.mark.slow  # processes import everything
def test_processes_equal_threads_and_stop_at_a_damaged_image(data, make):
    (path,) = damage(data, RandomBatchSampler(12, 3).epoch(0)[3, 0])
    threads, processes = (
        make(sampler=RandomBatchSampler(12, 3), workers=2, worker_kind=kind)
        for kind in ("thread", "process")
    )
    for _ in range(3):
        assert same(next(threads), next(processes))
    for batches in (threads, processes):
        with pytest.raises(BadImageError, match=rf"^{path}:"):
            next(batches)
        assert batches.get_state()["batch"] == 3


def test_damaged_images_are_skipped_named_once_and_counted(data, make, caplog):
    damage(data, 7)
    data.images.files[2].unlink()
    batches = make(sampler=RandomBatchSampler(12, 6), on_bad_image="skip")
    with caplog.at_level(logging.WARNING, "jdml.data"):
        drawn = list(islice(batches, 4))
    rows = RandomBatchSampler(12, 6)
    for batch in drawn:
        bad = np.isin(next(rows), [2, 7])
        np.testing.assert_array_equal(batch.where, ~bad)
        assert not batch.images[bad].any()
        assert batch.images[~bad].any(axis=(1, 2, 3)).all()
    assert batches.bad_images == 2
    assert len(caplog.messages) == 2
    assert "/7.jpg:" in caplog.text
    assert "/2.jpg:" in caplog.text
    fresh = make(sampler=RandomBatchSampler(12, 6), on_bad_image="skip")
    fresh.set_state(batches.get_state())
    assert fresh.bad_images == 2


def test_without_bad_images_excludes_damaged_rows(data, caplog):
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


@pytest.mark.slow  # processes import everything
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc, to look for processes")
def test_worker_processes_end_with_a_killed_run(data, tmp_path):
    (tmp_path / "run.py").write_text(KILLED)
    command = [sys.executable, str(tmp_path / "run.py"), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(Path(jdml.__file__).parents[1])}
    with open(tmp_path / "out", "w") as out:  # workers would keep a pipe open
        done = subprocess.run(command, stdout=out, stderr=subprocess.DEVNULL, env=environment)
    assert done.returncode == -signal.SIGKILL
    workers = [int(pid) for pid in (tmp_path / "out").read_text().split()]
    assert len(workers) == 2
    deadline = time.monotonic() + 600
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline, "worker processes outlive their run"
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("settings", "error", "name"),
    [
        ({"seed": -1}, ValueError, "seed"),
        ({"workers": 0}, ValueError, "workers"),
        ({"prefetch": 0}, ValueError, "prefetch"),
        ({"worker_kind": "fork"}, ValueError, "worker_kind"),
        ({"on_bad_image": "ignore"}, ValueError, "on_bad_image"),
        ({"sampler": RandomBatchSampler(11, 2)}, ValueError, "sampler"),
        ({"dataset": Dataset("d", np.zeros((12, 3)), np.arange(12))}, TypeError, "dataset"),
    ],
)
def test_wrong_arguments_are_refused(data, settings, error, name):
    parts = {"dataset": data, "sampler": RandomBatchSampler(12, 2)} | settings
    with pytest.raises(error, match=rf"^{name}\b"):
        ImageBatches(parts.pop("dataset"), parts.pop("sampler"), **parts)


# Crops: random ones, and those of evaluation


def gradient(width: int, height: int):
    """Return an image whose red grows to the right and green to the bottom: the colour gives the position."""
    x, y = np.meshgrid(np.linspace(0, 240, width), np.linspace(0, 240, height))
    return Image.fromarray(np.stack([x, y, 0 * x], 2).round().astype(np.uint8))


@pytest.mark.parametrize("crops", [mlrc(), conventional()])
@pytest.mark.parametrize("size", [(500, 375), (90, 61), (227, 900), (1, 1), (1200, 30)])
def test_evaluation_resizes_then_crops(crops, size):
    """Compared with Pillow's own resize and crop of the whole image."""
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    image = Image.fromarray(noise)
    width, height = (side * 256 // min(size) for side in size)
    left, upper = (width - crops.size) // 2, (height - crops.size) // 2
    whole = image.resize((width, height), Image.Resampling.BILINEAR)
    box = (left, upper, left + crops.size, upper + crops.size)
    expected = np.asarray(whole.crop(box)).astype(int)
    np.testing.assert_allclose(crops(image).astype(int), expected, atol=1)
    assert crops(image, np.random.default_rng(0)).shape == expected.shape


def sides(crop: np.ndarray) -> tuple[float, float]:
    """Return a crop of :func:`gradient` as fractions of the image's width and height; negative if mirrored."""
    inner = np.arange(8, len(crop) - 8)
    lines = crop[inner][:, inner].astype(float)
    slopes = np.polyfit(inner, lines[0, :, 0], 1)[0], np.polyfit(inner, lines[:, 0, 1], 1)[0]
    width, height = (slope * len(crop) / 240 for slope in slopes)
    return width, height


@pytest.mark.parametrize(("crops", "smallest"), [(mlrc(64), 0.16), (conventional(64), 0.08)])
def test_random_crops_follow_scale_and_ratio_and_half_are_mirrored(crops, smallest):
    random, image = np.random.default_rng(1), gradient(400, 300)
    widths, heights = np.array([sides(crops(image, random)) for _ in range(1000)]).T
    assert 0.45 < np.mean(widths < 0) < 0.55
    shares, aspects = abs(widths) * heights, abs(widths) * 400 / (heights * 300)
    assert smallest * 0.95 < shares.min() < smallest * 1.1
    assert 0.95 < shares.max() < 1.01
    assert 0.72 < aspects.min() < 0.77
    assert 1.3 < aspects.max() < 1.38


def test_extreme_aspect_ratio_falls_back_to_a_central_crop():
    """The crop of 3,000 × 30 pixels is the middle 40 columns, which get brighter from left to right here."""
    pixels = np.zeros((30, 3000, 3), np.uint8)
    pixels[:, 1480:1520, 0] = 6 * np.arange(1, 41)
    crop = conventional(40)(Image.fromarray(pixels), np.random.default_rng(0))
    columns = np.sort(crop[20, :, 0].astype(int))
    np.testing.assert_allclose(columns, 6 * np.arange(1, 41), atol=1)


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"size": 300}, "size"), ({"scale": (0.5, 1.5)}, "scale"), ({"ratio": (2, 1)}, "ratio")],
)
def test_wrong_crops_are_refused(settings, name):
    with pytest.raises(ValueError, match=rf"^{name}\b"):
        Crops(**({"size": 224, "short_side": 256, "scale": (0.1, 1)} | settings))
