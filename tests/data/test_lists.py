"""CUB, Cars, SOP, In-shop and folders of classes: small copies, broken ones, and the real lists."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jdml.data import ImageFiles, conventional, load

Image = pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.slow
SMALL = {"transform": conventional(8)}


def draw(path: Path, shade: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 10), (shade,) * 3).save(path)


CUB = {
    "classes.txt": "1 001.Albatross\n7 007.Auklet\n100 100.Pelican\n101 101.White Pelican\n",
    "images.txt": "12 007.Auklet/b.jpg\n3 001.Albatross/a b.jpg\n40 101.White Pelican/d.jpg\n"
    "41 100.Pelican/c.jpg\n",
    "image_class_labels.txt": "40 101\n3 1\n12 7\n41 100\n",
}


def write(folder: Path, texts: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text)


def cub(folder: Path, **changes: str) -> Path:
    """Ids are out of order and with gaps; labels stand in another order than images."""
    write(folder, CUB | {f"{name}.txt": text for name, text in changes.items()})
    for line in CUB["images.txt"].splitlines():
        number, path = line.split(maxsplit=1)
        draw(folder / "images" / path, int(number))
    return folder


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


def cars(folder: Path, paths=None, classes=(1, 98, 99, 196), names=196, key="annotations") -> Path:
    io = pytest.importorskip("scipy.io")
    paths = [f"car_ims/{i:06}.jpg" for i in range(1, 5)] if paths is None else paths
    rows = np.zeros(len(paths), [("relative_im_path", "O"), ("class", "O"), ("test", "O")])
    rows["relative_im_path"], rows["class"] = paths, classes[: len(paths)]
    named = np.array([f"Car {i}" for i in range(1, names + 1)], object)
    io.savemat(folder / "cars_annos.mat", {key: rows, "class_names": named})
    return folder


# Small copies


def test_a_byte_order_mark_is_no_part_of_a_list(tmp_path):
    cub(tmp_path)
    for file in tmp_path.rglob("*.txt"):
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    assert load("cub", data_dir=tmp_path, **SMALL).labels.tolist() == [1, 0, 2]


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


@pytest.mark.parametrize(("lists", "images"), [("", ""), ("Eval", "Img"), ("Anno", "")])
def test_inshop(tmp_path, lists, images):
    write(tmp_path / lists, {"list_eval_partition.txt": INSHOP})
    for line in INSHOP.splitlines()[2:]:
        draw(tmp_path / images / line.split()[0])
    parts = {
        split: load("inshop", data_dir=tmp_path, split=split)
        for split in ("train", "query", "gallery", "test", "all")
    }
    labels = {split: data.labels.tolist() for split, data in parts.items()}
    assert labels["train"] == [0, 1]
    assert labels["query"] == [0, 2]  # item 5 is in the gallery alone, and counts
    assert labels["gallery"] == [0, 1, 2]
    assert labels["test"] == labels["query"] + labels["gallery"]
    assert labels["all"] == [1, 4, 0, 3, 0, 2, 3]
    items = ("id_00000001", "id_00000005", "id_00000007")
    assert parts["query"].class_names["item"] == parts["gallery"].class_names["item"] == items
    assert len(parts["query"].images[:]) == 2


def test_folder(tmp_path):
    for name, count in (("c", 1), ("a", 2), ("b", 3)):
        for i in range(count):
            draw(tmp_path / name / f"{i}.JPG", 10 * i)
    draw(tmp_path / "a" / "deeper" / "x.png")
    draw(tmp_path / "a" / ".hidden.png")
    draw(tmp_path / ".cache" / "x.png")
    (tmp_path / "a" / "notes.txt").write_text("no image")
    (tmp_path / "README.md").write_text("no class")
    train = load("folder", data_dir=tmp_path, **SMALL)
    assert train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert train.class_names["class"] == ("a", "b")
    test = load("folder", data_dir=tmp_path, split="test")
    assert (test.labels.tolist(), test.class_names["class"]) == ([0], ("c",))
    assert len(load("folder", data_dir=tmp_path, split="all")) == 7


# Broken copies


def test_missing_images_are_named(tmp_path):
    cub(tmp_path)
    for path in ("007.Auklet/b.jpg", "100.Pelican/c.jpg"):
        (tmp_path / "images" / path).unlink()
    with pytest.raises(
        FileNotFoundError, match=r"cub: 2 of 3 image files are missing: .*b\.jpg, .*c\.jpg$"
    ):
        load("cub", data_dir=tmp_path)
    assert len(load("cub", data_dir=tmp_path, check_files=False)) == 3
    assert len(load("cub", data_dir=tmp_path, split="test")) == 1


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("cub", "images.txt, image_class_labels.txt, classes.txt"),
        ("cars", "cars_annos.mat"),
        ("sop", "Ebay_train.txt, Ebay_test.txt"),
        ("inshop", "list_eval_partition.txt"),
    ],
)
def test_missing_lists_are_named(tmp_path, name, file):
    with pytest.raises(FileNotFoundError, match=f"{name} needs {file} in .*{tmp_path.name}"):
        load(name, data_dir=tmp_path)


def test_one_missing_list(tmp_path):
    cub(tmp_path)
    (tmp_path / "classes.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"cub needs classes\.txt in"):
        load("cub", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"images": "1 a.jpg\n\n2\n"}, r"images\.txt:3: expected 'IMAGE_ID PATH', got '2'"),
        ({"images": "x a.jpg\n"}, r"images\.txt:1: IMAGE_ID must be an integer ≥ 0, got 'x'"),
        ({"images": "-1 a.jpg\n"}, r"images\.txt:1: IMAGE_ID must be an integer ≥ 0, got '-1'"),
        ({"images": "3 a.jpg\n3 b.jpg\n"}, r"images\.txt:2: image 3 is there twice"),
        ({"images": "3 ../a.jpg\n"}, r"images\.txt:1: expected a path inside the folder .*'\.\./a"),
        ({"images": "3 /etc/a.jpg\n"}, r"images\.txt:1: expected a path inside .* '/etc/a\.jpg'"),
        ({"images": "\n"}, r"images\.txt: expected at least one image, got none"),
        (
            {"images": CUB["images.txt"] + "50 x.jpg\n51 y.jpg\n"},
            r"labels\.txt: 2 images .*50 x\.j",
        ),
        (
            {"image_class_labels": "40 101\n3 1\n99 1\n"},
            r"labels\.txt:3: image 99 is not in images",
        ),
        ({"image_class_labels": "40 102\n"}, r"labels\.txt:1: class 102 is not in classes\.txt"),
        ({"image_class_labels": "40 101\n40 101\n"}, r"labels\.txt:2: image 40 is there twice"),
        ({"image_class_labels": "40\n"}, r"labels\.txt:1: expected 'IMAGE_ID CLASS_ID', got '40'"),
        ({"classes": "1 a\n1 b\n"}, r"classes\.txt:2: class 1 is there twice"),
    ],
)
def test_broken_cub(tmp_path, changes, match):
    cub(tmp_path, **changes)
    with pytest.raises(ValueError, match=match):
        load("cub", data_dir=tmp_path)


def test_a_list_that_is_no_text(tmp_path):
    cub(tmp_path)
    (tmp_path / "images.txt").write_bytes(b"1 \xff\xfe.jpg\n")
    with pytest.raises(ValueError, match=r"images\.txt: expected UTF-8 text"):
        load("cub", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"classes": (1, 2, 3, 197)}, "annotation 4: class must be from 1 to 196, got 197"),
        ({"classes": (0, 2, 3, 4)}, "annotation 1: class must be from 1 to 196, got 0"),
        ({"paths": ["a.jpg", "../b.jpg"]}, r"annotation 2: expected a path inside .*'\.\./b\.jpg'"),
        ({"key": "annotation"}, r"expected a MATLAB file with annotations .*KeyError"),
        ({"paths": []}, "expected at least one image, got none"),
    ],
)
def test_broken_cars(tmp_path, settings, match):
    cars(tmp_path, **settings)
    with pytest.raises(ValueError, match=rf"cars_annos\.mat: {match}"):
        load("cars", data_dir=tmp_path)


@pytest.mark.parametrize(
    "damage", [lambda b: b"", lambda b: b[:200], lambda b: b[:-9], lambda b: b"\0" * len(b)]
)
def test_damaged_mat(tmp_path, damage):
    path = cars(tmp_path) / "cars_annos.mat"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"cars_annos\.mat: expected a MATLAB file"):
        load("cars", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("4 9 toaster_final/9_0.JPG", r"Ebay_test\.txt:2: expected 'image_id class_id"),
        ("4 nine 1 a/b.JPG", r"Ebay_test\.txt:2: class_id must be an integer ≥ 0, got 'nine'"),
        ("4 9 1 ../b.JPG", r"Ebay_test\.txt:2: expected a path inside"),
        ("", r"Ebay_test\.txt: expected at least one image, got none"),
    ],
)
def test_broken_sop(tmp_path, line, match):
    write(tmp_path, SOP | {"Ebay_test.txt": SOP_HEADER + line})
    with pytest.raises(ValueError, match=match):
        load("sop", data_dir=tmp_path, check_files=False)


def test_sop_without_a_header_loses_no_image(tmp_path):
    write(tmp_path, SOP)
    (tmp_path / "Ebay_test.txt").write_text("4 9 12 toaster_final/9_0.JPG\n")
    with pytest.raises(ValueError, match=r"Ebay_test\.txt:1: expected the header 'image_id"):
        load("sop", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("7\n", "8\n", r"partition\.txt:1: expected 8 images, as this line says, got 7"),
        ("7\n", "many\n", r"partition\.txt:1: COUNT must be an integer ≥ 0, got 'many'"),
        ("id_00000009 train", "id_00000009", r"partition\.txt:4: expected 'image_name item_id"),
        (
            "id_00000009 train",
            "id_00000009 val",
            r"partition\.txt:4: evaluation_status must be one",
        ),
        ("img/MEN/Pants/id_00000005", "../img", r"partition\.txt:7: expected a path inside"),
    ],
)
def test_broken_inshop(tmp_path, old, new, match):
    write(tmp_path, {"list_eval_partition.txt": INSHOP.replace(old, new, 1)})
    with pytest.raises(ValueError, match=match):
        load("inshop", data_dir=tmp_path, check_files=False)


def test_broken_folders(tmp_path):
    with pytest.raises(FileNotFoundError, match="folder needs a folder of classes: .*none"):
        load("folder", data_dir=tmp_path / "none")
    with pytest.raises(ValueError, match="expected a folder for each class, found none"):
        load("folder", data_dir=tmp_path)
    draw(tmp_path / "cat" / "1.png")
    (tmp_path / "dog").mkdir()
    with pytest.raises(ValueError, match=r"dog: expected images \(.*\), found none"):
        load("folder", data_dir=tmp_path)


def test_parts_below_classes_are_no_class(tmp_path):
    for name in ("bottle", "cable"):
        for part in ("train", "test"):
            draw(tmp_path / name / part / "1.png")
    with pytest.raises(
        ValueError, match="bottle holds the parts test/, train/: .* as in test/bott"
    ):
        load("folder", data_dir=tmp_path)


@pytest.mark.parametrize("name", ["inshop", "folder"])
def test_no_folder(name):
    with pytest.raises(ValueError, match=f"data_dir must be the folder of the {name} files, got N"):
        load(name)


def test_splits_and_options(tmp_path):
    cub(tmp_path)
    with pytest.raises(
        ValueError, match=r"split must be one of \('train', 'test', 'all'\), got 'q"
    ):
        load("cub", data_dir=tmp_path, split="query")
    with pytest.raises(TypeError, match="image_size"):
        load("cub", data_dir=tmp_path, image_size=8)


# A copy prepared by tfds. Run apart: defining a builder registers its name, and preparing prints.
PREPARE = """
import io, sys
import tensorflow_datasets as tfds
from PIL import Image

