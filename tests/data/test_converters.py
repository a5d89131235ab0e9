"""Converters from other libraries' data sets and from rows: read, streamed, or refused."""

import io

import numpy as np
import pytest
from data.pictures import FILES, LABELS, NAMES, PHOTOS, PICTURES, check_same, small
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
from jdml.data.folder import image_named, read_folder
from jdml.data.rows import read_pointer

# Hugging Face


@pytest.fixture(scope="module")
def hub():
    return pytest.importorskip("datasets", reason="reads its data sets: pip install datasets")


@pytest.fixture(scope="module")
def birds(hub):
    features = hub.Features(image=hub.Image(), label=hub.ClassLabel(names=list(NAMES)))
    rows = {"image": [{"bytes": file, "path": None} for file in FILES], "label": LABELS.tolist()}
    return hub.Dataset.from_dict(rows, features=features)


def test_hugging_face_data_in_memory_and_on_disk(hub, birds, tmp_path):
    check_same(from_huggingface(birds), names=NAMES)
    check_same(from_huggingface(birds.with_format("numpy")), names=NAMES)
    birds.save_to_disk(tmp_path / "saved")
    check_same(from_huggingface(hub.load_from_disk(tmp_path / "saved")), names=NAMES)
    check_same(from_parquet(tmp_path / "saved"), names=NAMES)  # needs only pyarrow
    parts = hub.DatasetDict(train=birds.select(range(4)), test=birds.select(range(4, 12)))
    parts.save_to_disk(tmp_path / "parts")
    sizes = {part: len(rows) for part, rows in read_folder(tmp_path / "parts").splits.items()}
    assert sizes == {"train": 4, "test": 8, "all": 12}
    birds.to_parquet(tmp_path / "birds.parquet")
    check_same(from_parquet(tmp_path / "birds.parquet"), names=NAMES)

    images = from_huggingface(birds, transform=small).images
    assert images.files[3].read_bytes() == FILES[3]  # stays encoded
    assert str(images.files[3]) == "huggingface[3]"
    assert images[[1, 2]].shape == (2, 8, 8, 3)


def test_hugging_face_stream_with_other_column_names(hub, birds):
    check_same(from_huggingface(birds.to_iterable_dataset()), names=NAMES)
    pairs = [{"image": PICTURES[n], "label": NAMES[LABELS[n]]} for n in range(12)]
    stream = hub.IterableDataset.from_generator(lambda: iter(pairs))  # without column names
    check_same(from_huggingface(stream), names=NAMES)
    renamed = birds.rename_columns({"image": "photo", "label": "species"})
    assert from_huggingface(renamed, "photo", "species").class_names == {"species": NAMES}


def test_wrong_hugging_face_data_is_refused(hub, birds):
    bare = birds.cast_column("label", hub.Value("float32"))
    for data, column, error, name in (
        (hub.DatasetDict(train=birds, test=birds), "image", TypeError, "^dataset"),
        (birds, "img", ValueError, "'img'.* image, label"),
        (bare, "image", TypeError, r"^huggingface\[0\]: label"),
    ):
        with pytest.raises(error, match=name):
            from_huggingface(data, column)


# PyTorch


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="reads its data sets: pip install torch")


def torch_data(torch, images, labels=LABELS):
    class Pairs(torch.utils.data.Dataset):
        def __len__(self):
            return len(images)

        def __getitem__(self, row):
            return images[row], labels[row]

    return Pairs()


def test_pytorch_tensors_become_one_array(torch):
    tensors = torch.from_numpy(PICTURES.transpose(0, 3, 1, 2))
    check_same(from_torch(torch.utils.data.TensorDataset(tensors, torch.from_numpy(LABELS))))
    shares = (PICTURES / np.float32(255)).astype(np.float32)
    check_same(from_torch(torch_data(torch, tensors / 255)), shares)
    check_same(from_torch(torch_data(torch, torch.from_numpy(PICTURES))))  # [H, W, C]
    halves = from_torch(torch_data(torch, (tensors / 256).bfloat16())).images
    np.testing.assert_array_equal(halves, (tensors / 256).bfloat16().float().permute(0, 2, 3, 1))

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return ({"pixels": tensors[n], "kind": NAMES[LABELS[n]]} for n in range(12))

    check_same(from_torch(Stream(), "pixels", "kind"), names=NAMES)
    check_same(from_torch(torch.utils.data.DataLoader(torch_data(torch, tensors), 5)))
    loader = torch.utils.data.DataLoader(Stream(), 5)
    check_same(from_torch(loader, "pixels", "kind"), names=NAMES)
    with pytest.raises(ValueError, match=r"loader\[0\] .*'birds'.* 'pixels', 'kind'"):
        from_torch(loader, "birds", "kind")
    features = torch.arange(12.0).reshape(4, 3)
    for tensor in (features.clone().requires_grad_(), features.bfloat16()):
        data = Dataset("tensors", tensor, torch.arange(4))
        np.testing.assert_array_equal(data.images, features)
        assert data.labels.tolist() == [0, 1, 2, 3]


