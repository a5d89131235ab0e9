"""Data sets that TensorFlow Datasets prepares: on first use, without a network, or forbidden; nothing is downloaded."""

import os
import re
import subprocess
import sys

import pytest

from jdml.data import get, load


def run(script: str, *words: object) -> tuple[int, str]:
    """Run in a new process, as builders register their names; return the exit code and the output."""
    command = [sys.executable, "-c", script, *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


# A builder that needs no TensorFlow and reads one file, of a host that does not exist.
FIRST_USE = """
import hashlib, sys
from types import ModuleType, SimpleNamespace
import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import downloader
from tensorflow_datasets.core.download.checksums import UrlInfo
from jdml.data import load

downloader.MAX_RETRIES = 0  # else it tries again for minutes
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

# TensorFlow and its dependencies are importable until the GPU is reserved for JAX.
FAKES = {name: ModuleType(name) for name in ("tensorflow", "cv2", "importlib_resources")}
forget = lambda devices, kind: [sys.modules.pop(name) for name in FAKES]
FAKES["tensorflow"].config = SimpleNamespace(set_visible_devices=forget)
sys.modules |= FAKES
train, test = (load("mnist", split=split) for split in ("train", "test"))
np.testing.assert_array_equal(train.images[:, 5, 5, 0], 20 * train.labels)
print(*np.bincount(train.labels), len(test))
"""


@pytest.mark.slow  # two processes import TensorFlow Datasets
def test_first_use_prepares_and_names_the_missing_file_when_offline(tmp_path, monkeypatch):
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
def test_preparation_can_be_forbidden(tmp_path, monkeypatch, name):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match=rf"^{name}\b.* {tmp_path}: .*`jdml data get {name}`"
    ):
        load(name, download=False)
    with pytest.raises(FileNotFoundError, match=f"`jdml data get {name} --data-dir here`"):
        get(name, "here", download=False)
