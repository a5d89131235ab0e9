"""Splits of one's own, and what is left out or wrong: counted or refused, by `jdml data check`, too."""

import contextlib
import importlib
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from jdml import data
from jdml.data.arrays import read_arrays
from jdml.data.folder import read_folder, read_table
from jdml.data.splits import read_names, resplit, train_on
from jdml.registry.extras import MissingLibraryError


def counts(listing) -> dict[str, tuple[int, int]]:
    """Classes and images of each split."""
    ids = listing.views["class"]
    return {name: (len(np.unique(ids[rows])), len(rows)) for name, rows in listing.splits.items()}


def test_classes_may_be_called_like_splits(tmp_path, draw):
    draw(tmp_path, 2, 2)
    (tmp_path / "kind0").rename(tmp_path / "train")
    assert counts(read_folder(tmp_path)) == {"train": (1, 2), "test": (1, 2), "all": (2, 4)}


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_table_of_files_and_labels(photos, tmp_path):
    rows = [
        f"{photos}/kind{k}/{i}.png,{'odd' if k % 2 else 'even'}" for k in range(4) for i in range(2)
    ]
    listing = read_table(write(tmp_path / "t.csv", "\n".join(["file,label", *rows])))
    assert counts(listing) == {"train": (1, 4), "test": (1, 4), "all": (2, 8)}
    splits = ["train"] * 4 + ["test"] * 4
    rows = [f"{row},{split}" for row, split in zip(rows, splits, strict=True)]
    listing = read_table(write(tmp_path / "t.csv", "\n".join(["file,label,split", *rows])))
    assert counts(listing) == {"train": (2, 4), "test": (2, 4), "all": (2, 8)}
    part = data.load("folder", data_dir=tmp_path / "t.csv", split="test")
    assert part.class_names["class"] == ("even", "odd")
    assert part.images[:1].shape == (1, 224, 224, 3)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a.png,ant", "t.csv:1"),
        ("file,label\na.png", "t.csv:2"),
        ("file,label\na.png,", "t.csv:2"),
        ("file,label\na.png,ant\na.png,bee", "t.csv:3"),
        ("file,label,split\na.png,ant,dev", "t.csv:2: split"),
        ("file,label\n", "t.csv"),
    ],
)
def test_bad_tables_name_the_line(tmp_path, text, place):
    with pytest.raises(ValueError, match=rf"{place}\b"):
        read_table(write(tmp_path / "t.csv", text))


def test_resplit(photos):
    listing = read_folder(photos)
    by_class = [resplit(listing, "classes", seed=seed) for seed in (1, 1, 2)]
    assert counts(by_class[0]) == {"train": (3, 18), "test": (3, 18), "all": (6, 36)}
    rows = [part.splits["test"].tolist() for part in by_class]
    assert rows[0] == rows[1] != rows[2]
    assert counts(resplit(listing, "classes", share=0.34))["test"] == (2, 12)
    assert counts(resplit(listing, "images")) == {"train": (6, 30), "test": (6, 6), "all": (6, 36)}
    assert counts(resplit(listing, "none")) == {"train": (6, 36), "all": (6, 36)}
    assert counts(train_on(listing, ["kind5", "kind0"]))["train"] == (2, 12)


def test_what_cannot_be_split(photos, tmp_path):
    few = train_on(read_folder(photos), ["kind0"])
    for refused, name in (
        (lambda: resplit(few, "half"), "rule"),
        (lambda: resplit(few, "images", share=1), "share"),
        (lambda: train_on(few, ["kind0", "kind9"]), "kind9"),
        (lambda: read_names(write(tmp_path / "c.txt", "ant\nant\n")), "c.txt:2"),
        (lambda: read_names(write(tmp_path / "c.txt", "\n")), "c.txt"),
    ):
        with pytest.raises(ValueError, match=rf"\b{name}\b"):
            refused()


def test_files_of_other_kinds_are_counted(tmp_path, draw, jdml_command):
    root = draw(tmp_path / "photos", 4, 2)
    for name in ("kind0/a.heic", "kind1/b.HEIC", "kind2/notes.txt", ".hidden/c.png", "lost.png"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"?")
    (root / "__MACOSX" / "kind0").mkdir(parents=True)
    (root / "kind3" / "__MACOSX").mkdir()
    (root / "kind3" / "__MACOSX" / "0.png").write_bytes(b"?")
    listing = read_folder(root)
    assert counts(listing)["all"] == (4, 8)
    lone, convertible, other = listing.notes
    assert lone.startswith("1 image ")
    assert re.match(r"2 files .*2 \.heic.*\.jpg", convertible)
    assert re.match(r"1 file .*1 \.txt", other)
    done = jdml_command("data", "check", "folder", root, "--quiet")
    assert done.code == 1
    assert "wrong: 2 files" in done.out


