"""Other people's data: tables, data sets of other libraries, rows of anything; by one line, streamed, or refused."""

import io
import json
import pickle
import threading
import time

import numpy as np
import pytest
from PIL import Image

from jdml.data import (
    BadImageError,
    Dataset,
    ImageBatches,
    ImageFiles,
    RandomBatchSampler,
    columns,
    conventional,
    from_huggingface,
    from_parquet,
    from_rows,
    from_torch,
    tables,
)
from jdml.data.folder import image_named, read_folder, read_pointer
from jdml.data.rows import images_of, of_huggingface, of_torch

RANDOM = np.random.default_rng(0)
PICTURES = RANDOM.integers(0, 256, (12, 10, 8, 3), np.uint8)
LABELS = np.arange(12) % 4
NAMES = ("ant", "bee", "cat", "dog")
FEATURES = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": NAMES}}


def encoded(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


FILES = [encoded(picture) for picture in PICTURES]
PHOTOS = [encoded(RANDOM.integers(0, 256, (70 + n, 80, 3), np.uint8)) for n in range(12)]
small = conventional(8)


def same(data: Dataset, images=PICTURES, names: tuple[str, ...] | None = None) -> None:
    np.testing.assert_array_equal(data.images, images)
    np.testing.assert_array_equal(data.labels, LABELS)
    assert data.class_names == ({} if names is None else {"label": names})


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


# Tables


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
    noise = [RANDOM.bytes(100_000) for _ in range(60)]
    labels = list(range(60))
    file = write("large.parquet", size=5, image=noise, label=labels)
    for module in (columns, tables):
        monkeypatch.setattr(module, "HELD", 1_500_000)
    monkeypatch.setattr(tables, "_kept", tables._Kept())
    before = arrow.total_allocated_bytes()
    images = from_parquet(file, transform=small).images
    most = 0
    for row in RANDOM.permutation(60).tolist():
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


# Hugging Face


@pytest.fixture(scope="module")
def hub():
    return pytest.importorskip("datasets", reason="reads its data sets: pip install datasets")


@pytest.fixture(scope="module")
def birds(hub):
    features = hub.Features(image=hub.Image(), label=hub.ClassLabel(names=list(NAMES)))
    rows = {"image": [{"bytes": file, "path": None} for file in FILES], "label": LABELS.tolist()}
    return hub.Dataset.from_dict(rows, features=features)


def test_hugging_face_in_memory_and_on_disk(hub, birds, tmp_path):
    same(from_huggingface(birds), names=NAMES)
    same(from_huggingface(birds.with_format("numpy")), names=NAMES)
    birds.save_to_disk(tmp_path / "saved")
    same(from_huggingface(hub.load_from_disk(tmp_path / "saved")), names=NAMES)
    same(from_parquet(tmp_path / "saved"), names=NAMES)  # which needs pyarrow alone
    parts = hub.DatasetDict(train=birds.select(range(4)), test=birds.select(range(4, 12)))
    parts.save_to_disk(tmp_path / "parts")
    sizes = {part: len(rows) for part, rows in read_folder(tmp_path / "parts").splits.items()}
    assert sizes == {"train": 4, "test": 8, "all": 12}
    birds.to_parquet(tmp_path / "birds.parquet")
    same(from_parquet(tmp_path / "birds.parquet"), names=NAMES)


def test_hugging_face_stays_encoded_where_it_is(birds):
    images = from_huggingface(birds, transform=small).images
    assert isinstance(images, ImageFiles)
    assert images.files[3].read_bytes() == FILES[3]
    assert str(images.files[3]) == "huggingface[3]"
    assert images[[1, 2]].shape == (2, 8, 8, 3)


def test_hugging_face_streamed_renamed_and_as_numbers(hub, birds):
    same(from_huggingface(birds.to_iterable_dataset()), names=NAMES)
    renamed = birds.rename_columns({"image": "photo", "label": "species"})
    assert from_huggingface(renamed, "photo", "species").class_names == {"species": NAMES}
    numbers = hub.Features(image=hub.Array3D((10, 8, 3), "uint8"), label=hub.Value("string"))
    rows = {"image": list(PICTURES), "label": [NAMES[label] for label in LABELS]}
    same(from_huggingface(hub.Dataset.from_dict(rows, features=numbers)), names=NAMES)


def test_hugging_face_is_refused_in_a_sentence(hub, birds):
    with pytest.raises(TypeError, match=r"one split, got train, test: write dataset\['train'\]"):
        from_huggingface(hub.DatasetDict(train=birds, test=birds))
    with pytest.raises(TypeError, match=r"must be a datasets.Dataset, got a list"):
        from_huggingface([1])
    with pytest.raises(ValueError, match="no column 'img': it has image, label"):
        from_huggingface(birds, "img")
    bare = birds.cast_column("label", hub.Value("float32"))
    with pytest.raises(
        TypeError, match="'label' must hold integers, ClassLabel or strings, got float"
    ):
        from_huggingface(bare)


# PyTorch


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="reads its data sets: pip install torch")


