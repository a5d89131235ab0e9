"""Folders as they come: links, parts, folders around folders, names, long tails; one list of images; checked whole."""

import shutil
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from jdml import data
from jdml.data import check
from jdml.data.checking import Count, _told
from jdml.data.duplicates import Alike, Place
from jdml.data.folder import read_folder
from jdml.data.walk import image_files, suffixes

Image = pytest.importorskip("PIL.Image")


def draw(*files: Path) -> None:
    for n, file in enumerate(files):
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (n, 9, 9)).save(file, "png")


def classes(root: Path, names, each=2) -> None:
    for name in names:
        draw(*(root / name / f"{i}.png" for i in range(each)))


def found(root: Path) -> dict[str, list[str]]:
    """The classes' names of each part, in their order."""
    listing = read_folder(root)
    names, ids = listing.names["class"], listing.views["class"]
    return {
        part: [names[i] for i in np.unique(ids[rows])]
        for part, rows in listing.splits.items()
        if part != "all"
    }


# Links


def test_links_to_files_and_folders_are_entered(tmp_path):
    classes(tmp_path / "store", ["one", "two"])
    root = tmp_path / "photos"
    classes(root, ["ant", "bee"])
    (root / "cat").symlink_to(tmp_path / "store" / "one")
    (root / "dog").mkdir()
    (root / "dog" / "deep").symlink_to(tmp_path / "store" / "two")
    draw(tmp_path / "lone.png")
    (root / "ant" / "more.png").symlink_to(tmp_path / "lone.png")
    assert len(image_files(root)[0]) == 9
    assert len(read_folder(root).files) == 9
    assert found(root) == {"train": ["ant", "bee"], "test": ["cat", "dog"]}


def test_circles_and_links_to_nowhere(tmp_path):
    classes(tmp_path, ["ant", "bee"])
    (tmp_path / "ant" / "up").symlink_to(tmp_path)
    (tmp_path / "all").symlink_to(tmp_path)
    (tmp_path / "bee" / "self").symlink_to(tmp_path / "bee" / "self")
    (tmp_path / "bee" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    listing = read_folder(tmp_path)
    assert len(listing.files) == 4
    assert "2 links that lead nowhere left out" in listing.notes
    findings = data.check("folder", tmp_path)
    assert "2 links that lead nowhere left out" in {*findings.problems} - {*findings.notes}


def test_folders_that_lead_to_each_other_are_one_file_in_two_classes(tmp_path):
    classes(tmp_path, ["ant", "bee"])
    (tmp_path / "ant" / "b").symlink_to(tmp_path / "bee")
    (tmp_path / "bee" / "a").symlink_to(tmp_path / "ant")
    with pytest.raises(ValueError, match=r"is there twice, as 'bee' here and as 'ant' in "):
        read_folder(tmp_path)


@pytest.mark.parametrize("linked", ["test/ant/x.png", "train/bee/x.png"])
def test_one_file_in_two_classes_or_parts_is_refused(tmp_path, linked):
    for part in ("train", "test"):
        classes(tmp_path / part, ["ant", "bee"])
    (tmp_path / linked).symlink_to(tmp_path / "train" / "ant" / "0.png")
    with pytest.raises(ValueError, match=r"there twice.*'ant' in train"):
        read_folder(tmp_path)


def test_one_file_twice_in_a_class_is_taken_once(tmp_path):
    classes(tmp_path, ["ant", "bee"])
    (tmp_path / "ant" / "x.png").symlink_to(tmp_path / "ant" / "0.png")
    listing = read_folder(tmp_path)
    assert len(listing.files) == 4
    assert listing.notes == ("1 file is a link to another of their class: each is taken once",)


# Parts


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        (("train", "valid", "test"), ["train", "val", "test"]),
        (("Training", "validation"), ["train", "val"]),
        (("training_set", "test_set"), ["train", "test"]),
        (("train2017", "val2017"), ["train", "val"]),
        (("train", "query", "gallery"), ["train", "query", "gallery", "test"]),
        (("val", "test"), ["val", "test"]),
    ],
)
def test_parts_by_their_names(tmp_path, names, parts):
    for name in names:
        classes(tmp_path / name, ["ant", "bee"])
    assert found(tmp_path) == dict.fromkeys(parts, ["ant", "bee"])


