"""What the guide says to write for other libraries' loaders: on theirs where installed, else on stand-ins."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
from PIL import Image

import jdml

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "loaders.md"
BLOCKS = dict(
    re.findall(
        r"^```\{code-block\} python\n:name: ([\w-]+)\n\n(.*?)^```", PAGE.read_text(), re.M | re.S
    )
)
IMAGES = numpy.random.default_rng(0).integers(0, 256, (10, 8, 6, 3), dtype=numpy.uint8)
LABELS = numpy.arange(10) % 3


def run(name, **there):
    names = {"numpy": numpy, "jdml": jdml, **there}
    exec(BLOCKS[name], names)
    return names


def check(train):
    numpy.testing.assert_array_equal(train.images, IMAGES)
    numpy.testing.assert_array_equal(train.labels, LABELS)


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
    check(run("torch-data-set", dataset=torch_data)["train"])
    check(run("torch-loader", loader=torch.utils.data.DataLoader(torch_data, 4))["train"])


def test_a_sampler_of_pytorch_begins_again(torch):
    drawn = torch.utils.data.BatchSampler(range(10), 4, drop_last=False)
    sampler = run("torch-sampler", batch_sampler=drawn)["sampler"]
    batches = [next(sampler).tolist() for _ in range(4)]
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [0, 1, 2, 3]]


def test_columns_of_hugging_face():
    rows = {"image": [Image.fromarray(image) for image in IMAGES], "label": LABELS.tolist()}
    check(run("hugging-face", dataset={"train": rows})["train"])


def test_examples_of_tf_data():
    examples = SimpleNamespace(as_numpy_iterator=lambda: zip(IMAGES, LABELS, strict=True))
    check(run("tf-data", dataset=examples)["train"])


def test_photographs_are_drawn_as_files(draw, tmp_path, monkeypatch):
    draw(tmp_path / "photos", 32, 4)
    monkeypatch.chdir(tmp_path)
    fitted = run("photographs", fit=lambda photos, batches: (photos, batches))["result"]
    assert isinstance(fitted[0].images, jdml.data.ImageFiles)
    assert isinstance(fitted[1], jdml.data.ImageBatches)


def test_all_blocks_are_tried():
    text = Path(__file__).read_text()
    assert all(f'run("{name}"' in text for name in BLOCKS)
    assert len(BLOCKS) == PAGE.read_text().count("{code-block} python")