def test_pytorch_photographs_are_read_lazily(torch):
    photos = [Image.open(io.BytesIO(content)) for content in PHOTOS]
    data = from_torch(torch_data(torch, photos), labels=LABELS, transform=small)
    expected = from_rows([(content, 0) for content in PHOTOS], transform=small).images[:]
    np.testing.assert_array_equal(ImageFiles(data.images.files, small)[:], expected)
    assert from_torch(torch_data(torch, photos)).images.shape == (12, 224, 224, 3)


# Rows


def test_tables_of_pandas_and_sources_of_grain():
    pandas = pytest.importorskip("pandas", reason="reads a table of pandas")
    table = pandas.DataFrame({"image": list(FILES), "label": LABELS}, index=range(5, 17))
    check_same(from_rows(table))
    grain = pytest.importorskip("grain")
    source = grain.MapDataset.source(list(zip(PICTURES, LABELS, strict=True)))
    check_same(from_rows(source))
    check_same(from_rows(source.to_iter_dataset()))


def test_rows_of_arrays_files_images_and_dicts():
    pairs = list(zip(PICTURES, LABELS, strict=True))
    check_same(from_rows(pairs))
    check_same(from_rows(iter(pairs)))
    check_same(from_rows({"image": image, "label": np.int64(label)} for image, label in pairs))
    files = list(zip(FILES, LABELS, strict=True))
    check_same(from_rows((file, NAMES[label].encode()) for file, label in files), names=NAMES)
    for kind in (bytearray, memoryview, io.BytesIO, lambda f: np.frombuffer(f, np.uint8)):
        check_same(from_rows([(kind(file), label) for file, label in files]))
    check_same(from_rows([(image.tolist(), label) for image, label in pairs]))
    check_same(from_rows([(Image.fromarray(image), label) for image, label in pairs]))
    check_same(from_rows([(image, np.array(NAMES[label])) for image, label in pairs]), names=NAMES)
    check_same(from_rows([(5, label, image) for image, label in pairs], image=2, label=1))
    tall = [(np.zeros((70 + n, 9, 4), np.uint8), n % 2) for n in range(4)]
    assert from_rows(tall).images.shape == (4, 224, 224, 3)


def test_given_labels_replace_those_of_the_rows():
    pairs = list(zip(PICTURES, LABELS, strict=True))
    finer = [f"{label}-{row % 2}" for row, label in enumerate(LABELS)]
    assert set(from_rows(pairs, labels=finer).class_names["label"]) == set(finer)
    check_same(from_rows([(image, None) for image in PICTURES], labels=LABELS))
    # Rows that come one after another may have an order of their own, as those of a loader that shuffles.
    for rows, labels in ((iter(pairs), LABELS), (pairs, LABELS[:2])):
        with pytest.raises(ValueError, match=r"^labels\b"):
            from_rows(rows, labels=labels)


def test_pillow_images_equal_their_files(tmp_path):
    """Images with transparency, with an EXIF orientation, and of 16 bits."""
    deep = Image.fromarray(np.arange(72, dtype=np.uint16).reshape(8, 9) * 900)
    clear, turned = Image.new("RGB", (9, 8), "red"), Image.fromarray(PICTURES[0])
    turned.getexif()[0x0112] = 6
    clear.save(tmp_path / "0.png", transparency=(255, 0, 0))
    turned.save(tmp_path / "1.png", exif=turned.getexif())
    deep.save(tmp_path / "2.png")
    for name in ("0.png", "1.png", "2.png"):
        with Image.open(tmp_path / name) as picture:
            expected = from_rows([(str(tmp_path / name), 0)]).images
            np.testing.assert_array_equal(from_rows([(picture, 0)]).images, expected)