F = tfds.features
FEATURES = {
    "caltech_birds2011": {"label": F.ClassLabel(num_classes=200), "image/filename": F.Text()},
    "cars196": {"label": F.ClassLabel(names=[f"Car {i}" for i in range(196)])},
    "stanford_online_products": {
        "class_id": F.ClassLabel(num_classes=22634),
        "super_class_id": F.ClassLabel(names=["bicycle", "chair"]),
    },
}

def jpeg(shade):
    file = io.BytesIO()
    Image.new("RGB", (12, 10), (shade,) * 3).save(file, "jpeg")
    file.seek(0)
    return file

def values(name, label):
    if name == "stanford_online_products":
        return {"class_id": label, "super_class_id": label % 2}
    extra = {"image/filename": "x.jpg"} if name == "caltech_birds2011" else {}
    return {"label": label, **extra}

def builder(data_name):
    class Prepared(tfds.core.GeneratorBasedBuilder):
        name, VERSION = data_name, tfds.core.Version("1.0.0")

        def _info(self):
            features = F.FeaturesDict({"image": F.Image(), **FEATURES[data_name]})
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, manager):
            return {"train": self._generate_examples(97), "test": self._generate_examples(100)}

        def _generate_examples(self, start):
            for label in range(start, start + 3):
                yield label, {"image": jpeg(label), **values(data_name, label)}

    return Prepared

