"""Omniglot and MNIST from the files of their authors, whole and damaged."""

import gzip
import itertools
import shutil
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from data.pictures import encoded

from jdml.data import check, load

Image = pytest.importorskip("PIL.Image")

# Omniglot

LETTERS = {
    "images_background": {"Greek": 3, "Latin": 2},
    "images_evaluation": {"Angelic": 2, "Keble": 1, "ULOG": 1},
}
LETTER = "images_background/Latin/character02/0002_01.png"


def drawing(source: str, alphabet: str, letter: int, drawer: int) -> np.ndarray:
    """Return one letter's ink (True): noise seeded by its name."""
    seed = [len(source), len(alphabet), ord(alphabet[0]), letter, drawer]
    return np.random.default_rng(seed).random((105, 105)) < 0.3


def write_omniglot(folder: Path, source: str, packed: bool = True) -> Path:
    """Write PNGs of two drawers, 1 bit, white paper, in unsorted order, with a system's own files between them."""
    file = folder / f"{source}.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{source}/", b"")
        archive.writestr(f"__MACOSX/{source}/Greek/character01/._0001_01.png", b"junk")
        archive.writestr(f"{source}/.DS_Store", b"junk")
        for alphabet, letters in reversed(LETTERS[source].items()):
            for letter, drawer in itertools.product(range(letters, 0, -1), (1, 2)):
                paper = Image.fromarray(~drawing(source, alphabet, letter, drawer)).convert("1")
                name = f"{source}/{alphabet}/character{letter:02}/{letter:04}_{drawer:02}.png"
                archive.writestr(name, encoded(paper))
    if not packed:
        shutil.unpack_archive(file, folder)
        file.unlink()
    return file


@pytest.mark.parametrize("packed", [True, False])
def test_omniglot(tmp_path, packed):
    for source in LETTERS:
        write_omniglot(tmp_path, source, packed)
    data = load("omniglot", data_dir=tmp_path, image_size=105)
    expected = [
        drawing("images_background", alphabet, letter, drawer)
        for alphabet, letters in LETTERS["images_background"].items()
        for letter in range(1, letters + 1)
        for drawer in (1, 2)
    ]
    assert data.images.dtype == np.uint8
    np.testing.assert_array_equal(data.images[..., 0], 255 * np.array(expected))
    np.testing.assert_array_equal(data.labels, [0] * 6 + [1] * 4)
    np.testing.assert_array_equal(data.views["alphabet"], data.labels)
    np.testing.assert_array_equal(data.views["letter"], np.repeat(np.arange(5), 2))
    assert data.class_names["alphabet"] == ("Greek", "Latin")
    assert data.class_names["letter"][2:4] == ("Greek/character03", "Latin/character01")
    # Smaller images are averages over areas.
    small = load("omniglot", data_dir=str(tmp_path), image_size=21).images[..., 0]
    means = data.images.reshape(-1, 21, 5, 21, 5).mean((2, 4))
    np.testing.assert_allclose(small, means, atol=1.01)
    train, test, whole = (
        load("omniglot", data_dir=tmp_path, split=split) for split in ("train", "test", "all")
    )
    assert train.images.shape == (10, 28, 28, 1)
    np.testing.assert_array_equal(whole.images, np.concatenate([train.images, test.images]))
    np.testing.assert_array_equal(whole.labels[10:], test.labels + 2)
    np.testing.assert_array_equal(whole.views["letter"][10:], test.views["letter"] + 5)
    assert whole.num_classes == 5


def test_damaged_omniglot_is_refused(tmp_path):
    file = write_omniglot(tmp_path, "images_background")
    with pytest.raises(FileNotFoundError, match=r"images_evaluation\.zip\b"):
        load("omniglot", data_dir=tmp_path, split="test")
    content = bytearray(file.read_bytes())
    content[content.index(b"IDAT", content.index(LETTER.encode())) + 9] ^= 255
    for damaged, name in ((content, f"images_background.zip/{LETTER}"), (content[:-40], file.name)):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"{name}\b"):
            load("omniglot", data_dir=tmp_path)


