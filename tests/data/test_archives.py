"""MNIST and Omniglot from the files of their authors, whole and damaged."""

import dataclasses
import gzip
import io
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from jdml.data import load

# Omniglot from zips and folders, whole and damaged, at several sizes, and the real archives.

Image = pytest.importorskip("PIL.Image")

LETTERS = {
    "images_background": {"Greek": 3, "Latin": 2},
    "images_evaluation": {"Angelic": 2, "Keble": 1, "ULOG": 1},
}
DRAWERS = 2


def drawing(source: str, alphabet: str, letter: int, drawer: int, size: int = 105) -> np.ndarray:
    """Ink (True) of one letter: noise that its name decides."""
    seed = [len(source), len(alphabet), ord(alphabet[0]), letter, drawer]
    return np.random.default_rng(seed).random((size, size)) < 0.3


def files(source: str) -> dict[str, bytes]:
    """A source's PNGs, 1 bit, paper white, in an order that is not the sorted one."""
    out = {}
    for alphabet, letters in reversed(LETTERS[source].items()):
        for letter in range(letters, 0, -1):
            for drawer in range(1, DRAWERS + 1):
                file = io.BytesIO()
                ink = drawing(source, alphabet, letter, drawer)
                Image.fromarray(~ink).convert("1").save(file, "png")
                name = f"{source}/{alphabet}/character{letter:02}/{letter:04}_{drawer:02}.png"
                out[name] = file.getvalue()
    return out


def write_zip(folder: Path, source: str, contents: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(folder / f"{source}.zip", "w") as archive:
        archive.writestr(f"{source}/", b"")
        archive.writestr(f"__MACOSX/{source}/Greek/character01/._0001_01.png", b"junk")
        archive.writestr(f"{source}/.DS_Store", b"junk")
        for name, content in contents.items():
            archive.writestr(name, content)
    return folder / f"{source}.zip"


@pytest.fixture(params=["zip", "folder"])
def data_dir(request, tmp_path) -> Path:
    for source in LETTERS:
        if request.param == "zip":
            write_zip(tmp_path, source, files(source))
            continue
        for name, content in files(source).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return tmp_path


@pytest.mark.slow
def test_native_size_gives_the_original_pixels(data_dir):
    data = load("omniglot", data_dir=data_dir, image_size=105)
    assert data.images.shape == (10, 105, 105, 1)
    assert data.images.dtype == np.uint8
    expected = [
        drawing("images_background", alphabet, letter, drawer)
        for alphabet, letters in LETTERS["images_background"].items()
        for letter in range(1, letters + 1)
        for drawer in range(1, DRAWERS + 1)
    ]
    np.testing.assert_array_equal(data.images[..., 0], 255 * np.array(expected))


@pytest.mark.slow
@pytest.mark.parametrize("size", [21, 35])
def test_smaller_images_are_area_averages(data_dir, size):
    native = load("omniglot", data_dir=data_dir, image_size=105).images[..., 0]
    small = load("omniglot", data_dir=str(data_dir), image_size=size).images[..., 0]
    step = 105 // size
    means = native.reshape(-1, size, step, size, step).mean((2, 4))
    np.testing.assert_allclose(small, means, atol=1.01)


@pytest.mark.slow
def test_the_default_size_is_28(data_dir):
    assert load("omniglot", data_dir=data_dir).images.shape == (10, 28, 28, 1)


@pytest.mark.slow
def test_labels_are_sorted_and_letters_global(data_dir):
    train = load("omniglot", data_dir=data_dir)
    np.testing.assert_array_equal(train.labels, [0] * 6 + [1] * 4)
    np.testing.assert_array_equal(train.views["alphabet"], train.labels)
    np.testing.assert_array_equal(train.views["letter"], np.repeat(np.arange(5), 2))
    assert train.class_names["alphabet"] == ("Greek", "Latin")
    assert train.class_names["letter"][2:4] == ("Greek/character03", "Latin/character01")


@pytest.mark.slow
def test_all_is_train_then_test(data_dir):
    whole = load("omniglot", data_dir=data_dir, split="all", image_size=8)
    parts = [load("omniglot", data_dir=data_dir, split=s, image_size=8) for s in ("train", "test")]
    np.testing.assert_array_equal(whole.images, np.concatenate([part.images for part in parts]))
    np.testing.assert_array_equal(whole.labels[10:], parts[1].labels + 2)
    np.testing.assert_array_equal(whole.views["letter"][10:], parts[1].views["letter"] + 5)
    assert whole.num_classes == 5


def test_a_prepared_copy_has_its_parts(tmp_path, monkeypatch):
    """A letter is of the part that the copy says."""
    (tmp_path / "a.png").write_bytes(files("images_background").popitem()[1])
    columns = {"split": np.array(["test", "train", "test"]), "letter": np.array([1, 0, 0])}
    made = [tmp_path / "a.png"] * 3, columns, {"letter": ("Greek_0", "Latin_1")}
    monkeypatch.setattr("jdml.data.omniglot.prepared", lambda *_: True)
    monkeypatch.setattr("jdml.data.omniglot.read_prepared", lambda *_: made)
    sizes = {
        part: len(load("omniglot", data_dir=tmp_path, split=part))
        for part in ("train", "test", "all")
    }
    assert sizes == {"train": 1, "test": 2, "all": 3}
    names = load("omniglot", data_dir=tmp_path, split="test").class_names["letter"]
    assert names == ("Greek/character01", "Latin/character02")


@pytest.mark.slow
def test_a_truncated_zip_is_named(tmp_path):
    path = write_zip(tmp_path, "images_background", files("images_background"))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"images_background\.zip: expected a whole zip archive"):
        load("omniglot", data_dir=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", [lambda b: b[:-30], lambda b: b[:20], lambda b: b"GIF", lambda b: b""]
)
def test_a_damaged_image_is_named(tmp_path, damage):
    contents = files("images_background")
    member = "images_background/Latin/character02/0002_01.png"
    contents[member] = damage(contents[member])
    write_zip(tmp_path, "images_background", contents)
    with pytest.raises(ValueError, match=rf"images_background\.zip: {member} is not a whole image"):
        load("omniglot", data_dir=tmp_path)