def test_what_lies_beside_parts(tmp_path):
    for part in ("train", "test"):
        classes(tmp_path / part, ["ant", "bee"])
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "a.xml").touch()
    draw(*(tmp_path / "unlabeled" / f"{i}.png" for i in range(3)))
    draw(tmp_path / "test" / "lost.png")
    listing = read_folder(tmp_path)
    assert found(tmp_path) == {"train": ["ant", "bee"], "test": ["ant", "bee"]}
    assert listing.notes == (
        "unlabeled/: 3 images have no class, and are left out",
        "1 image lies beside the classes' folders, in none of them",
        "1 file of other kinds (1 .xml) left out",
    )
    classes(tmp_path, ["extra"])
    with pytest.raises(
        ValueError, match=r"holds the parts test/, train/ and extra/, which is none"
    ):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    "where", ["train/train/ant", "train/images/ant", "images/train/ant", "data/images/train/ant"]
)
def test_folders_around_classes_are_looked_into(tmp_path, where):
    test = where.replace("train", "test")
    for place in (where, where.replace("ant", "bee"), test, test.replace("ant", "cat")):
        classes(tmp_path, [place])
    assert found(tmp_path) == {"train": ["ant", "bee"], "test": ["ant", "cat"]}


def test_a_folder_around_classes_alone(tmp_path):
    classes(tmp_path / "images", ["ant", "bee"])
    (tmp_path / "annotations").mkdir()
    assert found(tmp_path) == {"train": ["ant"], "test": ["bee"]}
    classes(tmp_path, ["masks"])
    with pytest.raises(
        ValueError, match=r"holds images/, which holds folders .* beside masks/.*Give .*images"
    ):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("places", "match"),
    [
        (
            ["train/ant", "train/bee"],
            r"holds train/ and no other part: give .*train, whose classes",
        ),
        (["train/train/ant"], r"holds train/ and no other part: give .*train/train, whose"),
        (["train/ant", "car", "bus"], r"holds train/, which holds folders .* beside bus/, car/"),
        (["train/train/ant", "train/bee", "test/ant"], r"train holds train/, .* beside bee/"),
        (["train/ant", "query/ant"], "query and gallery go together"),
        (["train/ant", "test/ant", "query/ant", "gallery/ant"], "in place of test"),
        (["train", "test", "car"], r"holds the parts test/, train/ and car/, which is none"),
    ],
)
def test_what_cannot_be_told_is_refused(tmp_path, places, match):
    classes(tmp_path, places)
    with pytest.raises(ValueError, match=match):
        read_folder(tmp_path)


def test_a_class_may_be_called_train(tmp_path):
    classes(tmp_path, ["bus", "train"])
    assert found(tmp_path) == {"train": ["bus"], "test": ["train"]}
    note = "train/ is read as a class: no other part is beside it"
    assert read_folder(tmp_path).notes == (note,)


@pytest.mark.parametrize("where", ["", "train/"])
def test_images_without_a_class_are_no_class(tmp_path, where):
    classes(tmp_path, [f"{where}ant", f"{where}bee", f"{where}Unlabeled"])
    if where:
        classes(tmp_path, ["test/ant"])
    listing = read_folder(tmp_path)
    assert list(listing.names["class"].values()) == ["ant", "bee"]
    assert listing.notes == ("Unlabeled/: 2 images have no class, and are left out",)


# Names


@pytest.mark.parametrize(
    "name", ["a.jfif", "a.jpe", "a.JPEG", "a.dib", "a.pgm", "a.tga", "a.apng", "a.webp", "a.qoi"]
)
def test_what_pillow_reads_is_an_image(tmp_path, name):
    draw(tmp_path / "ant" / name, tmp_path / "bee" / name)
    assert Path(name).suffix.lower() in suffixes()
    assert len(read_folder(tmp_path).files) == 2
    assert data.check("folder", tmp_path, sample=2).decoded == 2


@pytest.mark.parametrize("name", [".hidden", "__MACOSX", "@eaDir", "$RECYCLE.BIN", "lost+found"])
def test_folders_of_systems_are_no_classes(tmp_path, name):
    classes(tmp_path, ["ant", "bee", name, f"ant/{name}"])
    assert found(tmp_path) == {"train": ["ant"], "test": ["bee"]}
    assert len(image_files(tmp_path)[0]) == 4


def test_accents_are_one_label(tmp_path):
    forms = [unicodedata.normalize(form, "café") for form in ("NFC", "NFD")]
    for part, name in zip(("train", "test"), forms, strict=True):
        classes(tmp_path / part, [name, "tea"])
    assert found(tmp_path) == {"train": [forms[0], "tea"], "test": [forms[0], "tea"]}
    classes(tmp_path / "train", [forms[1]])
    assert len(read_folder(tmp_path).splits["train"]) == 6


