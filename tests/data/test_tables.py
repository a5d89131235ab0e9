"""Tables of images: Parquet and Arrow files, their columns, parts and refusals."""

import json
import pickle
import sys

import numpy as np
import pytest
from data.pictures import (
    FEATURES,
    FILES,
    LABELS,
    NAMES,
    PHOTOS,
    PICTURES,
    check_same,
    encoded,
    small,
)

from jdml.data import BadImageError, ImageFiles, from_parquet, from_rows
from jdml.data.folder import read_folder


@pytest.fixture(scope="module")
def arrow():
    return pytest.importorskip("pyarrow", reason="reads tables: pip install 'jdml[parquet]'")


@pytest.fixture
def write(arrow, tmp_path):
    """Write a table of some columns, with or without the notes of Hugging Face."""
    from pyarrow import parquet

    def write(name="birds.parquet", features=None, size=5, **values):
        values = {"image": FILES, "label": LABELS.tolist()} | values
        table = arrow.table({key: value for key, value in values.items() if value is not None})
        if features:
            noted = json.dumps({"info": {"features": features}})
            table = table.replace_schema_metadata({"huggingface": noted})
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".arrow":
            with (
                arrow.OSFile(str(file), "wb") as sink,
                arrow.ipc.new_stream(sink, table.schema) as out,
            ):
                out.write_table(table, max_chunksize=size)
        else:
            parquet.write_table(table, file, row_group_size=size)
        return file

    return write


@pytest.mark.parametrize("name", ["birds.parquet", "birds.arrow"])
def test_small_pictures_of_a_table_become_one_array(write, name):
    check_same(from_parquet(write(name)))
    structs = [{"bytes": content, "path": None} for content in FILES]
    check_same(from_parquet(write(name, FEATURES, image=structs)), names=NAMES)
    check_same(from_parquet(write(name, label=[NAMES[label] for label in LABELS])), names=NAMES)
    grey = [encoded(picture[..., 0]) for picture in PICTURES]
    check_same(from_parquet(write(name, image=grey)), PICTURES[..., :1])


def test_photographs_of_a_table_are_read_lazily(write):
    file = write(image=[*PHOTOS[:11], b"no image"])
    data = from_parquet(file, transform=small)
    assert str(data.images.files[7]) == f"{file}[7]"
    images = ImageFiles(data.images.files, small)
    expected = from_rows([(photo, 0) for photo in PHOTOS[:11]], transform=small).images[:]
    np.testing.assert_array_equal(images[:11], expected)
    with pytest.raises(BadImageError, match=r"birds\.parquet\[11\]:"):
        images[11]
    there = pickle.loads(pickle.dumps(data.images))  # like in another process
    np.testing.assert_array_equal(there[[3, 10]], expected[[3, 10]])


def test_labels_of_any_column_and_default_names(write, arrow):
    plain = write(image=None, label=None, photo=FILES, species=[NAMES[n] for n in LABELS])
    assert from_parquet(plain, "photo", "species").class_names == {"species": NAMES}
    with pytest.raises(ValueError, match=r"birds\.parquet .*'image'.* photo, species"):
        read_folder(plain)
    named = write("b.parquet", FEATURES, image=[{"bytes": file, "path": None} for file in FILES])
    assert tuple(read_folder(named).names["class"].values()) == NAMES
    text = arrow.array([NAMES[n] for n in LABELS]).dictionary_encode()  # as pandas writes it
    check_same(from_parquet(write("c.parquet", label=text)), names=NAMES)


def sizes(listing) -> dict[str, int]:
    return {part: len(rows) for part, rows in listing.splits.items()}


def test_parts_are_named_by_their_files(write, tmp_path):
    for name in ("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001"):
        write(f"hub/data/{name}.parquet")
    assert sizes(read_folder(tmp_path / "hub")) == {"train": 24, "val": 12, "all": 36}
    assert len(from_parquet(tmp_path / "hub")) == 36
    assert len(from_parquet(f"{tmp_path}/hub/data/train-*.parquet")) == 24
    alone = read_folder(write("one/test/0000.parquet").parents[1])
    assert sizes(alone) == {"train": 6, "test": 6, "all": 12}


@pytest.mark.parametrize(
    ("values", "error", "place"),
    [
        ({"image": None, "img": FILES}, ValueError, r"birds\.parquet .*'image'.* label, img"),
        ({"label": None, "kind": LABELS}, ValueError, r"birds\.parquet .*'label'.* image, kind"),
        ({"label": LABELS / 2}, TypeError, r"birds\.parquet\[0\]: label"),
        ({"label": [0, 1, None, *LABELS[3:].tolist()]}, ValueError, r"birds\.parquet\[2\]"),
        ({"label": [0, -1] * 6}, ValueError, r"birds\.parquet\[1\]: label"),
        ({"image": [None, *FILES[1:]]}, TypeError, r"birds\.parquet\[0\]"),
    ],
)
def test_wrong_tables_are_refused(write, values, error, place):
    with pytest.raises(error, match=place) as caught:
        from_parquet(write(**values))
    assert "\n" not in str(caught.value)


def test_wrong_paths_and_a_missing_library_are_refused(write, tmp_path, monkeypatch):
    file, text, other = write(), tmp_path / "text.parquet", tmp_path / "words.parquet"
    text.write_text("no table")
    write(other.name, label=list("abcd") * 3)
    for path, error, name in (
        (tmp_path / "*.txt", FileNotFoundError, r"^path .*\*\.txt"),
        (text, ValueError, r"/text\.parquet"),
        ([file, other], ValueError, r"birds\.parquet"),
    ):
        with pytest.raises(error, match=rf"{name}\b"):
            from_parquet(path)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"birds\.parquet .*'jdml\[parquet\]'"):
        from_parquet(file)
