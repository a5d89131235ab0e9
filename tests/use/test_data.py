"""Splits of one's own, and what is passed over or wrong: told by `jdml data check` too, counted, or refused."""

import contextlib
import importlib
import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import jdml.cli
from jdml import data
from jdml.data import duplicates
from jdml.data.arrays import read_arrays
from jdml.data.duplicates import Place
from jdml.data.folder import read_folder, read_table
from jdml.data.splits import read_names, resplit, train_on
from jdml.registry.extras import MissingLibraryError


def counts(listing) -> dict[str, tuple[int, int]]:
    """Classes and images of each split."""
    ids = listing.views["class"]
    return {name: (len(np.unique(ids[rows])), len(rows)) for name, rows in listing.splits.items()}


@pytest.fixture(scope="module")
def layout(tmp_path_factory, draw) -> Path:
    """`train/`, `val/` and `test/`, each with classes; two of those in val train, too."""
    root = tmp_path_factory.mktemp("layout")
    for split, kinds, size in (("train", 4, 24), ("val", 2, 32), ("test", 3, 40)):
        draw(root / split, kinds, 2, size)
    return root


def test_train_val_test_are_read_as_what_they_are(layout):
    listing = read_folder(layout)
    assert counts(listing) == {"train": (4, 8), "val": (2, 4), "test": (3, 6), "all": (4, 18)}
    part = data.load("folder", data_dir=layout, split="val")
    assert part.class_names["class"] == ("kind0", "kind1")
    checked = data.check("folder", layout)
    assert [part.split for part in checked.parts] == ["train", "val", "test"]
    assert checked.problems == ()
    assert "3 classes are both in train and in test" in checked.notes[0]


def test_classes_that_are_called_like_splits_and_others_are_classes(tmp_path, draw):
    draw(tmp_path, 2, 2)
    (tmp_path / "kind0").rename(tmp_path / "train")
    assert counts(read_folder(tmp_path)) == {"train": (1, 2), "test": (1, 2), "all": (2, 4)}


def test_a_layout_without_classes_is_told(tmp_path, photos):
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "0.png").write_bytes((photos / "kind0" / "0.png").read_bytes())
    with pytest.raises(
        ValueError, match="test: expected a folder for each class, found none, and 1"
    ):
        read_folder(tmp_path)


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
    ("text", "match"),
    [
        ("a.png,ant", r"t.csv:1: expected file,label or file,label,split, got 'a.png,ant'"),
        ("file,label\na.png", r"t.csv:2: expected file,label, got 'a.png'"),
        ("file,label\na.png,", r"t.csv:2: expected file,label, got 'a.png,'"),
        ("file,label\na.png,ant\na.png,bee", r"t.csv:3: a.png is there twice"),
        (
            "file,label,split\na.png,ant,dev",
            r"t.csv:2: split must be train, val or test, got 'dev'",
        ),
        ("file,label\n", r"t.csv: expected at least one image, got none"),
    ],
)
def test_bad_tables_name_the_line(tmp_path, text, match):
    with pytest.raises(ValueError, match=match):
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
    listing = read_folder(photos)
    few = train_on(listing, ["kind0"])
    with pytest.raises(ValueError, match="rule must be classes, images or none, got 'half'"):
        resplit(few, "half")
    with pytest.raises(ValueError, match="share must be between 0 and 1, got 1"):
        resplit(few, "images", share=1)
    with pytest.raises(ValueError, match="1 of 2 are no classes: kind9; there are kind0, kind1"):
        train_on(listing, ["kind0", "kind9"])
    with pytest.raises(ValueError, match="c.txt:2: ant is there twice"):
        read_names(write(tmp_path / "c.txt", "ant\nant\n"))
    with pytest.raises(ValueError, match="expected names of classes, one a line, got none"):
        read_names(write(tmp_path / "c.txt", "\n"))


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
    assert listing.notes == (
        "1 image lies beside the classes' folders, in none of them",
        "2 files of other kinds (2 .heic) left out: convert them to .jpg or .png",
        "1 file of other kinds (1 .txt) left out",
    )
    done = jdml_command("data", "check", "folder", root, "--quiet")
    assert done.code == 1
    assert "wrong: 2 files of other kinds (2 .heic) left out" in done.out