def torch_data(torch, images, labels=LABELS):
    class Pairs(torch.utils.data.Dataset):
        reading, most, reads = 0, 0, 0

        def __len__(self):
            return len(images)

        def __getitem__(self, row):
            Pairs.reads += 1
            Pairs.reading += 1
            Pairs.most = max(Pairs.most, Pairs.reading)
            time.sleep(0.001)
            Pairs.reading -= 1
            return images[row], labels[row]

    return Pairs()


def test_pytorch_tensors_are_an_array_as_they_are(torch):
    tensors = torch.from_numpy(PICTURES.transpose(0, 3, 1, 2))
    same(from_torch(torch.utils.data.TensorDataset(tensors, torch.from_numpy(LABELS))))
    same(
        from_torch(torch_data(torch, tensors / 255)),
        (PICTURES / np.float32(255)).astype(np.float32),
    )
    same(from_torch(torch_data(torch, tensors[:, 0])), PICTURES[..., :1])
    same(from_torch(torch_data(torch, torch.from_numpy(PICTURES))))  # [H, W, C]
    halves = from_torch(torch_data(torch, (tensors / 256).bfloat16())).images
    np.testing.assert_array_equal(halves, (tensors / 256).bfloat16().float().permute(0, 2, 3, 1))
    for size in (5, None):
        same(from_torch(torch.utils.data.DataLoader(torch_data(torch, tensors), size)))

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return ({"pixels": tensors[n], "kind": NAMES[LABELS[n]]} for n in range(12))

    same(from_torch(Stream(), "pixels", "kind"), names=NAMES)
    loader = torch.utils.data.DataLoader(Stream(), 5)
    same(from_torch(loader, "pixels", "kind"), names=NAMES)
    with pytest.raises(ValueError, match=r"loader\[0\] has no 'birds': it has 'pixels', 'kind'"):
        of_torch(loader, "birds", "kind")


def test_rows_with_features_are_no_hugging_face():
    class Featured(list):
        features = None

    assert len(images_of(Featured([(PICTURES[0], 0), (PICTURES[1], 1)]), "mine").files) == 2


def test_a_stream_without_columns_tells_them_by_its_rows(hub):
    rows = [{"image": PICTURES[n], "kind": NAMES[n]} for n in range(2)]
    stream = hub.IterableDataset.from_generator(lambda: iter(rows))
    rows, classes = of_huggingface(stream, "image", "kind")
    assert (len(rows), list(classes.labels)) == (2, list(NAMES[:2]))


def test_hugging_face_rows_are_pixels_whatever_they_are_set_to(torch, birds):
    same(from_huggingface(birds.with_format("torch")), names=NAMES)


def test_pytorch_photographs_are_read_one_at_a_time_when_they_are_drawn(torch):
    photos = [Image.open(io.BytesIO(content)) for content in PHOTOS]
    rows = torch_data(torch, photos)
    data = from_torch(rows, labels=LABELS, transform=small)
    assert isinstance(data.images, ImageFiles)
    assert type(rows).reads < 3
    expected = from_rows([(content, 0) for content in PHOTOS], transform=small).images[:]
    images = ImageFiles(data.images.files, small, threads=4)
    np.testing.assert_array_equal(images[:], expected)
    assert type(rows).most == 1
    assert from_torch(torch_data(torch, photos)).images.shape == (12, 224, 224, 3)


# Rows of anything


def test_rows_of_anything():
    pairs = list(zip(PICTURES, LABELS, strict=True))
    same(from_rows(pairs))
    same(from_rows(iter(pairs)))
    same(from_rows({"image": image, "label": np.int64(label)} for image, label in pairs))
    same(
        from_rows((file, NAMES[label].encode()) for file, label in zip(FILES, LABELS, strict=True)),
        names=NAMES,
    )
    same(from_rows([(Image.fromarray(image), label) for image, label in pairs]))
    same(from_rows([(image.tolist(), label) for image, label in pairs]))
    same(from_rows([(bytearray(file), label) for file, label in zip(FILES, LABELS, strict=True)]))
    same(from_rows([(image, np.array(NAMES[label])) for image, label in pairs]), names=NAMES)
    same(from_rows([(5, label, image) for image, label in pairs], image=2, label=1))
    same(from_rows([(image, None) for image in PICTURES], labels=LABELS))
    features = from_rows([(image.ravel() / 255, label) for image, label in pairs])
    assert features.images.shape == (12, 240)
    tall = [(np.zeros((70 + n, 9, 4), np.uint8), n % 2) for n in range(4)]
    assert from_rows(tall).images.shape == (4, 224, 224, 3)


