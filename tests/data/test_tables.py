"""Tables: Parquet and Arrow files, by their row groups, or refused."""

import gc
import json
import pickle
import time

import numpy as np
import pytest
from data.own import FEATURES, FILES, LABELS, NAMES, PHOTOS, PICTURES, encoded, same, small

from jdml.data import (
    BadImageError,
    ImageBatches,
    ImageFiles,
    RandomBatchSampler,
    columns,
    from_parquet,
    from_rows,
    tables,
)
from jdml.data.folder import read_folder


@pytest.fixture(scope="module")
def arrow():
    return pytest.importorskip("pyarrow", reason="reads tables: pip install 'jdml[parquet]'")


@pytest.fixture
def write(arrow, tmp_path):
    """Write a table, its columns as given, as Hugging Face does or not."""
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
def test_small_pictures_of_a_table_are_an_array_as_they_are(write, name):
    same(from_parquet(write(name)))
    structs = [{"bytes": content, "path": None} for content in FILES]
    same(from_parquet(write(name, FEATURES, image=structs)), names=NAMES)
    same(from_parquet(write(name, label=[NAMES[label] for label in LABELS])), names=NAMES)
    grey = [encoded(picture[..., 0]) for picture in PICTURES]
    same(from_parquet(write(name, image=grey)), PICTURES[..., :1])


def test_photographs_are_read_when_they_are_asked_for(write, monkeypatch):
    file = write(image=PHOTOS)
    table, group = tables.Table, tables.Table.group
    read = []
    monkeypatch.setattr(
        table, "group", lambda self, n, name: read.append(n) or group(self, n, name)
    )
    data = from_parquet(file, transform=small)
    sampler = RandomBatchSampler(len(data.labels), 4)
    assert isinstance(data.images, ImageFiles)
    assert (data.images.shape, read) == ((12, 8, 8, 3), [])
    assert str(data.images.files[7]) == f"{file}[7]"
    expected = ImageFiles([from_rows([(PHOTOS[7], 0)], transform=small).images.files[0]], small)[0]
    np.testing.assert_array_equal(data.images[7], expected)
    assert read == [1]
    assert isinstance(from_parquet(file).images, ImageFiles)  # of several sizes
    assert len(pickle.loads(pickle.dumps(data.images))[[3, 11]]) == 2  # in another process
    ImageBatches(data, sampler).close()


def test_labels_of_any_column_and_names_without_a_choice(write):
    plain = write(image=None, label=None, photo=FILES, species=[NAMES[n] for n in LABELS])
    assert from_parquet(plain, "photo", "species").class_names == {"species": NAMES}
    listing = read_folder(plain)
    assert tuple(listing.names["class"].values()) == NAMES
    named = {"kind": FEATURES["label"]}
    both = write("b.parquet", named, label=None, kind=LABELS.tolist(), width=[8] * 12)
    assert tuple(read_folder(both).names["class"].values()) == NAMES
    chosen = np.array([NAMES[n] for n in LABELS])
    from pyarrow import array

    same(from_parquet(write("c.parquet", label=array(chosen).dictionary_encode())), names=NAMES)


@pytest.mark.parametrize("kind", ["large_string", "dictionary", "string"])
def test_a_column_of_labels_however_its_text_is_kept(write, arrow, kind):
    """As pandas writes it, beside the numbers of rows; with another column that might be it nothing is guessed."""
    text = arrow.array([NAMES[n] for n in LABELS])
    text = text.dictionary_encode() if kind == "dictionary" else text.cast(kind)
    index = {"__index_level_0__": list(range(12))[::-1]}
    plain = write(label=None, species=text, **index)
    assert tuple(read_folder(plain).names["class"].values()) == NAMES
    with pytest.raises(ValueError, match="has no column 'label': it has image, species, year"):
        read_folder(write("b.parquet", label=None, species=text, year=[2020] * 12))


def test_parts_are_those_that_files_are_called_after(write, tmp_path):
    for name in ("hub/data/train-00000-of-00002.parquet", "hub/data/train-00001-of-00002.parquet"):
        write(name)
    write("hub/data/validation-00000-of-00001.parquet")
    sizes = {part: len(rows) for part, rows in read_folder(tmp_path / "hub").splits.items()}
    assert sizes == {"train": 24, "val": 12, "all": 36}
    assert len(from_parquet(tmp_path / "hub")) == 36
    assert len(from_parquet(f"{tmp_path}/hub/data/train-*.parquet")) == 24
    alone = read_folder(write("one/test/0000.parquet").parents[1])
    assert {part: len(rows) for part, rows in alone.splits.items()} == {
        "train": 6,
        "test": 6,
        "all": 12,
    }
    write("hub/data/more.parquet")
    with pytest.raises(
        ValueError, match=r"more.parquet is named after none of train, .*, others are"
    ):
        read_folder(tmp_path / "hub")
    photos = tmp_path / "photos"
    for name in NAMES:  # a table beside photographs is none of them
        (photos / name).mkdir(parents=True)
        (photos / name / "0.png").write_bytes(FILES[0])
    write("photos/embedded.parquet")
    listing = read_folder(photos)
    assert len(listing.files) == 4
    assert "tables are passed over, for the images beside them: embedded.parquet" in listing.notes


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"image": None, "img": FILES}, ValueError, "no column 'image': it has label, img"),
        ({"label": None, "kind": LABELS}, ValueError, "no column 'label': it has image, kind"),
        ({"image": ["a"] * 12}, TypeError, "'image' must hold images as bytes, .* got string"),
        (
            {"label": LABELS / 2},
            TypeError,
            "'label' must hold integers, ClassLabel or .* got double",
        ),
        (
            {"label": [0, 1, None, *LABELS[3:].tolist()]},
            ValueError,
            r"birds.parquet\[2\] has no label",
        ),
        ({"label": [0, -1] * 6}, ValueError, r"label must be at least 0, got -1 in row 1"),
        ({"image": [], "label": []}, ValueError, "birds.parquet must hold at least one row"),
        (
            {"label": [0, -1] * 6, "features": FEATURES},
            ValueError,
            r"birds.parquet\[1\] has the label -1, which is no class",
        ),
        (
            {"image": [*FILES[:7], None, *FILES[8:]]},
            BadImageError,
            r"birds.parquet\[7\]: expected a whole image: there is none",
        ),
        (
            {"image": [*FILES[:7], b"?", *FILES[8:]]},
            BadImageError,
            r"birds.parquet\[7\]: expected a whole image: its format is not known",
        ),
    ],
)
def test_tables_are_refused_in_a_sentence(write, values, error, message):
    with pytest.raises(error, match=message) as caught:
        from_parquet(write(**values))
    assert "\n" not in str(caught.value)


