"""What `check` finds: counts, missing files, damaged images, broken lists."""

import shutil

import numpy as np
import pytest

from jdml.data import check
from jdml.data.checking import Count

Image = pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.slow


@pytest.fixture
def animals(tmp_path):
    """Two classes of three images."""
    noise = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(3):
            pixels = noise.integers(0, 256, (20, 30, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{i}.jpg")
    return tmp_path


def test_a_whole_folder(animals, capsys):
    findings = check("folder", animals)
    assert findings.problems == ()
    assert findings.decoded == 6
    assert [part.found for part in findings.parts] == [Count(1, 3), Count(1, 3)]
    assert not findings.lists_are_whole  # nothing is published of it
    assert capsys.readouterr().err == ""
    check("folder", animals, progress=True)
    assert "6/6" in capsys.readouterr().err


def test_damaged_images_are_named(animals):
    for name in ("cat/1.jpg", "dog/2.jpg"):
        path = animals / name
        path.write_bytes(path.read_bytes()[:-99])
    (problem,) = check("folder", animals).problems
    assert problem.startswith("2 of 6 images are damaged: ")
    assert "cat/1.jpg: expected a whole image" in problem
    assert "dog/2.jpg: expected a whole image" in problem


def test_copies_are_found(animals):
    (animals / "cat" / "again.jpg").write_bytes((animals / "cat" / "1.jpg").read_bytes())
    findings = check("folder", animals)
    assert findings.problems == ()
    copies = f"{animals}/cat/1.jpg = {animals}/cat/again.jpg"
    assert f"1 images have copies in their class: {copies}" in findings.notes
    (animals / "dog" / "cat.jpg").write_bytes((animals / "cat" / "2.jpg").read_bytes())
    (problem,) = check("folder", animals).problems
    assert problem == (
        f"1 images lie in two classes or parts, as copies: {animals}/cat/2.jpg = {animals}/dog/cat.jpg"
    )


def test_shared_classes_are_named(animals):
    for part in ("train", "test"):
        (animals / part).mkdir()
        for name in ("cat", "dog"):
            (animals / part / name).mkdir()
            number = "1" if part == "train" else "2"
            for i in range(2):
                content = (animals / name / f"{number if i else 0}.jpg").read_bytes()
                (animals / part / name / f"{i}.jpg").write_bytes(content + part.encode())
    for name in ("cat", "dog"):
        shutil.rmtree(animals / name)
    assert "2 classes are both in train and in test: cat, dog" in check("folder", animals).notes


def test_one_folder_too_high(animals, tmp_path_factory):
    higher = tmp_path_factory.mktemp("higher")
    animals.rename(higher / "animals")
    wanted = "expected two folders of images at least, one for each class"
    assert list(check("folder", higher).problems) == [
        f"train has 1 class: {wanted}",
        f"test has no classes: {wanted}",
    ]


def test_a_sample(animals):
    assert check("folder", animals, sample=2).decoded == 2
    assert check("folder", animals, sample=9).decoded == 6
    with pytest.raises(ValueError, match="sample must be at least 1, got 0"):
        check("folder", animals, sample=0)


def test_lists_that_are_wrong(tmp_path):
    header = "image_id class_id super_class_id path\n"
    (tmp_path / "Ebay_train.txt").write_text(header + "1 1 1 a/1.JPG\n2 2 1 a/2.JPG\n")
    (tmp_path / "Ebay_test.txt").write_text(header + "3 2 1 a/2.JPG\n")
    findings = check("sop", tmp_path)
    assert findings.problems[:2] == (
        "train has 2 classes and 2 images, published are 11318 and 59551",
        "test has 1 classes and 1 images, published are 11316 and 60502",
    )
    assert findings.problems[2] == "1 classes are both in train and in test: 2"
    assert findings.problems[3] == "1 of 3 images are in the lists twice"
    assert findings.problems[4].startswith("3 of 3 image files are missing: ")
    assert [part.missing for part in findings.parts] == [2, 1]


def test_lists_that_cannot_be_read(tmp_path):
    (problem,) = check("cub", tmp_path).problems
    assert "cub needs images.txt" in problem
    (tmp_path / "list_eval_partition.txt").write_text("1\nheader\na b\n")
    (problem,) = check("inshop", tmp_path).problems
    assert "list_eval_partition.txt:3: expected" in problem
    problems = check("mnist", tmp_path).problems
    assert "mnist needs train-images" in problems[0]


def test_one_of_two_halves(shared_data, tmp_path):
    (tmp_path / "images_evaluation.zip").symlink_to(
        shared_data / "omniglot" / "images_evaluation.zip"
    )
    findings = check("omniglot", tmp_path)
    assert [part.found.images for part in findings.parts] == [0, 13180]
    assert not findings.lists_are_whole
    (problem,) = findings.problems
    assert "images_background" in problem


def test_unknown_name(tmp_path):
    with pytest.raises(ValueError, match=r"name must be one of \('digits', .*, got 'imagenet'"):
        check("imagenet", tmp_path)


@pytest.mark.parametrize(
    ("name", "folder", "images"),
    [("cub", "cub200_2011", 11788), ("cars", "cars196", 16185), ("sop", "sop", 120053),
     ("inshop", "inshop", 52712)],
)  # fmt: skip
def test_the_real_lists_are_whole_and_their_images_missing(shared_data, name, folder, images):
    findings = check(name, shared_data / folder)
    assert findings.lists_are_whole
    assert sum(part.missing for part in findings.parts) == images
    (problem,) = findings.problems
    assert problem.startswith(f"{images} of {images} image files are missing: ")


def test_the_real_crops_are_a_part(shared_data):
    findings = check("cub", shared_data / "cub_crops227", sample=20)
    assert findings.decoded == 20
    assert [part.found for part in findings.parts] == [Count(20, 600), Count(20, 600)]
    assert len(findings.problems) == 2


@pytest.mark.parametrize(("name", "images"), [("mnist", 70000), ("omniglot", 32460)])
def test_the_real_small_images(shared_data, name, images):
    findings = check(name, shared_data / name)
    assert findings.problems == ()
    assert findings.lists_are_whole
    assert findings.decoded == images
