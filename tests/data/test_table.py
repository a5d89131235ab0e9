"""Lists of files and labels as people write them."""

from pathlib import Path

import pytest

from jdml.data.folder import read_folder
from jdml.data.loading import read_path
from jdml.data.splits import read_names, train_on
from jdml.data.table import read_table


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