def test_classes_of_folders_in_folders_are_told(tmp_path):
    for name in ("animals/cat", "animals/dog", "cars/audi", "cars/bmw", "ships/one", "trees"):
        classes(tmp_path, [name])
    assert found(tmp_path) == {"train": ["animals", "cars"], "test": ["ships", "trees"]}
    (note,) = read_folder(tmp_path).notes
    assert note == (
        "2 classes have their images in several folders, which are not told apart (animals/cat/, animals/dog/): if "
        "each of these is a class, put them side by side, or give a .csv file of file,label"
    )
    assert note in data.check("folder", tmp_path).notes
    draw(tmp_path / "cars" / "lone.png")  # as a folder in a class of images, which is one
    assert read_folder(tmp_path).notes[0].startswith("1 class has its images in several folders")


def test_several_folders_of_one_part_are_told(tmp_path):
    for part in ("train", "test1", "test2"):
        classes(tmp_path / part, ["ant", f"of {part}"])
    assert read_folder(tmp_path).notes == ("test1/, test2/ are read as one part, test",)


def test_names_that_look_alike_are_told(tmp_path):
    classes(tmp_path, ["Cat", "cat", "red fox", "red  fox", "Ox", "nan"])
    assert read_folder(tmp_path).notes == (
        "classes with names that differ in case or spaces alone: 'Cat'/'cat', 'red  fox'/'red fox'",
        "a class is called 'nan': rows without a label?",
    )


def test_numbers_in_names_count(tmp_path):
    classes(tmp_path, ["1", "2", "9", "10", "11", "100"])
    assert found(tmp_path) == {"train": ["1", "2", "9"], "test": ["10", "11", "100"]}


@pytest.mark.parametrize("turn", [1, -1])
def test_the_halves_of_a_long_tail_are_alike_and_it_is_told(tmp_path, turn):
    for name, each in zip("abcdefgh"[::turn], (20, 12, 8, 3, 2, 2, 1, 1), strict=True):
        classes(tmp_path, [name], each)
    listing = read_folder(tmp_path)
    ids = listing.views["class"]
    parts = {part: ids[listing.splits[part]] for part in ("train", "test")}
    assert {part: len(np.unique(of)) for part, of in parts.items()} == {"train": 4, "test": 4}
    assert len(parts["test"]) > 0.3 * len(ids)
    assert not np.intersect1d(parts["train"], parts["test"]).size
    (note,) = listing.split_notes
    assert "every second class by its number of images is scored instead" in note
    assert note in data.check("folder", tmp_path).notes
    assert data.resplit(listing, "classes").split_notes == ()


# Whether a folder holds a data set whole


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


@pytest.mark.slow
def test_a_whole_folder(animals, capsys):
    findings = check("folder", animals)
    assert findings.problems == ()
    assert findings.decoded == 6
    assert [part.found for part in findings.parts] == [Count(1, 3), Count(1, 3)]
    assert not findings.lists_are_whole  # nothing is published of it
    assert capsys.readouterr().err == ""
    check("folder", animals, progress=True)
    assert "6/6" in capsys.readouterr().err


@pytest.mark.slow
def test_damaged_images_are_named(animals):
    for name in ("cat/1.jpg", "dog/2.jpg"):
        path = animals / name
        path.write_bytes(path.read_bytes()[:-99])
    (problem,) = check("folder", animals).problems
    assert problem.startswith("2 of 6 images are damaged: ")
    assert "cat/1.jpg: expected a whole image" in problem
    assert "dog/2.jpg: expected a whole image" in problem


@pytest.mark.slow
def test_copies_are_found(animals):
    (animals / "cat" / "again.jpg").write_bytes((animals / "cat" / "1.jpg").read_bytes())
    findings = check("folder", animals)
    assert findings.problems == ()
    copies = f"{animals}/cat/1.jpg = {animals}/cat/again.jpg"
    assert f"1 image has copies in their class: {copies}" in findings.notes
    (animals / "dog" / "cat.jpg").write_bytes((animals / "cat" / "2.jpg").read_bytes())
    (problem,) = check("folder", animals).problems
    assert problem == (
        f"1 image lies in two classes or parts, as copies: {animals}/cat/2.jpg = {animals}/dog/cat.jpg"
    )


@pytest.mark.slow
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