def test_files_and_transparent_pictures(tmp_path):
    pictures = [Image.new(mode, (9, 9)) for mode in ("RGBA", "P", "1", "L", "CMYK", "I;16")]
    files = []
    for n, picture in enumerate(pictures[:4]):
        picture.save(tmp_path / f"{n}.png")
        files.append((str(tmp_path / f"{n}.png"), n))
    assert from_rows(files).images.shape == (4, 9, 9, 3)
    assert from_rows([(picture, 0) for picture in pictures]).images.shape == (6, 9, 9, 3)


def test_pictures_of_pillow_are_as_their_files(tmp_path):
    deep = Image.fromarray(np.arange(72, dtype=np.uint16).reshape(8, 9) * 900)
    clear = Image.new("RGB", (9, 8), "red")
    turned = Image.fromarray(PICTURES[0])
    turned.getexif()[0x0112] = 6
    clear.save(tmp_path / "0.png", transparency=(255, 0, 0))
    turned.save(tmp_path / "1.png", exif=turned.getexif())
    deep.save(tmp_path / "2.png")
    deep.convert("I").save(tmp_path / "3.tif")
    for n, name in enumerate(("0.png", "1.png", "2.png")):
        file = tmp_path / name
        with Image.open(file) as picture:
            expected = from_rows([(file, n)]).images
            np.testing.assert_array_equal(from_rows([(picture, n)]).images, expected)
    wide = from_rows([(deep.convert("I"), 0)]).images  # as TIFF files of 32 bits are read
    np.testing.assert_array_equal(wide, expected)


def test_rows_that_do_not_end_are_told_of(monkeypatch, caplog):
    monkeypatch.setattr("jdml.data.rows.MANY", 5)
    from_rows(iter([(PICTURES[0], 0)] * 4))
    assert not caplog.messages
    from_rows(iter([(PICTURES[0], 0)] * 9))
    assert caplog.messages == [
        "5 rows are read and there are more: rows that never end are not for this"
    ]


def test_a_source_of_grain():
    grain = pytest.importorskip("grain")
    source = grain.MapDataset.source(list(zip(PICTURES, LABELS, strict=True)))
    same(from_rows(source))
    same(from_rows(source.to_iter_dataset()))


def test_rows_are_read_by_threads(monkeypatch):
    monkeypatch.setattr("jdml.data.rows.cores", lambda: 2)
    together = threading.Barrier(2, timeout=20)

    class Slow(list):
        def __getitem__(self, row):
            if row in (1, 65):
                together.wait()
            return super().__getitem__(row)

    assert len(from_rows(Slow([(PICTURES[0], 1)] * 80))) == 80


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (5, TypeError, "rows must be a sequence or an iterable, got a int"),
        ({"image": 0}, TypeError, "iterable of rows, got a dictionary of image: write rows"),
        ([], ValueError, "list must hold at least one row, got none"),
        (
            [PICTURES[0]],
            TypeError,
            r"must be pairs .*, got a ndarray in row 0: of two arrays write",
        ),
        ([(PICTURES[0],)], ValueError, r"list\[0\] has no 1: it has 1 parts"),
        ([{"img": 0, "label": 0}], ValueError, r"list\[0\] has no 'image': it has 'img', 'label'"),
        ([(PICTURES[0], 0), (None, 0)], ValueError, r"list\[1\] has no image"),
        ([(PICTURES[0], 0), (PICTURES[0], None)], ValueError, r"list\[1\] has no label"),
        (
            [(PICTURES[0], 0.5)],
            TypeError,
            r"list\[0\]: label must be an integer or a .*, got float",
        ),
        ([(PICTURES[0], b"\xff")], ValueError, r"list\[0\]: label must be UTF-8, got b'\\xff'"),
        ([([[1], [2, 3]], 0)], ValueError, r"list\[0\]: image must be an array or an image: "),
        ([(io.BytesIO(), 0)], TypeError, r"list\[0\]: image must be an array or .* got object"),
        ([(Image.new("F", (9, 9)), 0)], TypeError, "must have 8 or 16 bits, got mode 'F'"),
        ([(PICTURES[0], np.eye(3)[0])], TypeError, r"list\[0\]: .* got an array \[3\]"),
        ([(PICTURES[0], 0), (PICTURES[0], "a")], TypeError, "integers or strings, got int and str"),
        (
            [(PICTURES, LABELS)],
            ValueError,
            r"single images .*, got \[12, 10, 8, 3\]: take them before",
        ),
        ([(object(), 0)], TypeError, r"list\[0\]: image must be an array or an image, got object"),
        ([(np.zeros(3), 0), (np.zeros(4), 0)], ValueError, r"one shape, got \[3\] and \[4\]"),
        (
            [(PICTURES[0], 0), (FILES[0], 0)],
            TypeError,
            r"list\[1\]: .* uint8 as the first, got bytes",
        ),
        ([(b"?", 0)], BadImageError, r"list\[0\]: expected a whole image: its format is not known"),
    ],
)
def test_rows_are_refused_in_a_sentence(rows, error, message):
    with pytest.raises(error, match=message) as caught:
        from_rows(rows)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_cut_or_does_not_fit(monkeypatch):
    with pytest.raises(TypeError, match=r"got float64 \[3, 3, 3\]: leave their scaling"):
        from_rows([(np.zeros((3, 3, 3)), 0)], transform=small)
    with pytest.raises(TypeError, match=r"got float64: write images.astype\(numpy.float32\)"):
        from_rows([(np.zeros((3, 3, 3)), 0)])
    with pytest.raises(TypeError, match=r"labels must be integers or strings \[N\], got 3"):
        from_rows([(PICTURES[0], 0)], labels=3)
    with pytest.raises(ValueError, match=r"labels must have shape \[N\] = \[1\], got \[2\]"):
        from_rows([(PICTURES[0], 0)], labels=[0, 1])
    monkeypatch.setattr("os.sysconf", lambda _: 10)
    with pytest.raises(
        ValueError, match=r"must fit into memory, got 1 arrays .*: write transform="
    ):
        from_rows([(PICTURES[0], 0)])


