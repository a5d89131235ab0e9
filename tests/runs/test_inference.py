"""`Trained` in a server: images in every form, few programs, many threads."""

import io
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from cli.photos import Image, draw_noise

from jdml import data
from jdml.models import create
from jdml.testing.case import Compilations


@pytest.fixture
def trained(new_trained):
    """Make a model of photographs, of a network that no other test compiles."""
    return new_trained(create("small", dim=5), (16, 16, 3), data.conventional(16))


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    files = [tmp_path / f"{number}.png" for number in range(70)]
    draw_noise(files)
    return files


def test_image_has_the_same_embedding_as_path_bytes_and_of_pillow(trained, photos):
    expected = trained.embed(photos[:4])
    mixed = [photos[0], photos[1].read_bytes(), Image.open(photos[2]), str(photos[3])]
    for source in (mixed, tuple(mixed), [bytearray(file.read_bytes()) for file in photos[:4]]):
        np.testing.assert_array_equal(trained.embed(source), expected)
    for source in (photos[0].read_bytes(), Image.open(photos[0]), str(photos[0])):
        np.testing.assert_allclose(trained.embed(source), expected[:1], atol=1e-6)
    images = trained.images_of(photos[:4])[:]
    np.testing.assert_array_equal(trained.embed(list(images)), trained.embed(images))
    variables = {"params": trained.params, "batch_stats": trained.batch_stats}
    applied = trained.model.apply(variables, trained.preprocess(images), train=False)
    np.testing.assert_allclose(trained.normalize(applied), expected, atol=1e-6)
    assert "\n" not in repr(trained)
    image = Image.open(photos[0])  # is decoded once, by one thread
    np.testing.assert_allclose(trained.embed([image] * 64), expected[[0] * 64], atol=1e-6)


def test_wrong_inputs_are_named(trained, photos):
    whole = photos[0].read_bytes()
    cut = Image.open(io.BytesIO(whole[: len(whole) // 2]))
    for bad in (b"no image", whole[:100], cut):
        with pytest.raises(data.BadImageError, match=r"^source\[1\]"):
            trained.embed([whole, bad])
        found = trained.embed([whole, bad, photos[1]], on_bad_image="nan")
        assert np.isnan(found).any(axis=1).tolist() == [False, True, False]
    with pytest.raises(TypeError, match=r"^source\[1\]"):
        trained.embed([whole, 7])
    with pytest.raises(ValueError, match=r"^images\b.*\bmoveaxis\b"):
        trained.embed(np.zeros((2, 3, 16, 16), np.uint8))


@pytest.mark.slow  # 70 sizes
def test_varied_numbers_of_images_compile_few_programs(trained, photos):
    images = trained.images_of(photos)[:]
    compilations = Compilations()
    with compilations:
        vectors = [trained.embed(images[:size]) for size in range(1, 71)]
    assert len(compilations.names) <= 8  # 1, 2, 4, ..., 128
    for part in vectors:
        np.testing.assert_allclose(part, vectors[-1][: len(part)], atol=1e-6)


def test_warm_sizes_compile_nothing_later(trained, photos):
    trained.warm()
    compilations = Compilations()
    with compilations:
        trained.embed(photos[0])
        trained.embed([file.read_bytes() for file in photos[:8]])
        trained.embed(photos[:64])
    assert not compilations.names
    with pytest.raises(ValueError, match=r"^sizes\b"):
        trained.warm(sizes=(0,))


def test_threads_share_a_model(trained, photos):
    expected = trained.embed(photos)
    contents = [file.read_bytes() for file in photos]
    with ThreadPoolExecutor(8) as pool:
        sizes = [1 + row % 5 for row in range(65)]
        found = pool.map(lambda row: trained.embed(contents[row : row + sizes[row]]), range(65))
        for row, vectors in enumerate(found):
            np.testing.assert_allclose(vectors, expected[row : row + sizes[row]], atol=1e-6)


def test_forked_process_loads_its_own_model(trained, photos, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="fork"):
        trained.embed(photos[0])