PICTURE = PICTURES[0]


@pytest.mark.parametrize(
    ("rows", "error", "name"),
    [
        ([], ValueError, "list"),
        ([{"img": 0, "label": 0}], ValueError, r"list\[0\] .*'image'.* 'img'"),
        ([(PICTURE, 0), (None, 0)], TypeError, r"list\[1\]: image"),
        ([(PICTURE, 0), (PICTURE, None)], ValueError, r"list\[1\]: label"),
        ([(PICTURE, 0), (PICTURE, -1)], ValueError, r"list\[1\]: label\b.*-1"),
        ([(PICTURE, "0"), (PICTURE, " -1")], ValueError, r"list\[1\]: label\b.*-1"),
        ([(PICTURE, 0.5)], TypeError, r"list\[0\]: label"),
        ([(object(), 0)], TypeError, r"list\[0\]: image"),
        ([(Image.new("F", (9, 9)), 0)], BadImageError, r"list\[0\]: .*'F'"),
        ([(np.zeros(3), 0), (np.zeros(4), 0)], ValueError, ""),
        ([(PICTURE, 0), (FILES[0], 0)], TypeError, r"list\[1\]"),
        ([(np.zeros((3, 3, 3)), 0)], TypeError, "images"),
        ([(b"?", 0)], BadImageError, r"list\[0\]:"),
    ],
)
def test_wrong_rows_are_refused(rows, error, name):
    with pytest.raises(error, match=f"^{name}") as caught:
        from_rows(rows)
    assert "\n" not in str(caught.value)
    pictures = [Image.fromarray(picture) for picture in PICTURES]
    np.testing.assert_array_equal(Dataset("same", pictures, LABELS).images, np.stack(PICTURES))
    inks = [picture.convert("CMYK") for picture in pictures]
    for images in (FILES, inks, [pictures[0].resize((3, 4)), *pictures[1:]]):
        with pytest.raises(TypeError, match=r"^images\b.*\bfrom_rows\b"):
            Dataset("wrong", images, LABELS)


# A user's module


def test_pointer_to_a_users_module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_birds.py").write_text(
        "import numpy as np, jdml\n"
        "np.save('images.npy', np.full((12, 9, 9, 1), 7, np.uint8))\n"
        "images = np.load('images.npy', mmap_mode='r')\n"
        "arrays = jdml.data.Dataset('mine', images, np.arange(12) % 4)\n"
        "def parts():\n"
        "    return {'train': list(zip(images, 'ab' * 6)), 'validation': list(zip(images, 'cd' * 6))}\n"
        "class Featured(list): features = None\n"
        "featured = Featured([(images[0], 0), (images[1], 1)])\n"
        "other = {'holdout': arrays}\n"
        "negative = [(images[0], -1), (images[1], 0)]\n"
        "def broken(): raise KeyError('disk')\n"
        "numbers = jdml.data.Dataset('mine', np.zeros((4, 3)), np.arange(4))\n"
    )
    listing = read_pointer("my_birds:arrays")
    sizes = {part: len(rows) for part, rows in listing.splits.items()}
    assert sizes == {"train": 6, "test": 6, "all": 12}
    assert listing.dataset("test", transform=small).images[:1].mean() == 7
    assert str(listing.files[2]) == "my_birds:arrays[2]"
    parts = read_pointer("my_birds:parts")
    sizes = {part: len(rows) for part, rows in parts.splits.items()}
    assert sizes == {"train": 12, "val": 12, "all": 24}
    assert list(parts.names["class"].values()) == ["a", "b", "c", "d"]
    assert image_named("my_birds:parts validation[3]") is parts.files[15]
    assert len(read_pointer("my_birds:featured").files) == 2  # not a Hugging Face data set
    for name, error, place in (
        ("my_birds:other", ValueError, "my_birds:other: .*'holdout'"),
        ("my_birds:numbers", ValueError, "my_birds:numbers"),
        ("my_birds:negative", ValueError, r"my_birds:negative\[0\]: label"),
        ("my_birds:broken", ValueError, r"my_birds:broken .*KeyError.*my_birds\.py:11\b"),
        ("nowhere:birds", ValueError, "nowhere:birds"),
    ):
        with pytest.raises(error, match=rf"^{place}"):
            read_pointer(name)
    with pytest.raises(ValueError, match=r"^my_birds:arrays\[99\]"):
        image_named("my_birds:arrays[99]")
