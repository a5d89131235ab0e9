"""The guide's code for other libraries' loaders, run on the libraries if installed, otherwise on stand-ins."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cli.photos import draw_photos
from PIL import Image

import jdml

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "own_data.md"
BLOCKS = dict(
    re.findall(
        r"^```\{code-block\} python\n:name: ([\w-]+)\n\n(.*?)^```", GUIDE.read_text(), re.M | re.S
    )
)
IMAGES = np.random.default_rng(0).integers(0, 256, (10, 8, 6, 3), dtype=np.uint8)
LABELS = np.arange(10) % 3


def run_block(name, **there):
    names = {"numpy": np, "jdml": jdml, **there}
    exec(BLOCKS[name], names)
    return names


def check_pairs(name, **there):
    train = run_block(name, **there)["train"]
    np.testing.assert_array_equal(train.images, IMAGES)
    np.testing.assert_array_equal(train.labels, LABELS)


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="reads its loaders: pip install torch")


def test_pytorch_data_set_and_loader(torch):
    images, labels = torch.from_numpy(IMAGES.transpose(0, 3, 1, 2)), torch.from_numpy(LABELS)
    dataset = torch.utils.data.TensorDataset(images, labels)
    check_pairs("torch-data-set", dataset=dataset)
    check_pairs("torch-loader", loader=torch.utils.data.DataLoader(dataset, 4))


def test_pytorch_sampler_restarts(torch):
    drawn = torch.utils.data.BatchSampler(range(10), 4, drop_last=False)
    sampler = run_block("torch-sampler", batch_sampler=drawn)["sampler"]
    batches = [next(sampler).tolist() for _ in range(4)]
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [0, 1, 2, 3]]


def test_hugging_face_columns():
    hub = pytest.importorskip("datasets", reason="reads its data sets: pip install datasets")
    features = hub.Features(image=hub.Image(), label=hub.Value("int64"))
    rows = {"image": [Image.fromarray(image) for image in IMAGES], "label": LABELS.tolist()}
    dataset = {"train": hub.Dataset.from_dict(rows, features=features)}
    check_pairs("hugging-face", dataset=dataset)


def test_tf_data_examples():
    examples = SimpleNamespace(as_numpy_iterator=lambda: zip(IMAGES, LABELS, strict=True))
    check_pairs("tf-data", dataset=examples)


def test_photographs_are_read_as_files(tmp_path, monkeypatch):
    draw_photos(tmp_path / "photos", 32, 4)
    monkeypatch.chdir(tmp_path)
    fitted = run_block("photographs", fit=lambda photos, batches: (photos, batches))["result"]
    assert isinstance(fitted[0].images, jdml.data.ImageFiles)
    assert isinstance(fitted[1], jdml.data.ImageBatches)


def test_every_block_of_the_guide_is_run():
    text = Path(__file__).read_text()
    assert all(f'("{name}", ' in text for name in BLOCKS)
    assert len(BLOCKS) == GUIDE.read_text().count("{code-block} python")
