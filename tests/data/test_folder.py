"""Folders of images: links, parts, names, long tails; and checks that a data set is complete."""

import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from jdml import data
from jdml.data import Dataset, ImageFiles, check, load
from jdml.data.folder import read_folder
from jdml.data.listing import normalized
from jdml.data.splits import split_by_groups
from jdml.runs.identity import data_fingerprint

Image = pytest.importorskip("PIL.Image")


def draw(*files: Path) -> None:
    for n, file in enumerate(files):
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (n, 9, 9)).save(file, "png")


def classes(root: Path, *names: str, each: int = 2) -> None:
    for name in names:
        draw(*(root / name / f"{i}.png" for i in range(each)))


def parts_of(root: Path) -> dict[str, list[str]]:
    """Return the names of the classes of each part, in order."""
    listing = read_folder(root)
    names, ids = listing.names["class"], listing.views["class"]
    return {
        part: [names[i] for i in np.unique(ids[rows])]
        for part, rows in listing.splits.items()
        if part != "all"
    }


def test_folder_of_classes(tmp_path):
    for name, count in (("c", 1), ("a", 2), ("b", 3)):
        for i in range(count):
            draw(tmp_path / name / f"{i}.JPG")
    draw(tmp_path / "a" / "deeper" / "x.png", tmp_path / "a" / ".hidden.png")
    draw(tmp_path / ".cache" / "x.png")
    (tmp_path / "a" / "notes.txt").write_text("no image")
    (tmp_path / "README.md").write_text("no class")
    train = load("folder", data_dir=tmp_path, split="train", transform=data.conventional(8))
    assert train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert train.class_names["class"] == ("a", "b")
    test = load("folder", data_dir=tmp_path, split="test")
    assert (test.labels.tolist(), test.class_names["class"]) == ([0], ("c",))
    assert len(load("folder", data_dir=tmp_path)) == len(load("folder", tmp_path, split="all")) == 7


# Groups


def sides(root: Path, groups: object) -> tuple[data.Dataset, data.Dataset]:
    """Return both parts; no group is in both, and both have images."""
    train, test = (load("folder", root, split=split, groups=groups) for split in ("train", "test"))
    assert not set(train.groups.tolist()) & set(test.groups.tolist())
    assert min(len(train), len(test)) > 0
    assert len(train) + len(test) == len(load("folder", root, groups=groups))
    return train, test