# A user's own module


def test_a_name_of_ones_own_module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_birds.py").write_text(
        "import numpy as np, jdml\n"
        "np.save('images.npy', np.full((12, 9, 9, 1), 7, np.uint8))\n"
        "images = np.load('images.npy', mmap_mode='r')\n"
        "arrays = jdml.data.Dataset('mine', images, np.arange(12) % 4)\n"
        "def parts():\n"
        "    return {'train': list(zip(images, 'ab' * 6)), 'validation': list(zip(images, 'cd' * 6))}\n"
        "other, none, empty = {'holdout': arrays}, None, {}\n"
        "negative = [(images[0], -1), (images[1], 0)]\n"
        "def broken(): raise KeyError('disk')\n"
        "def asking(path): return arrays\n"
        "numbers = jdml.data.Dataset('mine', np.zeros((4, 3)), np.arange(4))\n"
    )
    listing = read_pointer("my_birds:arrays")
    assert {part: len(rows) for part, rows in listing.splits.items()} == {
        "train": 6,
        "test": 6,
        "all": 12,
    }
    assert listing.dataset("test", transform=small).images[:1].mean() == 7
    assert str(listing.files[2]) == "my_birds:arrays[2]"
    parts = read_pointer("my_birds:parts")
    assert {part: len(rows) for part, rows in parts.splits.items()} == {
        "train": 12,
        "val": 12,
        "all": 24,
    }
    assert list(parts.names["class"].values()) == ["a", "b", "c", "d"]
    with pytest.raises(
        ValueError, match="my_birds:other must have parts of train, .*, got 'holdout'"
    ):
        read_pointer("my_birds:other")
    with pytest.raises(TypeError, match=r"images must be uint8 \[H, W, C\], got float32 \[3\]"):
        read_pointer("my_birds:numbers")
    for name, message in {
        "empty": "my_birds:empty must have parts of train, .*, got none",
        "negative": r"my_birds:negative\[0\]: label must be at least 0, got -1",
        "broken": r"my_birds:broken raised KeyError: 'disk' \(.*my_birds.py:\d+\)$",
        "asking": r"my_birds:asking raised TypeError: asking\(\) missing 1 .* 'path'$",
    }.items():
        with pytest.raises(ValueError, match=message):
            read_pointer(f"my_birds:{name}")
    with pytest.raises(TypeError, match="my_birds:none: rows must be a sequence .* got a NoneType"):
        read_pointer("my_birds:none")
    assert image_named("my_birds:parts validation[3]") is parts.files[15]
    with pytest.raises(ValueError, match=r"my_birds:arrays\[99\]: my_birds:arrays has no such row"):
        image_named("my_birds:arrays[99]")
    with pytest.raises(
        ValueError, match="nowhere:birds cannot be imported: No module named 'nowhere'"
    ):
        read_pointer("nowhere:birds")
