"""Labels: as people write them beside files, and what is made of them."""

from pathlib import Path

import jax
import numpy as np
import pytest

from jdml.data import corrupt_labels, mlrc_folds, parity_labels
from jdml.data.folder import read_folder
from jdml.data.loading import read_path
from jdml.data.splits import read_names, train_on
from jdml.data.table import read_table

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
    assert len(train_on(listing, ["cafe\u0301"]).splits["train"]) == 2


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