@pytest.mark.slow
def test_one_folder_too_high(animals, tmp_path_factory):
    higher = tmp_path_factory.mktemp("higher")
    animals.rename(higher / "animals")
    wanted = "expected two folders of images at least, one for each class"
    assert list(check("folder", higher).problems) == [
        f"train has 1 class: {wanted}",
        f"test has no classes: {wanted}",
    ]


def test_images_that_are_nearly_the_same_are_counted():
    one = Alike(Place("a.jpg", "train", "ant"), Place("b.jpg", "test", "bee"), 1.0)
    assert _told([]) == ()
    assert _told([one])[0].startswith("1 couple of images is nearly the same")
    assert _told([one, one])[0].startswith("2 couples of images are nearly the same")


def test_a_folder_of_images_needs_pillow(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="a folder of images needs pillow"):
        suffixes.__wrapped__()


@pytest.mark.slow
def test_a_sample(animals):
    assert check("folder", animals, sample=2).decoded == 2
    assert check("folder", animals, sample=9).decoded == 6
    with pytest.raises(ValueError, match="within must be at least 0, got -1"):
        check("folder", animals, within=-1)
    with pytest.raises(ValueError, match="sample must be at least 1, got 0"):
        check("folder", animals, sample=0)


@pytest.mark.slow
def test_lists_that_are_wrong(tmp_path):
    header = "image_id class_id super_class_id path\n"
    (tmp_path / "Ebay_train.txt").write_text(header + "1 1 1 a/1.JPG\n2 2 1 a/2.JPG\n")
    (tmp_path / "Ebay_test.txt").write_text(header + "3 2 1 a/2.JPG\n")
    findings = check("sop", tmp_path)
    assert findings.problems[:2] == (
        "train has 2 classes and 2 images, published are 11318 and 59551",
        "test has 1 class and 1 image, published are 11316 and 60502",
    )
    assert findings.problems[2] == "1 class is both in train and in test: 2"
    assert findings.problems[3] == "1 of 3 images are in the lists twice"
    assert findings.problems[4].startswith("3 of 3 image files are missing: ")
    assert [part.missing for part in findings.parts] == [2, 1]


@pytest.mark.slow
def test_lists_that_cannot_be_read(tmp_path):
    (problem,) = check("cub", tmp_path).problems
    assert "cub needs images.txt" in problem
    (tmp_path / "list_eval_partition.txt").write_text("1\nheader\na b\n")
    (problem,) = check("inshop", tmp_path).problems
    assert "list_eval_partition.txt:3: expected" in problem
    problems = check("mnist", tmp_path).problems
    assert "mnist needs train-images" in problems[0]


@pytest.mark.slow
def test_one_of_two_halves(shared_data, tmp_path):
    (tmp_path / "images_evaluation.zip").symlink_to(
        shared_data / "omniglot" / "images_evaluation.zip"
    )
    findings = check("omniglot", tmp_path)
    assert [part.found.images for part in findings.parts] == [0, 13180]
    assert not findings.lists_are_whole
    (problem,) = findings.problems
    assert "images_background" in problem


@pytest.mark.slow
def test_unknown_name(tmp_path):
    with pytest.raises(ValueError, match=r"name must be one of \('digits', .*, got 'imagenet'"):
        check("imagenet", tmp_path)


@pytest.mark.parametrize(
    ("name", "folder", "images"),
    [("cub", "cub200_2011", 11788), ("cars", "cars196", 16185), ("sop", "sop", 120053),
     ("inshop", "inshop", 52712)],
)  # fmt: skip
@pytest.mark.slow
def test_the_real_lists_are_whole_and_their_images_missing(shared_data, name, folder, images):
    findings = check(name, shared_data / folder)
    assert findings.lists_are_whole
    assert sum(part.missing for part in findings.parts) == images
    (problem,) = findings.problems
    assert problem.startswith(f"{images} of {images} image files are missing: ")


@pytest.mark.slow
def test_the_real_crops_are_a_part(shared_data):
    findings = check("cub", shared_data / "cub_crops227", sample=20)
    assert findings.decoded == 20
    assert [part.found for part in findings.parts] == [Count(20, 600), Count(20, 600)]
    assert len(findings.problems) == 2


@pytest.mark.parametrize(("name", "images"), [("mnist", 70000), ("omniglot", 32460)])
@pytest.mark.slow
def test_the_real_small_images(shared_data, name, images):
    findings = check(name, shared_data / name)
    assert findings.problems == ()
    assert findings.lists_are_whole
    assert findings.decoded == images
