"""``Dataset``; new labels from old, lists of files and labels, folds."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from jdml.data import Dataset, check, corrupt_labels, load, mlrc_folds, parity_labels
from jdml.data.arrays import read_arrays
from jdml.data.checking import unlike_published
from jdml.data.duplicates import Place, by_embedding
from jdml.data.folder import read_folder
from jdml.data.loading import read_path
from jdml.data.source import read_source
from jdml.data.splits import read_names, train_on
from jdml.data.table import read_column, read_table


def dataset() -> Dataset:
    images = np.arange(4 * 2 * 2, dtype=np.uint8).reshape(4, 2, 2, 1)
    digits = np.array([3, 0, 7, 2])
    return Dataset("toy", images, digits, {"digit": digits, "parity": digits % 2})


def test_labels_and_views_are_int32():
    data = dataset()
    assert data.labels.dtype == data.views["parity"].dtype == np.int32
    assert (len(data), data.num_classes) == (4, 8)


def test_relabel_changes_the_labels_alone():
    data = dataset()
    parity = data.relabel("parity")
    np.testing.assert_array_equal(parity.labels, [1, 0, 1, 0])
    assert parity.num_classes == 2
    np.testing.assert_array_equal(parity.relabel("digit").labels, data.labels)
    assert parity.images is data.images


@pytest.mark.parametrize("rows", [[2, 0], np.array([2, 0], np.uint8)])
def test_select_by_index(rows):
    part = dataset().select(rows)
    np.testing.assert_array_equal(part.labels, [7, 3])
    np.testing.assert_array_equal(part.views["parity"], [1, 1])
    np.testing.assert_array_equal(part.images[:, 0, 0, 0], [8, 0])


def test_select_by_mask():
    data = dataset()
    np.testing.assert_array_equal(data.select(data.labels > 2).labels, [3, 7])


@pytest.mark.parametrize("rows", [[], np.zeros(4, bool)])
def test_select_nothing(rows):
    none = dataset().select(rows)
    assert (len(none), none.num_classes, none.images.shape) == (0, 0, (0, 2, 2, 1))


def test_float_images_stay():
    assert Dataset("f", np.zeros((1, 2, 2, 3), np.float32), [0]).images.dtype == np.float32


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (
            {"images": np.zeros((2, 2, 2, 1))},
            TypeError,
            "images must be uint8 or float32, got floa",
        ),
        (
            {"images": np.zeros((2, 2, 2), np.uint8)},
            ValueError,
            r"images must have shape \[N, H, W, C\], got \[2, 2, 2\]",
        ),
        (
            {"images": [np.zeros((4, side, 3), np.uint8) for side in (6, 5, 7)]},
            ValueError,
            r"images must have one shape each, got \[4, 5, 3\] and \[4, 6, 3\]: cut them to one size",
        ),
        ({"labels": np.zeros(2)}, TypeError, "labels must be integers, got float64"),
        (
            {"labels": np.zeros(3, int)},
            ValueError,
            r"labels must have shape \[N\] = \[2\], got \[3\]",
        ),
        ({"labels": np.array([0, -4])}, ValueError, "labels must be at least 0, got -4 in row 1"),
        ({"labels": np.array([0, 2**31])}, ValueError, "labels must fit into int32.* in row 1"),
        (
            {"views": {"letter": np.zeros((2, 1), int)}},
            ValueError,
            r"views\['letter'\] must have shape \[N\] = \[2\], got \[2, 1\]",
        ),
    ],
)
def test_bad_fields(change, error, match):
    fields = {"images": np.zeros((2, 2, 2, 1), np.uint8), "labels": np.zeros(2, int)}
    with pytest.raises(error, match=match):
        Dataset("bad", **{**fields, **change})


def test_unknown_view():
    with pytest.raises(
        ValueError, match=r"view must be one of \['digit', 'parity'\], got 'colour'"
    ):
        dataset().relabel("colour")


@pytest.mark.parametrize(
    ("rows", "error", "match"),
    [
        (np.ones(3, bool), ValueError, r"rows must be a mask of shape \[4\], got \[3\]"),
        ([4], ValueError, r"rows must be indices \[n\] from 0 to 3, got \[4\]"),
        ([-1], ValueError, r"rows must be indices \[n\] from 0 to 3, got \[-1\]"),
        ([[1]], ValueError, r"rows must be indices \[n\]"),
        ([0.5], TypeError, "rows must be a boolean mask or integer indices, got float64"),
    ],
)
def test_bad_rows(rows, error, match):
    with pytest.raises(error, match=match):
        dataset().select(rows)


def test_digits_are_scikit_learns():
    datasets = pytest.importorskip("sklearn.datasets")
    raw, data = datasets.load_digits(), load("digits", split="all")
    assert data.images.dtype == np.uint8
    assert data.images.shape == (1797, 8, 8, 1)
    np.testing.assert_array_equal(data.labels, raw.target)
    np.testing.assert_allclose(data.images[..., 0] * (16 / 255), raw.images, atol=0.04)
    assert (data.images.min(), data.images.max()) == (0, 255)


def test_digits_split_is_stratified_disjoint_and_fixed():
    whole, train, test = (load("digits", split=split) for split in ("all", "train", "test"))
    assert (len(train), len(test)) == (1198, 599)
    counts = np.bincount(whole.labels)
    np.testing.assert_array_equal(np.bincount(test.labels), np.rint(counts / 3))
    both = sorted(image.tobytes() for part in (train, test) for image in part.images)
    assert both == sorted(image.tobytes() for image in whole.images)
    assert test.labels[:10].tolist() == [3, 5, 7, 3, 6, 9, 2, 6, 5, 0]  # as first released


def test_digits_views():
    data = load("digits")
    assert set(data.views) == {"digit", "parity"}
    np.testing.assert_array_equal(data.views["digit"], data.labels)
    np.testing.assert_array_equal(data.relabel("parity").labels, data.labels % 2)


@pytest.mark.parametrize("name", ["digits", "mnist", "omniglot"])
def test_unknown_split(name, tmp_path):
    with pytest.raises(ValueError, match=r"split must be one of \('train', .*, got 'valid'"):
        load(name, data_dir=tmp_path, split="valid")


def test_unknown_name():
    with pytest.raises(ValueError, match=r"one of \('digits', 'mnist', .*, got 'cifar'"):
        load("cifar")


def test_unknown_option():
    with pytest.raises(TypeError, match="image_size"):
        load("digits", image_size=8)


def test_importing_the_room_imports_nothing_heavy():
    code = (
        "import sys, jdml.data; heavy = {'flax', 'optax', 'sklearn', 'PIL', 'orbax',"
        "'tensorflow_datasets', 'jdml.training', 'jdml.models'}; print(heavy & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# Labels


# Lists of files and labels as people write them.


@pytest.fixture
def place(tmp_path) -> Path:
    for name in ("a.jpg", "b.jpg", "é.jpg", "in/c.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link.jpg").symlink_to(tmp_path / "a.jpg")
    (tmp_path / "door").symlink_to(tmp_path / "in")
    return tmp_path


def read(place: Path, text: str, encoding="utf-8"):
    (place / "t.csv").write_bytes(text.encode(encoding))
    listing = read_table(place / "t.csv")
    names = listing.names["class"]
    return {
        str(file.relative_to(place)): names[i]
        for file, i in zip(listing.files, listing.views["class"].tolist(), strict=True)
    }


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("./a.jpg", "a.jpg"),
        ("in/../a.jpg", "a.jpg"),
        ("{place}/a.jpg", "a.jpg"),
        ("link.jpg", "a.jpg"),
        ("door/c.jpg", "in/c.jpg"),
        ("door/../a.jpg", "{place}/./a.jpg"),
        ("a.jpg", "a.jpg"),
        ("gone/../x.jpg", "x.jpg"),
    ],
)
@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("file,label", (",ant", ",bee")),
        ("file,label", (",ant", ",ant")),
        ("file,label,split", (",ant,train", ",ant,test")),
    ],
)
def test_one_file_by_two_names_is_refused_naming_both_lines(place, first, second, header, said):
    lines = [header, "", f"b.jpg{said[0]}", first + said[0], "", second + said[1]]
    with pytest.raises(ValueError, match=r"t\.csv:6: .* is there twice, .* in .*t\.csv:4"):
        read(place, "\n".join(lines).format(place=place))


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("start", ["", "\ufeff", "\n \n"])
def test_separators_line_ends_and_byte_order_marks(place, separator, end, start):
    lines = [separator.join(row) for row in (("file", "Label"), ("a.jpg", "ant"), ("b.jpg", "bee"))]
    assert read(place, start + end.join([*lines, "", ""])) == {"a.jpg": "ant", "b.jpg": "bee"}


def test_a_tsv_file_is_a_list(place):
    (place / "t.tsv").write_text('file\tlabel\na.jpg\t5" disk\nb.jpg\tbee, red\n')
    for read_it in (read_folder, lambda path: read_path(path).listing):
        listing = read_it(place / "t.tsv")
        assert listing.names["class"] == {0: '5" disk', 1: "bee, red"}


def test_excel_says_what_separates(place):
    assert read(place, "sep=;\nfile;label\na.jpg;1,5\n") == {"a.jpg": "1,5"}


@pytest.mark.parametrize("label", ["a\u2028b", "a\x0bb", "a\x85b", "a\x1cb", "a\u2029b"])
def test_what_is_no_line_end_stays_in_a_label(place, label):
    assert read(place, f"file,label\na.jpg,{label}\nb.jpg,bee\n")["a.jpg"] == label
    (place / "names.txt").write_text(f"{label}\nbee\n", encoding="utf-8")
    assert read_names(place / "names.txt") == [label, "bee"]
    (place / "names.txt").write_text("bee\nant\nbee\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"names\.txt:3: bee is there twice"):
        read_names(place / "names.txt")


def test_quoted_line_ends_and_the_numbers_of_lines(place):
    text = 'file,label\n"a.jpg","an\nt"\n\nb.jpg\n'
    with pytest.raises(ValueError, match=r"t\.csv:5: expected file,label, got 'b\.jpg'"):
        read(place, text)
    assert read(place, 'file,label\n"a.jpg","an\nt"\nb.jpg,bee\n') == {
        "a.jpg": "an\nt",
        "b.jpg": "bee",
    }


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("file,label,label\na.jpg,ant,bee", r"t\.csv:1: the column label is there twice"),
        ("file,label,Label\na.jpg,ant,bee", r"t\.csv:1: the column label is there twice"),
        ('file,label\n\na.jpg,"ant\nb.jpg,bee\n', r"t\.csv:3: .*a quotation mark that does not"),
        ("file|label\na.jpg|ant", r"t\.csv:1: expected file,label or"),
        ("sep=|\nfile|label\na.jpg|ant", "expected commas, semicolons or tabs"),
        ("", r"t\.csv:1: expected file,label or"),
        ("file,label,split\na.jpg,ant,train\nb.jpg,ant,query", "query and gallery go together"),
    ],
)
def test_what_cannot_be_read_is_refused(place, text, match):
    with pytest.raises(ValueError, match=match):
        read(place, text)


def test_another_encoding_is_refused(place):
    with pytest.raises(ValueError, match="expected UTF-8"):
        read(place, "file,label\na.jpg,ant", "utf-16")


def test_names_as_other_systems_write_them(place):
    text = "file,label\ne\u0301.jpg,cafe\u0301\nin\\c.jpg,caf\u00e9\n"
    assert read(place, text) == {"é.jpg": "café", "in/c.jpg": "café"}
    listing = read_table(place / "t.csv")
    with pytest.raises(ValueError, match="1 of 1 are no classes: tea"):
        train_on(listing, ["tea"])
    named = train_on(replace(listing, split_notes=("halves",)), ["cafe\u0301"])
    assert len(named.splits["train"]) == 2
    assert named.split_notes == ()  # they told of another split


@pytest.mark.parametrize("source", ["digits", "digits:nowhere"])
def test_a_source_is_a_data_set_by_name(source):
    part = read_source(source, None, split="test")
    assert (len(part.images), part.files) == (len(part.labels), None)
    (line,) = unlike_published("digits", {"test": part.images.select([0, 1])})
    assert line.startswith("test")
    assert unlike_published("birds", {"test": part.images}) == ()


def test_a_source_that_is_a_data_set_and_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    with pytest.raises(ValueError, match="source digits is a data set .* write ./digits"):
        read_source("digits", None)


@pytest.mark.parametrize("ending", [".zip", ".npz", ".txt"])
def test_a_source_that_is_no_image(tmp_path, ending):
    (tmp_path / f"photos{ending}").touch()
    with pytest.raises(ValueError, match=f"photos{ending} is no image, folder of images"):
        read_source(str(tmp_path / f"photos{ending}"), None)


def test_a_source_that_is_none():
    with pytest.raises(FileNotFoundError, match="birds is none"):
        read_source("birds", None)


def test_images_without_classes_have_no_split(place, monkeypatch):
    monkeypatch.chdir(place)
    assert read_source("a.jpg", None).files.tolist() == [str(place / "a.jpg")]
    with pytest.raises(ValueError, match="split test needs classes"):
        read_source("a.jpg", None, split="test")


def test_one_image_is_like_no_other():
    assert by_embedding(np.ones((1, 3)), [Place("a.jpg", "train", "ant")]) == ()


def test_a_folder_is_no_file_of_arrays(tmp_path):
    with pytest.raises(ValueError, match="is a folder, expected a .npz file"):
        read_arrays(tmp_path)


def test_a_column_of_a_table(place):
    table = place / "t.csv"
    table.write_text("file,camera\na.jpg,one\n")
    assert list(read_column(table, "camera").values()) == ["one"]
    table.write_text("file,camera\na.jpg,one,two\n")
    with pytest.raises(ValueError, match=r"t\.csv:2: expected file,camera, got 'a.jpg,one,two'"):
        read_column(table, "camera")
    with pytest.raises(FileNotFoundError, match="nowhere.csv does not exist"):
        read_column(place / "nowhere.csv", "camera")


def test_without_a_test_part_no_class_is_in_both(place):
    (place / "t.csv").write_text(
        "file,label,split\na.jpg,ant,train\nb.jpg,bee,val\né.jpg,bee,val\n"
    )
    assert not [note for note in check("folder", place / "t.csv").notes if "both" in note]


# Parity, label noise, and folds of classes.

LABELS = np.random.default_rng(0).integers(0, 5, 1000)


def test_parity():
    parity = parity_labels(np.arange(10))
    np.testing.assert_array_equal(parity, [0, 1] * 5)
    assert parity.dtype == np.int32


@pytest.mark.parametrize("fraction", [0, 0.2, 0.3335, 0.5, 1])
def test_exactly_that_many_labels_are_wrong(fraction):
    noisy = corrupt_labels(LABELS, fraction, 3)
    assert (noisy != LABELS).sum() == round(fraction * 1000)
    assert noisy.dtype == np.int32
    assert set(noisy) <= set(range(5))


def test_wrong_labels_and_samples_are_uniform():
    labels = np.repeat(np.arange(4), 5000)
    noisy = corrupt_labels(labels, 0.5, 1)
    table = np.zeros((4, 4))
    np.add.at(table, (labels, noisy), 1)
    np.testing.assert_allclose(np.diag(table), 2500, rtol=0.1)
    np.testing.assert_allclose(table[~np.eye(4, dtype=bool)], 2500 / 3, rtol=0.15)


def test_the_input_is_left_alone():
    labels = LABELS.copy()
    corrupt_labels(labels, 1.0, 0)
    np.testing.assert_array_equal(labels, LABELS)


@pytest.mark.parametrize("make", [int, np.int64, jax.random.key, jax.random.PRNGKey])
def test_the_key_alone_decides(make):
    first, again, other = (corrupt_labels(LABELS, 0.5, make(seed)) for seed in (7, 7, 8))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


def test_wrong_labels_come_from_the_labels_there_are():
    labels = np.array([2, 9, 40] * 20)
    assert set(corrupt_labels(labels, 1.0, 0)) == {2, 9, 40}
    assert set(corrupt_labels(np.zeros(200, int), 1.0, 0, num_classes=4)) == {1, 2, 3}


def test_nothing_to_corrupt():
    np.testing.assert_array_equal(corrupt_labels(np.zeros(3, int), 0.0, 0), [0, 0, 0])
    assert corrupt_labels(np.zeros(0, int), 0.5, 0).shape == (0,)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((LABELS, 1.5, 0), ValueError, "fraction must be in 0…1, got 1.5"),
        ((LABELS, float("nan"), 0), ValueError, "fraction must be in 0…1, got nan"),
        ((LABELS / 2, 0.5, 0), TypeError, "labels must be integers, got float64"),
        ((LABELS - 1, 0.5, 0), ValueError, "labels must be at least 0, got -1"),
        ((LABELS, 0.5, 0, 3), ValueError, "labels must be below num_classes = 3, got 4"),
        ((LABELS, 0.5, 0, 5.5), TypeError, "num_classes must be an integer, got 5.5"),
        ((np.zeros(4, int), 0.5, 0), ValueError, "needs at least 2 classes, got 1"),
        ((LABELS, 0.5, -1), ValueError, "key must be .* at least 0, got -1"),
        ((LABELS, 0.5, "a"), TypeError, "key must be a JAX key or an integer seed, got 'a'"),
        ((LABELS, 0.5, None), TypeError, "key must be a JAX key or an integer seed, got None"),
        ((LABELS, 0.5, True), TypeError, "key must be a JAX key or an integer seed, got True"),
    ],
)
def test_bad_noise(arguments, error, match):
    with pytest.raises(error, match=match):
        corrupt_labels(*arguments)


def test_bad_digits():
    with pytest.raises(TypeError, match="digits must be integers, got float64"):
        parity_labels(np.array([0.5]))


OF_CARS = np.random.default_rng(0).permutation(np.repeat(np.arange(98), 3)) * 5 + 2


def classes(mask):
    return sorted({(label - 2) // 5 for label in OF_CARS[mask]})


@pytest.mark.parametrize("rule", ["mlrc", "kfold"])
def test_no_class_is_on_both_sides(rule):
    for fold in mlrc_folds(OF_CARS, rule=rule):
        assert not set(classes(fold.train)) & set(classes(fold.validation))
        assert fold.train.dtype == fold.validation.dtype == bool


def test_the_sizes_and_places_of_cars():
    """98 training classes: 74 train, 24 validate; fold 0 validates on the last part, fold 1 on the first."""
    folds = mlrc_folds(OF_CARS)
    assert [(len(classes(f.train)), len(classes(f.validation))) for f in folds] == [(74, 24)] * 4
    assert classes(folds[0].validation) == list(range(74, 98))
    assert classes(folds[1].validation) == list(range(24))
    assert classes(folds[3].train) == [*range(49), *range(73, 98)]


def test_kfold_is_scikit_learn_s():
    selection = pytest.importorskip("sklearn.model_selection")
    expected = [held.tolist() for _, held in selection.KFold(4).split(np.arange(98))]
    assert [classes(f.validation) for f in mlrc_folds(OF_CARS, rule="kfold")] == expected
    sizes = [len(classes(f.train)) for f in mlrc_folds(OF_CARS, rule="kfold")]
    assert sizes == [73, 73, 74, 74]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"folds": 1}, "folds must be an integer >= 2"),
        ({"folds": 99}, "folds must be at most the number of classes, 98"),
        ({"rule": "random"}, 'rule must be "mlrc" or "kfold"'),
    ],
)
def test_mistakes(changes, message):
    with pytest.raises(ValueError, match=message):
        mlrc_folds(OF_CARS, **changes)