for name in FEATURES:
    builder(name)(data_dir=sys.argv[1], file_format="array_record").download_and_prepare()
"""


def test_copies_prepared_by_tfds(tmp_path):
    pytest.importorskip("tensorflow_datasets")
    subprocess.run([sys.executable, "-c", PREPARE, tmp_path], check=True, capture_output=True)
    for name, train_classes in (("cub", [97, 98, 99]), ("cars", [97]), ("sop", [97, 98, 99])):
        train = load(name, data_dir=tmp_path, **SMALL)
        test = load(name, data_dir=tmp_path, split="test", **SMALL)
        assert sorted(train.images[:][:, 4, 4, 0]) == train_classes
        assert len(test) == 6 - len(train_classes)
        shades = train.images[:][:, 4, 4, 0]
        np.testing.assert_array_equal(train.labels, shades.argsort().argsort())
    assert set(train.views) == {"class", "super_class"}
    np.testing.assert_array_equal(train.views["super_class"], shades % 2)
    assert "stanford_online_products train[0]" in map(str, train.images.files)

    as_tfrecord(tmp_path, "cars196")
    images = load("cars", data_dir=tmp_path, split="test", **SMALL).images
    assert sorted(images[:][:, 4, 4, 0]) == [98, 99, 100, 101, 102]
    (shard,) = tmp_path.glob("cars196/*/*-test.tfrecord-*")
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ValueError, match=f"{shard.name}: expected whole rows, the last is cut off"):
        load("cars", data_dir=tmp_path, **SMALL)

    (info,) = tmp_path.glob("cars196/*/dataset_info.json")
    info.write_text(info.read_text().replace("tfrecord", "riegeli"))
    with pytest.raises(ValueError, match=r"cars196.* must be prepared as array_record or tfrecord"):
        load("cars", data_dir=tmp_path, **SMALL)


def as_tfrecord(folder, name):
    """Make tfds's own format of a prepared copy, as its description says; the checksums are not looked at."""
    from array_record.python.array_record_module import ArrayRecordReader

    (info,) = folder.glob(f"{name}/*/dataset_info.json")
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    for shard in info.parent.glob("*array_record*"):
        reader = ArrayRecordReader(str(shard))
        rows = [reader.read([row])[0] for row in range(reader.num_records())]
        content = b"".join(
            len(row).to_bytes(8, "little") + bytes(4) + row + bytes(4) for row in rows
        )
        shard.with_name(shard.name.replace("array_record", "tfrecord")).write_bytes(content)
        shard.unlink()


