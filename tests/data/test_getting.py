"""Data sets that TensorFlow Datasets prepares: on first use, without a network, refused; never downloaded."""

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jdml.data import get, load

needs_tensorflow = pytest.mark.skipif(
    find_spec("tensorflow") is None, reason="needs TensorFlow: pip install 'jdml[tfds]'"
)


def run(script: str, *words: object) -> tuple[int, str]:
    """Run apart, as builders register their names; the exit code, and what is printed."""
    command = [sys.executable, "-c", script, *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


# A builder that needs no TensorFlow and reads one file, of a host that is not there.
FIRST_USE = """
import hashlib, sys
from types import ModuleType, SimpleNamespace
import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download.checksums import UrlInfo
from jdml.data import load

URL = "https://nowhere.invalid/digits.bin"
DIGITS = bytes([3, 1, 4, 1, 5, 9, 2, 6])

class Mnist(tfds.core.GeneratorBasedBuilder):
    name, VERSION = "mnist", tfds.core.Version("3.0.1")
    url_infos = {URL: UrlInfo(8_000_000, hashlib.sha256(DIGITS).hexdigest(), "digits.bin")}
    url_infos[URL].size = len(DIGITS) if len(sys.argv) > 1 else 8_000_000

    def _info(self):
        features = {"image": tfds.features.Tensor(shape=(28, 28, 1), dtype=np.uint8)}
        features["label"] = tfds.features.ClassLabel(num_classes=10)
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, manager):
        path = manager.download(URL)
        return {"train": self._generate_examples(path, 6), "test": self._generate_examples(path, 2)}

    def _generate_examples(self, path, count):
        for row, digit in enumerate(path.read_bytes()[:count]):
            yield row, {"image": np.full((28, 28, 1), 20 * digit, np.uint8), "label": digit}

# TensorFlow and what comes with it are there until the GPU has been left to JAX.
FAKES = {name: ModuleType(name) for name in ("tensorflow", "cv2", "importlib_resources")}
forget = lambda devices, kind: [sys.modules.pop(name) for name in FAKES]
FAKES["tensorflow"].config = SimpleNamespace(set_visible_devices=forget)
sys.modules |= FAKES
train, test = (load("mnist", split=split) for split in ("train", "test"))
np.testing.assert_array_equal(train.images[:, 5, 5, 0], 20 * train.labels)
print(*np.bincount(train.labels), len(test))
"""


def test_the_first_use_prepares_and_without_a_network_names_the_missing_file(tmp_path, monkeypatch):
    pytest.importorskip("tensorflow_datasets")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "sets"))
    for variable in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(variable)
    code, out = run(FIRST_USE)
    assert code == 1
    assert re.search(rf"^mnist: 8 MB .* {tmp_path / 'sets'}$", out, re.MULTILINE)
    manual = tmp_path / "sets" / "downloads" / "manual"
    (*_, error) = out.splitlines()
    assert error.startswith("FileNotFoundError: mnist ")
    for name in ("nowhere.invalid", "digits.bin", str(manual), "data_dir"):
        assert name in error
    manual.mkdir(parents=True)
    (manual / "digits.bin").write_bytes(bytes([3, 1, 4, 1, 5, 9, 2, 6]))
    code, out = run(FIRST_USE, "there")
    assert code == 0, out
    assert out.splitlines()[-1] == "0 2 0 1 1 1 0 0 0 1 2"
    assert len(load("mnist", download=False)) == 6
    assert get("mnist") == tmp_path / "sets"


@pytest.mark.parametrize("name", ["mnist", "omniglot", "cub", "cars", "sop"])
def test_preparing_may_be_forbidden(tmp_path, monkeypatch, name):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match=rf"^{name}\b.* {tmp_path}: .*`jdml data get {name}`"
    ):
        load(name, download=False)
    with pytest.raises(FileNotFoundError, match=f"`jdml data get {name} --data-dir here`"):
        get(name, "here", download=False)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: get("inshop"), "name"),
        (lambda: get("mnist", "s3://bucket"), "data_dir"),
        (lambda: load("mnist", "test"), "data_dir"),
    ],
)
def test_wrong_arguments_are_refused(call, argument):
    with pytest.raises(ValueError, match=rf"^{argument}\b"):
        call()