@pytest.mark.slow
def test_flipped_bytes_in_a_zip_are_noticed(tmp_path):
    contents = files("images_background")
    member = "images_background/Latin/character02/0002_01.png"
    path = write_zip(tmp_path, "images_background", contents)
    whole = path.read_bytes()
    where = whole.index(contents[member]) + len(contents[member]) // 2
    path.write_bytes(whole[:where] + bytes([whole[where] ^ 255]) + whole[where + 1 :])
    with pytest.raises(ValueError, match=rf"images_background\.zip: {member} is not a whole image"):
        load("omniglot", data_dir=tmp_path)


@pytest.mark.slow
def test_a_damaged_file_in_a_folder_is_named(tmp_path):
    path = tmp_path / "images_evaluation/Angelic/character01/0965_01.png"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a png")
    with pytest.raises(ValueError, match=r"images_evaluation: .*0965_01\.png is not a whole image"):
        load("omniglot", data_dir=tmp_path, split="test")


@pytest.mark.slow
def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"needs images_evaluation\.zip, or the folder "):
        load("omniglot", data_dir=tmp_path, split="test")


@pytest.mark.slow
def test_an_archive_of_something_else(tmp_path):
    write_zip(tmp_path, "images_background", {"cats/1.png": b""})
    with pytest.raises(ValueError, match=r"expected images_background/ALPHABET/.*, found none"):
        load("omniglot", data_dir=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, -28, 28.0])
def test_bad_image_size(tmp_path, size):
    with pytest.raises(ValueError, match=f"image_size must be a positive integer, got {size}"):
        load("omniglot", data_dir=tmp_path, image_size=size)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("split", "alphabets", "letters", "images"),
    [("train", 30, 964, 19280), ("test", 20, 659, 13180)],
)
def test_the_real_archives(shared_data, split, alphabets, letters, images):
    data = load("omniglot", data_dir=shared_data / "omniglot", split=split)
    assert data.images.shape == (images, 28, 28, 1)
    assert (data.num_classes, len(set(data.labels))) == (alphabets, alphabets)
    assert (np.bincount(data.views["letter"]) == 20).all()
    assert data.relabel("letter").num_classes == letters
    assert 15 < data.images.mean() < 25  # ink is bright and rare
    by_letter = data.labels[::20]
    np.testing.assert_array_equal(data.labels, np.repeat(by_letter, 20))