def test_a_class_of_one_image_is_told(tmp_path, draw):
    root = draw(tmp_path / "photos", 4, 2)
    (root / "kind1" / "1.png").unlink()
    checked = data.check("folder", root)
    assert checked.problems == ()
    assert checked.notes[0].startswith(
        "1 class has a single image: it has no positive to learn from"
    )


def test_a_class_without_images_names_what_lies_there(tmp_path):
    for name in ("ant", "bee"):
        (tmp_path / name).mkdir()
    (tmp_path / "ant" / "0.heic").write_bytes(b"?")
    with pytest.raises(
        ValueError, match=r"ant: expected images .*found none \(but 1 file of .*heic"
    ):
        read_folder(tmp_path)


def check(capsys, *arguments):
    try:
        code = jdml.cli.main(["data", *map(str, arguments)])
    except SystemExit as stop:
        code = stop.code
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def write_pixels(folder, count=2):
    from PIL import Image

    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (9, 9), (i, ord(name[0]), 0)).save(folder / name / f"{i}.png")


def test_data_check_says_that_all_is_well(capsys, tmp_path):
    write_pixels(tmp_path)
    code, out, err = check(capsys, "check", "folder", tmp_path, "--quiet")
    assert code == 0
    assert "all is well" in out
    assert "decoded: 4 images" in out
    assert err == ""


def test_data_check_says_what_is_wrong(capsys, tmp_path):
    write_pixels(tmp_path)
    (tmp_path / "cat" / "1.png").write_bytes(b"no image")
    code, out, _ = check(capsys, "check", "folder", tmp_path, "--quiet")
    assert code == 1
    assert "wrong: 1 of 4 images are damaged" in out
    code, out, _ = check(capsys, "check", "cub", tmp_path, "--quiet")
    assert code == 1
    assert "wrong: cub needs images.txt" in out


def test_data_check_of_the_real_lists(capsys, shared_data):
    code, out, _ = check(capsys, "check", "cub", shared_data / "cub200_2011", "--quiet")
    assert code == 1
    assert "5,864 / 5,864" in out
    assert "the lists are whole" in out
    assert "wrong: 11788 of 11788 image files are missing" in out


def test_mistakes_of_data_check(capsys, tmp_path):
    code, _, err = check(capsys, "check", "cub", tmp_path / "none")
    assert (code, err.count("\n")) == (2, 1)
    assert "DIR must be a folder, got" in err
    code, _, err = check(capsys, "check", "imagenet", tmp_path)
    assert code == 2
    assert "omniglot" in err
    code, _, err = check(capsys, "check", "folder", tmp_path, "--sample", "0")
    assert code == 2
    assert "sample must be at least 1" in err


# Images that are nearly the same


def scene(number, size=96):
    """A picture of large shapes with small ones on them, as photographs have."""
    random = np.random.default_rng(number)
    pixels = np.full((size, size), 128.0)
    for cells in (4, 8, 16, 32):
        shapes = Image.fromarray(random.normal(0, 200 / cells, (cells, cells)).astype(np.float32))
        pixels += np.asarray(shapes.resize((size, size), Image.Resampling.BICUBIC))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).convert("RGB")


@pytest.fixture(scope="module")
def copied(tmp_path_factory) -> Path:
    """Two classes in two parts; some pictures are also in another part or under another label, changed a little."""
    root = tmp_path_factory.mktemp("copied")
    for place in ("train/cat", "train/dog", "test/cat", "test/dog"):
        (root / place).mkdir(parents=True)
    for number in range(8):
        scene(number).save(root / f"train/{'cat' if number < 4 else 'dog'}/{number}.png")
    scene(8).save(root / "test/cat/own.png")
    scene(9).save(root / "test/dog/own.png")
    scene(0).resize((40, 40)).save(root / "test/cat/small.png")
    scene(1).save(root / "test/cat/rough.jpg", quality=30)
    scene(2).crop((2, 2, 94, 94)).save(root / "train/dog/cropped.png")
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 270 degrees when it is shown
    scene(4).transpose(Image.Transpose.ROTATE_90).save(
        root / "test/dog/turned.jpg", quality=90, exif=exif
    )
    scene(5).save(root / "train/dog/twin.png")  # of its own class and part: no matter
    (root / "train/cat/broken.png").write_bytes(b"no image")
    return root