def test_groups_stay_on_one_side_of_every_split(tmp_path):
    """Sessions that show all classes; sessions of one or two classes; a pattern, an array."""
    root = tmp_path / "session9" / "photos"  # not searched
    names = [
        (f"c{c}", f"s{s}_session{s}_{i}.png") for c in range(6) for s in range(5) for i in (0, 1)
    ]
    draw(*(root / kind / name for kind, name in names))
    pattern, plain = r"_session(\d+)", tmp_path / "session8" / "plain.csv"
    plain.parent.mkdir()
    paths = [f"../session9/photos/{kind}/{name},{kind}" for kind, name in names]
    plain.write_text("\n".join(["file,label", *paths]))
    sessions = np.array([name[:2] for _, name in names])
    for place, groups in ((root, pattern), (root, sessions), (plain, pattern)):
        train, test = sides(place, groups)
        assert set(train.class_names["class"]) == set(test.class_names["class"])  # each shows all
        assert len(np.unique(test.groups)) == 1
    assert load("folder", root, groups=sessions).groups.tolist() == sessions.tolist()
    by_pair = np.array([f"{name[:2]} {int(kind[1]) // 2}" for kind, name in names])
    train, test = sides(root, by_pair)  # classes that share a session are on one side
    assert not set(train.class_names["class"]) & set(test.class_names["class"])
    own = np.array([f"{kind} {name[:2]}" for kind, name in names])
    assert (
        sides(root, own)[0].labels.tolist() == load("folder", root, split="train").labels.tolist()
    )
    listing = split_by_groups(read_folder(root), own, "")
    for rule, share in (("images", 0.2), ("images", 0.6), ("classes", None)):
        parts = data.resplit(listing, rule, seed=3, share=share).splits
        assert not set(own[parts["train"]]) & set(own[parts["test"]])
        scored = [(parts["test"] // 10 == kind).sum() for kind in range(6)]
        assert rule == "classes" or scored == [2 if share == 0.2 else 6] * 6
    assert data.resplit(listing, "none").splits["train"].tolist() == list(range(60))


def test_groups_that_do_not_fit_are_refused(tmp_path):
    classes(tmp_path / "own", *(f"{part}/{kind}" for part in ("train", "test") for kind in "ab"))
    classes(tmp_path / "one", "a", "b", "c", "d")
    cases = [
        ("own", r"(\d)\.png", "one side .*: 0, 1"),
        ("one", r"\d\.png", "parentheses"),
        ("one", "(", "expression"),
        ("one", "sesion", "parentheses"),
        ("one", r"(1)\.png", r"4 of 8 files: a/0\.png"),
        ("one", np.zeros(7, int), r"\[8\]"),
        ("one", np.zeros(8), "float64"),
    ]
    for place, groups, problem in cases:
        with pytest.raises(ValueError, match=f"^groups\\b.*{problem}"):
            load("folder", tmp_path / place, split="train", groups=groups)
    with pytest.raises(ValueError, match=r"^groups\b"):
        load("folder", tmp_path / "one", split="train", groups=np.zeros(8, int))
    crossing = split_by_groups(read_folder(tmp_path / "one"), np.arange(8) % 2, "")
    with pytest.raises(ValueError, match=r"^groups\b"):
        data.split_by_class_names(crossing, ["a", "c"])
    assert len(load("folder", tmp_path / "own", groups=r"(\w+/\w)/").groups) == 4
    with pytest.raises(ValueError, match=r"^groups\b"):
        load("digits", groups="camera")


# Links


def test_links_are_followed_except_circular_broken_and_double_ones(tmp_path):
    root = tmp_path / "photos"
    classes(root, "ant", "bee")
    classes(tmp_path / "store", "one", "two")
    (root / "cat").symlink_to(tmp_path / "store" / "one")
    (root / "dog").mkdir()
    (root / "dog" / "deep").symlink_to(tmp_path / "store" / "two")
    (root / "ant" / "more.png").symlink_to(tmp_path / "store" / "more.png")
    draw(tmp_path / "store" / "more.png")
    assert parts_of(root) == {"train": ["ant", "bee"], "test": ["cat", "dog"]}
    (root / "ant" / "twice.png").symlink_to(root / "ant" / "0.png")
    (root / "ant" / "up").symlink_to(root)
    (root / "all").symlink_to(root)
    (root / "bee" / "self").symlink_to(root / "bee" / "self")
    (root / "bee" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    listing = read_folder(root)
    assert len(listing.files) == 9
    twice, broken = sorted(listing.notes, key=lambda note: "broken" in note)
    assert twice.startswith("1 file")
    assert broken.endswith("(2 broken link) left out")
    findings = check("folder", root)
    assert broken in {*findings.problems} - {*findings.notes}


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("ant/b", "bee"),
        ("test/ant/x.png", "train/ant/0.png"),
        ("train/bee/x.png", "train/ant/0.png"),
    ],
)
def test_linked_file_in_two_classes_or_parts_is_refused(tmp_path, link, target):
    for part in ("train", "test") if "train" in target else ("",):
        classes(tmp_path / part, "ant", "bee")
    (tmp_path / link).symlink_to(tmp_path / target)
    with pytest.raises(ValueError, match="'ant'"):
        read_folder(tmp_path)


# Parts


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        (("train", "valid", "test"), ["train", "val", "test"]),
        (("Training", "validation"), ["train", "val"]),
        (("train", "query", "gallery"), ["train", "query", "gallery", "test"]),
        (("val", "test"), ["val", "test"]),
    ],
)
def test_parts_are_recognized_by_name_and_numbers_sorted(tmp_path, names, parts):
    for name in names:
        classes(tmp_path / name, "9", "10", "bee")
    assert parts_of(tmp_path) == dict.fromkeys(parts, ["9", "10", "bee"])


def test_folders_next_to_parts_are_skipped_and_noted(tmp_path, caplog):
    for part in ("train", "test"):
        classes(tmp_path / part, "ant", "bee")
    assert len(load("folder", tmp_path)) == 4
    (line,) = caplog.messages
    assert "4 of 8" in line
    (note,) = check("folder", tmp_path).notes
    assert re.match(r"2 classes .*: ant, bee$", note)
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "a.xml").touch()
    draw(tmp_path / "test" / "lost.png")
    assert parts_of(tmp_path) == {"train": ["ant", "bee"], "test": ["ant", "bee"]}
    lost, others = read_folder(tmp_path).notes
    assert lost.startswith("1 image ")
    assert "(1 .xml)" in others
    classes(tmp_path, "extra")
    assert read_folder(tmp_path).notes[0].startswith("extra/ ")
    assert len(read_folder(tmp_path).files) == 9 - 1  # of the parts


@pytest.mark.parametrize(
    ("places", "names"),
    [
        (["ant/x", "new_test/bee"], "/new_test"),
        (["set/train/ant", "set/test/ant", "set/test/bee"], "/set"),
        (["train/ant", "query/ant"], "query and gallery"),
    ],
)
def test_part_without_its_counterpart_is_refused(tmp_path, places, names):
    classes(tmp_path, *places)
    with pytest.raises(ValueError, match=rf"{names}\b"):
        read_folder(tmp_path)


def test_classes_without_images_and_parts_of_one_class_are_named(tmp_path):
    classes(tmp_path, "cat", "cow")
    (tmp_path / "dog").mkdir()
    assert len(load("folder", data_dir=tmp_path)) == 4
    (note,) = read_folder(tmp_path).notes
    assert note.startswith("dog/ ")
    classes(tmp_path / "one" / "train", "a")
    classes(tmp_path / "one" / "test", "b", "c")
    problems = check("folder", tmp_path / "one").problems
    assert any(line.startswith("train has 1 class") for line in problems)
    classes(tmp_path / "alone", "a")
    notes = check("folder", tmp_path / "alone").notes
    assert any(line.startswith("train has 1 class") for line in notes)