# The real lists


# Of the largest one part: test_folder.py reads them all, and compares them with the published counts.
@pytest.mark.parametrize(
    ("name", "folder", "split", "classes", "images"),
    [
        ("cub", "cub200_2011", "train", 100, 5864),
        ("cub", "cub200_2011", "test", 100, 5924),
        ("cars", "cars196", "train", 98, 8054),
        ("cars", "cars196", "test", 98, 8131),
        ("sop", "sop", "train", 11318, 59551),
        ("inshop", "inshop", "query", 3985, 14218),
        ("cub", "cub_crops227", "train", 20, 600),
        ("cub", "cub_crops227", "test", 20, 600),
        ("cub", "cub_fullres", "train", 12, 49),
        ("cub", "cub_fullres", "test", 0, 0),
    ],
)
def test_the_real_lists(shared_data, name, folder, split, classes, images):
    data = load(name, data_dir=shared_data / folder, split=split, check_files=False)
    assert len(data) == images
    assert (data.num_classes, len(np.unique(data.labels))) == (classes, classes)


def test_the_real_super_classes(shared_data):
    train = load("sop", data_dir=shared_data / "sop", check_files=False)
    assert train.relabel("super_class").num_classes == 12
    assert "stapler" in train.class_names["super_class"]


def test_the_real_images(shared_data):
    train = load("cub", data_dir=shared_data / "cub_fullres", **SMALL)
    assert train.images[:].shape == (49, 8, 8, 3)
    assert train.class_names["class"][:2] == ("001.Black_footed_Albatross", "005.Crested_Auklet")