COPIES = {
    ("test/cat/rough.jpg", "train/cat/1.png"),
    ("test/cat/small.png", "train/cat/0.png"),
    ("test/dog/turned.jpg", "train/dog/4.png"),
    ("train/cat/2.png", "train/dog/cropped.png"),
}


def couples_in(found, root):
    files = [(couple["first"]["file"], couple["second"]["file"]) for couple in found["alike"]]
    return {tuple(str(Path(file).relative_to(root)) for file in couple) for couple in files}


def test_images_that_are_nearly_the_same_are_found_by_a_hash(copied, tmp_path, capsys):
    pytest.importorskip("imagehash", reason="compares hashes: pip install 'jdml[duplicates]'")
    words = ("check", "folder", copied, "--quiet")
    code, out, _ = check(capsys, *words)
    assert (code, "nearly the same" in out) == (1, False)
    code, out, err = check(capsys, *words, "--duplicates", "--json", tmp_path / "found.json")
    assert (code, err) == (1, "")
    assert "wrong: 4 couples of images are nearly the same in two parts or under two labels" in out
    assert "wrong: 1 of 16 images are damaged" in out
    found = json.loads((tmp_path / "found.json").read_text())
    assert couples_in(found, copied) == COPIES
    distances = [couple["distance"] for couple in found["alike"]]
    assert distances == sorted(distances)
    assert all(float(distance).is_integer() for distance in distances)
    turned = next(c for c in found["alike"] if c["first"]["file"].endswith("turned.jpg"))
    expected = {"file": str(copied / "train/dog/4.png"), "part": "train", "label": "dog"}
    assert turned["second"] == expected
    assert (found["decoded"], len(found["problems"])) == (16, 2)
    code, out, _ = check(capsys, *words, "--duplicates", "--within", "0")
    assert "4 couples" not in out
    digits = data.check("digits", None, duplicates=True)
    assert digits.problems == ()  # of a published set a note
    assert len(digits.notes) == bool(digits.alike)


def test_what_has_another_colour_is_not_the_same_and_what_is_flat_is_nothing(tmp_path):
    pytest.importorskip("imagehash", reason="compares hashes: pip install 'jdml[duplicates]'")
    far = np.hypot(*(np.mgrid[:96, :96] - 48))
    for name, colour in {"red": (200, 30, 30), "blue": (30, 30, 200), "grey": None}.items():
        pixels = np.full((96, 96, 3), 255, np.uint8)
        pixels[far < 30] = colour or (200, 30, 30)
        picture = Image.fromarray(pixels)
        (tmp_path / name).mkdir()
        picture = picture if colour else picture.convert("L")
        picture.save(tmp_path / name / "0.png")
        picture.resize((80, 80)).save(tmp_path / name / "1.jpg", quality=90)
        if colour == (200, 30, 30):
            (tmp_path / "again").mkdir()
            picture.crop((1, 1, 95, 95)).save(tmp_path / "again" / "0.png")
        for side in (30, 31):
            Image.new("RGB", (side, side), name).save(tmp_path / name / f"flat{side}.png")
    found = data.check("folder", tmp_path, duplicates=True).alike
    couples = {tuple(sorted(place.label for place in couple[:2])) for couple in found}
    assert ("again", "red") in couples  # blue ones come first, and are as near
    assert {"red", "grey"} < {label for couple in couples for label in couple if "grey" in couple}
    assert ("blue", "red") not in couples
    assert not any("flat" in str(couple) for couple in found)
    assert duplicates.by_hash([], []) == duplicates.by_hash([None], [Place("a", "", "b")]) == ()