# MNIST from IDX files, whole and damaged, from a copy prepared by tfds, and the real files.

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
    with pytest.raises(
        ValueError, match=f"{path.name}: expected (a whole gzip file|.* bytes at most)"
    ):
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


def table(rows, path):
    """Colab's tables: of each image a line with its digit, and its pixels by row."""
    path.write_text("".join(",".join(map(str, row)) + "\n" for row in rows))


def test_mnist_from_the_tables_that_colab_has(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28))
    digits = np.array([3, 1, 4, 1, 9])
    rows = np.concatenate([digits[:, None], images.reshape(5, -1)], axis=1)
    table(rows[:3], tmp_path / "mnist_train_small.csv")
    with pytest.raises(FileNotFoundError, match=r"mnist needs mnist_test.csv in /"):
        load("mnist", data_dir=tmp_path, split="test")
    table(rows[3:], tmp_path / "mnist_test.csv")
    for split, part in {"train": slice(3), "test": slice(3, 5), "all": slice(5)}.items():
        data = load("mnist", data_dir=tmp_path, split=split)
        assert data.images.dtype == np.uint8
        np.testing.assert_array_equal(data.images[..., 0], images[part])
        np.testing.assert_array_equal(data.labels, digits[part])


@pytest.mark.parametrize("wrong", ["10,0", "3", "3,256", "3,-1", "3,0.5", "x,0", "", "3,0,"])
def test_a_bad_line_of_a_table(tmp_path, wrong):
    rest = ",0" * (784 - wrong.count(",") - (wrong == "3"))
    path = tmp_path / "mnist_train_small.csv"
    path.write_text(f"5{',7' * 784}\n{wrong}{rest}\n")
    with pytest.raises(ValueError, match=rf"^{path}:2: expected a digit and 784 pixels of 0…255"):
        load("mnist", data_dir=tmp_path)


def test_an_empty_table(tmp_path):
    (tmp_path / "mnist_train_small.csv").touch()
    with pytest.raises(ValueError, match=r"mnist_train_small.csv:1: expected .* got no line"):
        load("mnist", data_dir=tmp_path)


def test_where_mnist_does_not_come_the_tables_are_read(tmp_path, monkeypatch):
    from jdml.registry import DATASETS

    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    beside = tmp_path / "mnist_train_small.csv"
    record = dataclasses.replace(DATASETS["mnist"], beside=str(beside))
    monkeypatch.setitem(DATASETS, "mnist", record)
    with pytest.raises(FileNotFoundError, match="mnist is not prepared"):
        load("mnist", download=False)
    table(np.eye(2, 785, dtype=int), beside)
    with pytest.warns(UserWarning, match=f"{beside} is read, a part of mnist, for mnist is not"):
        assert len(load("mnist", download=False)) == 2


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


def test_a_damaged_copy_of_tfds_is_told_in_words_and_hides_no_whole_one(tmp_path):
    pytest.importorskip("tensorflow_datasets")
    subprocess.run([sys.executable, "-c", PREPARE, tmp_path], check=True, capture_output=True)
    place = tmp_path / "mnist" / "3.0.1"
    for name in ("3.0.2", "incomplete.AB9XYZ_3.0.1"):
        newer = place.parent / name
        newer.mkdir()
        shutil.copy(place / "dataset_info.json", newer)
    assert len(load("mnist", data_dir=tmp_path)) == 10
    (shard,) = place.glob("*train.array_record*")
    whole, told = shard.read_bytes(), "must be a whole copy as TensorFlow Datasets prepares it"
    for content, why in (
        (b"", "is empty"),
        (whole[: len(whole) // 2], ""),
        (bytes(len(whole)), ""),
    ):
        shard.write_bytes(content)
        with pytest.raises(ValueError, match=f"3.0.1 {told}: .*{why}.*move it away") as caught:
            load("mnist", data_dir=tmp_path)
        assert "\n" not in str(caught.value)
    shard.unlink()
    with pytest.raises(ValueError, match=f"{told}: .*array_record.* is missing"):
        load("mnist", data_dir=tmp_path)
    shard.write_bytes(whole)
    (place / "dataset_info.json").write_text("{")
    with pytest.raises(ValueError, match=told):
        load("mnist", data_dir=tmp_path)


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