# MNIST

RANDOM = np.random.default_rng(0)
IMAGES = {
    part: RANDOM.integers(0, 256, (n, 5, 4), np.uint8) for part, n in (("train", 6), ("t10k", 3))
}
DIGITS = {"train": np.array([3, 1, 4, 1, 5, 9], np.uint8), "t10k": np.array([2, 6, 5], np.uint8)}


def idx(values: np.ndarray) -> bytes:
    """The IDX format, written from its definition."""
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    return header + values.tobytes()


def write_mnist(folder: Path, packed: bool = False) -> None:
    for part in ("train", "t10k"):
        for name, values in (("images-idx3", IMAGES[part]), ("labels-idx1", DIGITS[part])):
            content = gzip.compress(idx(values)) if packed else idx(values)
            (folder / f"{part}-{name}-ubyte{'.gz' * packed}").write_bytes(content)


@pytest.mark.parametrize("packed", [True, False])
def test_mnist(tmp_path, packed):
    write_mnist(tmp_path, packed)
    for split, part in (("train", "train"), ("test", "t10k")):
        data = load("mnist", data_dir=tmp_path, split=split)
        np.testing.assert_array_equal(data.images[..., 0], IMAGES[part])
        np.testing.assert_array_equal(data.labels, DIGITS[part])
        np.testing.assert_array_equal(data.views["parity"], DIGITS[part] % 2)
    whole = load("mnist", data_dir=str(tmp_path), split="all")
    np.testing.assert_array_equal(whole.labels, np.concatenate([DIGITS["train"], DIGITS["t10k"]]))


GOOD = idx(IMAGES["train"])
PIXELS = "train-images-idx3-ubyte"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (PIXELS, GOOD[:-1]),
        (PIXELS, b""),
        (PIXELS, idx(DIGITS["train"])),
        (PIXELS, b"\x00\x00\x0d\x03" + GOOD[4:]),
        (f"{PIXELS}.gz", gzip.compress(GOOD)[:-9]),
        (f"{PIXELS}.gz", GOOD),
    ],
)
def test_damaged_mnist_is_refused(tmp_path, name, content):
    write_mnist(tmp_path)
    (tmp_path / name.removesuffix(".gz")).unlink()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"/{name}:"):
        load("mnist", data_dir=tmp_path)


def test_missing_mnist_file_is_named_and_other_parts_are_checked(tmp_path):
    write_mnist(tmp_path, packed=True)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    assert len(load("mnist", data_dir=tmp_path)) == 6
    with pytest.raises(FileNotFoundError, match=rf"\bt10k-labels-idx1-ubyte\b.* {tmp_path}"):
        load("mnist", data_dir=tmp_path, split="test")
    findings = check("mnist", tmp_path)
    assert [part.counts.images for part in findings.parts] == [6, 0]
    assert "t10k-labels-idx1-ubyte" in findings.problems[0]


@pytest.mark.slow  # decodes 13,180 drawings and reads 70,000 images
def test_real_omniglot_and_mnist(shared_data):
    letters = load("omniglot", data_dir=shared_data / "omniglot", split="test")
    assert letters.images.shape == (13180, 28, 28, 1)
    assert (letters.num_classes, letters.relabel("letter").num_classes) == (20, 659)
    assert (np.bincount(letters.views["letter"]) == 20).all()
    assert 15 < letters.images.mean() < 25  # ink is bright and rare
    train = load("mnist", data_dir=shared_data / "mnist")
    test = load("mnist", data_dir=shared_data / "mnist", split="test")
    assert train.images.shape == (60000, 28, 28, 1)
    assert train.images.mean() / 255 == pytest.approx(0.13066, abs=1e-5)
    counts = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert np.bincount(test.labels).tolist() == counts