# The builders of tfds themselves, on archives that lie in downloads/manual.
REAL = """
import hashlib, sys
from pathlib import Path
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download.checksums import UrlInfo
from jdml.data import get
from jdml.registry import DATASETS

name, folder = sys.argv[1], Path(sys.argv[2])
kind = tfds.builder_cls(DATASETS[name].tfds)
infos = {}
for url, info in kind.url_infos.items():
    content = (folder / "downloads" / "manual" / info.filename).read_bytes()
    infos[url] = UrlInfo(len(content), hashlib.sha256(content).hexdigest(), info.filename)
kind.url_infos = infos
if len(sys.argv) > 3:
    tfds.builder(DATASETS[name].tfds, data_dir=str(folder)).download_and_prepare()
get(name, folder)
"""


def same(name: str, prepared: Path, original: Path) -> None:
    """The same labels, counts and pixels of each class, in whatever order."""
    options = {"check_files": False} if name in ("cub", "sop") else {}
    for split in ("train", "test"):
        one, other = (
            load(name, data_dir=place, split=split, **options) for place in (prepared, original)
        )
        assert one.views.keys() == other.views.keys()
        for view in one.views:
            np.testing.assert_array_equal(
                np.bincount(one.views[view]), np.bincount(other.views[view])
            )
        if not options:
            assert one.class_names == other.class_names
            sums = [
                np.bincount(data.labels, data.images.sum((1, 2, 3), dtype=float))
                for data in (one, other)
            ]
            np.testing.assert_array_equal(*sums)


@pytest.fixture
def manual(tmp_path) -> Path:
    folder = tmp_path / "downloads" / "manual"
    folder.mkdir(parents=True)
    return folder


def encoded(kind: str, mode: str) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (4, 4)).save(file, kind)
    return file.getvalue()


@needs_tensorflow
@pytest.mark.slow
def test_mnist_is_what_its_files_are_from_tfrecord_too(shared_data, tmp_path, manual):
    for file in (shared_data / "mnist").glob("*.gz"):
        shutil.copy(file, manual)
    code, out = run(REAL, "mnist", tmp_path, "tfrecord")
    assert code == 0, out
    assert any(tmp_path.glob("mnist/*/*tfrecord*"))
    same("mnist", tmp_path, shared_data / "mnist")


@needs_tensorflow
@pytest.mark.slow
def test_omniglot_is_what_its_files_are(shared_data, tmp_path, manual):
    source = shared_data / "omniglot"
    for name in ("images_background", "images_evaluation"):
        shutil.copy(source / f"{name}.zip", manual)
    with zipfile.ZipFile(source / "images_background.zip") as whole:
        (name, *_) = [name for name in whole.namelist() if name.endswith(".png")]
        for small in ("images_background_small1", "images_background_small2"):
            with zipfile.ZipFile(manual / f"{small}.zip", "w") as part:
                part.writestr(name.replace("images_background", small), whole.read(name))
    code, out = run(REAL, "omniglot", tmp_path)
    assert code == 0, out
    same("omniglot", tmp_path, source)


@needs_tensorflow
@pytest.mark.slow
def test_cub_is_what_its_lists_are(shared_data, tmp_path, manual):
    lists = shared_data / "cub200_2011"
    photo, mask = encoded("jpeg", "RGB"), encoded("png", "L")

    def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))

    images = [line.split()[1] for line in (lists / "images.txt").read_text().splitlines()]
    with tarfile.open(manual / "CUB_200_2011.tgz", "w:gz") as archive:
        for file in lists.glob("*.txt"):
            add(archive, f"CUB_200_2011/{file.name}", file.read_bytes())
        for image in images:
            add(archive, f"CUB_200_2011/images/{image}", photo)
    with tarfile.open(manual / "segmentations.tgz", "w:gz") as archive:
        for image in images:
            add(archive, f"segmentations/{Path(image).with_suffix('.png')}", mask)
    code, out = run(REAL, "cub", tmp_path)
    assert code == 0, out
    same("cub", tmp_path, lists)


@needs_tensorflow
@pytest.mark.slow
def test_sop_is_what_its_lists_are(shared_data, tmp_path, manual):
    photo, lists = encoded("jpeg", "RGB"), tmp_path / "lists"
    lists.mkdir()
    with zipfile.ZipFile(manual / "Stanford_Online_Products.zip", "w") as archive:
        for name in ("Ebay_train.txt", "Ebay_test.txt"):
            head, *lines = (shared_data / "sop" / name).read_text().splitlines()
            some = lines[::40]  # 120,053 images would take minutes
            text = "\n".join([head, *some]) + "\n"
            (lists / name).write_text(text)
            archive.writestr(f"Stanford_Online_Products/{name}", text)
            for line in some:
                archive.writestr(f"Stanford_Online_Products/{line.split()[3]}", photo)
    code, out = run(REAL, "sop", tmp_path)
    assert code == 0, out
    same("sop", tmp_path, lists)
