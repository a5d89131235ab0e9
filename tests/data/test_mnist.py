"""MNIST from IDX files, whole and damaged, from a copy prepared by tfds, and the real files."""

import gzip
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jdml.data import load

RANDOM = np.random.default_rng(0)
IMAGES = {
    part: RANDOM.integers(0, 256, (n, 5, 4), np.uint8) for part, n in (("train", 6), ("t10k", 3))
}
DIGITS = {"train": np.array([3, 1, 4, 1, 5, 9], np.uint8), "t10k": np.array([2, 6, 5], np.uint8)}


def idx(values: np.ndarray) -> bytes:
    """The IDX format, written from its definition."""
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    return header + values.tobytes()


def write(folder: Path, name: str, content: bytes, packed: bool) -> Path:
    path = folder / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(content) if packed else content)
    return path


def write_all(folder: Path, packed: bool) -> None:
    for part in ("train", "t10k"):
        write(folder, f"{part}-images-idx3-ubyte", idx(IMAGES[part]), packed)
        write(folder, f"{part}-labels-idx1-ubyte", idx(DIGITS[part]), packed)


@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_round_trip(tmp_path, packed):
    write_all(tmp_path, packed)
    for split, part in (("train", "train"), ("test", "t10k")):
        data = load("mnist", data_dir=tmp_path, split=split)
        np.testing.assert_array_equal(data.images[..., 0], IMAGES[part])
        np.testing.assert_array_equal(data.labels, DIGITS[part])
        np.testing.assert_array_equal(data.views["parity"], DIGITS[part] % 2)
    whole = load("mnist", data_dir=str(tmp_path), split="all")
    np.testing.assert_array_equal(whole.labels, np.concatenate([DIGITS["train"], DIGITS["t10k"]]))


GOOD = idx(IMAGES["train"])
NAME = "train-images-idx3-ubyte"


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("content", "match"),
    [
        (GOOD[:-1], r"expected 136 bytes for an array of shape \[6, 5, 4\], got 135"),
        (GOOD + b"x", r"expected 136 bytes for an array of shape \[6, 5, 4\], got 137"),
        (GOOD[:10], "expected a header of 16 bytes, got 10 bytes"),
        (b"", "magic number must be 2051, got 0"),
        (idx(DIGITS["train"]), "magic number must be 2051, got 2049"),
        (b"\x00\x00\x0d\x03" + GOOD[4:], "magic number must be 2051, got 3331"),
    ],
)
def test_damaged_idx(tmp_path, packed, content, match):
    write_all(tmp_path, packed)
    path = write(tmp_path, NAME, content, packed)
    with pytest.raises(ValueError, match=f"{path.name}: {match}"):
        load("mnist", data_dir=tmp_path)


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-9], lambda b: b"no" + b, lambda b: b[:20] + b"~" * 40]
)
def test_damaged_gzip(tmp_path, damage):
    write_all(tmp_path, packed=True)
    path = tmp_path / f"{NAME}.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=f"{path.name}: expected a whole gzip file"):
        load("mnist", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("digits", "match"),
    [
        (np.zeros(5, np.uint8), "expected 6 labels, as many as .*images.* has images, got 5"),
        (np.full(6, 10, np.uint8), "labels must be 0…9, got 10"),
    ],
)
def test_labels_that_do_not_fit(tmp_path, digits, match):
    write_all(tmp_path, packed=False)
    path = write(tmp_path, "train-labels-idx1-ubyte", idx(digits), packed=False)
    with pytest.raises(ValueError, match=f"{path.name}: {match}"):
        load("mnist", data_dir=tmp_path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"train-images-idx3-ubyte or .*\.gz .* in .*" + tmp_path.name
    ):
        load("mnist", data_dir=tmp_path)
    write_all(tmp_path, packed=True)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    assert len(load("mnist", data_dir=tmp_path)) == 6
    with pytest.raises(FileNotFoundError, match="needs t10k-labels-idx1-ubyte or"):
        load("mnist", data_dir=tmp_path, split="test")


# Run apart: defining a builder registers its name, and preparing prints.
PREPARE = """
import io, sys
import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

def png(value):
    file = io.BytesIO()
    Image.fromarray(np.full((28, 28), value, np.uint8)).save(file, "png")
    file.seek(0)
    return file

class Mnist(tfds.core.GeneratorBasedBuilder):
    name, VERSION = "mnist", tfds.core.Version("3.0.1")

    def _info(self):
        image = tfds.features.Image(shape=(28, 28, 1))
        label = tfds.features.ClassLabel(num_classes=10)
        features = tfds.features.FeaturesDict({"image": image, "label": label})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, manager):
        return {"train": self._generate_examples(10), "test": self._generate_examples(4)}

    def _generate_examples(self, count):
        for digit in range(count):
            yield digit, {"image": png(20 * digit), "label": digit}

Mnist(data_dir=sys.argv[1], file_format="array_record").download_and_prepare()
"""


def test_a_copy_prepared_by_tfds(tmp_path):
    pytest.importorskip("tensorflow_datasets")
    subprocess.run([sys.executable, "-c", PREPARE, tmp_path], check=True, capture_output=True)
    for split, count in (("train", 10), ("test", 4), ("all", 14)):
        data = load("mnist", data_dir=tmp_path, split=split)
        assert data.images.shape == (count, 28, 28, 1)
        np.testing.assert_array_equal(data.images[:, 5, 5, 0], 20 * data.labels)
        assert set(data.labels) == set(range(min(count, 10)))


def test_the_real_files(shared_data):
    train = load("mnist", data_dir=shared_data / "mnist")
    test = load("mnist", data_dir=shared_data / "mnist", split="test")
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert train.images.shape == (60000, 28, 28, 1)
    assert np.bincount(train.labels).tolist() == counts
    assert np.bincount(test.labels).tolist() == [
        980,
        1135,
        1032,
        1010,
        982,
        892,
        958,
        1028,
        974,
        1009,
    ]
    assert train.images.mean() / 255 == pytest.approx(0.13066, abs=1e-5)
    assert test.images.mean() / 255 == pytest.approx(0.13251, abs=1e-5)
