"""CUB, Cars, SOP and In-shop: small copies, damaged lists, and the real lists."""

import re
from pathlib import Path

import numpy as np
import pytest

from jdml.data import ImageFiles, conventional, load

Image = pytest.importorskip("PIL.Image")
SMALL = {"transform": conventional(8)}


def draw(path: Path, shade: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 10), (shade,) * 3).save(path)


def write(folder: Path, texts: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_bytes(text.encode("latin-1"))


CUB = {
    "classes.txt": "1 001.Albatross\n7 007.Auklet\n100 100.Pelican\n101 101.White Pelican\n",
    "images.txt": "12 007.Auklet/b.jpg\n3 001.Albatross/a b.jpg\n40 101.White Pelican/d.jpg\n"
    "41 100.Pelican/c.jpg\n",
    "image_class_labels.txt": "40 101\n3 1\n12 7\n41 100\n",
}
SOP_HEADER = "image_id class_id super_class_id path\n"
SOP = {
    "Ebay_train.txt": SOP_HEADER + "1 1 1 bicycle_final/1_0.JPG\n2 1 1 bicycle_final/1_1.JPG\n"
    "3 5 12 toaster_final/5_0.JPG\n",
    "Ebay_test.txt": SOP_HEADER + "4 9 12 toaster_final/9_0.JPG\n5 8 3 chair_final/8_0.JPG\n",
}
INSHOP = """7
image_name item_id evaluation_status
img/WOMEN/Dresses/id_00000002/1.jpg     id_00000002 train
img/WOMEN/Dresses/id_00000009/1.jpg     id_00000009 train
img/WOMEN/Tees/id_00000001/1.jpg        id_00000001 query
img/WOMEN/Tees/id_00000001/2.jpg        id_00000001 gallery
img/MEN/Pants/id_00000005/1.jpg         id_00000005 gallery
img/MEN/Pants/id_00000007/1.jpg         id_00000007 query
img/MEN/Pants/id_00000007/2.jpg         id_00000007 gallery
"""


def cub(folder: Path, **changes: str) -> Path:
    """Write ids out of order and with gaps, and labels in another order than images."""
    write(folder, CUB | {f"{name}.txt": text for name, text in changes.items()})
    for line in CUB["images.txt"].splitlines():
        number, path = line.split(maxsplit=1)
        draw(folder / "images" / path, int(number))
    return folder


def cars(folder: Path, paths=None, classes=(1, 98, 99, 196), key="annotations") -> Path:
    io = pytest.importorskip("scipy.io")
    paths = [f"car_ims/{i:06}.jpg" for i in range(1, 5)] if paths is None else paths
    rows = np.zeros(len(paths), [("relative_im_path", "O"), ("class", "O"), ("test", "O")])
    rows["relative_im_path"], rows["class"] = paths, classes[: len(paths)]
    names = np.array([f"Car {i}" for i in range(1, 197)], object)
    io.savemat(folder / "cars_annos.mat", {key: rows, "class_names": names})
    return folder / "cars_annos.mat"


def sop(folder: Path, test: str) -> None:
    write(folder, SOP | {"Ebay_test.txt": test})


def inshop(folder: Path, old: str = "", new: str = "") -> None:
    write(folder, {"list_eval_partition.txt": INSHOP.replace(old, new, 1)})


@pytest.mark.parametrize("inside", ["", "CUB_200_2011"])
def test_cub(tmp_path, inside):
    cub(tmp_path / inside)
    train = load("cub", data_dir=tmp_path, **SMALL)
    assert isinstance(train.images, ImageFiles)
    assert train.labels.tolist() == [1, 0, 2]
    assert train.images[:][:, 4, 4, 0].tolist() == [12, 3, 41]
    assert train.class_names["class"] == ("001.Albatross", "007.Auklet", "100.Pelican")
    assert list(train.views) == ["class"]
    test = load("cub", data_dir=str(tmp_path), split="test", **SMALL)
    assert (test.labels.tolist(), test.class_names["class"]) == ([0], ("101.White Pelican",))
    whole = load("cub", data_dir=tmp_path, split="all")
    assert whole.labels.tolist() == [1, 0, 2, 3]
    assert whole.images.shape == (4, 224, 224, 3)


def test_cars(tmp_path):
    cars(tmp_path)
    for number in range(1, 5):
        draw(tmp_path / f"car_ims/00000{number}.jpg", number)
    for split, shades, names in (("train", [1, 2], (1, 98)), ("test", [3, 4], (99, 196))):
        data = load("cars", data_dir=tmp_path, split=split, **SMALL)
        assert data.labels.tolist() == [0, 1]
        assert data.images[:][:, 4, 4, 0].tolist() == shades
        assert data.class_names["class"] == tuple(f"Car {name}" for name in names)


def test_sop(tmp_path):
    write(tmp_path / "Stanford_Online_Products", SOP)
    train = load("sop", data_dir=tmp_path, check_files=False)
    assert train.labels.tolist() == [0, 0, 1]
    assert train.views["super_class"].tolist() == [0, 0, 1]
    assert train.class_names == {"super_class": ("bicycle", "toaster")}
    test = load("sop", data_dir=tmp_path, split="test", check_files=False)
    assert (test.labels.tolist(), test.views["super_class"].tolist()) == ([1, 0], [1, 0])
    whole = load("sop", data_dir=tmp_path, split="all", check_files=False)
    assert whole.labels.tolist() == [0, 0, 1, 3, 2]
    assert whole.class_names["super_class"] == ("bicycle", "chair", "toaster")


@pytest.mark.parametrize(("lists", "images"), [("Eval", "Img"), ("Anno", "")])
def test_inshop(tmp_path, lists, images):
    inshop(tmp_path / lists)
    for line in INSHOP.splitlines()[2:]:
        draw(tmp_path / images / line.split()[0])
    parts = {
        split: load("inshop", data_dir=tmp_path, split=split)
        for split in ("train", "query", "gallery", "test", "all")
    }
    labels = {split: data.labels.tolist() for split, data in parts.items()}
    assert labels["train"] == [0, 1]
    assert labels["query"] == [0, 2]  # item 5 is only in the gallery, but is numbered
    assert labels["gallery"] == [0, 1, 2]
    assert labels["test"] == labels["query"] + labels["gallery"]
    assert labels["all"] == [1, 4, 0, 3, 0, 2, 3]
    items = ("id_00000001", "id_00000005", "id_00000007")
    assert parts["query"].class_names["item"] == parts["gallery"].class_names["item"] == items
    assert len(parts["query"].images[:]) == 2


# Damaged copies: the file and the line are named


def test_missing_images_are_named(tmp_path):
    cub(tmp_path)
    for path in ("007.Auklet/b.jpg", "100.Pelican/c.jpg"):
        (tmp_path / "images" / path).unlink()
    with pytest.raises(FileNotFoundError, match=r"^cub: 2 of 3 .*/b\.jpg, .*/c\.jpg$"):
        load("cub", data_dir=tmp_path)
    assert len(load("cub", data_dir=tmp_path, check_files=False)) == 3
    assert len(load("cub", data_dir=tmp_path, split="test")) == 1


LABELS, PARTS, ANNOTATIONS = "image_class_labels", "list_eval_partition", "cars_annos.mat"


@pytest.mark.parametrize(
    ("name", "write", "changes", "place"),
    [
        ("cub", cub, {"images": "1 a.jpg\n\n2\n"}, "images.txt:3"),
        ("cub", cub, {"images": "x a.jpg\n"}, "images.txt:1: IMAGE_ID"),
        ("cub", cub, {"images": "1 \xff\xfe.jpg\n"}, "images.txt"),
        ("cub", cub, {"images": CUB["images.txt"] + "50 x.jpg\n"}, f"{LABELS}.txt"),
        ("cub", cub, {LABELS: "40 102\n"}, f"{LABELS}.txt"),
        ("cars", cars, {"key": "annotation"}, ANNOTATIONS),
        ("cars", lambda folder: (folder / ANNOTATIONS).touch(), {}, ANNOTATIONS),
        ("sop", sop, {"test": SOP_HEADER + "4 9 toaster_final/9_0.JPG"}, "Ebay_test.txt:2"),
        ("sop", sop, {"test": SOP_HEADER + "4 nine 1 a.JPG"}, "Ebay_test.txt:2: class_id"),
        ("inshop", inshop, {"old": "7\n", "new": "8\n"}, f"{PARTS}.txt:1"),
        ("inshop", inshop, {"old": "7\n", "new": "many\n"}, f"{PARTS}.txt:1: COUNT"),
        ("inshop", inshop, {"old": "9 train", "new": "9 val"}, f"{PARTS}.txt:4"),
    ],
)
def test_damaged_lists_are_refused(tmp_path, name, write, changes, place):
    write(tmp_path, **changes)
    with pytest.raises(ValueError, match=rf"/{re.escape(place)}\b"):
        load(name, data_dir=tmp_path, check_files=False)


@pytest.mark.parametrize(
    ("name", "options", "error", "argument"),
    [
        ("inshop", {"data_dir": None}, ValueError, "^data_dir"),
        ("folder", {"data_dir": None}, ValueError, "^data_dir"),
        ("cub", {"split": "query"}, ValueError, "^split"),
        ("cub", {"image_size": 8}, TypeError, "image_size"),
        ("cub", {"data_dir": "/no/such"}, FileNotFoundError, r"^cub\b.*\bimages\.txt\b.*/no/such"),
        ("cars", {}, FileNotFoundError, r"^cars\b.*\bcars_annos\.mat"),
        ("sop", {}, FileNotFoundError, r"^sop\b.*\bEbay_train\.txt"),
        ("inshop", {}, FileNotFoundError, r"^inshop\b.*\blist_eval_partition\.txt"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, name, options, error, argument):
    with pytest.raises(error, match=rf"{argument}\b"):
        load(name, **{"data_dir": cub(tmp_path), **options})