def test_images_that_are_nearly_the_same_are_found_by_embeddings(copied, tmp_path, capsys):
    """By any function; a couple once, what cannot be read is passed over."""

    def pixels(images):
        seen = images.images.each(lambda image: np.asarray(image.resize((8, 8)), float).ravel())
        return np.stack(
            [one if isinstance(one, np.ndarray) else np.full(192, np.nan) for one in seen]
        )

    found = data.check("folder", copied, duplicates=pixels)
    told = {
        "alike": [{"first": c.first._asdict(), "second": c.second._asdict()} for c in found.alike]
    }
    assert couples_in(told, copied) == COPIES
    assert data.check("folder", copied, duplicates=pixels, within=1e9).alike > found.alike
    with pytest.raises(ValueError, match="within must be at least 0, got -1"):
        data.check("folder", copied, within=-1)


def test_embeddings_of_a_run_are_compared(run, photos, tmp_path, jdml_command):
    shutil.copytree(photos, tmp_path / "photos")
    picture = Image.open(photos / "kind0" / "0.png")
    picture.save(tmp_path / "photos" / "kind1" / "again.bmp")
    words = ("data", "check", "folder", tmp_path / "photos", "--quiet", "--duplicates")
    done = jdml_command(*words, "--by", run.folder, "--within", "1e-4")
    assert done.code == 1, done.err
    assert "wrong: 1 couple of images is nearly the same" in done.out
    assert "again.bmp" in done.out
    done = jdml_command(*words[:-1], "--by", run.folder)
    assert (done.code, "--by is for --duplicates" in done.err) == (2, True)


def test_a_search_for_duplicates_says_what_it_needs(photos, monkeypatch):
    monkeypatch.setitem(sys.modules, "imagehash", None)
    with pytest.raises(
        MissingLibraryError,
        match=r"a search for duplicates by a hash needs ImageHash: pip install 'jdml\[duplicates\]'",
    ):
        data.check("folder", photos, duplicates=True)


def test_the_most_alike_of_another_place_in_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(50, 3)) + 100).astype(np.float32)
    vectors[7] = np.nan
    places = [Place(str(row), "", str(label)) for row, label in enumerate(rng.integers(0, 4, 50))]
    labels = np.array([place.label for place in places])
    apart = np.linalg.norm(vectors[:, None].astype(float) - vectors, axis=-1)
    apart = np.where((labels[:, None] == labels) | np.isnan(apart), np.inf, apart)
    expected = {
        tuple(sorted((row, int(other)))): apart[row, other]
        for row, other in enumerate(apart.argmin(axis=1))
        if apart[row, other] <= 0.7
    }
    for rows, columns in ((8, 16), (1 << 10, 1 << 13)):
        monkeypatch.setattr(duplicates, "ROWS", rows)
        monkeypatch.setattr(duplicates, "COLUMNS", columns)
        found = duplicates.by_embedding(vectors, places, 0.7)
        told = {(int(one.file), int(other.file)): far for one, other, far in found}
        assert told == pytest.approx(expected, rel=1e-4)
    assert duplicates.by_embedding(np.full((2, 3), np.nan), places[:2]) == ()


# Loaders of other libraries: what the guide says to write, on theirs where they are installed, else on stand-ins.

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "own_data.md"
BLOCKS = dict(
    re.findall(
        r"^```\{code-block\} python\n:name: ([\w-]+)\n\n(.*?)^```", GUIDE.read_text(), re.M | re.S
    )
)
IMAGES = np.random.default_rng(0).integers(0, 256, (10, 8, 6, 3), dtype=np.uint8)
LABELS = np.arange(10) % 3


def as_written(name, **there):
    names = {"numpy": np, "jdml": jdml, **there}
    exec(BLOCKS[name], names)
    return names


def check_pairs(train):
    np.testing.assert_array_equal(train.images, IMAGES)
    np.testing.assert_array_equal(train.labels, LABELS)


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="reads its loaders: pip install torch")


@pytest.fixture
def torch_data(torch):
    class Pairs(torch.utils.data.Dataset):
        def __len__(self):
            return len(IMAGES)

        def __getitem__(self, row):
            if row >= len(IMAGES):
                raise IndexError(row)
            return torch.from_numpy(IMAGES[row].transpose(2, 0, 1)), int(LABELS[row])

    return Pairs()