def test_what_is_no_table(write, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"path must name Parquet files, .* names none"):
        from_parquet(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("no table")
    with pytest.raises(ValueError, match=r"text.parquet is not a readable .parquet file"):
        from_parquet(tmp_path / "text.parquet")
    write("two/1.parquet", label=list("abcd") * 3)
    with pytest.raises(TypeError, match="labels of one kind, got integers and strings"):
        from_parquet([write("two/0.parquet"), tmp_path / "two" / "1.parquet"])
    with pytest.raises(FileNotFoundError, match=r"files, .*\*.txt names none"):
        from_parquet(tmp_path / "*.txt")
    for path in ([], 3):
        with pytest.raises(
            TypeError, match=r"path must be a path, a pattern or several, got [\[3]"
        ):
            from_parquet(path)
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(ValueError, match=r"state.json is not what Hugging Face's save_to_disk"):
        read_folder(tmp_path)


def test_a_table_is_asked_for_by_its_extra(write, monkeypatch):
    file = write()
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    tables._opened.cache_clear()
    with pytest.raises(
        ValueError, match=r"birds.parquet needs pyarrow: pip install 'jdml\[parquet\]'"
    ):
        from_parquet(file)


def test_of_a_large_file_few_row_groups_are_held(write, arrow, monkeypatch, caplog):
    random = np.random.default_rng(0)
    noise = [random.bytes(100_000) for _ in range(60)]
    labels = list(range(60))
    file = write("large.parquet", size=5, image=noise, label=labels)
    for module in (columns, tables):
        monkeypatch.setattr(module, "HELD", 1_500_000)
    monkeypatch.setattr(tables, "_kept", tables._Kept())
    gc.collect()  # what other tests have left is not freed meanwhile
    before = arrow.total_allocated_bytes()
    images = from_parquet(file, transform=small).images
    most = 0
    for row in random.permutation(60).tolist():
        assert images.files[row].read_bytes() == noise[row]
        most = max(most, arrow.total_allocated_bytes() - before)
    assert 1_000_000 < most < 2_600_000  # of 6,000,000: what is held, and the group that comes
    assert tables._kept.held <= 1_500_000
    assert [group for _, group, _ in tables._kept._groups][-1] == row // 5  # the newest stay
    monkeypatch.setattr(columns, "LARGE", 400_000)
    from_parquet(file, transform=small)
    assert (
        "MB, one of which is read for an image: write it anew in groups of a hundred rows"
        in caplog.text
    )


def test_threads_read_a_row_group_once(write, monkeypatch):
    file = write("once.parquet", size=12)
    group, read = tables.Table.group, []

    def slow(self, number, name):
        read.append(number)
        time.sleep(0.05)
        return group(self, number, name)

    monkeypatch.setattr(tables.Table, "group", slow)
    images = from_parquet(file, transform=small).images
    ImageFiles(images.files, small, threads=4)[:]
    assert read == [0]


def test_a_training_goes_on_with_the_same_batches(write):
    data = from_parquet(write(image=PHOTOS), transform=small)

    def batches():
        return ImageBatches(data, RandomBatchSampler(12, 5, seed=3), seed=1, workers=2)

    first = batches()
    for _ in range(2):
        next(first)
    state = json.loads(json.dumps(first.get_state()))
    there = next(first)
    again = batches()
    again.set_state(state)
    np.testing.assert_array_equal(next(again).images, there.images)
    for pipeline in (first, again):
        pipeline.close()


def test_blank_labels_of_a_table_are_no_class(write):
    labels = ["cat", *(" " * (row == 1) or "dog" for row in range(len(FILES) - 1))]
    for read in (from_parquet, read_folder):
        with pytest.raises(ValueError, match=r"birds.parquet\[2\] has no label: it is ' '"):
            read(write(label=labels))


def test_a_table_is_named_once(write):
    file = write()
    for names in ([file, file], [file.parent / "*.parquet", file.parent / "." / file.name]):
        with pytest.raises(ValueError, match="must name each file once, .*birds.parquet is named"):
            from_parquet(names)
