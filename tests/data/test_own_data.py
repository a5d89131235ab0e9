"""Other people's data: data sets of other libraries, rows of anything; by one line, streamed, or refused."""

import io
import threading
import time

import numpy as np
import pytest
from data.own import FILES, LABELS, NAMES, PHOTOS, PICTURES, same, small
from PIL import Image

from jdml.data import (
    BadImageError,
    Dataset,
    ImageFiles,
    from_huggingface,
    from_parquet,
    from_rows,
    from_torch,
)
from jdml.data.folder import image_named, read_folder, read_pointer
from jdml.data.rows import images_of, of_huggingface, of_torch

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


def test_rows_of_a_table_of_pandas():
    pandas = pytest.importorskip("pandas", reason="reads a table of pandas")
    table = pandas.DataFrame({"image": list(FILES), "label": LABELS}, index=range(5, 17))
    same(from_rows(table))


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


def test_known_labels_are_those_of_rows_that_are_read_or_name_them_anew():
    pairs = list(zip(PICTURES, LABELS, strict=True))
    same(from_rows(iter(pairs), labels=LABELS))
    coarse = LABELS // 2
    assert from_rows(iter(pairs), labels=coarse).labels.tolist() == coarse.tolist()
    finer = [f"{label}-{row % 2}" for row, label in enumerate(LABELS)]
    assert set(from_rows(iter(pairs), labels=finer).class_names["label"]) == set(finer)
    shuffled = [pairs[row] for row in np.random.default_rng(0).permutation(len(pairs))]
    with pytest.raises(ValueError, match=r"labels must be those of the rows as they come, but"):
        from_rows(iter(shuffled), labels=LABELS)
    each = list(enumerate(PICTURES))[::-1]
    with pytest.raises(
        ValueError, match=r"row 0 has 11 and labels\[0\] is 0, and there are as many"
    ):
        from_rows(iter([(image, row) for row, image in each]), labels=np.arange(12))
    # Corrected labels, and other ones of a list, are the caller's own.
    corrected = np.where(np.arange(12) == 3, 2, LABELS)
    assert from_rows(iter(shuffled), labels=corrected).labels.tolist() == corrected.tolist()
    same(
        from_rows(
            [(image, label) for image, (_, label) in zip(PICTURES, shuffled, strict=True)],
            labels=LABELS,
        )
    )
    for unordered in ({0: "a"}, {"a", "b"}):
        with pytest.raises(TypeError, match=r"labels must be integers or strings \[N\], got {"):
            from_rows(pairs, labels=unordered)


def test_a_shuffled_loader_has_labels_of_its_own(torch):
    tensors = torch.from_numpy(PICTURES.transpose(0, 3, 1, 2))
    own = torch.utils.data.TensorDataset(tensors, torch.from_numpy(LABELS))
    generator = torch.Generator().manual_seed(0)
    loader = torch.utils.data.DataLoader(own, 5, shuffle=True, generator=generator)
    with pytest.raises(ValueError, match="a loader that shuffles has an order of its own"):
        from_torch(loader, labels=LABELS)
    same(from_torch(torch.utils.data.DataLoader(own, 5), labels=LABELS))


def test_tensors_are_a_data_set_s_arrays(torch):
    features = torch.arange(12.0).reshape(4, 3)
    for given in (features.clone().requires_grad_(), features.bfloat16()):
        made = Dataset("tensors", given, torch.arange(4))
        np.testing.assert_array_equal(made.images, features)
        assert made.labels.tolist() == [0, 1, 2, 3]


def test_masks_and_other_colours_are_refused():
    masked = np.ma.array(LABELS, mask=LABELS == 1)
    with pytest.raises(TypeError, match="labels must be an array without a mask: leave the masked"):
        Dataset("masked", PICTURES, masked)
    with pytest.raises(TypeError, match="images must be an array without a mask"):
        Dataset("masked", np.ma.masked_less(PICTURES, 1), LABELS)
    assert len(Dataset("whole", np.ma.array(PICTURES), np.ma.array(LABELS))) == 12
    inks = [Image.fromarray(image).convert("CMYK") for image in PICTURES]
    with pytest.raises(
        TypeError, match=r"images must be images of grey, or of red, green and blue, got mode CMYK"
    ):
        Dataset("inks", inks, LABELS)


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
        ([(PICTURES[0], "a"), (PICTURES[0], b" ")], ValueError, r"list\[1\] has no label"),
        (
            [(PICTURES[0], 0.5)],
            TypeError,
            r"list\[0\]: label must be an integer or a .*, got float",
        ),
        ([(PICTURES[0], b"\xff")], ValueError, r"list\[0\]: label must be UTF-8, got b'\\xff'"),
        ([([[1], [2, 3]], 0)], ValueError, r"list\[0\]: image must be an array or an image: "),
        ([(io.BytesIO(), 0)], TypeError, r"list\[0\]: image must be an array of .* got object"),
        ([(Image.new("F", (9, 9)), 0)], TypeError, "must have 8 or 16 bits, got mode 'F'"),
        ([(PICTURES[0], np.eye(3)[0])], TypeError, r"list\[0\]: .* got an array \[3\]"),
        ([(PICTURES[0], 0), (PICTURES[0], "a")], TypeError, "integers or strings, got int and str"),
        (
            [(PICTURES, LABELS)],
            ValueError,
            r"single images .*, got \[12, 10, 8, 3\]: take them before",
        ),
        (
            [(object(), 0)],
            TypeError,
            r"list\[0\]: image must be an array of numbers or an image, got object",
        ),
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
