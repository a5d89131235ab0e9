"""Copies that TensorFlow Datasets has prepared: read without TensorFlow; damaged ones are named."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jdml.data import conventional, load

pytest.importorskip("tensorflow_datasets", reason="needs TensorFlow Datasets")
SMALL = {"transform": conventional(8)}

# Run in a new process: defining a builder registers its name, and preparing prints. An image's shade is its label.
PREPARE = """
import io, sys
import tensorflow_datasets as tfds
from PIL import Image

F = tfds.features
LETTERS = ["Greek_0", "Latin_1"]
ITEM = {"class_id": F.ClassLabel(num_classes=22634), "super_class_id": F.ClassLabel(names=["bicycle", "chair"])}
FEATURES = {
    "mnist": {"image": F.Image(shape=(28, 28, 1)), "label": F.ClassLabel(num_classes=10)},
    "omniglot": {"label": F.ClassLabel(names=LETTERS)},
    "caltech_birds2011": {"label": F.ClassLabel(num_classes=200), "image/filename": F.Text()},
    "cars196": {"label": F.ClassLabel(names=[f"Car {i}" for i in range(196)])},
    "stanford_online_products": ITEM,
}
LABELS = {"mnist": (range(10), range(4)), "omniglot": ([0], [1, 0])}

def png(name, shade):
    file = io.BytesIO()
    mnist = name == "mnist"
    Image.new("L" if mnist else "RGB", (28, 28), shade if mnist else (shade,) * 3).save(file, "png")
    file.seek(0)
    return file

def values(name, label):
    if name == "stanford_online_products":
        return {"class_id": label, "super_class_id": label % 2}
    extra = {"image/filename": "x.jpg"} if name == "caltech_birds2011" else {}
    return {"label": label, **extra}

def builder(data_name):
    class Prepared(tfds.core.GeneratorBasedBuilder):
        name, VERSION = data_name, tfds.core.Version("3.0.1")

        def _info(self):
            features = F.FeaturesDict({"image": F.Image(), **FEATURES[data_name]})
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, manager):
            train, test = LABELS.get(data_name, (range(97, 100), range(100, 103)))
            return {"train": self._generate_examples(train), "test": self._generate_examples(test)}

        def _generate_examples(self, labels):
            for label in labels:
                yield label, {"image": png(data_name, label), **values(data_name, label)}

    return Prepared

for name in FEATURES:
    builder(name)(data_dir=sys.argv[1], file_format="array_record").download_and_prepare()
"""


@pytest.fixture(scope="module")
def copies(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    subprocess.run([sys.executable, "-c", PREPARE, folder], check=True, capture_output=True)
    return folder


def test_complete_copies_are_read(copies):
    for split, count in (("train", 10), ("test", 4), ("all", 14)):
        data = load("mnist", data_dir=copies, split=split)
        assert data.images.shape == (count, 28, 28, 1)
        np.testing.assert_array_equal(data.images[:, 5, 5, 0], data.labels)
        assert set(data.labels) == set(range(min(count, 10)))
    parts = [load("omniglot", data_dir=copies, split=part) for part in ("train", "test", "all")]
    assert list(map(len, parts)) == [1, 2, 3]
    names = parts[1].class_names["letter"]
    assert names == ("Greek/character01", "Latin/character02")
    assert parts[1].images[:, 9, 9, 0].tolist() == [255, 254]
    for name, train_classes in (("cub", [97, 98, 99]), ("cars", [97]), ("sop", [97, 98, 99])):
        train = load(name, data_dir=copies, **SMALL)
        test = load(name, data_dir=copies, split="test", **SMALL)
        shades = train.images[:][:, 4, 4, 0]
        assert sorted(shades) == train_classes
        assert len(test) == 6 - len(train_classes)
        np.testing.assert_array_equal(train.labels, shades.argsort().argsort())
    np.testing.assert_array_equal(train.views["super_class"], shades % 2)
    assert set(train.views) == {"class", "super_class"}
    assert "stanford_online_products train[0]" in map(str, train.images.files)


def test_damaged_copy_is_named_and_complete_ones_are_still_read(copies, tmp_path):
    place = shutil.copytree(copies / "mnist", tmp_path / "mnist") / "3.0.1"
    for name in ("3.0.2", "incomplete.AB9XYZ_3.0.1"):
        newer = place.parent / name
        newer.mkdir()
        shutil.copy(place / "dataset_info.json", newer)
    assert len(load("mnist", data_dir=tmp_path)) == 10
    (shard,) = place.glob("*train.array_record*")
    info = place / "dataset_info.json"
    other_format = info.read_bytes().replace(b"array_record", b"riegeli")
    for file, content in ((shard, shard.read_bytes()[:-99]), (info, other_format), (info, b"{")):
        whole = file.read_bytes()
        file.write_bytes(content)
        with pytest.raises(ValueError, match=rf"^{place}\b"):
            load("mnist", data_dir=tmp_path)
        file.write_bytes(whole)
