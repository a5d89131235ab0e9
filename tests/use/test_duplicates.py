"""Near-duplicate images by a hash or by embeddings, as `jdml data check` finds them."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jdml import data
from jdml.data import integrity
from jdml.data.integrity import Place


def scene(number, size=96):
    """Return a picture of large and small shapes."""
    random = np.random.default_rng(number)
    pixels = np.full((size, size), 128.0)
    for cells in (4, 8, 16, 32):
        shapes = Image.fromarray(random.normal(0, 200 / cells, (cells, cells)).astype(np.float32))
        pixels += np.asarray(shapes.resize((size, size), Image.Resampling.BICUBIC))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).convert("RGB")


@pytest.fixture(scope="module")
def copied(tmp_path_factory) -> Path:
    """Write two classes in two parts; some pictures are repeated in another part or class, slightly changed."""
    root = tmp_path_factory.mktemp("copied")
    for place in ("train/cat", "train/dog", "test/cat", "test/dog"):
        (root / place).mkdir(parents=True)
    for number in range(8):
        scene(number).save(root / f"train/{'cat' if number < 4 else 'dog'}/{number}.png")
    scene(8).save(root / "test/cat/own.png")
    scene(9).save(root / "test/dog/own.png")
    scene(0).resize((40, 40)).save(root / "test/cat/small.png")
    scene(1).save(root / "test/cat/rough.jpg", quality=30)
    scene(2).crop((2, 2, 94, 94)).save(root / "train/dog/cropped.png")
    exif = Image.Exif()
    exif[0x0112] = 6  # viewers turn it by 270 degrees
    scene(4).transpose(Image.Transpose.ROTATE_90).save(
        root / "test/dog/turned.jpg", quality=90, exif=exif
    )
    scene(5).save(root / "train/dog/twin.png")  # same class and part: not reported
    (root / "train/cat/broken.png").write_bytes(b"no image")
    return root


COPIES = {
    ("test/cat/rough.jpg", "train/cat/1.png"),
    ("test/cat/small.png", "train/cat/0.png"),
    ("test/dog/turned.jpg", "train/dog/4.png"),
    ("train/cat/2.png", "train/dog/cropped.png"),
}


def pairs_in(found, root):
    files = [(pair["first"]["file"], pair["second"]["file"]) for pair in found["alike"]]
    return {tuple(str(Path(file).relative_to(root)) for file in pair) for pair in files}


def test_near_duplicates_are_found_by_a_hash(copied, tmp_path, jdml_main):
    pytest.importorskip("imagehash", reason="compares hashes: pip install 'jdml[duplicates]'")
    words = ("data", "check", "folder", copied, "--quiet")
    code, out, _ = jdml_main(*words)
    assert (code, out.count("wrong: ")) == (1, 1)
    code, out, err = jdml_main(*words, "--duplicates", "--json", tmp_path / "found.json")
    assert (code, err) == (1, "")
    assert re.search(r"wrong: 4\b", out)
    assert re.search(r"wrong: 1 of 16\b", out)
    found = json.loads((tmp_path / "found.json").read_text())
    assert pairs_in(found, copied) == COPIES
    distances = [pair["distance"] for pair in found["alike"]]
    assert distances == sorted(distances)
    assert all(float(distance).is_integer() for distance in distances)
    turned = next(c for c in found["alike"] if c["first"]["file"].endswith("turned.jpg"))
    expected = {"file": str(copied / "train/dog/4.png"), "part": "train", "label": "dog"}
    assert turned["second"] == expected
    assert (found["decoded"], len(found["problems"])) == (16, 2)
    code, out, _ = jdml_main(*words, "--duplicates", "--threshold", "0")
    assert not re.search(r"wrong: 4\b", out)
    digits = data.check("digits", None, duplicates=True)
    assert digits.problems == ()  # for a published set it is only a note
    assert len(digits.notes) == bool(digits.alike)


def test_uniform_images_and_other_colours_are_not_duplicates(tmp_path):
    pytest.importorskip("imagehash", reason="compares hashes: pip install 'jdml[duplicates]'")
    far = np.hypot(*(np.mgrid[:96, :96] - 48))
    for name, colour in {"red": (200, 30, 30), "blue": (30, 30, 200), "grey": None}.items():
        pixels = np.full((96, 96, 3), 255, np.uint8)
        pixels[far < 30] = colour or (200, 30, 30)
        picture = Image.fromarray(pixels)
        (tmp_path / name).mkdir()
        picture = picture if colour else picture.convert("L")
        picture.save(tmp_path / name / "0.png")
        picture.resize((80, 80)).save(tmp_path / name / "1.jpg", quality=90)
        if colour == (200, 30, 30):
            (tmp_path / "again").mkdir()
            picture.crop((1, 1, 95, 95)).save(tmp_path / "again" / "0.png")
        for side in (30, 31):
            Image.new("RGB", (side, side), name).save(tmp_path / name / f"flat{side}.png")
    found = data.check("folder", tmp_path, duplicates=True).alike
    labels = {tuple(sorted(place.label for place in pair[:2])) for pair in found}
    assert ("again", "red") in labels  # blue ones come first and have the same hash
    assert {"red", "grey"} < {label for pair in labels for label in pair if "grey" in pair}
    assert ("blue", "red") not in labels
    assert not any("flat" in str(pair) for pair in found)


def test_near_duplicates_are_found_by_a_runs_embeddings(run, photos, tmp_path, jdml_command):
    shutil.copytree(photos, tmp_path / "photos")
    picture = Image.open(photos / "kind0" / "0.png")
    picture.save(tmp_path / "photos" / "kind1" / "again.bmp")
    words = ("data", "check", "folder", tmp_path / "photos", "--quiet", "--duplicates")
    done = jdml_command(*words, "--embeddings-of", run.folder, "--threshold", "1e-4")
    assert done.code == 1, done.err
    assert re.search(r"wrong: 1\b", done.out)
    assert "again.bmp" in done.out


def test_by_embedding_finds_the_nearest_of_another_class():
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(50, 3)) + 100).astype(np.float32)
    vectors[7] = np.nan
    places = [Place(str(row), "", str(label)) for row, label in enumerate(rng.integers(0, 4, 50))]
    labels = np.array([place.label for place in places])
    apart = np.linalg.norm(vectors[:, None].astype(float) - vectors, axis=-1)
    apart = np.where((labels[:, None] == labels) | np.isnan(apart), np.inf, apart)
    expected = {
        tuple(sorted((row, int(other)))): apart[row, other]
        for row, other in enumerate(apart.argmin(axis=1))
        if apart[row, other] <= 0.7
    }
    found = integrity.by_embedding(vectors, places, 0.7)
    pairs = {(int(one.file), int(other.file)): far for one, other, far in found}
    assert pairs == pytest.approx(expected, rel=1e-4)
    for few in (np.full((2, 3), np.nan), np.ones((1, 3))):
        assert integrity.by_embedding(few, places[: len(few)]) == ()
