"""``Dataset``, lists of files and labels, sources by name, wrong labels, folds of classes."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from jdml.data import (
    Dataset,
    check,
    corrupt_labels,
    get,
    load,
    mlrc_folds,
    parity_labels,
    split_by_class_names,
)
from jdml.data.folder import read_column, read_folder
from jdml.data.integrity import count_mismatches
from jdml.data.load import read_path, read_source
from jdml.data.splits import read_names


def dataset() -> Dataset:
    images = np.arange(4 * 2 * 2, dtype=np.uint8).reshape(4, 2, 2, 1)
    digits = np.array([3, 0, 7, 2])
    return Dataset("toy", images, digits, {"digit": digits, "parity": digits % 2})


@pytest.mark.parametrize("rows", [[2, 0], np.array([2, 0], np.uint8)])
def test_relabel_changes_only_the_labels_and_select_takes_rows(rows):
    data = dataset()
    assert data.labels.dtype == data.views["parity"].dtype == np.int32
    assert (len(data), data.num_classes) == (4, 8)
    parity = data.relabel("parity")
    np.testing.assert_array_equal(parity.labels, [1, 0, 1, 0])
    assert parity.num_classes == 2
    np.testing.assert_array_equal(parity.relabel("digit").labels, data.labels)
    assert parity.images is data.images
    assert repr(data) == "Dataset('toy', uint8 [4, 2, 2, 1], 8 classes, views digit, parity)"
    part = data.select(rows)
    np.testing.assert_array_equal(part.labels, [7, 3])
    np.testing.assert_array_equal(part.views["parity"], [1, 1])
    np.testing.assert_array_equal(part.images[:, 0, 0, 0], [8, 0])
    np.testing.assert_array_equal(data.select(data.labels > 2).labels, [3, 7])
    for nothing in ([], np.zeros(4, bool)):
        none = data.select(nothing)
        assert (len(none), none.num_classes, none.images.shape) == (0, 0, (0, 2, 2, 1))


@pytest.mark.parametrize(
    ("change", "error", "name"),
    [
        ({"images": np.zeros((2, 2, 2, 1))}, TypeError, "images"),
        ({"images": np.zeros((2, 2, 2), np.uint8)}, ValueError, "images"),
        ({"labels": np.zeros(2)}, TypeError, r"labels\b.*\bastype\(int\)"),
        ({"labels": np.zeros(3, int)}, ValueError, "labels"),
        ({"labels": np.array([0, -4])}, ValueError, "labels .* row 1"),
        ({"views": {"letter": np.zeros((2, 1), int)}}, ValueError, r"views\['letter'\]"),
    ],
)
def test_wrong_fields_are_refused(change, error, name):
    fields = {"images": np.zeros((2, 2, 2, 1), np.uint8), "labels": np.zeros(2, int)}
    with pytest.raises(error, match=f"^{name}"):
        Dataset("bad", **{**fields, **change})


LABELS = np.random.default_rng(0).integers(0, 5, 1000)
OF_CARS = np.random.default_rng(0).permutation(np.repeat(np.arange(98), 3)) * 5 + 2


@pytest.mark.parametrize(
    ("call", "error", "name"),
    [
        (lambda: dataset().relabel("colour"), ValueError, "view"),
        (lambda: dataset().select(np.ones(3, bool)), IndexError, ""),
        (lambda: load("cifar"), ValueError, "name"),
        (lambda: check("imagenet", "."), ValueError, "name"),
        (lambda: get("inshop"), ValueError, "name"),
        (lambda: get("mnist", "s3://bucket"), ValueError, "data_dir"),
        (lambda: load("digits", split="valid"), ValueError, "split"),
        (lambda: load("mnist", data_dir=".", split="valid"), ValueError, "split"),
        (lambda: load("digits", image_size=8), TypeError, ".*image_size"),
        (lambda: parity_labels(np.array([0.5])), TypeError, "digits"),
        (lambda: corrupt_labels(LABELS, 1.5, 0), ValueError, "fraction"),
        (lambda: corrupt_labels(LABELS / 2, 0.5, 0), TypeError, "labels"),
        (lambda: corrupt_labels(np.zeros(4, int), 0.5, 0), ValueError, "labels"),
        (lambda: mlrc_folds(OF_CARS, folds=99), ValueError, "folds"),
    ],
)
def test_wrong_arguments_are_refused(call, error, name):
    with pytest.raises(error, match=rf"^{name}\b"):
        call()


def test_digits_equal_scikit_learns_and_are_split_by_class():
    datasets = pytest.importorskip("sklearn.datasets")
    raw = datasets.load_digits()
    whole, train, test = (load("digits", split=split) for split in ("all", "train", "test"))
    assert whole.images.dtype == np.uint8
    assert whole.images.shape == (1797, 8, 8, 1)
    np.testing.assert_array_equal(whole.labels, raw.target)
    np.testing.assert_allclose(whole.images[..., 0] * (16 / 255), raw.images, atol=0.04)
    assert (whole.images.min(), whole.images.max()) == (0, 255)
    assert (len(train), len(test)) == (1198, 599)
    counts = np.bincount(whole.labels)
    np.testing.assert_array_equal(np.bincount(test.labels), np.rint(counts / 3))
    both = sorted(image.tobytes() for part in (train, test) for image in part.images)
    assert both == sorted(image.tobytes() for image in whole.images)
    assert test.labels[:10].tolist() == [3, 5, 7, 3, 6, 9, 2, 6, 5, 0]  # as first released
    assert set(train.views) == {"digit", "parity"}
    np.testing.assert_array_equal(train.relabel("parity").labels, train.labels % 2)


# Lists of files and labels


@pytest.fixture
def place(tmp_path) -> Path:
    for name in ("a.jpg", "b.jpg", "é.jpg", "in/c.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link.jpg").symlink_to(tmp_path / "a.jpg")
    return tmp_path


def read(place: Path, text: str):
    (place / "t.csv").write_bytes(text.encode())
    listed = load("folder", place / "t.csv", "all", check_files=False)
    names = listed.class_names["class"]
    return {
        str(file.relative_to(place)): names[label]
        for file, label in zip(listed.images.files, listed.labels, strict=True)
    }


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("in/../a.jpg", "a.jpg"),
        ("{place}/a.jpg", "a.jpg"),
        ("link.jpg", "a.jpg"),
        ("gone/../x.jpg", "x.jpg"),
    ],
)
def test_duplicate_file_in_a_list_is_refused_with_both_lines(place, first, second):
    """Of one class, of two classes and of two parts."""
    for header, one, other in (
        ("file,label", ",ant", ",ant"),
        ("file,label", ",ant", ",bee"),
        ("file,label,split", ",ant,train", ",ant,test"),
    ):
        lines = [header, "", f"b.jpg{one}", first + one, "", second + other]
        with pytest.raises(ValueError, match=r"t\.csv:6\b.*\bt\.csv:4\b"):
            read(place, "\n".join(lines).format(place=place))


def test_tsv_files_and_odd_labels_are_read(place):
    (place / "t.tsv").write_text('file\tlabel\na.jpg\t5" disk\nb.jpg\tbee, red\n')
    for reader in (read_folder, read_path):
        listing = reader(place / "t.tsv")
        assert listing.names["class"] == {0: '5" disk', 1: "bee, red"}
    label = "a\u2028b\x0bc\x85d"
    assert read(place, f"file,label\na.jpg,{label}\nb.jpg,bee\n")["a.jpg"] == label
    (place / "names.txt").write_text(f"{label}\nbee\n", encoding="utf-8")
    assert read_names(place / "names.txt") == [label, "bee"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("", "1"),
        ("file|label\na.jpg|ant", "1"),
        ('file,label\n\na.jpg,"ant\nb.jpg,bee\n', "3"),
        ('file,label\n"a.jpg","an\nt"\n\nb.jpg\n', "5"),
        ("file,label\na.jpg,ant\nb.jpg, -1 \n", "3: label .*-1"),
        ("file,label,split\na.jpg,ant,train\nb.jpg,ant,query", ".*gallery"),
    ],
)
def test_wrong_lists_are_refused_with_their_line(place, text, name):
    with pytest.raises(ValueError, match=rf"\bt\.csv:{name}\b"):
        read(place, text)


def test_paths_of_other_systems_are_read(place):
    (place / " d.jpg").touch()  # a space before a name, and a cell that is a formula
    text = "file,label\ne\u0301.jpg,cafe\u0301\nin\\c.jpg,caf\u00e9\n d.jpg,=1+1\n"
    assert read(place, text) == {"é.jpg": "café", "in/c.jpg": "café", " d.jpg": "=1+1"}
    listing = read_folder(place / "t.csv")
    with pytest.raises(ValueError, match=r"\btea\b"):
        split_by_class_names(listing, ["tea"])
    named = split_by_class_names(replace(listing, split_notes=("halves",)), ["cafe\u0301"])
    assert len(named.splits["train"]) == 2
    assert named.split_notes == ()  # the notes were about another split


# Sources by name


@pytest.mark.parametrize("source", ["digits", "digits:nowhere"])
def test_source_by_name_equals_the_data_set(source):
    part = read_source(source, None, split="test")
    assert (len(part.images), part.files) == (len(part.labels), None)
    (line,) = count_mismatches("digits", {"test": part.images.select([0, 1])})
    assert line.startswith("test")
    assert count_mismatches("digits", {"test": part.images}) == ()
    assert count_mismatches("birds", {"test": part.images}) == ()


def test_images_without_classes_cannot_be_split_nor_unknown_ones_read(place, monkeypatch):
    monkeypatch.chdir(place)
    assert read_source("a.jpg", None).files.tolist() == [str(place / "a.jpg")]
    with pytest.raises(ValueError, match="^split"):
        read_source("a.jpg", None, split="test")
    with pytest.raises(FileNotFoundError, match=r"\bbirds\b"):
        read_source("birds", None)


def test_label_column_of_a_table_is_selected(place):
    table = place / "t.csv"
    table.write_text("file,camera\na.jpg,one\n")
    assert read_column(table, "camera", [str(place / "a.jpg")]).tolist() == ["one"]
    table.write_text("file,camera\na.jpg,one,two\n")
    with pytest.raises(ValueError, match=r"\bt\.csv:2\b"):
        read_column(table, "camera", [])
    with pytest.raises(FileNotFoundError, match=r"nowhere\.csv"):
        read_column(place / "nowhere.csv", "camera", [])


# Parity, wrong labels, folds of classes


@pytest.mark.parametrize("fraction", [0, 0.2, 0.3335, 0.5, 1])
def test_label_noise_changes_the_exact_fraction_into_existing_labels(fraction):
    before = LABELS.copy()
    noisy = corrupt_labels(LABELS, fraction, 3)
    np.testing.assert_array_equal(LABELS, before)
    assert (noisy != LABELS).sum() == round(fraction * 1000)
    assert noisy.dtype == np.int32
    assert set(noisy) <= set(range(5))
    assert set(corrupt_labels(np.array([2, 9, 40] * 20), 1.0, 0)) == {2, 9, 40}
    assert set(corrupt_labels(np.zeros(200, int), 1.0, 0, num_classes=4)) == {1, 2, 3}


def test_label_noise_is_uniform_over_samples_and_labels():
    labels = np.repeat(np.arange(4), 5000)
    noisy = corrupt_labels(labels, 0.5, 1)
    table = np.zeros((4, 4))
    np.add.at(table, (labels, noisy), 1)
    np.testing.assert_allclose(np.diag(table), 2500, rtol=0.1)
    np.testing.assert_allclose(table[~np.eye(4, dtype=bool)], 2500 / 3, rtol=0.15)


@pytest.mark.parametrize("make", [int, np.int64, jax.random.key, jax.random.PRNGKey])
def test_label_noise_depends_only_on_the_key(make):
    first, again, other = (corrupt_labels(LABELS, 0.5, make(seed)) for seed in (7, 7, 8))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


def classes(mask):
    return sorted({(label - 2) // 5 for label in OF_CARS[mask]})


def test_fold_sizes_and_positions_of_cars():
    """Of 98 training classes 74 train and 24 validate; fold 0 validates on the last, fold 1 on the first."""
    folds = mlrc_folds(OF_CARS)
    for fold in folds:
        assert not set(classes(fold.train)) & set(classes(fold.validation))
    assert [(len(classes(f.train)), len(classes(f.validation))) for f in folds] == [(74, 24)] * 4
    assert classes(folds[0].validation) == list(range(74, 98))
    assert classes(folds[1].validation) == list(range(24))
    assert classes(folds[3].train) == [*range(49), *range(73, 98)]
