"""Omniglot from zips and folders, whole and damaged, at several sizes, and the real archives."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from jdml.data import load

Image = pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.slow

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


@pytest.mark.parametrize("size", [21, 35])
def test_smaller_images_are_area_averages(data_dir, size):
    native = load("omniglot", data_dir=data_dir, image_size=105).images[..., 0]
    small = load("omniglot", data_dir=str(data_dir), image_size=size).images[..., 0]
    step = 105 // size
    means = native.reshape(-1, size, step, size, step).mean((2, 4))
    np.testing.assert_allclose(small, means, atol=1.01)


def test_the_default_size_is_28(data_dir):
    assert load("omniglot", data_dir=data_dir).images.shape == (10, 28, 28, 1)


def test_labels_are_sorted_and_letters_global(data_dir):
    train = load("omniglot", data_dir=data_dir)
    np.testing.assert_array_equal(train.labels, [0] * 6 + [1] * 4)
    np.testing.assert_array_equal(train.views["alphabet"], train.labels)
    np.testing.assert_array_equal(train.views["letter"], np.repeat(np.arange(5), 2))
    assert train.class_names["alphabet"] == ("Greek", "Latin")
    assert train.class_names["letter"][2:4] == ("Greek/character03", "Latin/character01")


def test_all_is_train_then_test(data_dir):
    whole = load("omniglot", data_dir=data_dir, split="all", image_size=8)
    parts = [load("omniglot", data_dir=data_dir, split=s, image_size=8) for s in ("train", "test")]
    np.testing.assert_array_equal(whole.images, np.concatenate([part.images for part in parts]))
    np.testing.assert_array_equal(whole.labels[10:], parts[1].labels + 2)
    np.testing.assert_array_equal(whole.views["letter"][10:], parts[1].views["letter"] + 5)
    assert whole.num_classes == 5


def test_a_truncated_zip_is_named(tmp_path):
    path = write_zip(tmp_path, "images_background", files("images_background"))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"images_background\.zip: expected a whole zip archive"):
        load("omniglot", data_dir=tmp_path)


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


def test_flipped_bytes_in_a_zip_are_noticed(tmp_path):
    contents = files("images_background")
    member = "images_background/Latin/character02/0002_01.png"
    path = write_zip(tmp_path, "images_background", contents)
    whole = path.read_bytes()
    where = whole.index(contents[member]) + len(contents[member]) // 2
    path.write_bytes(whole[:where] + bytes([whole[where] ^ 255]) + whole[where + 1 :])
    with pytest.raises(ValueError, match=rf"images_background\.zip: {member} is not a whole image"):
        load("omniglot", data_dir=tmp_path)


def test_a_damaged_file_in_a_folder_is_named(tmp_path):
    path = tmp_path / "images_evaluation/Angelic/character01/0965_01.png"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a png")
    with pytest.raises(ValueError, match=r"images_evaluation: .*0965_01\.png is not a whole image"):
        load("omniglot", data_dir=tmp_path, split="test")


def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"needs images_evaluation\.zip, or the folder "):
        load("omniglot", data_dir=tmp_path, split="test")


def test_an_archive_of_something_else(tmp_path):
    write_zip(tmp_path, "images_background", {"cats/1.png": b""})
    with pytest.raises(ValueError, match=r"expected images_background/ALPHABET/.*, found none"):
        load("omniglot", data_dir=tmp_path)


@pytest.mark.parametrize("size", [0, -28, 28.0])
def test_bad_image_size(tmp_path, size):
    with pytest.raises(ValueError, match=f"image_size must be a positive integer, got {size}"):
        load("omniglot", data_dir=tmp_path, image_size=size)


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