def write_pixels(folder, count=2):
    from PIL import Image

    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (9, 9), (i, ord(name[0]), 0)).save(folder / name / f"{i}.png")


def test_data_check_counts_and_names_what_is_wrong(check, tmp_path):
    write_pixels(tmp_path)
    code, out, err = check("check", "folder", tmp_path, "--quiet")
    assert (code, err) == (0, "")
    assert "decoded: 4 images" in out
    assert "wrong" not in out
    (tmp_path / "cat" / "1.png").write_bytes(b"no image")
    code, out, _ = check("check", "folder", tmp_path, "--quiet")
    assert (code, "wrong: 1 of 4 images" in out) == (1, True)
    code, out, _ = check("check", "cub", tmp_path, "--quiet")
    assert (code, "wrong: cub needs images.txt" in out) == (1, True)


def test_preparing_a_data_set_names_the_library_that_it_needs(tmp_path, monkeypatch, jdml_command):
    # Imported now, where it is there: what it is without tensorflow would stay for other tests.
    with contextlib.suppress(ImportError):
        importlib.import_module("tensorflow_datasets")
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "sets"))
    for words in (("data", "get", "omniglot"), ("train", "--data", "omniglot")):
        done = jdml_command(*words)
        assert done.code != 0
        assert done.err.strip().endswith("needs tensorflow: pip install 'jdml[tfds]'")
    with pytest.raises(MissingLibraryError, match=r"\btensorflow: pip install\b"):
        data.load("cub")
    assert not (tmp_path / "sets").exists()


# The same images in a table, and behind a name: every command reads them as those of the folder.


@pytest.fixture(scope="module")
def table(photos, tmp_path_factory):
    """The photographs in a Parquet file."""
    arrow = pytest.importorskip("pyarrow", reason="reads tables: pip install 'jdml[parquet]'")
    from pyarrow import parquet

    listing = read_folder(photos)
    rows = {
        "image": [file.read_bytes() for file in listing.files],
        "label": [listing.names["class"][number] for number in listing.views["class"].tolist()],
    }
    file = tmp_path_factory.mktemp("table") / "table.parquet"
    parquet.write_table(arrow.table(rows), file, row_group_size=7)
    return file


def scores(printed: str) -> str:
    (line,) = re.findall("^ *test class .*", printed, re.M)
    return line


def test_a_table_trains_and_is_searched_as_the_folder_is(
    table, photos, run, tiny, tmp_path, jdml_command, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    done = jdml_command("train", "--data", table, *tiny, "--out", "run")
    assert done.code == 0, done.err
    assert scores(done.out) == scores(run.out)
    assert f"next: jdml embed run {table} --split test" in done.out
    for source in (table, photos):
        done = jdml_command("embed", "run", source, "--out", f"{source.stem}.npz", "--quiet")
        assert done.code == 0, done.err
    one, other = (read_arrays(Path(f"{source.stem}.npz")) for source in (table, photos))
    np.testing.assert_allclose(one["embeddings"], other["embeddings"], atol=1e-6)
    np.testing.assert_array_equal(one["labels"], other["labels"])
    assert one["files"][3] == f"{table}[3]"
    query = ("search", "run", f"{table}[3]", "-k", 2, "--out", "found.png", "--json", "found.json")
    done = jdml_command(*query, "--gallery", f"{table.stem}.npz", "--quiet")
    assert done.code == 0, done.err
    (answer,) = json.loads(Path("found.json").read_text())
    assert len(answer["found"]) == 2
    assert all(hit["file"] != answer["query"] for hit in answer["found"])
    assert Path("found.png").exists()
    checked = data.check("folder", table)
    assert (checked.problems, checked.decoded) == ((), 36)
    report = jdml_command("report", "run", "--out", "report.html")
    assert (report.code, "not at hand" in report.out) == (0, False)
    assert "data:image/webp" in Path("report.html").read_text()


def test_a_name_of_a_module_trains_as_the_folder_does(
    photos, run, tiny, tmp_path, jdml_command, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("their_photos.py").write_text(
        "import jdml\n"
        f"listing = jdml.data.folder.read_folder({str(photos)!r})\n"
        "labels = [listing.names['class'][n] for n in listing.views['class'].tolist()]\n"
        "rows = list(zip(listing.files, labels))\n"
    )
    done = jdml_command("train", "--data", "their_photos:rows", *tiny, "--out", "run")
    assert done.code == 0, done.err
    assert scores(done.out) == scores(run.out)
    report = jdml_command("report", "run", "--out", "report.html")
    assert (report.code, "not at hand" in report.out) == (0, False)
    done = jdml_command("data", "check", "folder", "their_photos:rows", "--quiet")
    assert (done.code, "wrong" in done.out) == (0, False)