# Names


def test_every_file_that_pillow_reads_is_an_image_but_in_system_folders(tmp_path):
    for name in ("ant", "bee"):
        draw(*(tmp_path / name / f"a.{suffix}" for suffix in ("jfif", "JPEG", "tga", "webp")))
    for name in (".hidden", "__MACOSX", "$RECYCLE.BIN"):
        classes(tmp_path, name, f"ant/{name}")
    assert parts_of(tmp_path) == {"train": ["ant"], "test": ["bee"]}
    assert check("folder", tmp_path).decoded == 8


def test_composed_and_decomposed_accents_are_one_label(tmp_path):
    forms = [unicodedata.normalize(form, "café") for form in ("NFC", "NFD")]
    for part, name in zip(("train", "test"), forms, strict=True):
        classes(tmp_path / part, name, "tea")
    assert parts_of(tmp_path) == {"train": [forms[0], "tea"], "test": [forms[0], "tea"]}
    classes(tmp_path / "train", forms[1])
    assert len(read_folder(tmp_path).splits["train"]) == 6


def test_names_are_the_same_in_every_locale():
    """As Python reads them under ASCII, where a file's bytes are escaped, and under UTF-8."""
    names = ["ärger/猫.png", "ärger/猫.png".encode().decode("ascii", "surrogateescape")]
    assert {normalized(name) for name in names} == {"ärger/猫.png"}
    data = [Dataset("one", ImageFiles([Path(name)]), np.zeros(1, int)) for name in names]
    assert len(set(map(data_fingerprint, data))) == 1


# Checks that a data set is complete


def test_complete_folder_has_no_problems_and_copies_are_named(tmp_path, capsys):
    cat, dog = tmp_path / "cat", tmp_path / "dog"
    draw(*(place / f"{i}.png" for place in (cat, dog) for i in range(3)))
    findings = check("folder", tmp_path)
    assert findings.problems == ()
    assert findings.decoded == 6
    assert [tuple(part.counts) for part in findings.parts] == [(1, 3), (1, 3)]
    assert not findings.lists_are_whole  # no published lists
    assert capsys.readouterr().err == ""
    check("folder", tmp_path, progress=True)
    assert "6/6" in capsys.readouterr().err
    assert check("folder", tmp_path, sample=2).decoded == 2
    assert check("folder", tmp_path, sample=9).decoded == 6
    (cat / "again.png").write_bytes((cat / "1.png").read_bytes())
    findings = check("folder", tmp_path)
    assert findings.problems == ()
    (note,) = [note for note in findings.notes if note.startswith("1 image ")]
    assert note.endswith(f": {cat}/1.png = {cat}/again.png")
    (dog / "cat.png").write_bytes((cat / "2.png").read_bytes())
    (problem,) = check("folder", tmp_path).problems
    assert problem.startswith("1 image ")
    assert problem.endswith(f": {cat}/2.png = {dog}/cat.png")


def test_wrong_lists_are_reported_as_problems(tmp_path):
    header = "image_id class_id super_class_id path\n"
    (tmp_path / "Ebay_train.txt").write_text(header + "1 1 1 a/1.JPG\n2 2 1 a/2.JPG\n")
    (tmp_path / "Ebay_test.txt").write_text(header + "3 2 1 a/2.JPG\n")
    findings = check("sop", tmp_path)
    starts = (
        "train has 2 classes and 2 images,",
        "test has 1 class and 1 image,",
        "1 class ",
        "1 of 3 images ",
        "3 of 3 image files ",
    )
    for problem, start in zip(findings.problems, starts, strict=True):
        assert problem.startswith(start)
    assert [part.missing for part in findings.parts] == [2, 1]
    assert "images.txt" in check("cub", tmp_path).problems[0]  # cannot be read


@pytest.mark.slow  # looks for 200,711 files
@pytest.mark.parametrize(
    ("name", "folder", "images"),
    [("cub", "cub200_2011", 11788), ("cars", "cars196", 16185), ("sop", "sop", 120053),
     ("inshop", "inshop", 52712)],
)  # fmt: skip
def test_real_lists_are_complete_and_missing_images_are_counted(shared_data, name, folder, images):
    findings = check(name, shared_data / folder)
    assert findings.lists_are_whole
    assert sum(part.missing for part in findings.parts) == images
    (problem,) = findings.problems
    assert problem.startswith(f"{images} of {images} image files ")
    if name == "sop":
        train = load("sop", data_dir=shared_data / folder, check_files=False)
        assert train.relabel("super_class").num_classes == 12
        assert "stapler" in train.class_names["super_class"]
    if name == "cub":
        train = load("cub", data_dir=shared_data / "cub_fullres", transform=data.conventional(8))
        assert train.images[:].shape == (49, 8, 8, 3)