def test_a_data_set_and_a_loader_of_pytorch(torch, torch_data):
    check_pairs(as_written("torch-data-set", dataset=torch_data)["train"])
    check_pairs(
        as_written("torch-loader", loader=torch.utils.data.DataLoader(torch_data, 4))["train"]
    )


def test_a_sampler_of_pytorch_begins_again(torch):
    drawn = torch.utils.data.BatchSampler(range(10), 4, drop_last=False)
    sampler = as_written("torch-sampler", batch_sampler=drawn)["sampler"]
    batches = [next(sampler).tolist() for _ in range(4)]
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [0, 1, 2, 3]]


def test_columns_of_hugging_face():
    hub = pytest.importorskip("datasets", reason="reads its data sets: pip install datasets")
    features = hub.Features(image=hub.Image(), label=hub.Value("int64"))
    rows = {"image": [Image.fromarray(image) for image in IMAGES], "label": LABELS.tolist()}
    dataset = {"train": hub.Dataset.from_dict(rows, features=features)}
    check_pairs(as_written("hugging-face", dataset=dataset)["train"])


def test_examples_of_tf_data():
    examples = SimpleNamespace(as_numpy_iterator=lambda: zip(IMAGES, LABELS, strict=True))
    check_pairs(as_written("tf-data", dataset=examples)["train"])


def test_photographs_are_drawn_as_files(draw, tmp_path, monkeypatch):
    draw(tmp_path / "photos", 32, 4)
    monkeypatch.chdir(tmp_path)
    fitted = as_written("photographs", fit=lambda photos, batches: (photos, batches))["result"]
    assert isinstance(fitted[0].images, jdml.data.ImageFiles)
    assert isinstance(fitted[1], jdml.data.ImageBatches)


def test_all_blocks_are_tried():
    text = Path(__file__).read_text()
    assert all(f'as_written("{name}"' in text for name in BLOCKS)
    assert len(BLOCKS) == GUIDE.read_text().count("{code-block} python")


def test_the_shell_asks_for_what_preparing_needs(tmp_path, monkeypatch, jdml_command):
    # Imported now, where it is there: what it is without tensorflow would stay for other tests.
    with contextlib.suppress(ImportError):
        importlib.import_module("tensorflow_datasets")
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "sets"))
    for words in (("data", "get", "omniglot"), ("train", "--data", "omniglot")):
        done = jdml_command(*words)
        assert done.code != 0
        assert done.err.strip().endswith(
            "omniglot, without a folder of the two zips, or the folders in them (data_dir), is prepared by "
            "TensorFlow Datasets, which needs tensorflow: pip install 'jdml[tfds]'"
        )
    with pytest.raises(MissingLibraryError, match="needs tensorflow: pip install"):
        data.load("cub")
    assert not (tmp_path / "sets").exists()


def test_the_shell_says_where_a_data_set_is_prepared(tmp_path, jdml_command):
    info = tmp_path / "mnist" / "3.0.1" / "dataset_info.json"
    info.parent.mkdir(parents=True)
    info.write_text('{"fileFormat": "array_record"}')
    done = jdml_command("data", "get", "mnist", "--data-dir", str(tmp_path))
    assert (done.code, done.out) == (0, f"mnist is prepared in {tmp_path}\n")


# The same images in a table, and behind a name: every command sees them as those of the folder.


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
    assert (done.code, "all is well" in done.out) == (0, True)


def test_what_is_no_data_is_told_with_all_that_would_be(tmp_path, jdml_command):
    done = jdml_command("train", "--data", "mnst")
    assert done.code == 2
    assert "--data must be one of cars, cub, " in done.err
    assert "a path or module:name, got 'mnst'; did you mean mnist?" in done.err
    done = jdml_command("train", "--data", "nothing_there:rows")
    assert done.err.endswith(
        "nothing_there:rows cannot be imported: No module named 'nothing_there'\n"
    )
    (tmp_path / "no.parquet").write_text("")
    done = jdml_command("train", "--data", tmp_path / "no.parquet")
    assert "no.parquet is not a readable .parquet file" in done.err
